//! Finds special tokens written out in a text. Knows names and places, not what is between.

use super::{Specials, TokenKind, TokenizerError, vocabulary::Vocabulary};
use crate::engine::request::Token;
use aho_corasick::{AhoCorasick, MatchKind};

/// The names to look for; of two that start at the same place the longer wins.
struct Names {
    automaton: AhoCorasick,
    /// By pattern of the automaton.
    tokens: Vec<Token>,
}

/// Special tokens of a vocabulary.
pub(super) struct SpecialNames {
    /// Those that are tokens in anybody's text.
    user_defined: Names,
    /// These and those that only we may write.
    all: Names,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    /// To be cut and merged.
    Text(&'t str),
    /// One token.
    Special(Token),
}

impl SpecialNames {
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        let user_defined: Vec<Token> = vocabulary.of_kind(TokenKind::UserDefined).collect();
        let mut all = user_defined.clone();
        all.extend(vocabulary.of_kind(TokenKind::Control));
        all.extend(vocabulary.of_kind(TokenKind::Unknown));
        Ok(Self {
            user_defined: Names::new(vocabulary, user_defined)?,
            all: Names::new(vocabulary, all)?,
        })
    }

    /// Hands the parts of `text` to `take`, in order.
    pub(super) fn cut<'t>(
        &self,
        text: &'t str,
        specials: Specials<'_>,
        take: &mut impl FnMut(Part<'t>),
    ) {
        let (names, breaks): (_, &[usize]) = match specials {
            Specials::Plain => (&self.user_defined, &[]),
            Specials::Parse => (&self.all, &[]),
            Specials::Between(breaks) => (&self.all, breaks),
        };
        let mut done = 0;
        let mut from = 0;
        // A name that spans no break is one found between two of them.
        for to in breaks.iter().copied().chain([text.len()]) {
            let to = to.min(text.len());
            let Some(span) = text.as_bytes().get(from..to) else {
                continue;
            };
            for found in names.automaton.find_iter(span) {
                let (start, end) = (from + found.start(), from + found.end());
                if start > done {
                    take(Part::Text(&text[done..start]));
                }
                take(Part::Special(names.tokens[found.pattern().as_usize()]));
                done = end;
            }
            from = to;
        }
        if done < text.len() {
            take(Part::Text(&text[done..]));
        }
    }
}

impl Names {
    fn new(vocabulary: &Vocabulary, mut tokens: Vec<Token>) -> Result<Self, TokenizerError> {
        tokens.retain(|&token| !vocabulary.bytes(token).is_empty());
        let names = tokens.iter().map(|&token| vocabulary.bytes(token));
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(names)
            .map_err(|_| TokenizerError::TooManySpecials {
                count: tokens.len(),
            })?;
        Ok(Self { automaton, tokens })
    }
}
