//! Windows: from what sequences want to a pass, and from a finished pass to tokens.
//!
//! A pass may be left after any slice, so everything it will be asked for later travels with it.

use std::{
    mem,
    time::{Duration, Instant},
};

use super::{
    Engine, Turn,
    active::{Ending, Verified},
    costs::Load,
    drafts::{PLAIN_EVERY, RowCosts, Terms},
    executor::{Executor, Lane, Progress, Slot, Span, Torn},
    request::EngineError,
    schedule::{Next, RIDES_MAX, Share, Situation, UnderWay, schedule, window_max},
    steps::Step,
};

/// What kind of rows a window holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each row is a sequence's last token, or a guess behind it.
    Decode,
    /// Prompt rows only.
    Prefill,
    /// Both.
    Mixed,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Decode, Self::Prefill, Self::Mixed];

    /// The name it has in metrics and in the step log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Prefill => "prefill",
            Self::Mixed => "mixed",
        }
    }
}

/// How many rows of what a window holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Sequences with rows in it.
    pub slots: usize,
    /// Prompt rows.
    pub prompt_rows: usize,
    /// Decode rows.
    pub decode_rows: usize,
    /// Of these, guesses.
    pub drafts: usize,
    /// Of these, those that were right.
    pub accepted: usize,
}

/// What a window held of one slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotStep {
    pub(super) slot: Slot,
    pub(super) rows: usize,
    /// Of a sequence that decodes.
    pub(super) verified: Option<Verified>,
}

impl Census {
    /// All rows.
    pub fn rows(&self) -> usize {
        self.prompt_rows + self.decode_rows
    }

    /// What kind of window that is.
    pub fn kind(&self) -> Kind {
        match (self.prompt_rows, self.decode_rows) {
            (0, _) => Kind::Decode,
            (_, 0) => Kind::Prefill,
            _ => Kind::Mixed,
        }
    }
}

/// Where a window's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Admitting and choosing rows.
    pub schedule: Duration,
    /// Predicting tokens.
    pub draft: Duration,
    /// In the executor.
    pub compute: Duration,
    /// Choosing tokens.
    pub sample: Duration,
    /// Accepting tokens and handing them out.
    pub emit: Duration,
}

impl Parts {
    /// All of it.
    pub fn total(&self) -> Duration {
        self.schedule + self.draft + self.compute + self.sample + self.emit
    }
}

/// A pass under way.
pub(super) struct Flight<P> {
    pub(super) pass: P,
    /// Whose rows it holds, in the order of the executor's spans.
    shares: Vec<Share>,
    census: Census,
    /// None once rows were taken out: its time says nothing of any number of rows.
    load: Option<Load>,
    /// What its scheduling took.
    schedule: Duration,
    /// What predicting took.
    draft: Duration,
    /// What it has taken so far: beginning and slices, without what came between.
    compute: Duration,
}

impl<P> Flight<P> {
    fn rows(&self) -> usize {
        self.shares.iter().map(|share| share.rows).sum()
    }
}

impl<E: Executor> Engine<E> {
    /// Admits, then begins or advances what the schedule says. No window of the decode lane is under way.
    pub(super) fn choose_work(&mut self) -> Result<Turn, E::Error> {
        let started = self.executor.now();
        self.admit();
        let decoding = self.active.iter().flatten();
        let decoding = decoding.filter(|active| active.decodes());
        let plain = decoding.fold(Load::default(), |load, active| {
            load.with(Load::of(1, active.request.sequence.computed()))
        });
        let under_way = self.flights[Lane::Prompt as usize].as_ref();
        let under_way = under_way.map(|flight| UnderWay {
            rows: flight.rows(),
            kind: self.executor.slice_kind(&flight.pass),
        });
        let guesses =
            plain.rows > 0 && self.board.depth_max > 0 && !self.windows.is_multiple_of(PLAIN_EVERY);
        let slice = under_way.map(|pass| self.costs.longest_slice(pass.rows));
        let slice = slice.map(|slice| slice * (1 + self.room.slices_ahead) as u32);
        let terms = Terms {
            costs: &self.costs,
            rows: guesses
                .then(|| RowCosts::new(&self.costs, plain.rows))
                .flatten(),
            window_max: window_max(&self.costs, self.gap_max, plain, slice).as_secs_f64(),
            depth_max: self.board.depth_max,
            predicted_max: if self.board.capacity.predicts {
                self.board.depth_max
            } else {
                0
            },
            together: plain.rows,
        };
        let waiting = self.active.iter_mut().flatten();
        let waiting = waiting.filter(|active| !active.reading);
        self.demands.clear();
        for active in waiting {
            self.demands.push(active.demand(started, &terms));
            self.board
                .slot_parked(active.slot.0 as usize, active.is_parked());
        }
        let now = Situation {
            room: self.room,
            costs: &self.costs,
            gap_max: self.gap_max,
            under_way,
            slice_owed: self.slice_owed,
            rides_left: self.rides_left,
        };
        match schedule(&mut self.demands, &now, &mut self.plan) {
            Next::Window => self.begin(Lane::Decode, started),
            Next::Ride => {
                self.rides_left -= 1;
                self.begin(Lane::Decode, started)
            }
            Next::Chunk => self.begin(Lane::Prompt, started),
            Next::Slice => self.advance(Lane::Prompt),
            Next::Nothing => Ok(Turn::Idle),
        }
    }

