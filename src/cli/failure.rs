//! How a command fails: one line that says what is wrong, one that says what to do, and an exit code.

use std::{io, path::PathBuf, process::ExitCode};

use metrics_exporter_prometheus::BuildError as MetricsError;

use crate::{
    cpu::{
        backend::{Cpu, CpuError},
        store::StoreError,
    },
    cuda::{Cuda, CudaError},
    engine::{StartError, request::EngineError},
    estimate::machine::MachineError,
    gguf::GgufError,
    model::{
        loader::LoadError,
        start::{BuildError, Failed},
        text::TextError,
    },
    replay::CapacityError,
    settings::{SettingsError, keys::KeyError},
    stage::tokenize::RequestError,
    synth::SynthError,
    trace::error::TraceError,
};

/// Usage, settings or the model file are wrong.
const USAGE: u8 = 2;
/// Anything else.
const OTHER: u8 = 1;

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// A setting is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The model file is wrong, or is not there.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The model file's tokenizer or template is wrong.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The model file is no model that can be run.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The engine does not start.
    #[error(transparent)]
    Start(#[from] Failed<Cpu>),
    /// There is no device that can be used.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// The engine does not start on the device.
    #[error(transparent)]
    StartDevice(#[from] Failed<Cuda>),
    /// The engine ended on its own.
    #[error("the engine stopped: {why}")]
    Engine {
        /// What it said last.
        why: String,
    },
    /// No synthetic file was written.
    #[error(transparent)]
    Synth(#[from] SynthError),
    /// A prompt was refused.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// An answer broke off.
    #[error(transparent)]
    Answer(#[from] EngineError),
    /// The recorder of the metrics is taken.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The address is taken, not ours, or no address.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// As set.
        listen: String,
        /// Why.
        source: io::Error,
    },
    /// A key's name cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The system has no randomness to give.
    #[error("the system gives no random numbers, so that a key could be guessed: {source}")]
    Random {
        /// Why.
        source: getrandom::Error,
    },
    /// Choices cannot be recorded there.
    #[error("cannot write the trace {}: {source}", path.display())]
    TraceFile {
        /// As set.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A device is there, but what is chosen on one is not known.
    #[error("--trace is set, and on {device} the choice of experts does not leave the device")]
    TraceOnDevice {
        /// Its name.
        device: String,
    },
    /// A trace cannot be read.
    #[error("{}: {source}", path.display())]
    Trace {
        /// The trace.
        path: PathBuf,
        /// What is wrong with it.
        source: TraceError,
    },
    /// A description of a machine cannot be used.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Experts cannot be kept as asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A capacity cannot be used.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// Reading or writing failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl Failure {
    /// Prints it and gives the exit code.
    pub(super) fn report(&self) -> ExitCode {
        eprintln!("error: {self}");
        if let Some(step) = self.next_step() {
            eprintln!("  {step}");
        }
        ExitCode::from(self.code())
    }

    /// Why the device that is there is not used; nothing if there is none. Failures that the CPU would meet too are not the device's.
    pub(super) fn without_device(&self) -> Option<String> {
        match self {
            Self::Device(CudaError::NoDriver | CudaError::NoDevice { .. }) => None,
            Self::StartDevice(StartError::Build(BuildError::Allocate(error))) => {
                Some(error.to_string())
            }
            failure => Some(failure.to_string()),
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::Device(_) | Self::StartDevice(StartError::Build(_) | StartError::Settings(_)) => {
                USAGE
            }
            Self::Settings(_) | Self::Key(_) | Self::File(_) | Self::Text(_) | Self::Load(_) => {
                USAGE
            }
            Self::TraceFile { .. }
            | Self::TraceOnDevice { .. }
            | Self::Trace { .. }
            | Self::Machine(_)
            | Self::Store(StoreError::TooSmall(_))
            | Self::Capacity(_) => USAGE,
            Self::Start(StartError::Build(BuildError::Load(_)) | StartError::Settings(_)) => USAGE,
            Self::Start(StartError::Build(BuildError::Allocate(CpuError::Store(
                StoreError::TooSmall(_),
            )))) => USAGE,
            Self::Synth(
                SynthError::Model { .. } | SynthError::Mix { .. } | SynthError::Layers { .. },
            ) => USAGE,
            _ => OTHER,
        }
    }

    fn next_step(&self) -> Option<String> {
        match self {
            Self::Settings(SettingsError::Key(_) | SettingsError::KeyTables { .. }) => Some(
                "`tidegate key NAME` makes a key and the lines for the settings file.".into(),
            ),
            Self::Settings(_) => Some("`tidegate serve --help` explains every setting.".into()),
            Self::Listen { listen, source } if source.kind() == io::ErrorKind::AddrInUse => {
                Some(format!(
                    "Another program (perhaps another tidegate) listens there. Stop it, or choose another port: --listen {}",
                    other_port(listen)
                ))
            }
            Self::Listen { .. } => {
                Some("An address looks like 127.0.0.1:8080 or 0.0.0.0:8080.".into())
            }
            Self::File(GgufError::Io { reason, .. }) if reason.kind() == io::ErrorKind::NotFound => Some(
                "Check the path, or leave it out: without a model file the bundled model is used.".into(),
            ),
            Self::File(_)
            | Self::Text(_)
            | Self::Load(_)
            | Self::Start(StartError::Build(BuildError::Load(_))) => Some(
                "`tidegate inspect FILE` shows what a file holds; a download may be incomplete."
                    .into(),
            ),
            Self::Start(StartError::Build(BuildError::Allocate(CpuError::Store(
                StoreError::TooSmall(_),
            )))) => Some("`tidegate plan FILE --ram SIZE` shows what takes how much.".into()),
            Self::Start(StartError::Build(BuildError::Allocate(_))) => {
                Some("Fewer --slots, a smaller --ctx or --kv q8_0 need less.".into())
            }
            Self::Device(CudaError::NoDriver | CudaError::OldDriver { .. }) => Some(
                "Install the NVIDIA driver, or leave --backend out: then the CPU computes.".into(),
            ),
            Self::Device(CudaError::NoDevice { .. } | CudaError::OldDevice { .. }) => Some(
                "`nvidia-smi -L` lists the devices; --device N chooses one.".into(),
            ),
            Self::StartDevice(StartError::Build(BuildError::Allocate(CudaError::NoCompiler {
                ..
            }))) => Some(
                "Put libnvrtc of CUDA 12 or 13 where LD_LIBRARY_PATH finds it; the Python package nvidia-cuda-nvrtc holds one.".into(),
            ),
            Self::StartDevice(StartError::Build(BuildError::Allocate(CudaError::DoesNotFit {
                ..
            }))) => Some("`tidegate plan FILE --backend cuda` shows what takes how much.".into()),
            Self::StartDevice(StartError::Build(BuildError::Load(_))) => Some(
                "`tidegate inspect FILE` shows what a file holds; a download may be incomplete."
                    .into(),
            ),
            Self::Trace { .. } => Some("`tidegate serve --trace FILE` or `tidegate run --trace FILE` writes one.".into()),
            Self::Engine { .. } => Some("Running answers were ended with an error. Start it again.".into()),
            Self::Request(RequestError::Engine(EngineError::PromptTooLong { .. })) => Some(
                "--ctx makes room for longer prompts, up to what the model was made for.".into(),
            ),
            _ => None,
        }
    }
}

fn other_port(listen: &str) -> String {
    let next = listen.rsplit_once(':').and_then(|(host, port)| {
        Some(format!(
            "{host}:{}",
            port.parse::<u16>().ok()?.checked_add(1)?
        ))
    });
    next.unwrap_or_else(|| "127.0.0.1:0".into())
}
