//! Where the log goes: lines on standard error, by default warnings and one line a request.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

/// The variable that filters the log, in `tracing`'s notation: `debug`, `warn,tidegate::http=trace`.
const FILTER: &str = "TIDEGATE_LOG";
/// The variable that makes every line a JSON object when it is `json`.
const FORMAT: &str = "TIDEGATE_LOG_FORMAT";

/// Starts logging. A filter that cannot be read is reported and the default used.
pub(super) fn init() {
    let written = std::env::var(FILTER).unwrap_or_else(|_| "warn,tidegate=info".into());
    let filter = EnvFilter::try_new(&written).unwrap_or_else(|error| {
        eprintln!("warning: {FILTER}: {error}");
        EnvFilter::new("warn,tidegate=info")
    });
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal());
    if std::env::var(FORMAT).is_ok_and(|format| format == "json") {
        lines.json().init();
    } else {
        lines.with_target(false).init();
    }
}
