//! Rows of a window that could not be computed.

use std::fmt::Display;

use crate::{
    engine::executor::Torn,
    model::window::{RowSpan, Rows},
};

/// Rows of the slice at hand that were left without what they need.
#[derive(Default)]
pub(crate) struct TornRows {
    rows: Vec<u32>,
    /// Of the last one.
    why: Option<String>,
}

impl TornRows {
    /// Some more.
    pub(crate) fn add(&mut self, rows: impl IntoIterator<Item = u32>) {
        self.rows.extend(rows);
    }

    /// Why.
    pub(crate) fn because(&mut self, why: impl Display) {
        self.why = Some(why.to_string());
    }

    /// Whose rows of this window they are, since it was asked before.
    pub(crate) fn take(&mut self, of: &Rows) -> Option<Torn> {
        let why = self.why.take()?;
        let rows = std::mem::take(&mut self.rows);
        let spans = of.spans().iter();
        let hit = |span: &&RowSpan| rows.iter().any(|row| span.rows.contains(&(*row as usize)));
        Some(Torn {
            slots: spans.filter(hit).map(|span| span.slot).collect(),
            why,
        })
    }
}
