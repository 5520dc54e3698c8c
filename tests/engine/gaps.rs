//! How long streams pause while prompts are read, on a clock that only the fake model moves.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use futures::{FutureExt, StreamExt};
use tidegate::engine::{
    Engine, EngineSettings, Handle, Tokens, Turn,
    executor::{Capacity, Lane},
    request::{Output, Request, Token},
};

use crate::{
    cases::{engine_with, request},
    fake::{Behaviour, Cost, Fake, VOCAB, solo},
};

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

/// The pause that is promised.
const TARGET: Duration = Duration::from_millis(150);

/// What a machine can hold, and what a layer takes on it.
#[derive(Clone, Copy)]
struct Machine {
    name: &'static str,
    rows: usize,
    decode_rows: usize,
    cost: Cost,
}

const MACHINES: [Machine; 6] = [
    Machine {
        name: "a small model: prompts ride in windows of a few ms",
        rows: 128,
        decode_rows: 136,
        cost: |work| 20 * US + work.rows as u32 * 2 * US,
    },
    Machine {
        name: "a large model on a CPU: a chunk takes seconds",
        rows: 128,
        decode_rows: 136,
        cost: |work| 2 * MS + work.rows as u32 * 150 * US,
    },
    Machine {
        name: "experts fetched over the link: the same for 32 rows and 4096",
        rows: 4096,
        decode_rows: 16,
        cost: |work| match work.lane {
            Lane::Decode => 2 * MS,
            Lane::Prompt => 30 * MS,
        },
    },
    Machine {
        name: "windows longer than the target",
        rows: 1024,
        decode_rows: 16,
        cost: |work| match work.lane {
            Lane::Decode => 20 * MS,
            Lane::Prompt => 25 * MS,
        },
    },
    Machine {
        name: "attention grows, in every fourth layer",
        rows: 2048,
        decode_rows: 16,
        cost: |work| match (work.lane, work.layer % 4) {
            (Lane::Decode, _) => MS,
            (Lane::Prompt, 3) => MS + work.position as u32 * US / 3,
            (Lane::Prompt, _) => MS,
        },
    },
    Machine {
        name: "layers too long for the target with a whole chunk",
        rows: 1024,
        decode_rows: 8,
        cost: |work| work.rows as u32 * 200 * US,
    },
];

const LAYERS: usize = 12;

/// A stream or prompt, and when its tokens came.
struct Client {
    request: Request,
    outputs: Tokens,
    tokens: Vec<Token>,
    times: Vec<Duration>,
    ended: bool,
}

