//! Who is let in, and how far: API keys and their limits.

use std::{num::NonZeroU32, sync::Arc};

use crate::{
    hostile::check,
    parrot::Parrot,
    reply::{events, json_of},
    server::{PATIENCE, PROMPT, Server, Setup},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tidegate::{
    http::keys::Key,
    settings::{
        ServerSettings,
        keys::{KeyLimits, KeySettings},
    },
};

pub(crate) const ALICE: &str = "tg-alices-own";
pub(crate) const BOB: &str = "tg-bobs-own";

/// Somebody's key.
pub(crate) fn key(name: &str, secret: &str, limits: KeyLimits) -> KeySettings {
    KeySettings {
        name: name.into(),
        sha256: Sha256::digest(secret).into(),
        limits,
    }
}

/// A server for Alice, who has these limits, and Bob, who has none.
fn shared(limits: KeyLimits) -> Setup {
    Setup {
        server: ServerSettings {
            keys: vec![
                key("alice", ALICE, limits),
                key("bob", BOB, KeyLimits::default()),
            ],
            ..Setup::default().server
        },
        ..Setup::default()
    }
}

fn at_most(limit: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(limit)
}

fn holder(server: &Server, secret: &str) -> Arc<Key> {
    Arc::clone(server.app.keys.find(secret.as_bytes()).expect("a key"))
}

/// A completion asked for with a key.
async fn ask(server: &Server, secret: &str, fields: Value) -> reqwest::Response {
    let mut body = json!({"prompt": PROMPT, "max_tokens": 4});
    body.as_object_mut()
        .expect("an object")
        .extend(fields.as_object().expect("an object").clone());
    let request = server
        .client
        .post(format!("{}/v1/completions", server.url))
        .bearer_auth(secret)
        .body(body.to_string());
    request.send().await.expect("a response")
}

/// The whole seconds that a refused client is told to wait.
fn retry_after(response: &reqwest::Response) -> u64 {
    let told = response.headers()["retry-after"].to_str().expect("text");
    told.parse().expect("whole seconds")
}

fn number(response: &reqwest::Response, header: &str) -> u64 {
    let value = response.headers()[header].to_str().expect("text");
    value.parse().expect("a number")
}

/// Looks until it holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let looking = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, looking).await;
    assert!(found.is_ok(), "never: {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_but_health_needs_a_key() {
    let server = Server::start(shared(KeyLimits::default())).await;
    let close = &format!("{ALICE}x")[..];
    for (method, path) in [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/parrot"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/metrics"),
        ("GET", "/v1/completions"),
        ("POST", "/metrics"),
        ("OPTIONS", "/v1/completions"),
        ("GET", "/nowhere"),
        ("GET", "/"),
    ] {
        for (header, value) in [
            ("x-nothing", ALICE),
            ("authorization", "Bearer tg-wrong"),
            ("authorization", "Bearer "),
            ("authorization", "Basic dGc6dGc="),
            ("authorization", ALICE),
            ("x-api-key", close),
            ("x-api-key", ""),
        ] {
            let what = format!("{method} {path} {header}: {value}");
            let method = method.parse().expect("a method");
            let url = format!("{}{path}", server.url);
            let body = "x".repeat(100_000); // refused without being read into memory, yet heard to its end
            let request = server.client.request(method, url).header(header, value);
            let response = request.body(body).send().await.expect("a response");
            assert_eq!(response.headers()["www-authenticate"], "Bearer", "{what}");
            assert!(response.headers().contains_key("x-request-id"), "{what}");
            let error = check(&server, &what, response, 401, "invalid_api_key").await;
            assert!(!error.to_string().contains("tg-"), "{what}: {error}");
        }
    }
    for (header, value) in [
        ("authorization", format!("Bearer {ALICE}")),
        ("authorization", format!("bearer  {BOB}")),
        ("x-api-key", ALICE.into()),
    ] {
        let models = server.client.get(format!("{}/v1/models", server.url));
        let response = models.header(header, value).send().await;
        assert_eq!(response.expect("a response").status(), 200, "{header}");
    }
    assert_eq!(server.get("/health").await.status(), 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_keys_any_key_will_do() {
    let server = Server::start(Setup::default()).await;
    let response = ask(&server, "anything", json!({})).await;
    assert_eq!(response.status(), 200);
    let limits = response.headers().keys();
    assert_eq!(
        limits
            .filter(|name| name.as_str().starts_with("x-ratelimit"))
            .count(),
        0
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded_and_free_when_they_end_or_their_client_goes() {
    let (parrot, gate) = Parrot::new(4, 1 << 16).gated();
    let limits = KeyLimits {
        streams: at_most(2),
        ..KeyLimits::default()
    };
    let server = Server::start(Setup {
        parrot,
        ..shared(limits)
    })
    .await;
    let alice = holder(&server, ALICE);
    let endless = json!({"max_tokens": 50_000, "stream": true, "n": 2});
    let stream = ask(&server, ALICE, endless).await;
    assert_eq!((stream.status().as_u16(), alice.running()), (200, 2));
    let second = ask(&server, ALICE, json!({})).await;
    assert!(retry_after(&second) > 0);
    check(
        &server,
        "a third answer",
        second,
        429,
        "rate_limit_exceeded",
    )
    .await;
    let never = ask(&server, ALICE, json!({"prompt": [PROMPT, PROMPT, PROMPT]})).await;
    let error = check(&server, "more than ever", never, 400, "invalid_value").await;
    assert_eq!(error["param"], "n");
    // Bob has no such limit
    let bobs = ask(&server, BOB, json!({"stream": true, "n": 3})).await;
    assert_eq!((bobs.status().as_u16(), alice.running()), (200, 2));
    drop(bobs);
    // one who goes while a stream runs
    drop(stream);
    until("a dropped stream's places are free", || {
        alice.running() == 0
    })
    .await;
    // one who goes while a whole answer is computed
    let request = server.client.post(format!("{}/v1/completions", server.url));
    let request = request
        .bearer_auth(ALICE)
        .body(json!({"prompt": PROMPT, "max_tokens": 50_000}).to_string());
    let whole = tokio::spawn(request.send());
    until("it runs", || alice.running() == 1).await;
    whole.abort();
    until("a dropped answer's place is free", || alice.running() == 0).await;
    // those who stay to the end
    drop(gate);
    for stream in [true, false] {
        let answer = ask(&server, ALICE, json!({"n": 2, "stream": stream})).await;
        assert_eq!(answer.status(), 200);
        let text = answer.text().await.expect("an answer");
        assert!(!stream || events(&text).done, "{text}");
        until("its places are free", || alice.running() == 0).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_a_minute() {
    let server = Server::start(shared(KeyLimits {
        requests_per_minute: at_most(2),
        ..KeyLimits::default()
    }))
    .await;
    for left in [1, 0] {
        let answer = ask(&server, ALICE, json!({})).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(number(&answer, "x-ratelimit-limit-requests"), 2);
        assert_eq!(number(&answer, "x-ratelimit-remaining-requests"), left);
        assert!(!answer.headers().contains_key("x-ratelimit-limit-tokens"));
    }
    let refused = ask(&server, ALICE, json!({"prompt": "x".repeat(1 << 20)})).await;
    assert!((1..=30).contains(&retry_after(&refused)), "{refused:?}");
    assert_eq!(number(&refused, "x-ratelimit-remaining-requests"), 0);
    check(&server, "a third", refused, 429, "rate_limit_exceeded").await;
    // what is not metered is answered, and so is Bob
    let models = server.client.get(format!("{}/v1/models", server.url));
    let models = models.bearer_auth(ALICE).send().await;
    assert_eq!(models.expect("a response").status(), 200);
    assert_eq!(ask(&server, BOB, json!({})).await.status(), 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_a_minute_are_owed_and_made_up_for() {
    const PER_MINUTE: u32 = 60_000; // one a millisecond
    let server = Server::start(shared(KeyLimits {
        tokens_per_minute: at_most(PER_MINUTE),
        ..KeyLimits::default()
    }))
    .await;
    let alice = holder(&server, ALICE);
    let answer = ask(&server, ALICE, json!({"max_tokens": 200})).await;
    assert_eq!(
        number(&answer, "x-ratelimit-limit-tokens"),
        u64::from(PER_MINUTE)
    );
    assert!(number(&answer, "x-ratelimit-remaining-tokens") <= u64::from(PER_MINUTE));
    assert_eq!(json_of(answer).await["usage"]["completion_tokens"], 200);
    alice.charge_prompt(11 * PER_MINUTE as usize); // ten minutes' worth more than there is
    let refused = ask(&server, ALICE, json!({})).await;
    let wait = retry_after(&refused);
    assert!((300..=601).contains(&wait), "the real wait: {wait}");
    assert_eq!(number(&refused, "x-ratelimit-remaining-tokens"), 0);
    let error = check(&server, "in debt", refused, 429, "rate_limit_exceeded").await;
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|m| m.contains("60000 tokens a minute")),
        "{error}"
    );
    assert_eq!(ask(&server, BOB, json!({})).await.status(), 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_debt_paid_lets_in_again() {
    let server = Server::start(shared(KeyLimits {
        tokens_per_minute: at_most(600_000), // ten a millisecond
        ..KeyLimits::default()
    }))
    .await;
    holder(&server, ALICE).charge_prompt(600_000 + 10_000); // a second's worth too many
    let paying = async {
        let mut refused = 0;
        while ask(&server, ALICE, json!({})).await.status() == 429 {
            refused += 1;
        }
        refused
    };
    let refused = tokio::time::timeout(PATIENCE, paying).await;
    assert!(refused.expect("paid at last") > 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answers_own_tokens_are_charged() {
    let server = Server::start(shared(KeyLimits {
        tokens_per_minute: at_most(60),
        ..KeyLimits::default()
    }))
    .await;
    let answer = ask(&server, ALICE, json!({"max_tokens": 400, "stream": true})).await;
    assert_eq!(answer.status(), 200);
    let text = answer.text().await.expect("a stream");
    assert_eq!(
        events(&text).reasons(0),
        ["length"],
        "what has begun is not cut"
    );
    let refused = ask(&server, ALICE, json!({})).await;
    assert!(retry_after(&refused) > 200, "{refused:?}");
    check(&server, "overdrawn", refused, 429, "rate_limit_exceeded").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_name_keys() {
    let setup = Setup {
        server: ServerSettings {
            keys: vec![key(
                "carol",
                "tg-carols-own",
                KeyLimits {
                    requests_per_minute: at_most(1),
                    ..KeyLimits::default()
                },
            )],
            ..Setup::default().server
        },
        ..Setup::default()
    };
    let server = Server::start(setup).await;
    let answer = json_of(ask(&server, "tg-carols-own", json!({})).await).await;
    assert_eq!(ask(&server, "tg-carols-own", json!({})).await.status(), 429);
    let scrape = server.client.get(format!("{}/metrics", server.url));
    let scrape = scrape.bearer_auth("tg-carols-own").send().await;
    let text = scrape.expect("a response").text().await.expect("text");
    let prompt = &answer["usage"]["prompt_tokens"];
    for line in [
        "tidegate_key_requests_total{key=\"carol\",outcome=\"length\"} 1",
        "tidegate_key_refused_total{key=\"carol\",limit=\"requests\"} 1",
        "tidegate_key_tokens_total{key=\"carol\",kind=\"generated\"} 4",
        &format!("tidegate_key_tokens_total{{key=\"carol\",kind=\"prompt\"}} {prompt}"),
        "tidegate_key_streams{key=\"carol\"} 0",
    ] {
        assert!(
            text.lines().any(|told| told == line),
            "{line} is missing in: {text}"
        );
    }
    assert!(!text.contains("tg-"), "{text}");
    server.stop().await;
}
