//! `tidegate run`: one answer on standard output, its speed on standard error.

use std::io::{self, IsTerminal, Read};

use futures::{StreamExt, TryStreamExt};
use serde_json::{Map, json};
use tokio::runtime::Runtime;

use super::{
    RunArgs, chat, failure::Failure, output::written, serve::runtime, source::Source, start::Loaded,
};
use crate::{
    engine::request::{FinishReason, Sampling, Timings},
    expression,
    http::{random::random_u64, usage::rate},
    settings::{ModelSettings, file::FileSettings},
    stage::{
        text::TextEvent,
        tokenize::{Job, Prompt},
    },
};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate run \"Write a short story about a fox.\"
  tidegate run --model model.gguf --temperature 0 \"What is 17 + 25?\"
  tidegate run --raw \"Once upon a time\"
  tidegate run < question.txt
  tidegate run                                        a chat, if this is a terminal

--ignore-eos --max-tokens 32 makes runs of equal length, to compare speeds.";

/// What is the same for every answer of a command.
pub(super) struct Options {
    sampling: Sampling,
    fixed_seed: bool,
    max_tokens: Option<usize>,
    ignore_eos: bool,
}

/// How an answer ended.
pub(super) struct Ended {
    /// All of it.
    pub(super) text: String,
    /// Why, and where the time went; nothing if the reader went away.
    pub(super) finished: Option<(FinishReason, Timings)>,
}

pub(super) fn run(mut args: RunArgs, bundled: &'static [u8]) -> Result<(), Failure> {
    let file = FileSettings::read(args.config.config.as_deref())?;
    args.run.slots.get_or_insert(1); // there is one reader, whatever the file says about servers
    let settings = ModelSettings::check(args.run.or(file.run))?;
    let source = Source::new(args.model.or(file.model), bundled);
    let prompt = match args.prompt {
        Some(prompt) => Some(prompt),
        None if io::stdin().is_terminal() => None,
        None => Some(piped()?),
    };
    let runtime = runtime()?;
    let loaded = Loaded::start(&source, &settings)?;
    let options = Options {
        sampling: Sampling {
            temperature: args.temperature.unwrap_or(loaded.text.sampling.temperature),
            seed: args.seed.unwrap_or_default(),
            ..loaded.text.sampling.clone()
        },
        fixed_seed: args.seed.is_some(),
        max_tokens: args.max_tokens,
        ignore_eos: args.ignore_eos,
    };
    let done = match prompt {
        None => chat::chat(&runtime, &loaded, &options),
        Some(text) => {
            let prompt = if args.raw {
                Prompt::Text(text)
            } else {
                question(&text)
            };
            once(&runtime, &loaded, &options, prompt)
        }
    };
    loaded.stop();
    done
}

fn once(
    runtime: &Runtime,
    loaded: &Loaded,
    options: &Options,
    prompt: Prompt,
) -> Result<(), Failure> {
    let ended = runtime.block_on(answer(loaded, options, prompt))?;
    if let Some((_, timings)) = ended.finished {
        eprintln!("{}", speed(&timings));
    }
    Ok(())
}

fn piped() -> Result<String, Failure> {
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|source| Failure::Io {
            what: "cannot read standard input",
            source,
        })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn question(text: &str) -> Prompt {
    Prompt::Chat {
        messages: vec![json!({"role": "user", "content": text})],
        tools: Vec::new(),
        variables: Map::new(),
    }
}

/// Generates one answer and writes it to standard output as it comes.
pub(super) async fn answer(
    loaded: &Loaded,
    options: &Options,
    prompt: Prompt,
) -> Result<Ended, Failure> {
    let text = &loaded.text;
    let seed = if options.fixed_seed {
        options.sampling.seed
    } else {
        random_u64()
    };
    let job = Job {
        prompts: vec![prompt],
        choices: 1,
        sampling: Sampling {
            seed,
            ..options.sampling.clone()
        },
        max_tokens: options.max_tokens,
        ignore_eos: options.ignore_eos,
        logprobs: None,
        deadline: None,
        drafts: true,
    };
    let read = expression::read(
        text.tokenizer.clone(),
        text.template.clone(),
        loaded.engine.clone(),
    );
    let admitted: Vec<_> = read.run(job).try_collect().await?;
    let mut ended = Ended {
        text: String::new(),
        finished: None,
    };
    for admitted in admitted {
        let answer = expression::answer(
            text.tokenizer.clone(),
            Vec::new(),
            text.markup,
            admitted.prompt(),
        );
        let mut events = Box::pin(answer.run(admitted));
        while let Some(event) = events.next().await {
            match event? {
                TextEvent::Piece { text, .. } => {
                    if !written(&text)? {
                        return Ok(ended);
                    }
                    ended.text.push_str(&text);
                }
                // what it thinks is shown, but is not what was asked for
                TextEvent::Thought { text, .. } => eprint!("{text}"),
                TextEvent::Finished { reason, timings } => ended.finished = Some((reason, timings)),
            }
        }
    }
    written("\n")?;
    Ok(ended)
}

/// One line about an answer's speed.
pub(super) fn speed(timings: &Timings) -> String {
    let per_second = |count: usize, time| {
        rate(count, time).map_or_else(String::new, |rate| format!(" at {rate:.1} tok/s"))
    };
    format!(
        "prompt {} tokens{}, answer {} tokens{}, first token after {:.0} ms",
        timings.prompt_tokens,
        per_second(timings.prompt_tokens, timings.prefill),
        timings.generated_tokens,
        per_second(timings.generated_tokens.saturating_sub(1), timings.decode),
        (timings.queued + timings.prefill).as_secs_f64() * 1e3,
    )
}
