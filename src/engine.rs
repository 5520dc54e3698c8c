//! The engine thread: one OS thread owns every sequence, KV page and recurrent state, and turns events into windows.
//!
//! Knows sequences, rows, pages and credits; knows no model family, no HTTP and no text. The model is an
//! [`Executor`], so that a simulation can drive the same engine.
//!
//! A turn of the engine takes what has come in and then does one thing: begin a pass, advance one by a slice, or (with its
//! last) choose, accept and emit. So between any two slices it sees arrivals, cancels and the wish to stop.
//!
//! Two passes may be under way. One is a chunk of prompts, on the prompt lane; it is left between slices whenever a decode window is
//! due, which then runs to its end on the decode lane. [`schedule`](mod@schedule) decides, by what slices and windows have
//! taken so far ([`costs`]), so that no stream pauses for longer than it may and the prompt gets on all the same.

mod active;
mod admit;
pub mod costs;
mod drafts;
mod event;
pub mod executor;
mod handle;
mod meters;
mod outbox;
pub mod pages;
pub mod request;
pub mod schedule;
pub mod sequence;
mod settings;
mod stats;
mod steps;
mod thread;
mod verify;
pub mod window;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use self::{
    active::{Active, Choice, Ending},
    costs::Costs,
    drafts::Experience,
    event::{Admission, Event, Events},
    executor::{Executor, Lane, Slot},
    meters::Meters,
    pages::PagePool,
    request::{EngineError, Token},
    schedule::{Demand, Room, Share},
    stats::Board,
    steps::StepLog,
    window::{Flight, SlotStep},
};
pub use self::{
    drafts::Source,
    handle::{Handle, Tokens},
    settings::{EngineSettings, SettingsError},
    stats::{Health, SlotStats, Stats},
    thread::{StartError, StillRunning, Stopper},
};
use crate::sampler::Scratch;

/// What a turn of the engine came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something was computed; there may be more to do.
    Busy,
    /// Nothing can be computed before the next event.
    Idle,
    /// Somebody asked the engine to end.
    Stop,
}

/// All live state, in one place and owned by one thread.
pub struct Engine<E: Executor> {
    executor: E,
    events: Events,
    board: Arc<Board>,
    room: Room,
    /// Requests in order of arrival. Bounded: each was counted before it was sent.
    waiting: VecDeque<Box<Admission>>,
    /// By slot.
    active: Box<[Option<Active>]>,
    pages: PagePool,
    /// By lane.
    flights: [Option<Flight<E::Pass>>; Lane::COUNT],
    costs: Costs,
    /// What guesses have shown.
    experience: Experience,
    /// The pause that a running stream may have because of others.
    gap_max: Duration,
    /// How long a sequence may wait for its reader.
    idle_timeout: Duration,
    /// Whether no slice of the prompt lane has followed the last decode window.
    slice_owed: bool,
    /// Windows that may begin all the same because short prompts ride in them.
    rides_left: usize,
    windows: u64,
    /// Shares that sequences have had of windows.
    served: u64,
    stopping: bool,
    meters: Meters,
    steps: Option<StepLog>,
    scratch: Scratch,
    // Used again from window to window.
    demands: Vec<Demand>,
    plan: Vec<Share>,
    /// Each lane's shares while it has no pass.
    shares: [Vec<Share>; Lane::COUNT],
    choices: Vec<(Slot, Result<Choice, EngineError>)>,
    slot_steps: Vec<SlotStep>,
    /// Tokens that were predicted for a window, each with whose they are.
    predicted: Vec<(Slot, Token)>,
}

impl<E: Executor> Engine<E> {
    /// An engine without a thread: whoever owns it takes its turns. Most want [`Engine::start`].
    pub fn new(executor: E, settings: &EngineSettings) -> Result<(Self, Handle), SettingsError> {
        let capacity = executor.capacity();
        settings.check(&capacity)?;
        let steps = settings.open_step_log()?;
        let board = Arc::new(settings.board(capacity));
        let (inbox, events) = event::inbox(board.places());
        let engine = Self {
            executor,
            events,
            room: Room {
                rows: capacity.rows,
                decode_rows: capacity.decode_rows,
                logits_rows: capacity.logits_rows,
                chunk_rows: settings.chunk_rows.unwrap_or(capacity.rows),
                slices_ahead: capacity.slices_ahead,
            },
            waiting: VecDeque::with_capacity(board.places()),
            active: (0..capacity.slots).map(|_| None).collect(),
            pages: PagePool::new(capacity.pages),
            flights: [None, None],
            costs: Costs::default(),
            experience: Experience::default(),
            gap_max: settings.gap_max.unwrap_or(settings::GAP_MAX),
            idle_timeout: settings.idle_timeout,
            slice_owed: false,
            rides_left: schedule::RIDES_MAX,
            windows: 0,
            served: 0,
            stopping: false,
            meters: Meters::new(capacity.slots, capacity.pages),
            steps,
            scratch: Scratch::default(),
            demands: Vec::with_capacity(capacity.slots),
            plan: Vec::with_capacity(capacity.slots),
            shares: [(); Lane::COUNT].map(|()| Vec::with_capacity(capacity.slots)),
            choices: Vec::with_capacity(capacity.logits_rows),
            slot_steps: Vec::with_capacity(capacity.slots),
            predicted: Vec::with_capacity(capacity.logits_rows),
            board: board.clone(),
        };
        Ok((engine, Handle::new(inbox, board)))
    }

    /// Takes what has come in, then begins a pass or advances one under way by a slice.
    ///
    /// **Errors** The executor failed. The engine is of no more use: [`stop`](Self::stop) it.
    pub fn turn(&mut self) -> Result<Turn, E::Error> {
        while let Some(event) = self.events.next() {
            self.take(event);
            if self.stopping {
                break; // nobody left to send also reads as a shutdown, again and again
            }
        }
        if self.stopping {
            return Ok(Turn::Stop);
        }
        let now = self.executor.now();
        self.forget_leaving(now);
        self.release_leaving(now);
        let turn = match self.flights[Lane::Decode as usize] {
            Some(_) => self.advance(Lane::Decode)?, // streams wait for it
            None => self.choose_work()?,
        };
        self.board.progress(turn == Turn::Busy);
        Ok(turn)
    }

    /// Sleeps until something comes in, or until somebody's time is up.
    pub fn wait(&mut self) {
        let now = self.executor.now();
        let most = self
            .next_due()
            .map(|due| due.saturating_duration_since(now));
        if let Some(event) = self.events.wait(most) {
            self.take(event);
        }
    }

    /// Ends every sequence; their readers and all later requests are told why.
    pub fn stop(mut self, why: Option<String>) {
        self.board.stop(why); // first: a reader who finds his outbox closed asks the board
        self.flights = [None, None];
        for request in self.waiting.drain(..) {
            request.span.record("reason", Ending::Stopped.reason());
        }
        for slot in 0..self.active.len() {
            self.release(slot, Ending::Stopped);
        }
        self.board.progress(false);
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Admit(mut request) => {
                let now = self.executor.now();
                request.due = request.deadline.and_then(|after| now.checked_add(after));
                self.waiting.push_back(request);
                self.show();
            }
            Event::Wake => {} // every turn looks at credits and cancels
            Event::Shutdown => self.stopping = true,
        }
    }
}
