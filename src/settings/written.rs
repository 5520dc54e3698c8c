//! Settings as written. One struct is both the flags (clap, which reads the environment too) and the keys of the TOML file (serde), so the
//! names cannot differ.

use std::{fmt, path::PathBuf};

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use serde::Deserialize;

/// How a model is loaded and run.
#[derive(Args, Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", default)]
#[command(next_help_heading = "Engine")]
pub struct ModelWritten {
    /// What computes [default: auto]
    ///
    /// `auto` takes a CUDA device where there is one that can hold the model, and says why where not; `cuda` insists on it.
    #[arg(long, env = "TIDEGATE_BACKEND", value_name = "NAME", value_enum)]
    pub backend: Option<BackendWritten>,

    /// CUDA device to use, counted from 0 [default: 0]
    #[arg(long, env = "TIDEGATE_DEVICE", value_name = "N")]
    pub device: Option<usize>,

    /// Device memory that may be used, for example 24GiB [default: what is free, less a reserve]
    ///
    /// Nothing is ever allocated beyond it. What does not fit is refused with the numbers.
    #[arg(long, env = "TIDEGATE_VRAM", value_name = "SIZE")]
    pub vram: Option<ByteSize>,

    /// Where compiled CUDA kernels are kept [default: tidegate/kernels in the user's cache directory]
    ///
    /// They are compiled at the first start with a model's shape and a device, which takes seconds to a minute.
    #[arg(long, env = "TIDEGATE_KERNEL_CACHE", value_name = "DIRECTORY")]
    pub kernel_cache: Option<PathBuf>,

    /// Threads that compute [default: one for every physical core the process may use]
    ///
    /// The workers are pinned to cores. Limits of a container (CPU quota, affinity mask) are respected; more threads than physical cores
    /// seldom help, because a decode step is bound by memory bandwidth.
    #[arg(long, env = "TIDEGATE_THREADS", value_name = "N")]
    pub threads: Option<usize>,

    /// Requests computed at the same time [default: 4]
    ///
    /// Every slot reserves memory for a whole context. Requests beyond this number wait in the queue.
    #[arg(long, env = "TIDEGATE_SLOTS", value_name = "N")]
    pub slots: Option<usize>,

    /// Tokens that fit into one sequence, prompt and answer together [default: what the model was made for, at most 8192]
    ///
    /// A smaller context needs less memory. A prompt that does not fit is refused with the code `context_length_exceeded`; an answer that
    /// reaches the end stops with the finish reason `length`.
    #[arg(long, env = "TIDEGATE_CTX", value_name = "TOKENS")]
    pub ctx: Option<usize>,

    /// How attention keys and values are kept [default: f32 if the file's attention weights are F32 or BF16, else f16]
    ///
    /// q8_0 needs 53 % of f16's memory and rounds a little more.
    #[arg(long, env = "TIDEGATE_KV", value_name = "TYPE", value_enum)]
    pub kv: Option<KvWritten>,

    /// Prompt tokens that are read in one step [default: 128 on a CPU, 4096 on a CUDA device]
    ///
    /// Larger chunks read long prompts faster, smaller ones let running answers go on sooner. The answers are the same.
    #[arg(long, env = "TIDEGATE_CHUNK_ROWS", value_name = "N")]
    pub chunk_rows: Option<usize>,

    /// Milliseconds that running answers may pause because a long prompt is read [default: 150, on a CUDA device 30]
    ///
    /// A long prompt is left between two layers for as long as the running answers need for their next tokens. Where layers are quick, their
    /// pauses are much shorter: two and a half of their own steps, or a twelfth of this if that is more. Smaller values make answers
    /// smoother, larger ones read long prompts faster. Where the answers' own steps take long, the pause is up to three times their time.
    #[arg(long, env = "TIDEGATE_MAX_GAP_MS", value_name = "MS")]
    pub max_gap_ms: Option<usize>,

    /// Whether tokens are guessed ahead [default: on]
    ///
    /// The answers are the same, they only come faster: tokens that followed the same words before, or that the model itself predicts, are
    /// checked several at once. How many pays is measured all the time, for every answer by itself. A request may say `"drafts": false`.
    #[arg(long, env = "TIDEGATE_DRAFTS", value_name = "on|off", value_enum)]
    pub drafts: Option<SwitchWritten>,

    /// Requests that may wait for a slot [default: 64]
    ///
    /// When the queue is full, a request is refused with status 503 and a Retry-After header.
    #[arg(long, env = "TIDEGATE_QUEUE", value_name = "N")]
    pub queue: Option<usize>,

