//! What guessing ahead is worth: the same requests with it and without it, in turns, in one process.
//!
//! `cargo bench --bench drafts -- [FILE | --like MODEL [--layers N] [--quant TYPE] [--acceptance CHANCE]] [--threads N] [--streams 1,4] [--scenes story,list,copy-edit,dialogue] [--rounds N] [--tokens N] [--json]`
//!
//! Two engines have the same file; one never guesses. A round asks both, one after the other, for the same answers, streams at a time; what counts is the time between
//! tokens, and of the rounds' ratios the median. What a model has said earlier in a conversation it says itself on both sides, just before: whoever has written lately is faster for a
//! while, as what it needs lies in caches. Beside it stands the ratio of the processor time that answers took in all, which others on the machine hardly disturb (with `--threads 1`: waiting
//! workers count as well). For a synthetic model prompts are made-up tokens. **Right** are of the guesses those that were, not counting guesses behind a wrong one; **ms** is what predicting one took.
//! Checked inside: every answer has the same tokens from both.
//!
//! `--acceptance` makes a model whose guesses are right with this chance (`tidegate synth` writes such a file), so that what they are worth is seen for each chance by itself. Before all that stands
//! what on the CPU a prediction takes where it is compared with the whole vocabulary, and with a shortlist.

use std::{error::Error, sync::Arc, time::Duration};

use clap::Parser;
use futures::{StreamExt, future::try_join_all};
use serde_json::{Value, json};
use tidegate::{
    cpu::backend::{Cpu, CpuSettings},
    cuda::Cuda,
    engine::{
        EngineSettings, Handle, Stopper,
        request::{Output, Request, Sampling, Timings, Token},
    },
    gguf::Gguf,
    model::{start, text::ModelText},
    settings::{BackendChoice, CudaSettings, ModelSettings},
    stage::tokenize::{Prompt, Tokenize},
};

#[path = "../common/mod.rs"]
mod common;
mod predictions;
mod scenes;
mod steps;

use common::{Common, Failure, rig::processor_time};
use predictions::predictions;
use scenes::Scene;
use steps::{Guessed, Steps};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    common: Common,
    /// Answers written at once.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4])]
    streams: Vec<usize>,
    /// Rounds, each with prompts of its own.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Scenes, all if nothing is said: story, list, copy-edit, dialogue.
    #[arg(long, value_delimiter = ',')]
    scenes: Vec<String>,
    /// Tokens of an answer at most.
    #[arg(long, default_value_t = 160)]
    tokens: usize,
}

/// An engine to ask.
struct Side {
    handle: Handle,
    stopper: Stopper,
    steps: Steps,
}

fn side(file: &Arc<Gguf>, args: &Args, drafts: bool) -> Result<Side, Failure> {
    let log = tempfile::NamedTempFile::new()?;
    let slots = args.streams.iter().copied().max().unwrap_or(1);
    let threads = args.common.threads;
    let settings = ModelSettings {
        backend: BackendChoice::Cpu,
        cuda: CudaSettings::default(),
        threads: threads.and_then(std::num::NonZeroUsize::new),
        slots,
        context_tokens: Some(2048),
        experts: None,
        kv: None,
        engine: EngineSettings {
            drafts,
            outbox_tokens: 1024,
            step_stats: Some(log.path().to_owned()),
            ..EngineSettings::default()
        },
        trace: None,
    };
    let file = file.clone();
    let (handle, stopper) = match args.common.device()? {
        Some(device) => {
            let cuda = args.common.cuda_settings();
            start::start(file, move || Cuda::new(device, cuda), &settings)
                .map_err(|error| Box::<dyn Error>::from(error.to_string()))?
        }
        None => {
            let cpu = move || Cpu::new(CpuSettings { threads });
            start::start(file, cpu, &settings)
                .map_err(|error| Box::<dyn Error>::from(error.to_string()))?
        }
    };
    Ok(Side {
        handle,
        stopper,
        steps: Steps::of(log.reopen()?),
    })
}

async fn answer(handle: &Handle, request: Request) -> Result<(Vec<Token>, Timings), Failure> {
    let mut outputs = handle.submit(request)?;
    let (mut tokens, mut end) = (Vec::new(), Timings::default());
    while let Some(output) = outputs.next().await {
        match output? {
            Output::Token { token, .. } => tokens.push(token),
            Output::Finished { timings, .. } => end = timings,
        }
    }
    Ok((tokens, end))
}

