//! Reasoning as messages of an own channel.
//!
//! An answer is several messages: `<|channel|>NAME [to=RECIPIENT]<|message|>TEXT<|end|><|start|>ROLE<|channel|>..`. The marks are control tokens, so they bring
//! no text. The channel `analysis` is reasoning, every other content.

use super::{ChannelTokens, Part, Parts};
use crate::engine::request::Token;

/// The channel of reasoning.
const ANALYSIS: &str = "analysis";

/// Where in a message the answer is.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Before its text: role or name of its channel, once a mark has shown that it is one.
    Head(Option<String>),
    Text(Part),
}

/// Parses text between control tokens.
#[derive(Debug)]
pub(super) struct Channels {
    tokens: ChannelTokens,
    place: Place,
    /// Text in a head that no mark has shown to be one.
    stray: String,
}

impl Channels {
    /// `head`: the prompt ends inside the head of a message.
    pub(super) fn new(tokens: ChannelTokens, head: bool) -> Self {
        Self {
            tokens,
            place: if head {
                Place::Head(None)
            } else {
                Place::Text(Part::Content)
            },
            stray: String::new(),
        }
    }

    pub(super) fn part(&self) -> Part {
        match self.place {
            Place::Text(part) => part,
            // heads are no part of what is said
            Place::Head(_) => Part::Reasoning,
        }
    }

    pub(super) fn push(&mut self, text: String, token: Option<Token>) -> Parts {
        let mut parts = Vec::new();
        if token == Some(self.tokens.channel) {
            self.stray.clear();
            self.place = Place::Head(Some(String::new()));
        } else if token == Some(self.tokens.message) {
            self.stray.clear();
            let reasoning = match &self.place {
                Place::Head(Some(name)) => name
                    .split_whitespace()
                    .next()
                    .is_some_and(|name| name == ANALYSIS),
                _ => false,
            };
            self.place = Place::Text(if reasoning {
                Part::Reasoning
            } else {
                Part::Content
            });
        } else if token.is_some() && (token == self.tokens.end || token == self.tokens.start) {
            // a role follows, which is no answer even where nothing follows it
            self.stray.clear();
            self.place = Place::Head(Some(String::new()));
        }
        if text.is_empty() {
            return parts;
        }
        match &mut self.place {
            Place::Text(part) => parts.push((*part, text)),
            Place::Head(Some(name)) => name.push_str(&text),
            Place::Head(None) => self.stray.push_str(&text),
        }
        parts
    }

    /// An answer that never had a mark is content.
    pub(super) fn end(&mut self) -> Parts {
        let stray = std::mem::take(&mut self.stray);
        if self.place == Place::Head(None) && !stray.is_empty() {
            vec![(Part::Content, stray)]
        } else {
            Vec::new()
        }
    }
}
