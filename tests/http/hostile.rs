//! Requests that mean harm or make no sense: each gets its status and OpenAI's error object, and the server goes on serving.

use crate::{
    reply::events,
    server::{PATIENCE, Server, Setup},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A response with this status and code, whose error object is complete.
pub(crate) async fn check(
    server: &Server,
    what: &str,
    response: reqwest::Response,
    status: u16,
    code: &str,
) -> Value {
    let got = response.status().as_u16();
    let text = response.text().await.expect("a body");
    let body: Value =
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{what}: not JSON: {text}"));
    assert_eq!(
        (got, body["error"]["code"].as_str()),
        (status, Some(code)),
        "{what}: {text}"
    );
    let error = body["error"]
        .as_object()
        .unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|message| !message.is_empty()),
        "{what}: {text}"
    );
    let kind = if status < 500 {
        "invalid_request_error"
    } else {
        "server_error"
    };
    assert_eq!(error["type"], kind, "{what}");
    assert!(error.contains_key("param"), "{what}");
    assert_eq!(
        server.get("/health").await.status(),
        200,
        "{what}: the server goes on"
    );
    body["error"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies() {
    let server = Server::start(Setup::default()).await;
    let deep = "[".repeat(1 << 20);
    let messages =
        |content: &str| json!({"messages": [{"role": "user", "content": content}]}).to_string();
    for (what, path, body, status, code) in [
        ("nothing", "/v1/chat/completions", String::new(), 400, "invalid_json"),
        ("no JSON", "/v1/chat/completions", "hello".into(), 400, "invalid_json"),
        ("half of it", "/v1/chat/completions", "{\"messages\": [".into(), 400, "invalid_json"),
        ("no number", "/v1/chat/completions", "{\"temperature\": NaN}".into(), 400, "invalid_json"),
        ("depth", "/v1/chat/completions", format!("{{\"messages\": {deep}"), 400, "invalid_json"),
        ("depth in an unknown field", "/v1/chat/completions", format!("{{\"x\": {deep}"), 400, "invalid_json"),
        ("a list", "/v1/chat/completions", "[]".into(), 400, "invalid_value"),
        ("no messages", "/v1/chat/completions", "{}".into(), 400, "invalid_value"),
        ("empty messages", "/v1/chat/completions", "{\"messages\": []}".into(), 400, "invalid_value"),
        ("huge n", "/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}], \"n\": 4294967295}".into(), 400, "invalid_value"),
        ("negative", "/v1/completions", "{\"prompt\": \"a\", \"max_tokens\": -1}".into(), 400, "invalid_value"),
        ("unknown model", "/v1/chat/completions", json!({"model": "gpt-9", "messages": [{"role": "user", "content": "hi"}]}).to_string(), 404, "model_not_found"),
        ("the template refuses", "/v1/chat/completions", json!({"messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "late"}]}).to_string(), 400, "template_error"),
        ("empty prompt", "/v1/completions", "{\"prompt\": \"\"}".into(), 400, "empty_prompt"),
        ("empty ids", "/v1/completions", "{\"prompt\": [[]]}".into(), 400, "empty_prompt"),
        ("id outside", "/v1/completions", "{\"prompt\": [99999999]}".into(), 400, "unknown_token"),
        ("bias outside", "/v1/completions", "{\"prompt\": \"a\", \"logit_bias\": {\"99999999\": 1}}".into(), 400, "unknown_token"),
        ("10 MB prompt", "/v1/chat/completions", messages(&"so it goes. ".repeat(10 << 20 >> 4)), 400, "context_length_exceeded"),
        ("body too long", "/v1/chat/completions", messages(&"a".repeat(17 << 20)), 413, "body_too_large"),
        ("tokenize nothing", "/tokenize", "{}".into(), 400, "invalid_value"),
        ("tokenize both", "/tokenize", "{\"content\": \"a\", \"messages\": []}".into(), 400, "invalid_value"),
        ("detokenize nothing", "/detokenize", "{}".into(), 400, "invalid_value"),
        ("detokenize outside", "/detokenize", "{\"tokens\": [1, 99999999]}".into(), 400, "invalid_value"),
        ("no such path", "/v1/embeddings", "{}".into(), 404, "not_found"),
        ("wrong method", "/health", "{}".into(), 405, "method_not_allowed"),
    ] {
        let response = server.post(path, body).await;
        check(&server, what, response, status, code).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seeds_of_the_fuzzer() {
    let server = Server::start(Setup::default()).await;
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/seeds/http_body");
    let mut count = 0;
    for seed in std::fs::read_dir(seeds).expect("seeds") {
        let path = seed.expect("a file").path();
        let body = std::fs::read(&path).expect("a seed");
        for endpoint in [
            "/v1/chat/completions",
            "/v1/completions",
            "/tokenize",
            "/detokenize",
        ] {
            let response = server.post(endpoint, body.clone()).await;
            assert!(
                response.status().as_u16() < 500,
                "{} {endpoint}: {}",
                path.display(),
                response.status()
            );
            drop(response.text().await.expect("a body"));
        }
        count += 1;
    }
    assert!(count >= 8, "{count} seeds");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_beyond_the_context_names_both_numbers() {
    let server = Server::start(Setup::default()).await;
    let ids = vec![5; 600];
    let response = server
        .post(
            "/v1/completions",
            json!({"prompt": ids, "stream": true}).to_string(),
        )
        .await;
    let error = check(
        &server,
        "512 tokens",
        response,
        400,
        "context_length_exceeded",
    )
    .await;
    let message = error["message"].as_str().expect("a message");
    assert!(
        message.contains("600") && message.contains("512"),
        "{message}"
    );
    assert_eq!(error["param"], "prompt");
    // the whole context but for one token leaves room for one
    let fits = server
        .post(
            "/v1/completions",
            json!({"prompt": vec![5; 511], "max_tokens": 9}).to_string(),
        )
        .await;
    let body: Value = serde_json::from_str(&fits.text().await.expect("a body")).expect("JSON");
    assert_eq!(
        (
            &body["usage"]["completion_tokens"],
            &body["choices"][0]["finish_reason"]
        ),
        (&json!(1), &json!("length"))
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prompt_does_not_delay_health() {
    let server = Server::start(Setup::default()).await;
    let body = json!({"prompt": "many words, ".repeat(10 << 20 >> 4)}).to_string();
    let long = server.post("/v1/completions", body);
    let (status, answered) = {
        tokio::pin!(long);
        let mut answered = 0;
        loop {
            tokio::select! {
                biased;
                response = &mut long => break (response.status().as_u16(), answered),
                health = server.get("/health") => {
                    assert_eq!(health.status(), 200);
                    answered += 1;
                }
            }
        }
    };
    assert_eq!(status, 400);
    assert!(
        answered >= 3,
        "health was answered {answered} times meanwhile"
    );
    server.stop().await;
}

/// Sends bytes as they are and reads what comes back until the server hangs up.
async fn raw(server: &Server, bytes: &[u8]) -> String {
    let exchange = async {
        let mut socket = TcpStream::connect(server.address())
            .await
            .expect("a connection");
        let _ = socket.write_all(bytes).await; // the server may hang up in the middle of it
        let _ = socket.shutdown().await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::time::timeout(PATIENCE, exchange)
        .await
        .expect("the server hangs up")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_hardly_http() {
    let server = Server::start(Setup::default()).await;
    let many_headers = format!("GET /health HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(10_000));
    let long_header = format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    for (what, bytes, statuses) in [
        (
            "noise",
            &b"\x00\x01\x02\xff\xfe garbage\r\n\r\n"[..],
            &["400"][..],
        ),
        ("another protocol", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", &["400"]),
        (
            "garbage in a header",
            b"GET /health HTTP/1.1\r\nx: \x00\x01\r\n\r\n",
            &["400"],
        ),
        ("too many headers", many_headers.as_bytes(), &["431", "400"]),
        ("a long header", long_header.as_bytes(), &["431", "400"]),
        (
            "a length that is no number",
            b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: many\r\n\r\n",
            &["400"],
        ),
        (
            "a length beyond all bounds",
            b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n{}",
            &["413"],
        ),
        (
            "a body that ends early",
            b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{}",
            &["400", ""],
        ),
        (
            "chunks that are none",
            b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            &["400"],
        ),
    ] {
        let answer = raw(&server, bytes).await;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(statuses.contains(&status), "{what}: {answer}");
        assert_eq!(
            server.get("/health").await.status(),
            200,
            "{what}: the server goes on"
        );
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_the_middle() {
    let server = Server::start(Setup::default()).await;
    let body =
        json!({"prompt": "on and on ", "max_tokens": 500, "stream": true, "ignore_eos": true})
            .to_string();
    for _ in 0..20 {
        let mut socket = TcpStream::connect(server.address())
            .await
            .expect("a connection");
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).await.expect("sent");
        socket.write_all(body.as_bytes()).await.expect("sent");
        let mut first = [0; 16];
        socket.read_exact(&mut first).await.expect("a head");
        drop(socket);
    }
    server
        .until("every slot is free again", |stats| {
            stats.slots_busy == 0 && stats.queued == 0
        })
        .await;
    let after = server
        .post(
            "/v1/completions",
            json!({"prompt": "still here", "max_tokens": 3, "stream": true}).to_string(),
        )
        .await;
    assert!(events(&after.text().await.expect("a stream")).done);
    server.stop().await;
}
