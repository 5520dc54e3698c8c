//! An HTTP client of OpenAI's completions endpoint that notes when text arrives.

use std::time::Instant;

use async_stream::try_stream;
use futures::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Failure, prompts::Prompt, sse::Events};

/// A server's address and how it wants to be asked.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    key: Option<String>,
    /// What is asked for.
    pub(crate) model: Option<String>,
    pub(crate) about: About,
}

/// What the server says of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    /// `owned_by` of its model: `tidegate`, `llamacpp`, ..
    pub(crate) owner: String,
    /// Tokens of a sequence.
    pub(crate) context: Option<usize>,
    /// Tokens of the vocabulary.
    pub(crate) vocab: Option<usize>,
}

impl About {
    /// So many, or as many as a prompt may have.
    pub(crate) fn prompt_tokens(&self, wanted: usize) -> usize {
        self.context
            .map_or(wanted, |context| wanted.min(context - 1))
    }

    /// What an answer to a prompt of so many may have; `unknown` where the server does not say.
    pub(crate) fn answer_tokens(&self, prompt: usize, unknown: usize) -> usize {
        self.context
            .map_or(unknown, |context| context.saturating_sub(prompt))
    }
}

/// What came of a request.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Some text, when its bytes arrived.
    Text { at: Instant, text: String },
    /// The answer is complete.
    Ended(Ending),
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    /// When the reason arrived.
    pub(crate) at: Instant,
    pub(crate) reason: String,
    pub(crate) usage: Option<Usage>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    #[serde(default)]
    prompt_tokens_details: Option<Details>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: Option<usize>,
}

impl Usage {
    /// Prompt tokens that the server did not read because it knew them.
    pub(crate) fn cached_tokens(&self) -> usize {
        let details = self.prompt_tokens_details;
        details.and_then(|d| d.cached_tokens).unwrap_or(0)
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) asked: Instant,
    /// When its first text came, or its end if it has none.
    pub(crate) first: Instant,
    pub(crate) text: String,
    pub(crate) ending: Ending,
}

impl Client {
    /// Asks the server what it is.
    pub(crate) async fn new(
        url: &str,
        model: Option<String>,
        key: Option<String>,
    ) -> Result<Self, Failure> {
        // A connection for every request: some servers close one after a number of them, whether the next has been sent or not.
        let http = reqwest::Client::builder().pool_max_idle_per_host(0);
        let mut client = Self {
            http: http.no_proxy().build()?,
            url: url.trim_end_matches('/').into(),
            key,
            model,
            about: About::default(),
        };
        let list: Value = serde_json::from_str(&client.get("/v1/models").await?)?;
        let card = &list["data"][0];
        let number = |value: &Value| value.as_u64().map(|n| n as usize);
        client.about = About {
            owner: card["owned_by"].as_str().unwrap_or_default().into(),
            context: number(&card["meta"]["n_ctx"]).or(number(&card["max_model_len"])),
            vocab: number(&card["meta"]["n_vocab"]),
        };
        let listed = card["id"].as_str().map(Into::into);
        client.model = client.model.or(listed);
        Ok(client)
    }

    /// Whether what answers is this project's server.
    pub(crate) fn is_tidegate(&self) -> bool {
        self.about.owner == "tidegate"
    }

    /// A body.
    ///
    /// **Errors**: also any status but 200.
    pub(crate) async fn get(&self, path: &str) -> Result<String, Failure> {
        let request = self.http.get(format!("{}{path}", self.url));
        let response = self.signed(request).send().await?;
        let (status, body) = (response.status(), response.text().await?);
        if status != 200 {
            return Err(format!("GET {path}: {status}: {body}").into());
        }
        Ok(body)
    }

    fn signed(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Continues a prompt greedily, past any end that the model would make. Dropping the stream cancels.
    pub(crate) fn ask(
        &self,
        prompt: &Prompt,
        max_tokens: usize,
    ) -> impl Stream<Item = Result<Event, Failure>> + Send + use<> {
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        });
        let request = self.http.post(format!("{}/v1/completions", self.url));
        let request = self.signed(request).json(&body);
        try_stream! {
            let response = request.send().await?;
            let status = response.status();
            if status != 200 {
                let why = response.text().await?;
                Err(format!("{status}: {why}"))?;
                return;
            }
            let (mut chunks, mut events) = (response.bytes_stream(), Events::default());
            let (mut ending, mut usage): (Option<(Instant, String)>, Option<Usage>) = (None, None);
            while let Some(chunk) = chunks.next().await {
                let (at, chunk) = (Instant::now(), chunk?);
                for data in events.take(&chunk)? {
                    if data == "[DONE]" {
                        continue;
                    }
                    let mut data: Value = serde_json::from_str(&data)?;
                    if !data["error"].is_null() {
                        Err(data["error"].to_string())?;
                    }
                    usage = Option::deserialize(data["usage"].take())?.or(usage);
                    let choice = &data["choices"][0];
                    if let Some(text) = choice["text"].as_str()
                        && choice["finish_reason"].is_null()
                    {
                        yield Event::Text { at, text: text.into() };
                    }
                    if let Some(reason) = choice["finish_reason"].as_str() {
                        ending = Some((at, reason.into()));
                    }
                }
            }
            let (at, reason) = ending.ok_or("an answer was cut off")?;
            yield Event::Ended(Ending { at, reason, usage });
        }
    }

    /// As [`Self::ask`], to the end.
    pub(crate) async fn complete(
        &self,
        prompt: &Prompt,
        max_tokens: usize,
    ) -> Result<Answer, Failure> {
        let asked = Instant::now();
        let mut events = std::pin::pin!(self.ask(prompt, max_tokens));
        let (mut first, mut all) = (None, String::new());
        while let Some(event) = events.next().await {
            match event? {
                Event::Text { at, text } => {
                    first.get_or_insert(at);
                    all += &text;
                }
                Event::Ended(ending) => {
                    return Ok(Answer {
                        asked,
                        first: first.unwrap_or(ending.at),
                        text: all,
                        ending,
                    });
                }
            }
        }
        Err("an answer without an end".into())
    }
}
