//! `tidegate plan`: the memory a model would take, and how fast it would be, under the settings that `serve` would have.

use std::{fmt::Write, fs::File, os::fd::AsRawFd, path::PathBuf, sync::Arc};

use super::{PlanArgs, failure::Failure, machine, output::written, source::Source, start};
use crate::{
    backend::Backend,
    cpu::{backend::Cpu, store::Profile},
    cuda::{Cuda, Device},
    estimate::{Estimate, Kept, Machine, Work},
    gguf::Gguf,
    ledger::{Ledger, Place, bytes},
    model::start::{Prepared, chunk_rows},
    settings::{BackendChoice, ModelSettings, file::FileSettings},
    synth::{Blueprint, Plan},
};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate plan model.gguf
  tidegate plan model.gguf --ram 8GiB                  memory holds only some of the experts
  tidegate plan --like qwen3-30b-a3b --quant q4_k_m    before you download it
  tidegate plan model.gguf --machine other.toml        a machine that you do not have

A machine, in GB/s and 10^12 8-bit operations a second; all but the first may
be left out:
  dram-gb-s = 60
  disk-gb-s = 6
  pcie-gb-s = 25
  vram-gb-s = 1000
  int8-tops = 4

This machine is measured, which takes some seconds the first time and is kept
in the user's cache directory.";

/// Prompts whose first tokens are predicted.
const PROMPTS: [usize; 2] = [1024, 32_768];
/// The prompt whose speed is told, in tokens.
const PROMPT: usize = 512;

pub(super) fn plan(args: PlanArgs, bundled: &'static [u8]) -> Result<(), Failure> {
    let settings_file = FileSettings::read(args.config.config.as_deref())?;
    let settings = ModelSettings::check(args.run.or(settings_file.run))?;
    let (name, file) = match &args.like {
        Some(like) => (
            like.clone(),
            Arc::new(outline(like, args.layers, &args.quant)?),
        ),
        None => {
            let source = Source::new(args.file.or(settings_file.model), bundled);
            (source.id(), Arc::new(source.open()?))
        }
    };
    let mut backend = Cpu::new(start::cpu(&settings));
    if let Some(store) = start::store(&name, &settings) {
        backend = backend.keeping(store);
    }
    let prepared = Prepared::new(&file, backend, &settings)?;
    let mut text = format!(
        "{name}: {} slots, {} tokens each\n\n",
        settings.slots,
        prepared.context()
    );
    // a plan needs no device: one can be described by --backend cuda --vram
    let device = match settings.backend {
        BackendChoice::Cpu => None,
        _ => Device::open(settings.cuda.device).ok(),
    };
    if device.is_none() && settings.backend != BackendChoice::Cuda {
        on_cpu(&mut text, &name, &file, &prepared, &settings, args.machine)?;
    } else {
        on_device(&mut text, &file, &prepared, &settings, device, args.machine)?;
    }
    written(&text).map(drop)
}

/// A file like a known model's, without its weights.
fn outline(like: &str, layers: Option<usize>, quant: &str) -> Result<Gguf, Failure> {
    let plan = Plan::new(Blueprint::named(like)?, layers, quant.parse()?)?;
    let file = temporary().map_err(|source| Failure::Io {
        what: "cannot make a file for the outline",
        source,
    })?;
    plan.outline(&file)?;
    Ok(Gguf::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?)
}

