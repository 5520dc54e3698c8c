//! Passes of both lanes in turn, sequences at any positions side by side, and some that leave between two slices: whoever stays gets what it gets alone.

use crate::{
    bare::{Bare, Part},
    dice::Dice,
    reference::assert_same,
};
use tidegate::{
    backend::Backend,
    engine::executor::{Ask, Executor, Lane, Progress, Slot},
    model::window::Window,
};

/// Sequences.
pub(crate) const SLOTS: usize = 6;
/// Rows of a part: decode rows, few, and many, so that most begin inside a block of positions.
const PART_ROWS: [usize; 10] = [1, 1, 1, 1, 2, 9, 17, 23, 41, 70];

/// A sequence that is read again and again.
struct Sequence {
    tokens: Vec<u32>,
    /// `[tokens, vocab] f32`
    alone: Vec<f32>,
    /// Rows computed so far.
    done: usize,
}

/// Rows of a sequence in a pass.
#[derive(Clone, Copy, Debug)]
struct Share {
    slot: usize,
    rows: usize,
}

/// A pass under way.
struct Flight<B: Backend> {
    pass: Window<B>,
    shares: Vec<Share>,
}

/// What has happened.
#[derive(Debug, Default)]
pub(crate) struct Count {
    windows: usize,
    /// Windows of many rows in the decode lane, which are computed slice by slice.
    sliced: usize,
    withdrawn: usize,
    /// Decode windows that began and ended between two slices of the prompt lane.
    between: usize,
}

struct Turns<'a, B: Backend> {
    what: &'a str,
    model: &'a mut Bare<B>,
    dice: Dice,
    sequences: Vec<Sequence>,
    flights: [Option<Flight<B>>; Lane::COUNT],
    count: Count,
}

