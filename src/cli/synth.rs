//! `tidegate synth`.

use indicatif::{ProgressBar, ProgressStyle};

use super::{SynthArgs, failure::Failure};
use crate::{
    ledger,
    synth::{Blueprint, Plan},
};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate synth --like qwen3-30b-a3b --layers 4 --quant q4_k_m x.gguf
  tidegate run --model x.gguf --ignore-eos --max-tokens 32 hello
  tidegate synth --like qwen3.5-35b-a3b --layers 4 --acceptance 0.8 guessing.gguf

Models:
  qwen3-30b-a3b, qwen3-next-80b-a3b, qwen3.5-35b-a3b, qwen3.5-122b-a10b, qwen3.5-397b-a17b, qwen3.8-flash-next, gpt-oss-20b, gpt-oss-120b,
  glm-4.5-air, minimax-m2, gemma-4-26b-a4b, olmoe-1b-7b, mixtral-8x7b

A model's first layers are as fast as its others: four layers of 48 take a
twelfth of the time that all layers take, and the output head the same.";

pub(super) fn synth(args: &SynthArgs) -> Result<(), Failure> {
    let mut plan = Plan::new(
        Blueprint::named(&args.like)?,
        args.layers,
        args.quant.parse()?,
    )?;
    if let Some(acceptance) = args.acceptance {
        plan = plan.predicting(acceptance)?;
    }
    let bar = ProgressBar::no_length();
    let style = ProgressStyle::with_template(
        "writing {bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    );
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    plan.write(&args.out, &bar)?;
    bar.finish_and_clear();
    eprintln!(
        "{}: {}, like {}",
        args.out.display(),
        ledger::bytes(bar.position()),
        args.like
    );
    Ok(())
}
