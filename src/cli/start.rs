//! Loading a model for a command: open, read its text side, start its engine, say so on standard error.

use std::{path::PathBuf, sync::Arc, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

use super::{failure::Failure, source::Source};
use crate::{
    cpu::{
        backend::{Cpu, CpuSettings},
        store::StoreSettings,
    },
    cuda::{Cuda, Device},
    engine::{Handle, Stopper},
    gguf::Gguf,
    model::{start, text::ModelText},
    settings::{BackendChoice, ModelSettings, cache::cache_directory},
    trace::recorder::Recorder,
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
        let (engine, stopper) = engine(&id, &file, settings)?;
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

/// Starts the engine on the backend that the settings choose; `auto` says in one line why it does without a device that is there.
fn engine(
    id: &str,
    file: &Arc<Gguf>,
    settings: &ModelSettings,
) -> Result<(Handle, Stopper), Failure> {
    if settings.backend != BackendChoice::Cpu {
        match on_device(file, settings) {
            Ok(started) => return Ok(started),
            Err(failure) if settings.backend == BackendChoice::Cuda => return Err(failure),
            Err(failure) => match failure.without_device() {
                // without a driver nobody expects one to be used
                None => tracing::debug!(%failure, "no CUDA device, the CPU computes"),
                Some(why) => tracing::warn!("the CPU computes: {why}"),
            },
        }
    }
    let cpu = cpu(settings);
    let recorder = recorder(id, settings)?;
    let store = store(id, settings);
    let backend = move || {
        let cpu = Cpu::new(cpu);
        let cpu = match store {
            None => cpu,
            Some(store) => cpu.keeping(store),
        };
        match recorder {
            None => cpu,
            Some(recorder) => cpu.traced(recorder),
        }
    };
    Ok(start::start(file.clone(), backend, settings)?)
}

/// How experts are kept, if not where the file is mapped.
pub(super) fn store(id: &str, settings: &ModelSettings) -> Option<StoreSettings> {
    let experts = settings.experts.as_ref()?;
    let kept = || {
        Some(
            cache_directory("experts")?
                .join(id)
                .with_added_extension("json"),
        )
    };
    Some(StoreSettings {
        ram: experts.ram,
        lookahead: true,
        profile: experts.profile.clone().or_else(kept),
        ..StoreSettings::default()
    })
}

fn recorder(id: &str, settings: &ModelSettings) -> Result<Option<Recorder>, Failure> {
    let create = |path: &PathBuf| {
        Recorder::create(path, id).map_err(|source| Failure::TraceFile {
            path: path.clone(),
            source,
        })
    };
    settings.trace.as_ref().map(create).transpose()
}

fn on_device(file: &Arc<Gguf>, settings: &ModelSettings) -> Result<(Handle, Stopper), Failure> {
    let device = Device::open(settings.cuda.device)?;
    tracing::info!(device = %device.name, capability = device.capability, "CUDA device found");
    if settings.trace.is_some() {
        return Err(Failure::TraceOnDevice {
            device: device.name.to_string(),
        });
    }
    let cuda = settings.cuda.clone();
    Ok(start::start(
        file.clone(),
        move || Cuda::new(device, cuda),
        settings,
    )?)
}

/// The CPU's share of the settings.
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