impl Client {
    /// The longest time between two tokens, of those that came in a stretch of time.
    fn worst_gap(&self, from: Duration, to: Duration) -> Duration {
        let gaps = self.times.windows(2);
        let gaps = gaps.filter(|pair| pair[1] > from && pair[0] < to);
        gaps.map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

/// An engine and its clients, who read at once whatever there is.
struct Room {
    engine: Engine<Fake>,
    handle: Handle,
    behaviour: Behaviour,
    clients: Vec<Client>,
}

impl Room {
    fn new(machine: &Machine) -> Self {
        let capacity = Capacity {
            slots: 6,
            pages: 4000,
            rows: machine.rows,
            decode_rows: machine.decode_rows,
            logits_rows: 6,
            layers: LAYERS,
            vocab: VOCAB,
            context: 120_000,
            slices_ahead: 0,
            drafts: 0,
            predicts: false,
            frequent: 0,
            lanes_alike: false,
            candidates: 8,
        };
        let settings = EngineSettings {
            outbox_tokens: 8,
            gap_max: Some(TARGET),
            ..EngineSettings::default()
        };
        let (engine, handle, behaviour) = engine_with(capacity, &settings, Some(machine.cost));
        Self {
            engine,
            handle,
            behaviour,
            clients: Vec::new(),
        }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.behaviour.calls.clock.load(Relaxed))
    }

    /// A new client's number.
    fn submit(&mut self, request: Request) -> usize {
        self.clients.push(Client {
            outputs: self.handle.submit(request.clone()).unwrap(),
            request,
            tokens: Vec::new(),
            times: Vec::new(),
            ended: false,
        });
        self.clients.len() - 1
    }

    /// A turn, after which everybody reads.
    fn turn(&mut self) -> Turn {
        let turn = self.engine.turn().unwrap();
        let now = self.now();
        for client in &mut self.clients {
            while let Some(Some(output)) = client.outputs.next().now_or_never() {
                match output.unwrap() {
                    Output::Token { token, .. } => {
                        client.tokens.push(token);
                        client.times.push(now);
                    }
                    Output::Finished { .. } => client.ended = true,
                }
            }
        }
        turn
    }

    /// Turns until a client has so many tokens.
    fn run_until(&mut self, client: usize, tokens: usize) {
        while self.clients[client].tokens.len() < tokens {
            assert_eq!(self.turn(), Turn::Busy);
        }
    }

    /// Four streams that have got going, and the time.
    fn with_streams(machine: &Machine) -> (Self, Duration) {
        let mut room = Self::new(machine);
        for i in 0..4 {
            room.submit(request(i, 20 + i as usize, 5000));
        }
        room.run_until(3, 10);
        let now = room.now();
        (room, now)
    }

    fn worst_gap(&self, from: Duration) -> Duration {
        let streams = self.clients[..4].iter();
        let gaps = streams.map(|stream| stream.worst_gap(from, self.now()));
        gaps.max().unwrap()
    }

    /// Everybody got the tokens of a sequence that is alone.
    fn check_tokens(&self) {
        for client in &self.clients {
            let alone = Request {
                max_tokens: client.tokens.len().max(1),
                ..client.request.clone()
            };
            let (expected, _) = solo(&alone, self.handle.context(), &Behaviour::default());
            assert!(expected.starts_with(&client.tokens));
        }
    }
}

/// When a prompt's first token comes if nobody else is there.
fn time_alone(machine: &Machine, prompt: &Request) -> Duration {
    let mut room = Room::new(machine);
    let client = room.submit(prompt.clone());
    room.run_until(client, 1);
    room.now()
}

/// A long prompt beside four streams: they pause no longer than promised, and the prompt is not starved.
fn check(machine: &Machine) {
    let name = machine.name;
    let prompt = request(7, 100_000, 3);
    let (mut room, _) = Room::with_streams(machine);
    let settled = room.now();
    room.run_until(3, 50);
    let without = room.worst_gap(settled);
    let submitted = room.now();
    let client = room.submit(prompt.clone());
    let before = room.clients[0].tokens.len();
    room.run_until(client, 1);
    let took = room.now() - submitted;
    let with = room.worst_gap(submitted);
    assert!(
        with <= TARGET.max(3 * without),
        "{name}: {with:?} beside the prompt, {without:?} without"
    );
    let alone = time_alone(machine, &prompt);
    // What windows take beside it, and as much again.
    assert!(took <= 3 * alone, "{name}: {took:?}, alone {alone:?}");
    let windows = room.clients[0].tokens.len() - before;
    assert!(windows as u32 >= took.as_millis() as u32 / TARGET.max(3 * without).as_millis() as u32);
    room.run_until(client, 3);
    room.check_tokens();
}

#[test]
fn no_stream_pauses_longer_than_promised() {
    MACHINES.iter().for_each(check);
}

/// A prompt that comes while a very long one is read does not wait for its end.
fn check_arrival(machine: &Machine, prompt: usize, chunks: u32) {
    let (mut room, _) = Room::with_streams(machine);
    let long = room.submit(request(7, 100_000, 3));
    for _ in 0..5 * LAYERS {
        room.turn();
    }
    let chunk = time_alone(machine, &request(1, machine.rows, 1));
    let submitted = room.now();
    let short = room.submit(request(9, prompt, 2));
    room.run_until(short, 1);
    let took = room.now() - submitted;
    let bound = 3 * chunks * chunk + 2 * TARGET;
    assert!(took <= bound, "{}: {took:?} of {bound:?}", machine.name);
    assert!(room.clients[long].tokens.is_empty());
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let [_, cpu, link, ..] = MACHINES;
    check_arrival(&cpu, 3, 0); // rides
    check_arrival(&cpu, 100, 3);
    check_arrival(&link, 12, 0);
    check_arrival(&link, 2000, 2);
}

#[test]
fn a_cancel_in_either_lane_frees_at_the_next_slice() {
    let link = &MACHINES[2];
    // Turns at which a window and a chunk are under way, or only the chunk.
    for turns in (1..40).step_by(3) {
        for leaves in [0, 4] {
            let (mut room, _) = Room::with_streams(link);
            room.submit(request(7, 20_000, 3));
            for _ in 0..100 + turns {
                room.turn();
            }
            let busy = room.handle.stats().slots_busy;
            let pages = room.handle.stats().pages_used;
            room.clients.remove(leaves);
            room.turn();
            let stats = room.handle.stats();
            assert_eq!(stats.slots_busy, busy - 1, "{leaves} after {turns}");
            assert!(stats.pages_used < pages);
            // The lane is free for the next one, and nobody else noticed.
            let next = room.submit(request(5, 3000, 2));
            room.run_until(next, 2);
            room.check_tokens();
        }
    }
}

#[test]
fn parked_streams_do_not_hold_up_a_prompt() {
    let link = &MACHINES[2];
    let mut room = Room::new(link);
    // Nobody reads these.
    let parked: Vec<_> = (0..4)
        .map(|i| room.handle.submit(request(i, 20, 500)).unwrap())
        .collect();
    while room.turn() == Turn::Busy {}
    let prompt = request(7, 20_000, 1);
    let begun = room.now();
    let windows = room.behaviour.calls.lanes[Lane::Decode as usize].load(Relaxed);
    let client = room.submit(prompt.clone());
    room.run_until(client, 1);
    assert_eq!(room.now() - begun, time_alone(link, &prompt));
    let after = room.behaviour.calls.lanes[Lane::Decode as usize].load(Relaxed);
    assert_eq!(after, windows);
    // They go on where they stood.
    for (i, outputs) in parked.into_iter().enumerate() {
        let mut outputs = outputs;
        let mut tokens = Vec::new();
        loop {
            room.turn();
            match outputs.next().now_or_never() {
                Some(Some(Ok(Output::Token { token, .. }))) => tokens.push(token),
                Some(Some(Ok(Output::Finished { .. }))) => break,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        let (expected, _) = solo(
            &request(i as Token, 20, 500),
            room.handle.context(),
            &Behaviour::default(),
        );
        assert_eq!(tokens, expected);
    }
}

#[test]
fn whole_rows_are_told_only_where_they_are_needed() {
    let (room, _) = Room::with_streams(&MACHINES[0]);
    // Greedy streams, of an executor that tells the likeliest token.
    assert_eq!(room.behaviour.calls.logits.load(Relaxed), 0);
}
