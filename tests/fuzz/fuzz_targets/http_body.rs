//! Any bytes as the body of a request: read, checked for both endpoints, and, as a conversation, rendered by the bundled model's template and
//! tokenised. Nothing may panic, and whatever is refused is the client's fault.
#![no_main]

use std::{path::Path, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use tidegate::{
    engine::request::Sampling,
    gguf::Gguf,
    http::request::{Body, Generation},
    model::text::ModelText,
    stage::tokenize::Tokenize,
};

static TOKENIZE: LazyLock<Tokenize> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tales/tales.gguf");
    let text = ModelText::read(&Gguf::open(path).expect("fixture")).expect("text side");
    Tokenize::new(text.tokenizer, text.template)
});

fuzz_target!(|bytes: &[u8]| {
    for check in [Generation::chat, Generation::completion] {
        match Body::parse(bytes).and_then(|body| check(body, &Sampling::default())) {
            Ok(generation) => {
                let job = &generation.job;
                assert!(!job.prompts.is_empty() && job.choices > 0 && job.max_tokens != Some(0));
                assert!(job.sampling.temperature.is_finite() && job.sampling.temperature >= 0.0);
                for prompt in &job.prompts {
                    let _ = TOKENIZE.tokens(prompt); // a template may refuse a conversation
                }
            }
            Err(error) => assert!(error.status().is_client_error(), "{error}"),
        }
    }
});
