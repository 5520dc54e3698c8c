//! An admitted sequence with everything it holds: slot, pages, sampler, outbox, and the times it will be told.
//!
//! Knows one sequence; knows nothing of others or of windows.

use std::time::{Duration, Instant};

use super::{
    drafts::{Drafts, Source, Terms},
    event::Admission,
    executor::{Ask, Executor, Guess, Lane, Outcome, PageId, Slot, Span},
    meters::Meters,
    request::{EngineError, FinishReason, Logprobs, Timings, Token},
    schedule::Demand,
    sequence::{Accepted, Phase, Want},
    stats::SlotStats,
};
use crate::sampler::{self, Scratch};

/// A token and what was asked to come with it.
pub(super) struct Choice {
    pub(super) token: Token,
    pub(super) logprobs: Option<Logprobs>,
    pub(super) accepted: Accepted,
}

/// What became of a sequence's guesses in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verified {
    pub(super) source: Source,
    pub(super) drafts: usize,
    pub(super) accepted: usize,
}

/// How a sequence leaves its slot.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ending {
    Finished(FinishReason),
    Failed(EngineError),
    Cancelled,
    Stopped,
}

impl Ending {
    /// The name it has in traces and metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Finished(FinishReason::Stop) => "stop",
            Self::Finished(FinishReason::Length) => "length",
            Self::Failed(EngineError::NotFinite { .. }) => "not_finite",
            Self::Failed(EngineError::Unreadable { .. }) => "unreadable",
            Self::Failed(EngineError::DeadlineExceeded { .. }) => "late",
            Self::Failed(EngineError::ReaderIdle { .. }) => "idle",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
            Self::Stopped => "stopped",
        }
    }
}

impl Admission {
    /// How it gives up its place, whether in the queue or in a slot, before its end, if it does.
    pub(super) fn leaves(&self, now: Instant) -> Option<Ending> {
        if self.outbox.is_cancelled() {
            return Some(Ending::Cancelled);
        }
        let after = self.deadline?;
        (now >= self.due?).then_some(Ending::Failed(EngineError::DeadlineExceeded { after }))
    }

    /// Tells trace and reader how it ended. Everything it held must have been given back before.
    pub(super) fn close(self, ending: Ending, timings: Timings) {
        self.span
            .record("generated_tokens", timings.generated_tokens);
        self.span.record("reason", ending.reason());
        match ending {
            Ending::Finished(reason) => self.outbox.finish(reason, timings),
            Ending::Failed(error) => self.outbox.fail(error),
            // Nobody reads any more, or everybody learns it from the board.
            Ending::Cancelled | Ending::Stopped => {}
        }
    }
}

/// A sequence in a slot.
pub(super) struct Active {
    pub(super) request: Box<Admission>,
    pub(super) slot: Slot,
    pub(super) pages: Vec<PageId>,
    /// Tokens that are to be predicted before its next window.
    predictions: usize,
    /// Prompt positions of which the executor was told.
    told: usize,
    /// Whether its rows are under way on the prompt lane.
    pub(super) reading: bool,
    /// When it last had a share of a window, as [`Demand::served`] counts.
    served: u64,
    admitted: Instant,
    /// Since when it has been waiting for rows.
    since: Instant,
    /// Since when it has been waiting for its reader.
    parked: Option<Instant>,
    worst_gap: Duration,
    first_row: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Active {
    pub(super) fn new(
        request: Box<Admission>,
        slot: Slot,
        pages: Vec<PageId>,
        now: Instant,
    ) -> Self {
        Self {
            request,
            slot,
            pages,
            predictions: 0,
            told: 0,
            reading: false,
            served: 0,
            admitted: now,
            since: now,
            parked: None,
            worst_gap: Duration::ZERO,
            first_row: None,
            first_token: None,
            last_token: None,
        }
    }

    /// Whether it has a row to decode, and a reader with room for the token.
    pub(super) fn decodes(&self) -> bool {
        self.request.sequence.phase() == Phase::Decode && self.request.outbox.credit() > 0
    }

    /// What it wants of the next window, if its reader has room for what that can produce.
    pub(super) fn demand(&mut self, now: Instant, terms: &Terms<'_>) -> Demand {
        self.guess(terms);
        let mut want = self.request.sequence.want(self.request.outbox.credit());
        if let Want::Decode { rows } = &mut want {
            *rows += self.predictions;
        }
        let parked = (want == Want::Nothing).then_some(self.parked.unwrap_or(now));
        if parked.or(self.parked).is_some() {
            self.since = now; // until now it has waited for its reader, not for rows
        }
        self.parked = parked;
        Demand {
            slot: self.slot,
            arrival: self.request.id,
            served: self.served,
            waited: now.saturating_duration_since(self.since),
            first: self.request.sequence.computed(),
            want,
        }
    }

    /// Guesses its next tokens, if that pays.
    fn guess(&mut self, terms: &Terms<'_>) {
        let Admission {
            sequence,
            drafts: Some(drafts),
            outbox,
            ..
        } = &mut *self.request
        else {
            return;
        };
        sequence.guess_nothing();
        self.predictions = 0;
        if sequence.phase() == Phase::Decode {
            let most = sequence.drafts_max(outbox.credit());
            let plan = drafts.plan(sequence.known(), most, terms);
            match plan.source {
                Source::Lookup => sequence.guess_again(plan.from, plan.depth),
                Source::Prediction => self.predictions = plan.depth,
            }
        }
    }

    /// What is to be predicted behind its last token, if anything is.
    pub(super) fn ahead(&self) -> Option<Guess<'_>> {
        let sequence = &self.request.sequence;
        (self.predictions > 0).then(|| Guess {
            slot: self.slot,
            token: sequence.last(),
            position: sequence.next_position(),
            depth: self.predictions,
            pages: &self.pages,
            sampler: &self.request.sampler,
            stop_tokens: sequence.stop_tokens(),
            among: self.request.drafts.as_ref().and_then(Drafts::among),
        })
    }

