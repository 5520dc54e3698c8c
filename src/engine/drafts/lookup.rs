//! Where the last tokens of a sequence stood before.
//!
//! Tokens are found by their last three: a table names the latest place of every such three (or of others with the same hash), a chain the places before it.
//! Of the latest few the one is taken whose past agrees longest.

use crate::engine::request::Token;

/// Tokens that are hashed together; fewer in common are no reason to guess.
const GRAM: usize = 3;
/// Places that are compared, latest first.
const PLACES_MAX: usize = 16;
/// Tokens in common beyond these make no difference.
pub(super) const LENGTH_MAX: usize = 32;

/// A place that ends like the sequence does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// The position after it: from here on tokens may come again.
    pub(super) from: usize,
    /// Tokens in common.
    pub(super) length: usize,
}

/// An index of one sequence.
#[derive(Clone, Debug)]
pub(super) struct Lookup {
    /// By hash: the latest position at which such three tokens end, plus one; 0 if there is none.
    heads: Box<[u32]>,
    /// By position: the one before it with the same hash, likewise.
    before: Vec<u32>,
}

impl Lookup {
    /// For a sequence of up to `positions_max` tokens: no memory is taken later.
    pub(super) fn new(positions_max: usize) -> Self {
        let heads = positions_max.next_power_of_two().clamp(64, 1 << 16);
        Self {
            heads: vec![0; heads].into(),
            before: Vec::with_capacity(positions_max),
        }
    }

    /// Takes note of the tokens that it has not seen yet.
    pub(super) fn learn(&mut self, known: &[Token]) {
        for end in self.before.len()..known.len() {
            let Some(bucket) = self.bucket(&known[..=end]) else {
                self.before.push(0);
                continue;
            };
            self.before.push(self.heads[bucket]);
            self.heads[bucket] = end as u32 + 1;
        }
    }

    /// The place before the end that agrees longest with the end of `known`, all of which has been learnt; the latest of equals.
    pub(super) fn find(&self, known: &[Token]) -> Option<Match> {
        let mut at = *self.before.get(known.len().checked_sub(1)?)?;
        let mut best: Option<Match> = None;
        for _ in 0..PLACES_MAX {
            let from = at as usize;
            if from == 0 {
                break;
            }
            let earlier = known[..from].iter().rev();
            let pairs = earlier.zip(known.iter().rev()).take(LENGTH_MAX);
            let length = pairs.take_while(|(a, b)| a == b).count();
            if length >= GRAM && best.is_none_or(|best| length > best.length) {
                best = Some(Match { from, length });
            }
            at = self.before[from - 1];
        }
        best
    }

    fn bucket(&self, known: &[Token]) -> Option<usize> {
        let gram = known.last_chunk::<GRAM>()?;
        let hash = gram.iter().fold(0u64, |hash, token| {
            (hash ^ u64::from(*token))
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29)
        });
        Some(hash as usize & (self.heads.len() - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found after each of the tokens, which is what a search through all of them finds.
    fn check(tokens: &[Token]) {
        let mut lookup = Lookup::new(tokens.len());
        for end in 1..=tokens.len() {
            let known = &tokens[..end];
            lookup.learn(known);
            let common = |from: usize| {
                let pairs = known[..from].iter().rev().zip(known.iter().rev());
                pairs.take(LENGTH_MAX).take_while(|(a, b)| a == b).count()
            };
            let places = (1..end).rev().filter(|from| common(*from) >= GRAM);
            let places: Vec<usize> = places.take(PLACES_MAX).collect();
            let expected = places.iter().rev().max_by_key(|from| common(**from));
            let expected = expected.map(|from| Match {
                from: *from,
                length: common(*from),
            });
            // hashes that meet only shorten the search
            assert!(
                lookup.find(known) == expected || lookup.heads.len() == 64,
                "{known:?}: {:?}, not {expected:?}",
                lookup.find(known)
            );
            if let Some(found) = lookup.find(known) {
                assert!(found.length >= GRAM && found.length == common(found.from));
            }
        }
    }

    #[test]
    fn the_longest_agreement_is_found() {
        check(&[]);
        check(&[1, 2, 3, 4, 1, 2, 3, 5, 9, 1, 2, 3, 4, 1, 2, 3]);
        check(&[7; 50]);
        let period: Vec<Token> = (0..200).map(|i| i % 13).collect();
        check(&period);
        let once: Vec<Token> = (0..300).collect();
        check(&once);
        assert_eq!(Lookup::new(0).find(&[]), None);
    }

    #[test]
    fn what_followed_is_named() {
        let known = [5, 1, 2, 3, 4, 6, 8, 1, 2, 3];
        let mut lookup = Lookup::new(known.len());
        lookup.learn(&known);
        assert_eq!(lookup.find(&known), Some(Match { from: 4, length: 3 }));
    }
}
