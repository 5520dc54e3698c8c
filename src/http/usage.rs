//! What an answer cost: token counts and times of all its choices together.

use std::time::Duration;

use serde_json::{Value, json};

use crate::engine::request::Timings;

/// Counts and times, added up over the choices of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompts; a prompt with several answers counts once.
    pub prompt_tokens: usize,
    /// Tokens of the answers.
    pub generated_tokens: usize,
    /// Prompt tokens that were computed.
    computed_tokens: usize,
    /// Choices whose speed can be told: those with more than one token count one gap less than tokens.
    gaps: usize,
    drafted_tokens: usize,
    accepted_tokens: usize,
    prefill: Duration,
    decode: Duration,
    queued: Duration,
}

impl Usage {
    /// For prompts with this many tokens.
    pub fn new(prompt_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            ..Self::default()
        }
    }

    /// Adds a finished choice. Choices run side by side, so that the slowest one's times are those of all.
    pub fn add(&mut self, timings: &Timings) {
        self.generated_tokens += timings.generated_tokens;
        self.computed_tokens += timings.prompt_tokens;
        self.gaps += timings.generated_tokens.saturating_sub(1);
        self.drafted_tokens += timings.drafted_tokens;
        self.accepted_tokens += timings.accepted_tokens;
        self.prefill = self.prefill.max(timings.prefill);
        self.decode = self.decode.max(timings.decode);
        self.queued = self.queued.max(timings.queued);
    }

    /// OpenAI's `usage` object.
    pub fn object(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated_tokens,
            "total_tokens": self.prompt_tokens + self.generated_tokens,
        })
    }

    /// The `timings` object. **Source**: field names as llama.cpp has them, plus `queued_ms` and `ttft_ms`.
    pub fn timings(&self, ttft: Option<Duration>) -> Value {
        json!({
            "queued_ms": millis(self.queued),
            "prompt_n": self.computed_tokens,
            "prompt_ms": millis(self.prefill),
            "prompt_per_second": rate(self.computed_tokens, self.prefill),
            "predicted_n": self.generated_tokens,
            "predicted_ms": millis(self.decode),
            "predicted_per_second": rate(self.gaps, self.decode),
            "draft_n": self.drafted_tokens,
            "draft_n_accepted": self.accepted_tokens,
            "ttft_ms": ttft.map(millis),
        })
    }
}

pub(crate) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Events a second; none where nothing happened.
pub(crate) fn rate(events: usize, time: Duration) -> Option<f64> {
    (events > 0 && !time.is_zero())
        .then(|| (events as f64 / time.as_secs_f64() * 100.0).round() / 100.0)
}
