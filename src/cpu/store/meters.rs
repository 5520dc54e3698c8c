//! What a store tells `/metrics`.

use metrics::{Counter, Unit, counter, describe_counter, describe_gauge, gauge};

use crate::residency::{
    predict::{DISTANCES, Hits},
    tier::Counts,
};

const FOUND: &str = "tidegate_experts_total";
const MOVED: &str = "tidegate_expert_read_bytes_total";
const AHEAD: &str = "tidegate_expert_ahead_bytes_total";
const FAILED: &str = "tidegate_expert_reads_failed_total";
const SLOTS: &str = "tidegate_expert_slot_bytes";
const PREDICTED: &str = "tidegate_lookahead_choices_total";

/// Handles, looked up once.
pub(super) struct Meters {
    hits: Counter,
    late: Counter,
    misses: Counter,
    demand: Counter,
    ahead: Counter,
    useful: Counter,
    wasted: Counter,
    failed: Counter,
    /// `[distances]`: right ones, and all.
    predicted: [[Counter; 2]; DISTANCES],
}

impl Meters {
    /// For slots of so many bytes.
    pub(super) fn new(slot_bytes: u64) -> Self {
        describe();
        gauge!(SLOTS).set(slot_bytes as f64);
        let predicted = |distance: usize| {
            ["right", "all"].map(
                |which| counter!(PREDICTED, "distance" => (distance + 1).to_string(), "which" => which),
            )
        };
        Self {
            hits: counter!(FOUND, "found" => "here"),
            late: counter!(FOUND, "found" => "coming"),
            misses: counter!(FOUND, "found" => "missing"),
            demand: counter!(MOVED, "why" => "demand"),
            ahead: counter!(MOVED, "why" => "ahead"),
            useful: counter!(AHEAD, "was" => "useful"),
            wasted: counter!(AHEAD, "was" => "wasted"),
            failed: counter!(FAILED),
            predicted: std::array::from_fn(predicted),
        }
    }

    pub(super) fn tell(&self, counts: &Counts) {
        self.hits.absolute(counts.hits);
        self.late.absolute(counts.late);
        self.misses.absolute(counts.misses);
        self.demand.absolute(counts.demand_bytes);
        self.ahead.absolute(counts.ahead_bytes);
        self.useful.absolute(counts.ahead_useful_bytes);
        self.wasted.absolute(counts.ahead_wasted_bytes);
        self.failed.absolute(counts.failed);
    }

    pub(super) fn tell_hits(&self, hits: [Hits; DISTANCES]) {
        for ([right, all], hits) in self.predicted.iter().zip(hits) {
            right.absolute(hits.right);
            all.absolute(hits.all);
        }
    }
}

fn describe() {
    describe_counter!(
        FOUND,
        "Experts that windows wanted, once a layer and window: here, coming because they were read ahead, or missing"
    );
    describe_counter!(
        MOVED,
        Unit::Bytes,
        "What was read of experts, because a window waited or ahead"
    );
    describe_counter!(
        AHEAD,
        Unit::Bytes,
        "What was read ahead: useful if its layer wanted it, else wasted"
    );
    describe_counter!(FAILED, "Reads of experts that failed");
    describe_gauge!(SLOTS, Unit::Bytes, "What experts may take in memory");
    describe_counter!(
        PREDICTED,
        "Choices of experts that were predicted so many layers before, and how many of these rightly"
    );
}
