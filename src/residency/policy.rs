//! Placement policies: who stays in fast memory. Pure: a policy sees what windows choose and answers by inserting and evicting; it knows no clock, no
//! transfers and no machine, so what a replay says of it holds where it is used.

use super::{ExpertId, Residents};

mod frequency;
mod guarded;
mod lru;
mod ranking;
mod score;
#[cfg(test)]
mod tests;

pub use frequency::Frequency;
pub use guarded::{Guard, Guarded};
pub use lru::Lru;

/// An expert that rows of a window have chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which.
    pub expert: ExpertId,
    /// Rows that streams wait for.
    pub decode_rows: u32,
    /// Prompt rows.
    pub prompt_rows: u32,
}

/// Decides who is resident.
pub trait Policy {
    /// A window has reached a layer and wants these experts, each once. Those that are not resident have been fetched for it and may stay: whatever the policy
    /// inserts or evicts counts from the next visit on.
    fn visit(&mut self, wanted: &[Wanted], residents: &mut Residents);
}
