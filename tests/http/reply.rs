//! Reading what a server sent: events of a stream, and what must hold of every stream.

use serde_json::Value;

/// The events of a stream: their data as JSON, without comments and the final `[DONE]`.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) chunks: Vec<Value>,
    pub(crate) comments: Vec<String>,
    pub(crate) done: bool,
}

/// Reads the text of a whole stream.
pub(crate) fn events(text: &str) -> Events {
    let mut events = Events {
        chunks: Vec::new(),
        comments: Vec::new(),
        done: false,
    };
    for line in text.lines().filter(|line| !line.is_empty()) {
        assert!(!events.done, "nothing follows [DONE]: {line}");
        match line.split_once(':').expect("a field") {
            ("", comment) => events.comments.push(comment.trim().into()),
            ("data", data) if data.trim() == "[DONE]" => events.done = true,
            ("data", data) => events
                .chunks
                .push(serde_json::from_str(data).expect("JSON")),
            (field, _) => panic!("unexpected field {field}: {line}"),
        }
    }
    events
}

impl Events {
    /// The text of one choice, put together.
    pub(crate) fn text(&self, index: usize) -> String {
        let choices = self
            .chunks
            .iter()
            .flat_map(|chunk| chunk["choices"].as_array().into_iter().flatten());
        let of_choice = choices.filter(|choice| choice["index"] == index);
        of_choice
            .filter_map(|choice| {
                choice["text"]
                    .as_str()
                    .or(choice["delta"]["content"].as_str())
            })
            .collect()
    }

    /// The finish reasons of one choice: must be one.
    pub(crate) fn reasons(&self, index: usize) -> Vec<&str> {
        let choices = self
            .chunks
            .iter()
            .flat_map(|chunk| chunk["choices"].as_array().into_iter().flatten());
        choices
            .filter(|choice| choice["index"] == index)
            .filter_map(|choice| choice["finish_reason"].as_str())
            .collect()
    }
}

/// A response's body.
pub(crate) async fn json_of(response: reqwest::Response) -> Value {
    let text = response.text().await.expect("a body");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
