//! What is counted while a trace is replayed.

use crate::residency::policy::Wanted;

/// How fast bytes come. **Units**: bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// From where residents lie.
    pub fast: f64,
    /// From where everybody else is fetched.
    pub link: f64,
}

/// Hits and misses. A choice is one row's of one expert; bytes are counted once a window, for decoding if any row that decodes wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Choices of rows that decode.
    pub decode_choices: u64,
    /// How many of these were resident, in parts where only a part was.
    pub decode_hits: f64,
    /// Choices of prompt rows.
    pub prompt_choices: u64,
    /// How many of these were resident.
    pub prompt_hits: f64,
    /// **Units**: bytes. Resident, and wanted by rows that decode.
    pub decode_held_bytes: u64,
    /// **Units**: bytes. Not resident, and wanted by rows that decode.
    pub decode_missed_bytes: u64,
    /// **Units**: bytes. Not resident, and wanted by prompt rows only.
    pub prompt_missed_bytes: u64,
}

impl Tally {
    /// Counts an expert of which `held` of `bytes` are resident.
    pub(super) fn count(&mut self, wanted: &Wanted, bytes: u64, held: u64) {
        let share = if held == bytes {
            1.0
        } else {
            held as f64 / bytes as f64
        };
        self.decode_choices += u64::from(wanted.decode_rows);
        self.decode_hits += f64::from(wanted.decode_rows) * share;
        self.prompt_choices += u64::from(wanted.prompt_rows);
        self.prompt_hits += f64::from(wanted.prompt_rows) * share;
        if wanted.decode_rows > 0 {
            self.decode_held_bytes = self.decode_held_bytes.saturating_add(held);
            self.decode_missed_bytes = self.decode_missed_bytes.saturating_add(bytes - held);
        } else {
            self.prompt_missed_bytes = self.prompt_missed_bytes.saturating_add(bytes - held);
        }
    }

    /// From 0 to 1; nothing if no row decodes.
    pub fn decode_hit_rate(&self) -> Option<f64> {
        (self.decode_choices > 0).then(|| self.decode_hits / self.decode_choices as f64)
    }

    /// From 0 to 1; nothing if no row is a prompt's.
    pub fn prompt_hit_rate(&self) -> Option<f64> {
        (self.prompt_choices > 0).then(|| self.prompt_hits / self.prompt_choices as f64)
    }
}
