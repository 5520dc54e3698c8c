//! Guesses before a window and after it: what is to be predicted is predicted, and what was guessed is compared with what is chosen.

use super::{
    Engine,
    active::{Active, Choice, Verified},
    costs::Head,
    executor::{Executor, Outcome, Slot},
    request::{EngineError, Token},
    schedule::Share,
};

impl<E: Executor> Engine<E> {
    /// Predicts the tokens that are to be predicted for a window. A sequence may get fewer rows by it.
    pub(super) fn predict(&mut self, shares: &mut [Share]) -> Result<(), E::Error> {
        let begun = self.executor.now();
        let active = &self.active;
        let guesses: Vec<_> = shares
            .iter()
            .filter_map(|share| active[share.slot.0 as usize].as_ref()?.ahead())
            .collect();
        if guesses.is_empty() {
            return Ok(());
        }
        self.predicted.clear();
        self.executor.predict(&guesses, &mut self.predicted)?;
        let tokens = self.predicted.len();
        let steps = guesses.iter().map(|of| of.depth).max().unwrap_or(1);
        let slots = guesses.iter().map(|of| of.slot.0 as usize);
        let late = slots
            .filter(|slot| active[*slot].as_ref().is_some_and(Active::predicts_late))
            .count();
        let from_list: Vec<_> = guesses.iter().filter(|of| of.among.is_some()).collect();
        let is_listed = |(slot, _): &&(Slot, Token)| from_list.iter().any(|of| of.slot == *slot);
        let listed = self.predicted.iter().filter(is_listed).count();
        for (slot, token) in &self.predicted {
            if let Some(active) = &mut self.active[slot.0 as usize] {
                active.guess_by(*token);
            }
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
            0 => self
                .costs
                .note_prediction(Head::Whole, [tokens, steps], late, took),
            _ if listed == tokens => {
                self.costs
                    .note_prediction(Head::Listed, [tokens, steps], late, took)
            }
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
