//! Random arrivals, lengths, deadlines, cancels, slow readers, vanished readers and failures, from a seed.

use std::{
    collections::HashSet,
    env,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use futures::{FutureExt, StreamExt};
use tidegate::engine::{
    Engine, EngineSettings, Handle, Stats, Tokens, Turn,
    executor::{Capacity, Lane},
    pages::PagePool,
    request::{EngineError, Output, Request, Sampling, Token},
};

use crate::fake::{Behaviour, Broken, Cost, End, Fake, VOCAB, Work, mix, solo};

const MS: Duration = Duration::from_millis(1);

/// The pause that is promised.
const GAP_MAX: Duration = Duration::from_millis(150);

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
const COSTS: [Cost; 5] = [
    |_| Duration::ZERO,
    |work| Duration::from_micros(work.rows as u64),
    |work| match work.lane {
        Lane::Decode => Duration::from_millis(15 * work.rows as u64),
        Lane::Prompt => Duration::from_millis(20),
    },
    |work| Duration::from_millis(30 + 7 * work.layer as u64),
    |work| Duration::from_millis(30 + 7 * (work.position % 11) as u64),
];
/// Of these, the one whose lanes take different times.
const LANES_DIFFER: usize = 2;
/// And the one whose windows take as long as others before them do not tell, so that nothing can be promised.
const MOODY: usize = 4;

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
    /// On the engine's clock.
    submitted: Duration,
    /// When it last had nothing left to read, or came.
    emptied: Duration,
}

impl Client {
    /// Takes what is there, at most `count` outputs; returns how many there were.
    fn read(&mut self, count: usize, now: Duration) -> usize {
        for taken in 0..count {
            let next = self
                .tokens
                .as_mut()
                .and_then(|tokens| tokens.next().now_or_never());
            let Some(Some(output)) = next else {
                self.emptied = now;
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
                Err(error) => {
                    match error {
                        EngineError::DeadlineExceeded { after } => {
                            assert_eq!(Some(after), self.request.deadline);
                            assert!(now - self.submitted >= after, "late before its time");
                        }
                        EngineError::ReaderIdle { after } => {
                            assert!(now - self.emptied >= after, "idle before its time");
                        }
                        _ => {}
                    }
                    self.end = Some(Err(error));
                }
            }
        }
        count
    }

    fn is_dropped(&self) -> bool {
        self.tokens.is_none()
    }

    /// Whether it need not be served any more.
    fn has_left(&self, now: Duration) -> bool {
        let deadline = self.request.deadline;
        self.is_dropped() || deadline.is_some_and(|after| now - self.submitted >= after)
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
    /// Of [`COSTS`].
    machine: usize,
    /// The most so far.
    slots_busy: usize,
    clients: Vec<Client>,
    /// Requests that have been seen in a slot.
    started: HashSet<usize>,
}

impl Evening {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(mix(seed));
        let machine = dice.below(COSTS.len());
        let capacity = Capacity {
            slots: dice.from(1, 5),
            pages: dice.from(1, 12),
            rows: dice.pick(&[1, 2, 5, 16, 70, 300]),
            decode_rows: dice.pick(&[1, 2, 5, 16, 70, 300]),
            logits_rows: dice.pick(&[1, 2, 5, 8, 40]),
            layers: dice.from(1, 5),
            vocab: VOCAB,
            context: dice.pick(&[2, 20, 64, 65, 200, 400]),
            slices_ahead: 0,
            lanes_alike: machine != LANES_DIFFER,
            candidates: dice.pick(&[0, 1, 6, VOCAB]),
            drafts: dice.pick(&[0, 1, 3, 8]),
            predicts: dice.once_in(2),
            frequent: if dice.once_in(2) { 16 } else { 0 },
        };
        let settings = EngineSettings {
            queue: dice.pick(&[0, 1, 3, 20]),
            chunk_rows: dice.pick(&[None, Some(1), Some(3), Some(17), Some(64), Some(1000)]),
            outbox_tokens: dice.pick(&[1, 2, 7, 40]),
            gap_max: Some(GAP_MAX),
            idle_timeout: dice.pick(&[MS, 200 * MS, 10_000 * MS, Duration::MAX]),
            ..EngineSettings::default()
        };
        let behaviour = Behaviour {
            fail_at: dice.once_in(8).then(|| dice.from(1, 300) as u64),
            poison: dice.once_in(4).then_some(53),
            habits: !dice.once_in(4),
            cost: Some(COSTS[machine]),
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
            machine,
            slots_busy: 0,
            clients: Vec::new(),
            started: HashSet::new(),
        }
    }

    /// The engine's clock.
    fn now(&self) -> Duration {
        Duration::from_nanos(self.behaviour.calls.clock.load(Relaxed))
    }

    /// Lets time pass in which nothing is computed.
    fn pass(&self, time: Duration) {
        let clock = &self.behaviour.calls.clock;
        clock.fetch_add(time.as_nanos() as u64, Relaxed);
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
            deadline: (dice.once_in(4))
                .then(|| dice.pick(&[MS, 50 * MS, 2_000 * MS, Duration::MAX])),
            drafts: !dice.once_in(4),
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
        let now = self.now();
        self.clients.push(Client {
            expected: solo(&request, self.handle.context(), &self.behaviour),
            request,
            tokens,
            got: Vec::new(),
            end: None,
            slow: self.dice.once_in(4),
            submitted: now,
            emptied: now,
        });
    }

