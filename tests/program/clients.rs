//! The official `openai` Python package against the program itself, serving the bundled model.
//!
//! Runs where Python has the package: `TIDEGATE_PYTHON`, or `python3`. With `TIDEGATE_REQUIRE_PYTHON=1`, as CI sets it, a missing package is a failure.

use crate::process::{Serving, serve, tidegate};
use std::process::{Command, Stdio};

/// A Python with the package, if there is one.
fn python() -> Option<String> {
    let python = std::env::var("TIDEGATE_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python)
        .args(["-c", "import openai"])
        .stderr(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success()).then_some(python)
}

#[test]
fn openai_package() {
    let Some(python) = python() else {
        let required = std::env::var("TIDEGATE_REQUIRE_PYTHON").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "TIDEGATE_REQUIRE_PYTHON is set and there is no Python with the openai package"
        );
        eprintln!("skipped: no Python with the openai package");
        return;
    };
    let server = Serving::of(tidegate(&serve(&["--slots", "4"])));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/test-openai-client.py");
    let output = Command::new(python)
        .args([script, &format!("{}/v1", server.url)])
        .output()
        .expect("Python runs");
    let (status, log) = server.terminate();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}\nserver: {log}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(status.code(), Some(0), "the server ends cleanly: {log}");
}
