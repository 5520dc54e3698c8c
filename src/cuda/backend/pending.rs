//! What is put off of a block's output until it is known what follows: sums of experts, what stands around them and additions join the norm after them.

use super::{Act, CudaError, Grid, Ready, Vector, launch, predict::Kept, products::Normed};

/// `struct Experts` of `kernels/rows.cuh`: what the experts of a window leave behind.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct ExpertSums {
    pub(super) outputs: u64,
    pub(super) weights: u64,
    pub(super) shared: u64,
    pub(super) gate: u64,
}

/// `struct Around` of `kernels/norm.cu`: zeros, and a factor of 1, where there is nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(super) struct Around {
    norm: u64,
    aside: u64,
    outer: u64,
    norm_eps: f32,
    outer_eps: f32,
    factor: f32,
    padding: u32,
}

impl Around {
    /// A factor on the residual alone.
    fn factor(factor: f32) -> Self {
        Self {
            norm: 0,
            aside: 0,
            outer: 0,
            norm_eps: 0.0,
            outer_eps: 0.0,
            factor,
            padding: 0,
        }
    }
}

/// What was put off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// The branch is their sum; else it is what `Branch` holds.
    pub(super) experts: Option<ExpertSums>,
    /// What is to be done to the branch, and to the residual after it.
    around: Around,
    /// The branch is to be added to the residual.
    added: bool,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            experts: None,
            around: Around::factor(1.0),
            added: false,
        }
    }
}

impl Pending {
    /// Whether `Branch` does not hold the branch as it is to be.
    fn changes_branch(&self) -> bool {
        self.experts.is_some() || self.around != Around::factor(self.around.factor)
    }
}

/// What a norm takes in first.
pub(super) struct Joining {
    /// A buffer, or 0.
    pub(super) branch: u64,
    /// In place of it.
    pub(super) experts: Option<ExpertSums>,
    pub(super) around: Around,
}

impl Ready {
    /// residual += `Branch`, put off.
    pub(super) fn add(&mut self) -> Result<(), CudaError> {
        if self.pending.around.factor != 1.0 {
            // it is older
            self.flush()?;
        }
        self.pending.added = true;
        Ok(())
    }

    /// residual *= `factor`, put off.
    pub(super) fn scale(&mut self, factor: f32) -> Result<(), CudaError> {
        if self.pending.around.factor != 1.0 {
            self.flush()?;
        }
        self.pending.around.factor = factor;
        Ok(())
    }

    /// `Branch` = rms norm of `Branch`, put off.
    pub(super) fn norm_branch(&mut self, weight: &Vector, eps: f32) -> Result<(), CudaError> {
        if self.pending.around.outer != 0 {
            self.settle_branch(Act::Branch)?;
        }
        let weight = self.weight(weight.at);
        let around = &mut self.pending.around;
        if around.norm == 0 && around.aside == 0 {
            (around.norm, around.norm_eps) = (weight, eps);
        } else {
            (around.outer, around.outer_eps) = (weight, eps);
        }
        Ok(())
    }

    /// `Aside` = `Branch`.
    pub(super) fn set_aside(&mut self) -> Result<(), CudaError> {
        self.settle_branch(Act::Aside)
    }

    /// `Branch` += `Aside`, put off.
    pub(super) fn add_aside(&mut self) -> Result<(), CudaError> {
        if self.pending.around.aside != 0 || self.pending.around.outer != 0 {
            self.settle_branch(Act::Branch)?;
        }
        self.pending.around.aside = self.act(Act::Aside);
        Ok(())
    }

    /// `to` = the branch as it is to be.
    fn settle_branch(&mut self, to: Act) -> Result<(), CudaError> {
        let now = self.now();
        let Pending {
            experts, around, ..
        } = self.pending;
        let branch = experts.map_or(self.act(Act::Branch), |_| 0);
        let kernel = self.kernels.norms.branch_alone.as_ref();
        let kernel = kernel.expect("compiled for models whose branches are changed");
        let grid = Grid::new([now.rows, 1, 1], self.kernels.norms.threads);
        // SAFETY: the parameters of `branch_alone`; all buffers have room for the rows.
        unsafe {
            launch!(&self.queue, kernel, grid;
                branch, experts.unwrap_or_default(), around, self.act(to), now.tables)
        }?;
        self.pending.experts = None;
        self.pending.around = Around::factor(around.factor);
        Ok(())
    }

    /// Hands what was put off to a norm.
    pub(super) fn take_pending(&mut self) -> Result<Joining, CudaError> {
        if !self.pending.added && self.pending.changes_branch() {
            self.settle_branch(Act::Branch)?;
        }
        let Pending {
            experts,
            around,
            added,
        } = std::mem::take(&mut self.pending);
        Ok(Joining {
            branch: if added { self.act(Act::Branch) } else { 0 },
            experts,
            around,
        })
    }

    /// Does what was put off, where no norm follows.
    pub(super) fn flush(&mut self) -> Result<(), CudaError> {
        if !self.pending.added && self.pending.around.factor == 1.0 {
            return Ok(());
        }
        if self.kernels.has_streams() {
            return self.join_streams(None, Normed::default(), Kept::default());
        }
        self.norm_into(0, 0.0, Normed::default())
    }
}
