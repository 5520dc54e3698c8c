//! Token ids equal those of Hugging Face's `tokenizers` for the awkward texts of `fixtures/tokenizers`, for every pre-tokenizer.
//!
//! `TIDEGATE_TOKENIZERS=DIR` adds the fixtures of another folder: the whole vocabularies, which are too large to keep here.

use serde::Deserialize;
use std::{collections::HashMap, fs, path::Path};
use tidegate::token::{Specials, Tokenizer, TokenizerSpec};

#[derive(Deserialize)]
struct Fixture {
    spec: Spec,
    /// Ids of each text with its control tokens read.
    parse: Vec<Vec<u32>>,
    /// Ids of those texts, by number, that differ when they are somebody's words.
    plain: HashMap<usize, Vec<u32>>,
}

#[derive(Deserialize)]
struct Spec {
    model: String,
    pre: Option<String>,
    tokens: Vec<String>,
    #[serde(default)]
    merges: Vec<String>,
    #[serde(default)]
    scores: Vec<f32>,
    token_types: Vec<i32>,
}

impl Spec {
    fn as_written(&self) -> TokenizerSpec<'_> {
        TokenizerSpec {
            model: &self.model,
            pre: self.pre.as_deref(),
            tokens: self.tokens.iter().map(String::as_str).collect(),
            merges: self.merges.iter().map(String::as_str).collect(),
            scores: self.scores.clone(),
            token_types: self.token_types.clone(),
            ..TokenizerSpec::default()
        }
    }
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> T {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks one vocabulary; what differs, in words.
fn check(path: &Path, texts: &[String]) -> Vec<String> {
    let fixture: Fixture = read(path);
    let tokenizer = Tokenizer::new(&fixture.spec.as_written()).unwrap();
    assert_eq!(fixture.parse.len(), texts.len(), "{}", path.display());
    let name = path.file_name().unwrap().display();
    let mut wrong = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let parse = &fixture.parse[index];
        let plain = fixture.plain.get(&index).unwrap_or(parse);
        for (specials, expected) in [(Specials::Parse, parse), (Specials::Plain, plain)] {
            let got = tokenizer.encode(text, specials);
            if &got != expected {
                wrong.push(format!(
                    "{name}: {text:?} {specials:?}: got {got:?}, expected {expected:?}"
                ));
            }
        }
        if tokenizer
            .encode(text, Specials::Plain)
            .iter()
            .any(|&token| tokenizer.is_control(token))
        {
            wrong.push(format!(
                "{name}: {text:?}: a control token out of plain text"
            ));
        }
    }
    wrong
}

fn check_folder(folder: &Path) {
    let texts: Vec<String> = read(&folder.join("texts.json"));
    assert!(texts.len() >= 200);
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.retain(|path| {
        path.extension().is_some_and(|ext| ext == "json") && !path.ends_with("texts.json")
    });
    paths.sort();
    assert!(!paths.is_empty());
    let wrong: Vec<String> = paths.iter().flat_map(|path| check(path, &texts)).collect();
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn ids_equal_the_reference() {
    check_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tokenizers"));
    if let Some(folder) = std::env::var_os("TIDEGATE_TOKENIZERS") {
        check_folder(Path::new(&folder));
    }
}