/// Answers written at once.
#[derive(Default)]
struct Written {
    answers: Vec<Vec<Token>>,
    decode: Duration,
    /// Of the process.
    processor: Duration,
    gaps: usize,
}

impl Written {
    /// **Units**: seconds from token to token.
    fn gap(&self) -> f64 {
        self.decode.as_secs_f64() / self.gaps.max(1) as f64
    }
}

async fn write(handle: &Handle, requests: &[Request]) -> Result<Written, Failure> {
    let answers = requests
        .iter()
        .map(|request| answer(handle, request.clone()));
    let mut written = Written::default();
    let begun = processor_time();
    let answers = try_join_all(answers).await?;
    written.processor = processor_time() - begun;
    for (tokens, timings) in answers {
        written.answers.push(tokens);
        written.decode += timings.decode;
        written.gaps += timings.generated_tokens.saturating_sub(1);
    }
    Ok(written)
}

/// What a scene came to.
struct Row {
    scene: Scene,
    sampled: bool,
    streams: usize,
    plain: f64,
    ratio: f64,
    processor: f64,
    worst: f64,
    guessed: Guessed,
    tokens: usize,
}

impl Row {
    fn print(&self) {
        println!(
            "{:>10} {:>7} {:>8} {:>11.1} {:>8.2} {:>8.2} {:>10.2} {:>9.2} {:>9.1}% {:>7.2}",
            self.scene.name(),
            if self.sampled { "0.8" } else { "0" },
            self.streams,
            self.streams as f64 / self.plain,
            self.ratio,
            self.worst,
            self.processor,
            self.guessed.all as f64 / self.tokens.max(1) as f64,
            100.0 * self.guessed.right as f64 / self.guessed.decided.max(1) as f64,
            self.guessed.predicting / self.guessed.predicted.max(1) as f64,
        );
    }

    fn json(&self) -> Value {
        json!({
            "scene": self.scene.name(), "temperature": if self.sampled { 0.8 } else { 0.0 }, "streams": self.streams,
            "plain_tokens_s": self.streams as f64 / self.plain, "ratio": self.ratio, "ratio_low": self.worst, "processor_ratio": self.processor,
            "drafts": self.guessed.all, "accepted": self.guessed.right, "decided": self.guessed.decided, "tokens": self.tokens,
            "predicted": self.guessed.predicted, "predicting_ms": self.guessed.predicting,
        })
    }
}

/// What is asked, and of whom.
struct Bench<'a> {
    args: &'a Args,
    text: Option<(ModelText, Tokenize)>,
    /// The one that never guesses, and the other.
    sides: [Side; 2],
}

