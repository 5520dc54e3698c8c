//! One run: streams settle, a long prompt arrives, its first token comes, every stream goes on.

use std::{
    cell::Cell,
    pin::pin,
    time::{Duration, Instant},
};

use futures::StreamExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{
    Args,
    load::{
        Failure, LONG, QUIET, Running, SETTLE,
        client::{Client, Ending, Event},
        prompts::{Prompt, Prompts},
        stolen::Stolen,
        windows::Windows,
    },
};

/// How far the second prompt is behind the long one.
const BEHIND: Duration = Duration::from_millis(10);
/// What a stream asks for where the server does not say how long a sequence may be.
const STREAM_TOKENS: usize = 100_000;
/// Of a stream's tokens, how many at most are compared with what it says alone. Models of random weights write characters over many tokens, so
/// streams may run for thousands before each has given a few pieces of text.
const CHECKED_TOKENS: usize = 1024;
/// Where a stream's seed begins: the same in every run, so that its text can be compared.
const STREAMS: u64 = 1 << 32;

/// What runs have in common.
pub(crate) struct Bench<'a> {
    client: &'a Client,
    prompts: Prompts,
    prompt: usize,
    second: Option<usize>,
    tokens: usize,
    /// Grows with every prompt, so that none comes twice.
    seed: Cell<u64>,
}

/// What one run gave.
pub(crate) struct Run {
    /// Every time between two pieces of a stream, before the prompt came and while it was read.
    pub(crate) outside: Vec<Duration>,
    pub(crate) inside: Vec<Duration>,
    /// The latter less what others took of the machine meanwhile.
    pub(crate) inside_own: Vec<Duration>,
    pub(crate) alone: Read,
    pub(crate) mixed: Read,
    /// **Units**: seconds. Spent on decode windows while the prompt was read, where the server says so.
    pub(crate) decode_s: Option<f64>,
    /// Pieces of all streams while it was read.
    pub(crate) pieces: usize,
    /// What every stream has said.
    pub(crate) texts: Vec<String>,
}

/// A long prompt and, if there was one, the prompt behind it; these times are from asking to the first token.
pub(crate) struct Read {
    pub(crate) tokens: usize,
    pub(crate) took: Duration,
    pub(crate) second: Option<Duration>,
}

/// A piece of a stream's text.
struct Piece {
    at: Instant,
    /// What others had taken of the machine by then.
    stolen: Duration,
    text: String,
}

/// What has been heard so far.
struct Heard {
    pieces: Vec<Vec<Piece>>,
    /// First token of the long prompt and of the second one.
    first: [Option<Instant>; 2],
    /// Tokens of the long prompt, by the server's count.
    tokens: usize,
    stolen: Stolen,
}

/// Who: a stream, or behind all of these the long prompt and the second one.
type From = (usize, Result<Event, Failure>);

impl<'a> Bench<'a> {
    pub(crate) async fn new(running: &'a Running, args: &Args) -> Result<Self, Failure> {
        let client = &running.client;
        let prompts = Prompts::new(client).await?;
        running.warm_up(&prompts).await?;
        Ok(Self {
            client,
            prompts,
            prompt: args.prompt.unwrap_or(client.about.prompt_tokens(LONG)),
            second: args.second_prompt,
            tokens: args.tokens,
            seed: Cell::new(running.seed),
        })
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt
    }

    /// One that has not been asked.
    fn unheard(&self, tokens: usize) -> Prompt {
        let seed = self.seed.get() + 1;
        self.seed.set(seed);
        self.prompts.make(seed, tokens)
    }

    fn stream_prompt(&self, stream: usize) -> Prompt {
        self.prompts.make(STREAMS + stream as u64, SETTLE)
    }

    fn stream_tokens(&self) -> usize {
        self.client.about.answer_tokens(SETTLE, STREAM_TOKENS)
    }

