//! Guesses at a sequence's next tokens, and how many of them pay.
//!
//! A guess costs a row of the next window and, if it turns out right, saves a window. It never changes a token: what is chosen at a position is chosen as it
//! would be without guesses. There are two sources. **Lookup**: the last tokens stood together before, in prompt or answer, so what followed then may follow
//! again. **Prediction**: the model's own block that predicts a token further, compared with the whole vocabulary or with a shortlist of it. For every window the source and the depth are taken that promise
//! most tokens for the time, by how often guesses like these were right and what rows and predictions have cost; no guess at all is one of the choices.
//!
//! Knows one sequence and the engine's costs. What other sequences guess, or how often they are right, changes nothing here: what the engine has learnt of
//! sequences that have ended is taken over once, at the start.

mod depth;
mod lookup;
mod rates;
mod shortlist;

use super::{
    costs::{Costs, Head, Load},
    request::Token,
};
pub(super) use depth::RowCosts;
use depth::{Bill, Choice};
use lookup::{Lookup, Match};
pub(super) use rates::Experience;
use rates::Rates;
use shortlist::Shortlist;

/// Guesses for one window at most.
pub(super) const DEPTH_MAX: usize = 8;

/// Windows after which one goes without guesses, so that it is known what that costs.
const PLAIN_EVERY: u32 = 32;

/// Windows without predictions after which something is predicted all the same, so that it is known whether that is right and what it costs; after every such trial
/// that went wrong twice as many, up to the last.
const TRIAL_EVERY: [u32; 2] = [24, 1024];
/// The same after a trial that went right. It is a token longer then, as longer windows may pay where the next longer one does not.
const TRIAL_AGAIN: u32 = 4;
/// Tokens of a trial at most.
const TRIAL_DEPTH: usize = 3;

/// Where a guess comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It followed the same tokens before.
    Lookup,
    /// The model predicted it.
    Prediction,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Lookup, Self::Prediction];

    /// The name it has in metrics and in the step log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Prediction => "prediction",
        }
    }
}

/// What is to be guessed for the next window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) source: Source,
    /// Guesses at most; 0 is none.
    pub(super) depth: usize,
    /// Of [`Source::Lookup`]: the position from which on tokens come again.
    pub(super) from: usize,
    /// Whether it is not expected to pay.
    trial: bool,
    /// Of [`Source::Prediction`]: what predictions are chosen among.
    head: Head,
}

impl Plan {
    const NOTHING: Self = Self {
        source: Source::Lookup,
        depth: 0,
        from: 0,
        trial: false,
        head: Head::Whole,
    };
}

/// What guesses are worth at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    pub(super) costs: &'a Costs,
    /// Of a window of all sequences that decode; None if nobody may guess, or nothing is known yet.
    pub(super) rows: Option<RowCosts>,
    /// **Units**: seconds. What a window may take because of guesses.
    pub(super) window_max: f64,
    /// Guesses that a sequence may have.
    pub(super) depth_max: usize,
    /// Of these, as many can be predicted.
    pub(super) predicted_max: usize,
}

/// One sequence's guesses.
#[derive(Clone, Debug)]
pub(super) struct Drafts {
    lookup: Lookup,
    shortlist: Shortlist,
    rates: Rates,
    /// What the last known tokens were found to repeat.
    found: Option<Match>,
    plan: Plan,
    /// Windows since one without guesses.
    since_plain: u32,
    /// Windows since something was predicted.
    since_predicted: u32,
    /// After how many of them there is a trial.
    trial_every: u32,
    /// After how many once one has gone wrong.
    trial_wait: u32,
    /// How many tokens it has.
    trial_depth: usize,
    /// Guesses that were verified, and those that were right.
    pub(super) verified: usize,
    pub(super) accepted: usize,
}

