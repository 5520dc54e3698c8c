//! An [`Inspection`] as text that people read.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use serde_json::Value as Json;

use super::{Inspection, TensorFacts};
use crate::ledger;

/// Longest text value that is shown whole.
const TEXT_SHOWN: usize = 60;

/// An [`Inspection`], printed.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    facts: &'a Inspection,
    every_tensor: bool,
}

impl Inspection {
    /// The facts as text: with `every_tensor` the table lists each tensor, else one line stands for the same tensor of all layers.
    pub fn text(&self, every_tensor: bool) -> Text<'_> {
        Text {
            facts: self,
            every_tensor,
        }
    }

    fn key(&self, key: &str) -> Option<&Json> {
        self.metadata.get(key)
    }
}

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.files(f)?;
        let architecture = self
            .facts
            .key("general.architecture")
            .and_then(Json::as_str)
            .unwrap_or_default();
        let known = ["general", architecture, "tokenizer"];
        let prefix = |key: &str| {
            known
                .into_iter()
                .find(|prefix| !prefix.is_empty() && key.split('.').next() == Some(prefix))
        };
        self.keys(f, "general", |key| prefix(key) == Some("general"))?;
        if !architecture.is_empty() {
            self.keys(f, architecture, |key| prefix(key) == Some(architecture))?;
        }
        self.tokenizer(f)?;
        self.keys(f, "other keys", |key| prefix(key).is_none())?;
        self.experts(f)?;
        self.types(f)?;
        self.tensors(f)
    }
}

impl Text<'_> {
    fn files(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for file in &self.facts.files {
            writeln!(f, "{}  {}", file.path, ledger::bytes(file.bytes as u64))?;
        }
        writeln!(
            f,
            "GGUF version {}, {} keys, {} tensors",
            self.facts.version,
            self.facts.metadata.len(),
            self.facts.tensors.len()
        )
    }

    /// A section of keys without their common prefix; nothing if there are none.
    fn keys(
        &self,
        f: &mut Formatter<'_>,
        title: &str,
        belongs: impl Fn(&str) -> bool,
    ) -> fmt::Result {
        let keys: Vec<(&str, &Json)> = self
            .facts
            .metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value))
            .filter(|(key, _)| belongs(key))
            .collect();
        let short = |key| -> &str {
            str::strip_prefix(key, title)
                .and_then(|rest| rest.strip_prefix('.'))
                .unwrap_or(key)
        };
        let width = keys
            .iter()
            .map(|(key, _)| short(key).chars().count())
            .max()
            .unwrap_or(0);
        if !keys.is_empty() {
            writeln!(f, "\n{title}")?;
        }
        keys.iter()
            .try_for_each(|(key, value)| writeln!(f, "  {:width$}  {}", short(key), Short(value)))
    }

    fn tokenizer(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(tokenizer) = &self.facts.tokenizer else {
            return Ok(());
        };
        write!(f, "\ntokenizer\n  {}", tokenizer.model)?;
        if let Some(pre) = &tokenizer.pre {
            write!(f, ", pre-tokenizer {pre}")?;
        }
        writeln!(
            f,
            ", {} tokens, {} merges",
            tokenizer.tokens, tokenizer.merges
        )?;
        for (role, id, text) in &tokenizer.special {
            writeln!(f, "  {role:8}  {id:6}  {}", text.escape_debug())?;
        }
        match tokenizer.chat_template_bytes {
            Some(bytes) => writeln!(f, "  chat template of {bytes} bytes"),
            None => writeln!(f, "  no chat template"),
        }
    }

    fn experts(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(experts) = self.facts.experts else {
            return Ok(());
        };
        writeln!(f, "\nexperts")?;
        writeln!(
            f,
            "  {} layers of {} experts, {} used by a token",
            experts.layers, experts.count, experts.used
        )?;
        writeln!(
            f,
            "  {} each, {} in all",
            ledger::bytes(experts.bytes_each as u64),
            ledger::bytes(experts.bytes as u64)
        )?;
        writeln!(
            f,
            "  a token reads {} of weights",
            ledger::bytes(experts.bytes_per_token as u64)
        )
    }

    fn types(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let all: usize = self.facts.types.iter().map(|facts| facts.bytes).sum();
        writeln!(
            f,
            "\n{:8} {:>7} {:>14} {:>10} {:>7} {:>12}",
            "type", "tensors", "values", "bytes", "share", "bits/value"
        )?;
        for facts in &self.facts.types {
            let share = 100.0 * facts.bytes as f64 / all as f64;
            let bits = 8.0 * facts.bytes as f64 / facts.values as f64;
            let bytes = ledger::bytes(facts.bytes as u64);
            writeln!(
                f,
                "{:8} {:>7} {:>14} {bytes:>10} {share:>6.1}% {bits:>12.3}",
                facts.ty, facts.tensors, facts.values
            )?;
        }
        Ok(())
    }

    fn tensors(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut groups: BTreeMap<String, Vec<&TensorFacts>> = BTreeMap::new();
        for tensor in &self.facts.tensors {
            let name = if self.every_tensor {
                tensor.name.clone()
            } else {
                without_layer(&tensor.name)
            };
            groups.entry(name).or_default().push(tensor);
        }
        let width = groups
            .keys()
            .map(|name| name.chars().count())
            .max()
            .unwrap_or(0)
            .max("tensor".len());
        writeln!(
            f,
            "\n{:width$}  {:>5} {:>10}  {:22} types",
            "tensor", "count", "bytes", "shape"
        )?;
        for (name, tensors) in groups {
            let bytes = ledger::bytes(tensors.iter().map(|tensor| tensor.bytes as u64).sum());
            let shapes = Counts::of(tensors.iter().map(|tensor| shape(&tensor.dims))).to_string();
            let types = Counts::of(tensors.iter().map(|tensor| tensor.ty.to_owned()));
            writeln!(
                f,
                "{name:width$}  {:>5} {bytes:>10}  {shapes:22} {types}",
                tensors.len()
            )?;
        }
        Ok(())
    }
}

