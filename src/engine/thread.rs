//! The engine's OS thread: build the model on it, warm it up, report ready, take turns until told to stop.
//!
//! Everything about threads is here; the engine itself would run on any.

use std::{
    error::Error,
    io, iter,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use super::{
    Engine, EngineSettings, Handle, SettingsError, Turn,
    costs::{Head, Load},
    event::Inbox,
    executor::{Ask, Executor, Guess, Lane, PAGE_TOKENS, PageId, Progress, Slot, Span},
    request::{Sampling, Token},
    stats::Board,
};
use crate::sampler::Sampler;

/// Prompt rows of the warm-up generation. Each row reads its own experts, from disk where the file is not in memory yet.
const WARM_UP_ROWS: usize = 1;

/// Predictions of the warm-up generation, of each kind.
const PREDICTIONS: usize = 3;
/// Rows of windows of the warm-up generation, as guesses make them.
const GUESSED: [usize; 3] = [2, 4, 8];

/// Why an engine did not start. `B` is how building the executor fails, `E` how computing does.
#[derive(Debug, thiserror::Error)]
pub enum StartError<B: Error + 'static, E: Error + 'static> {
    /// No thread to be had.
    #[error("cannot start the engine's thread")]
    Spawn(#[source] io::Error),
    /// The executor could not be built.
    #[error(transparent)]
    Build(B),
    /// The engine cannot work like this.
    #[error(transparent)]
    Settings(SettingsError),
    /// The model failed to generate a token.
    #[error("the warm-up generation failed: {0}")]
    WarmUp(E),
    /// The thread panicked on the way.
    #[error("the engine's thread ended before it was ready")]
    Vanished,
}

/// Ends the engine's thread. Dropping it asks the engine to end, without waiting for that.
#[derive(Debug)]
pub struct Stopper {
    inbox: Inbox,
    /// Disconnects when the thread ends.
    ended: mpsc::Receiver<()>,
}

/// The engine's thread did not end in time: the layer it is in takes too long, or forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine is still running after {waited:?}")]
pub struct StillRunning {
    /// How long was waited.
    pub waited: Duration,
}

impl Stopper {
    /// Ends every sequence at the next layer boundary and waits for the thread, no longer than `patience`. Blocks.
    pub fn stop(self, patience: Duration) -> Result<(), StillRunning> {
        self.inbox.shut_down();
        match self.ended.recv_timeout(patience) {
            Err(mpsc::RecvTimeoutError::Timeout) => Err(StillRunning { waited: patience }),
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => Ok(()),
        }
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        self.inbox.shut_down();
    }
}

impl<E: Executor> Engine<E> {
    /// Reads a few rows and writes a token, so that whatever fails on first use fails before anybody asks. What that takes is a first,
    /// cautious measure of what things cost.
    pub fn warm_up(&mut self) -> Result<(), E::Error> {
        let executor = &mut self.executor;
        let capacity = executor.capacity();
        let prompt_rows = WARM_UP_ROWS.min(capacity.context - 1);
        let tokens: Vec<Token> = (0..capacity.vocab as Token)
            .cycle()
            .take(prompt_rows + 1)
            .collect();
        let (prompt, next) = tokens.split_at(prompt_rows);
        executor.reset(Slot(0));
        for (lane, first, tokens) in [
            (Lane::Prompt, 0, prompt),
            (Lane::Decode, prompt_rows as u32, next),
        ] {
            let span = Span {
                slot: Slot(0),
                first,
                tokens,
                pages: &[PageId(0)],
                logits: 1,
                ask: Ask::Logits,
                drafts: 0,
            };
            let begun = executor.now();
            let mut pass = executor.begin(lane, &[span])?;
            while executor.advance(&mut pass)? == Progress::More {}
            if let Some(torn) = executor.torn(&mut pass) {
                tracing::error!(why = %torn.why, "the warm-up generation is not whole");
            }
            executor.finish(pass)?;
            if lane == Lane::Decode {
                // Of the second window, whose weights may be in memory already.
                self.costs
                    .note_window(Load::of(1, 0), executor.now() - begun);
            }
            let logits = executor.logits(0)?;
            if !logits.iter().all(|l| l.is_finite()) {
                tracing::warn!(
                    first,
                    "the model's output is not finite in the warm-up generation"
                );
            }
        }
        let mut computed = prompt_rows + 1;
        // on a host each row would bring experts into memory that nobody asked for
        if !capacity.lanes_alike && self.board.depth_max > 0 {
            computed = self.try_guesses(computed)?;
        }
        if capacity.predicts {
            self.try_predictions(computed)?;
        }
        Ok(())
    }

    /// Windows of as many rows as guesses make, behind the `computed` rows of the warm-up generation, and what they take: twice, as the first is recorded on a device. Only one of
    /// the rows stays. Returns how many there are then.
    fn try_guesses(&mut self, mut computed: usize) -> Result<usize, E::Error> {
        let executor = &mut self.executor;
        let capacity = executor.capacity();
        let most = capacity.decode_rows.min(capacity.logits_rows);
        let most = most.min(1 + capacity.drafts);
        for rows in GUESSED.into_iter().filter(|rows| *rows <= most) {
            for measured in [false, true] {
                if computed + rows > PAGE_TOKENS.min(capacity.context) {
                    return Ok(computed);
                }
                let tokens: Vec<Token> = (0..capacity.vocab as Token)
                    .cycle()
                    .skip(computed)
                    .take(rows)
                    .collect();
                let span = Span {
                    slot: Slot(0),
                    first: computed as u32,
                    tokens: &tokens,
                    pages: &[PageId(0)],
                    logits: rows,
                    ask: Ask::Greedy,
                    drafts: rows - 1,
                };
                let begun = executor.now();
                let mut pass = executor.begin(Lane::Decode, &[span])?;
                while executor.advance(&mut pass)? == Progress::More {}
                executor.finish(pass)?;
                if measured {
                    let took = executor.now() - begun;
                    self.costs.note_window(Load::of(rows, computed), took);
                    self.costs.note_decode(Load::of(rows, computed), took);
                }
                executor.cut(Slot(0), rows - 1);
                computed += 1;
            }
        }
        Ok(computed)
    }

    /// Predicts behind the `computed` rows of the warm-up generation, a few times because the first brings weights into memory, and learns what that takes.
    fn try_predictions(&mut self, computed: usize) -> Result<(), E::Error> {
        let executor = &mut self.executor;
        let sampler = Sampler::new(&Sampling::default(), &[]);
        for head in Head::of(executor.capacity().frequent) {
            let mut least = Duration::MAX;
            for _ in 0..PREDICTIONS {
                let guess = Guess {
                    slot: Slot(0),
                    token: 0,
                    position: computed + 1,
                    depth: 1,
                    pages: &[PageId(0)],
                    sampler: &sampler,
                    stop_tokens: &[],
                    among: (*head == Head::Listed).then_some(&[][..]),
                };
                let begun = executor.now();
                executor.predict(&[guess], &mut self.predicted)?;
                least = least.min(executor.now() - begun);
            }
            self.costs.note_prediction(*head, [1, 1], 0, least);
        }
        Ok(())
    }

    /// Builds the executor on a new thread, generates a token with it, and returns once requests can be served. Blocks.
    ///
    /// The executor need not be `Send`: it never leaves the thread it was built on.
    pub fn start<F, B>(
        build: F,
        settings: EngineSettings,
    ) -> Result<(Handle, Stopper), StartError<B, E::Error>>
    where
        F: FnOnce() -> Result<E, B> + Send + 'static,
        B: Error + Send + 'static,
    {
        let (ready, started) = mpsc::sync_channel(1);
        let (alive, ended) = mpsc::sync_channel(0);
        let run = move || {
            let _alive = alive; // dropped last, when the engine is gone
            match prepare(build, &settings) {
                Err(error) => drop(ready.send(Err(error))),
                Ok((engine, handle)) => {
                    // If nobody waits for the handle any more, the engine finds itself alone and stops.
                    drop(ready.send(Ok(handle)));
                    run(engine);
                }
            }
        };
        let spawned = thread::Builder::new().name("engine".into()).spawn(run);
        spawned.map_err(StartError::Spawn)?;
        let handle = started.recv().map_err(|_| StartError::Vanished)??;
        let inbox = handle.inbox.clone();
        Ok((handle, Stopper { inbox, ended }))
    }
}

/// Tells the board if the thread ends in a panic.
struct PanicReport(Arc<Board>);

impl Drop for PanicReport {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop(Some("its thread panicked".into()));
        }
    }
}

fn prepare<E: Executor, B: Error>(
    build: impl FnOnce() -> Result<E, B>,
    settings: &EngineSettings,
) -> Result<(Engine<E>, Handle), StartError<B, E::Error>> {
    let executor = build().map_err(StartError::Build)?;
    let (mut engine, handle) = Engine::new(executor, settings).map_err(StartError::Settings)?;
    engine.warm_up().map_err(StartError::WarmUp)?;
    Ok((engine, handle))
}

fn run<E: Executor>(mut engine: Engine<E>) {
    // A local, so that it goes before the engine does and readers find the reason.
    let _report = PanicReport(engine.board.clone());
    loop {
        match engine.turn() {
            Ok(Turn::Busy) => {}
            Ok(Turn::Idle) => engine.wait(),
            Ok(Turn::Stop) => return engine.stop(None),
            Err(error) => {
                let why = with_causes(&error);
                tracing::error!(%why, "the engine stops");
                return engine.stop(Some(why));
            }
        }
    }
}

/// An error and what caused it, in one line.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = iter::successors(Some(error), |e: &&(dyn Error + 'static)| (*e).source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
