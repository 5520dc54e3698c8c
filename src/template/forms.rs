//! Which forms of a message a template takes, found by asking it, and messages brought to these forms.
//!
//! Clients send content as text or as parts, the arguments of a tool call as JSON text, and what was thought under one of several names. Templates differ in what they expect.

use super::{Conversation, TemplateError};
use serde_json::{Map, Value as Json, json};
use std::time::SystemTime;

/// Names of what an answer's author thought, the one that most templates read first. **Source**: `apply_chat_template` of transformers 5.24.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// What a template takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Forms {
    /// Content in parts; else it is joined to one text.
    content_parts: bool,
    calls: Calls,
}

/// How a template takes messages with tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Calls {
    /// Arguments as text; else as an object.
    text_arguments: bool,
    /// Empty text where a message has no content; else null.
    empty_content: bool,
}

impl Forms {
    /// Tries all forms with `render`.
    pub(super) fn probe(
        render: impl Fn(&Conversation<'_>) -> Result<String, TemplateError>,
    ) -> Self {
        let variables = Map::new();
        let ask = |messages: &[Json], tools: &[Json]| {
            let now = SystemTime::UNIX_EPOCH;
            render(&Conversation {
                messages,
                tools,
                add_generation_prompt: true,
                variables: &variables,
                now,
            })
        };
        let user = |content: Json| [json!({"role": "user", "content": content})];
        // A template that cannot render this much says why when it is used.
        let Ok(text) = ask(&user(json!("probe")), &[]) else {
            return Self::default();
        };
        let parts = ask(&user(json!([{"type": "text", "text": "probe"}])), &[]);
        Self {
            content_parts: parts.is_ok_and(|parts| parts == text),
            calls: Calls::probe(&ask),
        }
    }

    /// Messages in these forms.
    pub(super) fn messages(self, messages: &[Json]) -> Result<Vec<Json>, TemplateError> {
        let messages = messages.iter().enumerate().map(|(index, message)| {
            let mut message = message.clone();
            if let Some(parts) = message.get("content").and_then(Json::as_array) {
                let texts = texts(index, parts)?;
                if !self.content_parts {
                    message["content"] = texts.join("\n").into();
                }
            }
            if let Some(entries) = message.as_object_mut() {
                name_thoughts(entries);
                self.calls.message(entries);
            }
            Ok(message)
        });
        messages.collect()
    }
}

impl Calls {
    /// The first form whose arguments turn up in the prompt; for templates that ignore tool calls the first that renders.
    fn probe(ask: &impl Fn(&[Json], &[Json]) -> Result<String, TemplateError>) -> Self {
        let forms = [(false, false), (false, true), (true, false), (true, true)];
        let forms = forms.map(|(text_arguments, empty_content)| Self {
            text_arguments,
            empty_content,
        });
        let rendered: Vec<(Self, String)> = forms
            .iter()
            .filter_map(|form| Some((*form, form.ask(ask).ok()?)))
            .collect();
        // A mapping where text was expected comes out as Python writes one, if it does not fail.
        let shown = rendered
            .iter()
            .find(|(_, text)| text.contains("a value") && !text.contains("'argument'"));
        shown
            .or(rendered.first())
            .map_or(Self::default(), |(form, _)| *form)
    }

    fn ask(
        self,
        ask: &impl Fn(&[Json], &[Json]) -> Result<String, TemplateError>,
    ) -> Result<String, TemplateError> {
        let parameters = json!({"type": "object", "properties": {"argument": {"type": "string", "description": "probe"}}});
        let tool = json!({"type": "function", "function": {"name": "probe", "description": "probe", "parameters": parameters}});
        let arguments = json!({"argument": "a value"});
        let call = json!({"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": arguments}});
        let mut answer = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        answer
            .as_object_mut()
            .into_iter()
            .for_each(|message| self.message(message));
        let messages = [
            json!({"role": "user", "content": "probe"}),
            answer,
            json!({"role": "tool", "tool_call_id": "call00001", "name": "probe", "content": "probe"}),
        ];
        ask(&messages, &[tool])
    }

    fn message(self, message: &mut Map<String, Json>) {
        let content = message.entry("content").or_insert(Json::Null);
        if content.is_null() && self.empty_content {
            *content = "".into();
        }
        let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut);
        for call in calls.into_iter().flatten() {
            if let Some(arguments) = call.pointer_mut("/function/arguments") {
                self.arguments(arguments);
            }
        }
    }

    /// Arguments that are no JSON object stay what they are.
    fn arguments(self, arguments: &mut Json) {
        match arguments {
            Json::String(text) if !self.text_arguments => {
                if let Ok(object @ Json::Object(_)) = serde_json::from_str(text) {
                    *arguments = object;
                }
            }
            Json::Object(_) if self.text_arguments => *arguments = arguments.to_string().into(),
            _ => {}
        }
    }
}

/// What was thought under both names that templates read, whatever the client calls it.
fn name_thoughts(message: &mut Map<String, Json>) {
    let mut given = THOUGHTS.iter().filter_map(|name| message.get(*name));
    let Some(thoughts) = given.find(|thoughts| !thoughts.is_null()).cloned() else {
        return;
    };
    let [standard, own, _] = THOUGHTS;
    message.entry(own).or_insert_with(|| thoughts.clone());
    message.insert(standard.to_owned(), thoughts);
}

/// The texts of a message's parts.
fn texts(message: usize, parts: &[Json]) -> Result<Vec<&str>, TemplateError> {
    let texts = parts.iter().map(
        |part| match (part, part.get("type").and_then(Json::as_str)) {
            (Json::String(text), _) => Ok(text.as_str()),
            (_, Some("text")) => Ok(part.get("text").and_then(Json::as_str).unwrap_or_default()),
            (_, kind) => Err(TemplateError::UnsupportedPart {
                message,
                kind: kind.unwrap_or_default().to_owned(),
            }),
        },
    );
    texts.collect()
}
