//! What the engine asks of a model: compute windows of rows, one layer at a time.

use super::request::Token;

/// Positions that one KV page holds. Also the length of a delta-net block, so that page and state boundaries coincide.
pub const PAGE_TOKENS: usize = 64;

/// A place for an active sequence: names its recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// A page of the KV cache: [`PAGE_TOKENS`] positions of one sequence, all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// Consecutive rows of one sequence in a window.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Whose recurrent state the rows advance.
    pub slot: Slot,
    /// Position of the first row. The executor has computed every position before it, for this slot, since the last `reset`.
    pub first: u32,
    /// The rows' tokens, at least one.
    pub tokens: &'a [Token],
    /// The sequence's pages, page `i` for positions `64 i ..`; covers every row of the span.
    pub pages: &'a [PageId],
    /// How many rows at the end of the span need logits (0 in the middle of a prompt).
    pub logits: usize,
}

/// What a model can hold and how wide it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Slots with recurrent state.
    pub slots: usize,
    /// Pages in the KV cache.
    pub pages: usize,
    /// Rows that fit one window.
    pub rows: usize,
    /// Rows with logits that fit one window.
    pub logits_rows: usize,
    /// Layers a pass goes through.
    pub layers: usize,
    /// Tokens in the vocabulary, so the width of a row of logits.
    pub vocab: usize,
    /// Positions a sequence may have.
    pub context: usize,
}

/// Whether a pass has layers left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Call `advance` again; other passes may run before.
    More,
    /// All layers and the head are done: `finish` may be called.
    Done,
}

/// A model on a backend, as the engine sees it. Lives on the engine thread.
pub trait Executor: 'static {
    /// Rows on their way through the layers. May be left after any `advance` and resumed later; dropping it abandons the rows,
    /// after which the sequences it touched must be `reset`.
    type Pass;
    /// A failed device or memory operation. Fatal to the engine.
    type Error: std::error::Error + Send + Sync + 'static;

    /// What fits.
    fn capacity(&self) -> Capacity;

    /// Forgets a slot's recurrent state: its next rows start at position 0. Called before the first rows of every sequence,
    /// whatever became of the one before (it may have been abandoned in the middle of a pass, or not have been finite).
    fn reset(&mut self, slot: Slot);

    /// Starts a window of the rows of `spans` (each slot at most once).
    fn begin(&mut self, spans: &[Span<'_>]) -> Result<Self::Pass, Self::Error>;

    /// Advances by one layer.
    fn advance(&mut self, pass: &mut Self::Pass) -> Result<Progress, Self::Error>;

    /// Takes a slot's rows out of a pass between two layers. What they have left behind is torn: the slot must be `reset`.
    fn withdraw(&mut self, pass: &mut Self::Pass, slot: Slot);

    /// The logits of a finished pass, `[rows that asked, vocab] f32`, in the order of the spans.
    fn finish(&mut self, pass: Self::Pass) -> Result<&[f32], Self::Error>;
}
