//! Keeps control tokens that somebody's words spell from being read as such.
//!
//! Templates trim, split and search what they are given, so words cannot be fenced off at their ends. Instead, where words spell a control
//! token (or could spell one together with what a template puts next to them), a character that occurs nowhere else is put inside of
//! it; the conversation is rendered, the character taken out again and its places kept. If the rest is not what the conversation renders
//! to without it, the template has looked for the token itself.

use super::{Conversation, Rendered, TemplateError};
use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value as Json};
use std::collections::HashSet;

/// The control tokens of a vocabulary, ready to be found in words.
#[derive(Debug)]
pub(super) struct Marks {
    automaton: AhoCorasick,
    /// Names in order.
    names: Vec<Vec<u8>>,
    /// Names read backwards, in order.
    reversed: Vec<Vec<u8>>,
    /// Length of the longest name, bytes.
    longest: usize,
}

/// Whose words to mark.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Everybody,
    /// Answers of the model may hold control tokens that its template looks for, such as the end of its thoughts.
    NotAssistant,
}

/// Private use, plane 16.
const MARKS: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10fffd}';

impl Marks {
    /// **Errors**: more names than can be looked for.
    pub(super) fn new(names: &[&str]) -> Result<Self, TemplateError> {
        // A name of one character cannot be broken.
        let names = names.iter().filter(|name| name.chars().nth(1).is_some());
        let mut names: Vec<Vec<u8>> = names.map(|name| name.as_bytes().to_vec()).collect();
        names.sort_unstable();
        let mut reversed: Vec<Vec<u8>> = names
            .iter()
            .map(|name| name.iter().rev().copied().collect())
            .collect();
        reversed.sort_unstable();
        // Standard: the kind that finds names which overlap.
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(&names);
        let automaton =
            automaton.map_err(|_| TemplateError::TooManyControls { count: names.len() })?;
        let longest = names.iter().map(Vec::len).max().unwrap_or(0);
        Ok(Self {
            automaton,
            names,
            reversed,
            longest,
        })
    }

    /// The breaks of a conversation that renders to `text`.
    pub(super) fn render(
        &self,
        conversation: &Conversation<'_>,
        text: String,
        render: impl Fn(&Conversation<'_>) -> Result<String, TemplateError>,
    ) -> Result<Rendered, TemplateError> {
        let Some(mark) = unused(conversation) else {
            return Err(TemplateError::SpelledControl);
        };
        for scope in [Scope::Everybody, Scope::NotAssistant] {
            let mut marker = Marker {
                marks: self,
                mark,
                count: 0,
            };
            let messages: Vec<Json> = conversation
                .messages
                .iter()
                .map(|message| marker.message(message, scope))
                .collect();
            let tools: Vec<Json> = conversation
                .tools
                .iter()
                .map(|tool| marker.value(tool))
                .collect();
            let variables = marker.entries(conversation.variables);
            if marker.count == 0 {
                return Ok(Rendered {
                    text,
                    breaks: Vec::new(),
                });
            }
            let marked = Conversation {
                messages: &messages,
                tools: &tools,
                variables: &variables,
                ..*conversation
            };
            if let Ok(rendered) = render(&marked).map(|text| unmark(&text, mark))
                && rendered.text == text
            {
                return Ok(rendered);
            }
        }
        Err(TemplateError::SpelledControl)
    }
}

/// A character that the conversation does not have.
fn unused(conversation: &Conversation<'_>) -> Option<char> {
    let mut used = HashSet::new();
    let mut note = |text: &str| used.extend(text.chars().filter(|c| MARKS.contains(c)));
    conversation
        .messages
        .iter()
        .chain(conversation.tools)
        .for_each(|value| each_text(value, &mut note));
    for (key, value) in conversation.variables {
        note(key);
        each_text(value, &mut note);
    }
    MARKS.into_iter().find(|c| !used.contains(c))
}

fn each_text(value: &Json, note: &mut impl FnMut(&str)) {
    match value {
        Json::String(text) => note(text),
        Json::Array(items) => items.iter().for_each(|item| each_text(item, note)),
        Json::Object(entries) => {
            for (key, value) in entries {
                note(key);
                each_text(value, note);
            }
        }
        _ => {}
    }
}

/// The text without marks, and where they were.
fn unmark(text: &str, mark: char) -> Rendered {
    let mut rendered = Rendered::default();
    for (index, part) in text.split(mark).enumerate() {
        if index > 0 {
            rendered.breaks.push(rendered.text.len());
        }
        rendered.text.push_str(part);
    }
    rendered
}

struct Marker<'a> {
    marks: &'a Marks,
    mark: char,
    /// Marks made.
    count: usize,
}

impl Marker<'_> {
    fn message(&mut self, message: &Json, scope: Scope) -> Json {
        let spared = scope == Scope::NotAssistant
            && message.get("role").and_then(Json::as_str) == Some("assistant");
        if spared {
            message.clone()
        } else {
            self.value(message)
        }
    }

    fn value(&mut self, value: &Json) -> Json {
        match value {
            Json::String(text) => self.text(text).into(),
            Json::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Json::Object(entries) => Json::Object(self.entries(entries)),
            other => other.clone(),
        }
    }

    fn entries(&mut self, entries: &Map<String, Json>) -> Map<String, Json> {
        entries
            .iter()
            .map(|(key, value)| (self.text(key), self.value(value)))
            .collect()
    }

    fn text(&mut self, text: &str) -> String {
        let mut places = self.marks.places(text);
        places.sort_unstable();
        places.dedup();
        self.count += places.len();
        let mut marked = String::with_capacity(text.len() + 4 * places.len());
        let mut done = 0;
        for place in places {
            marked.push_str(&text[done..place]);
            marked.push(self.mark);
            done = place;
        }
        marked.push_str(&text[done..]);
        marked
    }
}

impl Marks {
    /// Where a mark breaks every control token that the text is, holds, begins or ends: after the token's first character, or where
    /// the text begins.
    fn places(&self, text: &str) -> Vec<usize> {
        let after_first = |at: usize| at + text[at..].chars().next().map_or(0, char::len_utf8);
        let found = self.automaton.find_overlapping_iter(text);
        let mut places: Vec<usize> = found.map(|found| after_first(found.start())).collect();
        // Templates trim, so what counts are the ends without white space.
        let head = text.trim_end();
        places.extend(self.begun(head).map(after_first));
        let tail = text.trim_start();
        places.extend(self.ended(tail).then_some(text.len() - tail.len()));
        places
    }

    /// Where in `text` a suffix is the beginning of a name, but not the whole of it.
    fn begun<'t>(&self, text: &'t str) -> impl Iterator<Item = usize> + use<'t, '_> {
        let from = text.len().saturating_sub(self.longest);
        let at_character = (from..text.len()).filter(|&at| text.is_char_boundary(at));
        at_character.filter(|&at| starts_one(&text.as_bytes()[at..], &self.names))
    }

    /// Whether a prefix of `text` is the end of a name, but not the whole of it.
    fn ended(&self, text: &str) -> bool {
        let mut prefix = Vec::new();
        (1..=text.len().min(self.longest)).any(|to| {
            prefix.clear();
            prefix.extend(text.as_bytes()[..to].iter().rev());
            text.is_char_boundary(to) && starts_one(&prefix, &self.reversed)
        })
    }
}

/// Whether one of the sorted `names` starts with `start` and goes on.
fn starts_one(start: &[u8], names: &[Vec<u8>]) -> bool {
    let after = names.partition_point(|name| name.as_slice() <= start);
    names.get(after).is_some_and(|name| name.starts_with(start))
}

#[cfg(test)]
mod tests;