impl<B: Backend> Turns<'_, B> {
    /// Begins a pass with sequences that are in no other.
    fn begin(&mut self, lane: Lane) {
        let busy: Vec<usize> = (self.flights.iter().flatten())
            .flat_map(|flight| flight.shares.iter().map(|share| share.slot))
            .collect();
        let first = self.dice.below(SLOTS);
        let mut room = self.sequences[0].tokens.len();
        let mut shares = Vec::new();
        for slot in (first..first + SLOTS).map(|slot| slot % SLOTS) {
            let sequence = &mut self.sequences[slot];
            if busy.contains(&slot) || self.dice.once_in(4) {
                continue;
            }
            if sequence.done == sequence.tokens.len() {
                sequence.done = 0;
            }
            let left = sequence.tokens.len() - sequence.done;
            let rows = PART_ROWS[self.dice.below(PART_ROWS.len())];
            let rows = rows.min(left).min(room);
            if rows > 0 {
                room -= rows;
                shares.push(Share { slot, rows });
            }
        }
        if !shares.is_empty() {
            self.begin_with(lane, shares);
        }
    }

    fn begin_with(&mut self, lane: Lane, shares: Vec<Share>) {
        let part = |share: &Share| {
            let sequence = &self.sequences[share.slot];
            Part {
                slot: share.slot,
                first: sequence.done,
                tokens: &sequence.tokens[sequence.done..][..share.rows],
            }
        };
        let parts: Vec<Part<'_>> = shares.iter().map(part).collect();
        let pass = self.model.begin(lane, &parts, Ask::Logits, 0);
        self.flights[lane as usize] = Some(Flight { pass, shares });
    }

    /// Takes a pass's sequence, whose number `choose` says, out of it; it begins anew then.
    fn withdraw(&mut self, lane: Lane, choose: impl FnOnce(&mut Dice, usize) -> usize) {
        let place = &mut self.flights[lane as usize];
        let Some(flight) = place else { return };
        let at = choose(&mut self.dice, flight.shares.len());
        let gone = flight.shares.remove(at);
        self.sequences[gone.slot].done = 0;
        self.count.withdrawn += 1;
        let runner = &mut self.model.runner;
        runner.withdraw(&mut flight.pass, Slot(gone.slot as u32));
        if flight.shares.is_empty()
            && let Some(flight) = place.take()
        {
            runner.abandon(flight.pass);
        }
    }

    /// Advances a pass by a slice; its rows are compared after the last.
    fn advance(&mut self, lane: Lane) {
        let Some(mut flight) = self.flights[lane as usize].take() else {
            return;
        };
        let progress = self.model.runner.advance(&mut flight.pass);
        if progress.expect("computed") == Progress::More {
            self.flights[lane as usize] = Some(flight);
            return;
        }
        self.count.windows += 1;
        self.count.sliced += usize::from(lane == Lane::Decode && flight.pass.rows().count() > 16);
        let between = lane == Lane::Decode && self.flights[Lane::Prompt as usize].is_some();
        self.count.between += usize::from(between);
        let vocab = self.model.vocab();
        let logits = self.model.finish(flight.pass);
        let mut rows = logits.chunks(vocab);
        for share in &flight.shares {
            let sequence = &mut self.sequences[share.slot];
            for row in sequence.done..sequence.done + share.rows {
                let expected = &sequence.alone[row * vocab..][..vocab];
                let what = format!(
                    "{}, window {}, {lane:?}, {:?}, sequence {}, row {row}",
                    self.what, self.count.windows, flight.shares, share.slot
                );
                assert_same(&what, rows.next().expect("a row"), expected);
            }
            sequence.done += share.rows;
        }
        assert!(rows.next().is_none(), "no row of who left");
    }

    /// One of three leaves as soon as the first slice is under way; then all begin anew.
    fn leave_early(&mut self, gone: usize) {
        for lane in [Lane::Decode, Lane::Prompt] {
            let share = |slot| Share {
                slot,
                rows: [20, 3, 34][slot],
            };
            self.begin_with(lane, (0..3).map(share).collect());
            self.advance(lane);
            self.withdraw(lane, |_, _| gone);
            self.finish(lane);
            (self.sequences.iter_mut()).for_each(|sequence| sequence.done = 0);
        }
    }

    fn finish(&mut self, lane: Lane) {
        while self.flights[lane as usize].is_some() {
            self.advance(lane);
        }
    }

    /// As the engine does: no slice of the prompt lane while a window of the decode lane is under way.
    fn turn(&mut self) {
        let [decode, prompt] = self.flights.each_ref().map(Option::is_some);
        let lane = if decode { Lane::Decode } else { Lane::Prompt };
        while self.dice.once_in(6) && self.flights[lane as usize].is_some() {
            self.withdraw(lane, Dice::below);
        }
        match (decode, prompt) {
            (true, _) => self.advance(Lane::Decode),
            (false, true) if self.dice.once_in(2) => self.advance(Lane::Prompt),
            (false, false) if self.dice.once_in(2) => self.begin(Lane::Prompt),
            (false, _) => self.begin(Lane::Decode),
        }
    }
}

/// So many turns of a model with [`SLOTS`] sequences of as many positions as `ids`.
pub(crate) fn check_turns<B: Backend>(
    what: &str,
    model: &mut Bare<B>,
    ids: &[u32],
    turns: usize,
    seed: u64,
) -> Count {
    let sequence = |slot: usize| {
        let mut tokens = ids.to_vec();
        tokens.rotate_left(17 * slot);
        let alone = model.chunked(0, &tokens, &[tokens.len()]);
        Sequence {
            tokens,
            alone,
            done: 0,
        }
    };
    let sequences = (0..SLOTS).map(sequence).collect();
    let mut all = Turns {
        what,
        model,
        dice: Dice(seed),
        sequences,
        flights: [None, None],
        count: Count::default(),
    };
    (0..3).for_each(|gone| all.leave_early(gone));
    (0..turns).for_each(|_| all.turn());
    for lane in [Lane::Decode, Lane::Prompt] {
        all.finish(lane);
    }
    let Count {
        windows,
        sliced,
        withdrawn,
        between,
    } = all.count;
    assert!(windows > turns / 10 && sliced.min(withdrawn).min(between) > turns / 50);
    all.count
}