impl Drafts {
    /// For a sequence of up to `positions_max` tokens that begins with this prompt and may end with one of `stops`; of the vocabulary so many tokens are `frequent`.
    pub(super) fn new(
        prompt: &[Token],
        stops: &[Token],
        positions_max: usize,
        frequent: usize,
    ) -> Self {
        let mut lookup = Lookup::new(positions_max);
        lookup.learn(prompt);
        let mut shortlist = Shortlist::new(frequent, stops);
        shortlist.learn(prompt);
        Self {
            lookup,
            shortlist,
            rates: Rates::default(),
            found: None,
            plan: Plan::NOTHING,
            since_plain: 0,
            since_predicted: 0,
            trial_every: TRIAL_EVERY[0],
            trial_wait: TRIAL_EVERY[0],
            trial_depth: 1,
            verified: 0,
            accepted: 0,
        }
    }

    /// Begins with what sequences like this one have shown.
    pub(super) fn take_over(&mut self, rates: &Rates) {
        self.rates = rates.clone();
    }

    /// How often its guesses were right.
    pub(super) fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Decides what to guess behind the `known` tokens, at most `most` of them.
    pub(super) fn plan(&mut self, known: &[Token], most: usize, terms: &Terms<'_>) -> Plan {
        self.lookup.learn(known);
        self.shortlist.learn(known);
        self.found = self.lookup.find(known);
        self.plan = self.choose(known.len(), most.min(terms.depth_max), terms);
        self.plan
    }

    fn choose(&self, position: usize, most: usize, terms: &Terms<'_>) -> Plan {
        if most == 0 || self.since_plain >= PLAIN_EVERY {
            return Plan::NOTHING;
        }
        let Some(rows) = &terms.rows else {
            return Plan::NOTHING;
        };
        let bill = |each: f64| {
            let attention = |depth| terms.costs.attention(Load::of(depth, position));
            Bill::new(rows, terms.window_max, |depth| {
                attention(depth) + each * depth as f64
            })
        };
        let looked_up = self.found.map_or(Choice::NOTHING, |found| {
            let chances = (0..most).map(|nth| self.rates.lookup(found.length + nth));
            bill(0.0).best(chances)
        });
        let predicted_max = most.min(terms.predicted_max);
        let (head, predicted) = self.predicted(predicted_max, terms.costs, bill);
        let due = predicted_max > 0 && self.since_predicted >= self.trial_every;
        let trial = due && looked_up.depth == 0 && predicted.depth == 0;
        let (source, depth) = match (looked_up.depth, predicted.depth) {
            _ if trial => {
                let longest = bill(terms.costs.prediction(head)).longest();
                let depth = self.trial_depth.min(predicted_max).min(longest.max(1));
                (Source::Prediction, depth)
            }
            (0, _) => (Source::Prediction, predicted.depth),
            (_, 0) => (Source::Lookup, looked_up.depth),
            _ if predicted.worth > looked_up.worth => (Source::Prediction, predicted.depth),
            _ => (Source::Lookup, looked_up.depth),
        };
        let from = self.found.map_or(0, |found| found.from);
        Plan {
            source,
            depth,
            from,
            trial,
            head,
        }
    }

    /// What predictions are best chosen among, and how many of them pay. `bill` is told what a prediction takes.
    fn predicted(&self, most: usize, costs: &Costs, bill: impl Fn(f64) -> Bill) -> (Head, Choice) {
        let of = |head: Head| {
            let each = costs.prediction(head);
            let listed = match head {
                Head::Whole => 1.0,
                Head::Listed => self.rates.listed(),
            };
            let chances = (0..most).map(|nth| listed * self.rates.prediction(nth));
            (head, each, bill(each).best(chances))
        };
        // where none pays, a trial takes the cheaper one
        let better = |a: &(Head, f64, Choice), b: &(Head, f64, Choice)| {
            a.2.worth.total_cmp(&b.2.worth).then(b.1.total_cmp(&a.1))
        };
        let heads = Head::of(self.shortlist.frequent());
        let best = heads.iter().map(|head| of(*head)).max_by(better);
        best.map_or((Head::Whole, Choice::NOTHING), |(head, _, choice)| {
            (head, choice)
        })
    }

    /// The tokens beside frequent ones that predictions of the plan are chosen among, if that is not the whole vocabulary.
    pub(super) fn among(&self) -> Option<&[Token]> {
        (self.plan.head == Head::Listed).then(|| self.shortlist.own())
    }

