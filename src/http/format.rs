//! The JSON of answers: the objects and chunks of `/v1/chat/completions` and `/v1/completions`. Knows no sockets and no stages.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::usage::Usage;
use crate::{
    engine::request::{FinishReason, Logprobs, Token},
    stage::text::Sampled,
    token::Tokenizer,
};

/// What log-probabilities of minus infinity become, because JSON has no infinity. **Source**: OpenAI's API reference.
const LOGPROB_MIN: f32 = -9999.0;

/// Which endpoint's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

impl Endpoint {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completion => "completion",
        }
    }
}

/// The fields that all objects of one answer share.
#[derive(Clone, Debug)]
pub struct Format {
    /// Which objects.
    pub endpoint: Endpoint,
    /// The answer's id.
    pub id: String,
    /// **Units**: seconds since 1970.
    pub created: u64,
    /// The model's id.
    pub model: String,
    /// Every chunk has a `usage`, null in all but the last.
    pub include_usage: bool,
}

impl Format {
    /// A whole answer.
    pub fn whole(&self, choices: Vec<Value>, usage: &Usage, timings: Value) -> Value {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completion => "text_completion",
        };
        let mut answer = self.object(object, choices);
        answer.insert("usage".into(), usage.object());
        answer.insert("timings".into(), timings);
        Value::Object(answer)
    }

    /// One choice of a whole answer.
    pub fn choice(
        &self,
        index: usize,
        text: String,
        reasoning: String,
        logprobs: Option<Value>,
        reason: FinishReason,
    ) -> Value {
        match self.endpoint {
            Endpoint::Chat => {
                let mut message = json!({"role": "assistant", "content": text, "refusal": null});
                if !reasoning.is_empty() {
                    message["reasoning_content"] = reasoning.into();
                }
                json!({
                    "index": index,
                    "message": message,
                    "logprobs": logprobs,
                    "finish_reason": reason_name(reason),
                })
            }
            Endpoint::Completion => {
                json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason_name(reason)})
            }
        }
    }

    /// The first chunk of a chat's choice.
    pub fn role_chunk(&self, index: usize) -> String {
        let delta = Delta {
            role: Some("assistant"),
            content: Some(""),
            ..Delta::default()
        };
        self.chunk(ChatPart::new(index, delta), None)
    }

    /// A chunk with text.
    pub fn text_chunk(&self, index: usize, text: &str, logprobs: Option<Value>) -> String {
        match self.endpoint {
            Endpoint::Chat => {
                let delta = Delta {
                    content: Some(text),
                    ..Delta::default()
                };
                let part = ChatPart {
                    logprobs,
                    ..ChatPart::new(index, delta)
                };
                self.chunk(part, None)
            }
            Endpoint::Completion => {
                let part = CompletionPart {
                    index,
                    text,
                    logprobs,
                    finish_reason: None,
                };
                self.chunk(part, None)
            }
        }
    }

    /// A chunk with some of the reasoning, which chats alone tell apart.
    pub fn reasoning_chunk(&self, index: usize, text: &str) -> String {
        let delta = Delta {
            reasoning_content: Some(text),
            ..Delta::default()
        };
        self.chunk(ChatPart::new(index, delta), None)
    }

    /// A choice's last chunk; the request's last choice brings the timings, if no usage chunk follows.
    pub fn finish_chunk(
        &self,
        index: usize,
        reason: FinishReason,
        timings: Option<Value>,
    ) -> String {
        let finish_reason = Some(reason_name(reason));
        match self.endpoint {
            Endpoint::Chat => {
                let part = ChatPart {
                    finish_reason,
                    ..ChatPart::new(index, Delta::default())
                };
                self.chunk(part, timings)
            }
            Endpoint::Completion => {
                let part = CompletionPart {
                    index,
                    text: "",
                    logprobs: None,
                    finish_reason,
                };
                self.chunk(part, timings)
            }
        }
    }

    /// The chunk with the counts, which has no choices.
    pub fn usage_chunk(&self, usage: &Usage, timings: Value) -> String {
        let mut chunk = self.object(self.chunk_object(), Vec::new());
        chunk.insert("usage".into(), usage.object());
        chunk.insert("timings".into(), timings);
        Value::Object(chunk).to_string()
    }

    /// Written as it stands: every token has one of these, and a tree of values would be allocated for each.
    fn chunk(&self, choice: impl Serialize, timings: Option<Value>) -> String {
        let chunk = Chunk {
            id: &self.id,
            object: self.chunk_object(),
            created: self.created,
            model: &self.model,
            choices: [choice],
            usage: self.include_usage.then_some(()),
            timings,
        };
        serde_json::to_string(&chunk).expect("strings and numbers alone")
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completion => "text_completion",
        }
    }

    fn object(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("id".into(), self.id.as_str().into());
        fields.insert("object".into(), object.into());
        fields.insert("created".into(), self.created.into());
        fields.insert("model".into(), self.model.as_str().into());
        fields.insert("choices".into(), Value::Array(choices));
        fields
    }
}

/// A chunk of an answer that is streamed.
#[derive(Serialize)]
struct Chunk<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [C; 1],
    /// Null where usage comes later.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Value>,
}

#[derive(Serialize)]
struct ChatPart<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

impl<'a> ChatPart<'a> {
    fn new(index: usize, delta: Delta<'a>) -> Self {
        Self {
            index,
            delta,
            logprobs: None,
            finish_reason: None,
        }
    }
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
}

#[derive(Serialize)]
struct CompletionPart<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

/// The name that clients know.
pub fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

/// The `logprobs` object for some tokens; none if they come without.
///
/// `offset` is where the text of the first of them starts, for the completions endpoint, and is moved on.
pub fn logprobs(
    endpoint: Endpoint,
    tokenizer: &Tokenizer,
    sampled: &[Sampled],
    offset: &mut usize,
) -> Option<Value> {
    let scored = sampled
        .iter()
        .filter_map(|sampled| Some((sampled.token, sampled.logprobs.as_ref()?)));
    match endpoint {
        Endpoint::Chat => {
            let content: Vec<Value> = scored
                .map(|(token, scores)| chat_logprobs(tokenizer, token, scores))
                .collect();
            (!content.is_empty()).then(|| json!({"content": content, "refusal": null}))
        }
        Endpoint::Completion => {
            let (mut tokens, mut chosen, mut top, mut offsets) =
                (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for (token, scores) in scored {
                let text = tokenizer.token_text(token);
                offsets.push(*offset);
                *offset += text.chars().count();
                tokens.push(text);
                chosen.push(finite(scores.chosen));
                let named = scores.top.iter().map(|&(token, score)| {
                    (
                        tokenizer.token_text(token).into_owned(),
                        finite(score).into(),
                    )
                });
                top.push(named.collect::<Map<_, _>>());
            }
            (!tokens.is_empty()).then(|| {
                json!({"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets})
            })
        }
    }
}

fn chat_logprobs(tokenizer: &Tokenizer, token: Token, scores: &Logprobs) -> Value {
    let mut entry = one(tokenizer, token, scores.chosen);
    entry["top_logprobs"] = scores
        .top
        .iter()
        .map(|&(token, score)| one(tokenizer, token, score))
        .collect();
    entry
}

fn one(tokenizer: &Tokenizer, token: Token, score: f32) -> Value {
    json!({
        "token": tokenizer.token_text(token),
        "logprob": finite(score),
        "bytes": tokenizer.token_bytes(token),
    })
}

fn finite(score: f32) -> f32 {
    score.max(LOGPROB_MIN) // also turns a NaN into the least value
}
