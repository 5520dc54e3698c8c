//! A residual of several streams: one input made of them, and a block's output spread over them, put off until they are read again.

use super::{
    Act, Cuda, CudaError, Grid, Now, Ready, StreamWeights, launch,
    pending::Joining,
    predict::Kept,
    products::{From, Normed},
};
use crate::cuda::forms::{Forms, mask};

impl Ready {
    /// `Normed` = the mean of the normed streams, each gated, after what was put off has joined them.
    pub(super) fn read_streams(&mut self, weights: &StreamWeights<Cuda>) -> Result<(), CudaError> {
        let to = (self.act(Act::Normed), self.forms());
        self.gather_streams(weights, to, false)?;
        self.formed = Some(Act::Normed);
        Ok(())
    }

    /// The same of the rows that are asked, packed, for a head; the residual stays without what was put off.
    pub(super) fn read_head(&mut self, weights: &StreamWeights<Cuda>) -> Result<From, CudaError> {
        let now = self.now();
        let head = self.at(self.layout.head);
        let forms = self.layout.head_forms.at(self.work.address());
        let live = now.tables.asked_count();
        self.now = Some(Now {
            tables: now.tables.counting(live),
            rows: now.asked,
            ..now
        });
        let gathered = self.gather_streams(weights, (head, forms), true);
        self.now = Some(now);
        self.formed = None;
        gathered?;
        Ok(From {
            floats: head,
            stride: self.width,
            forms,
            live,
            rows: now.asked,
        })
    }

    fn gather_streams(
        &mut self,
        weights: &StreamWeights<Cuda>,
        (to, to_forms): (u64, Forms),
        packed: bool,
    ) -> Result<(), CudaError> {
        let now = self.now();
        let (all, rank) = (self.streams * self.width, weights.down.outputs);
        let forms = self.forms();
        let written = self.forms_for(self.width);
        let normed = Normed::new(self.act(Act::Streams), forms, written);
        let norm = Some((self.weight(weights.norm.at), weights.eps));
        self.join_rows(norm, normed, Kept::default(), packed)?;
        self.formed = (written == self.forms_for(all)).then_some(Act::Streams);
        let down = (&weights.down, Act::StreamLow);
        match &weights.inject {
            Some(inject) => self.matmul(Act::Streams, &[down, (inject, Act::Inject)])?,
            None => self.matmul(Act::Streams, &[down])?,
        }
        // nothing reads forms of rows that are no whole blocks
        let written = match rank.is_multiple_of(32) {
            true => self.forms_for(rank),
            false => mask::FLOAT,
        };
        let grid = Grid::new([rank.div_ceil(512), now.rows, 1], 64);
        // SAFETY: the parameters of `streams_low`; the buffer and the forms have room for the rows.
        unsafe {
            launch!(&self.queue, &self.kernels.streams().low, grid;
                self.act(Act::StreamLow), rank as u32, forms.wide, forms.narrow, written, now.tables)
        }?;
        self.formed = Some(Act::StreamLow);
        self.matmul(Act::StreamLow, &[(&weights.up, Act::StreamGate)])?;
        let grid = Grid::new([self.width.div_ceil(512), now.rows, 1], 64);
        let (gate, streams) = (self.act(Act::StreamGate), self.act(Act::Streams));
        // SAFETY: the parameters of `streams_mean`; what is written has room for the rows.
        unsafe {
            launch!(&self.queue, &self.kernels.streams().mean, grid;
                gate, streams, to, to_forms.wide, to_forms.narrow, self.forms_for(self.width), now.tables)
        }
    }

    /// What was put off joins the streams of all rows; each is then normed where there are weights, and kept where there is room.
    pub(super) fn join_streams(
        &mut self,
        norm: Option<(u64, f32)>,
        normed: Normed,
        kept: Kept,
    ) -> Result<(), CudaError> {
        self.join_rows(norm, normed, kept, false)
    }

    fn join_rows(
        &mut self,
        norm: Option<(u64, f32)>,
        normed: Normed,
        kept: Kept,
        packed: bool,
    ) -> Result<(), CudaError> {
        let now = self.now();
        let Joining {
            branch, experts, ..
        } = self.take_pending()?;
        let (weight, eps) = norm.unwrap_or_default();
        let inject = match branch {
            0 => 0,
            _ => self.act(Act::Inject),
        };
        let branch = experts.map_or(branch, |_| 0);
        let kernels = self.kernels.streams();
        // of many rows a block has all streams of one, and makes the sum of experts once
        let blocks = if now.few() { self.streams } else { 1 };
        let grid = Grid::new([now.rows, blocks, 1], kernels.threads);
        // SAFETY: the parameters of `streams_norm`; all buffers have room for the rows.
        unsafe {
            launch!(&self.queue, &kernels.norm, grid;
                now.residual, branch, experts.unwrap_or_default(), inject, weight, eps, normed, kept, u32::from(packed), now.tables)
        }
    }
}
