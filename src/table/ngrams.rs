//! Which rows of a table the rows of a window need: found by the last few tokens of their sequences.

use crate::{
    backend::{CUT_ROWS, Needs, Room, shape::NgramShape},
    engine::{executor::Slot, request::Token},
    model::window::Rows,
};

/// Tokens that are kept beside those of a window and those that are told ahead of it: as far as an n-gram looks back, and those that can be taken back.
const BACK: usize = NgramShape::TOKENS_MAX - 1 + CUT_ROWS;

/// The last tokens of every slot, by absolute position, so that rows are taken back by moving an end.
#[derive(Default)]
pub(crate) struct Ngrams {
    shape: Option<NgramShape>,
    /// `[slots, kept] u32`: tokens of a window, and those told ahead of it, do not replace those before it, which are looked at again.
    tokens: Vec<u32>,
    /// Tokens kept of a slot.
    kept: usize,
    /// A row's rows of the table: `[rows, rows of the table a row] u64`.
    found: Vec<u64>,
}

impl Ngrams {
    pub(crate) fn new(needs: &Needs, room: &Room) -> Self {
        let Some(shape) = &needs.ngram else {
            return Self::default();
        };
        let kept = 2 * room.rows + BACK;
        Self {
            shape: Some(shape.clone()),
            tokens: vec![0; room.slots * kept],
            kept,
            found: Vec::with_capacity(room.rows * shape.rows()),
        }
    }

    fn token_at(&self, slot: Slot, position: usize) -> usize {
        slot.0 as usize * self.kept + position % self.kept
    }

    /// Finds the rows of the table for all rows of a window, and remembers the window's tokens.
    pub(crate) fn find(&mut self, rows: &Rows) -> &[u64] {
        self.found.clear();
        for span in rows.spans() {
            let tokens = &rows.tokens()[span.rows.clone()];
            self.find_along(span.slot, span.first, tokens);
        }
        &self.found
    }

    /// The same for tokens that will be a slot's rows from this position on.
    pub(crate) fn find_ahead(&mut self, slot: Slot, first: usize, tokens: &[Token]) -> &[u64] {
        self.found.clear();
        self.find_along(slot, first, tokens);
        &self.found
    }

    fn find_along(&mut self, slot: Slot, first: usize, tokens: &[Token]) {
        let Some(shape) = &self.shape else {
            return;
        };
        for row in 0..tokens.len() {
            let position = first + row;
            let mut last = [None; NgramShape::TOKENS_MAX];
            for (back, last) in last[..shape.tokens.min(position + 1)]
                .iter_mut()
                .enumerate()
            {
                *last = Some(match row.checked_sub(back) {
                    Some(row) => tokens[row],
                    None => self.tokens[self.token_at(slot, position - back)],
                });
            }
            shape.find(&last, |row| self.found.push(row));
        }
        for (row, token) in tokens.iter().enumerate() {
            let at = self.token_at(slot, first + row);
            self.tokens[at] = *token;
        }
    }
}
