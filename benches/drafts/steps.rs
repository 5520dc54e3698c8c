//! What an engine guessed, by its step log.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    time::{Duration, Instant},
};

use serde_json::Value;
use tidegate::engine::Handle;

use crate::common::Failure;

/// What an engine tells of its windows.
pub(crate) struct Steps {
    log: BufReader<File>,
    line: String,
    windows: u64,
}

/// What was guessed in some windows.
#[derive(Default)]
pub(crate) struct Guessed {
    pub(crate) all: u64,
    pub(crate) right: u64,
    /// Those that were right, and the first wrong one of each window.
    pub(crate) decided: u64,
    pub(crate) predicted: u64,
    /// **Units**: milliseconds, of all predictions.
    pub(crate) predicting: f64,
}

impl Steps {
    /// Of an engine that writes this log.
    pub(crate) fn of(log: File) -> Self {
        Self {
            log: BufReader::new(log),
            line: String::new(),
            windows: 0,
        }
    }

    /// Adds what was guessed in the windows since it was asked before.
    pub(crate) fn read(&mut self, handle: &Handle, guessed: &mut Guessed) -> Result<(), Failure> {
        let patience = Instant::now() + Duration::from_secs(10);
        while self.windows < handle.stats().windows {
            self.log.read_line(&mut self.line)?;
            if !self.line.ends_with('\n') {
                if Instant::now() > patience {
                    return Err("the step log is not complete".into());
                }
                continue; // it is still being written
            }
            let step: Value = serde_json::from_str(&self.line)?;
            self.line.clear();
            self.windows += 1;
            guessed.predicting += step["ms_parts"]["draft"].as_f64().unwrap_or(0.0);
            for slot in step["by_slot"].as_array().into_iter().flatten() {
                let count = |name: &str| slot[name].as_u64().unwrap_or(0);
                let (all, right) = (count("drafts"), count("accepted"));
                guessed.all += all;
                guessed.right += right;
                guessed.decided += all.min(right + 1);
                if slot["source"] == "prediction" {
                    guessed.predicted += all;
                }
            }
        }
        Ok(())
    }
}
