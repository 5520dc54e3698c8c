//! The pool of KV pages: admission reserves a sequence's worst case, its end gives everything back.
//!
//! Knows numbers of pages only; where their bytes are is the executor's business.

use super::executor::{PAGE_TOKENS, PageId};

/// Free pages, and how many there are in all.
#[derive(Debug)]
pub struct PagePool {
    free: Vec<PageId>,
    total: usize,
}

impl PagePool {
    /// All pages free.
    pub fn new(total: usize) -> Self {
        // Lowest first off the end, so that a lightly loaded engine stays in few pages.
        let free = (0..total as u32).rev().map(PageId).collect();
        Self { free, total }
    }

    /// Pages that `positions` positions need.
    pub fn needed(positions: usize) -> usize {
        positions.div_ceil(PAGE_TOKENS)
    }

    /// Takes `count` pages, or none if there are fewer.
    pub fn reserve(&mut self, count: usize) -> Option<Vec<PageId>> {
        let kept = self.free.len().checked_sub(count)?;
        let mut pages = self.free.split_off(kept);
        pages.reverse();
        Some(pages)
    }

    /// Gives reserved pages back.
    pub fn release(&mut self, pages: Vec<PageId>) {
        self.free.extend(pages.into_iter().rev());
        debug_assert!(self.free.len() <= self.total);
    }

    /// Pages reserved now.
    pub fn used(&self) -> usize {
        self.total - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Reserves each count (or gives back the oldest reservation for `None`), checking the sum after every step.
    fn check(total: usize, steps: &[(Option<usize>, bool)]) {
        let mut pool = PagePool::new(total);
        let mut held: Vec<Vec<PageId>> = Vec::new();
        for (step, &(reserve, succeeds)) in steps.iter().enumerate() {
            match reserve {
                Some(count) => {
                    let pages = pool.reserve(count);
                    assert_eq!(pages.is_some(), succeeds, "step {step}");
                    assert!(pages.iter().all(|p| p.len() == count), "step {step}");
                    held.extend(pages);
                }
                None => pool.release(held.remove(0)),
            }
            let used: Vec<_> = held.iter().flatten().collect();
            let distinct: HashSet<_> = used.iter().collect();
            assert_eq!(
                (used.len(), distinct.len()),
                (pool.used(), pool.used()),
                "step {step}"
            );
            assert!(used.iter().all(|p| (p.0 as usize) < total), "step {step}");
        }
    }

    #[test]
    fn pages_add_up() {
        let (yes, no) = (true, false);
        check(0, &[(Some(0), yes), (Some(1), no)]);
        check(
            4,
            &[
                (Some(5), no),
                (Some(4), yes),
                (Some(1), no),
                (None, yes),
                (Some(4), yes),
            ],
        );
        check(
            5,
            &[
                (Some(2), yes),
                (Some(2), yes),
                (Some(2), no),
                (None, yes),
                (Some(3), yes),
                (None, yes),
                (None, yes),
                (Some(5), yes),
            ],
        );
    }

    #[test]
    fn a_page_holds_64_positions() {
        let needed: Vec<_> = [0, 1, 64, 65, 128].map(PagePool::needed).into();
        assert_eq!(needed, [0, 1, 1, 2, 2]);
    }
}
