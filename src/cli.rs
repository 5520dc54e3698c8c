//! The command line: what may be written ([`Cli`]), one file a command, and how a failure reads.
//!
//! Standard output carries results only; progress, speed and errors go to standard error. Exit codes: 0 done, 2 wrong usage, settings or model file, 1 anything else.

use std::{path::PathBuf, process::ExitCode};

use clap::{
    Args, Parser, Subcommand,
    error::{ContextKind, ContextValue},
};

use crate::{
    replay::{Capacity, PolicyName},
    settings::written::{ModelWritten, ServerWritten},
};

mod chat;
mod failure;
mod inspect;
mod key;
mod logging;
mod machine;
mod output;
mod plan;
mod replay;
mod run;
mod serve;
mod signals;
mod source;
mod start;
mod synth;

const ABOUT: &str = "Serves large Mixture-of-Experts language models on machines that people can afford.

tidegate reads GGUF files in place and answers OpenAI-compatible requests. Without a model file it uses a small one that is part of the program, so \
that every command below can be tried at once.";

const EXAMPLES: &str = "\
Examples:
  tidegate serve                                 serve the bundled model
  tidegate serve model.gguf --slots 8            eight requests at a time
  tidegate run \"Tell me a story about a fox.\"    one answer, then the end
  tidegate run --model model.gguf                a chat in the terminal
  tidegate key alice                             let alice, and nobody else, in
  tidegate synth --like qwen3-30b-a3b x.gguf     measure before downloading

Settings:
  Every setting has one name: the flag --chunk-rows is TIDEGATE_CHUNK_ROWS in
  the environment and chunk-rows in the TOML file that --config names. A flag
  wins over the environment, the environment over the file.

Exit codes:
  0 done, 2 wrong usage, settings or model file, 1 anything else.";

/// The command line as written.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, about = "Serves large Mixture-of-Experts language models on machines that people can afford", long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model over HTTP
    ///
    /// The server speaks OpenAI's API: point any client at http://ADDRESS:PORT/v1, with any API key unless the settings
    /// file names keys. It is ready when it prints its address. SIGINT (Ctrl-C)
    /// or SIGTERM ends it: running answers get --grace-s seconds, a second signal ends at once.
    #[command(after_long_help = serve::EXAMPLES)]
    Serve(ServeArgs),
    /// Generate one answer, or chat in the terminal
    ///
    /// With a prompt (as an argument or on standard input) the answer goes to standard output and the speed to standard error. Without one, in a
    /// terminal, a chat begins.
    #[command(after_long_help = run::EXAMPLES)]
    Run(RunArgs),
    /// Show what a model file holds
    ///
    /// Reads the header only: architecture, sizes, tokenizer, and every tensor with its type and shape. A bad file is refused with the name of
    /// the key or tensor that is wrong.
    #[command(after_long_help = inspect::EXAMPLES)]
    Inspect(InspectArgs),
    /// Show what a model would need and how fast it would be, without loading it
    ///
    /// Prints every kind of memory with its size and the reason for it, and what one stream and one prompt would get, under the same settings as `serve`: on this machine, which
    /// is measured, or on one that is described.
    #[command(after_long_help = plan::EXAMPLES)]
    Plan(PlanArgs),
    /// Write a model file with the true dimensions of a known model and random weights
    ///
    /// The file is as large and as fast as the real one, and its answers are noise. It tells how fast a model will be on this machine before you
    /// download it.
    #[command(after_long_help = synth::EXAMPLES)]
    Synth(SynthArgs),
    /// Tell how fast a model would be where memory holds only some of its experts
    ///
    /// Runs placement policies over a trace that `serve` or `run` has recorded with `--trace`, for every capacity: how often the experts that rows
    /// choose would be in fast memory, how many bytes a token would wait for, and how many tokens a second that makes. Two bounds stand beside
    /// them: an oracle that knows the future, and no experts in fast memory at all.
    #[command(after_long_help = replay::EXAMPLES)]
    Replay(ReplayArgs),
    /// Make an API key for somebody
    ///
    /// The key goes to standard output, once: it is kept nowhere. The lines for the settings file that --config names go to standard error; they hold the
    /// key's SHA-256 only, from which nobody gets the key.
    #[command(after_long_help = key::EXAMPLES)]
    Key(KeyArgs),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Model file (.gguf; the first file of a split model) [default: the bundled model]
    #[arg(env = "TIDEGATE_MODEL")]
    model: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    server: ServerWritten,
    #[command(flatten)]
    run: ModelWritten,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// What to answer; without it, standard input, or in a terminal a chat
    prompt: Option<String>,
    /// Model file [default: the bundled model]
    #[arg(long, short, env = "TIDEGATE_MODEL", value_name = "FILE")]
    model: Option<PathBuf>,
    /// Tokens to generate at most [default: up to the context's end]
    #[arg(long, short = 'n', value_name = "N")]
    max_tokens: Option<usize>,
    /// 0 always takes the likeliest token [default: the file's, else 0.7]
    #[arg(long, short, value_name = "T")]
    temperature: Option<f32>,
    /// Equal seeds give equal answers [default: a new one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Go on where the model would end
    #[arg(long)]
    ignore_eos: bool,
    /// Continue the prompt as it is, without the chat template
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    run: ModelWritten,
}

