//! What can be set about the engine, and the check that it can work.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    drafts::DEPTH_MAX,
    executor::{Capacity, PAGE_TOKENS},
    stats::Board,
    steps::StepLog,
};

/// The pause that a running stream may have because of others, where nobody says.
pub(super) const GAP_MAX: Duration = Duration::from_millis(150);

/// What can be set about the engine. How many slots, pages and rows there are is the executor's to say.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Requests that may wait when all slots are taken.
    pub queue: usize,
    /// Prompt rows in one window, of all prompts together; `None` is as many as the executor's windows hold.
    pub chunk_rows: Option<usize>,
    /// The pause that a running stream may have because of others; three times what its windows take if that is more. `None` is
    /// the backend's own target.
    pub gap_max: Option<Duration>,
    /// Tokens that a reader may leave unread before his sequence is parked.
    pub outbox_tokens: usize,
    /// How long a sequence may be parked before it is cancelled.
    pub idle_timeout: Duration,
    /// Whether tokens may be guessed ahead. Changes how fast they come, never which.
    pub drafts: bool,
    /// A slice that takes longer means that the engine is stuck.
    pub stuck_after: Duration,
    /// Where to write one JSON line a window.
    pub step_stats: Option<PathBuf>,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            queue: 64,
            chunk_rows: None,
            gap_max: None,
            outbox_tokens: 32,
            idle_timeout: Duration::from_secs(60),
            drafts: true,
            stuck_after: Duration::from_secs(30),
            step_stats: None,
        }
    }
}

/// Settings, or a model's capacity, with which the engine cannot work.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Less than needed.
    #[error("{what} is {got}, at least {least} is needed")]
    TooSmall {
        /// Of what.
        what: &'static str,
        /// How much there is.
        got: usize,
        /// How much is needed.
        least: usize,
    },
    /// The step log cannot be written.
    #[error("cannot write the step log {}: {source}", path.display())]
    StepLog {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl EngineSettings {
    pub(super) fn check(&self, capacity: &Capacity) -> Result<(), SettingsError> {
        let needs = [
            ("chunk_rows", self.chunk_rows.unwrap_or(1), 1),
            ("outbox_tokens", self.outbox_tokens, 1),
            ("the model's slots", capacity.slots, 1),
            ("the model's KV pages", capacity.pages, 1),
            ("the model's rows per window", capacity.rows, 1),
            (
                "the model's rows per decode window",
                capacity.decode_rows,
                1,
            ),
            (
                "the model's rows with logits per window",
                capacity.logits_rows,
                1,
            ),
            ("the model's vocabulary", capacity.vocab, 1),
            // One token to read and one to write.
            ("the model's context", capacity.context, 2),
        ];
        match needs.into_iter().find(|(_, got, least)| got < least) {
            Some((what, got, least)) => Err(SettingsError::TooSmall { what, got, least }),
            None => Ok(()),
        }
    }

    /// Guesses that a sequence may have in a window: as many as leave room for those of all others.
    fn depth_max(&self, capacity: &Capacity) -> usize {
        let rows = capacity.decode_rows.min(capacity.logits_rows) / capacity.slots.max(1);
        let most = capacity.drafts.min(DEPTH_MAX);
        if self.drafts {
            rows.saturating_sub(1).min(most)
        } else {
            0
        }
    }

    pub(super) fn open_step_log(&self) -> Result<Option<StepLog>, SettingsError> {
        let open = |path: &Path| {
            StepLog::create(path).map_err(|source| SettingsError::StepLog {
                path: path.to_owned(),
                source,
            })
        };
        self.step_stats.as_deref().map(open).transpose()
    }

    pub(super) fn board(&self, capacity: Capacity) -> Board {
        // A sequence longer than all pages together could never be admitted.
        let context = capacity
            .context
            .min(capacity.pages.saturating_mul(PAGE_TOKENS));
        Board::new(
            capacity,
            context,
            self.queue,
            self.outbox_tokens,
            self.depth_max(&capacity),
            self.stuck_after,
        )
    }
}