impl Bench<'_> {
    fn request(&self, prompt: Arc<[Token]>, sampled: bool, seed: usize) -> Request {
        let stop_tokens = match &self.text {
            Some((text, _)) => text.tokenizer.stop_tokens(),
            None => Arc::default(),
        };
        Request {
            prompt,
            sampling: Sampling {
                temperature: if sampled { 0.8 } else { 0.0 },
                top_p: 0.95,
                seed: seed as u64,
                ..Sampling::default()
            },
            max_tokens: self.args.tokens,
            stop_tokens,
            logprobs: None,
            deadline: None,
            drafts: true,
        }
    }

    /// The prompt of a scene; what the model has to say in it is asked of this engine.
    async fn prompt(
        &self,
        handle: &Handle,
        scene: Scene,
        nth: usize,
    ) -> Result<Arc<[Token]>, Failure> {
        let Some((text, tokenize)) = &self.text else {
            let vocab = handle.capacity().vocab;
            return Ok((0..64)
                .map(|at| ((at * 131 + nth * 977) % vocab) as Token)
                .collect());
        };
        let mut messages: Vec<Value> = Vec::new();
        for (turn, said) in scene.turns(nth).into_iter().enumerate() {
            let role = ["user", "assistant"][turn % 2];
            let said = if said.is_empty() {
                let asked = tokenize.tokens(&chat(messages.clone()))?;
                let request = self.request(asked, false, nth);
                let (tokens, _) = answer(handle, request).await?;
                text.tokenizer.decode(&tokens)
            } else {
                said
            };
            messages.push(json!({"role": role, "content": said}));
        }
        Ok(tokenize.tokens(&chat(messages))?)
    }

    async fn row(&mut self, scene: Scene, sampled: bool, streams: usize) -> Result<Row, Failure> {
        let mut ratios = Vec::new();
        let mut plain_gaps = Vec::new();
        let mut processor = [Duration::ZERO; 2];
        let mut tokens = 0;
        let mut guessed = Guessed::default();
        for round in 0..self.args.rounds {
            let mut written = [Written::default(), Written::default()];
            let first = round % 2; // neither side is always the first
            for side in [first, 1 - first] {
                let handle = &self.sides[side].handle;
                let mut requests = Vec::new();
                for stream in 0..streams {
                    let nth = round * streams + stream;
                    let prompt = self.prompt(handle, scene, nth).await?;
                    requests.push(self.request(prompt, sampled, nth));
                }
                let Side { handle, steps, .. } = &mut self.sides[side];
                steps.read(handle, &mut Guessed::default())?;
                written[side] = write(handle, &requests).await?;
                steps.read(handle, &mut guessed)?;
            }
            let [plain, guessing] = written;
            if guessing.answers != plain.answers {
                return Err(format!("{}: other tokens with guesses", scene.name()).into());
            }
            if plain.gaps > 0 {
                ratios.push(plain.gap() / guessing.gap());
                plain_gaps.push(plain.gap());
            }
            processor[0] += plain.processor;
            processor[1] += guessing.processor;
            tokens += guessing.gaps;
        }
        let median = |values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Ok(Row {
            guessed,
            scene,
            sampled,
            streams,
            plain: median(&mut plain_gaps),
            ratio: median(&mut ratios),
            processor: processor[0].as_secs_f64() / processor[1].as_secs_f64(),
            worst: ratios[0],
            tokens,
        })
    }
}

fn chat(messages: Vec<Value>) -> Prompt {
    Prompt::Chat {
        messages,
        tools: Vec::new(),
        variables: serde_json::Map::new(),
    }
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let (name, file) = args.common.open()?;
    let text = ModelText::read(&file)?;
    let talks = !(file.str("general.name")?).is_some_and(|name| name.starts_with("Synthetic "));
    let predictions = match args.common.device()? {
        Some(_) => Vec::new(),
        None => predictions(&args.common, &file)?,
    };
    let mut bench = Bench {
        text: talks.then(|| {
            let tokenize = Tokenize::new(text.tokenizer.clone(), text.template.clone());
            (text, tokenize)
        }),
        sides: [side(&file, &args, false)?, side(&file, &args, true)?],
        args: &args,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    if !args.common.json {
        for (among, took) in &predictions {
            println!("{name}: a prediction among {among} tokens takes {took:.2} ms");
        }
        println!("{name}: {} rounds", args.rounds);
        println!(
            "{:>10} {:>7} {:>8} {:>11} {:>8} {:>8} {:>10} {:>9} {:>10} {:>7}",
            "scene",
            "T",
            "streams",
            "plain tok/s",
            "ratio",
            "lowest",
            "processor",
            "guesses",
            "right",
            "ms"
        );
    }
    let scenes: &[Scene] = if talks {
        &[Scene::Story, Scene::List, Scene::CopyEdit, Scene::Dialogue]
    } else {
        &[Scene::Noise]
    };
    let chosen = |scene: &&Scene| {
        args.scenes.is_empty() || args.scenes.iter().any(|name| name == scene.name())
    };
    let unknown = |name: &&String| scenes.iter().all(|scene| scene.name() != name.as_str());
    if let Some(name) = args.scenes.iter().find(unknown) {
        let names: Vec<_> = scenes.iter().map(|scene| scene.name()).collect();
        return Err(format!("no scene `{name}` for this model: {}", names.join(", ")).into());
    }
    let mut rows = Vec::new();
    for &streams in &args.streams {
        for &scene in scenes.iter().filter(chosen) {
            for sampled in [false, true] {
                let row = runtime.block_on(bench.row(scene, sampled, streams))?;
                if !args.common.json {
                    row.print();
                }
                rows.push(row.json());
            }
        }
    }
    if args.common.json {
        println!(
            "{}",
            json!({"bench": "drafts", "model": name, "rounds": args.rounds, "predictions_ms": predictions, "drafts": rows})
        );
    }
    for side in bench.sides {
        side.stopper.stop(Duration::from_secs(10))?;
    }
    Ok(())
}