    /// Reads the prompts alone, then beside `streams` streams.
    ///
    /// **Errors**: the prompt did not overlap all of these.
    pub(crate) async fn run(&self, streams: usize) -> Result<Run, Failure> {
        tokio::time::sleep(QUIET).await;
        let alone = self.read_alone().await?;
        tokio::time::sleep(QUIET).await;
        self.read_beside(streams, alone).await
    }

    async fn read_alone(&self) -> Result<Read, Failure> {
        let answer = self.client.complete(&self.unheard(self.prompt), 1).await?;
        let second = match self.second {
            Some(tokens) => {
                let answer = self.client.complete(&self.unheard(tokens), 1).await?;
                Some(answer.first - answer.asked)
            }
            None => None,
        };
        Ok(Read {
            tokens: prompt_tokens(&answer.ending, self.prompt)?,
            took: answer.first - answer.asked,
            second,
        })
    }

    async fn read_beside(&self, streams: usize, alone: Read) -> Result<Run, Failure> {
        let (to, mut from) = unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        let mut heard = Heard {
            pieces: (0..streams).map(|_| Vec::new()).collect(),
            first: [None; 2],
            tokens: self.prompt,
            stolen: Stolen::new(),
        };
        for stream in 0..streams {
            let prompt = self.stream_prompt(stream);
            let events = self.client.ask(&prompt, self.stream_tokens());
            tasks.spawn(listen(stream, events, to.clone()));
        }
        heard
            .until(&mut from, |heard| heard.fewest() >= SETTLE)
            .await?;
        let (settled, settled_windows) = (Instant::now(), Windows::scrape(self.client).await);
        let all = SETTLE + self.tokens;
        heard
            .until(&mut from, |heard| heard.fewest() >= all)
            .await?;
        let begun_windows = Windows::scrape(self.client).await;

        let prompt = self.unheard(self.prompt);
        let asked = Instant::now();
        tasks.spawn(listen(streams, self.client.ask(&prompt, 1), to.clone()));
        let mut second_asked = None;
        if let Some(tokens) = self.second {
            let prompt = self.unheard(tokens);
            tokio::time::sleep(BEHIND).await;
            second_asked = Some(Instant::now());
            tasks.spawn(listen(streams + 1, self.client.ask(&prompt, 1), to));
        }
        heard
            .until(&mut from, |heard| heard.first[0].is_some())
            .await?;
        let ended_windows = Windows::scrape(self.client).await;
        let first = heard.first[0].ok_or("no first token")?;
        // The pause in which it came counts too.
        heard
            .until(&mut from, |heard| {
                heard.all_after(first) && heard.first[1].is_some() == second_asked.is_some()
            })
            .await?;
        tasks.shutdown().await;

        let windows = settled_windows.zip(begun_windows).zip(ended_windows);
        let inside = |from: Instant, to: Instant| to > asked && from < first;
        Ok(Run {
            outside: heard.gaps(|from, to| from >= settled && to <= asked),
            inside: heard.gaps(inside),
            inside_own: heard.own_gaps(inside),
            alone,
            mixed: Read {
                tokens: heard.tokens,
                took: first - asked,
                second: second_asked
                    .zip(heard.first[1])
                    .map(|(asked, first)| first - asked),
            },
            decode_s: windows
                .map(|((settled, begun), ended)| Windows::decode_s(settled, begun, ended)),
            pieces: heard.count(|at| at > asked && at <= first),
            texts: heard.texts(),
        })
    }

    /// At least so many bytes of what a stream says with nobody else there, or what [`CHECKED_TOKENS`] of it are.
    pub(crate) async fn says_alone(&self, stream: usize, bytes: usize) -> Result<String, Failure> {
        tokio::time::sleep(QUIET).await;
        let prompt = self.stream_prompt(stream);
        let tokens = self.stream_tokens().min(CHECKED_TOKENS);
        let mut events = pin!(self.client.ask(&prompt, tokens));
        let mut said = String::new();
        while said.len() < bytes {
            match events.next().await.ok_or("an answer without an end")?? {
                Event::Text { text, .. } => said += &text,
                Event::Ended(_) => break,
            }
        }
        Ok(said)
    }
}

