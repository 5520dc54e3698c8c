//! `tidegate plan`: the memory a model would take, under the settings that `serve` would have.

use std::sync::Arc;

use super::{PlanArgs, failure::Failure, output::written, source::Source, start::cpu};
use crate::{
    cpu::backend::Cpu,
    ledger::Ledger,
    model::start::Prepared,
    settings::{ModelSettings, file::FileSettings},
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
    let plan = Ledger::plan::<Cpu>(&file, prepared.needs(), prepared.room());
    written(&format!("{head}\n\n{plan}\n")).map(|_| ())
}
