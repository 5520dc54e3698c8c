//! Routing traces of the bundled model, and what is made of them.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    commands::{check, run},
    process::{Serving, serve, tidegate},
};

/// Answers of 12 tokens to three requests, two of them at once; prompt tokens of all.
fn answers(url: &str) -> u64 {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = reqwest::Client::builder().no_proxy().build();
        let client = client.expect("a client");
        let ask = async |prompt: &str| {
            let body = json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": 12, "ignore_eos": true});
            let request = client
                .post(format!("{url}/v1/chat/completions"))
                .body(body.to_string());
            let answer = request.send().await.expect("a response");
            let answer: Value = answer.json().await.expect("JSON");
            assert_eq!(answer["usage"]["completion_tokens"], 12, "{answer}");
            answer["usage"]["prompt_tokens"].as_u64().expect("a number")
        };
        let (first, second) = tokio::join!(
            ask("Tell me a story about a fox."),
            ask("What is 17 + 25?")
        );
        first + second + ask("Name three colours.").await
    })
}

fn replayed(trace: &str, options: &[&str]) -> Value {
    let (code, out, err) = run(&[&["replay", trace, "--json"], options].concat());
    assert_eq!(code, Some(0), "{err}");
    serde_json::from_str(&out).expect("JSON")
}

/// The findings of a capacity by policy.
fn finding<'a>(report: &'a Value, capacity: usize, policy: &str) -> &'a Value {
    let findings = report["capacities"][capacity]["findings"].as_array();
    let mut findings = findings.expect("a list").iter();
    let found = findings.find(|finding| finding["policy"] == policy);
    found.unwrap_or_else(|| panic!("{policy} is missing in {report}"))
}

#[test]
fn what_a_server_traces_can_be_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.trace");
    let trace = path.to_str().expect("UTF-8");
    let server = Serving::of(tidegate(&serve(&[
        "--trace", trace, "--slots", "2", "--drafts", "off",
    ])));
    let prompt_tokens = answers(&server.url);
    let (status, log) = server.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    let report = replayed(trace, &[]);
    // the warm-up generation reads one row and writes one
    assert_eq!(
        report["prompt_rows"],
        (prompt_tokens + 1) as f64,
        "{report}"
    );
    assert_eq!(report["decode_rows"], (3 * 11 + 1) as f64, "{report}");
    assert_eq!(
        (&report["model"], &report["layers"]),
        (&json!("tales"), &json!(8))
    );
    assert_eq!(
        (&report["cut"], &report["dropped"]),
        (&json!(false), &json!(0))
    );
    // 8 layers of 64 experts, 8 of which a token uses
    let (all, token) = (
        report["experts_bytes"].as_u64(),
        report["token_bytes"].as_u64(),
    );
    assert_eq!(all, token.map(|bytes| 8 * bytes));
    let last = report["capacities"].as_array().expect("a list").len() - 1;
    let rate = |capacity, policy| {
        let rate = &finding(&report, capacity, policy)["decode_hit_rate"];
        rate.as_f64().expect("a rate")
    };
    for policy in ["lru", "frequency", "guarded"] {
        assert!(rate(0, policy) <= rate(last, policy), "{report}");
        assert_eq!(rate(last, policy), rate(last, "oracle"), "{report}");
    }
    assert_eq!(rate(last, "no cache"), 0.0);
    breaks_off(&path, trace, &report);
}

/// Half of the file is replayed as well, and says that it is half.
fn breaks_off(path: &Path, trace: &str, whole: &Value) {
    let bytes = fs::read(path).expect("read");
    fs::write(path, &bytes[..bytes.len() / 2]).expect("written");
    let half = replayed(trace, &["--policy", "lru", "--capacity", "50%"]);
    assert_eq!(half["cut"], true);
    assert!(half["windows"].as_u64() < whole["windows"].as_u64());
    let (_, text, _) = run(&["replay", trace]);
    assert!(text.contains("breaks off"), "{text}");
}

#[test]
fn run_traces_too_and_without_it_nothing_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("b.trace");
    let trace = path.to_str().expect("UTF-8");
    let options = ["run", "--temperature", "0", "-n", "8", "Hello!"];
    let (_, plain, _) = run(&options);
    let (code, traced, err) = run(&[&options[..], &["--trace", trace]].concat());
    assert_eq!((code, traced), (Some(0), plain), "{err}");
    let (code, text, err) = run(&["replay", trace, "--capacity", "2MiB,100%", "--dram", "50"]);
    assert_eq!(code, Some(0), "{err}");
    for word in [
        "tales: ",
        "2.0 MiB",
        "100.0%",
        "guarded",
        "oracle",
        "no cache",
        "50.0 GB/s",
    ] {
        assert!(text.contains(word), "{word} is missing in: {text}");
    }
    check(
        &["replay", trace, "--capacity", "1MiB"],
        2,
        &["one token", "bytes or 12.5%"],
    );
    check(
        &["replay", trace, "--capacity", "lots"],
        2,
        &["lots", "8GiB"],
    );
    check(
        &["replay", trace, "--policy", "fifo"],
        2,
        &["fifo", "guarded"],
    );
    check(&["replay", trace, "--link", "0"], 2, &["GB/s from 0.001"]);
}

#[test]
fn traces_that_cannot_be_had_are_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("c.trace");
    fs::write(&path, "no trace at all").expect("written");
    let trace = path.to_str().expect("UTF-8");
    check(
        &["replay", trace],
        2,
        &["c.trace", "no routing trace", "--trace FILE"],
    );
    check(&["replay", "/nowhere/x.trace"], 2, &["/nowhere/x.trace"]);
    check(
        &["run", "--trace", "/nowhere/x.trace", "hi"],
        2,
        &["cannot write the trace /nowhere/x.trace"],
    );
    check(
        &["run", "--trace", trace, "--backend", "cuda", "hi"],
        2,
        &["trace needs --backend cpu"],
    );
}
