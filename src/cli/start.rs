//! Loading a model for a command: open, read its text side, start its engine, say so on standard error.

use std::{sync::Arc, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

use super::{failure::Failure, source::Source};
use crate::{
    cpu::backend::{Cpu, CpuSettings},
    engine::{Handle, Stopper},
    model::{start, text::ModelText},
    settings::ModelSettings,
};

/// How long an engine may take to end: it looks up after every layer, but a stuck one never does.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// A model that answers.
pub(super) struct Loaded {
    pub(super) id: String,
    pub(super) text: ModelText,
    pub(super) engine: Handle,
    stopper: Stopper,
}

impl Loaded {
    /// Loads the model.
    ///
    /// **Errors**: the file, or the engine.
    pub(super) fn start(source: &Source, settings: &ModelSettings) -> Result<Self, Failure> {
        let id = source.id();
        let waiting = spinner(&id);
        let file = Arc::new(source.open()?);
        let text = ModelText::read(&file)?;
        let cpu = cpu(settings);
        let (engine, stopper) = start::start(file, move || Cpu::new(cpu), settings)?;
        waiting.finish_and_clear();
        Ok(Self {
            id,
            text,
            engine,
            stopper,
        })
    }

    /// Ends the engine, but does not wait for one that is stuck.
    pub(super) fn stop(self) {
        if let Err(running) = self.stopper.stop(STOP_PATIENCE) {
            tracing::warn!(%running, "the engine is left behind");
        }
    }
}

/// The backend's share of the settings.
pub(super) fn cpu(settings: &ModelSettings) -> CpuSettings {
    CpuSettings {
        threads: settings.threads.map(Into::into),
    }
}

/// Turns on a terminal only.
fn spinner(id: &str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(format!("loading {id}"));
    spinner.set_style(
        ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
            .unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}
