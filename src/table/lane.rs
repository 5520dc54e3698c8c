//! The rows that a window needs, and which of them have come.

use std::{collections::HashMap, sync::Arc};

use super::TableError;

/// What has become of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Awaited,
    There,
    Lost,
}

/// The rows that a lane's window needs.
#[derive(Default)]
pub(super) struct LaneRows {
    /// Where a row is.
    places: HashMap<u64, usize>,
    /// `[places]`
    states: Vec<State>,
    /// `[places, row_bytes]`
    bytes: Vec<u8>,
    row_bytes: usize,
    /// Places whose row is awaited.
    awaited: usize,
    /// Why rows were lost, if some were: the last reason.
    why: Option<Arc<TableError>>,
}

impl LaneRows {
    /// Forgets all rows of the window before.
    pub(super) fn begin(&mut self, row_bytes: usize) {
        self.places.clear();
        self.states.clear();
        self.row_bytes = row_bytes;
        self.awaited = 0;
        self.why = None;
    }

    /// One more row is awaited; false if it is listed already.
    pub(super) fn list(&mut self, row: u64) -> bool {
        let place = self.states.len();
        let std::collections::hash_map::Entry::Vacant(vacant) = self.places.entry(row) else {
            return false;
        };
        vacant.insert(place);
        self.states.push(State::Awaited);
        self.awaited += 1;
        let need = self.states.len() * self.row_bytes;
        if self.bytes.len() < need {
            self.bytes.resize(need, 0);
        }
        true
    }

    /// Whether a row is among those of the window.
    pub(super) fn lists(&self, row: u64) -> bool {
        self.places.contains_key(&row)
    }

    /// Whether a row has yet to come.
    pub(super) fn awaits(&self, row: u64) -> bool {
        let place = self.places.get(&row);
        place.is_some_and(|place| self.states[*place] == State::Awaited)
    }

    /// How many have yet to come.
    pub(super) fn awaited(&self) -> usize {
        self.awaited
    }

    /// A row is there, whoever wanted it.
    pub(super) fn arrive(&mut self, row: u64, bytes: &[u8]) {
        let Some(place) = self.places.get(&row) else {
            return;
        };
        if self.states[*place] == State::Awaited {
            self.states[*place] = State::There;
            self.awaited -= 1;
            self.bytes[place * self.row_bytes..][..self.row_bytes].copy_from_slice(bytes);
        }
    }

    /// Of the rows that have yet to come these never will.
    pub(super) fn lose(&mut self, lost: impl Fn(u64) -> bool, why: &Arc<TableError>) {
        for (row, place) in &self.places {
            let state = &mut self.states[*place];
            if *state == State::Awaited && lost(*row) {
                *state = State::Lost;
                self.awaited -= 1;
                self.why = Some(why.clone());
            }
        }
    }
}

/// The rows of a window, those that are there.
pub(super) struct Held<'a>(&'a LaneRows);

impl<'a> Held<'a> {
    pub(super) fn new(of: &'a LaneRows) -> Self {
        Self(of)
    }

    /// A row's bytes, unless it was lost.
    ///
    /// **Panics** if it was not asked for.
    pub(super) fn get(&self, row: u64) -> Option<&'a [u8]> {
        let place = self.0.places[&row];
        let bytes = &self.0.bytes[place * self.0.row_bytes..][..self.0.row_bytes];
        (self.0.states[place] == State::There).then_some(bytes)
    }

    /// Why rows were lost, if some were.
    pub(super) fn why(&self) -> Option<&'a TableError> {
        self.0.why.as_deref()
    }
}
