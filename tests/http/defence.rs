//! What keeps one client, or one web page, from doing harm to the others: bounds, time limits, headers.

use std::time::Duration;

use crate::{
    access::{ALICE, key, until},
    hostile::check,
    parrot::Parrot,
    server::{PATIENCE, PROMPT, Server, Setup},
};
use serde_json::json;
use tidegate::settings::{ServerSettings, cors::Cors, keys::KeyLimits};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const PAGE: &str = "http://localhost:3000";

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_at_once_are_shed_and_health_answers() {
    let (parrot, gate) = Parrot::new(4, 512).gated();
    let server = Server::start(Setup {
        parrot,
        server: ServerSettings {
            max_requests: 2,
            ..Setup::default().server
        },
        ..Setup::default()
    })
    .await;
    let body = json!({"prompt": PROMPT, "max_tokens": 8, "stream": true}).to_string();
    let first = server.post("/v1/completions", body.clone()).await;
    let second = server.post("/v1/completions", body.clone()).await;
    assert_eq!(
        (first.status().as_u16(), second.status().as_u16()),
        (200, 200)
    );
    for path in ["/v1/completions", "/tokenize", "/nowhere"] {
        let shed = server.post(path, body.clone()).await;
        let told = shed.headers()["retry-after"].to_str().expect("text");
        assert!(
            told.parse::<u64>().is_ok_and(|seconds| seconds > 0),
            "{told}"
        );
        check(&server, path, shed, 503, "overloaded").await;
    }
    assert_eq!(server.get("/health").await.status(), 200);
    assert_eq!(server.get("/metrics").await.status(), 200);
    drop(first);
    until("a place is free", || server.app.flights.count() == 1).await;
    assert_eq!(server.get("/v1/models").await.status(), 200);
    drop(gate);
    drop(second.text().await.expect("a whole stream"));
    until("all places are free", || server.app.flights.count() == 0).await;
    server.stop().await;
}

