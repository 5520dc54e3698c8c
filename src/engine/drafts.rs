//! Guesses at a sequence's next tokens, and how many of them pay.
//!
//! A guess costs a row of the next window and, if it turns out right, saves a window. It never changes a token: what is chosen at a position is chosen as it
//! would be without guesses. There are two sources. **Lookup**: the last tokens stood together before, in prompt or answer, so what followed then may follow
//! again. **Prediction**: the model's own block that predicts a token further, compared with the whole vocabulary or with a shortlist of it. For every window the source and the depth are taken that promise
//! most tokens for the time, by how often guesses like these were right and what rows and predictions have cost; no guess at all is one of the choices.
//!
//! Knows one sequence and the engine's costs. What other sequences guess, or how often they are right, changes nothing here: predictions are charged with what they cost if
//! all predict. What the engine has learnt of sequences that have ended is taken over once, at the start.
//!
//! Guesses must never lose. So what they promise is counted on less the less is known of them, the first guesses after windows without any are charged with what they disturb, agreement where
//! prompts are alike counts for nothing, and what is tried although it is not expected to pay has a share of the time that it may lose.

mod depth;
mod lookup;
mod rates;
mod shortlist;

use super::{
    costs::{Costs, Head, Load},
    request::Token,
};
pub(super) use depth::RowCosts;
use depth::{Bill, Choice, MARGIN};
use lookup::{Lookup, Match};
pub(super) use rates::Experience;
use rates::Rates;
use shortlist::Shortlist;

/// Guesses for one window at most.
pub(super) const DEPTH_MAX: usize = 8;

/// Of so many windows one goes without guesses, so that it is known what that costs.
pub(super) const PLAIN_EVERY: u64 = 64;

/// What the first guesses after windows without any cost besides, as a share of a window: what their rows need takes the place of what the next windows need in caches. **Source**: the
/// bundled model on 2 cores of an Intel Xeon, 2026-12-01: 45 us, 5 and 25 in the three windows behind one with guesses, each 610 us otherwise.
const START: f64 = 0.1;
/// Windows without predictions after which a block has more to read than it reads anyway.
const LATE: u32 = 4;
/// Windows with predictions that are assumed to follow each other: what the first costs besides is spread over them.
const RUN: f64 = 8.0;

/// What predictions that are not expected to pay may lose of a sequence's time. They show whether they are right after all, and what they cost.
const TRIAL_SHARE: f64 = 0.005;
/// The most that may be set aside for them, in windows: what went well once is no reason to go on when it does no more.
const TRIAL_MOST: f64 = 2.0;

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
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// **Units**: seconds. What the sequence's share of the window is expected to cost, and what it would without guesses.
    takes: f64,
    own: f64,
}

impl Plan {
    /// No guesses, where a sequence's share of a window costs so much.
    fn nothing(own: f64) -> Self {
        Self {
            source: Source::Lookup,
            depth: 0,
            from: 0,
            trial: false,
            head: Head::Whole,
            takes: own,
            own,
        }
    }

    /// **Units**: seconds. What it saves if `tokens` tokens come of it, by the same measure by which guesses are chosen.
    fn saves(&self, tokens: f64) -> f64 {
        tokens * self.own / MARGIN - self.takes
    }
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
    /// Sequences that predict something if all do that may.
    pub(super) together: usize,
}

