//! Windows: from what sequences want to a pass, and from a finished pass to tokens.
//!
//! A pass may be left after any layer, so everything it will be asked for later travels with it.

use std::{
    mem,
    time::{Duration, Instant},
};

use super::{
    Engine, Turn,
    active::{Active, Ending},
    executor::{Executor, Span},
    schedule::{Share, schedule},
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
    /// Freeing, admitting and choosing rows.
    pub schedule: Duration,
    /// In the executor, and between its layers.
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
    pub(super) shares: Vec<Share>,
    pub(super) census: Census,
    /// What its scheduling took.
    pub(super) schedule: Duration,
    /// When the executor got it.
    pub(super) begun: Instant,
}

impl<E: Executor> Engine<E> {
    /// Frees and admits, then begins a pass with the rows that are wanted.
    pub(super) fn begin(&mut self) -> Result<Turn, E::Error> {
        let started = Instant::now();
        self.release_cancelled();
        self.admit();
        self.demands.clear();
        self.demands
            .extend(self.active.iter().flatten().map(Active::demand));
        let mut shares = mem::take(&mut self.shares);
        schedule(&mut self.demands, self.room, &mut shares);
        if shares.is_empty() {
            self.shares = shares;
            return Ok(Turn::Idle);
        }
        self.windows += 1;
        self.board.progress(true); // from here on the executor owes a sign
        let begun = Instant::now();
        let census = self.serve(&shares, begun);
        let active = &self.active;
        let spans: Vec<Span<'_>> = shares
            .iter()
            .filter_map(|share| Some(active[share.slot.0 as usize].as_ref()?.span(share.rows)))
            .collect();
        let pass = self.executor.begin(&spans)?;
        self.flight = Some(Flight {
            pass,
            shares,
            census,
            schedule: begun - started,
            begun,
        });
        Ok(Turn::Busy)
    }

    /// Takes the rows that nobody waits for any more out of the pass, and frees what their sequences hold.
    pub(super) fn withdraw_cancelled(&mut self, flight: &mut Flight<E::Pass>) {
        let mut shares = mem::take(&mut flight.shares);
        shares.retain(|share| {
            let slot = share.slot.0 as usize;
            let cancelled = self.active[slot].as_ref().is_none_or(Active::is_cancelled);
            if cancelled {
                self.executor.withdraw(&mut flight.pass, share.slot);
                self.release(slot, Ending::Cancelled);
            }
            !cancelled
        });
        flight.shares = shares;
    }

    /// Notes whom the window serves and counts its rows.
    fn serve(&mut self, shares: &[Share], now: Instant) -> Census {
        let mut census = Census::default();
        for share in shares {
            if let Some(active) = &mut self.active[share.slot.0 as usize] {
                let prompt_rows = active.prompt_rows(share.rows);
                census.slots += 1;
                census.prompt_rows += prompt_rows;
                census.decode_rows += share.rows - prompt_rows;
                self.served += 1;
                active.serve(self.served, now);
            }
        }
        census
    }

    /// Turns a finished pass into tokens.
    pub(super) fn complete(&mut self, flight: Flight<E::Pass>) -> Result<(), E::Error> {
        let vocab = self.board.capacity.vocab;
        let logits = self.executor.finish(flight.pass)?;
        let computed = Instant::now();
        let mut rows = logits.chunks_exact(vocab);
        for share in &flight.shares {
            let active = self.active[share.slot.0 as usize].as_mut();
            self.choices.push(active.and_then(|active| {
                let asked = active.span(share.rows).logits > 0;
                active.request.sequence.advance(share.rows);
                let row = asked.then(|| rows.next().expect("a row of logits for each asked"))?;
                Some(active.choose(row, &mut self.scratch))
            }));
        }
        let sampled = Instant::now();
        let generated = self.emit(&flight.shares, sampled);
        let parts = Parts {
            schedule: flight.schedule,
            compute: computed - flight.begun,
            sample: sampled - computed,
            emit: sampled.elapsed(),
        };
        self.tell(flight.census, generated, parts);
        self.shares = flight.shares;
        Ok(())
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
