//! The prediction block's own ops: its input, hidden states that are kept, and chains of tokens that the device draws by itself.

use cudarc::driver::result;

use super::{
    Act, Chain, Cuda, CudaError, Device, During, Grid, Matrix, Pending, Pinned, Ready, States,
    Vector, Window, launch, products::Normed, window::record,
};
use crate::{
    backend::{CUT_ROWS, HIDDEN_ROWS},
    cuda::tables::bucket,
    engine::{executor::Guess, request::Token},
};

/// `NONE` of `kernels/draw.cu`: no token could be drawn.
const NONE: u32 = u32::MAX;
/// `DRAW_THREADS` of `kernels/draw.cu`.
const DRAW_THREADS: usize = 512;
/// Words of `struct Odds` of `kernels/draw.cu`.
const ODDS_WORDS: usize = 4;

/// `struct Kept` of `kernels/norm.cuh`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Kept {
    states: u64,
    length: u32,
    ahead: u32,
}

/// `struct Chain` of `kernels/draw.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct DrawChain {
    state: u64,
    depths: u64,
    odds: u64,
    shares: u64,
    drafts: u64,
    stride: u64,
}

/// Where a chain's table has what, in words; the state comes first.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct ChainTable {
    depths: usize,
    odds: usize,
    shares: usize,
    /// All of it.
    pub(in crate::cuda) words: usize,
    /// Rows that there is room for.
    rows: usize,
}

impl ChainTable {
    /// For so many rows.
    pub(in crate::cuda) fn new(rows: usize) -> Self {
        let depths = 4;
        let odds = (depths + rows).next_multiple_of(4);
        let shares = odds + ODDS_WORDS * rows;
        Self {
            depths,
            odds,
            shares,
            words: shares + 2 * CUT_ROWS * rows,
            rows,
        }
    }

    /// What the device has to know of the guesses.
    fn fill(&self, words: &mut [u32], guesses: &[Guess<'_>]) {
        words.fill(0);
        for (row, guess) in guesses.iter().enumerate() {
            let odds = guess.sampler.odds();
            let least = f64::from(odds.min_p).ln() as f32;
            words[self.depths + row] = guess.depth as u32;
            words[self.odds + ODDS_WORDS * row..][..ODDS_WORDS].copy_from_slice(&[
                odds.sharpness.to_bits(),
                least.to_bits(),
                odds.top_p.to_bits(),
                odds.top_k.min(u32::MAX as usize) as u32,
            ]);
            for step in 0..guess.depth {
                let share = guess.sampler.share((guess.position + step) as u64);
                let at = self.shares + 2 * (step * self.rows + row);
                let bits = share.to_bits();
                words[at..at + 2].copy_from_slice(&[bits as u32, (bits >> 32) as u32]);
            }
        }
    }
}

/// A chain on the host: what is sent, and what comes back.
pub(super) struct ChainBuffers {
    table: ChainTable,
    sent: Pinned,
    /// `[CUT_ROWS, rows] u32`
    drafts: Pinned,
}

impl ChainBuffers {
    /// For up to so many sequences.
    pub(super) fn new(device: &Device, slots: usize) -> Result<Self, CudaError> {
        let table = ChainTable::new(bucket(slots));
        Ok(Self {
            sent: Pinned::new(&device.context, 4 * table.words)?,
            drafts: Pinned::new(&device.context, 4 * CUT_ROWS * table.rows)?,
            table,
        })
    }
}

impl Ready {
    /// The residual, normed or with all its streams, for positions `ahead` of the rows' own; takes in what was put off.
    pub(super) fn keep(
        &mut self,
        ahead: usize,
        norm: Option<(&Vector, f32)>,
    ) -> Result<(), CudaError> {
        let now = self.now();
        let kept = Kept {
            states: self.at(self.layout.predict.states),
            length: HIDDEN_ROWS as u32,
            ahead: ahead as u32,
        };
        let Some((norm, eps)) = norm else {
            return self.join_streams(None, Normed::default(), kept);
        };
        let grid = Grid::new([now.rows, 1, 1], self.kernels.norms.threads);
        let weight = self.weight(norm.at);
        let joining = self.take_pending()?;
        match joining.experts {
            // SAFETY: the parameters of `keep_combine_norm`; every slot has room for the states that are kept.
            Some(sums) => unsafe {
                launch!(&self.queue, &self.kernels.norms.keep_combine_norm, grid;
                    now.residual, sums, joining.around, weight, eps, kept, now.tables)
            },
            // SAFETY: the parameters of `keep_norm`, likewise.
            None => unsafe {
                launch!(&self.queue, &self.kernels.norms.keep_norm, grid;
                    now.residual, joining.branch, joining.around, weight, eps, kept, now.tables)
            },
        }
    }

