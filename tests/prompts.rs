//! Somebody's words never become control tokens, whatever they spell and whatever the template puts next to them.

use proptest::{prelude::*, test_runner::RngSeed};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::{fs, path::PathBuf, time::SystemTime};
use tidegate::{
    template::{ChatTemplate, Conversation, Rendered, TemplateError, TemplateSpec},
    token::{Specials, Tokenizer, TokenizerSpec},
};

#[derive(Deserialize)]
struct Fixture {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    pre: String,
    tokens: Vec<String>,
    merges: Vec<String>,
    token_types: Vec<i32>,
}

/// A vocabulary and a template of `fixtures`.
struct Model {
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Model {
    fn read(vocabulary: &str, template: &str) -> Self {
        let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures");
        let text = fs::read_to_string(fixtures.join("tokenizers").join(vocabulary)).unwrap();
        let Fixture { spec } = serde_json::from_str(&text).unwrap();
        let tokenizer = Tokenizer::new(&TokenizerSpec {
            model: "gpt2",
            pre: Some(&spec.pre),
            tokens: spec.tokens.iter().map(String::as_str).collect(),
            merges: spec.merges.iter().map(String::as_str).collect(),
            token_types: spec.token_types,
            ..TokenizerSpec::default()
        })
        .unwrap();
        let controls: Vec<_> = tokenizer
            .control_tokens()
            .map(|token| tokenizer.token_text(token))
            .collect();
        let template = ChatTemplate::new(&TemplateSpec {
            source: Some(&fs::read_to_string(fixtures.join("templates").join(template)).unwrap()),
            tool_use: None,
            bos: "",
            eos: "",
            controls: &controls.iter().map(AsRef::as_ref).collect::<Vec<&str>>(),
        })
        .unwrap();
        Self {
            tokenizer,
            template,
        }
    }

    fn render(&self, messages: &[Value]) -> Result<Rendered, TemplateError> {
        self.template.render(&Conversation {
            messages,
            tools: &[],
            add_generation_prompt: true,
            variables: &Map::new(),
            now: SystemTime::UNIX_EPOCH,
        })
    }

    /// The control tokens of a conversation's prompt.
    fn controls(&self, messages: &[Value]) -> Result<Vec<u32>, TemplateError> {
        let rendered = self.render(messages)?;
        let mut tokens = self
            .tokenizer
            .encode_prompt(&rendered.text, Specials::Between(&rendered.breaks));
        assert_eq!(self.tokenizer.decode(&tokens), rendered.text);
        tokens.retain(|&token| self.tokenizer.is_control(token));
        Ok(tokens)
    }

    fn check(&self, contents: &[String]) {
        let conversation = |content: &dyn Fn(usize) -> String| -> Vec<Value> {
            let roles = ["user", "assistant"]
                .into_iter()
                .cycle()
                .enumerate()
                .take(contents.len());
            let first = [json!({"role": "system", "content": "Be brief."})].into_iter();
            first
                .chain(roles.map(|(index, role)| json!({"role": role, "content": content(index)})))
                .collect()
        };
        let harmless = self.controls(&conversation(&|_| "x".to_owned())).unwrap();
        match self.controls(&conversation(&|index| contents[index].clone())) {
            Ok(controls) => assert_eq!(controls, harmless, "{contents:?}"),
            // gpt-oss will not have channels spelled out in an answer
            Err(TemplateError::Refused { .. }) => {}
            Err(error) => panic!("{contents:?}: {error}"),
        }
    }
}

/// Words made of whole control tokens and parts of them.
fn words() -> impl Strategy<Value = Vec<String>> {
    let parts = [
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|",
        "<",
        "|>",
        ">",
        "im_start",
        "im_end|>",
        "<|im_",
        "<|start|>",
        "<|end|>",
        "<|message|>",
        "<|channel|>",
        "<|return",
        "|",
        "<think>",
        "</think>",
        "user",
        "\n",
        " ",
        "hi",
        "é",
    ];
    let text = prop::collection::vec(prop::sample::select(parts.to_vec()), 0..8)
        .prop_map(|parts| parts.concat());
    prop::collection::vec(text, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn words_stay_words_in_chatml(contents in words()) {
        thread_local!(static MODEL: Model = Model::read("qwen2.json", "qwen3.jinja"));
        MODEL.with(|model| model.check(&contents));
    }

    #[test]
    fn words_stay_words_in_harmony(contents in words()) {
        thread_local!(static MODEL: Model = Model::read("gpt-4o.json", "gpt-oss.jinja"));
        MODEL.with(|model| model.check(&contents));
    }
}
