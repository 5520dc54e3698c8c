//! The program from outside: what it prints, where, and the code it ends with.

use std::{
    fs,
    io::Write,
    net::TcpListener,
    process::{Output, Stdio},
};

use crate::process::{Serving, serve, tidegate};

/// Runs it to its end; its code, standard output and standard error.
pub(crate) fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    parts(tidegate(arguments).output().expect("runs"))
}

fn parts(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// It ends with this code, and standard error says this.
pub(crate) fn check(arguments: &[&str], code: i32, words: &[&str]) {
    let (got, out, err) = run(arguments);
    assert_eq!(got, Some(code), "{arguments:?}: {out}{err}");
    for word in words {
        assert!(
            err.contains(word),
            "{arguments:?}: {word} is missing in: {err}"
        );
    }
    assert!(!err.contains("panicked"), "{arguments:?}: {err}");
}

#[test]
fn wrong_usage_is_2() {
    check(&["serve", "--thread", "2"], 2, &["--thread", "--threads"]);
    check(&["sevre"], 2, &["sevre", "serve"]);
    check(&["serve", "--port", "8081"], 2, &["--port", "--listen"]);
    check(&["serve", "-m", "x.gguf"], 2, &["-m", "MODEL"]);
    check(&["serve", "--slots", "many"], 2, &["--slots", "many"]);
    check(
        &["serve", "--slots", "0"],
        2,
        &["error: slots must be from 1 to 256, got 0"],
    );
    check(&["serve", "--kv", "q4_0"], 2, &["f16", "q8_0"]);
    check(
        &["run", "--config", "/nowhere/x.toml", "hi"],
        2,
        &["cannot read /nowhere/x.toml"],
    );
    check(
        &["synth", "--like", "gpt-9", "/nowhere/x.gguf"],
        2,
        &["gpt-9", "qwen3-30b-a3b"],
    );
    check(
        &[
            "synth",
            "--like",
            "olmoe-1b-7b",
            "--quant",
            "q9",
            "/nowhere/x.gguf",
        ],
        2,
        &["q9", "q4_k_m"],
    );
}

#[test]
fn a_bad_model_file_is_2_and_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let noise = folder.path().join("noise.gguf");
    fs::write(&noise, b"not a model at all").expect("written");
    let noise = noise.to_str().expect("UTF-8");
    for command in [
        &["serve", "--listen", "127.0.0.1:0", noise][..],
        &["run", "--model", noise, "hi"],
        &["inspect", noise],
        &["plan", noise],
    ] {
        check(command, 2, &["noise.gguf"]);
    }
    check(&["inspect", "/nowhere/x.gguf"], 2, &["/nowhere/x.gguf"]);
    check(&["inspect", folder.path().to_str().expect("UTF-8")], 2, &[]);
}

#[test]
fn settings_files_are_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.toml");
    let config = path.to_str().expect("UTF-8");
    fs::write(&path, "slotz = 3").expect("written");
    check(
        &["plan", "--config", config],
        2,
        &["slotz", "did you mean 'slots'?"],
    );
    fs::write(&path, "slots = 3\nctx = 128").expect("written");
    let (code, out, err) = run(&["plan", "--config", config, "--ctx", "256"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("3 slots, 256 tokens each"), "{out}");
}

#[test]
fn a_plan_does_not_guess_at_a_drive() {
    let like = ["plan", "--like", "qwen3-30b-a3b", "--layers", "2"];
    let known = run(&like);
    assert!(known.1.contains("tok/s"), "{known:?}");
    let (code, out, err) = run(&[&like[..], &["--ram", "300MiB"]].concat());
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("--machine") && !out.contains("tok/s"), "{out}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.toml");
    fs::write(&path, "dram-gb-s = 60\ndisk-gb-s = 6").expect("written");
    let machine = path.to_str().expect("UTF-8");
    let described = run(&[&like[..], &["--ram", "300MiB", "--machine", machine]].concat());
    assert!(described.1.contains("the drive 6.00"), "{described:?}");
    assert!(described.1.contains("tok/s"), "{described:?}");
}

#[test]
fn a_table_of_few_rows_a_token_need_not_fit_into_memory() {
    let like = ["plan", "--like", "qwen3.8-flash-next", "--layers", "4"];
    let (code, out, err) = run(&like);
    assert_eq!(code, Some(0), "{err}");
    let table = out.lines().find(|line| line.starts_with("n-gram table"));
    assert!(table.is_some_and(|line| line.contains("drive")), "{out}");
    // what of it is kept in memory is planned
    let rows = out.lines().find(|line| line.starts_with("n-gram rows"));
    assert!(
        rows.is_some_and(|line| line.contains("256.0 MiB  own")),
        "{out}"
    );
}

#[test]
fn a_taken_port_is_1_and_says_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    check(
        &["serve", "--listen", &address],
        1,
        &[&format!("cannot listen on {address}"), "--listen"],
    );
    check(
        &["serve", "--listen", "nonsense"],
        1,
        &["cannot listen on nonsense", "127.0.0.1:8080"],
    );
}