    /// Lets a random client do something.
    fn stir(&mut self) {
        let outbox = self.settings.outbox_tokens;
        let (count, now) = (self.dice.from(1, 50), self.now());
        if self.clients.is_empty() {
            return;
        }
        let id = self.dice.below(self.clients.len());
        let client = &mut self.clients[id];
        if self.dice.once_in(10) {
            client.tokens = None;
        } else if !client.slow {
            let taken = client.read(count, now);
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
        let (stats, now) = (self.handle.stats(), self.now());
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
                    before.all(|id| self.clients[id].has_left(now)),
                    "request {id} jumped the queue"
                );
            }
        }
        self.check_gaps(&stats);
        assert_eq!(stats.pages_used, pages, "pages of {:?}", stats.sequences);
        assert!(pages <= self.capacity.pages);
        Ok(turn)
    }

    /// Nobody has waited longer than promised, as far as the engine could know: costs that it has not met yet may surprise it
    /// with two slices, one before each window of those that take turns.
    fn check_gaps(&mut self, stats: &Stats) {
        self.slots_busy = self.slots_busy.max(stats.slots_busy);
        let together = self.capacity.decode_rows.min(self.capacity.logits_rows);
        let turns = self.slots_busy.div_ceil(together) as u32;
        let layer = |layer| {
            let rows = self.slots_busy.min(together);
            COSTS[self.machine](&Work {
                lane: Lane::Decode,
                rows,
                position: 0,
                layer,
            })
        };
        let alone: Duration = turns * (0..self.capacity.layers).map(layer).sum::<Duration>();
        let slice = Duration::from_nanos(self.behaviour.calls.longest_slice.load(Relaxed));
        let bound = GAP_MAX.max(3 * alone) + turns * 2 * slice;
        for held in &stats.sequences {
            let gap = held.worst_gap;
            assert!(
                self.machine == MOODY || gap <= bound,
                "{held:?} has waited for {gap:?} of {bound:?} in {:?} with {:?}: windows took up to {alone:?} in turns of {turns}",
                self.capacity,
                self.settings
            );
        }
    }

    fn run(mut self) {
        let warm = self.engine.warm_up();
        if let Err(error) = warm.and_then(|()| self.stay()).and_then(|()| self.leave()) {
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
                    if self.turn()? == Turn::Idle && self.dice.once_in(3) {
                        let time = self.dice.pick(&[MS, 30 * MS, 3_000 * MS]);
                        self.pass(time);
                    }
                }
            }
        }
        Ok(())
    }

    /// Nobody reads any more, or everybody who is still there reads to the end; then all must be free again.
    fn leave(&mut self) -> Result<(), Broken> {
        let vanish = self.settings.idle_timeout < Duration::MAX && self.dice.once_in(3);
        // Whoever holds a slot may be parked once, whoever waits may come after him.
        let mut patience = self.clients.len() + 1;
        while vanish && self.handle.stats().queued + self.handle.stats().slots_busy > 0 {
            while self.turn()? == Turn::Busy {}
            self.pass(self.settings.idle_timeout);
            assert!(patience > 0, "idle readers keep their places");
            patience -= 1;
        }
        loop {
            let now = self.now();
            self.clients
                .iter_mut()
                .for_each(|client| while client.read(50, now) > 0 {});
            let idle = self.turn()? == Turn::Idle;
            let now = self.now();
            let read = self.clients.iter_mut().map(|client| client.read(50, now));
            if read.sum::<usize>() == 0 && idle {
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
            while client.read(50, Duration::MAX) > 0 {}
            client.check(id);
            if !client.is_dropped()
                && !matches!(
                    client.end,
                    Some(
                        Ok(_)
                            | Err(EngineError::DeadlineExceeded { .. }
                                | EngineError::ReaderIdle { .. })
                    )
                )
            {
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

/// Evenings that once went wrong: prompts rode in every turn of streams that take turns; a window counted with rows that had been
/// withdrawn from it; prompts rode beside guesses for longer than streams may wait; prompts rode as if windows with prompts had told nothing (two).
const CASES: [u64; 5] = [11_382, 48_409, 40_860, 640_624, 726_455];

/// How many evenings there are; `TIDEGATE_EVENINGS` says otherwise.
const EVENINGS: u64 = 10_000;

#[test]
fn evenings_add_up() {
    if let Ok(seed) = env::var("TIDEGATE_EVENING") {
        return check(seed.parse().unwrap());
    }
    CASES.into_iter().for_each(check);
    let evenings = env::var("TIDEGATE_EVENINGS").map_or(EVENINGS, |n| n.parse().unwrap());
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(|| {
                while let seed = next.fetch_add(1, Relaxed)
                    && seed < evenings
                {
                    check(seed);
                }
            });
        }
    });
}
