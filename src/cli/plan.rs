//! `tidegate plan`: the memory a model would take, under the settings that `serve` would have.

use std::sync::Arc;

use super::{PlanArgs, failure::Failure, output::written, source::Source, start::cpu};
use crate::{
    cpu::backend::Cpu,
    cuda::{Cuda, Device},
    ledger::{Ledger, Place, bytes},
    model::start::Prepared,
    settings::{BackendChoice, ModelSettings, file::FileSettings},
};

pub(super) fn plan(args: PlanArgs, bundled: &'static [u8]) -> Result<(), Failure> {
    let file = FileSettings::read(args.config.config.as_deref())?;
    let settings = ModelSettings::check(args.run.or(file.run))?;
    let source = Source::new(args.file.or(file.model), bundled);
    let file = Arc::new(source.open()?);
    let prepared = Prepared::new(&file, Cpu::new(cpu(&settings)), &settings)?;
    let head = format!(
        "{}: {} slots, {} tokens each",
        source.id(),
        settings.slots,
        prepared.context()
    );
    // a plan needs no device: one can be described by --backend cuda --vram
    let device = match settings.backend {
        BackendChoice::Cpu => None,
        _ => Device::open(settings.cuda.device).ok(),
    };
    if device.is_none() && settings.backend != BackendChoice::Cuda {
        let plan = Ledger::plan::<Cpu>(&file, prepared.needs(), prepared.room());
        return written(&format!("{head}\n\n{plan}\n")).map(|_| ());
    }
    let room = prepared.room_on::<Cuda>(&settings);
    let plan = Ledger::plan::<Cuda>(&file, prepared.needs(), &room);
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
    written(&format!("{head}\n\n{plan}\n\n{fits}\n")).map(|_| ())
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
