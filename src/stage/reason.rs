//! Tells what a model thinks from what it answers.
//!
//! Models mark their reasoning in one of two ways: between tags in the text, or as messages of an own channel, whose heads are made of control tokens. Knows
//! these marks; knows nothing of who reads the parts. Marks never come out, neither as reasoning nor as content.

use futures::{Stream, StreamExt};

use super::{
    Stage,
    text::{Sampled, TextEvent},
};
use crate::{
    engine::request::{EngineError, Token},
    token::Tokenizer,
};

mod channels;
mod tags;

use channels::Channels;
use tags::Tags;

/// How a model marks its reasoning. Made once a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Markup {
    /// Not at all: everything is content.
    #[default]
    None,
    /// Between tags such as `<think>` and `</think>`, which may be tokens of their own.
    Tags(TagTokens),
    /// In channels, as control tokens say.
    Channels(ChannelTokens),
}

/// The tags' tokens, where the vocabulary has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagTokens {
    pair: &'static tags::Pair,
    open: Option<Token>,
    close: Option<Token>,
}

/// What the head of a message is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelTokens {
    start: Option<Token>,
    channel: Token,
    message: Token,
    end: Option<Token>,
}

impl Markup {
    /// Between `<think>` and `</think>`, which are no tokens of their own.
    pub const THINK: Self = Self::Tags(TagTokens {
        pair: &tags::PAIRS[0],
        open: None,
        close: None,
    });

    /// What a vocabulary shows: control tokens of channels, or tokens of tags.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let control = |name: &str| {
            tokenizer
                .control_tokens()
                .find(|token| tokenizer.token_text(*token) == name)
        };
        if let (Some(channel), Some(message)) = (control("<|channel|>"), control("<|message|>")) {
            return Self::Channels(ChannelTokens {
                start: control("<|start|>"),
                channel,
                message,
                end: control("<|end|>"),
            });
        }
        tags::PAIRS
            .iter()
            .find_map(|pair| {
                let open = tokenizer.token_of(pair.open_token);
                let close = tokenizer.token_of(pair.close);
                (open.is_some() || close.is_some()).then_some(TagTokens { pair, open, close })
            })
            .map_or(Self::None, Self::Tags)
    }

    /// The parser of one answer to a prompt.
    fn parser(self, tokenizer: &Tokenizer, prompt: &[Token]) -> Parser {
        match self {
            Self::None => Parser::None,
            Self::Tags(tokens) => {
                // a head that opens the tag leaves little behind it
                let tail = &prompt[prompt.len().saturating_sub(8)..];
                let inside = tokenizer
                    .decode(tail)
                    .trim_end()
                    .ends_with(tokens.pair.open);
                Parser::Tags(Tags::new(tokens, inside))
            }
            Self::Channels(tokens) => {
                let tail = prompt.iter().rev().take(4);
                let head = tokens
                    .start
                    .is_some_and(|start| tail.clone().any(|&token| token == start))
                    && !tail.clone().any(|&token| token == tokens.message);
                Parser::Channels(Channels::new(tokens, head))
            }
        }
    }
}

/// What a piece of an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Content,
    Reasoning,
}

/// Text that is certain, in order.
type Parts = Vec<(Part, String)>;

/// The parser of one answer.
#[derive(Debug)]
enum Parser {
    None,
    Tags(Tags),
    Channels(Channels),
}

impl Parser {
    fn push(&mut self, text: String, token: Option<Token>) -> Parts {
        match self {
            Self::None => vec![(Part::Content, text)],
            Self::Tags(tags) => tags.push(&text, token),
            Self::Channels(channels) => channels.push(text, token),
        }
    }

    /// What is left when nothing follows.
    fn end(&mut self) -> Parts {
        match self {
            Self::None => Vec::new(),
            Self::Tags(tags) => tags.end(),
            Self::Channels(channels) => channels.end(),
        }
    }

    /// What a token without text is counted with.
    fn part(&self) -> Part {
        match self {
            Self::None => Part::Content,
            Self::Tags(tags) => tags.part(),
            Self::Channels(channels) => channels.part(),
        }
    }
}

/// The stage. One per sequence.
#[derive(Debug)]
pub struct Reason(Parser);

impl Reason {
    /// For an answer to `prompt`, which may end inside the reasoning.
    pub fn new(markup: Markup, tokenizer: &Tokenizer, prompt: &[Token]) -> Self {
        Self(markup.parser(tokenizer, prompt))
    }
}

impl Stage for Reason {
    type In = TextEvent;
    type Out = TextEvent;
    type Error = EngineError;

    /// Text that may be the beginning of a mark waits until it is certain. Every token comes out with one event.
    fn attach(
        self,
        input: impl Stream<Item = Result<TextEvent, EngineError>> + Send,
    ) -> impl Stream<Item = Result<TextEvent, EngineError>> + Send {
        async_stream::try_stream! {
            let Self(mut parser) = self;
            let mut input = std::pin::pin!(input);
            while let Some(event) = input.next().await {
                match event? {
                    TextEvent::Piece { text, sampled } => {
                        let mut sampled = sampled;
                        let token = sampled.as_ref().map(|sampled| sampled.token);
                        for (part, text) in parser.push(text, token) {
                            yield event_of(part, text, sampled.take());
                        }
                        if sampled.is_some() {
                            yield event_of(parser.part(), String::new(), sampled);
                        }
                    }
                    TextEvent::Thought { text, sampled } => yield TextEvent::Thought { text, sampled },
                    finished @ TextEvent::Finished { .. } => {
                        for (part, text) in parser.end() {
                            yield event_of(part, text, None);
                        }
                        yield finished;
                    }
                }
            }
        }
    }
}

fn event_of(part: Part, text: String, sampled: Option<Sampled>) -> TextEvent {
    match part {
        Part::Content => TextEvent::Piece { text, sampled },
        Part::Reasoning => TextEvent::Thought { text, sampled },
    }
}

#[cfg(test)]
mod tests;