    /// Whether it has not predicted lately.
    pub(super) fn predicts_late(&self) -> bool {
        self.request.drafts.as_ref().is_some_and(Drafts::is_late)
    }

    /// Guesses one more token.
    pub(super) fn guess_by(&mut self, token: Token) {
        self.request.sequence.guess(token);
    }

    /// Whether it waits for its reader.
    pub(super) fn is_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// How it gives up its place before its end, if it does: nobody reads, nobody has read for too long, or it is late.
    pub(super) fn leaves(&self, now: Instant, idle_timeout: Duration) -> Option<Ending> {
        let due = self.idle_at(idle_timeout);
        // whoever reads again after all is welcome, though it has not come to the next schedule yet
        let idle = due.is_some_and(|due| now >= due) && self.request.outbox.credit() == 0;
        self.request.leaves(now).or_else(|| {
            idle.then_some(Ending::Failed(EngineError::ReaderIdle {
                after: idle_timeout,
            }))
        })
    }

    /// When it will give up its place, if nothing happens before.
    pub(super) fn due(&self, idle_timeout: Duration) -> Option<Instant> {
        let dues = [self.request.due, self.idle_at(idle_timeout)];
        dues.into_iter().flatten().min()
    }

    fn idle_at(&self, idle_timeout: Duration) -> Option<Instant> {
        self.parked?.checked_add(idle_timeout)
    }

