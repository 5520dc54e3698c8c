//! Random arrivals, lengths, cancels, slow readers, vanished readers and failures, from a seed.

use std::{collections::HashSet, thread, time::Duration};

use futures::{FutureExt, StreamExt};
use tidegate::engine::{
    Engine, EngineSettings, Handle, Tokens, Turn,
    executor::{Capacity, Lane},
    pages::PagePool,
    request::{EngineError, Output, Request, Sampling, Token},
};

use crate::fake::{Behaviour, Broken, Cost, End, Fake, VOCAB, mix, solo};

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    /// One of `0..sides`.
    fn below(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        (mix(self.0) % sides as u64) as usize
    }

    fn from(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    /// True once in `n`.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Machines on which the schedule comes to different ends: a clock that stands, prompts that ride, prompts on their own lane,
/// and windows that take longer than a pause may.
const COSTS: [Cost; 4] = [
    |_| Duration::ZERO,
    |work| Duration::from_micros(work.rows as u64),
    |work| match work.lane {
        Lane::Decode => Duration::from_millis(15 * work.rows as u64),
        Lane::Prompt => Duration::from_millis(20),
    },
    |work| Duration::from_millis(30 + 7 * (work.position % 11) as u64),
];

/// One request and what became of it. Its number is its place in the list.
struct Client {
    request: Request,
    /// None once dropped.
    tokens: Option<Tokens>,
    expected: (Vec<Token>, End),
    got: Vec<Token>,
    end: Option<Result<End, EngineError>>,
    /// Reads only when the evening is over.
    slow: bool,
}

impl Client {
    /// Takes what is there, at most `count` outputs; returns how many there were.
    fn read(&mut self, count: usize) -> usize {
        for taken in 0..count {
            let next = self
                .tokens
                .as_mut()
                .and_then(|tokens| tokens.next().now_or_never());
            let Some(Some(output)) = next else {
                return taken;
            };
            assert!(self.end.is_none(), "an output after the end");
            match output {
                Ok(Output::Token { token, .. }) => self.got.push(token),
                Ok(Output::Finished { reason, timings }) => {
                    assert_eq!(timings.prompt_tokens, self.request.prompt.len());
                    self.end = Some(Ok(End::Finished(reason)));
                }
                Err(EngineError::NotFinite { position }) => {
                    self.end = Some(Ok(End::NotFinite { position }))
                }
                Err(error) => self.end = Some(Err(error)),
            }
        }
        count
    }

    fn is_dropped(&self) -> bool {
        self.tokens.is_none()
    }

    /// Tokens are those of the definition, as far as they go.
    fn check(&self, id: usize) {
        let (tokens, end) = &self.expected;
        assert!(
            tokens.starts_with(&self.got),
            "request {id}: {:?} instead of {tokens:?}",
            self.got
        );
        if let Some(Ok(found)) = &self.end {
            assert_eq!((found, self.got.len()), (end, tokens.len()), "request {id}");
        }
    }
}

/// An engine, its clients, and the dice.
struct Evening {
    dice: Dice,
    engine: Engine<Fake>,
    handle: Handle,
    capacity: Capacity,
    settings: EngineSettings,
    behaviour: Behaviour,
    clients: Vec<Client>,
    /// Requests that have been seen in a slot.
    started: HashSet<usize>,
}

impl Evening {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(mix(seed));
        let capacity = Capacity {
            slots: dice.from(1, 5),
            pages: dice.from(1, 12),
            rows: dice.pick(&[1, 2, 5, 16, 70, 300]),
            decode_rows: dice.pick(&[1, 2, 5, 16, 70, 300]),
            logits_rows: dice.pick(&[1, 2, 5, 8]),
            layers: dice.from(1, 5),
            vocab: VOCAB,
            context: dice.pick(&[2, 20, 64, 65, 200, 400]),
            candidates: dice.pick(&[0, 1, 6, VOCAB]),
        };
        let settings = EngineSettings {
            queue: dice.pick(&[0, 1, 3, 20]),
            chunk_rows: dice.pick(&[None, Some(1), Some(3), Some(17), Some(64), Some(1000)]),
            outbox_tokens: dice.pick(&[1, 2, 7, 40]),
            ..EngineSettings::default()
        };
        let behaviour = Behaviour {
            fail_at: dice.once_in(8).then(|| dice.from(1, 300) as u64),
            poison: dice.once_in(4).then_some(53),
            cost: Some(dice.pick(&COSTS)),
            ..Behaviour::default()
        };
        let fake = Fake::new(capacity, behaviour.clone());
        let (engine, handle) = Engine::new(fake, &settings).unwrap();
        Self {
            dice,
            engine,
            handle,
            capacity,
            settings,
            behaviour,
            clients: Vec::new(),
            started: HashSet::new(),
        }
    }

    fn request(&mut self) -> Request {
        let dice = &mut self.dice;
        let context = self.handle.context();
        let longest = dice.pick(&[1, 10, 100, context - 1]).min(context - 1);
        let prompt = (0..dice.from(1, longest))
            .map(|_| dice.below(VOCAB) as Token)
            .collect();
        let sampling = Sampling {
            temperature: dice.pick(&[0.0, 0.7, 1.5]),
            top_k: dice.pick(&[0, 1, 5]),
            top_p: dice.pick(&[1.0, 0.8]),
            frequency_penalty: dice.pick(&[0.0, 0.5]),
            seed: dice.below(100) as u64,
            ..Sampling::default()
        };
        Request {
            prompt,
            sampling,
            max_tokens: dice.pick(&[1, 2, 9, 50, usize::MAX]),
            stop_tokens: (0..dice.below(3))
                .map(|_| dice.below(VOCAB) as Token)
                .collect(),
            logprobs: dice.once_in(5).then_some(2),
        }
    }

    fn submit(&mut self) {
        let request = self.request();
        let tokens = match self.handle.submit(request.clone()) {
            Ok(tokens) => Some(tokens),
            Err(EngineError::QueueFull { limit, .. }) => {
                assert_eq!(limit, self.settings.queue);
                return;
            }
            Err(error) => panic!("{error}"),
        };
        self.clients.push(Client {
            expected: solo(&request, self.handle.context(), self.behaviour.poison),
            request,
            tokens,
            got: Vec::new(),
            end: None,
            slow: self.dice.once_in(4),
        });
    }

    /// Lets a random client do something.
    fn stir(&mut self) {
        let outbox = self.settings.outbox_tokens;
        let count = self.dice.from(1, 50);
        if self.clients.is_empty() {
            return;
        }
        let id = self.dice.below(self.clients.len());
        let client = &mut self.clients[id];
        if self.dice.once_in(10) {
            client.tokens = None;
        } else if !client.slow {
            let taken = client.read(count);
            assert!(
                taken <= outbox + 1,
                "{taken} outputs lay in an outbox for {outbox}"
            );
        }
        client.check(id);
    }

    /// A turn, and whether the engine's numbers add up after it.
    fn turn(&mut self) -> Result<Turn, Broken> {
        let turn = self.engine.turn()?;
        let stats = self.handle.stats();
        assert_eq!(stats.slots_busy, stats.sequences.len());
        let mut pages = 0;
        for held in &stats.sequences {
            let id = held.request as usize;
            let client = &self.clients[id];
            let prompt = client.request.prompt.len();
            let worst = prompt
                + client
                    .request
                    .max_tokens
                    .min(self.handle.context() - prompt);
            pages += PagePool::needed(worst);
            let unread = held.generated - client.got.len();
            assert!(
                client.is_dropped() || unread <= self.settings.outbox_tokens,
                "request {id}"
            );
            // Nothing to do, although somebody could go on?
            let parked = !client.is_dropped() && unread == self.settings.outbox_tokens;
            assert!(turn != Turn::Idle || parked, "request {id} was forgotten");
            if self.started.insert(id) {
                let mut before = (0..id).filter(|id| !self.started.contains(id));
                assert!(
                    before.all(|id| self.clients[id].is_dropped()),
                    "request {id} jumped the queue"
                );
            }
        }
        assert_eq!(stats.pages_used, pages, "pages of {:?}", stats.sequences);
        assert!(pages <= self.capacity.pages);
        Ok(turn)
    }

    fn run(mut self) {
        if let Err(error) = self.stay().and_then(|()| self.leave()) {
            self.broken(error);
        }
    }

    /// Everybody does as he likes.
    fn stay(&mut self) -> Result<(), Broken> {
        for _ in 0..self.dice.from(50, 600) {
            match self.dice.below(10) {
                0 => self.submit(),
                1..4 => self.stir(),
                _ => {
                    self.turn()?;
                }
            }
        }
        Ok(())
    }

    /// Everybody who is still there reads to the end; then all must be free again.
    fn leave(&mut self) -> Result<(), Broken> {
        loop {
            self.clients
                .iter_mut()
                .for_each(|client| while client.read(50) > 0 {});
            let idle = self.turn()? == Turn::Idle;
            let read: usize = self.clients.iter_mut().map(|client| client.read(50)).sum();
            if idle && read == 0 {
                break;
            }
        }
        for (id, client) in self.clients.iter().enumerate() {
            client.check(id);
            assert!(
                client.is_dropped() || client.end.is_some(),
                "idle, but request {id} waits"
            );
        }
        let stats = self.handle.stats();
        assert_eq!(
            (stats.slots_busy, stats.pages_used, stats.queued),
            (0, 0, 0)
        );
        // All places are free: as many requests as there are places get in, and one more does not.
        let request = self.request();
        let places = self.capacity.slots + self.settings.queue;
        let submit = || self.handle.submit(request.clone());
        let held: Result<Vec<_>, _> = (0..places).map(|_| submit()).collect();
        assert!(held.is_ok_and(|held| held.len() == places));
        Ok(())
    }

    /// The executor failed: everybody learns why, also whoever comes later.
    fn broken(mut self, error: Broken) {
        assert_eq!(self.behaviour.fail_at, Some(error.at));
        let request = self.request();
        let why = EngineError::Stopped(Some(error.to_string()));
        self.engine.stop(Some(error.to_string()));
        for (id, client) in self.clients.iter_mut().enumerate() {
            while client.read(50) > 0 {}
            client.check(id);
            if !client.is_dropped() && !matches!(client.end, Some(Ok(_))) {
                assert_eq!(client.end, Some(Err(why.clone())), "request {id}");
            }
        }
        assert_eq!(self.handle.submit(request).unwrap_err(), why);
    }
}

/// Names the seed that failed.
struct Report(u64);

impl Drop for Report {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the seed was {}", self.0);
        }
    }
}

fn check(seed: u64) {
    let _report = Report(seed);
    Evening::new(seed).run();
}

#[test]
fn evenings_add_up() {
    (0..1000).for_each(check);
}
