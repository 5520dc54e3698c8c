//! How far a slot's layer has come, and when its block is folded into `S`.
//!
//! The block's 64 rows are folded into `S` only when nothing can take them back any more: either at the start of the next window, or
//! within a window whose last [`CUT_ROWS`] rows lie behind the block. Where a window ends less than [`CUT_ROWS`] behind a
//! block's end, its last rows are computed from a copy of `S`, folded for them alone and then forgotten (the same numbers), and
//! wait behind the block. So cutting is moving an end, without a snapshot.

use super::{BLOCK_ROWS, CUT_ROWS};

/// How far a slot's layer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// Position of the next row.
    pub(super) end: usize,
    /// The anchor: `S` holds every row before it. A multiple of [`BLOCK_ROWS`].
    pub(super) base: usize,
    /// Rows before `end` that may be taken back.
    loose: usize,
}

/// What a head does next on its way through a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Fold the block into `S`; `behind` rows that waited behind it become the first of the next one.
    Close { behind: usize },
    /// Fold the block into a copy of `S`, from which the following rows are computed.
    Fork,
    /// Compute `rows` rows, from `window_row` of the span on, which are rows `from ..` of the block pending at `at`.
    Rows {
        at: usize,
        from: usize,
        window_row: usize,
        rows: usize,
    },
}

impl Mark {
    /// Rows that are not yet in `S`.
    pub(super) fn pending(&self) -> usize {
        self.end - self.base
    }

    /// Rows that may be taken back.
    pub(super) fn loose(&self) -> usize {
        self.loose
    }

    /// Takes back rows, no more than are loose.
    pub(super) fn cut(&mut self, rows: usize) {
        self.end -= rows;
        self.loose -= rows;
    }

    /// Whether `S` is zero, whatever its memory holds.
    pub(super) fn blank(&self) -> bool {
        self.base == 0
    }

    /// The steps that `rows` more rows take.
    pub(super) fn walk(self, rows: usize) -> Walk {
        Walk {
            mark: self,
            start: self.end,
            end: self.end + rows,
            forked: false,
        }
    }

    /// The mark after `rows` more rows.
    pub(super) fn after(self, rows: usize) -> Self {
        let mut walk = self.walk(rows);
        while walk.next().is_some() {}
        Self {
            loose: rows.min(CUT_ROWS),
            ..walk.mark
        }
    }
}

/// A head's way through a window: each step with the mark before it.
#[derive(Debug)]
pub(super) struct Walk {
    mark: Mark,
    start: usize,
    end: usize,
    forked: bool,
}

impl Iterator for Walk {
    type Item = (Mark, Step);

    fn next(&mut self) -> Option<(Mark, Step)> {
        let Self {
            mark,
            start,
            end,
            forked,
        } = self;
        let (before, window_row) = (*mark, mark.end - *start);
        let pending = mark.pending();
        // what earlier windows computed is accepted once a new window begins
        let accepted = window_row == 0 && pending >= BLOCK_ROWS;
        if !accepted && mark.end == *end {
            return None;
        }
        let step = if accepted || pending == BLOCK_ROWS && mark.base + BLOCK_ROWS + CUT_ROWS <= *end
        {
            mark.base += BLOCK_ROWS;
            Step::Close {
                behind: pending - BLOCK_ROWS,
            }
        } else if pending < BLOCK_ROWS {
            let rows = (BLOCK_ROWS - pending).min(*end - mark.end);
            mark.end += rows;
            Step::Rows {
                at: 0,
                from: pending,
                window_row,
                rows,
            }
        } else if *forked {
            let rows = *end - mark.end;
            mark.end = *end;
            Step::Rows {
                at: BLOCK_ROWS,
                from: 0,
                window_row,
                rows,
            }
        } else {
            *forked = true;
            Step::Fork
        };
        Some((before, step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the windows, and whatever is cut after them: rows are computed once, in order, from an anchor at or before them, and what is
    /// kept suffices to cut.
    fn check(windows: &[(usize, usize)]) {
        let mut mark = Mark::default();
        for (rows, cut) in windows {
            let start = mark.end;
            let mut next = start;
            let mut forked = false;
            for (now, step) in mark.walk(*rows) {
                match step {
                    Step::Close { behind } => {
                        assert!(!forked);
                        assert_eq!(now.end, now.base + BLOCK_ROWS + behind);
                        // nothing of the block can be cut any more
                        assert!(
                            now.end == start || now.base + BLOCK_ROWS + CUT_ROWS <= start + rows
                        );
                    }
                    Step::Fork => forked = true,
                    Step::Rows {
                        at,
                        from,
                        window_row,
                        rows,
                    } => {
                        assert_eq!((start + window_row, now.base + at + from), (next, next));
                        assert!(
                            at + from + rows
                                <= if at == 0 {
                                    BLOCK_ROWS
                                } else {
                                    BLOCK_ROWS + CUT_ROWS
                                }
                        );
                        assert_eq!(at == BLOCK_ROWS, forked);
                        next += rows;
                    }
                }
            }
            let after = mark.after(*rows);
            assert_eq!((next, after.end), (start + rows, start + rows));
            mark = after;
            let cut = (*cut).min(mark.loose);
            mark.cut(cut);
            assert!(mark.base <= mark.end && mark.end - mark.base < BLOCK_ROWS + CUT_ROWS);
        }
    }

    #[test]
    fn marks_walk_through_windows() {
        check(&[(1, 0); 200]);
        check(&[(512, 3), (5, 5), (8, 8), (100, 0)]);
        for rows in 1..140 {
            check(&[(60, 0), (rows, 8), (9, 1), (rows, 2), (3, 0)]);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_windows_and_cuts(windows in proptest::collection::vec((1usize..150, 0usize..9), 1..20)) {
            check(&windows);
        }
    }
}
