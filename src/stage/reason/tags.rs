//! Reasoning between tags.

use super::{Part, Parts, TagTokens};
use crate::engine::request::Token;

/// A way to mark reasoning: what stands before it and behind it, and the names of the tokens that these begin with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    pub(super) open_token: &'static str,
}

/// Those that models have.
pub(super) const PAIRS: [Pair; 2] = [
    Pair {
        open: "<think>",
        close: "</think>",
        open_token: "<think>",
    },
    Pair {
        open: "<|channel>thought",
        close: "<channel|>",
        open_token: "<|channel>",
    },
];

/// Parses text in which tags may be spread over pieces.
#[derive(Debug)]
pub(super) struct Tags {
    tokens: TagTokens,
    part: Part,
    /// Text that may be the beginning of a tag, or space before one.
    held: String,
    /// A part has begun and had nothing but space: space beside a tag belongs to neither part.
    fresh: bool,
}

impl Tags {
    /// `inside`: the prompt has opened the tag.
    pub(super) fn new(tokens: TagTokens, inside: bool) -> Self {
        Self {
            tokens,
            part: if inside {
                Part::Reasoning
            } else {
                Part::Content
            },
            held: String::new(),
            fresh: inside,
        }
    }

    pub(super) fn part(&self) -> Part {
        self.part
    }

    pub(super) fn push(&mut self, text: &str, token: Option<Token>) -> Parts {
        // where the tags are control tokens they come without text
        if text.is_empty() && token.is_some() {
            if token == self.tokens.open {
                self.held.push_str(self.tokens.pair.open_token);
            } else if token == self.tokens.close {
                self.held.push_str(self.tokens.pair.close);
            }
        }
        self.held.push_str(text);
        let mut parts = Vec::new();
        while let Some((at, tag)) = next_tag(&self.held, self.tokens.pair) {
            let rest = self.held.split_off(at + tag.len());
            let before = std::mem::replace(&mut self.held, rest);
            self.emit(before[..at].trim_end(), &mut parts);
            self.part = if tag == self.tokens.pair.open {
                Part::Reasoning
            } else {
                Part::Content
            };
            self.fresh = true;
        }
        let certain = self.held.len() - self.uncertain();
        let rest = self.held.split_off(certain);
        let text = std::mem::replace(&mut self.held, rest);
        self.emit(&text, &mut parts);
        parts
    }

    /// What is left when nothing follows. A tag that began with its token is none of it.
    pub(super) fn end(&mut self) -> Parts {
        let mut parts = Vec::new();
        let mut text = std::mem::take(&mut self.held);
        if let Some(at) = text.rfind(self.tokens.pair.open_token) {
            text.truncate(text[..at].trim_end().len());
        }
        self.emit(&text, &mut parts);
        parts
    }

    fn emit(&mut self, text: &str, parts: &mut Parts) {
        let text = if self.fresh { text.trim_start() } else { text };
        if !text.is_empty() {
            self.fresh = false;
            parts.push((self.part, text.to_owned()));
        }
    }

    /// Bytes at the end of what is held that wait: the beginning of a tag, and space that may come before one.
    fn uncertain(&self) -> usize {
        let Pair { open, close, .. } = self.tokens.pair;
        let begun = (1..open.len().max(close.len()))
            .rev()
            .filter(|len| *len <= self.held.len())
            .find(|len| {
                let end = &self.held.as_bytes()[self.held.len() - len..];
                [open, close]
                    .iter()
                    .any(|tag| tag.as_bytes().starts_with(end))
            })
            .unwrap_or(0);
        let text = &self.held[..self.held.len() - begun];
        begun + text.len() - text.trim_end().len()
    }
}

/// The first tag, and where it is.
fn next_tag(text: &str, pair: &'static Pair) -> Option<(usize, &'static str)> {
    [pair.open, pair.close]
        .into_iter()
        .filter_map(|tag| Some((text.find(tag)?, tag)))
        .min()
}
