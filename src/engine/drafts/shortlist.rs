//! Which tokens a prediction of one sequence is chosen among where the whole vocabulary would cost too much.
//!
//! Vocabularies are made by merging what stands together most often first, so the tokens with low ids make up most of any text. What else a text is made of are mostly tokens that it
//! had before: names, marks of a chat, the words of another language. So the list is the frequent tokens and the sequence's own others, those that can end it included. It can
//! lack the right token, which makes a guess wrong and never a choice.

use std::collections::HashSet;

use crate::engine::request::Token;

/// A sequence's own tokens at most: few beside the frequent ones.
const OWN_MAX: usize = 1024;

/// The shortlist of one sequence.
#[derive(Clone, Debug)]
pub(super) struct Shortlist {
    frequent: usize,
    /// Those that are not frequent, each once; when there are too many, the one that was put first gives way.
    own: Vec<Token>,
    listed: HashSet<Token>,
    /// Where the next one goes.
    next: usize,
    /// Tokens of the sequence that were looked at.
    learnt: usize,
}

impl Shortlist {
    /// Of the vocabulary so many tokens are frequent; none if there is no list.
    pub(super) fn new(frequent: usize, stops: &[Token]) -> Self {
        let most = if frequent == 0 { 0 } else { OWN_MAX };
        let mut shortlist = Self {
            frequent,
            own: Vec::with_capacity(most),
            listed: HashSet::with_capacity(most),
            next: 0,
            learnt: 0,
        };
        stops.iter().for_each(|token| shortlist.put(*token));
        shortlist
    }

    /// How many tokens are frequent.
    pub(super) fn frequent(&self) -> usize {
        self.frequent
    }

    /// Takes note of the tokens that it has not seen yet.
    pub(super) fn learn(&mut self, known: &[Token]) {
        for token in &known[self.learnt.min(known.len())..] {
            self.put(*token);
        }
        self.learnt = known.len();
    }

    fn put(&mut self, token: Token) {
        if self.frequent == 0 || self.lists(token) {
            return;
        }
        self.listed.insert(token);
        if self.own.len() < OWN_MAX {
            self.own.push(token);
            return;
        }
        let gone = std::mem::replace(&mut self.own[self.next], token);
        self.listed.remove(&gone);
        self.next = (self.next + 1) % OWN_MAX;
    }

    /// Whether a token could be predicted.
    pub(super) fn lists(&self, token: Token) -> bool {
        (token as usize) < self.frequent || self.listed.contains(&token)
    }

    /// The listed tokens that are not frequent.
    pub(super) fn own(&self) -> &[Token] {
        &self.own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_tokens_stops_and_those_of_the_sequence_are_listed() {
        let mut list = Shortlist::new(100, &[7, 999]);
        let mut known = vec![3, 500, 99, 100, 500];
        list.learn(&known);
        assert_eq!(list.own(), [999, 500, 100]);
        known.extend([600, 3]);
        list.learn(&known);
        assert_eq!(list.own(), [999, 500, 100, 600]);
        for (token, listed) in [(0, true), (99, true), (600, true), (101, false)] {
            assert_eq!(list.lists(token), listed, "{token}");
        }
    }

    #[test]
    fn the_list_is_bounded() {
        let mut list = Shortlist::new(10, &[]);
        let known: Vec<Token> = (0..3000).collect();
        list.learn(&known);
        assert_eq!(list.own().len(), OWN_MAX);
        let listed = known.iter().filter(|token| list.lists(**token)).count();
        assert_eq!(listed, 10 + OWN_MAX);
        assert!(list.lists(2999) && !list.lists(10));
    }

    #[test]
    fn there_may_be_no_list() {
        let mut list = Shortlist::new(0, &[5]);
        list.learn(&[1, 2]);
        assert!(list.own().is_empty() && !list.lists(1));
    }
}