    /// Begins a pass with the planned rows on a free lane.
    fn begin(&mut self, lane: Lane, started: Instant) -> Result<Turn, E::Error> {
        self.board.progress(true); // from here on the executor owes a sign
        let begun = self.executor.now();
        let mut shares = mem::take(&mut self.shares[lane as usize]);
        mem::swap(&mut shares, &mut self.plan);
        if lane == Lane::Decode {
            self.predict(&mut shares)?;
        }
        let predicted = self.executor.now();
        let census = self.serve(lane, &shares, begun);
        let active = &self.active;
        let candidates = self.board.capacity.candidates;
        let spans: Vec<Span<'_>> = shares
            .iter()
            .filter_map(|share| {
                let active = active[share.slot.0 as usize].as_ref()?;
                Some(active.span(share.rows, candidates))
            })
            .collect();
        let pass = self.executor.begin(lane, &spans)?;
        let load = spans.iter().fold(Load::default(), |load, span| {
            load.with(Load::of(span.tokens.len(), span.first as usize))
        });
        for share in &shares {
            if let Some(active) = &mut self.active[share.slot.0 as usize] {
                active.tell_ahead(share.rows, &mut self.executor);
            }
        }
        self.flights[lane as usize] = Some(Flight {
            pass,
            load: Some(load),
            shares,
            census,
            schedule: begun - started,
            draft: predicted - begun,
            compute: self.executor.now() - predicted,
        });
        Ok(Turn::Busy)
    }

    /// Advances a lane's pass by a slice, and completes it with the last.
    pub(super) fn advance(&mut self, lane: Lane) -> Result<Turn, E::Error> {
        let Some(mut flight) = self.flights[lane as usize].take() else {
            return Ok(Turn::Busy);
        };
        let (rows, kind) = (flight.rows(), self.executor.slice_kind(&flight.pass));
        let started = self.executor.now();
        let progress = self.executor.advance(&mut flight.pass)?;
        flight.compute += self.executor.now() - started;
        if let Some(torn) = self.executor.torn(&mut flight.pass) {
            self.flights[lane as usize] = Some(flight);
            self.fail(lane, &torn);
            match self.flights[lane as usize].take() {
                Some(rest) => flight = rest,
                None => return Ok(Turn::Busy),
            }
        }
        match progress {
            Progress::More => self.flights[lane as usize] = Some(flight),
            Progress::Done => self.complete(lane, flight)?,
        }
        if lane == Lane::Prompt {
            self.costs
                .note_slice(kind, rows, self.executor.now() - started);
        }
        self.slice_owed = lane == Lane::Decode;
        if lane == Lane::Prompt {
            self.rides_left = RIDES_MAX.min(self.rides_left + 1);
        }
        Ok(Turn::Busy)
    }

    /// Takes a slot's rows out of the pass that holds them, if one does.
    pub(super) fn withdraw(&mut self, slot: Slot) {
        for (lane, place) in self.flights.iter_mut().enumerate() {
            let Some(flight) = place else {
                continue;
            };
            let mut shares = flight.shares.iter();
            let Some(at) = shares.position(|share| share.slot == slot) else {
                continue;
            };
            flight.shares.remove(at);
            flight.load = None;
            self.executor.withdraw(&mut flight.pass, slot);
            if flight.shares.is_empty()
                && let Some(flight) = place.take()
            {
                self.executor.abandon(flight.pass);
                self.shares[lane] = flight.shares;
            }
        }
    }

