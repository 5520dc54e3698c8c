//! Residents in an order, the first to go first.

use std::collections::BTreeSet;

use super::ExpertId;

/// Residents and their keys; the smallest key goes first, of equal ones the lower expert.
#[derive(Debug)]
pub(super) struct Ranking<K> {
    order: BTreeSet<(K, ExpertId)>,
    /// `[experts]`
    keys: Vec<Option<K>>,
}

impl<K: Ord + Copy> Ranking<K> {
    pub(super) fn new(experts: usize) -> Self {
        Self {
            order: BTreeSet::new(),
            keys: vec![None; experts],
        }
    }

    /// Gives an expert a key, whether or not it had one.
    pub(super) fn put(&mut self, expert: ExpertId, key: K) {
        if let Some(before) = self.keys[expert.0 as usize].replace(key) {
            self.order.remove(&(before, expert));
        }
        self.order.insert((key, expert));
    }

    /// Who goes first.
    pub(super) fn first(&self) -> Option<(K, ExpertId)> {
        self.order.first().copied()
    }

    pub(super) fn remove(&mut self, expert: ExpertId) {
        if let Some(key) = self.keys[expert.0 as usize].take() {
            self.order.remove(&(key, expert));
        }
    }
}
