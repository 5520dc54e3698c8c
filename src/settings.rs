//! Settings: as written (flags, environment, TOML file: [`written`], [`mod@file`]), then as checked (here). Nothing else parses a setting.
//!
//! A setting has one name everywhere: `--chunk-rows 64`, `TIDEGATE_CHUNK_ROWS=64`, `chunk-rows = 64`. A flag wins over the environment, the
//! environment over the file.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

pub mod cors;
pub mod file;
pub mod keys;
pub mod written;

use crate::{backend::shape::KvType, engine::EngineSettings};
use cors::{Cors, CorsError};
use keys::{KeyError, KeySettings};
use written::{BackendWritten, KvWritten, ModelWritten, ServerWritten};

/// Where `serve` listens when nothing is said.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:8080";
/// Sequences computed at once when nothing is said.
pub const SLOTS_DEFAULT: usize = 4;
/// **Units**: MiB. Longest body that is read when nothing is said.
pub const MAX_BODY_MIB_DEFAULT: usize = 16;
/// **Units**: seconds. How long running answers may take after a signal when nothing is said.
pub const GRACE_S_DEFAULT: u64 = 10;
/// **Units**: seconds. How long a client may take over a request's head, and over its body, when nothing is said.
pub const RECEIVE_TIMEOUT_S_DEFAULT: usize = 30;
/// Requests in flight at once when nothing is said.
pub const MAX_REQUESTS_DEFAULT: usize = 256;

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
}

/// How the HTTP side behaves, as checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Address and port.
    pub listen: String,
    /// Another name for the model.
    pub alias: Option<String>,
    /// Longest body that is read.
    pub max_body_bytes: usize,
    /// How long running answers may take after a signal.
    pub grace: Duration,
    /// How long a client may take over a request's head, and over its body.
    pub receive_timeout: Duration,
    /// What an answer may take.
    pub deadline: Option<Duration>,
    /// How long a client may leave an answer unread.
    pub idle_timeout: Duration,
    /// Requests in flight at once.
    pub max_requests: usize,
    /// Web pages that may use the server.
    pub cors: Cors,
    /// Who may use the server; nobody named is everybody.
    pub keys: Vec<KeySettings>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            listen: LISTEN_DEFAULT.into(),
            alias: None,
            max_body_bytes: MAX_BODY_MIB_DEFAULT << 20,
            grace: Duration::from_secs(GRACE_S_DEFAULT),
            receive_timeout: Duration::from_secs(RECEIVE_TIMEOUT_S_DEFAULT as u64),
            deadline: None,
            idle_timeout: EngineSettings::default().idle_timeout,
            max_requests: MAX_REQUESTS_DEFAULT,
            cors: Cors::Off,
            keys: Vec::new(),
        }
    }
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
}

impl ModelSettings {
    /// Checks what was written.
    ///
    /// **Errors**: [`SettingsError::OutOfRange`].
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
        Ok(Self {
            backend: match written.backend {
                None | Some(BackendWritten::Auto) => BackendChoice::Auto,
                Some(BackendWritten::Cpu) => BackendChoice::Cpu,
                Some(BackendWritten::Cuda) => BackendChoice::Cuda,
            },
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
                step_stats: written.step_stats,
                ..defaults
            },
        })
    }
}

impl ServerSettings {
    /// Checks what was written.
    ///
    /// **Errors**: [`SettingsError::OutOfRange`], [`SettingsError::Key`], [`SettingsError::Cors`].
    pub fn check(written: ServerWritten) -> Result<Self, SettingsError> {
        let up_to =
            |high, name, got: Option<usize>, unset| within(name, got.unwrap_or(unset), 1, high);
        let (body, receive) = (written.max_body_mib, written.receive_timeout_s);
        let (requests, grace_s) = (written.max_requests, written.grace_s);
        let body_mib = up_to(1024, "max-body-mib", body, MAX_BODY_MIB_DEFAULT)?;
        let receive_s = up_to(
            3600,
            "receive-timeout-s",
            receive,
            RECEIVE_TIMEOUT_S_DEFAULT,
        )?;
        let deadline_s = written.deadline_s;
        let deadline_s = deadline_s.map(|s| within("deadline-s", s, 1, 24 * 3600));
        let idle_default = EngineSettings::default().idle_timeout.as_secs() as usize;
        let idle_s = up_to(
            24 * 3600,
            "idle-timeout-s",
            written.idle_timeout_s,
            idle_default,
        )?;
        let requests = up_to(65_536, "max-requests", requests, MAX_REQUESTS_DEFAULT)?;
        let grace_s = usize::try_from(grace_s.unwrap_or(GRACE_S_DEFAULT)).unwrap_or(usize::MAX);
        Ok(Self {
            keys: keys::check(&written)?,
            listen: written.listen.unwrap_or_else(|| LISTEN_DEFAULT.into()),
            alias: written.alias,
            max_body_bytes: body_mib << 20,
            grace: seconds(within("grace-s", grace_s, 0, 3600)?),
            receive_timeout: seconds(receive_s),
            deadline: deadline_s.transpose()?.map(seconds),
            idle_timeout: seconds(idle_s),
            max_requests: requests,
            cors: Cors::check(&written.cors_origin.unwrap_or_default())?,
        })
    }
}

fn seconds(seconds: usize) -> Duration {
    Duration::from_secs(seconds as u64)
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
