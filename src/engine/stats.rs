//! What the engine shows of itself: atomics that it writes and anybody reads, so that a busy or stuck engine can be watched.
//!
//! Numbers only: no contents of requests, and nothing here feeds back into scheduling except the count of places.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::executor::Capacity;

/// The engine at one moment. Fields are read one after another, so they may be a window apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// Slots with a sequence.
    pub slots_busy: usize,
    /// Slots there are.
    pub slots: usize,
    /// Requests waiting for a slot or for pages.
    pub queued: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// KV pages reserved.
    pub pages_used: usize,
    /// KV pages there are.
    pub pages: usize,
    /// Prompt tokens computed since the start.
    pub prompt_tokens: u64,
    /// Tokens generated since the start.
    pub generated_tokens: u64,
    /// Windows computed since the start.
    pub windows: u64,
    /// Lines of the step log that were dropped because its writer could not keep up.
    pub steps_dropped: u64,
    /// Whether rows are being computed.
    pub computing: bool,
    /// Since the last sign of progress: a layer done, or a look at the inbox.
    pub silent: Duration,
    /// What each busy slot holds.
    pub sequences: Vec<SlotStats>,
}

/// A busy slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotStats {
    /// Which.
    pub slot: usize,
    /// The request's number.
    pub request: u64,
    /// Length of its prompt.
    pub prompt_tokens: usize,
    /// Positions computed.
    pub computed: usize,
    /// Tokens generated.
    pub generated: usize,
    /// Tokens guessed ahead.
    pub drafted: usize,
    /// Of these, those that were right.
    pub accepted: usize,
    /// From its first token to its last so far.
    pub decode: Duration,
    /// The longest that it has waited for a token while its reader did not keep it waiting.
    pub worst_gap: Duration,
    /// Whether it waits for its reader.
    pub parked: bool,
}

/// Whether the engine can be relied on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Nothing to compute.
    Idle,
    /// Computing, and getting on.
    Busy,
    /// Computing, without progress for longer than the watchdog allows.
    Stuck {
        /// For how long.
        silent: Duration,
    },
    /// The thread has ended.
    Stopped {
        /// The failure that ended it, if one did.
        why: Option<String>,
    },
}

/// Shared between the engine thread, which writes, and its handles, which read.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) capacity: Capacity,
    /// Positions a sequence may have, also counting the pages there are.
    pub(super) context: usize,
    /// Requests that may wait.
    pub(super) queue: usize,
    pub(super) outbox_tokens: usize,
    /// Guesses that a sequence may have in a window.
    pub(super) depth_max: usize,
    stuck_after: Duration,
    /// Requests submitted and not ended: the only count that decides something (whether one more may enter).
    present: AtomicUsize,
    submitted: AtomicU64,
    slots_busy: AtomicUsize,
    pages_used: AtomicUsize,
    prompt_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    windows: AtomicU64,
    steps_dropped: AtomicU64,
    computing: AtomicBool,
    /// **Units**: microseconds. A moving average of how long sequences hold their slots; 0 before the first has ended.
    hold_us: AtomicU64,
    started: Instant,
    /// Microseconds from the start to the last sign of progress.
    progress_us: AtomicU64,
    slots: Box<[SlotBoard]>,
    stopped: OnceLock<Option<String>>,
}

/// `request` is its number + 1; 0 is a free slot.
#[derive(Debug, Default)]
struct SlotBoard {
    request: AtomicU64,
    prompt_tokens: AtomicUsize,
    computed: AtomicUsize,
    generated: AtomicUsize,
    drafted: AtomicUsize,
    accepted: AtomicUsize,
    decode_us: AtomicU64,
    worst_gap_us: AtomicU64,
    parked: AtomicBool,
}

/// What somebody is told who asks again too early, and too late.
const RETRY_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

impl Board {
    pub(super) fn new(
        capacity: Capacity,
        context: usize,
        queue: usize,
        outbox_tokens: usize,
        depth_max: usize,
        stuck_after: Duration,
    ) -> Self {
        Self {
            capacity,
            context,
            queue,
            outbox_tokens,
            depth_max,
            stuck_after,
            present: AtomicUsize::new(0),
            submitted: AtomicU64::new(0),
            slots_busy: AtomicUsize::new(0),
            pages_used: AtomicUsize::new(0),
            prompt_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            windows: AtomicU64::new(0),
            steps_dropped: AtomicU64::new(0),
            computing: AtomicBool::new(false),
            hold_us: AtomicU64::new(0),
            started: Instant::now(),
            progress_us: AtomicU64::new(0),
            slots: (0..capacity.slots).map(|_| SlotBoard::default()).collect(),
            stopped: OnceLock::new(),
        }
    }

    /// Requests that may be present: one a slot, and the queue.
    pub(super) fn places(&self) -> usize {
        self.capacity.slots + self.queue
    }

    /// Counts one more request and numbers it, if there is a place for it.
    pub(super) fn enter(&self) -> Option<u64> {
        let places = self.places();
        self.present
            .fetch_update(Relaxed, Relaxed, |n| (n < places).then_some(n + 1))
            .ok()?;
        Some(self.submitted.fetch_add(1, Relaxed))
    }

