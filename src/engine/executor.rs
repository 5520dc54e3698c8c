//! What the engine asks of a model: compute windows of rows, a slice at a time, and tell what became of those that are asked.

use std::time::Instant;

use super::request::Token;
use crate::sampler::Sampler;

/// Positions that one KV page holds. Also the length of a delta-net block, so that page and state boundaries coincide.
pub const PAGE_TOKENS: usize = 64;

/// A place for an active sequence: names its recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// A page of the KV cache: [`PAGE_TOKENS`] positions of one sequence, all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// Which of the two passes that may be under way at the same time. Each lane holds one pass at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// A window that streams wait for. No pass of the other lane is advanced until it is done.
    Decode,
    /// A chunk of prompts, left after any slice for a decode window.
    Prompt,
}

impl Lane {
    /// How many there are.
    pub const COUNT: usize = 2;
}

/// Kinds of slices that are told apart.
pub const SLICE_KINDS: usize = 4;

/// What has to be known of a row to choose the next token. An executor may always tell more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    /// The likeliest token.
    Greedy,
    /// The likeliest few.
    Candidates,
    /// All of it.
    Logits,
}

/// What became of a row that was asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome<'a> {
    /// A logit is a NaN or an infinity.
    NotFinite,
    /// The likeliest token; among equals the one with the lowest id.
    Greedy(Token),
    /// The likeliest few.
    Candidates(Candidates<'a>),
    /// **Shapes** `[vocab] f32`, not necessarily finite.
    Logits(&'a [f32]),
}

/// The likeliest tokens of a finite row: likeliest first, equal logits in the order of their ids.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidates<'a> {
    /// `[candidates] u32`, at least one.
    pub ids: &'a [Token],
    /// `[candidates] f32`
    pub logits: &'a [f32],
    /// Sum of `exp(logit - largest logit)` over the whole row, off by no more than [`MASS_TOLERANCE`].
    pub mass: f64,
    /// Tokens in the vocabulary.
    pub vocab: usize,
}

/// **Units**: relative error that [`Candidates::mass`] may have, so that a device may add up in any order.
pub const MASS_TOLERANCE: f64 = 1e-5;

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
    /// What is to be known of each of these.
    pub ask: Ask,
    /// How many tokens at the end are guesses: their rows may be taken back, as may the rows after them.
    pub drafts: usize,
}

/// What a model can hold and how wide it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Slots with recurrent state.
    pub slots: usize,
    /// Pages in the KV cache.
    pub pages: usize,
    /// Rows that fit a window of the prompt lane.
    pub rows: usize,
    /// Rows that fit a window of the decode lane.
    pub decode_rows: usize,
    /// Rows with logits that fit one window.
    pub logits_rows: usize,
    /// Layers a pass goes through.
    pub layers: usize,
    /// Tokens in the vocabulary, so the width of a row of logits.
    pub vocab: usize,
    /// Positions a sequence may have.
    pub context: usize,
    /// Slices that may still be under way when [`advance`](Executor::advance) returns.
    pub slices_ahead: usize,
    /// Whether a pass takes as long on either lane.
    pub lanes_alike: bool,
    /// How many likeliest tokens [`Outcome::Candidates`] holds; 0 if the executor does not tell them.
    pub candidates: usize,
    /// Rows of a sequence's last window that can be taken back; 0 if none can, and then nothing is guessed.
    pub drafts: usize,
    /// Whether the model has a block that predicts further tokens.
    pub predicts: bool,
    /// A prediction may be chosen among the tokens with ids below this and a few others ([`Guess::among`]), for less; 0 if it may not.
    pub frequent: usize,
}

/// A sequence whose next tokens are to be predicted.
#[derive(Clone, Copy, Debug)]
pub struct Guess<'a> {
    /// Whose.
    pub slot: Slot,
    /// Its last token, which has no row yet.
    pub token: Token,
    /// The position behind that token: the first that is predicted.
    pub position: usize,
    /// How many are to be predicted, at least one.
    pub depth: usize,
    /// The sequence's pages, as in [`Span::pages`]; they cover all but the last of these positions.
    pub pages: &'a [PageId],
    /// How they are chosen: each with the noise of its position, as if the prediction were the model's own.
    pub sampler: &'a Sampler,
    /// Behind these nothing needs to be predicted.
    pub stop_tokens: &'a [Token],
    /// The tokens beside the frequent ones that are to be compared, none of them frequent or named twice, where that is not the whole vocabulary: logits of all others are
    /// [`UNLISTED`].
    pub among: Option<&'a [Token]>,
}