    /// The plan that the last window had.
    pub(super) fn source(&self) -> Source {
        self.plan.source
    }

    /// When something is predicted next although it is not expected to pay, now that a window had predictions that all were right or were not.
    fn plan_trial(&mut self, all_right: bool) {
        let (every, wait, depth) = match (self.plan.trial, all_right) {
            (true, true) => {
                let longer = TRIAL_DEPTH.min(self.trial_depth + 1);
                (TRIAL_AGAIN, self.trial_wait, longer)
            }
            (true, false) => {
                let wait = TRIAL_EVERY[1].min(2 * self.trial_wait);
                (wait, wait, 1)
            }
            (false, _) => (TRIAL_EVERY[0], TRIAL_EVERY[0], 1),
        };
        (self.trial_every, self.trial_wait, self.trial_depth) = (every, wait, depth);
    }

    /// Takes note of what a window gave: of `drafted` guesses `accepted` were right, and the tokens from position `at` on are now known.
    pub(super) fn verify(&mut self, known: &[Token], at: usize, drafted: usize, accepted: usize) {
        self.verified += drafted;
        self.accepted += accepted;
        self.since_plain = if drafted > 0 { self.since_plain + 1 } else { 0 };
        self.since_predicted = self.since_predicted.saturating_add(1);
        // whether or not there was a guess for it: what would have been looked up can be compared for nothing
        if let Some(found) = self.found.take() {
            for (nth, position) in (at..known.len()).enumerate() {
                let Some(guess) = known.get(found.from + nth) else {
                    break;
                };
                let right = *guess == known[position];
                self.rates.note_lookup(found.length + nth, right);
                if !right {
                    break;
                }
            }
        }
        if self.shortlist.frequent() > 0 {
            for token in &known[at.min(known.len())..] {
                self.rates.note_listed(self.shortlist.lists(*token));
            }
        }
        if self.plan.source == Source::Prediction && drafted > 0 {
            self.since_predicted = 0;
            self.plan_trial(accepted == drafted);
            for nth in 0..drafted.min(accepted + 1) {
                let right = nth < accepted;
                // that it did not name what it could not says nothing of the block
                let could = self.plan.head == Head::Whole
                    || (known.get(at + nth)).is_none_or(|token| self.shortlist.lists(*token));
                if right || could {
                    self.rates.note_prediction(nth, right);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// At which windows how many tokens are predicted although that is not expected to pay, if such a trial goes right or wrong as `right` says.
    fn trials(windows: usize, right: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
        const MS: Duration = Duration::from_millis(1);
        let mut costs = Costs::default();
        // a guess costs two windows, whatever it is worth
        (1..=9).for_each(|rows| costs.note_decode(Load::of(rows, 0), MS * rows as u32));
        costs.note_prediction(Head::Whole, 1, MS);
        let terms = Terms {
            costs: &costs,
            rows: RowCosts::new(&costs, 1),
            window_max: 1.0,
            depth_max: DEPTH_MAX,
            predicted_max: DEPTH_MAX,
        };
        let mut drafts = Drafts::new(&[], &[], 4096, 0);
        let mut known: Vec<Token> = vec![0];
        let mut found = Vec::new();
        for window in 0..windows {
            let plan = drafts.plan(&known, DEPTH_MAX, &terms);
            let at = known.len();
            let accepted = if right(found.len()) { plan.depth } else { 0 };
            known.extend((0..=accepted).map(|nth| (at + nth) as Token)); // nothing comes again
            if plan.depth > 0 {
                found.push((window, plan.depth));
            }
            drafts.verify(&known, at, plan.depth, accepted);
        }
        found
    }

    #[test]
    fn trials_are_rare_where_they_go_wrong_and_grow_where_they_go_right() {
        assert_eq!(
            trials(400, |_| false),
            [(24, 1), (73, 1), (170, 1), (363, 1)]
        );
        let all_right = [(24, 1), (29, 2), (34, 3), (39, 3)];
        assert_eq!(trials(40, |_| true), all_right);
        let second_wrong = trials(120, |nth| nth == 0);
        assert_eq!(second_wrong, [(24, 1), (29, 2), (78, 1)]);
    }
}