    /// Gives a request's place back.
    pub(super) fn leave(&self) {
        self.present.fetch_sub(1, Relaxed);
    }

    pub(super) fn queued(&self) -> usize {
        let present = self.present.load(Relaxed);
        present.saturating_sub(self.slots_busy.load(Relaxed))
    }

    pub(super) fn stop(&self, why: Option<String>) {
        let _ = self.stopped.set(why); // the first reason is the one that counts
    }

    /// Some once the engine has stopped, with the reason.
    pub(super) fn stopped(&self) -> Option<&Option<String>> {
        self.stopped.get()
    }

    /// Marks progress; `computing` tells whether the next sign is owed.
    pub(super) fn progress(&self, computing: bool) {
        let us = self.started.elapsed().as_micros() as u64;
        self.progress_us.store(us, Relaxed);
        self.computing.store(computing, Relaxed);
    }

    pub(super) fn count_window(&self, prompt_rows: usize, generated: usize) {
        self.windows.fetch_add(1, Relaxed);
        self.prompt_tokens.fetch_add(prompt_rows as u64, Relaxed);
        self.generated_tokens.fetch_add(generated as u64, Relaxed);
    }

    pub(super) fn drop_step(&self) {
        self.steps_dropped.fetch_add(1, Relaxed);
    }

    /// A sequence held its slot for so long.
    pub(super) fn note_hold(&self, held: Duration) {
        let (held, before) = (held.as_micros() as u64, self.hold_us.load(Relaxed));
        let average = match before {
            0 => held,
            before => (7 * before + held) / 8,
        };
        self.hold_us.store(average.max(1), Relaxed);
    }

    /// In how much time a slot becomes free, if sequences go on as they did.
    pub(super) fn slot_frees_in(&self) -> Duration {
        let [least, most] = RETRY_AFTER;
        let hold = Duration::from_micros(self.hold_us.load(Relaxed));
        (hold / self.capacity.slots.max(1) as u32).clamp(least, most)
    }

    pub(super) fn hold(&self, slots_busy: usize, pages_used: usize) {
        self.slots_busy.store(slots_busy, Relaxed);
        self.pages_used.store(pages_used, Relaxed);
    }

    /// Shows what `held.slot` holds.
    pub(super) fn slot(&self, held: SlotStats) {
        let board = &self.slots[held.slot];
        board.prompt_tokens.store(held.prompt_tokens, Relaxed);
        board.computed.store(held.computed, Relaxed);
        board.generated.store(held.generated, Relaxed);
        board.drafted.store(held.drafted, Relaxed);
        board.accepted.store(held.accepted, Relaxed);
        board
            .decode_us
            .store(held.decode.as_micros() as u64, Relaxed);
        board
            .worst_gap_us
            .store(held.worst_gap.as_micros() as u64, Relaxed);
        board.parked.store(held.parked, Relaxed);
        board.request.store(held.request + 1, Relaxed);
    }

    /// Shows whether the sequence in a slot waits for its reader.
    pub(super) fn slot_parked(&self, slot: usize, parked: bool) {
        self.slots[slot].parked.store(parked, Relaxed);
    }

    pub(super) fn slot_free(&self, slot: usize) {
        self.slots[slot].request.store(0, Relaxed);
    }

    pub(super) fn stats(&self) -> Stats {
        let sequences = self.slots.iter().enumerate().filter_map(|(slot, board)| {
            Some(SlotStats {
                slot,
                request: board.request.load(Relaxed).checked_sub(1)?,
                prompt_tokens: board.prompt_tokens.load(Relaxed),
                computed: board.computed.load(Relaxed),
                generated: board.generated.load(Relaxed),
                drafted: board.drafted.load(Relaxed),
                accepted: board.accepted.load(Relaxed),
                decode: Duration::from_micros(board.decode_us.load(Relaxed)),
                worst_gap: Duration::from_micros(board.worst_gap_us.load(Relaxed)),
                parked: board.parked.load(Relaxed),
            })
        });
        Stats {
            slots_busy: self.slots_busy.load(Relaxed),
            slots: self.capacity.slots,
            queued: self.queued(),
            queue: self.queue,
            pages_used: self.pages_used.load(Relaxed),
            pages: self.capacity.pages,
            prompt_tokens: self.prompt_tokens.load(Relaxed),
            generated_tokens: self.generated_tokens.load(Relaxed),
            windows: self.windows.load(Relaxed),
            steps_dropped: self.steps_dropped.load(Relaxed),
            computing: self.computing.load(Relaxed),
            silent: self.silent(),
            sequences: sequences.collect(),
        }
    }

    fn silent(&self) -> Duration {
        let progress = Duration::from_micros(self.progress_us.load(Relaxed));
        self.started.elapsed().saturating_sub(progress)
    }

    pub(super) fn health(&self) -> Health {
        if let Some(why) = self.stopped() {
            return Health::Stopped { why: why.clone() };
        }
        let silent = self.silent();
        match self.computing.load(Relaxed) {
            false => Health::Idle,
            true if silent > self.stuck_after => Health::Stuck { silent },
            true => Health::Busy,
        }
    }
}