/// What comes back for these bytes, of which no more follow, until the server hangs up.
async fn unfinished(server: &Server, bytes: &[u8]) -> String {
    let exchange = async {
        let socket = TcpStream::connect(server.address()).await;
        let mut socket = socket.expect("a connection");
        socket.write_all(bytes).await.expect("sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("an answer");
        answer
    };
    let answer = tokio::time::timeout(PATIENCE, exchange).await;
    answer.expect("the server hangs up")
}

/// A server that waits for nobody.
async fn impatient() -> Server {
    Server::start(Setup {
        server: ServerSettings {
            receive_timeout: Duration::from_millis(20),
            ..Setup::default().server
        },
        ..Setup::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_requests_are_cut_off() {
    let server = impatient().await;
    for (what, bytes) in [
        ("half a line", &b"GET /hea"[..]),
        (
            "half a head",
            b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-",
        ),
        (
            "no body",
            b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n",
        ),
        (
            "half a body",
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"pro",
        ),
        (
            "half a chunk",
            b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nff\r\n{}",
        ),
    ] {
        let answer = unfinished(&server, bytes).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        assert!(head.starts_with("HTTP/1.1 408 "), "{what}: {answer}");
        let length = format!("content-length: {}", body.len());
        for line in [
            &length[..],
            "connection: close",
            "x-content-type-options: nosniff",
        ] {
            assert!(
                head.lines().any(|told| told == line),
                "{what}: {line}: {answer}"
            );
        }
        let error: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(
            error["error"]["code"], "request_timeout",
            "{what}: {answer}"
        );
    }
    // nothing was asked, so nothing is answered
    assert_eq!(unfinished(&server, b"").await, "");
    assert_eq!(server.app.flights.count(), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_byte_now_and_then_buys_no_time() {
    let server = impatient().await;
    for head in [
        "GET /health HTTP/1.1\r\nx: ",
        "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n",
    ] {
        let socket = TcpStream::connect(server.address()).await;
        let mut socket = socket.expect("a connection");
        socket.write_all(head.as_bytes()).await.expect("sent");
        let dripping = async {
            while socket.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let cut = tokio::time::timeout(PATIENCE, dripping).await;
        assert!(cut.is_ok(), "{head:?}: the server hangs up");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_has_the_same_headers() {
    let server = Server::start(Setup {
        server: ServerSettings {
            keys: vec![key("alice", ALICE, KeyLimits::default())],
            cors: Cors::Only(vec![PAGE.into()]),
            max_body_bytes: 1000,
            ..Setup::default().server
        },
        ..Setup::default()
    })
    .await;
    let stream = json!({"prompt": PROMPT, "max_tokens": 2, "stream": true}).to_string();
    let whole = json!({"prompt": PROMPT, "max_tokens": 2}).to_string();
    for (method, path, body, secret, status) in [
        ("GET", "/health", "", "", 200),
        ("GET", "/metrics", "", ALICE, 200),
        ("POST", "/v1/completions", &whole[..], ALICE, 200),
        ("POST", "/v1/completions", &stream, ALICE, 200),
        ("POST", "/v1/completions", "{", ALICE, 400),
        ("POST", "/v1/completions", &"x".repeat(2000), ALICE, 413),
        ("POST", "/v1/completions", &whole, "wrong", 401),
        ("GET", "/nowhere", "", ALICE, 404),
        ("GET", "/tokenize", "", ALICE, 405),
        ("OPTIONS", "/v1/completions", "", "", 200),
    ] {
        let what = format!("{method} {path} {body}");
        let method = method.parse().expect("a method");
        let request = server
            .client
            .request(method, format!("{}{path}", server.url));
        let request = request.bearer_auth(secret).body(body.to_owned()).send();
        let answer = request.await.expect("a response");
        assert_eq!(answer.status(), status, "{what}");
        let headers = answer.headers();
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            (
                "content-security-policy",
                "default-src 'none'; frame-ancestors 'none'",
            ),
        ] {
            assert_eq!(headers[name], value, "{what}");
        }
        let streamed = headers
            .get("content-type")
            .is_some_and(|kind| kind == "text/event-stream");
        let expected = if streamed { "no-cache" } else { "no-store" };
        assert_eq!(headers["cache-control"], expected, "{what}");
        assert!(headers.contains_key("x-request-id"), "{what}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_kept_away_unless_named() {
    for (cors, origin, allowed) in [
        (Cors::Off, PAGE, None),
        (
            Cors::Only(vec![PAGE.into(), "tauri://localhost".into()]),
            PAGE,
            Some(PAGE),
        ),
        (Cors::Only(vec![PAGE.into()]), "http://evil.example", None),
        (Cors::Any, "http://any.example", Some("*")),
    ] {
        let server = Server::start(Setup {
            server: ServerSettings {
                keys: vec![key("alice", ALICE, KeyLimits::default())],
                cors: cors.clone(),
                ..Setup::default().server
            },
            ..Setup::default()
        })
        .await;
        let told = |answer: &reqwest::Response, name: &str| {
            let value = answer.headers().get(name)?;
            Some(value.to_str().expect("text").to_owned())
        };
        // browsers ask first, without a key
        let asked = server
            .client
            .request(
                reqwest::Method::OPTIONS,
                format!("{}/v1/completions", server.url),
            )
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header(
                "access-control-request-headers",
                "authorization,x-stainless-os",
            )
            .send()
            .await
            .expect("a response");
        let origins = told(&asked, "access-control-allow-origin");
        assert_eq!(origins.as_deref(), allowed, "{cors:?} {origin}");
        if allowed.is_some() {
            assert_eq!(asked.status(), 200, "{cors:?}");
            let headers = told(&asked, "access-control-allow-headers");
            assert_eq!(headers.as_deref(), Some("authorization,x-stainless-os"));
        }
        let refused = server.client.get(format!("{}/v1/models", server.url));
        let refused = refused
            .header("origin", origin)
            .send()
            .await
            .expect("a response");
        assert_eq!(refused.status(), 401, "a page needs a key like anybody");
        let answer = server.client.get(format!("{}/v1/models", server.url));
        let answer = answer.header("origin", origin).bearer_auth(ALICE).send();
        let answer = answer.await.expect("a response");
        let origins = told(&answer, "access-control-allow-origin");
        assert_eq!(
            (answer.status().as_u16(), origins.as_deref()),
            (200, allowed),
            "{cors:?}"
        );
        let exposed = told(&answer, "access-control-expose-headers");
        let exposed = exposed.unwrap_or_default();
        assert_eq!(
            exposed.contains("x-request-id"),
            cors != Cors::Off,
            "{exposed}"
        );
        server.stop().await;
    }
}
