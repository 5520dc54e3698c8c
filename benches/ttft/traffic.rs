//! What goes on beside the short prompts: streams without end, and one long prompt after the other.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures::StreamExt;
use tokio::{sync::watch, task::JoinSet};

use crate::load::{
    Failure, SETTLE,
    client::{Client, Event},
    prompts::Prompts,
};

/// Tokens of a stream where the server does not say how long a sequence may be. The next stream follows.
const STREAM_TOKENS: usize = 1000;

/// What is to go on.
pub(crate) struct Background<'a> {
    pub(crate) client: &'a Client,
    pub(crate) prompts: Prompts,
    pub(crate) streams: usize,
    pub(crate) prompt_tokens: usize,
    pub(crate) seed: u64,
}

/// What goes on until [`Traffic::stop`]; dropping it ends that too.
pub(crate) struct Traffic {
    tasks: JoinSet<Result<Done, Failure>>,
    stop: watch::Sender<bool>,
    reads: Arc<AtomicBool>,
}

/// What came of it.
#[derive(Default)]
pub(crate) struct Done {
    /// Times between two pieces of a stream while it all went on.
    pub(crate) gaps: Vec<Duration>,
    /// Long prompts with a first token.
    pub(crate) prompts_read: usize,
}

impl Traffic {
    /// Begins, and waits until every stream is settled and a long prompt has been sent.
    pub(crate) async fn start(what: &Background<'_>) -> Result<Self, Failure> {
        let (stop, stopped) = watch::channel(false);
        let settled = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for stream in 0..what.streams {
            let begin = {
                let (client, prompt) = (
                    what.client.clone(),
                    what.prompts.make(what.seed ^ (1 + stream as u64), SETTLE),
                );
                let room = client.about.answer_tokens(SETTLE, STREAM_TOKENS);
                move || client.ask(&prompt, room)
            };
            tasks.spawn(write(begin, settled.clone(), stopped.clone()));
        }
        while settled.load(Relaxed) < what.streams {
            let late = tokio::time::sleep(Duration::from_millis(5));
            tokio::select! {
                () = late => {}
                Some(ended) = tasks.join_next() => return Err(early(ended)),
            }
        }
        let reads = Arc::new(AtomicBool::new(false));
        let (client, tokens) = (what.client.clone(), what.prompt_tokens);
        let (reading, mut seed) = (reads.clone(), what.seed);
        let prompts = what.prompts;
        tasks.spawn(async move {
            let mut done = Done::default();
            while !*stopped.borrow() {
                seed = seed.wrapping_add(1 << 32);
                let prompt = prompts.make(seed, tokens);
                reading.store(true, Relaxed);
                client.complete(&prompt, 1).await?;
                reading.store(false, Relaxed);
                done.prompts_read += 1;
            }
            Ok(done)
        });
        Ok(Self { tasks, stop, reads })
    }

    /// Whether a long prompt is being read.
    pub(crate) fn reads_prompt(&self) -> bool {
        self.reads.load(Relaxed)
    }

    /// Ends the streams, and waits for the long prompt.
    ///
    /// **Errors**: one of them had failed.
    pub(crate) async fn stop(mut self) -> Result<Done, Failure> {
        self.stop.send_replace(true);
        let mut all = Done::default();
        while let Some(done) = self.tasks.join_next().await {
            let done = done??;
            all.gaps.extend(done.gaps);
            all.prompts_read += done.prompts_read;
        }
        Ok(all)
    }
}

fn early(ended: Result<Result<Done, Failure>, tokio::task::JoinError>) -> Failure {
    match ended {
        Ok(Ok(_)) => "a stream ended before it was settled".into(),
        Ok(Err(error)) => error,
        Err(error) => error.into(),
    }
}

/// Writes one stream after the other. Pauses count from when it is settled to when all ends, those from a stream to the next one not.
async fn write<S>(
    begin: impl Fn() -> S,
    settled: Arc<AtomicUsize>,
    mut stopped: watch::Receiver<bool>,
) -> Result<Done, Failure>
where
    S: futures::Stream<Item = Result<Event, Failure>>,
{
    let (mut done, mut pieces) = (Done::default(), 0);
    loop {
        let mut events = pin!(begin());
        let mut last: Option<Instant> = None;
        loop {
            let event = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => return Ok(done),
                event = events.next() => event.ok_or("an answer without an end")??,
            };
            let Event::Text { at, .. } = event else { break };
            pieces += 1;
            if pieces == SETTLE {
                settled.fetch_add(1, Relaxed);
            }
            done.gaps
                .extend(last.filter(|_| pieces > SETTLE).map(|last| at - last));
            last = Some(at);
        }
    }
}