    /// `Paired`, of the states that are kept or of the window's own. Begins a window.
    pub(super) fn pair(
        &mut self,
        window: &mut Window<Cuda>,
        states: States<'_, Cuda>,
        table: &Matrix,
        [token_norm, state_norm]: [&Vector; 2],
        eps: f32,
    ) -> Result<(), CudaError> {
        self.enter(window)?;
        self.pending = Pending::default();
        let mut tables = self.now().tables;
        let kept = self.at(self.layout.predict.states);
        let (states, length) = match states {
            States::Kept => (kept, HIDDEN_ROWS as u32),
            States::Own(norm) => {
                tables = tables.of_next_tokens();
                match norm {
                    Some((norm, eps)) => {
                        self.norm(norm, eps)?;
                        (self.act(Act::Normed), 0)
                    }
                    None => (self.now().residual, 0),
                }
            }
        };
        let embedded = self.act(Act::Branch);
        self.embed(table, (embedded, 1), tables)?;
        self.formed = None;
        let grid = Grid::new(
            [self.now().rows, 2 * self.streams, 1],
            self.kernels.norms.threads,
        );
        // SAFETY: the parameters of `pair`; `Paired` has room for the rows.
        unsafe {
            launch!(&self.queue, &self.kernels.norms.pair, grid;
                embedded, states, length, self.weight(token_norm.at), self.weight(state_norm.at), eps, self.act(Act::Paired), tables)
        }
    }

    /// The rows' next tokens, of the logits that the head has left.
    fn draw(&self) -> Result<(), CudaError> {
        let now = self.now();
        let (table, layout) = (&self.chain.table, &self.layout.predict);
        let words = |at: usize| self.at(layout.chain + 4 * at);
        let chain = DrawChain {
            state: words(0),
            depths: words(table.depths),
            odds: words(table.odds),
            shares: words(table.shares),
            drafts: self.at(layout.drafts),
            stride: table.rows as u64,
        };
        let choose = &self.layout.choose;
        let kernel = self.kernels.draw.as_ref();
        let kernel = kernel.expect("compiled for models that predict");
        let grid = Grid::new([now.rows, 1, 1], DRAW_THREADS);
        // SAFETY: the parameters of `draw`; what is drawn has room for all steps of the rows.
        unsafe {
            launch!(&self.queue, kernel, grid;
                self.at(self.layout.logits), self.at(choose.choices), self.at(choose.ids), self.at(choose.values), chain, now.tables)
        }
    }

    fn send_chain(&mut self, guesses: &[Guess<'_>]) -> Result<(), CudaError> {
        let ChainBuffers { table, sent, .. } = &mut self.chain;
        table.fill(sent.words_mut(), guesses);
        let (to, stream) = (self.at(self.layout.predict.chain), &self.queue.stream);
        // SAFETY: both sides have room for the table; the chain before this one was waited for.
        unsafe { result::memcpy_htod_async(to, self.chain.sent.words(), stream.cu_stream()) }
            .during("sending what is to be predicted")
    }

    fn fetch_drafts(&mut self) -> Result<(), CudaError> {
        let from = self.at(self.layout.predict.drafts);
        let to = self.chain.drafts.bytes_mut();
        // SAFETY: both sides have room for all steps; the pinned side stays.
        unsafe { result::memcpy_dtoh_async(to, from, self.queue.stream.cu_stream()) }
            .during("fetching predictions")
    }
}

/// One step after the other, each the same launches, and one wait at the end. Steps of few rows are recorded the first time, replayed after that.
pub(super) fn chain(
    cuda: &mut Cuda,
    window: &mut Window<Cuda>,
    chain: Chain<'_>,
    step: impl Fn(&mut Cuda, &mut Window<Cuda>, &[Option<&[Token]>]) -> Result<(), CudaError>,
) -> Result<(), CudaError> {
    let depth = |guess: &Guess<'_>| guess.depth;
    let steps = chain.guesses.iter().map(depth).max().unwrap_or(0);
    debug_assert!(steps <= CUT_ROWS && chain.guesses.is_sorted_by_key(|of| CUT_ROWS - of.depth));
    let residual = window.parts_mut().1;
    (residual.stale, residual.ahead) = (true, Some(steps.saturating_sub(1)));
    let ready = cuda.ready();
    ready.enter(window)?;
    ready.send_chain(chain.guesses)?;
    let now = ready.now();
    let key = (now.rows, now.splits);
    let enqueue = |cuda: &mut Cuda, window: &mut Window<Cuda>| {
        step(cuda, window, &[])?; // no shortlists
        cuda.ready().draw()
    };
    if now.few() && !ready.steps.contains_key(&key) {
        let graph = record(cuda, window, enqueue)?;
        tracing::debug!(rows = key.0, splits = key.1, "recorded a prediction");
        cuda.ready().steps.insert(key, graph);
    }
    for _ in 0..steps {
        if now.few() {
            let graph = &cuda.ready().steps[&key];
            graph.launch().during("launching a prediction")?;
        } else {
            enqueue(cuda, window)?;
        }
    }
    let ready = cuda.ready();
    ready.fetch_drafts()?;
    ready.settle(window.rows())?;
    let (drafts, stride) = (ready.chain.drafts.words(), ready.chain.table.rows);
    for (row, guess) in chain.guesses.iter().enumerate() {
        for step in 0..guess.depth {
            let token = drafts[step * stride + row];
            if token == NONE {
                break;
            }
            chain.predicted.push((guess.slot, token));
            if guess.stop_tokens.contains(&token) {
                break;
            }
        }
    }
    Ok(())
}
