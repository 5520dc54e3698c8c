//! `tidegate inspect`: what a file holds, also one that is no model.

use super::{InspectArgs, failure::Failure, output::written};
use crate::{gguf::Gguf, inspect::Inspection};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate inspect model.gguf
  tidegate inspect --tensors model-00001-of-00003.gguf
  tidegate inspect --json model.gguf | jq .metadata";

pub(super) fn inspect(args: &InspectArgs) -> Result<(), Failure> {
    let facts = Inspection::of(&Gguf::open(&args.file)?)?;
    let text = if args.json {
        facts.json()
    } else {
        facts.text(args.tensors).to_string()
    };
    written(&format!("{}\n", text.trim_end())).map(drop)
}
