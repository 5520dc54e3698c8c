//! The numbers behind `/metrics`: the process's recorder with its buckets, what is counted of requests, and the engine's state at the scrape.
//!
//! Windows, tokens and their times are recorded by the engine itself. Install the recorder before the engine starts.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use super::keys::Key;
use crate::engine::{Health, Stats};

/// **Units**: seconds. From a cached short prompt to a long one on a slow machine.
const TTFT_BUCKETS_S: [f64; 13] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];
/// **Units**: seconds. 0.15 is the gap that the engine aims at, 0.5 the one that it promises.
const ITL_BUCKETS_S: [f64; 13] = [
    0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0,
];
/// **Units**: seconds.
const WINDOW_BUCKETS_S: [f64; 12] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0,
];
/// **Units**: seconds.
const REQUEST_BUCKETS_S: [f64; 10] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

const REQUESTS: &str = "tidegate_requests_total";
const REQUESTS_ACTIVE: &str = "tidegate_requests_active";
const REQUEST_SECONDS: &str = "tidegate_request_seconds";
// Of every key, by its name.
pub(super) const KEY_REQUESTS: &str = "tidegate_key_requests_total";
pub(super) const KEY_REFUSED: &str = "tidegate_key_refused_total";
pub(super) const KEY_TOKENS: &str = "tidegate_key_tokens_total";
pub(super) const KEY_STREAMS: &str = "tidegate_key_streams";
// The engine records these; their buckets are set here, where the recorder is.
const TTFT_SECONDS: &str = "tidegate_ttft_seconds";
const ITL_SECONDS: &str = "tidegate_itl_seconds";
const WINDOW_SECONDS: &str = "tidegate_window_seconds";

/// The process's recorder.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs the recorder, once a process.
    ///
    /// **Errors**: another recorder is in place.
    pub fn install() -> Result<Self, BuildError> {
        static INSTALLED: OnceLock<PrometheusHandle> = OnceLock::new();
        if let Some(handle) = INSTALLED.get() {
            return Ok(Self(handle.clone()));
        }
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full(TTFT_SECONDS.into()), &TTFT_BUCKETS_S)?
            .set_buckets_for_metric(Matcher::Full(ITL_SECONDS.into()), &ITL_BUCKETS_S)?
            .set_buckets_for_metric(Matcher::Full(WINDOW_SECONDS.into()), &WINDOW_BUCKETS_S)?
            .set_buckets_for_metric(Matcher::Full(REQUEST_SECONDS.into()), &REQUEST_BUCKETS_S)?
            .build_recorder();
        let handle = INSTALLED.get_or_init(|| recorder.handle());
        // A second thread may have come first: both then hold its handle, and its recorder is the one in place.
        if metrics::set_global_recorder(recorder).is_ok() {
            describe();
        }
        Ok(Self(handle.clone()))
    }

    /// The text for a scrape.
    pub fn render(&self, stats: &Stats, health: &Health) -> String {
        observe(stats, health);
        self.0.render()
    }

    /// Moves samples out of the histograms' buffers. To be called every few seconds, so that they stay small without scrapes.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

fn describe() {
    describe_counter!(
        REQUESTS,
        "Generation requests, by endpoint and how they ended"
    );
    describe_gauge!(REQUESTS_ACTIVE, "Generation requests being answered");
    describe_histogram!(
        REQUEST_SECONDS,
        Unit::Seconds,
        "From a request's arrival to its end"
    );
    describe_counter!(
        KEY_REQUESTS,
        "Generation requests of a key, by how they ended"
    );
    describe_counter!(
        KEY_REFUSED,
        "Requests of a key that went over one of its limits"
    );
    describe_counter!(KEY_TOKENS, "Tokens of a key's prompts and answers");
    describe_gauge!(KEY_STREAMS, "Answers of a key that are running");
    describe_gauge!(
        "tidegate_engine_up",
        "1 while the engine gets on, 0 when it is stuck or has stopped"
    );
}

/// The engine's state as it is now: what it recorded itself is as old as its last window, and a stuck engine records nothing.
fn observe(stats: &Stats, health: &Health) {
    gauge!("tidegate_queued").set(stats.queued as f64);
    gauge!("tidegate_engine_up").set(f64::from(u8::from(matches!(
        health,
        Health::Idle | Health::Busy
    ))));
}

/// Measures one generation request from its arrival to its end, whichever way it ends, and charges its key: dropping it counts the request.
pub struct Meter {
    endpoint: &'static str,
    key: Option<Arc<Key>>,
    outcome: &'static str,
    arrived: Instant,
    ttft: Option<Duration>,
}

impl Meter {
    /// A request has arrived, on a server that asks for keys with this one.
    pub fn start(endpoint: &'static str, key: Option<Arc<Key>>) -> Self {
        gauge!(REQUESTS_ACTIVE).increment(1.0);
        Self {
            endpoint,
            key,
            outcome: "refused",
            arrived: Instant::now(),
            ttft: None,
        }
    }

    /// It was admitted. Unless it is finished, it counts as cancelled.
    pub fn admitted(&mut self, prompt_tokens: usize) {
        self.outcome = "cancelled";
        if let Some(key) = &self.key {
            key.charge_prompt(prompt_tokens);
        }
    }

    /// A token is about to be sent.
    pub fn token(&mut self) {
        self.ttft.get_or_insert_with(|| self.arrived.elapsed());
        if let Some(key) = &self.key {
            key.charge_generated();
        }
    }

    /// How it ended: a finish reason, or `error`.
    pub fn finish(&mut self, outcome: &'static str) {
        self.outcome = outcome;
    }

    /// From its arrival to its first token.
    pub fn ttft(&self) -> Option<Duration> {
        self.ttft
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        gauge!(REQUESTS_ACTIVE).decrement(1.0);
        counter!(REQUESTS, "endpoint" => self.endpoint, "outcome" => self.outcome).increment(1);
        histogram!(REQUEST_SECONDS).record(self.arrived.elapsed());
        if let Some(key) = &self.key {
            key.ended(self.outcome);
        }
    }
}
