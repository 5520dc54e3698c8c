//! What becomes of requests when places are taken, clients leave or stall, the engine fails, and the server ends.

use crate::{
    parrot::Parrot,
    reply::{events, json_of},
    server::{PATIENCE, PROMPT, Server, Setup, complete, tales},
};
use futures::StreamExt;
use reqwest::header::HeaderValue;
use serde_json::json;
use std::{sync::mpsc::Sender, time::Duration};
use tidegate::{engine::EngineSettings, settings::ServerSettings};

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_a_503_with_retry_after() {
    let (parrot, permits) = Parrot::new(1, 512).gated();
    let engine = EngineSettings {
        queue: 1,
        ..EngineSettings::default()
    };
    let server = Server::start(Setup {
        parrot,
        engine,
        ..Setup::default()
    })
    .await;
    let body = json!({"prompt": PROMPT, "max_tokens": 4}).to_string();
    let first = server.post("/v1/completions", body.clone());
    let second = server.post("/v1/completions", body.clone());
    let (first, second, third) = futures::join!(first, second, async {
        server
            .until("one runs, one waits", |stats| {
                stats.slots_busy == 1 && stats.queued == 1
            })
            .await;
        let third = server.post("/v1/completions", body.clone()).await;
        drop(permits);
        third
    });
    assert_eq!(
        (
            first.status().as_u16(),
            second.status().as_u16(),
            third.status().as_u16()
        ),
        (200, 200, 503)
    );
    assert!(third.headers().contains_key("retry-after"));
    assert_eq!(json_of(third).await["error"]["code"], "queue_full");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_frees_its_slot() {
    let (parrot, permits) = Parrot::new(1, 1 << 20).gated();
    const ENDLESS: usize = 1_000_000;
    let server = Server::start(Setup {
        parrot,
        ..Setup::default()
    })
    .await;
    let body = |stream: bool| {
        json!({"prompt": PROMPT, "max_tokens": ENDLESS, "stream": stream}).to_string()
    };
    for streamed in [true, false] {
        let request = server
            .client
            .post(format!("{}/v1/completions", server.url))
            .body(body(streamed));
        let running = tokio::spawn(request.send());
        server.until("it runs", |stats| stats.slots_busy == 1).await;
        let waiting = server
            .client
            .post(format!("{}/v1/completions", server.url))
            .body(body(streamed));
        let waiting = tokio::spawn(waiting.send());
        server
            .until("another one waits", |stats| stats.queued == 1)
            .await;
        waiting.abort();
        drop(waiting.await);
        server
            .until("the waiting one is forgotten", |stats| {
                let _ = permits.send(()); // the engine looks up between layers
                stats.queued == 0
            })
            .await;
        running.abort();
        drop(running.await);
        server
            .until("the running one is freed", |stats| {
                let _ = permits.send(());
                stats.slots_busy == 0
            })
            .await;
    }
    let generated = server.engine.stats().generated_tokens as usize;
    assert!(generated < ENDLESS, "nobody waited for its end");
    drop(permits);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_parks_only_himself() {
    let server = Server::start(Setup {
        markup: None,
        parrot: Parrot::new(2, 16384),
        ..Setup::default()
    })
    .await;
    let body =
        json!({"prompt": PROMPT, "max_tokens": 16000, "stream": true, "logprobs": 20}).to_string();
    let slow = server.post("/v1/completions", body).await; // the head is read, the body is not
    let quick = complete(&server, json!({"max_tokens": 64})).await;
    assert_eq!(quick["usage"]["completion_tokens"], 64);
    // with socket buffers and outbox full, the sequence asks for no more rows
    let mut before = 0;
    loop {
        let now = json_of(server.get("/health").await).await;
        assert_eq!(now["slots_busy"], 1);
        let generated = server.engine.stats().generated_tokens;
        if generated == before && server.engine.health() == tidegate::engine::Health::Idle {
            break;
        }
        before = generated;
    }
    assert!(before < 16000, "the slow reader's sequence is parked");
    let text = slow
        .text()
        .await
        .expect("a stream that goes on when it is read");
    assert_eq!(events(&text).reasons(0), ["length"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_tells_of_a_stuck_engine() {
    let (parrot, permits) = Parrot::new(1, 512).gated();
    let engine = EngineSettings {
        stuck_after: Duration::from_millis(1),
        ..EngineSettings::default()
    };
    let server = Server::start(Setup {
        parrot,
        engine,
        ..Setup::default()
    })
    .await;
    let request = server
        .client
        .post(format!("{}/v1/completions", server.url))
        .body(json!({"prompt": PROMPT}).to_string());
    let running = tokio::spawn(request.send());
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let told = loop {
        let health = server.get("/health").await;
        if health.status() == 503 {
            break json_of(health).await;
        }
        assert!(tokio::time::Instant::now() < deadline, "health never tells");
    };
    assert_eq!(told["status"], "stuck");
    assert!(
        server
            .get("/metrics")
            .await
            .text()
            .await
            .expect("text")
            .contains("tidegate_engine_up 0")
    );
    drop(permits);
    assert_eq!(
        running
            .await
            .expect("no panic")
            .expect("a response")
            .status(),
        200
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_device_is_told_to_everybody() {
    let loss = tales()
        .tokenizer
        .encode("fox", tidegate::token::Specials::Plain);
    let parrot = Parrot::default().lost_by(*loss.last().expect("a token"));
    let server = Server::start(Setup {
        parrot,
        ..Setup::default()
    })
    .await;
    let ask = |stream: bool| json!({"prompt": [loss], "stream": stream}).to_string();
    let streamed = events(
        &server
            .post("/v1/completions", ask(true))
            .await
            .text()
            .await
            .expect("a stream that ends"),
    );
    let error = &streamed.chunks.last().expect("an event")["error"];
    assert_eq!(error["code"], "engine_stopped", "{streamed:?}");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|message| message.contains("the parrot has flown")),
        "{error}"
    );
    let after = server.post("/v1/completions", ask(false)).await;
    assert_eq!(after.status(), 503);
    let health = server.get("/health").await;
    assert_eq!(
        (
            health.status().as_u16(),
            json_of(health).await["status"].clone()
        ),
        (503, json!("stopped"))
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn not_a_number_fails_one_request_only() {
    let poison = tales()
        .tokenizer
        .encode("fox", tidegate::token::Specials::Plain);
    let parrot = Parrot::default().poisoned_by(*poison.last().expect("a token"));
    let server = Server::start(Setup {
        parrot,
        ..Setup::default()
    })
    .await;
    let poisoned = server
        .post("/v1/completions", json!({"prompt": [poison]}).to_string())
        .await;
    assert_eq!(
        (
            poisoned.status().as_u16(),
            json_of(poisoned).await["error"]["code"].clone()
        ),
        (500, json!("not_finite"))
    );
    assert_eq!(
        complete(&server, json!({"max_tokens": 4})).await["usage"]["completion_tokens"],
        4
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_lets_running_answers_finish() {
    let (parrot, permits) = Parrot::new(1, 512).gated();
    let mut server = Server::start(Setup {
        parrot,
        ..Setup::default()
    })
    .await;
    let body = json!({"prompt": PROMPT, "max_tokens": 8, "stream": true}).to_string();
    let running = server.post("/v1/completions", body).await;
    server.ask_to_stop();
    let told = async {
        loop {
            let health = server.get("/health").await;
            if health.status() == 503 {
                return json_of(health).await;
            }
        }
    };
    let told = tokio::time::timeout(PATIENCE, told).await.expect("told");
    assert_eq!(told["status"], "draining");
    let refused = server.post("/v1/completions", "{}").await;
    assert_eq!(
        (
            refused.status().as_u16(),
            refused.headers()["connection"].clone(),
            json_of(refused).await["error"]["code"].clone()
        ),
        (
            503,
            HeaderValue::from_static("close"),
            json!("shutting_down")
        )
    );
    drop(permits);
    let finished = events(&running.text().await.expect("a whole stream"));
    assert!(finished.done);
    assert_eq!(finished.reasons(0), ["length"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_cuts_answers_after_the_grace_period() {
    let (parrot, permits) = Parrot::new(1, 512).gated();
    let mut server = Server::start(Setup {
        parrot,
        server: ServerSettings {
            grace: Duration::ZERO,
            ..ServerSettings::default()
        },
        ..Setup::default()
    })
    .await;
    let body = json!({"prompt": PROMPT, "max_tokens": 8, "stream": true}).to_string();
    let running = server.post("/v1/completions", body).await;
    server.ask_to_stop();
    let cut = events(&running.text().await.expect("a clean end"));
    assert_eq!(
        cut.chunks.last().expect("last words")["error"]["code"],
        "shutting_down"
    );
    drop(permits);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn comments_come_before_the_first_token() {
    let (parrot, permits) = Parrot::new(1, 512).gated();
    let server = Server::start(Setup {
        parrot,
        ..Setup::default()
    })
    .await;
    let body = json!({"prompt": PROMPT, "max_tokens": 2, "stream": true}).to_string();
    let mut running = server.post("/v1/completions", body).await.bytes_stream();
    let first = running.next().await.expect("something").expect("bytes");
    assert!(first.starts_with(b":"), "{first:?}");
    drop(permits);
    while running.next().await.is_some() {}
    server.stop().await;
}

/// Lets the engine compute a layer now and then, forever.
async fn step_by_step(permits: &Sender<()>) {
    loop {
        let _ = permits.send(());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn comments_tell_the_place_in_the_queue() {
    let (parrot, permits) = Parrot::new(1, 512).gated();
    let server = Server::start(Setup {
        parrot,
        ..Setup::default()
    })
    .await;
    let body = json!({"prompt": PROMPT, "max_tokens": 400, "stream": true}).to_string();
    let stepping = step_by_step(&permits);
    let asking = async {
        let mut answers = Vec::new();
        for waiting in 0..3 {
            let answer = server.post("/v1/completions", body.clone()).await;
            let (mut answer, mut told) = (answer.bytes_stream(), String::new());
            let place = match waiting {
                0 => "accepted".into(), // at once
                waiting => format!("queue position {waiting}"),
            };
            while !told.contains(&place) {
                let more = answer.next().await.expect("more").expect("bytes");
                told += std::str::from_utf8(&more).expect("UTF-8");
            }
            answers.push((answer, told));
        }
        answers
    };
    let answers = tokio::select! {
        answers = asking => answers,
        () = stepping => unreachable!(),
    };
    drop(permits);
    for (mut answer, mut told) in answers {
        while let Some(more) = answer.next().await {
            told += std::str::from_utf8(&more.expect("bytes")).expect("UTF-8");
        }
        assert!(events(&told).done, "{told}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_an_answer() {
    let (parrot, permits) = Parrot::new(1, 512).gated();
    let server = Server::start(Setup {
        parrot,
        ..Setup::default()
    })
    .await;
    let body = |stream: bool, ms: usize| {
        json!({"prompt": PROMPT, "max_tokens": 400, "stream": stream, "deadline_ms": ms})
            .to_string()
    };
    let stepping = step_by_step(&permits);
    let asking = async {
        let whole = server.post("/v1/completions", body(false, 30)).await;
        assert_eq!(whole.status(), 504);
        assert_eq!(json_of(whole).await["error"]["code"], "deadline_exceeded");
        let streamed = server.post("/v1/completions", body(true, 30)).await;
        let text = streamed.text().await.expect("a stream that ends");
        let last = events(&text).chunks.pop().expect("an event");
        assert_eq!(last["error"]["code"], "deadline_exceeded");
    };
    tokio::select! {
        () = asking => {}
        () = stepping => unreachable!(),
    }
    drop(permits);
    let in_time = server
        .post("/v1/completions", body(false, 86_400_000))
        .await;
    assert_eq!(in_time.status(), 200);
    let wrong = server.post("/v1/completions", body(false, 0)).await;
    assert_eq!(json_of(wrong).await["error"]["param"], "deadline_ms");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_set_deadlines_for_all() {
    let (parrot, permits) = Parrot::new(1, 512).gated();
    let server = Server::start(Setup {
        parrot,
        server: ServerSettings {
            deadline: Some(Duration::from_millis(20)),
            ..ServerSettings::default()
        },
        ..Setup::default()
    })
    .await;
    let body = json!({"prompt": PROMPT, "max_tokens": 400, "deadline_ms": 60_000});
    let late = tokio::select! {
        late = server.post("/v1/completions", body.to_string()) => late,
        () = step_by_step(&permits) => unreachable!(),
    };
    assert_eq!(late.status(), 504);
    drop(permits);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_reader_loses_slot_and_connection() {
    let idle_timeout = Duration::from_millis(50);
    let server = Server::start(Setup {
        markup: None,
        text: None,
        parrot: Parrot::new(1, 16384),
        engine: EngineSettings {
            idle_timeout,
            ..EngineSettings::default()
        },
        server: ServerSettings {
            idle_timeout,
            ..ServerSettings::default()
        },
    })
    .await;
    let body =
        json!({"prompt": PROMPT, "max_tokens": 16000, "stream": true, "logprobs": 20}).to_string();
    let idle = server.post("/v1/completions", body).await; // the head is read, the body is not
    // whether its sequence was found idle or its connection was, the next client gets the slot
    assert_eq!(
        complete(&server, json!({"max_tokens": 4})).await["usage"]["completion_tokens"],
        4
    );
    let rest = idle.text().await;
    assert!(
        rest.is_err() || !events(&rest.expect("text")).done,
        "it was cut off"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_tell_what_they_are_doing() {
    let (parrot, permits) = Parrot::new(2, 4096).gated();
    let server = Server::start(Setup {
        parrot,
        ..Setup::default()
    })
    .await;
    let idle = json_of(server.get("/slots").await).await;
    assert_eq!(
        idle,
        json!([{"id": 0, "state": "idle"}, {"id": 1, "state": "idle"}])
    );
    let body = json!({"prompt": PROMPT, "max_tokens": 3000, "stream": true, "logprobs": 20});
    let unread = server.post("/v1/completions", body.to_string()).await;
    server.until("it runs", |stats| stats.slots_busy == 1).await;
    let reading = json_of(server.get("/slots").await).await;
    assert_eq!(
        (&reading[0]["state"], &reading[0]["prompt_tokens_read"]),
        (&json!("reading"), &json!(0))
    );
    drop(permits);
    // until its outbox is full, if only for a moment, and in the end for good, as the socket is
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let parked = loop {
        let slots = json_of(server.get("/slots").await).await;
        if slots[0]["state"] == "parked" {
            break slots;
        }
        assert!(tokio::time::Instant::now() < deadline, "{slots}");
    };
    assert_eq!(parked[1]["state"], "idle");
    assert!(
        parked[0]["tokens_per_second"].as_f64() > Some(0.0),
        "{parked}"
    );
    drop(unread);
    server
        .until("it is freed", |stats| stats.slots_busy == 0)
        .await;
    server.stop().await;
}