    /// Memory that experts may take on the CPU, for example 8GiB [default: left to the system]
    ///
    /// For models larger than memory. Experts that are used most stay; a missing one is read from the file in large pieces, past the page cache, and those of the next layers ahead of
    /// their time. Everything else stays mapped. The answers are the same whatever the size; less than what one token uses is refused with the number that would do.
    #[arg(long, env = "TIDEGATE_RAM", value_name = "SIZE")]
    pub ram: Option<ByteSize>,

    /// Where it is kept which experts were used most, so that the next start begins with them [default: tidegate/experts in the user's cache directory]
    ///
    /// Written at the end of a run with --ram.
    #[arg(long, env = "TIDEGATE_EXPERT_PROFILE", value_name = "FILE")]
    pub expert_profile: Option<PathBuf>,

    /// Write one JSON line for every step of the engine to this file
    ///
    /// Each line says what the step did: kind, rows, slots, prompt rows, decode rows, guesses and how many were right, milliseconds in all and by
    /// part, KV pages in use, and rows, guesses and their source slot by slot.
    #[arg(long, env = "TIDEGATE_STEP_STATS", value_name = "FILE")]
    pub step_stats: Option<PathBuf>,

    /// Record which experts every token chose to this file
    ///
    /// `tidegate replay FILE` tells from it how fast the model would be where memory holds only some of its experts. The CPU computes
    /// meanwhile: on a CUDA device the choice stays there.
    #[arg(long, env = "TIDEGATE_TRACE", value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// How the HTTP side behaves.
#[derive(Args, Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", default)]
#[command(next_help_heading = "Server")]
pub struct ServerWritten {
    /// Address and port to listen on [default: 127.0.0.1:8080]
    ///
    /// Without `[[key]]` tables in the settings file, an address other than 127.0.0.1 lets everybody use the model who reaches the port. Port 0 takes a
    /// free one.
    #[arg(long, env = "TIDEGATE_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,

    /// Another name that requests may use for the model
    ///
    /// Requests may name the model by its file's name (without .gguf), by this name, or not at all.
    #[arg(long, env = "TIDEGATE_ALIAS", value_name = "NAME")]
    pub alias: Option<String>,

    /// Longest request body that is read, in MiB [default: 16]
    ///
    /// A longer one is refused with status 413.
    #[arg(long, env = "TIDEGATE_MAX_BODY_MIB", value_name = "MIB")]
    pub max_body_mib: Option<usize>,

    /// Seconds that running answers may still take after SIGINT or SIGTERM [default: 10]
    ///
    /// New requests are refused at once with status 503, and /health says `draining`. A second signal ends the process without waiting.
    #[arg(long, env = "TIDEGATE_GRACE_S", value_name = "SECONDS")]
    pub grace_s: Option<usize>,

    /// Seconds a client may take to send a request's head, and as many for its body [default: 30]
    ///
    /// A slower one is told 408 and the connection is closed. A connection without a request is closed after that time as well.
    #[arg(long, env = "TIDEGATE_RECEIVE_TIMEOUT_S", value_name = "SECONDS")]
    pub receive_timeout_s: Option<usize>,

    /// Seconds that an answer may take [default: no limit]
    ///
    /// Counted from the request to the last token, the queue included. A request may allow its answer less, with `deadline_ms`. What is late
    /// ends with the code `deadline_exceeded`, with status 504 if nothing has been sent.
    #[arg(long, env = "TIDEGATE_DEADLINE_S", value_name = "SECONDS")]
    pub deadline_s: Option<usize>,

    /// Seconds that a client may leave an answer unread [default: 60]
    ///
    /// Who stops reading holds up nobody else, but keeps a slot; after this time the slot is given to somebody else and the connection is closed.
    #[arg(long, env = "TIDEGATE_IDLE_TIMEOUT_S", value_name = "SECONDS")]
    pub idle_timeout_s: Option<usize>,

    /// Requests that may be in flight at once [default: 256]
    ///
    /// One more is refused at once with status 503 and a Retry-After header. /health and /metrics are answered all the same.
    #[arg(long, env = "TIDEGATE_MAX_REQUESTS", value_name = "N")]
    pub max_requests: Option<usize>,

