//! From the residual to what is known of the rows that were asked.

use cudarc::driver::result;

use super::{
    Cuda, CudaError, During, Grid, HeadNorm, Matrix, Outcome, Pinned, Ready, Rows, launch,
};
use crate::{
    cuda::{
        device::Device,
        layout::{CANDIDATES, CHOICE_BYTES, CHOOSE_PART},
    },
    engine::{
        executor::{Ask, Candidates},
        request::Token,
    },
};

use super::products::Target;

/// What the last window's rows came to, on the host.
pub(super) struct Results {
    /// `[rows, CHOICE_BYTES]`
    choices: Pinned,
    /// `[rows, CANDIDATES] u32`, `[rows, CANDIDATES] f32`.
    ids: Pinned,
    values: Pinned,
    /// `[vocab] f32`: a row that was fetched.
    row: Pinned,
    asks: Vec<Ask>,
}

/// `struct Choice` of `kernels/choose.cu`.
#[derive(Clone, Copy, Debug)]
struct Choice {
    token: Token,
    finite: bool,
    candidates: usize,
    mass: f64,
}

impl Results {
    pub(super) fn new(device: &Device, rows: usize, vocab: usize) -> Result<Self, CudaError> {
        let pinned = |bytes| Pinned::new(&device.context, bytes);
        Ok(Self {
            choices: pinned(CHOICE_BYTES * rows)?,
            ids: pinned(4 * CANDIDATES * rows)?,
            values: pinned(4 * CANDIDATES * rows)?,
            row: pinned(4 * vocab)?,
            asks: Vec::with_capacity(rows),
        })
    }

    fn choice(&self, row: usize) -> Choice {
        let words = &self.choices.words()[CHOICE_BYTES / 4 * row..][..CHOICE_BYTES / 4];
        Choice {
            token: words[0],
            finite: words[1] != 0,
            candidates: words[3] as usize,
            mass: f64::from_bits(u64::from(words[4]) | u64::from(words[5]) << 32),
        }
    }
}

impl Ready {
    /// Logits of the rows that are asked, what can be said of them, and its way to the host.
    pub(super) fn head(
        &mut self,
        norm: HeadNorm<'_, Cuda>,
        output: &Matrix,
        softcap: Option<f32>,
    ) -> Result<(), CudaError> {
        let now = self.now();
        let from = match norm {
            HeadNorm::Rms(weight, eps) => self.head_norm(weight, eps)?,
            HeadNorm::Streams(weights) => self.read_head(weights)?,
        };
        let logits = self.at(self.layout.logits);
        let target = Target {
            matrix: output,
            to: logits,
        };
        self.products(from, &[target])?;
        if let Some(cap) = softcap {
            let kernel = self.kernels.softcap.as_ref();
            let kernel = kernel.expect("compiled for models that cap logits");
            let grid = Grid::new([self.vocab.div_ceil(1024), now.asked, 1], 256);
            // SAFETY: the parameters of `softcap`; there are logits for the rows that are asked.
            unsafe {
                launch!(&self.queue, kernel, grid; logits, self.vocab as u32, cap, now.tables)
            }?;
        }
        let layout = self.layout.choose;
        let grid = Grid::new(
            [self.vocab.div_ceil(CHOOSE_PART), now.asked, 1],
            CHOOSE_PART / 4,
        );
        // SAFETY: the parameters of `choose`; scratch and results have room for the rows with logits.
        unsafe {
            launch!(&self.queue, &self.kernels.choose, grid;
                logits, now.want, self.at(layout.segments), self.at(layout.parts), self.at(layout.done),
                self.at(layout.choices), self.at(layout.ids), self.at(layout.values), now.tables)
        }?;
        if now.draws {
            return Ok(());
        }
        let (results, stream) = (&mut self.results, self.queue.stream.cu_stream());
        let base = self.work.address();
        for (pinned, at, bytes) in [
            (&mut results.choices, layout.choices, CHOICE_BYTES),
            (&mut results.ids, layout.ids, 4 * CANDIDATES),
            (&mut results.values, layout.values, 4 * CANDIDATES),
        ] {
            let to = &mut pinned.bytes_mut()[..bytes * now.asked];
            // SAFETY: both sides have room for the rows; the pinned side stays.
            unsafe { result::memcpy_dtoh_async(to, base + at as u64, stream) }
                .during("fetching results")?;
        }
        Ok(())
    }

    /// Waits for the window and takes note of what was asked.
    pub(super) fn settle(&mut self, rows: &Rows) -> Result<(), CudaError> {
        self.now = None;
        self.queue
            .stream
            .synchronize()
            .during("computing a window")?;
        self.results.asks.clear();
        self.results.asks.extend_from_slice(rows.asks());
        Ok(())
    }

    /// What became of a row.
    pub(super) fn outcome(&mut self, row: usize) -> Result<Outcome<'_>, CudaError> {
        let ask = self.results.asks[row];
        if ask == Ask::Logits {
            return self.logits(row).map(Outcome::Logits);
        }
        let choice = self.results.choice(row);
        if !choice.finite {
            return Ok(Outcome::NotFinite);
        }
        if ask == Ask::Greedy {
            return Ok(Outcome::Greedy(choice.token));
        }
        let these = CANDIDATES * row..CANDIDATES * row + choice.candidates;
        Ok(Outcome::Candidates(Candidates {
            ids: &self.results.ids.words()[these.clone()],
            logits: &self.results.values.floats()[these],
            mass: choice.mass,
            vocab: self.vocab,
        }))
    }

    /// A row in full.
    pub(super) fn logits(&mut self, row: usize) -> Result<&[f32], CudaError> {
        let bytes = 4 * self.vocab;
        let from = self.at(self.layout.logits) + (bytes * row) as u64;
        let to = &mut self.results.row.bytes_mut()[..bytes];
        // SAFETY: the row lies in the logits; the call is waited for below.
        unsafe { result::memcpy_dtoh_async(to, from, self.queue.stream.cu_stream()) }
            .during("fetching a row of logits")?;
        self.queue
            .stream
            .synchronize()
            .during("fetching a row of logits")?;
        Ok(&self.results.row.floats()[..self.vocab])
    }
}
