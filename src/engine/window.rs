//! Windows: from what sequences want to a pass, and from a finished pass to tokens.
//!
//! A pass may be left after any slice, so everything it will be asked for later travels with it.

use std::{
    mem,
    time::{Duration, Instant},
};

use super::{
    Engine, Turn,
    active::{Choice, Ending},
    costs::Load,
    executor::{Executor, Lane, Outcome, Progress, Slot, Span},
    request::EngineError,
    schedule::{Next, RIDES_MAX, Share, Situation, schedule},
    steps::Step,
};

/// What kind of rows a window holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each row is a sequence's last token.
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
        self.schedule + self.compute + self.sample + self.emit
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
        let waiting = self.active.iter_mut().flatten();
        let waiting = waiting.filter(|active| !active.reading);
        self.demands.clear();
        for active in waiting {
            self.demands.push(active.demand(started));
            self.board
                .slot_parked(active.slot.0 as usize, active.is_parked());
        }
        let now = Situation {
            room: self.room,
            costs: &self.costs,
            gap_max: self.gap_max,
            pass_rows: self.flights[Lane::Prompt as usize]
                .as_ref()
                .map(Flight::rows),
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
        self.flights[lane as usize] = Some(Flight {
            pass,
            load: Some(spans.iter().fold(Load::default(), |load, span| {
                load.with(Load::of(span.tokens.len(), span.first as usize))
            })),
            shares,
            census,
            schedule: begun - started,
            compute: self.executor.now() - begun,
        });
        Ok(Turn::Busy)
    }

    /// Advances a lane's pass by a slice, and completes it with the last.
    pub(super) fn advance(&mut self, lane: Lane) -> Result<Turn, E::Error> {
        let Some(mut flight) = self.flights[lane as usize].take() else {
            return Ok(Turn::Busy);
        };
        let rows = flight.rows();
        let started = self.executor.now();
        let progress = self.executor.advance(&mut flight.pass)?;
        flight.compute += self.executor.now() - started;
        match progress {
            Progress::More => self.flights[lane as usize] = Some(flight),
            Progress::Done => self.complete(lane, flight)?,
        }
        if lane == Lane::Prompt {
            self.costs.note_slice(rows, self.executor.now() - started);
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

    /// Notes whom the window serves and counts its rows.
    fn serve(&mut self, lane: Lane, shares: &[Share], now: Instant) -> Census {
        let mut census = Census::default();
        for share in shares {
            if let Some(active) = &mut self.active[share.slot.0 as usize] {
                let prompt_rows = active.prompt_rows(share.rows);
                census.slots += 1;
                census.prompt_rows += prompt_rows;
                census.decode_rows += share.rows - prompt_rows;
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
        let mut row = 0;
        for share in &flight.shares {
            let slot = share.slot.0 as usize;
            let mut choice = None;
            if let Some(active) = &mut self.active[slot] {
                let asks = active.asks(share.rows);
                active.advance(share.rows, computed);
                if asks {
                    choice = self.choose(slot, row)?;
                    row += 1;
                }
            }
            self.choices.push(choice);
        }
        let sampled = self.executor.now();
        let generated = self.emit(&flight.shares, sampled);
        let parts = Parts {
            schedule: flight.schedule,
            compute: flight.compute + (computed - begun),
            sample: sampled - computed,
            emit: self.executor.now() - sampled,
        };
        let tells = lane == Lane::Decode || self.board.capacity.lanes_alike;
        if let Some(load) = flight.load.filter(|_| tells) {
            self.costs.note_window(load, parts.total());
        }
        self.tell(flight.census, generated, parts);
        self.shares[lane as usize] = flight.shares;
        Ok(())
    }

    /// A sequence's next token, by what became of the `row`th row that was asked.
    fn choose(
        &mut self,
        slot: usize,
        row: usize,
    ) -> Result<Option<Result<Choice, EngineError>>, E::Error> {
        let Some(active) = &self.active[slot] else {
            return Ok(None);
        };
        let choice = active.choose(self.executor.outcome(row)?, &mut self.scratch);
        if choice.is_some() {
            return Ok(choice);
        }
        let logits = self.executor.logits(row)?;
        Ok(active.choose(Outcome::Logits(logits), &mut self.scratch))
    }

    /// Hands out the choices and frees who is done; returns how many tokens there were.
    fn emit(&mut self, shares: &[Share], now: Instant) -> usize {
        let mut choices = mem::take(&mut self.choices);
        let mut generated = 0;
        for (share, choice) in shares.iter().zip(choices.drain(..)) {
            let slot = share.slot.0 as usize;
            let Some(active) = &mut self.active[slot] else {
                continue;
            };
            generated += usize::from(matches!(choice, Some(Ok(_))));
            let ending = match choice {
                None => None,
                Some(Ok(choice)) => active.emit(choice, now, &self.meters),
                Some(Err(error)) => Some(Ending::Failed(error)),
            };
            self.board.slot(active.stats());
            if let Some(ending) = ending {
                self.release(slot, ending);
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
            };
            if !steps.put(step) {
                self.board.drop_step();
            }
        }
    }
}
