//! What a body may say, as tables: accepted bodies with what becomes of them, refused ones with the field and the words.

use super::{Body, Generation, checked::CHOICES_MAX, tree::NODES_MAX};
use crate::{
    engine::request::Sampling,
    http::{error::ApiError, format::Endpoint},
    stage::tokenize::Prompt,
};

const CHAT: &str = r#""messages":[{"role":"user","content":"hi"}]"#;

fn defaults() -> Sampling {
    Sampling {
        temperature: 0.7,
        top_p: 0.95,
        top_k: 40,
        ..Sampling::default()
    }
}

fn read(endpoint: Endpoint, body: &str) -> Result<Generation, ApiError> {
    let body = Body::parse(body.as_bytes())?;
    match endpoint {
        Endpoint::Chat => Generation::chat(body, &defaults()),
        Endpoint::Completion => Generation::completion(body, &defaults()),
    }
}

fn chat(fields: &str) -> Generation {
    read(Endpoint::Chat, &format!("{{{CHAT},{fields}}}"))
        .unwrap_or_else(|error| panic!("{fields}: {error}"))
}

/// The body is refused, and the error names the field and says this.
fn check(endpoint: Endpoint, body: &str, param: &str, words: &str) {
    let shown = &body[..body.len().min(200)];
    let error = read(endpoint, body)
        .err()
        .unwrap_or_else(|| panic!("{shown}: accepted"));
    assert_eq!(error.param().unwrap_or_default(), param, "{shown}: {error}");
    assert!(error.to_string().contains(words), "{shown}: {error}");
    assert_eq!(error.status(), 400, "{shown}");
}

#[test]
fn wrong_types_name_their_field() {
    for (field, value, words) in [
        ("model", "7", "expected a string"),
        ("max_tokens", "\"many\"", "expected a whole number"),
        ("max_tokens", "-1", "expected a whole number"),
        ("max_tokens", "1.5", "expected a whole number"),
        ("max_completion_tokens", "[]", "expected a whole number"),
        ("stop", "7", "a string or a list of strings"),
        ("stop", "{}", "a string or a list of strings"),
        ("stop[0]", "[7]", "expected a string"),
        ("n", "\"2\"", "expected a whole number"),
        ("n", "18446744073709551616", "expected a whole number"),
        ("stream", "\"yes\"", "expected a boolean"),
        ("stream_options", "[true]", "must be an object, got a list"),
        (
            "stream_options.include_usage",
            "{\"include_usage\":1}",
            "must be a boolean, got a number",
        ),
        ("temperature", "\"hot\"", "expected a number"),
        ("top_p", "[0.5]", "expected a number"),
        ("top_k", "0.5", "expected an integer"),
        ("min_p", "{}", "expected a number"),
        ("repetition_penalty", "true", "expected a number"),
        ("repeat_penalty", "\"\"", "expected a number"),
        ("presence_penalty", "\"1\"", "expected a number"),
        ("frequency_penalty", "\"1\"", "expected a number"),
        ("seed", "\"x\"", "a 64-bit integer"),
        ("seed", "0.5", "a 64-bit integer"),
        ("logit_bias", "[]", "must be an object, got a list"),
        ("logit_bias.x", "{\"x\":1}", "is not a token id"),
        ("logit_bias.-1", "{\"-1\":1}", "is not a token id"),
        (
            "logit_bias.7",
            "{\"7\":\"a lot\"}",
            "must be a number, got a string",
        ),
        ("logprobs", "\"yes\"", "a boolean or a count"),
        ("top_logprobs", "true", "expected a whole number"),
        ("ignore_eos", "1", "expected a boolean"),
        ("tools", "{}", "must be a list, got an object"),
        (
            "chat_template_kwargs",
            "[]",
            "must be an object, got a list",
        ),
    ] {
        let name = field.split(['.', '[']).next().unwrap_or(field);
        check(
            Endpoint::Chat,
            &format!("{{{CHAT},\"{name}\":{value}}}"),
            field,
            words,
        );
    }
}