/// Passes on what a request gives.
async fn listen(
    who: usize,
    events: impl futures::Stream<Item = Result<Event, Failure>>,
    to: UnboundedSender<From>,
) {
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        if to.send((who, event)).is_err() {
            return;
        }
    }
}

/// The length of a prompt by the server's count, else as it was meant.
///
/// **Errors**: the server knew the prompt already.
fn prompt_tokens(ending: &Ending, meant: usize) -> Result<usize, Failure> {
    let Some(usage) = ending.usage else {
        return Ok(meant);
    };
    // A begin token, or a first token that happens to be another prompt's, is no help.
    if usage.cached_tokens() > usage.prompt_tokens / 100 {
        let (cached, all) = (usage.cached_tokens(), usage.prompt_tokens);
        return Err(format!("the server had {cached} of the prompt's {all} tokens cached").into());
    }
    Ok(usage.prompt_tokens)
}

impl Heard {
    /// Listens until `enough`.
    async fn until(
        &mut self,
        from: &mut UnboundedReceiver<From>,
        enough: impl Fn(&Self) -> bool,
    ) -> Result<(), Failure> {
        while !enough(self) {
            let (who, event) = from.recv().await.ok_or("nobody speaks")?;
            self.note(who, event?)?;
        }
        Ok(())
    }

    fn note(&mut self, who: usize, event: Event) -> Result<(), Failure> {
        let streams = self.pieces.len();
        match event {
            Event::Text { at, text } if who < streams => {
                let stolen = self.stolen.so_far();
                self.pieces[who].push(Piece { at, stolen, text });
            }
            Event::Text { at, .. } => {
                self.first[who - streams].get_or_insert(at);
            }
            Event::Ended(ending) if who < streams => {
                let (reason, pieces) = (ending.reason, self.pieces[who].len());
                return Err(format!("stream {who} ended ({reason}) after {pieces} pieces, before the prompt was read: take a shorter prompt, a larger context or more slots").into());
            }
            Event::Ended(ending) => {
                self.first[who - streams].get_or_insert(ending.at);
                if who == streams {
                    self.tokens = prompt_tokens(&ending, self.tokens)?;
                }
            }
        }
        Ok(())
    }

    /// Pieces that every stream has at least.
    fn fewest(&self) -> usize {
        self.pieces.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// Whether every stream has gone on since.
    fn all_after(&self, moment: Instant) -> bool {
        let lasts = self.pieces.iter().map(|pieces| pieces.last());
        lasts
            .into_iter()
            .all(|last| last.is_some_and(|last| last.at > moment))
    }

    /// The times between two pieces of a stream that `counts` is true of.
    fn gaps(&self, counts: impl Fn(Instant, Instant) -> bool) -> Vec<Duration> {
        let pairs = self.pairs(counts);
        pairs.map(|[from, to]| to.at - from.at).collect()
    }

    /// The same, each less what others took of the machine meanwhile.
    fn own_gaps(&self, counts: impl Fn(Instant, Instant) -> bool) -> Vec<Duration> {
        let own = |[from, to]: [&Piece; 2]| {
            let stolen = to.stolen.saturating_sub(from.stolen);
            (to.at - from.at).saturating_sub(stolen)
        };
        self.pairs(counts).map(own).collect()
    }

    fn pairs(
        &self,
        counts: impl Fn(Instant, Instant) -> bool,
    ) -> impl Iterator<Item = [&Piece; 2]> {
        let pairs = self.pieces.iter().flat_map(|pieces| pieces.windows(2));
        let pairs = pairs.map(|pair| [&pair[0], &pair[1]]);
        pairs.filter(move |[from, to]| counts(from.at, to.at))
    }

    fn count(&self, counts: impl Fn(Instant) -> bool) -> usize {
        let pieces = self.pieces.iter().flatten();
        pieces.filter(|piece| counts(piece.at)).count()
    }

    fn texts(&self) -> Vec<String> {
        let text = |pieces: &Vec<Piece>| pieces.iter().map(|piece| piece.text.as_str()).collect();
        self.pieces.iter().map(text).collect()
    }
}
