//! The engine's metrics, looked up once so that recording one is an atomic operation.
//!
//! Knows names and units; whoever installs a recorder before the engine starts sees the values.

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use super::{
    active::Verified,
    drafts::{DEPTH_MAX, Source},
    window::{Census, Kind, Parts},
};

/// Handles to the engine's metrics.
pub(super) struct Meters {
    /// One per [`Kind::ALL`].
    window: [Histogram; 3],
    pub(super) itl: Histogram,
    pub(super) ttft: Histogram,
    prompt_tokens: Counter,
    generated_tokens: Counter,
    /// By source, by place in the window: guesses, and those that were right.
    drafts: [[[Counter; 2]; DEPTH_MAX]; 2],
    queued: Gauge,
    slots_busy: Gauge,
    pages_used: Gauge,
}

impl Meters {
    /// Registers all of them. `slots` and `pages` are what there is.
    pub(super) fn new(slots: usize, pages: usize) -> Self {
        describe();
        gauge!("tidegate_slots").set(slots as f64);
        gauge!("tidegate_kv_pages").set(pages as f64);
        Self {
            window: Kind::ALL.map(|k| histogram!("tidegate_window_seconds", "kind" => k.name())),
            itl: histogram!("tidegate_itl_seconds"),
            ttft: histogram!("tidegate_ttft_seconds"),
            prompt_tokens: counter!("tidegate_prompt_tokens_total"),
            generated_tokens: counter!("tidegate_generated_tokens_total"),
            drafts: Source::ALL
                .map(|source| std::array::from_fn(|place| draft_counters(source, place))),
            queued: gauge!("tidegate_queued"),
            slots_busy: gauge!("tidegate_slots_busy"),
            pages_used: gauge!("tidegate_kv_pages_used"),
        }
    }

    pub(super) fn window(&self, census: &Census, generated: usize, parts: &Parts) {
        self.window[census.kind() as usize].record(parts.total());
        self.prompt_tokens.increment(census.prompt_rows as u64);
        self.generated_tokens.increment(generated as u64);
    }

    /// Counts a sequence's guesses in a window.
    pub(super) fn drafts(&self, verified: &Verified) {
        let places = &self.drafts[verified.source as usize];
        for (place, [drafts, accepted]) in places.iter().take(verified.drafts).enumerate() {
            drafts.increment(1);
            accepted.increment(u64::from(place < verified.accepted));
        }
    }

    pub(super) fn hold(&self, queued: usize, slots_busy: usize, pages_used: usize) {
        self.queued.set(queued as f64);
        self.slots_busy.set(slots_busy as f64);
        self.pages_used.set(pages_used as f64);
    }

    /// Counts an ended sequence. Rare enough for a look-up.
    pub(super) fn ended(&self, reason: &'static str) {
        counter!("tidegate_sequences_total", "reason" => reason).increment(1);
    }
}

fn draft_counters(source: Source, place: usize) -> [Counter; 2] {
    ["tidegate_drafts_total", "tidegate_drafts_accepted_total"].map(
        |name| counter!(name, "source" => source.name(), "position" => (place + 1).to_string()),
    )
}

fn describe() {
    let seconds = Unit::Seconds;
    describe_histogram!(
        "tidegate_window_seconds",
        seconds,
        "Time of one window, by kind"
    );
    describe_histogram!(
        "tidegate_itl_seconds",
        seconds,
        "Time between two tokens of a sequence"
    );
    describe_histogram!(
        "tidegate_ttft_seconds",
        seconds,
        "Time from submission to first token"
    );
    describe_counter!("tidegate_prompt_tokens_total", "Prompt tokens computed");
    describe_counter!("tidegate_generated_tokens_total", "Tokens generated");
    describe_counter!(
        "tidegate_drafts_total",
        "Tokens guessed ahead, by source and by place in the window"
    );
    describe_counter!(
        "tidegate_drafts_accepted_total",
        "Tokens guessed ahead that were right"
    );
    describe_counter!("tidegate_sequences_total", "Sequences ended, by reason");
    describe_gauge!(
        "tidegate_queued",
        "Requests waiting for a slot or for KV pages"
    );
    describe_gauge!("tidegate_slots", "Slots");
    describe_gauge!("tidegate_slots_busy", "Slots with a sequence");
    describe_gauge!("tidegate_kv_pages", "KV pages");
    describe_gauge!("tidegate_kv_pages_used", "KV pages reserved");
}
