//! A trace as policies see it: visit by visit, which experts were wanted by how many rows.

use crate::{
    residency::{ExpertSizes, policy::Wanted},
    trace::reader::{Ahead, Choices},
};

/// Whom a router names before its layer's turn.
#[derive(Clone, Copy, Debug)]
struct Said {
    /// Behind which visit.
    visit: usize,
    layer: usize,
    distance: usize,
    /// Where the ids end.
    end: usize,
}

/// All visits of a trace, in their order.
#[derive(Clone, Debug, Default)]
pub struct Visits {
    wanted: Vec<Wanted>,
    /// `[visits]`: where each visit's entries end.
    ends: Vec<usize>,
    /// `[visits]`
    layers: Vec<u16>,
    /// `[rows, used]` of every visit.
    ids: Vec<u16>,
    /// `[visits]`: where each visit's ids end.
    ids_end: Vec<usize>,
    /// What is said behind visits, in their order.
    said: Vec<Said>,
    said_ids: Vec<u16>,
    decode_rows: u64,
    prompt_rows: u64,
    decode_visits: u64,
    /// `[experts of the layer]`: entry of this visit plus one.
    seen: Vec<u32>,
}

impl Visits {
    /// Appends a layer of a window, whose rows use `used` experts each.
    pub(super) fn push(&mut self, choices: &Choices<'_>, used: usize, sizes: &ExpertSizes) {
        let start = self.wanted.len();
        let mut rows = choices.ids.chunks_exact(used);
        let before = self.decode_rows;
        for span in choices.spans {
            let (decode, prompt) = (u32::from(span.decode), u32::from(!span.decode));
            self.decode_rows += u64::from(decode) * span.rows as u64;
            self.prompt_rows += u64::from(prompt) * span.rows as u64;
            for id in rows.by_ref().take(span.rows).flatten() {
                let index = usize::from(*id);
                if self.seen.len() <= index {
                    self.seen.resize(index + 1, 0);
                }
                if self.seen[index] == 0 {
                    self.wanted.push(Wanted {
                        expert: sizes.id(choices.layer, *id),
                        decode_rows: 0,
                        prompt_rows: 0,
                    });
                    self.seen[index] = (self.wanted.len() - start) as u32;
                }
                let entry = &mut self.wanted[start + self.seen[index] as usize - 1];
                entry.decode_rows += decode;
                entry.prompt_rows += prompt;
            }
        }
        for id in choices.ids {
            self.seen[usize::from(*id)] = 0;
        }
        self.decode_visits += u64::from(self.decode_rows > before);
        self.ends.push(self.wanted.len());
        self.layers.push(choices.layer as u16);
        self.ids.extend_from_slice(choices.ids);
        self.ids_end.push(self.ids.len());
    }

    /// Appends what is said of a layer that is still to come.
    pub(super) fn say(&mut self, ahead: &Ahead<'_>) {
        let Some(visit) = self.ends.len().checked_sub(1) else {
            return;
        };
        self.said_ids.extend_from_slice(ahead.ids);
        self.said.push(Said {
            visit,
            layer: ahead.layer,
            distance: ahead.distance,
            end: self.said_ids.len(),
        });
    }

    /// Whether anything is said ahead.
    pub fn look_ahead(&self) -> bool {
        !self.said.is_empty()
    }

    /// Visit by visit: layer, what its rows have chosen (`[rows, used] u16`), what is wanted, and what is then said of layers to come: layer, distance, `[rows, used] u16`.
    pub(super) fn walk<'a>(
        &'a self,
        mut visited: impl FnMut(
            usize,
            &'a [u16],
            &'a [Wanted],
            &mut dyn Iterator<Item = (usize, usize, &'a [u16])>,
        ),
    ) {
        let mut next = 0;
        for visit in 0..self.ends.len() {
            let start = visit
                .checked_sub(1)
                .map_or(0, |before| self.ids_end[before]);
            let first = next;
            next += self.said[first..]
                .iter()
                .take_while(|said| said.visit == visit)
                .count();
            let mut said = (first..next).map(|at| {
                let Said {
                    layer,
                    distance,
                    end,
                    ..
                } = self.said[at];
                let start = at.checked_sub(1).map_or(0, |before| self.said[before].end);
                (layer, distance, &self.said_ids[start..end])
            });
            visited(
                usize::from(self.layers[visit]),
                &self.ids[start..self.ids_end[visit]],
                self.visit(visit),
                &mut said,
            );
        }
    }

    /// Visit by visit.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &[Wanted]> + ExactSizeIterator {
        (0..self.ends.len()).map(|visit| self.visit(visit))
    }

    fn visit(&self, visit: usize) -> &[Wanted] {
        let start = visit.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.wanted[start..self.ends[visit]]
    }

    /// Rows that decode, of all visits together.
    pub fn decode_rows(&self) -> u64 {
        self.decode_rows
    }

    /// Prompt rows, of all visits together.
    pub fn prompt_rows(&self) -> u64 {
        self.prompt_rows
    }

    /// Visits with rows that decode.
    pub fn decode_visits(&self) -> u64 {
        self.decode_visits
    }
}
