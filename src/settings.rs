//! Settings: as written (flags, environment, TOML file: [`written`], [`mod@file`]), then as checked (here). Nothing else parses a setting.
//!
//! A setting has one name everywhere: `--chunk-rows 64`, `TIDEGATE_CHUNK_ROWS=64`, `chunk-rows = 64`. A flag wins over the environment, the
//! environment over the file.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

pub mod cache;
pub mod cors;
pub mod file;
pub mod keys;
mod server;
pub mod written;

use crate::{backend::shape::KvType, engine::EngineSettings};
pub use server::ServerSettings;

use cors::CorsError;
use keys::KeyError;
use written::{BackendWritten, KvWritten, ModelWritten, SwitchWritten};

/// Sequences computed at once when nothing is said.
pub const SLOTS_DEFAULT: usize = 4;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendChoice {
    /// A CUDA device where there is one that will do, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA device, or nothing.
    Cuda,
}

/// How a CUDA device is used, as checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaSettings {
    /// Which device.
    pub device: usize,
    /// **Units**: bytes. Device memory that may be used; `None` is what is free, less a reserve.
    pub vram: Option<u64>,
    /// Where compiled kernels are kept; `None` is the user's cache directory.
    pub kernel_cache: Option<PathBuf>,
}

/// **Units**: bytes. Less device memory than this holds no model.
const VRAM_LEAST: u64 = 16 << 20;

/// How a model is loaded and run, as checked.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// What computes.
    pub backend: BackendChoice,
    /// The CUDA device, if one is used.
    pub cuda: CudaSettings,
    /// Threads that compute; `None` is one for every physical core that the process may use.
    pub threads: Option<NonZeroUsize>,
    /// Sequences computed at once.
    pub slots: usize,
    /// **Units**: tokens. Room for one sequence; `None` is what the model was made for, within reason.
    pub context_tokens: Option<usize>,
    /// How keys and values are kept; `None` is as exact as the file's attention weights are.
    pub kv: Option<KvType>,
    /// Queue, chunks, step log.
    pub engine: EngineSettings,
    /// Where to record which experts are chosen.
    pub trace: Option<PathBuf>,
    /// How experts are kept in memory on the CPU; `None` leaves that to the system's page cache.
    pub experts: Option<ExpertSettings>,
}

/// How experts are kept in memory, as checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertSettings {
    /// **Units**: bytes. What they may take.
    pub ram: u64,
    /// Where the profile of a run is kept for the next one; `None` is the user's cache directory.
    pub profile: Option<PathBuf>,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The settings file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML, or a value has the wrong type.
    #[error("{}, line {line}{}: {reason}", path.display(), name.as_deref().map(|name| format!(" ('{name}')")).unwrap_or_default())]
    Toml {
        /// The settings file.
        path: PathBuf,
        /// Where, counted from 1.
        line: usize,
        /// The setting on that line.
        name: Option<String>,
        /// Why.
        reason: String,
    },
    /// `key` is something else than tables.
    #[error("{}: API keys are written as tables: [[key]], and below it name = \"...\" and sha256 = \"...\"", path.display())]
    KeyTables {
        /// The settings file.
        path: PathBuf,
    },
    /// A setting of the server stands below a `[[key]]`.
    #[error("{}: '{name}' stands below a [[key]] and would be that key's; move it above the first [[key]]", path.display())]
    BelowKey {
        /// The settings file.
        path: PathBuf,
        /// As written.
        name: String,
    },
    /// An API key that cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An origin that no browser sends.
    #[error(transparent)]
    Cors(#[from] CorsError),
    /// The file names a setting that does not exist.
    #[error("{}: there is no setting '{name}'{}", path.display(), nearest.as_deref().map(|near| format!(", did you mean '{near}'?")).unwrap_or_default())]
    UnknownName {
        /// The settings file.
        path: PathBuf,
        /// As written.
        name: String,
        /// The setting whose name looks most alike.
        nearest: Option<String>,
    },
    /// A number outside its range.
    #[error("{name} must be from {low} to {high}, got {got}")]
    OutOfRange {
        /// The setting.
        name: &'static str,
        /// As written.
        got: usize,
        /// Smallest allowed value.
        low: usize,
        /// Largest allowed value.
        high: usize,
    },
    /// Only the CPU backend knows what is chosen.
    #[error("trace needs --backend cpu: on a device the choice of experts does not leave it")]
    TraceOnDevice,
}

impl ModelSettings {
    /// Checks what was written.
    ///
    /// **Errors**: [`SettingsError::OutOfRange`], [`SettingsError::TraceOnDevice`].
    pub fn check(written: ModelWritten) -> Result<Self, SettingsError> {
        let defaults = EngineSettings::default();
        let threads = written
            .threads
            .map(|threads| within("threads", threads, 1, 1024))
            .transpose()?;
        let vram = match written.vram {
            None => None,
            Some(size) if size.as_u64() >= VRAM_LEAST => Some(size.as_u64()),
            Some(size) => {
                return Err(SettingsError::OutOfRange {
                    name: "vram",
                    got: size.as_u64() as usize,
                    low: VRAM_LEAST as usize,
                    high: usize::MAX,
                });
            }
        };
        let backend = match written.backend {
            None | Some(BackendWritten::Auto) => BackendChoice::Auto,
            Some(BackendWritten::Cpu) => BackendChoice::Cpu,
            Some(BackendWritten::Cuda) => BackendChoice::Cuda,
        };
        if backend == BackendChoice::Cuda && written.trace.is_some() {
            return Err(SettingsError::TraceOnDevice);
        }
        Ok(Self {
            backend,
            cuda: CudaSettings {
                device: within("device", written.device.unwrap_or(0), 0, 255)?,
                vram,
                kernel_cache: written.kernel_cache,
            },
            threads: threads.and_then(NonZeroUsize::new),
            slots: within("slots", written.slots.unwrap_or(SLOTS_DEFAULT), 1, 256)?,
            context_tokens: written
                .ctx
                .map(|ctx| within("ctx", ctx, 16, 1 << 24))
                .transpose()?,
            kv: written.kv.map(|kv| match kv {
                KvWritten::F32 => KvType::F32,
                KvWritten::F16 => KvType::F16,
                KvWritten::Q8_0 => KvType::Q8_0,
            }),
            engine: EngineSettings {
                chunk_rows: written
                    .chunk_rows
                    .map(|rows| within("chunk-rows", rows, 1, 4096))
                    .transpose()?,
                gap_max: written
                    .max_gap_ms
                    .map(|ms| within("max-gap-ms", ms, 1, 60_000))
                    .transpose()?
                    .map(|ms| Duration::from_millis(ms as u64)),
                queue: within("queue", written.queue.unwrap_or(defaults.queue), 1, 65_536)?,
                drafts: written.drafts != Some(SwitchWritten::Off),
                step_stats: written.step_stats,
                ..defaults
            },
            trace: written.trace,
            experts: written.ram.map(|ram| ExpertSettings {
                ram: ram.as_u64(),
                profile: written.expert_profile,
            }),
        })
    }
}

fn within(name: &'static str, got: usize, low: usize, high: usize) -> Result<usize, SettingsError> {
    if (low..=high).contains(&got) {
        Ok(got)
    } else {
        Err(SettingsError::OutOfRange {
            name,
            got,
            low,
            high,
        })
    }
}

#[cfg(test)]
mod tests;
