//! Fields that may be written in several forms: a string or a list, text or token ids, a flag or a count.

use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use std::fmt;

use crate::engine::request::Token;

/// One string or several.
#[derive(Clone, Debug, PartialEq)]
pub struct OneOrMany(pub Vec<String>);

/// `prompt`: text or token ids, one or several.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompts {
    /// Texts.
    Texts(Vec<String>),
    /// Token ids.
    Ids(Vec<Vec<Token>>),
}

/// `seed`: any 64-bit integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

/// `logprobs`: a flag (chat) or how many alternatives (completions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogprobsWanted {
    /// Chat's form.
    Flag(bool),
    /// Completions' form.
    Count(usize),
}

macro_rules! deserialize_any {
    ($type:ty, $visitor:ident) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any($visitor)
            }
        }
    };
}
deserialize_any!(OneOrMany, OneOrManyVisitor);
deserialize_any!(Prompts, PromptsVisitor);
deserialize_any!(Seed, SeedVisitor);
deserialize_any!(LogprobsWanted, LogprobsVisitor);

struct OneOrManyVisitor;
impl<'de> Visitor<'de> for OneOrManyVisitor {
    type Value = OneOrMany;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_str<E>(self, text: &str) -> Result<OneOrMany, E> {
        Ok(OneOrMany(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMany, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = list.next_element()? {
            texts.push(text);
        }
        Ok(OneOrMany(texts))
    }
}

struct PromptsVisitor;
impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a string, a list of strings, a list of token ids, or a list of lists of token ids",
        )
    }

    fn visit_str<E>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts::Texts(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
        let Some(first) = list.next_element::<PromptItem>()? else {
            return Err(de::Error::invalid_length(0, &"at least one prompt"));
        };
        Ok(match first {
            PromptItem::Text(text) => Prompts::Texts(rest(text, &mut list)?),
            PromptItem::Id(id) => Prompts::Ids(vec![rest(id, &mut list)?]),
            PromptItem::Ids(ids) => Prompts::Ids(rest(ids, &mut list)?),
        })
    }
}

/// The first item decides what the others must be.
fn rest<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    first: T,
    list: &mut A,
) -> Result<Vec<T>, A::Error> {
    let mut items = vec![first];
    while let Some(item) = list.next_element()? {
        items.push(item);
    }
    Ok(items)
}

enum PromptItem {
    Text(String),
    Id(Token),
    Ids(Vec<Token>),
}
deserialize_any!(PromptItem, PromptItemVisitor);

struct PromptItemVisitor;
impl<'de> Visitor<'de> for PromptItemVisitor {
    type Value = PromptItem;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a token id, or a list of token ids")
    }

    fn visit_str<E>(self, text: &str) -> Result<PromptItem, E> {
        Ok(PromptItem::Text(text.to_owned()))
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<PromptItem, E> {
        Token::try_from(id)
            .map(PromptItem::Id)
            .map_err(|_| de::Error::invalid_value(de::Unexpected::Unsigned(id), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PromptItem, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = list.next_element()? {
            ids.push(id);
        }
        Ok(PromptItem::Ids(ids))
    }
}

struct SeedVisitor;
impl Visitor<'_> for SeedVisitor {
    type Value = Seed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a 64-bit integer")
    }

    fn visit_u64<E>(self, seed: u64) -> Result<Seed, E> {
        Ok(Seed(seed))
    }

    fn visit_i64<E>(self, seed: i64) -> Result<Seed, E> {
        Ok(Seed(seed.cast_unsigned()))
    }
}

struct LogprobsVisitor;
impl Visitor<'_> for LogprobsVisitor {
    type Value = LogprobsWanted;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a boolean or a count")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<LogprobsWanted, E> {
        Ok(LogprobsWanted::Flag(flag))
    }

    fn visit_u64<E>(self, count: u64) -> Result<LogprobsWanted, E> {
        Ok(LogprobsWanted::Count(
            usize::try_from(count).unwrap_or(usize::MAX),
        ))
    }
}