    /// Origin of a web page that may use the server from a browser; may be repeated [default: none]
    ///
    /// As in http://localhost:3000; * is every page. In the environment they are separated by commas.
    #[arg(
        long,
        env = "TIDEGATE_CORS_ORIGIN",
        value_name = "ORIGIN",
        value_delimiter = ','
    )]
    pub cors_origin: Option<Vec<String>>,

    /// Answers that a key may have running at once [default: no limit]
    ///
    /// For keys whose table says nothing else, as the next two are. Over it, a request is refused with status 429.
    #[arg(long, env = "TIDEGATE_KEY_STREAMS", value_name = "N")]
    pub key_streams: Option<usize>,

    /// Requests a minute that a key may make [default: no limit]
    #[arg(long, env = "TIDEGATE_KEY_REQUESTS_PER_MINUTE", value_name = "N")]
    pub key_requests_per_minute: Option<usize>,

    /// Tokens a minute that a key may use, of prompts and answers [default: no limit]
    ///
    /// An answer that has begun is never cut: what it uses beyond the limit delays the key's next request.
    #[arg(long, env = "TIDEGATE_KEY_TOKENS_PER_MINUTE", value_name = "N")]
    pub key_tokens_per_minute: Option<usize>,

    /// Who may use the server: the `[[key]]` tables of the settings file, and only there.
    #[arg(skip)]
    pub key: Option<Vec<KeyWritten>>,
}

/// An API key: one `[[key]]` table of the settings file. `tidegate key NAME` writes one.
#[derive(Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", default)]
pub struct KeyWritten {
    /// Whose it is; appears in the log and in metrics.
    pub name: Option<String>,
    /// SHA-256 of the key, in hexadecimal digits.
    pub sha256: Option<String>,
    /// Answers running at once.
    pub streams: Option<usize>,
    /// Requests a minute.
    pub requests_per_minute: Option<usize>,
    /// Tokens a minute, of prompts and answers.
    pub tokens_per_minute: Option<usize>,
}

impl fmt::Debug for KeyWritten {
    /// Nothing of it: where a hash or a name belongs, somebody may have written the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyWritten").finish_non_exhaustive()
    }
}

impl KeyWritten {
    /// What a table may hold.
    pub const NAMES: [&str; 5] = [
        "name",
        "sha256",
        "streams",
        "requests-per-minute",
        "tokens-per-minute",
    ];
}

/// What computes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BackendWritten {
    /// A CUDA device where there is one that will do, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA device.
    Cuda,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SwitchWritten {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
pub enum KvWritten {
    /// Four bytes an element.
    #[serde(rename = "f32")]
    #[value(name = "f32")]
    F32,
    /// Two bytes an element.
    #[serde(rename = "f16")]
    #[value(name = "f16")]
    F16,
    /// 34 bytes for 32 elements.
    #[serde(rename = "q8_0")]
    #[value(name = "q8_0")]
    Q8_0,
}

impl ModelWritten {
    /// What is written here, and where nothing is, what is written in `file`.
    pub fn or(self, file: Self) -> Self {
        Self {
            backend: self.backend.or(file.backend),
            device: self.device.or(file.device),
            vram: self.vram.or(file.vram),
            kernel_cache: self.kernel_cache.or(file.kernel_cache),
            threads: self.threads.or(file.threads),
            slots: self.slots.or(file.slots),
            ctx: self.ctx.or(file.ctx),
            kv: self.kv.or(file.kv),
            chunk_rows: self.chunk_rows.or(file.chunk_rows),
            max_gap_ms: self.max_gap_ms.or(file.max_gap_ms),
            drafts: self.drafts.or(file.drafts),
            queue: self.queue.or(file.queue),
            ram: self.ram.or(file.ram),
            expert_profile: self.expert_profile.or(file.expert_profile),
            step_stats: self.step_stats.or(file.step_stats),
            trace: self.trace.or(file.trace),
        }
    }
}

impl ServerWritten {
    /// What is written here, and where nothing is, what is written in `file`.
    pub fn or(self, file: Self) -> Self {
        Self {
            listen: self.listen.or(file.listen),
            alias: self.alias.or(file.alias),
            max_body_mib: self.max_body_mib.or(file.max_body_mib),
            grace_s: self.grace_s.or(file.grace_s),
            deadline_s: self.deadline_s.or(file.deadline_s),
            idle_timeout_s: self.idle_timeout_s.or(file.idle_timeout_s),
            receive_timeout_s: self.receive_timeout_s.or(file.receive_timeout_s),
            max_requests: self.max_requests.or(file.max_requests),
            cors_origin: self.cors_origin.or(file.cors_origin),
            key_streams: self.key_streams.or(file.key_streams),
            key_requests_per_minute: self
                .key_requests_per_minute
                .or(file.key_requests_per_minute),
            key_tokens_per_minute: self.key_tokens_per_minute.or(file.key_tokens_per_minute),
            key: self.key.or(file.key),
        }
    }
}
