//! Rows on their way through the layers.

use std::ops::Range;

use crate::{
    backend::Backend,
    engine::{
        executor::{Ask, Lane, PageId, Slot, Span},
        request::Token,
    },
};

/// Consecutive rows of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSpan {
    /// Whose recurrent state they advance.
    pub slot: Slot,
    /// Position of the first row.
    pub first: usize,
    /// Which rows of the window.
    pub rows: Range<usize>,
    /// How many of them, at the end, are guesses.
    pub drafts: usize,
    /// Which entries of [`Rows::pages`].
    pages: Range<usize>,
}

/// What every row of a window is: a ragged table, sequences side by side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    tokens: Vec<Token>,
    spans: Vec<RowSpan>,
    pages: Vec<PageId>,
    logits: Vec<u32>,
    /// One for each of `logits`.
    asks: Vec<Ask>,
}

impl Rows {
    /// Takes over the rows of `spans`.
    pub fn fill(&mut self, spans: &[Span<'_>]) {
        self.tokens.clear();
        self.spans.clear();
        self.pages.clear();
        self.logits.clear();
        self.asks.clear();
        for span in spans {
            let (row, page) = (self.tokens.len(), self.pages.len());
            self.tokens.extend_from_slice(span.tokens);
            self.pages.extend_from_slice(span.pages);
            let rows = row..self.tokens.len();
            self.logits
                .extend((rows.end - span.logits..rows.end).map(|row| row as u32));
            self.asks.resize(self.logits.len(), span.ask);
            self.spans.push(RowSpan {
                slot: span.slot,
                first: span.first as usize,
                rows,
                drafts: span.drafts,
                pages: page..self.pages.len(),
            });
        }
    }

    /// Takes out the rows of a slot; which they were.
    pub fn remove(&mut self, slot: Slot) -> Option<Range<usize>> {
        let index = self.spans.iter().position(|span| span.slot == slot)?;
        let gone = self.spans.remove(index);
        self.tokens.drain(gone.rows.clone());
        self.pages.drain(gone.pages.clone());
        for span in &mut self.spans[index..] {
            span.rows = span.rows.start - gone.rows.len()..span.rows.end - gone.rows.len();
            span.pages = span.pages.start - gone.pages.len()..span.pages.end - gone.pages.len();
        }
        let before = |end: usize| self.logits.partition_point(|row| (*row as usize) < end);
        let logits = before(gone.rows.start)..before(gone.rows.end);
        for row in &mut self.logits[logits.end..] {
            *row -= gone.rows.len() as u32;
        }
        self.asks.drain(logits.clone());
        self.logits.drain(logits);
        Some(gone.rows)
    }

    /// Goes one position ahead with sequences of one row each: a row's token becomes its `next`, and who has none leaves.
    pub(crate) fn advance(&mut self, next: &[Option<Token>]) {
        for (row, next) in next.iter().enumerate().rev() {
            match next {
                Some(token) => {
                    self.tokens[row] = *token;
                    self.spans[row].first += 1;
                }
                None => {
                    self.remove(self.spans[row].slot);
                }
            }
        }
    }

    /// How many rows.
    pub fn count(&self) -> usize {
        self.tokens.len()
    }

    /// `[rows]`
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// One entry a sequence.
    pub fn spans(&self) -> &[RowSpan] {
        &self.spans
    }

    /// The pages of a span's sequence, page `i` for positions `64 i ..`.
    pub fn pages(&self, span: &RowSpan) -> &[PageId] {
        &self.pages[span.pages.clone()]
    }

    /// Rows that need logits, ascending.
    pub fn logits(&self) -> &[u32] {
        &self.logits
    }

    /// What is to be known of each of these.
    pub fn asks(&self) -> &[Ask] {
        &self.asks
    }
}

/// Rows, how far they have reached and their residual: the whole state of a pass between two slices.
pub struct Window<B: Backend> {
    pub(crate) lane: Lane,
    pub(crate) layer: usize,
    /// The part of it, where a pass may be left inside a layer.
    pub(crate) part: usize,
    pub(crate) rows: Rows,
    pub(crate) residual: B::Residual,
}

impl<B: Backend> Window<B> {
    /// Which of the passes under way.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// The rows.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// `[rows, width] f32`, as the backend keeps it.
    pub fn residual(&self) -> &B::Residual {
        &self.residual
    }

    /// Rows and residual, to change the latter.
    pub fn parts_mut(&mut self) -> (&Rows, &mut B::Residual) {
        (&self.rows, &mut self.residual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of three spans (slots 0, 1, 2) without `slot` is what the other two alone make.
    fn check(slot: u32) {
        let pages: Vec<Vec<PageId>> = (0..3)
            .map(|slot| vec![PageId(10 * slot), PageId(10 * slot + 1)])
            .collect();
        let tokens: [&[Token]; 3] = [&[1, 2, 3], &[4], &[5, 6]];
        let span = |slot: u32| Span {
            slot: Slot(slot),
            first: 7 * slot,
            tokens: tokens[slot as usize],
            pages: &pages[slot as usize],
            logits: 1,
            ask: [Ask::Greedy, Ask::Candidates, Ask::Logits][slot as usize],
            drafts: 0,
        };
        let (mut rows, mut expected) = (Rows::default(), Rows::default());
        rows.fill(&[span(0), span(1), span(2)]);
        let others: Vec<_> = (0..3).filter(|other| *other != slot).map(span).collect();
        expected.fill(&others);
        let before: usize = tokens[..slot as usize]
            .iter()
            .map(|tokens| tokens.len())
            .sum();
        assert_eq!(
            rows.remove(Slot(slot)),
            Some(before..before + tokens[slot as usize].len())
        );
        assert_eq!(rows, expected);
        assert_eq!(rows.remove(Slot(slot)), None);
    }

    #[test]
    fn a_removed_span_leaves_the_others_as_they_were() {
        (0..3).for_each(check);
    }
}