    /// Ends the sequences of a pass that cannot go on. Others are none the wiser.
    fn fail(&mut self, lane: Lane, torn: &Torn) {
        tracing::error!(why = %torn.why, sequences = torn.slots.len(), ?lane, "answers end");
        for slot in &torn.slots {
            self.withdraw(*slot);
            let why = torn.why.clone();
            let failed = Ending::Failed(EngineError::Unreadable { why });
            self.release(slot.0 as usize, failed);
        }
    }

    /// Notes whom the window serves and counts its rows.
    fn serve(&mut self, lane: Lane, shares: &[Share], now: Instant) -> Census {
        let mut census = Census::default();
        for share in shares {
            if let Some(active) = &mut self.active[share.slot.0 as usize] {
                let prompt_rows = active.prompt_rows(share.rows);
                census.slots += 1;
                census.prompt_rows += prompt_rows;
                census.decode_rows += share.rows - prompt_rows;
                census.drafts += active.drafts();
                self.served += 1;
                active.serve(lane, self.served, now);
            }
        }
        census
    }

    /// Turns a finished pass into tokens.
    fn complete(&mut self, lane: Lane, flight: Flight<E::Pass>) -> Result<(), E::Error> {
        let begun = self.executor.now();
        self.executor.finish(flight.pass)?;
        let computed = self.executor.now();
        let mut census = flight.census;
        let mut row = 0;
        for share in &flight.shares {
            let mut verified = None;
            if let Some(active) = &mut self.active[share.slot.0 as usize] {
                let asks = active.asks(share.rows);
                active.advance(share.rows, computed);
                verified = self.verify(share, row, asks)?;
                row += asks;
            }
            census.accepted += verified.map_or(0, |of| of.accepted);
            if self.steps.is_some() {
                self.slot_steps.push(SlotStep {
                    slot: share.slot,
                    rows: share.rows,
                    verified,
                });
            }
        }
        let sampled = self.executor.now();
        let generated = self.emit(&flight.shares, sampled);
        let parts = Parts {
            schedule: flight.schedule,
            draft: flight.draft,
            compute: flight.compute + (computed - begun),
            sample: sampled - computed,
            emit: self.executor.now() - sampled,
        };
        let tells = lane == Lane::Decode || self.board.capacity.lanes_alike;
        if let Some(load) = flight.load.filter(|_| tells) {
            self.costs.note_window(load, parts.total());
            if census.kind() == Kind::Decode {
                // whoever is told of a token may run at once, here, for as long as it likes
                let took = parts.compute + parts.sample;
                self.costs.note_decode(load, took);
            }
        }
        self.tell(census, generated, parts);
        self.shares[lane as usize] = flight.shares;
        Ok(())
    }

    /// Hands out the choices and frees who is done; returns how many tokens there were.
    fn emit(&mut self, shares: &[Share], now: Instant) -> usize {
        let mut choices = mem::take(&mut self.choices);
        let mut generated = 0;
        for (slot, choice) in choices.drain(..) {
            let slot = slot.0 as usize;
            let Some(active) = &mut self.active[slot] else {
                continue;
            };
            generated += usize::from(choice.is_ok());
            let ending = match choice {
                Ok(choice) => active.emit(choice, now, &self.meters),
                Err(error) => Some(Ending::Failed(error)),
            };
            if let Some(ending) = ending {
                self.board.slot(active.stats());
                self.release(slot, ending);
            }
        }
        for share in shares {
            if let Some(active) = &self.active[share.slot.0 as usize] {
                self.board.slot(active.stats());
            }
        }
        self.choices = choices;
        generated
    }

    fn tell(&mut self, census: Census, generated: usize, parts: Parts) {
        self.windows += 1;
        self.board.count_window(census.prompt_rows, generated);
        self.meters.window(&census, generated, &parts);
        if let Some(steps) = &self.steps {
            let step = Step {
                window: self.windows,
                census,
                parts,
                kv_pages: self.pages.used(),
                by_slot: self.slot_steps.drain(..).collect(),
            };
            if !steps.put(step) {
                self.board.drop_step();
            }
        }
    }
}