#[test]
fn numbers_out_of_range_name_their_range() {
    for (field, value, words) in [
        ("max_tokens", "0", "must be at least 1, got 0"),
        ("max_completion_tokens", "0", "must be at least 1, got 0"),
        ("n", "0", "must be from 1 to 128, got 0"),
        ("n", "1000000", "must be from 1 to 128"),
        ("temperature", "-0.1", "must be from 0 to 10, got -0.1"),
        ("temperature", "1e39", "must be from 0 to 10, got inf"),
        ("top_p", "1.1", "must be from 0 to 1, got 1.1"),
        ("top_k", "-2", "must be -1 or more"),
        ("min_p", "-1", "must be from 0 to 1, got -1"),
        ("repetition_penalty", "0", "must be from 0.01 to 10, got 0"),
        ("presence_penalty", "2.5", "must be from -2 to 2, got 2.5"),
        (
            "frequency_penalty",
            "-2.5",
            "must be from -2 to 2, got -2.5",
        ),
        (
            "logit_bias.7",
            "{\"7\":101}",
            "must be from -100 to 100, got 101",
        ),
        ("top_logprobs", "21", "must be from 0 to 20, got 21"),
        ("top_logprobs", "5", "needs 'logprobs' to be true"),
        ("logprobs", "5", "must be a boolean, got a number"),
        (
            "stop",
            "[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]",
            "holds 17 strings, at most 16",
        ),
    ] {
        let name = field.split('.').next().unwrap_or(field);
        check(
            Endpoint::Chat,
            &format!("{{{CHAT},\"{name}\":{value}}}"),
            field,
            words,
        );
    }
    check(
        Endpoint::Completion,
        r#"{"prompt":"a","logprobs":21}"#,
        "logprobs",
        "must be from 0 to 20, got 21",
    );
    check(
        Endpoint::Completion,
        r#"{"prompt":"a","logprobs":true}"#,
        "logprobs",
        "must be a count, got a boolean",
    );
    check(
        Endpoint::Completion,
        r#"{"prompt":"a","logprobs":1,"echo":true}"#,
        "echo",
        "cannot be combined with 'logprobs'",
    );
    check(
        Endpoint::Completion,
        r#"{"prompt":["a","b"],"n":128}"#,
        "prompt",
        &format!("at most {CHOICES_MAX} answers"),
    );
}