    /// How long it has held its slot.
    pub(super) fn held(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.admitted)
    }

    /// Its next `rows` rows, for an executor that tells so many candidates.
    pub(super) fn span(&self, rows: usize, candidates: usize) -> Span<'_> {
        let rows = self.request.sequence.rows(rows);
        Span {
            slot: self.slot,
            first: rows.first as u32,
            tokens: rows.tokens,
            pages: &self.pages,
            logits: rows.logits,
            drafts: self.request.sequence.drafts(),
            ask: match self.request.logprobs {
                Some(_) => Ask::Logits,
                None => self.request.sampler.ask(candidates),
            },
        }
    }

    /// Tells an executor of as many prompt tokens behind its next `rows` rows as a window holds, of each once.
    pub(super) fn tell_ahead<E: Executor>(&mut self, rows: usize, executor: &mut E) {
        let sequence = &self.request.sequence;
        let capacity = executor.capacity();
        let window = capacity.rows.max(capacity.decode_rows);
        let end = (sequence.computed() + rows + window).min(sequence.prompt_tokens());
        if self.told < end {
            let tokens = &sequence.known()[self.told..end];
            executor.ahead(self.slot, self.told, tokens);
            self.told = end;
        }
    }

    /// After how many of its next `rows` rows a token may have to be chosen.
    pub(super) fn asks(&self, rows: usize) -> usize {
        self.request.sequence.rows(rows).logits
    }

    /// Guesses behind its last token.
    pub(super) fn drafts(&self) -> usize {
        self.request.sequence.drafts()
    }

    /// Prompt rows among its next `rows` rows.
    pub(super) fn prompt_rows(&self, rows: usize) -> usize {
        match self.request.sequence.phase() {
            Phase::Prefill { .. } => rows,
            Phase::Decode | Phase::Finished(_) => 0,
        }
    }

    /// Takes note that its next rows are in a window.
    pub(super) fn serve(&mut self, lane: Lane, served: u64, now: Instant) {
        self.reading = lane == Lane::Prompt;
        self.served = served;
        self.first_row.get_or_insert(now);
    }

    /// Takes note that these rows are computed.
    pub(super) fn advance(&mut self, rows: usize, now: Instant) {
        self.reading = false;
        if self.request.sequence.phase() == Phase::Decode {
            let gap = now.saturating_duration_since(self.since);
            self.worst_gap = self.worst_gap.max(gap);
        }
        self.since = now;
        self.request.sequence.advance(rows);
    }

    /// Chooses and accepts the next token by what became of the last known token's row. None if that needs its logits.
    pub(super) fn choose(
        &mut self,
        outcome: Outcome<'_>,
        scratch: &mut Scratch,
    ) -> Option<Result<Choice, EngineError>> {
        let position = self.request.sequence.next_position();
        let sampler = &self.request.sampler;
        let token = match outcome {
            Outcome::NotFinite => Err(sampler::NotFinite),
            Outcome::Logits(row) => sampler.choose(row, position as u64, scratch),
            _ if self.request.logprobs.is_some() => return None,
            Outcome::Greedy(token) => Ok(token),
            Outcome::Candidates(of) => Ok(sampler.choose_among(&of, position as u64, scratch)?),
        };
        let request = &mut self.request;
        let choice = token.map(|token| {
            request.sampler.accept(token);
            Choice {
                token,
                logprobs: match (request.logprobs, outcome) {
                    (Some(top), Outcome::Logits(row)) => {
                        Some(sampler::logprobs(row, token, top, scratch))
                    }
                    _ => None,
                },
                accepted: request.sequence.accept(token),
            }
        });
        Some(choice.map_err(|sampler::NotFinite| EngineError::NotFinite {
            position: position - 1,
        }))
    }

    /// Takes note of how a window's guesses turned out, which began behind the token at position `at - 1`.
    pub(super) fn verify(&mut self, at: usize, drafts: usize, accepted: usize) -> Verified {
        let request = &mut *self.request;
        let mut source = Source::Lookup;
        if let Some(of) = &mut request.drafts {
            source = of.source();
            of.verify(request.sequence.known(), at, drafts, accepted);
        }
        Verified {
            source,
            drafts,
            accepted,
        }
    }

    /// Emits a choice, and says whether it was the last.
    pub(super) fn emit(&mut self, choice: Choice, now: Instant, meters: &Meters) -> Option<Ending> {
        match self.last_token.replace(now) {
            Some(last) => meters.itl.record(now - last),
            None => {
                self.first_token = Some(now);
                meters.ttft.record(now - self.request.submitted);
            }
        }
        if choice.accepted.emit {
            self.request.outbox.token(choice.token, choice.logprobs);
        }
        choice.accepted.end.map(Ending::Finished)
    }

    /// Tells trace and reader how it ended. Everything it held must have been given back before.
    pub(super) fn close(self, ending: Ending) {
        let timings = self.timings();
        self.request.close(ending, timings);
    }

    /// What the board shows of it.
    pub(super) fn stats(&self) -> SlotStats {
        let sequence = &self.request.sequence;
        SlotStats {
            slot: self.slot.0 as usize,
            request: self.request.id,
            prompt_tokens: sequence.prompt_tokens(),
            computed: sequence.computed(),
            generated: sequence.generated(),
            drafted: self.request.drafts.as_ref().map_or(0, |of| of.verified),
            accepted: self.request.drafts.as_ref().map_or(0, |of| of.accepted),
            decode: self.timings().decode,
            worst_gap: self.worst_gap,
            parked: self.is_parked(),
        }
    }

    fn timings(&self) -> Timings {
        let sequence = &self.request.sequence;
        let between = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to - from,
            _ => Default::default(),
        };
        Timings {
            queued: between(Some(self.request.submitted), self.first_row),
            prefill: between(self.first_row, self.first_token),
            decode: between(self.first_token, self.last_token),
            prompt_tokens: sequence.prompt_tokens(),
            generated_tokens: sequence.generated(),
            drafted_tokens: self.request.drafts.as_ref().map_or(0, |of| of.verified),
            accepted_tokens: self.request.drafts.as_ref().map_or(0, |of| of.accepted),
        }
    }
}
