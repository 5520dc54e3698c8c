//! A crowd on few slots, a third of which goes away at random points: nothing is left of them, and all others get the answers they would get alone.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use crate::{
    access::{ALICE, BOB, key, until},
    dice::Dice,
    parrot::Parrot,
    reply::events,
    server::{Server, Setup},
};
use serde_json::{Value, json};
use tidegate::{
    engine::EngineSettings,
    settings::{ServerSettings, keys::KeyLimits},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime,
};

const CLIENTS: u64 = 200;
const SLOTS: usize = 8;
const SEED: u64 = 20_260_401;
/// A refused client is told whole seconds; coming back sooner than told does no harm, and the test is over sooner.
const SOONER: u32 = 100;

/// What a client asks for: one of a few prompts, lengths and ways to draw.
fn question(dice: &mut Dice) -> Value {
    let prompts = [
        "Once upon a time",
        "There was a fox who lived in a wood.",
        "The sea and the gate and the tide, and so on and on until the evening came.",
    ];
    json!({
        "prompt": prompts[dice.below(3)],
        "max_tokens": 8 << dice.below(3),
        "temperature": dice.below(2),
        "seed": dice.below(2),
        "n": 1 + dice.below(2),
        "ignore_eos": true,
    })
}

/// A client with a connection of its own.
fn client() -> reqwest::Client {
    let client = reqwest::Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0);
    client.build().expect("a client")
}

/// Asks until it is answered; the texts of the answers.
async fn stay(url: String, secret: &str, mut question: Value, stream: bool) -> Vec<String> {
    let choices = question["n"].as_u64().expect("a number") as usize;
    question["stream"] = stream.into();
    let client = client();
    loop {
        let request = client.post(format!("{url}/v1/completions"));
        let request = request.bearer_auth(secret).body(question.to_string());
        let answer = request.send().await.expect("a response");
        let status = answer.status().as_u16();
        if status != 200 {
            assert!(status == 429 || status == 503, "{status}");
            let told = answer.headers()["retry-after"].to_str().expect("text");
            let told = Duration::from_secs(told.parse().expect("seconds"));
            tokio::time::sleep(told / SOONER).await;
            continue;
        }
        let text = answer.text().await.expect("a whole answer");
        if stream {
            let events = events(&text);
            assert!(events.done, "{text}");
            return (0..choices).map(|index| events.text(index)).collect();
        }
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        let text = |index: usize| answer["choices"][index]["text"].as_str().map(str::to_owned);
        return (0..choices)
            .map(|index| text(index).expect("text"))
            .collect();
    }
}

/// Asks, and goes away: anywhere in what it sends, or anywhere in what it gets.
async fn vanish(address: String, secret: &str, mut question: Value, mut dice: Dice) {
    question["stream"] = (dice.once_in(2)).into();
    let body = question.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {secret}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let request = head + &body;
    let sent = match dice.below(2) {
        0 => dice.below(request.len()),
        _ => request.len(),
    };
    let mut socket = TcpStream::connect(address).await.expect("a connection");
    socket
        .write_all(&request.as_bytes()[..sent])
        .await
        .expect("sent");
    if sent == request.len() {
        let mut heard = vec![0; dice.below(2000)];
        let _ = socket.read_exact(&mut heard).await; // there may be less
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_those_who_go_and_all_who_stay_are_answered() {
    let keys = vec![
        key(
            "alice",
            ALICE,
            KeyLimits {
                streams: NonZeroU32::new(12),
                ..KeyLimits::default()
            },
        ),
        key("bob", BOB, KeyLimits::default()),
    ];
    let server = Server::start(Setup {
        markup: None,
        text: None,
        parrot: Parrot::new(SLOTS, 256),
        engine: EngineSettings {
            queue: 24,
            ..EngineSettings::default()
        },
        server: ServerSettings {
            keys,
            max_requests: 48,
            ..Setup::default().server
        },
    })
    .await;
    let tasks = || runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let (mut dice, mut staying, mut leaving) = (Dice(SEED), Vec::new(), Vec::new());
    for client in 0..CLIENTS {
        let (question, stream) = (question(&mut dice), dice.once_in(2));
        let secret = if dice.once_in(2) { ALICE } else { BOB };
        if client % 3 == 0 {
            leaving.push((secret, question, Dice(SEED ^ client)));
        } else {
            staying.push((secret, question, stream));
        }
    }
    let mut alone: Vec<(Value, Vec<String>)> = Vec::new();
    for (_, question, _) in &staying {
        if alone.iter().all(|(known, _)| known != question) {
            let answer = stay(server.url.clone(), BOB, question.clone(), false).await;
            alone.push((question.clone(), answer));
        }
    }
    let going = leaving.into_iter().map(|(secret, question, dice)| {
        tokio::spawn(vanish(server.address().to_owned(), secret, question, dice))
    });
    let going: Vec<_> = going.collect();
    let answers = staying.iter().map(|(secret, question, stream)| {
        tokio::spawn(stay(server.url.clone(), secret, question.clone(), *stream))
    });
    let answers: Vec<_> = answers.collect();
    for ((_, question, _), answer) in staying.iter().zip(answers) {
        let answer = answer.await.expect("an answer");
        let expected = alone.iter().find(|(known, _)| known == question);
        assert_eq!(
            Some(&answer),
            expected.map(|(_, answer)| answer),
            "{question}"
        );
    }
    for gone in going {
        gone.await.expect("gone");
    }
    let holders = [ALICE, BOB]
        .map(|secret| Arc::clone(server.app.keys.find(secret.as_bytes()).expect("a key")));
    let left = || {
        let stats = server.engine.stats();
        let running: usize = holders.iter().map(|key| key.running()).sum();
        (
            (stats.slots_busy, stats.queued, stats.pages_used),
            (running, server.app.flights.count()),
            tasks(),
        )
    };
    until(&format!("nothing is left, with {before} tasks"), || {
        left() == ((0, 0, 0), (0, 0), before)
    })
    .await;
    server.stop().await;
}
