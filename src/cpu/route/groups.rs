//! Rows grouped by expert, so that an expert's weights are read once for all of them.

/// A window's choices, sorted by expert.
///
/// A place is a row and a rank in one number: `row * top_k + rank`, the index of the choice in `[rows, top_k]`.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// `[experts + 1]`: where each expert's places start.
    starts: Vec<u32>,
    /// `[rows * top_k]`: places by expert, ascending within an expert.
    places: Vec<u32>,
}

impl Groups {
    /// Room for so many choices; [`Groups::fill`] allocates only beyond it.
    pub fn new(experts: usize, choices: usize) -> Self {
        Self {
            starts: Vec::with_capacity(experts + 2),
            places: Vec::with_capacity(choices),
        }
    }

    /// Sorts the choices of a window.
    ///
    /// **Shapes**: `ids [rows, top_k] u16`, each below `experts`.
    ///
    /// **Panics** if an id is not.
    pub fn fill(&mut self, experts: usize, ids: &[u16]) {
        // a counting sort: starts[e + 1] counts, then is where e's next place goes, and so ends as the start of e + 1
        self.starts.clear();
        self.starts.resize(experts + 2, 0);
        for id in ids {
            assert!(usize::from(*id) < experts, "expert {id} of {experts}");
            self.starts[usize::from(*id) + 2] += 1;
        }
        for expert in 2..experts + 2 {
            self.starts[expert] += self.starts[expert - 1];
        }
        self.places.clear();
        self.places.resize(ids.len(), 0);
        for (place, id) in ids.iter().enumerate() {
            let next = &mut self.starts[usize::from(*id) + 1];
            self.places[*next as usize] = place as u32;
            *next += 1;
        }
        self.starts.truncate(experts + 1);
    }

    /// The places of one expert, ascending.
    pub fn of(&self, expert: usize) -> &[u32] {
        &self.places[self.starts[expert] as usize..self.starts[expert + 1] as usize]
    }

    /// The expert up to which half of the places are.
    pub fn middle(&self) -> usize {
        let half = self.places.len() / 2;
        self.starts
            .partition_point(|start| (*start as usize) < half)
    }

    /// All places, expert by expert.
    pub fn places(&self) -> &[u32] {
        &self.places
    }

    /// Where each expert's places start in [`Groups::places`], and the end: `[experts + 1]`.
    pub fn starts(&self) -> &[u32] {
        &self.starts
    }

    /// The experts that have places, ascending, with them.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[u32])> {
        let all = self.starts.len().saturating_sub(1);
        (0..all)
            .map(|expert| (expert, self.of(expert)))
            .filter(|(_, places)| !places.is_empty())
    }
}
