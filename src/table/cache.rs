//! Rows in memory, as many as there is room for; the one that was not used for longest goes first, about.

use std::collections::HashMap;

/// **Units**: bytes. What finding a row takes beside it: its place and number in the list of places, and its entry of a table that may be half empty.
pub(super) const BESIDE_BYTES: usize =
    size_of::<(u64, bool)>() + 2 * (size_of::<(u64, usize)>() + 1);

/// Rows of one width. A hand goes round the places: a row that was used since it last came by stays, another goes (second chance).
pub(super) struct RowCache {
    row_bytes: usize,
    /// Places there may be.
    room: usize,
    places: HashMap<u64, usize>,
    /// Of each place: its row, and whether it was used since the hand came by.
    rows: Vec<(u64, bool)>,
    /// `[places, row_bytes]`
    bytes: Vec<u8>,
    hand: usize,
}

impl RowCache {
    /// Room for as many rows as take `bytes`, at least one.
    pub(super) fn new(bytes: usize, row_bytes: usize) -> Self {
        Self {
            row_bytes,
            room: (bytes / (row_bytes + BESIDE_BYTES)).max(1),
            places: HashMap::new(),
            rows: Vec::new(),
            bytes: Vec::new(),
            hand: 0,
        }
    }

    /// Whether a row is there.
    pub(super) fn has(&self, row: u64) -> bool {
        self.places.contains_key(&row)
    }

    /// A row, if it is there.
    pub(super) fn get(&mut self, row: u64) -> Option<&[u8]> {
        let place = *self.places.get(&row)?;
        self.rows[place].1 = true;
        Some(&self.bytes[place * self.row_bytes..][..self.row_bytes])
    }

    /// Keeps a row.
    pub(super) fn put(&mut self, row: u64, bytes: &[u8]) {
        if self.places.contains_key(&row) {
            return;
        }
        let place = if self.rows.len() < self.room {
            self.rows.push((row, false));
            self.bytes.resize(self.rows.len() * self.row_bytes, 0);
            self.rows.len() - 1
        } else {
            self.make_room()
        };
        self.rows[place] = (row, false);
        self.places.insert(row, place);
        self.bytes[place * self.row_bytes..][..self.row_bytes].copy_from_slice(bytes);
    }

    fn make_room(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.room;
            let (row, used) = &mut self.rows[place];
            if !std::mem::take(used) {
                self.places.remove(row);
                return place;
            }
        }
    }
}