/// `blk.7.x` as `blk.*.x`.
fn without_layer(name: &str) -> String {
    match name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'))
    {
        Some((layer, rest)) if layer.parse::<u32>().is_ok() => format!("blk.*.{rest}"),
        _ => name.to_owned(),
    }
}

fn shape(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    format!("{{{}}}", dims.join(", "))
}

/// Different texts and how often each occurs; a lone one without its number.
struct Counts(BTreeMap<String, usize>);

impl Counts {
    fn of(texts: impl Iterator<Item = String>) -> Self {
        let mut counts = BTreeMap::new();
        texts.for_each(|text| *counts.entry(text).or_insert(0) += 1);
        Self(counts)
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, (text, count)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            if self.0.len() == 1 {
                write!(f, "{text}")
            } else {
                write!(f, "{comma}{text} x{count}")
            }?;
        }
        Ok(())
    }
}

/// A value on one line: long texts are cut, long arrays told by length, equal elements once.
struct Short<'a>(&'a Json);

impl Display for Short<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Json::String(text) if text.chars().count() > TEXT_SHOWN => {
                let start: String = text.chars().take(TEXT_SHOWN).collect();
                write!(f, "{} ... ({} bytes)", start.escape_debug(), text.len())
            }
            Json::String(text) => write!(f, "{}", text.escape_debug()),
            Json::Array(items) if items.len() > 1 && items.iter().all(|item| *item == items[0]) => {
                write!(f, "{} x {}", items.len(), Short(&items[0]))
            }
            Json::Object(array) => match (
                array.get("length"),
                array.get("array_of").and_then(Json::as_str),
            ) {
                (Some(length), Some(of)) => write!(f, "{length} x {of}"),
                _ => write!(f, "{}", self.0),
            },
            other => write!(f, "{other}"),
        }
    }
}
