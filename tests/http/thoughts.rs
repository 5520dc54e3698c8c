//! What models of several families think and answer, told apart behind their own vocabularies and templates, which get what a client says of thinking.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use crate::{
    parrot::Parrot,
    reply::{events, json_of},
    server::{Server, Setup},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;
use tidegate::{
    engine::request::Sampling,
    model::text::ModelText,
    stage::reason::Markup,
    template::{ChatTemplate, TemplateSpec},
    token::{Specials, Tokenizer, TokenizerSpec},
};

#[derive(Deserialize)]
struct Vocabulary {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    model: String,
    pre: Option<String>,
    tokens: Vec<String>,
    merges: Vec<String>,
    token_types: Vec<i32>,
}

#[derive(Deserialize)]
struct Template {
    bos: String,
    eos: String,
    goldens: BTreeMap<String, BTreeMap<String, String>>,
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

fn read<T: DeserializeOwned>(name: String) -> T {
    let text = fs::read_to_string(fixture(&name)).expect("a fixture");
    serde_json::from_str(&text).expect("as its README says")
}

/// A family: its vocabulary and control tokens that the fixture lacks, and its template.
struct Family {
    vocabulary: &'static str,
    more: &'static [&'static str],
    template: &'static str,
}

impl Family {
    fn text(&self) -> (ModelText, Template) {
        let Vocabulary { mut spec } = read(format!("tokenizers/{}.json", self.vocabulary));
        for name in self.more {
            spec.tokens.push((*name).to_owned());
            spec.token_types.push(3);
        }
        let tokenizer = Tokenizer::new(&TokenizerSpec {
            model: &spec.model,
            pre: spec.pre.as_deref(),
            tokens: spec.tokens.iter().map(String::as_str).collect(),
            merges: spec.merges.iter().map(String::as_str).collect(),
            token_types: spec.token_types,
            ..TokenizerSpec::default()
        })
        .expect("a vocabulary");
        let written: Template = read(format!("templates/{}.json", self.template));
        let source = fs::read_to_string(fixture(&format!("templates/{}.jinja", self.template)));
        let controls = tokenizer.control_tokens();
        let controls: Vec<_> = controls.map(|token| tokenizer.token_text(token)).collect();
        let template = ChatTemplate::new(&TemplateSpec {
            source: Some(&source.expect("a template")),
            tool_use: None,
            bos: &written.bos,
            eos: &written.eos,
            controls: &controls.iter().map(AsRef::as_ref).collect::<Vec<&str>>(),
        })
        .expect("it compiles");
        let text = ModelText {
            markup: Markup::of(&tokenizer),
            tokenizer: Arc::new(tokenizer),
            template: Arc::new(template),
            sampling: Sampling::default(),
        };
        (text, written)
    }

    /// Asked with thinking on or off, the model reads what the reference renders and says `said`, up to a token that ends it.
    async fn check(&self, thinking: bool, said: &str, content: &str, reasoning: &str) {
        let (text, written) = self.text();
        let taught = text.tokenizer.encode(said, Specials::Parse);
        let (parrot, heard) = Parrot::default().taught(taught);
        let (golden, effort) = match thinking {
            true => ("thinking on", "high"),
            false => ("thinking off", "low"),
        };
        let server = Server::start(Setup {
            parrot,
            text: Some(text),
            ..Setup::default()
        })
        .await;
        let body = |stream: bool| {
            json!({
                "messages": [{"role": "user", "content": "Hello!"}], "enable_thinking": thinking, "reasoning_effort": effort,
                "max_tokens": 200, "stream": stream,
            })
        };
        heard.try_iter().for_each(drop);
        let what = format!("{}, {golden}: {said}", self.template);
        let response = server.post("/v1/chat/completions", body(false).to_string());
        let whole = json_of(response.await).await;
        let read: Vec<u32> = heard.try_iter().flatten().collect();
        let (read, prompt) = (
            undated(&server.text.tokenizer.decode(&read)),
            undated(&written.goldens[golden]["text"]),
        );
        assert!(
            read.starts_with(&prompt),
            "{what}: {read:?}, not {prompt:?}"
        );
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"], content, "{what}");
        let thoughts = choice["message"]["reasoning_content"].as_str();
        assert_eq!(thoughts.unwrap_or_default(), reasoning, "{what}");
        assert_eq!(choice["finish_reason"], "stop", "{what}");
        let response = server.post("/v1/chat/completions", body(true).to_string());
        let streamed = events(&response.await.text().await.expect("a stream that ends"));
        assert_eq!(streamed.text(0), content, "{what}");
        let deltas = streamed.chunks.iter();
        let thoughts =
            deltas.filter_map(|chunk| chunk["choices"][0]["delta"]["reasoning_content"].as_str());
        assert_eq!(thoughts.collect::<String>(), reasoning, "{what}");
        server.stop().await;
    }
}

/// Without the line that says which day it is.
fn undated(prompt: &str) -> String {
    let lines = prompt.split('\n');
    let others: Vec<_> = lines
        .filter(|line| !line.starts_with("Current date: "))
        .collect();
    others.join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn think_tags_of_qwen_and_minimax() {
    let qwen = Family {
        vocabulary: "qwen35",
        more: &[],
        template: "qwen3.6",
    };
    // the prompt has opened the tag, or closed it too
    let said = "two and two\n</think>\n\nfour<|im_end|>";
    qwen.check(true, said, "four", "two and two").await;
    qwen.check(false, "four<|im_end|>", "four", "").await;
    let minimax = Family {
        vocabulary: "minimax-m2",
        more: &[],
        template: "minimax-m2",
    };
    let said = "two and two\n</think>\n\nfour[e~[";
    minimax.check(true, said, "four", "two and two").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn think_tags_of_glm() {
    let mut glm = Family {
        vocabulary: "glm4",
        more: &[],
        template: "glm-4.6",
    };
    let said = "\n<think>two and two</think>\nfour<|endoftext|>";
    glm.check(true, said, "four", "two and two").await;
    glm.check(false, "\nfour<|endoftext|>", "\nfour", "").await;
    glm.template = "glm-4.7-flash";
    let said = "two and two</think>four<|endoftext|>";
    glm.check(true, said, "four", "two and two").await;
    glm.check(false, "four<|endoftext|>", "four", "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_of_harmony() {
    let harmony = Family {
        vocabulary: "gpt-4o",
        more: &[],
        template: "gpt-oss",
    };
    let thought = "<|channel|>analysis<|message|>two and two<|end|>";
    let answer = "<|start|>assistant<|channel|>final<|message|>four<|return|>";
    let said = format!("{thought}{answer}");
    for thinking in [true, false] {
        harmony.check(thinking, &said, "four", "two and two").await;
    }
    let call = "<|start|>assistant<|channel|>commentary to=functions.f json<|message|>{}<|call|>";
    let said = format!("{thought}{call}");
    harmony.check(true, &said, "{}", "two and two").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_of_gemma() {
    let gemma = Family {
        vocabulary: "gemma4",
        more: &[
            "<|turn>",
            "<turn|>",
            "<|channel>",
            "<channel|>",
            "<|think|>",
        ],
        template: "gemma-4",
    };
    let said = "<|channel>thought\ntwo and two\n<channel|>four<turn|>";
    gemma.check(true, said, "four", "two and two").await;
    gemma.check(false, "four<turn|>", "four", "").await;
}
