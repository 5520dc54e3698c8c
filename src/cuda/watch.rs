//! Which kernels a window consists of: notes down a thread's launches, and lets all or only some of them through. For measures: nobody watches while
//! requests are served.

use std::{cell::RefCell, sync::Arc};

use super::{
    compile::Kernel,
    launch::{Grid, Reads},
};

/// A launch, apart from its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Launch {
    /// The file of `kernels/`.
    pub source: &'static str,
    /// The kernel.
    pub kernel: Arc<str>,
    /// Blocks.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Weights that it is known to read.
    pub reads: Reads,
}

/// What a thread's launches go through.
struct Watch {
    /// What passes; `None` is everything.
    only: Option<Vec<Launch>>,
    passed: Vec<Launch>,
}

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// Notes down this thread's launches from now on, and drops all but `only`.
pub(super) fn begin(only: Option<Vec<Launch>>) {
    let watch = Watch {
        only,
        passed: Vec::new(),
    };
    WATCH.set(Some(watch));
}

/// What has passed since [`begin`], in order; everything passes again.
pub(super) fn end() -> Vec<Launch> {
    WATCH.take().map_or(Vec::new(), |watch| watch.passed)
}

/// Whether a launch is to happen.
pub(super) fn passes(kernel: &Kernel, grid: Grid) -> bool {
    WATCH.with_borrow_mut(|watch| {
        let Some(watch) = watch else { return true };
        let launch = Launch {
            source: kernel.module.name,
            kernel: kernel.name.clone(),
            blocks: grid.blocks,
            threads: grid.threads[0],
            reads: grid.reads,
        };
        let passes = watch
            .only
            .as_ref()
            .is_none_or(|only| only.contains(&launch));
        if passes {
            watch.passed.push(launch);
        }
        passes
    })
}