#[derive(Debug, Args)]
struct InspectArgs {
    /// Model file
    file: PathBuf,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Every tensor, not only the kinds of them
    #[arg(long, conflicts_with = "json")]
    tensors: bool,
}

#[derive(Debug, Args)]
struct PlanArgs {
    /// Model file [default: the bundled model]
    #[arg(env = "TIDEGATE_MODEL")]
    file: Option<PathBuf>,
    /// Instead of a file: a model with these dimensions, as `synth` knows them
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    like: Option<String>,
    /// Layers of such a model [default: all of them]
    #[arg(long, value_name = "N", requires = "like")]
    layers: Option<usize>,
    /// Block type or mix of types of such a model
    #[arg(long, value_name = "TYPE", default_value = "q4_k_m", requires = "like")]
    quant: String,
    /// TOML file that describes another machine than this one
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    run: ModelWritten,
}

#[derive(Debug, Args)]
struct SynthArgs {
    /// The model whose dimensions it has
    #[arg(long, value_name = "NAME")]
    like: String,
    /// Layers [default: all of the model's]
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Block type or mix of types
    #[arg(long, value_name = "TYPE", default_value = "q4_k_m")]
    quant: String,
    /// Add a multi-token-prediction block whose guesses are right with this chance, from 0 to 1
    ///
    /// For models that have such a block. Answers are then no longer noise: one token follows the other in the order of their numbers, whatever was asked, at any temperature.
    #[arg(long, value_name = "CHANCE")]
    acceptance: Option<f32>,
    /// The file to write
    out: PathBuf,
}

#[derive(Debug, Args)]
struct ReplayArgs {
    /// Trace that `--trace` has written
    trace: PathBuf,
    /// Fast memory that experts may take, separated by commas, as in 8GiB,25% [default: from one token's experts to all]
    ///
    /// A share is of all experts. Less than the experts of one token is refused with the number that would do.
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    capacity: Vec<Capacity>,
    /// Who stays in fast memory, separated by commas [default: all policies]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    policy: Vec<PolicyName>,
    /// GB/s of the memory that holds experts and everything else [default: 60]
    #[arg(long, value_name = "GB/S", value_parser = replay::speed)]
    dram: Option<f64>,
    /// GB/s of what all other experts are fetched over: a drive, or the bus to a device [default: 6]
    #[arg(long, value_name = "GB/S", value_parser = replay::speed)]
    link: Option<f64>,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct KeyArgs {
    /// Whose key it is; appears in the log and in metrics
    name: String,
}

#[derive(Debug, Args)]
struct ConfigArgs {
    /// TOML file with settings, by the names of the long flags
    #[arg(long, env = "TIDEGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the command that the process was started with. `bundled` is the model file that is part of the program.
pub fn main(bundled: &'static [u8]) -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| wrong_usage(error));
    logging::init();
    let done = match cli.command {
        Command::Serve(args) => serve::serve(args, bundled),
        Command::Run(args) => run::run(args, bundled),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Plan(args) => plan::plan(args, bundled),
        Command::Synth(args) => synth::synth(&args),
        Command::Replay(args) => replay::replay(&args),
        Command::Key(args) => key::key(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Ends the program with 2 and what is wrong; flags by which other servers' users call something are told by our name for it.
fn wrong_usage(mut error: clap::Error) -> ! {
    let ours = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) => our_name(flag),
        _ => None,
    };
    if let Some(ours) = ours {
        error.remove(ContextKind::Suggested);
        error.insert(
            ContextKind::SuggestedArg,
            ContextValue::String(ours.to_owned()),
        );
    }
    error.exit()
}

/// What a flag of other servers is called here.
fn our_name(flag: &str) -> Option<&'static str> {
    Some(match flag {
        "--port" | "--host" | "-p" => "--listen ADDRESS:PORT",
        "--ctx-size" | "--max-model-len" | "-c" => "--ctx",
        "--parallel" | "--max-num-seqs" | "-np" | "-n" => "--slots",
        "-t" => "--threads",
        "-m" | "--model" => "MODEL, without a flag",
        "--cache-type-k" | "--cache-type-v" => "--kv",
        _ => return None,
    })
}
