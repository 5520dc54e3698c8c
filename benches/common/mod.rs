//! What the benches of whole models share: which file, which backend, windows of made-up tokens, and what a window must read and compute.

#![allow(dead_code, reason = "each bench uses its part")]

use std::{
    error::Error,
    fs::File,
    os::fd::{AsRawFd, FromRawFd},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use bytesize::ByteSize;
use clap::Args;
use serde_json::{Value, json};
use tidegate::{
    backend::Backend,
    cpu::{
        backend::{Cpu, CpuSettings},
        store::StoreSettings,
    },
    cuda::{Cuda, Device, Launch},
    gguf::Gguf,
    model::window::Window,
    settings::{CudaSettings, written::BackendWritten},
    synth::{Blueprint, Plan},
};

pub(crate) mod account;
pub(crate) mod rig;

pub(crate) type Failure = Box<dyn Error>;

/// Which model, and what computes.
#[derive(Args)]
pub(crate) struct Common {
    /// Model file; the bundled one if nothing is said.
    pub(crate) file: Option<PathBuf>,
    /// Instead of a file: weights like this model's, made in memory.
    #[arg(long, conflicts_with = "file")]
    pub(crate) like: Option<String>,
    /// Layers of such a model, all if absent.
    #[arg(long, requires = "like")]
    pub(crate) layers: Option<usize>,
    /// Its quantisation.
    #[arg(long, default_value = "q4_k_m")]
    pub(crate) quant: String,
    /// With a prediction block whose guesses are right with this chance.
    #[arg(long, requires = "like")]
    pub(crate) acceptance: Option<f32>,
    /// What computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) backend: BackendWritten,
    /// CUDA device, counted from 0.
    #[arg(long, default_value_t = 0)]
    pub(crate) device: usize,
    /// Device memory that may be used.
    #[arg(long)]
    pub(crate) vram: Option<ByteSize>,
    /// Worker threads of the CPU; the cores this process may use if absent.
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Memory that experts may take on the CPU; left to the system if absent.
    #[arg(long)]
    pub(crate) ram: Option<ByteSize>,
    /// Prompt rows of a window; the backend's own number if absent.
    #[arg(long)]
    pub(crate) chunk_rows: Option<usize>,
    /// One JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A bench, for whatever backend.
pub(crate) trait Measure {
    /// Measures on a backend with nothing on it; whether everything checked inside was right.
    fn run<B: Machine>(self, common: &Common, backend: B) -> Result<bool, Failure>;
}

/// A backend whose machine can be asked.
pub(crate) trait Machine: Backend {
    /// The CPU, if it is one.
    fn cpu(&self) -> Option<&Cpu> {
        None
    }

    /// The device, if it is one.
    fn cuda(&self) -> Option<&Cuda> {
        None
    }

    /// As [`Cuda::begin_recording`].
    fn begin_recording(
        &mut self,
        window: &mut Window<Self>,
        only: Option<Vec<Launch>>,
    ) -> Result<(), Failure> {
        let _ = (window, only);
        Err("only a device records windows".into())
    }

    /// As [`Cuda::end_recording`].
    fn end_recording(&mut self) -> Result<Vec<Launch>, Failure> {
        Err("only a device records windows".into())
    }

    /// As [`Cuda::replay`].
    fn replay(&mut self, times: usize) -> Result<Duration, Failure> {
        let _ = times;
        Err("only a device records windows".into())
    }

    /// What computes, in words.
    fn name(&self) -> String;

    /// What it gives at most, measured now.
    fn limits(&self) -> Result<Limits, Failure>;
}

/// What a machine gives at most, a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes read: what speeds are held against.
    pub(crate) memory: f64,
    /// Bytes read and written by a copy.
    pub(crate) copy: Option<f64>,
    /// 8-bit operations of matrix instructions, a multiply-add is two.
    pub(crate) int8: Option<f64>,
    /// The same by the maker's data sheet.
    pub(crate) int8_sheet: Option<f64>,
}

impl Limits {
    pub(crate) fn json(&self) -> Value {
        json!({
            "memory_gb_s": self.memory / 1e9, "copy_gb_s": self.copy.map(|copy| copy / 1e9),
            "int8_tops": self.int8.map(|ops| ops / 1e12), "int8_sheet_tops": self.int8_sheet.map(|ops| ops / 1e12),
        })
    }

    pub(crate) fn print(&self) {
        print!("memory reads {:.1} GB/s", self.memory / 1e9);
        if let Some(copy) = self.copy {
            print!(", copies {:.1} GB/s", copy / 1e9);
        }
        if let Some(ops) = self.int8 {
            print!(", int8 products {:.1} TOP/s", ops / 1e12);
        }
        if let Some(ops) = self.int8_sheet {
            print!(" (data sheet: {:.0})", ops / 1e12);
        }
        println!();
    }
}

/// Dense int8 operations a second by the data sheets of the SXM parts.
const SHEETS: [(&str, f64); 2] = [("H200", 1979e12), ("H100", 1979e12)];

impl Machine for Cpu {
    fn cpu(&self) -> Option<&Cpu> {
        Some(self)
    }

    fn name(&self) -> String {
        format!("CPU, {} threads", self.threads())
    }

    fn limits(&self) -> Result<Limits, Failure> {
        Ok(Limits {
            memory: self.read_bandwidth(),
            copy: None,
            int8: None,
            int8_sheet: None,
        })
    }
}

impl Machine for Cuda {
    fn cuda(&self) -> Option<&Cuda> {
        Some(self)
    }

    fn begin_recording(
        &mut self,
        window: &mut Window<Self>,
        only: Option<Vec<Launch>>,
    ) -> Result<(), Failure> {
        Ok(Cuda::begin_recording(self, window, only)?)
    }

    fn end_recording(&mut self) -> Result<Vec<Launch>, Failure> {
        Ok(Cuda::end_recording(self)?)
    }

    fn replay(&mut self, times: usize) -> Result<Duration, Failure> {
        Ok(Cuda::replay(self, times)?)
    }

    fn name(&self) -> String {
        let device = self.device();
        format!(
            "{}, compute capability {}.{}, {} multiprocessors",
            device.name,
            device.capability / 10,
            device.capability % 10,
            device.processors
        )
    }

    fn limits(&self) -> Result<Limits, Failure> {
        let limits = Cuda::limits(self)?;
        let sheet = SHEETS
            .iter()
            .find(|(name, _)| self.device().name.contains(name));
        Ok(Limits {
            memory: limits.read_bytes_s,
            copy: Some(limits.copy_bytes_s),
            int8: Some(limits.int8_ops_s),
            int8_sheet: sheet.map(|(_, ops)| *ops),
        })
    }
}

impl Common {
    /// Runs a bench on the backend that was asked for. Ends the process with 1 if a check inside failed.
    pub(crate) fn run(&self, measure: impl Measure) -> Result<(), Failure> {
        let right = match self.device()? {
            Some(device) => measure.run(self, Cuda::new(device, self.cuda_settings())),
            None => {
                let cpu = Cpu::new(CpuSettings {
                    threads: self.threads,
                });
                let kept = self.ram.map(|ram| StoreSettings {
                    ram: ram.as_u64(),
                    lookahead: true,
                    ..StoreSettings::default()
                });
                let cpu = match kept {
                    None => cpu,
                    Some(kept) => cpu.keeping(kept),
                };
                measure.run(self, cpu)
            }
        }?;
        if !right {
            eprintln!("a check inside failed");
            std::process::exit(1);
        }
        Ok(())
    }

    pub(crate) fn cuda_settings(&self) -> CudaSettings {
        CudaSettings {
            device: self.device,
            vram: self.vram.map(|size| size.as_u64()),
            kernel_cache: None,
        }
    }

    /// The device, where one is to be used.
    pub(crate) fn device(&self) -> Result<Option<Device>, Failure> {
        match self.backend {
            BackendWritten::Cpu => Ok(None),
            BackendWritten::Cuda => Ok(Some(Device::open(self.device)?)),
            BackendWritten::Auto => Ok(Device::open(self.device).ok()),
        }
    }

    /// The model's name and file.
    pub(crate) fn open(&self) -> Result<(String, Arc<Gguf>), Failure> {
        let Some(like) = &self.like else {
            let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tales/tales.gguf");
            let path = self.file.clone().unwrap_or_else(|| bundled.into());
            return Ok((path.display().to_string(), Arc::new(Gguf::open(path)?)));
        };
        let mut plan = Plan::new(Blueprint::named(like)?, self.layers, self.quant.parse()?)?;
        if let Some(acceptance) = self.acceptance {
            plan = plan.predicting(acceptance)?;
        }
        let begun = Instant::now();
        let memory = memory_file()?;
        plan.fill(&memory)?;
        let file = Gguf::open(format!("/proc/self/fd/{}", memory.as_raw_fd()))?;
        eprintln!("{like} made in {:.1} s", begun.elapsed().as_secs_f64());
        let layers = self.layers.map_or("all".to_owned(), |n| n.to_string());
        let name = format!("{like}, {layers} layers, {}", self.quant);
        Ok((name, Arc::new(file)))
    }
}

/// A file without a name that lies in memory.
fn memory_file() -> Result<File, Failure> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"weights".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: just opened, and owned by nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}