/// A file that nobody else sees, and that is gone with the process.
fn temporary() -> std::io::Result<File> {
    let path = std::env::temp_dir().join(format!("tidegate-plan-{}", std::process::id()));
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn on_cpu(
    text: &mut String,
    name: &str,
    file: &Gguf,
    prepared: &Prepared<Cpu>,
    settings: &ModelSettings,
    described: Option<PathBuf>,
) -> Result<(), Failure> {
    let needs = prepared.needs();
    let slots = match &settings.experts {
        Some(experts) => prepared.backend().slot_plan(needs, experts.ram)?,
        None => None,
    };
    let ledger = Ledger::plan::<Cpu>(file, needs, prepared.room(), slots.as_ref());
    let _ = writeln!(text, "{ledger}\n\n{}", in_memory(&ledger, settings));
    let work = work::<Cpu>(file, prepared);
    let machine = match described {
        Some(path) => Machine::described(&path, false)?,
        None => machine::measured(file, &work, needs, prepared.room().kv_type, settings),
    };
    let ranks = ranks(name, needs, settings);
    let kept = slots.map(|plan| Kept::new(&plan, &work.experts, &ranks));
    let rows = chunk_rows::<Cpu>(settings);
    predict(text, &work, &machine, kept.as_ref(), rows);
    if let Some(kept) = &kept {
        let known = if ranks.is_empty() {
            "as if all were used alike: no profile of an earlier run is there"
        } else {
            "by the profile of an earlier run"
        };
        let hits: f64 = kept.hit_rates.iter().sum::<f64>() / kept.hit_rates.len() as f64;
        let _ = writeln!(text, "experts found      {:.1} %, {known}", 100.0 * hits);
    }
    Ok(())
}

fn on_device(
    text: &mut String,
    file: &Gguf,
    prepared: &Prepared<Cpu>,
    settings: &ModelSettings,
    device: Option<Device>,
    described: Option<PathBuf>,
) -> Result<(), Failure> {
    let room = prepared.room_on::<Cuda>(settings);
    let plan = Ledger::plan::<Cuda>(file, prepared.needs(), &room, None);
    let needed = plan.total(Place::Device);
    let fits = match (settings.cuda.vram, &device) {
        (Some(vram), _) => against(needed, vram, "--vram allows"),
        (None, Some(device)) => {
            let free = device.memory()?.0;
            against(needed, free, &format!("{} has free", device.name))
        }
        (None, None) => {
            "there is no CUDA device here to compare it with; --vram SIZE names one's memory"
                .to_owned()
        }
    };
    let _ = writeln!(text, "{plan}\n\n{fits}");
    if let Some(path) = described {
        let machine = Machine::described(&path, true)?;
        let work = work::<Cuda>(file, prepared);
        predict(text, &work, &machine, None, chunk_rows::<Cuda>(settings));
    }
    Ok(())
}

/// What is to be done for a token, with a backend's caches.
fn work<B: Backend>(file: &Gguf, prepared: &Prepared<Cpu>) -> Work {
    let needs = prepared.needs();
    let kind = prepared.room().kv_type;
    let pages = needs.attention.iter();
    let page: usize = pages.map(|layer| B::page_bytes(&layer.kv, kind)).sum();
    let states = needs.delta.iter().map(B::state_bytes);
    Work::of(
        file,
        needs,
        (page / crate::engine::executor::PAGE_TOKENS) as u64,
        states.sum::<usize>() as u64,
    )
}

/// How much an earlier run used every expert.
fn ranks(
    name: &str,
    needs: &crate::backend::Needs,
    settings: &ModelSettings,
) -> Vec<(usize, u16, f64)> {
    let path = start::store(name, settings).and_then(|store| store.profile);
    path.map(|path| Profile::of(&needs.expert_layers).read(&path))
        .unwrap_or_default()
}

fn predict(text: &mut String, work: &Work, machine: &Machine, kept: Option<&Kept>, rows: usize) {
    let estimate = Estimate {
        work,
        machine,
        kept,
    };
    let drive = match machine.disk_bytes_s {
        Some(disk) => format!(", the drive {:.2}", disk / 1e9),
        None => String::new(),
    };
    let _ = writeln!(
        text,
        "\nmemory reads {:.1} GB/s{drive}\n",
        machine.dram_bytes_s / 1e9
    );
    if kept.is_some() && machine.disk_bytes_s.is_none() {
        text.push_str(
            "how fast it would be depends on a drive that is not known: --machine names one (disk-gb-s), or plan with a file that lies on it\n",
        );
        return;
    }
    let decode = estimate.decode(0).all;
    let prompt = estimate.first_token(PROMPT, rows);
    let _ = writeln!(
        text,
        "decode             {:.1} tok/s with one stream; {} binds\nprompts            {:.0} tok/s with {PROMPT} tokens",
        1.0 / decode,
        estimate.decode_limit(),
        PROMPT as f64 / prompt,
    );
    for prompt in PROMPTS {
        let seconds = estimate.first_token(prompt, rows);
        let _ = writeln!(
            text,
            "first token        {seconds:.1} s behind {prompt} tokens"
        );
    }
}

/// How what is the process's own stands against the memory that there is, and which `--ram` would do.
fn in_memory(ledger: &Ledger, settings: &ModelSettings) -> String {
    let Some(there) = machine::memory() else {
        return String::new();
    };
    let (own, mapped) = (ledger.total(Place::Own), ledger.total(Place::Mapped));
    let needed = own + mapped;
    if needed <= there {
        return format!(
            "this machine may use {}: it fits, {} are left",
            bytes(there),
            bytes(there - needed)
        );
    }
    let experts: u64 = ledger
        .entries
        .iter()
        .filter(|entry| {
            entry.what
                == if settings.experts.is_some() {
                    "expert slots"
                } else {
                    "experts"
                }
        })
        .map(|entry| entry.bytes)
        .sum();
    let left = there.saturating_sub(needed - experts);
    let missing = bytes(needed - there);
    if left > 0 && experts > 0 {
        format!(
            "this machine may use {}: {missing} are missing; with --ram {}MiB experts fit",
            bytes(there),
            left >> 20
        )
    } else {
        format!(
            "this machine may use {}: {missing} are missing, whatever --ram is; fewer --slots or a smaller --ctx need less",
            bytes(there)
        )
    }
}

/// How a plan stands against what there is.
fn against(needed: u64, there: u64, whose: &str) -> String {
    let there_is = format!("{whose} {}", bytes(there));
    if needed <= there {
        format!("{there_is}: it fits, {} are left", bytes(there - needed))
    } else {
        format!(
            "{there_is}: it does not fit, {} are missing",
            bytes(needed - there)
        )
    }
}
