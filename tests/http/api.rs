//! What every endpoint answers, in which forms and in which order.

use crate::{
    reply::{Events, events, json_of},
    server::{PROMPT, Server, Setup, complete},
};
use serde_json::{Value, json};
use tidegate::{settings::ServerSettings, stage::reason::Markup};

async fn stream(server: &Server, path: &str, body: Value) -> Events {
    let response = server.post(path, body.to_string()).await;
    assert_eq!(response.status(), 200, "{body}");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    events(&response.text().await.expect("a stream that ends"))
}

fn conversation() -> Value {
    json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]}])
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_whole() {
    let server = Server::start(Setup::default()).await;
    let prompt = server
        .text
        .tokenizer
        .encode_prompt(PROMPT, tidegate::token::Specials::Parse);
    let answer = complete(&server, json!({"max_tokens": prompt.len()})).await;
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], "parrot");
    assert!(
        answer["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("cmpl-"))
    );
    assert_eq!(answer["choices"][0]["text"], PROMPT, "a parrot repeats");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let expected = json!({"prompt_tokens": prompt.len(), "completion_tokens": prompt.len(), "total_tokens": 2 * prompt.len()});
    assert_eq!(answer["usage"], expected);
    assert_eq!(answer["timings"]["prompt_n"], prompt.len());
    assert_eq!(answer["timings"]["predicted_n"], prompt.len());
    for name in [
        "prompt_ms",
        "predicted_ms",
        "ttft_ms",
        "prompt_per_second",
        "predicted_per_second",
    ] {
        assert!(
            answer["timings"][name]
                .as_f64()
                .is_some_and(|value| value >= 0.0),
            "{name}: {}",
            answer["timings"]
        );
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_forms() {
    let server = Server::start(Setup::default()).await;
    let text = |answer: &Value, index: usize| {
        answer["choices"][index]["text"]
            .as_str()
            .expect("text")
            .to_owned()
    };
    // ids say the same as the text
    let ids = server
        .text
        .tokenizer
        .encode_prompt(PROMPT, tidegate::token::Specials::Parse);
    let (by_text, by_ids) = (
        complete(&server, json!({})).await,
        complete(&server, json!({"prompt": ids})).await,
    );
    assert_eq!(text(&by_text, 0), text(&by_ids, 0));
    // several prompts, each with several answers, in order
    let many = complete(
        &server,
        json!({"prompt": ["one two", "three"], "n": 2, "max_tokens": 2}),
    )
    .await;
    let texts: Vec<String> = (0..4).map(|index| text(&many, index)).collect();
    assert_eq!(many["choices"].as_array().map(Vec::len), Some(4));
    assert!(
        texts[0] == texts[1] && texts[2] == texts[3] && texts[0] != texts[2],
        "{texts:?}"
    );
    assert!("one two one two".starts_with(&texts[0]), "{texts:?}");
    // the prompt in front
    let echoed = complete(&server, json!({"echo": true, "max_tokens": 1})).await;
    assert!(text(&echoed, 0).starts_with(PROMPT));
    // the answer ends before the stop string, wherever its tokens end
    let stopped = complete(&server, json!({"stop": ["a ti", "zzz"]})).await;
    assert_eq!(text(&stopped, 0), "Once upon ");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    // equal seeds, equal answers
    let drawn = |seed: i64| complete(&server, json!({"temperature": 2, "seed": seed}));
    let (a, b, c) = (drawn(1).await, drawn(1).await, drawn(-1).await);
    assert_eq!(text(&a, 0), text(&b, 0));
    assert_ne!(text(&a, 0), text(&c, 0));
    // the answers to one prompt differ, and the first is the one that stands alone
    let two = complete(&server, json!({"temperature": 2, "seed": 1, "n": 2})).await;
    assert_eq!(text(&two, 0), text(&a, 0));
    assert_ne!(text(&two, 0), text(&two, 1));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logprobs_of_both_endpoints() {
    let server = Server::start(Setup::default()).await;
    let answer = complete(&server, json!({"logprobs": 2, "max_tokens": 3})).await;
    let scores = &answer["choices"][0]["logprobs"];
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(
            scores[name].as_array().map(Vec::len),
            Some(3),
            "{name}: {scores}"
        );
    }
    assert_eq!(
        scores["tokens"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(Value::as_str)
            .collect::<String>(),
        answer["choices"][0]["text"]
    );
    assert_eq!(scores["text_offset"][0], 0);
    assert_eq!(
        scores["top_logprobs"][0].as_object().map(|top| top.len()),
        Some(2)
    );
    let body = json!({"messages": conversation(), "logprobs": true, "top_logprobs": 3, "max_tokens": 4, "ignore_eos": true});
    let whole = json_of(server.post("/v1/chat/completions", body.to_string()).await).await;
    let content = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("a list");
    assert_eq!(content.len(), 4);
    for entry in content {
        assert_eq!(entry["top_logprobs"].as_array().map(Vec::len), Some(3));
        assert_eq!(
            entry["top_logprobs"][0]["token"], entry["token"],
            "greedy takes the likeliest"
        );
        let probability = entry["logprob"].as_f64().expect("a number").exp();
        assert!((0.0..=1.0).contains(&probability));
        assert!(entry["bytes"].is_array());
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_whole_and_streamed_agree() {
    let server = Server::start(Setup::default()).await;
    // the template's text is repeated up to its first stop token
    let body = |stream: bool| json!({"model": "parrot", "messages": conversation(), "max_completion_tokens": 64, "stream": stream, "n": 2, "stream_options": {"include_usage": true}});
    let whole = json_of(
        server
            .post("/v1/chat/completions", body(false).to_string())
            .await,
    )
    .await;
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["choices"][0]["message"]["role"], "assistant");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let said = whole["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    assert_eq!(said, "system\nBe kind.");
    let streamed = stream(&server, "/v1/chat/completions", body(true)).await;
    assert!(streamed.done, "[DONE] ends a stream");
    assert!(!streamed.comments.is_empty(), "a comment comes at once");
    let chunks = &streamed.chunks;
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk"
                && chunk["id"] == chunks[0]["id"])
    );
    for index in [0, 1] {
        assert_eq!(streamed.text(index), said);
        assert_eq!(streamed.reasons(index), ["stop"]);
        let first = chunks
            .iter()
            .find(|chunk| chunk["choices"][0]["index"] == index)
            .expect("a first chunk");
        assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    }
    let (usage, before) = chunks.split_last().expect("chunks");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"], whole["usage"]);
    assert!(usage["timings"].is_object());
    assert!(
        before
            .iter()
            .all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some())
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_streamed() {
    let server = Server::start(Setup::default()).await;
    let body = json!({"prompt": PROMPT, "max_tokens": 8, "stream": true, "echo": true});
    let streamed = stream(&server, "/v1/completions", body).await;
    let whole = complete(&server, json!({"max_tokens": 8, "echo": true})).await;
    assert_eq!(streamed.text(0), whole["choices"][0]["text"]);
    assert_eq!(streamed.reasons(0), ["length"]);
    let last = streamed.chunks.last().expect("chunks");
    assert_eq!(
        last["timings"]["predicted_n"], 8,
        "without a usage chunk the last one has the timings"
    );
    assert!(
        streamed
            .chunks
            .iter()
            .all(|chunk| chunk.get("usage").is_none())
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn small_endpoints() {
    let server = Server::start(Setup {
        server: ServerSettings {
            alias: Some("gpt/alias".into()),
            ..ServerSettings::default()
        },
        ..Setup::default()
    })
    .await;
    let models = json_of(server.get("/v1/models").await).await;
    assert_eq!(
        (&models["object"], &models["data"][0]["id"]),
        (&json!("list"), &json!("parrot"))
    );
    assert_eq!(
        json_of(server.get("/v1/models/gpt/alias").await).await["id"],
        "gpt/alias"
    );
    assert_eq!(server.get("/v1/models/other").await.status(), 404);
    assert_eq!(
        complete(&server, json!({"model": "gpt/alias"})).await["model"],
        "parrot"
    );

    let health = server.get("/health").await;
    assert_eq!(health.status(), 200);
    assert_eq!(json_of(health).await["status"], "ok");

    let tokens = json_of(
        server
            .post("/tokenize", json!({"content": PROMPT}).to_string())
            .await,
    )
    .await;
    let ids = server
        .text
        .tokenizer
        .encode(PROMPT, tidegate::token::Specials::Parse);
    assert_eq!(tokens["tokens"], json!(ids));
    assert_eq!(tokens["count"], ids.len());
    let text = json_of(
        server
            .post("/detokenize", json!({"tokens": ids}).to_string())
            .await,
    )
    .await;
    assert_eq!(text["content"], PROMPT);
    let plain = json!({"content": "<|im_end|>", "parse_special": false});
    assert_ne!(
        json_of(server.post("/tokenize", plain.to_string()).await).await["count"],
        1
    );
    let chat = json_of(
        server
            .post("/tokenize", json!({"messages": conversation()}).to_string())
            .await,
    )
    .await;
    assert!(
        chat["count"].as_u64().is_some_and(|count| count > 8),
        "{chat}"
    );

    let response = server
        .client
        .get(format!("{}/health", server.url))
        .header("x-request-id", "mine")
        .send()
        .await
        .expect("a response");
    assert_eq!(response.headers()["x-request-id"], "mine");
    assert!(!server.get("/health").await.headers()["x-request-id"].is_empty());

    let metrics = server.get("/metrics").await.text().await.expect("text");
    for name in [
        "tidegate_requests_total{endpoint=\"completion\",outcome=\"length\"}",
        "tidegate_queued ",
        "tidegate_slots 4",
        "tidegate_kv_pages ",
        "tidegate_engine_up 1",
        "tidegate_prompt_tokens_total ",
        "tidegate_generated_tokens_total ",
        "tidegate_ttft_seconds_bucket{le=\"0.5\"}",
        "tidegate_itl_seconds_bucket{le=\"0.15\"}",
        "tidegate_window_seconds_bucket",
    ] {
        assert!(metrics.contains(name), "{name} is missing in:\n{metrics}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_comes_apart_from_the_answer() {
    let setup = Setup {
        markup: Some(Markup::THINK),
        ..Setup::default()
    };
    let server = Server::start(setup).await;
    // the parrot repeats the head of the first message, its text, and stops where the message ends
    let messages = json!([{"role": "system", "content": "<think>two and two</think>four"}]);
    let body = |stream: bool| json!({"messages": messages, "max_tokens": 64, "stream": stream});
    let response = server
        .post("/v1/chat/completions", body(false).to_string())
        .await;
    let whole = json_of(response).await;
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["content"], "systemfour");
    assert_eq!(message["reasoning_content"], "two and two");
    let streamed = stream(&server, "/v1/chat/completions", body(true)).await;
    assert_eq!(streamed.text(0), "systemfour");
    let thoughts = streamed
        .chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["reasoning_content"].as_str());
    assert_eq!(thoughts.collect::<String>(), "two and two");
    // what is continued is text as it is
    let prompt = json!({"prompt": "<think>a</think>b", "max_tokens": 32, "ignore_eos": false});
    let answer = complete(&server, prompt).await;
    let text = answer["choices"][0]["text"].as_str().expect("text");
    assert!(text.contains("<think>a</think>b"), "{text}");
    server.stop().await;
}
