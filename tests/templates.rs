//! Rendered prompts equal those of Python's Jinja, for the chat templates and conversations of `fixtures/templates`.
//!
//! `TIDEGATE_TEMPLATES=DIR` adds the templates and goldens of another folder.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, SystemTime},
};
use tidegate::template::{ChatTemplate, Conversation, TemplateError, TemplateSpec};

#[derive(Deserialize)]
struct Case {
    name: String,
    messages: Vec<Value>,
    #[serde(default)]
    tools: Vec<Value>,
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    variables: Map<String, Value>,
}

#[derive(Deserialize)]
struct Fixture {
    bos: String,
    eos: String,
    controls: Vec<String>,
    goldens: BTreeMap<String, Golden>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Golden {
    Text(String),
    /// What the template raised.
    Refused(String),
    /// What Python said. Where it fails, more is allowed here.
    Failed(#[allow(unused)] String),
}

/// Noon of 2026-01-15 UTC: the same day nearly everywhere.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_768_478_400)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks one template; what differs, in words.
fn check(path: &Path, cases: &[Case]) -> Vec<String> {
    let fixture: Fixture = serde_json::from_str(&read(&path.with_extension("json"))).unwrap();
    let controls: Vec<&str> = fixture.controls.iter().map(String::as_str).collect();
    let source = read(path);
    let spec = TemplateSpec {
        source: Some(&source),
        tool_use: None,
        bos: &fixture.bos,
        eos: &fixture.eos,
        controls: &controls,
    };
    let name = path.file_name().unwrap().display();
    let template = match ChatTemplate::new(&spec) {
        Ok(template) => template,
        Err(error) => return vec![format!("{name}: {error}")],
    };
    assert_eq!(fixture.goldens.len(), cases.len(), "{name}");
    let mut wrong = Vec::new();
    for case in cases {
        let got = template.render(&Conversation {
            messages: &case.messages,
            tools: &case.tools,
            add_generation_prompt: case.add_generation_prompt.unwrap_or(true),
            variables: &case.variables,
            now: now(),
        });
        let expected = &fixture.goldens[&case.name];
        let equal = match (expected, &got) {
            (Golden::Text(expected), Ok(rendered)) => *expected == rendered.text,
            (Golden::Refused(expected), Err(TemplateError::Refused { message })) => {
                expected == message
            }
            (Golden::Failed(_), _) => true,
            _ => false,
        };
        if !equal {
            let got = got.map(|rendered| rendered.text);
            wrong.push(format!(
                "{name}, {}: expected\n  {expected:?}\ngot\n  {got:?}",
                case.name
            ));
        }
    }
    wrong
}

fn check_folder(folder: &Path) {
    let cases: Vec<Case> = serde_json::from_str(&read(&folder.join("conversations.json"))).unwrap();
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "jinja"));
    paths.sort();
    assert!(paths.len() >= 10);
    let wrong: Vec<String> = paths.iter().flat_map(|path| check(path, &cases)).collect();
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn prompts_equal_the_reference() {
    check_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/templates"));
    if let Some(folder) = std::env::var_os("TIDEGATE_TEMPLATES") {
        check_folder(Path::new(&folder));
    }
}