#[test]
fn help_has_examples_and_every_setting() {
    let (code, out, _) = run(&["serve", "--help"]);
    assert_eq!(code, Some(0));
    for word in [
        "Examples:",
        "TIDEGATE_CHUNK_ROWS",
        "--step-stats",
        "[default: 127.0.0.1:8080]",
        "/v1/chat/completions",
    ] {
        assert!(out.contains(word), "{word} is missing in: {out}");
    }
}

#[test]
fn run_answers_an_argument_or_standard_input() {
    let options = ["run", "--temperature", "0", "--max-tokens", "8"];
    let (code, by_argument, err) = run(&[&options[..], &["What is 17 + 25?"]].concat());
    assert_eq!(code, Some(0), "{err}");
    assert!(
        err.contains("tok/s"),
        "the speed is on standard error: {err}"
    );
    let mut child = tidegate(&options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(b"What is 17 + 25?\n")
        .expect("written");
    let (code, by_input, err) = parts(child.wait_with_output().expect("an end"));
    assert_eq!((code, &by_input), (Some(0), &by_argument), "{err}");
}

#[test]
fn run_refuses_what_does_not_fit() {
    check(
        &["run", "--ctx", "64", &"word ".repeat(200)],
        1,
        &["context of 64", "--ctx"],
    );
}

#[test]
fn serve_ends_cleanly_and_logs_no_prompt() {
    let server = Serving::of(tidegate(&serve(&["--slots", "1"])));
    let body =
        r#"{"messages": [{"role": "user", "content": "a very secret word"}], "max_tokens": 2}"#;
    let answer = tokio::runtime::Runtime::new()
        .expect("a runtime")
        .block_on(async {
            let client = reqwest::Client::builder()
                .no_proxy()
                .build()
                .expect("a client");
            let sent = client
                .post(format!("{}/v1/chat/completions", server.url))
                .body(body)
                .send()
                .await;
            sent.expect("a response").text().await.expect("a body")
        });
    assert!(answer.contains("chat.completion"), "{answer}");
    let (status, log) = server.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(
        log.contains("/v1/chat/completions") && log.contains("prompt_tokens"),
        "{log}"
    );
    assert!(!log.contains("secret"), "{log}");
}

#[test]
fn a_key_opens_the_server_and_is_never_shown_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.toml");
    let config = path.to_str().expect("UTF-8");
    let (code, key, lines) = run(&["key", "alice"]);
    let key = key.trim();
    assert_eq!((code, key.len()), (Some(0), 51), "{key}{lines}");
    assert!(key.starts_with("tg-") && !lines.contains(key), "{lines}");
    assert_ne!(run(&["key", "alice"]).1.trim(), key);
    fs::write(&path, lines).expect("written");
    let mut command = tidegate(&serve(&["--config", config, "--slots", "1"]));
    command.env("TIDEGATE_LOG", "trace");
    let server = Serving::of(command);
    let close = format!("{key}0");
    let statuses = tokio::runtime::Runtime::new()
        .expect("a runtime")
        .block_on(async {
            let client = reqwest::Client::builder().no_proxy().build();
            let client = client.expect("a client");
            let mut statuses = Vec::new();
            for (header, value) in [
                ("authorization", format!("Bearer {key}")),
                ("x-api-key", key.to_owned()),
                ("authorization", format!("Bearer {close}")),
                ("x-nothing", String::new()),
            ] {
                let request = client
                    .post(format!("{}/v1/completions", server.url))
                    .header(header, value)
                    .body(r#"{"prompt": "one", "max_tokens": 1}"#);
                let answer = request.send().await.expect("a response");
                statuses.push(answer.status().as_u16());
                assert!(!answer.text().await.expect("a body").contains(key));
            }
            statuses
        });
    assert_eq!(statuses, [200, 200, 401, 401]);
    let (status, log) = server.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("key=\"alice\""), "{log}");
    assert!(!log.contains(key), "{log}");
    assert!(!log.contains("warning"), "{log}");
}

#[test]
fn keys_that_cannot_be_used_are_2() {
    check(&["key", "al ice"], 2, &["letters, digits", "'al ice'"]);
    check(&["key", "tg-x"], 2, &["begins with tg-"]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.toml");
    let config = path.to_str().expect("UTF-8");
    fs::write(&path, "[[key]]\nname = \"alice\"\nsha256 = \"tg-1\"").expect("written");
    check(
        &["serve", "--config", config],
        2,
        &["key 'alice': sha256 must be 64", "tidegate key NAME"],
    );
    check(
        &["serve", "--cors-origin", "localhost:3000"],
        2,
        &["did you mean 'http://localhost:3000'?"],
    );
    check(
        &["serve", "--key-streams", "0"],
        2,
        &["key-streams must be from 1"],
    );
}

#[test]
fn a_server_that_everybody_reaches_says_so() {
    let server = Serving::of(tidegate(&["serve", "--listen", "0.0.0.0:0"]));
    let (_, log) = server.terminate();
    assert!(log.contains("warning: everybody who reaches"), "{log}");
    assert!(log.contains("tidegate key NAME"), "{log}");
    let server = Serving::of(tidegate(&serve(&[])));
    let (_, log) = server.terminate();
    assert!(!log.contains("warning"), "{log}");
}