/// One sequence's guesses.
#[derive(Clone, Debug)]
pub(super) struct Drafts {
    lookup: Lookup,
    shortlist: Shortlist,
    rates: Rates,
    prompt_tokens: usize,
    /// What the last known tokens were found to repeat.
    found: Option<Match>,
    plan: Plan,
    /// Windows since one with guesses, and since one with predictions.
    since_guessed: u32,
    since_predicted: u32,
    /// **Units**: seconds. What trials may lose: their share of the time so far, and what earlier ones brought.
    to_lose: f64,
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
            prompt_tokens: prompt.len(),
            found: None,
            plan: Plan::nothing(0.0),
            since_guessed: u32::MAX,
            since_predicted: u32::MAX,
            to_lose: 0.0,
            verified: 0,
            accepted: 0,
        }
    }

    /// Begins with what sequences like this one have shown.
    pub(super) fn take_over(&mut self, rates: &Rates) {
        self.rates = rates.begin();
    }

    /// How often its guesses were right.
    pub(super) fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Decides what to guess behind the `known` tokens, at most `most` of them.
    pub(super) fn plan(&mut self, known: &[Token], most: usize, terms: &Terms<'_>) -> Plan {
        self.lookup.learn(known);
        self.shortlist.learn(known);
        // conversations are alike where answers begin: that prompts agree there says nothing
        let generated = known.len() - self.prompt_tokens;
        self.found = self.lookup.find(known).map(|found| Match {
            length: found.length.min(generated),
            ..found
        });
        self.plan = self.choose(known.len(), most.min(terms.depth_max), terms);
        self.plan
    }

    fn choose(&self, position: usize, most: usize, terms: &Terms<'_>) -> Plan {
        let Some(rows) = terms.rows.as_ref().filter(|_| most > 0) else {
            return Plan::nothing(0.0);
        };
        let start = match self.since_guessed {
            0 | 1 => 0.0,
            _ => START * rows.window(),
        };
        let bill = |first: f64, each: f64| {
            let attention = |depth| terms.costs.attention(Load::of(depth, position));
            Bill::new(rows, terms.window_max, |depth| {
                first + attention(depth) + each * depth as f64
            })
        };
        let looked_up = self.found.and_then(|found| {
            let chances = (0..most).map(|nth| self.rates.lookup(found.length + nth));
            bill(start, 0.0).best(chances)
        });
        let looked_up = looked_up.filter(Choice::pays);
        let late = match self.is_late() {
            true => terms.costs.prediction_late(),
            false => 0.0,
        };
        // whoever predicts with others disturbs once
        let first = (start / terms.together.max(1) as f64 + late) / RUN;
        let predicted_max = most.min(terms.predicted_max);
        let (head, predicted) = self.predicted(predicted_max, terms, |each| bill(first, each));
        let plan = |source, choice: Choice| Plan {
            source,
            depth: choice.depth,
            from: self.found.map_or(0, |found| found.from),
            trial: !choice.pays(),
            head,
            takes: choice.takes,
            own: rows.own,
        };
        match (looked_up, predicted) {
            (Some(again), Some(choice)) if choice.pays() && choice.worth > again.worth => {
                plan(Source::Prediction, choice)
            }
            (Some(again), _) => plan(Source::Lookup, again),
            (None, Some(choice)) => {
                let plan = plan(Source::Prediction, choice);
                let tokens = choice.worth * choice.takes / rows.own;
                match plan.trial && self.to_lose + plan.saves(tokens) < 0.0 {
                    true => Plan::nothing(rows.own),
                    false => plan,
                }
            }
            (None, None) => Plan::nothing(rows.own),
        }
    }

    /// What predictions are best chosen among, and how many of them are best, if any may be made.
    fn predicted(
        &self,
        most: usize,
        terms: &Terms<'_>,
        bill: impl Fn(f64) -> Bill,
    ) -> (Head, Option<Choice>) {
        let of = |head: Head| {
            let each = terms.costs.prediction(head, terms.together);
            let listed = match head {
                Head::Whole => 1.0,
                Head::Listed => self.rates.listed(),
            };
            let chances = (0..most).map(|nth| listed * self.rates.prediction(nth));
            Some((head, bill(each).best(chances)?))
        };
        let heads = Head::of(self.shortlist.frequent());
        let choices = heads.iter().filter_map(|head| of(*head));
        let best = choices.max_by(|(_, a), (_, b)| a.worth.total_cmp(&b.worth));
        best.map_or((Head::Whole, None), |(head, choice)| (head, Some(choice)))
    }

    /// The tokens beside frequent ones that predictions of the plan are chosen among, if that is not the whole vocabulary.
    pub(super) fn among(&self) -> Option<&[Token]> {
        (self.plan.head == Head::Listed).then(|| self.shortlist.own())
    }

    /// Whether it has not predicted lately.
    pub(super) fn is_late(&self) -> bool {
        self.since_predicted > LATE
    }

    /// The plan that the last window had.
    pub(super) fn source(&self) -> Source {
        self.plan.source
    }

    /// Takes note of what a window gave: of `drafted` guesses `accepted` were right, and the tokens from position `at` on are now known.
    pub(super) fn verify(&mut self, known: &[Token], at: usize, drafted: usize, accepted: usize) {
        self.verified += drafted;
        self.accepted += accepted;
        let since = |of: u32, now: bool| if now { 0 } else { of.saturating_add(1) };
        let predicted = drafted > 0 && self.plan.source == Source::Prediction;
        self.since_guessed = since(self.since_guessed, drafted > 0);
        self.since_predicted = since(self.since_predicted, predicted);
        self.to_lose += TRIAL_SHARE * self.plan.own;
        if self.plan.trial && drafted > 0 {
            self.to_lose += self.plan.saves(1.0 + accepted as f64);
            self.to_lose = self.to_lose.min(TRIAL_MOST * self.plan.own);
        }
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
        if predicted {
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

    /// At which windows something is predicted although that is not expected to pay, if such a trial goes right or wrong as `right` says. A prediction and its row cost
    /// `guess` windows.
    fn trials(windows: usize, guess: f64, right: impl Fn(usize) -> bool) -> Vec<usize> {
        const MS: Duration = Duration::from_millis(1);
        let mut costs = Costs::default();
        let half = MS.mul_f64(guess / 2.0);
        (1..=9)
            .for_each(|rows| costs.note_decode(Load::of(rows, 0), MS + half * (rows as u32 - 1)));
        costs.note_prediction(Head::Whole, [1, 1], 0, half);
        let terms = Terms {
            costs: &costs,
            rows: RowCosts::new(&costs, 1),
            window_max: 1.0,
            depth_max: DEPTH_MAX,
            predicted_max: DEPTH_MAX,
            together: 1,
        };
        let mut drafts = Drafts::new(&[], &[], 4096, 0);
        let mut known: Vec<Token> = vec![0];
        let mut found = Vec::new();
        for window in 0..windows {
            let plan = drafts.plan(&known, DEPTH_MAX, &terms);
            assert!(plan.trial || plan.depth == 0);
            let at = known.len();
            let accepted = if right(found.len()) { plan.depth } else { 0 };
            known.extend((0..=accepted).map(|nth| (at + nth) as Token)); // nothing comes again
            if plan.depth > 0 {
                found.push(window);
            }
            drafts.verify(&known, at, plan.depth, accepted);
        }
        found
    }

    #[test]
    fn trials_lose_no_more_than_their_share() {
        const WINDOWS: usize = 4000;
        for guess in [0.8, 1.0, 2.0] {
            let found = trials(WINDOWS, guess, |_| false);
            let lost = found.len() as f64 * guess;
            let most = TRIAL_SHARE * WINDOWS as f64 + guess;
            assert!((most / 2.0..most).contains(&lost), "{guess}: {found:?}");
        }
    }

    #[test]
    fn trials_that_go_right_are_followed_by_others() {
        let wrong = trials(800, 0.9, |_| false);
        let mixed = trials(800, 0.9, |nth| nth % 2 == 0);
        assert!(mixed.len() > wrong.len(), "{mixed:?}, {wrong:?}");
    }

    #[test]
    fn where_prompts_agree_says_nothing_of_the_answer() {
        let prompt: Vec<Token> = [1, 2, 3, 4, 9, 8, 7, 1, 2, 3, 4].into();
        let mut drafts = Drafts::new(&prompt, &[], 64, 0);
        let costs = Costs::default();
        let terms = Terms {
            costs: &costs,
            rows: None,
            window_max: 1.0,
            depth_max: DEPTH_MAX,
            predicted_max: 0,
            together: 1,
        };
        let mut known = prompt;
        for (token, length) in [(9, 1), (8, 2), (7, 3)] {
            known.push(token);
            drafts.plan(&known, DEPTH_MAX, &terms);
            assert_eq!(drafts.found.unwrap().length, length);
        }
    }
}