/// The logit of a token that a prediction was not to be chosen among: finite, whatever a sampler does to it, and below all others.
pub const UNLISTED: f32 = -1e30;

/// Whether a pass has slices left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Call `advance` again; the other lane's pass may be advanced before.
    More,
    /// All layers are done: `finish` may be called.
    Done,
}

/// Sequences that cannot go on, because a part of the model that they need cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Theirs.
    pub slots: Vec<Slot>,
    /// What cannot be had, and why.
    pub why: String,
}

/// A model on a backend, as the engine sees it. Lives on the engine thread.
pub trait Executor: 'static {
    /// Rows on their way through the layers. May be left after any `advance` and resumed later.
    type Pass;
    /// A failed device or memory operation. Fatal to the engine.
    type Error: std::error::Error + Send + Sync + 'static;

    /// What fits.
    fn capacity(&self) -> Capacity;

    /// Forgets a slot's recurrent state: its next rows start at position 0. Called before the first rows of every sequence,
    /// whatever became of the one before (it may have been abandoned in the middle of a pass, or not have been finite).
    fn reset(&mut self, slot: Slot);

    /// Starts a window of the rows of `spans` (each slot at most once, and in one lane at most). The lane is free.
    fn begin(&mut self, lane: Lane, spans: &[Span<'_>]) -> Result<Self::Pass, Self::Error>;

    /// Tells of prompt tokens that will be the slot's rows, from position `first` on, where those told last have ended. They come before their window begins, no more
    /// than a window of either lane has room for behind the last row that has begun.
    fn ahead(&mut self, slot: Slot, first: usize, tokens: &[Token]) {
        let _ = (slot, first, tokens);
    }

    /// Advances by one slice: a layer, or part of one where a whole layer takes more than some tens of milliseconds. A pass of the decode lane
    /// may go all the way at once. No more than [`Capacity::slices_ahead`] are still being computed on return: the engine measures the time from return to return.
    fn advance(&mut self, pass: &mut Self::Pass) -> Result<Progress, Self::Error>;

    /// Takes back the last `rows` rows, at most [`Capacity::drafts`], that the slot had in a window: between that window's `finish` and the slot's
    /// next one, which begins where the rows that stay have ended. A slot may also be `reset` instead.
    fn cut(&mut self, slot: Slot, rows: usize) {
        unreachable!(
            "{rows} rows of {slot:?} are taken back from an executor that never had guesses"
        )
    }

    /// Predicts the next tokens of sequences, one after the other for all of them together, and adds them to `predicted`: those of a slot in their order, fewer
    /// than it asked for where one cannot be chosen. The lane of decoding is free. As after `finish`, the logits of the last that were predicted can then be read.
    fn predict(
        &mut self,
        guesses: &[Guess<'_>],
        predicted: &mut Vec<(Slot, Token)>,
    ) -> Result<(), Self::Error> {
        unreachable!("{guesses:?}, after {predicted:?}, for an executor that does not predict")
    }

    /// What kind of slice the next one is, below [`SLICE_KINDS`]: those of a kind take about the same for as many rows.
    fn slice_kind(&self, pass: &Self::Pass) -> usize {
        let _ = pass;
        0
    }

    /// Whose rows the last [`advance`](Self::advance) could not compute, while those of others are as they should be: they are to be withdrawn.
    fn torn(&mut self, pass: &mut Self::Pass) -> Option<Torn> {
        let _ = pass;
        None
    }

    /// Takes a slot's rows out of a pass between two slices. What they have left behind is torn: the slot must be `reset`.
    fn withdraw(&mut self, pass: &mut Self::Pass, slot: Slot);

    /// Gives up a pass from which all rows were withdrawn.
    fn abandon(&mut self, pass: Self::Pass) {
        drop(pass);
    }

    /// Ends a pass whose layers are done. What became of the rows that were asked can be read until the next `finish`.
    fn finish(&mut self, pass: Self::Pass) -> Result<(), Self::Error>;

    /// What became of a row: `row` counts the rows that were asked, in the order of the spans.
    fn outcome(&mut self, row: usize) -> Result<Outcome<'_>, Self::Error> {
        self.logits(row).map(Outcome::Logits)
    }

    /// The logits of the same row, `[vocab] f32`, whatever was asked of it.
    fn logits(&mut self, row: usize) -> Result<&[f32], Self::Error>;

    /// The clock that slices are measured with: simulations bring their own.
    fn now(&self) -> Instant {
        Instant::now()
    }
}
