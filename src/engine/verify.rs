//! Guesses before a window and after it: what is to be predicted is predicted, and what was guessed is compared with what is chosen.

use super::{
    Engine,
    active::{Choice, Verified},
    costs::Head,
    executor::{Executor, Guess, Outcome},
    request::EngineError,
    schedule::Share,
};

impl<E: Executor> Engine<E> {
    /// Predicts the tokens that are to be predicted for a window, one after the other for all its sequences together. A sequence may get fewer rows by it.
    pub(super) fn predict(&mut self, shares: &mut [Share]) -> Result<(), E::Error> {
        let begun = self.executor.now();
        let (mut tokens, mut listed) = (0, 0);
        for step in 0.. {
            let active = &self.active;
            let goes_on = |share: &&Share| {
                active[share.slot.0 as usize]
                    .as_ref()
                    .is_some_and(|active| active.predicts(step))
            };
            self.predicted.clear();
            self.predicted
                .extend(shares.iter().filter(goes_on).map(|share| share.slot));
            if self.predicted.is_empty() {
                break;
            }
            let candidates = self.board.capacity.candidates;
            let guesses: Vec<Guess<'_>> = self
                .predicted
                .iter()
                .filter_map(|slot| Some(active[slot.0 as usize].as_ref()?.ahead(candidates)))
                .collect();
            tokens += guesses.len();
            listed += guesses.iter().filter(|of| of.among.is_some()).count();
            self.executor.predict(step, &guesses)?;
            for row in 0..self.predicted.len() {
                let slot = self.predicted[row].0 as usize;
                let Some(active) = &mut self.active[slot] else {
                    continue;
                };
                let told = active.guess_by(self.executor.outcome(row)?, &mut self.scratch);
                if !told {
                    let logits = Outcome::Logits(self.executor.logits(row)?);
                    active.guess_by(logits, &mut self.scratch);
                }
            }
        }
        if tokens == 0 {
            return Ok(());
        }
        for share in shares {
            if let Some(active) = &self.active[share.slot.0 as usize]
                && active.decodes()
            {
                share.rows = 1 + active.drafts();
            }
        }
        let took = self.executor.now() - begun;
        match listed {
            0 => self.costs.note_prediction(Head::Whole, tokens, took),
            _ if listed == tokens => self.costs.note_prediction(Head::Listed, tokens, took),
            _ => {} // a mixture says nothing of either
        }
        Ok(())
    }

    /// Chooses a sequence's next tokens: as long as what is chosen was guessed, the row after it is its own. Rows of wrong guesses are taken back. `row`
    /// counts the rows that were asked before the sequence's own `asks`. What came of its guesses, if it could have any.
    pub(super) fn verify(
        &mut self,
        share: &Share,
        row: usize,
        asks: usize,
    ) -> Result<Option<Verified>, E::Error> {
        let slot = share.slot.0 as usize;
        let Some(active) = &mut self.active[slot] else {
            return Ok(None);
        };
        let (at, drafts) = (active.request.sequence.next_position(), active.drafts());
        let decodes = active.decodes();
        let mut accepted = 0;
        for ask in 0..asks {
            let Some(choice) = self.choose(slot, row + ask)? else {
                break;
            };
            let goes_on = choice
                .as_ref()
                .is_ok_and(|choice| choice.accepted.guessed && choice.accepted.end.is_none());
            accepted += usize::from(choice.as_ref().is_ok_and(|of| of.accepted.guessed));
            let ends = !choice.as_ref().is_ok_and(|of| of.accepted.end.is_none());
            self.choices.push((share.slot, choice));
            if !goes_on {
                let wrong = asks - ask - 1;
                if wrong > 0 && !ends {
                    self.executor.cut(share.slot, wrong);
                }
                break;
            }
        }
        let active = self.active[slot].as_mut().filter(|_| decodes);
        let verified = active.map(|active| active.verify(at, drafts, accepted));
        if let Some(verified) = verified {
            self.meters.drafts(&verified);
        }
        Ok(verified)
    }

    /// A sequence's next token, by what became of the `row`th row that was asked.
    fn choose(
        &mut self,
        slot: usize,
        row: usize,
    ) -> Result<Option<Result<Choice, EngineError>>, E::Error> {
        let Some(active) = &mut self.active[slot] else {
            return Ok(None);
        };
        let choice = active.choose(self.executor.outcome(row)?, &mut self.scratch);
        if choice.is_some() {
            return Ok(choice);
        }
        let logits = self.executor.logits(row)?;
        Ok(active.choose(Outcome::Logits(logits), &mut self.scratch))
    }
}