#[test]
fn messages_are_checked_one_by_one() {
    for (messages, param, words) in [
        ("null", "messages", "is missing"),
        ("[]", "messages", "at least one message"),
        ("\"hi\"", "messages", "must be a list, got a string"),
        ("[7]", "messages[0]", "must be an object, got a number"),
        (r#"[{"content":"hi"}]"#, "messages[0].role", "is missing"),
        (
            r#"[{"role":7,"content":"hi"}]"#,
            "messages[0].role",
            "must be a string, got a number",
        ),
        (
            r#"[{"role":"","content":"hi"}]"#,
            "messages[0].role",
            "must not be empty",
        ),
        (r#"[{"role":"user"}]"#, "messages[0].content", "is missing"),
        (
            r#"[{"role":"user","content":null}]"#,
            "messages[0].content",
            "got null",
        ),
        (
            r#"[{"role":"user","content":"hi"},{"role":"user","content":7}]"#,
            "messages[1].content",
            "a string or a list of parts, got a number",
        ),
        (
            r#"[{"role":"user","content":["hi"]}]"#,
            "messages[0].content[0]",
            "must be an object, got a string",
        ),
        (
            r#"[{"role":"user","content":[{"type":"image_url"}]}]"#,
            "messages[0].content[0]",
            "'image_url' are not supported",
        ),
        (
            r#"[{"role":"user","content":[{"type":"text"}]}]"#,
            "messages[0].content[0]",
            "needs a 'text'",
        ),
        (
            r#"[{"role":"user","content":[{"text":"hi"}]}]"#,
            "messages[0].content[0]",
            "needs a 'type'",
        ),
    ] {
        check(
            Endpoint::Chat,
            &format!("{{\"messages\":{messages}}}"),
            param,
            words,
        );
    }
}

#[test]
fn prompts_are_of_one_kind() {
    for (prompt, param, words) in [
        ("null", "prompt", "is missing"),
        ("[]", "prompt", "at least one prompt"),
        (
            "7",
            "prompt",
            "a string, a list of strings, a list of token ids",
        ),
        (
            "{}",
            "prompt",
            "a string, a list of strings, a list of token ids",
        ),
        ("[1,\"a\"]", "prompt[1]", "expected a token id"),
        ("[\"a\",1]", "prompt[1]", "expected a string"),
        ("[[1],2]", "prompt[1]", "expected a sequence"),
        (
            "[-1]",
            "prompt[0]",
            "a string, a token id, or a list of token ids",
        ),
        (
            "[4294967296]",
            "prompt[0]",
            "a string, a token id, or a list of token ids",
        ),
        ("[[1,4294967296]]", "prompt[0][1]", "expected a token id"),
    ] {
        check(
            Endpoint::Completion,
            &format!("{{\"prompt\":{prompt}}}"),
            param,
            words,
        );
    }
}

#[test]
fn what_is_not_json_is_refused() {
    for body in [
        "",
        "{",
        "{}x",
        "{\"messages\":[}",
        "\u{feff}{}",
        "{\"temperature\":NaN}",
        "{\"temperature\":1e999}",
        "{'a':1}",
        "{\"model\":\"\\ud800\"}",
    ] {
        let error = read(Endpoint::Chat, body)
            .err()
            .unwrap_or_else(|| panic!("{body}: accepted"));
        assert_eq!(
            (error.status().as_u16(), error.code()),
            (400, "invalid_json"),
            "{body}: {error}"
        );
    }
    for body in ["[]", "7", "null", "\"text\""] {
        check(Endpoint::Chat, body, "body", "must be an object");
    }
    assert!(Body::parse(b"\xff\xfe{}").is_err());
    let deep = format!(
        "{{\"messages\":{}{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert_eq!(
        read(Endpoint::Chat, &deep).expect_err("deep").code(),
        "invalid_json"
    );
    let wide = format!("{{\"messages\":[{}0]}}", "0,".repeat(NODES_MAX));
    check(Endpoint::Chat, &wide, "messages[199999]", "more than");
}

#[test]
fn absent_fields_take_the_defaults() {
    let plain = chat(r#""unknown":{"deep":[1,2,3]},"temperature":null"#);
    assert_eq!(
        plain.job.sampling,
        Sampling {
            seed: plain.job.sampling.seed,
            ..defaults()
        }
    );
    assert_eq!(
        (plain.job.choices, plain.job.max_tokens, plain.job.logprobs),
        (1, None, None)
    );
    assert!(!plain.stream && !plain.include_usage && !plain.echo && !plain.job.ignore_eos);
    assert!(plain.stops.is_empty() && plain.model.is_none());
    assert_ne!(
        plain.job.sampling.seed,
        chat("\"n\":1").job.sampling.seed,
        "seeds differ from request to request"
    );
    let completion = read(Endpoint::Completion, r#"{"prompt":"a"}"#).expect("fits");
    assert_eq!(completion.job.max_tokens, Some(16));
}

#[test]
fn fields_arrive() {
    let full = chat(
        r#""model":"m","max_tokens":5,"max_completion_tokens":7,"stop":["a","","b"],"n":3,"stream":true,"stream_options":{"include_usage":true},
        "temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.1,"repetition_penalty":1.1,"presence_penalty":1,"frequency_penalty":-1,"seed":-1,
        "logit_bias":{"9":-100,"7":2.5,"07":3},"logprobs":true,"top_logprobs":2,"ignore_eos":true"#,
    );
    assert_eq!(full.model.as_deref(), Some("m"));
    assert_eq!(full.stops, ["a", "b"]);
    assert!(full.stream && full.include_usage && full.job.ignore_eos);
    assert_eq!(
        (full.job.choices, full.job.max_tokens, full.job.logprobs),
        (3, Some(7), Some(2))
    );
    let expected = Sampling {
        temperature: 0.0,
        top_p: 0.5,
        top_k: 0,
        min_p: 0.1,
        repetition_penalty: 1.1,
        presence_penalty: 1.0,
        frequency_penalty: -1.0,
        logit_bias: vec![(7, 2.5), (9, -100.0)],
        seed: u64::MAX,
    };
    assert_eq!(full.job.sampling, expected);
    assert_eq!(
        chat("\"repeat_penalty\":1.5")
            .job
            .sampling
            .repetition_penalty,
        1.5
    );
    assert_eq!(chat("\"stop\":\"x\"").stops, ["x"]);
    assert!(chat("\"min_tokens\":8,\"max_tokens\":8").job.ignore_eos);
    assert!(!chat("\"min_tokens\":7,\"max_tokens\":8").job.ignore_eos);
}

#[test]
fn messages_are_passed_on_as_they_came() {
    let messages = serde_json::json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "x"},
        {"role": "assistant", "content": null, "tool_calls": [{"z": 1, "a": 2}]},
        {"role": "assistant", "tool_calls": []},
    ]);
    let body = format!("{{\"messages\":{messages}}}");
    let read = read(Endpoint::Chat, &body).expect("fits");
    let [Prompt::Chat { messages: kept, .. }] = &read.job.prompts[..] else {
        panic!("one conversation")
    };
    assert_eq!(
        serde_json::Value::from(kept.clone()).to_string(),
        messages.to_string()
    );
}

#[test]
fn prompts_keep_their_form() {
    let prompts = |prompt: &str| {
        read(Endpoint::Completion, &format!("{{\"prompt\":{prompt}}}"))
            .expect("fits")
            .job
            .prompts
    };
    assert_eq!(prompts("\"a\""), [Prompt::Text("a".into())]);
    assert_eq!(
        prompts("[\"a\",\"b\"]"),
        [Prompt::Text("a".into()), Prompt::Text("b".into())]
    );
    assert_eq!(prompts("[1,2]"), [Prompt::Ids([1, 2].into())]);
    assert_eq!(
        prompts("[[1],[2,3]]"),
        [Prompt::Ids([1].into()), Prompt::Ids([2, 3].into())]
    );
}
