//! An executor whose logits are a hash of everything a sequence has read and written.
//!
//! Keys and values are the tokens themselves, kept in pages; the recurrent state is the running hash. Both must tell the same
//! story at every row, so a wrong position, page, slot, or a missing reset is found where it happens.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tidegate::{
    engine::{
        Tokens,
        executor::{
            Ask, Candidates, Capacity, Executor, Guess, Lane, Outcome, PAGE_TOKENS, PageId,
            Progress, Slot, Span, UNLISTED,
        },
        request::{FinishReason, Request, Token},
    },
    sampler::{Sampler, Scratch},
};

/// The tokens there are.
pub(crate) const VOCAB: usize = 48;

/// What the fake can be told to do wrong, and what it tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Behaviour {
    /// Fail at this call of `advance`, counted from 1.
    pub(crate) fail_at: Option<u64>,
    /// Panic at this call of `advance`.
    pub(crate) panic_at: Option<u64>,
    /// Wait for this lock in every `advance`.
    pub(crate) hold: Option<Arc<Mutex<()>>>,
    /// Readers who go away while rows are withdrawn.
    pub(crate) leave_at_withdraw: Arc<Mutex<Vec<Tokens>>>,
    /// Give a row that is not finite where the hash is a multiple of this.
    pub(crate) poison: Option<u64>,
    /// Let what follows a token mostly depend on that token alone, so that sequences repeat themselves.
    pub(crate) habits: bool,
    /// What a call of `advance` takes, on a clock that only this moves. The real clock if absent.
    pub(crate) cost: Option<Cost>,
    /// Calls so far.
    pub(crate) calls: Arc<Calls>,
}

/// What a call of `advance` is about to do.
pub(crate) struct Work {
    pub(crate) lane: Lane,
    pub(crate) rows: usize,
    /// The last of the rows' positions.
    pub(crate) position: usize,
    pub(crate) layer: usize,
}

/// What a layer takes.
pub(crate) type Cost = fn(&Work) -> Duration;

/// Calls so far.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) advance: AtomicU64,
    /// Calls of `advance` by lane.
    pub(crate) lanes: [AtomicU64; Lane::COUNT],
    /// Rows whose logits were told.
    pub(crate) logits: AtomicU64,
    /// **Units**: nanoseconds, on the clock that `cost` moves.
    pub(crate) clock: AtomicU64,
    /// Rows that were taken back.
    pub(crate) cut: AtomicU64,
    /// Predictions that were chosen among few tokens.
    pub(crate) listed: AtomicU64,
    /// Prompt tokens that were told ahead.
    pub(crate) told: AtomicU64,
    /// Sequences begun: spans that start at position 0.
    pub(crate) started: AtomicU64,
    /// **Units**: nanoseconds, as `clock`. The longest slice of the prompt lane.
    pub(crate) longest_slice: AtomicU64,
}

/// The failure it was told to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device fell off the bus at layer {at}")]
pub(crate) struct Broken {
    pub(crate) at: u64,
}

/// A slot's recurrent state.
#[derive(Clone, Default)]
struct State {
    /// After every position.
    hashes: Vec<u64>,
    /// Rows of the last window that may be taken back.
    loose: usize,
    /// Prompt tokens that it was told of.
    told: Vec<Token>,
    /// Rows of it were abandoned: unusable until it is reset.
    torn: bool,
}

impl State {
    fn hash(&self) -> u64 {
        self.hashes.last().copied().unwrap_or(0)
    }
}

/// A row on its way.
struct Row {
    slot: Slot,
    position: usize,
    token: Token,
    pages: Arc<[PageId]>,
    ask: Option<Ask>,
}

/// Rows and the layers they have been through.
pub(crate) struct Pass {
    lane: Lane,
    rows: Vec<Row>,
    layers: usize,
}

/// What a row that was asked came to.
struct Asked {
    ask: Ask,
    logits: Vec<f32>,
    /// Likeliest first, each with its logit.
    ids: Vec<Token>,
    ranked: Vec<f32>,
}

/// See the module.
pub(crate) struct Fake {
    capacity: Capacity,
    behaviour: Behaviour,
    states: Vec<State>,
    keys: Vec<[Token; PAGE_TOKENS]>,
    /// Slots of the passes that have not been finished, by lane.
    under_way: [Option<Vec<Slot>>; Lane::COUNT],
    asked: Vec<Asked>,
    begun: Instant,
}

impl Fake {
    pub(crate) fn new(capacity: Capacity, behaviour: Behaviour) -> Self {
        Self {
            capacity,
            behaviour,
            // Nobody may rely on how a slot starts.
            states: vec![
                State {
                    torn: true,
                    ..State::default()
                };
                capacity.slots
            ],
            keys: vec![[Token::MAX; PAGE_TOKENS]; capacity.pages],
            under_way: [None, None],
            asked: Vec::new(),
            begun: Instant::now(),
        }
    }

    fn check_span(&self, span: &Span<'_>) {
        let state = &self.states[span.slot.0 as usize];
        let end = span.first as usize + span.tokens.len();
        assert!(!state.torn, "{:?} was not reset", span.slot);
        assert_eq!(
            state.hashes.len(),
            span.first as usize,
            "position in {:?}",
            span.slot
        );
        assert!(!span.tokens.is_empty() && end <= self.capacity.context);
        let told = state.told.iter().skip(span.first as usize);
        assert!(
            told.zip(span.tokens).all(|(told, token)| told == token),
            "what was told ahead"
        );
        let silent = end - span.logits;
        assert!(
            state.told.is_empty() || silent <= state.told.len().max(span.first as usize),
            "{} rows from {} on, {} with logits, but {} were told ahead",
            span.tokens.len(),
            span.first,
            span.logits,
            state.told.len()
        );
        assert!(
            span.pages.len() * PAGE_TOKENS >= end,
            "pages cover every row"
        );
        assert!(
            span.pages
                .iter()
                .all(|page| (page.0 as usize) < self.capacity.pages)
        );
        assert!(span.logits <= span.tokens.len());
        assert!(span.drafts <= self.capacity.drafts);
        assert!(
            span.drafts == 0 || span.drafts + 1 == span.tokens.len() && span.logits > span.drafts,
            "guesses stand behind one token"
        );
        assert!(
            self.under_way
                .iter()
                .flatten()
                .all(|slots| !slots.contains(&span.slot)),
            "{:?} twice at once",
            span.slot
        );
    }

    /// Notes what will be told of a row: of all tokens, or of the frequent ones and some others.
    fn tell(&mut self, hash: u64, token: Token, ask: Ask, among: Option<&[Token]>) {
        let mut logits: Vec<f32> = logits(hash, token, &self.behaviour).collect();
        if let Some(own) = among {
            let frequent = self.capacity.frequent;
            assert!(frequent > 0 && own.iter().all(|token| *token as usize >= frequent));
            for (token, logit) in (0..).zip(&mut logits).skip(frequent) {
                if !own.contains(&token) {
                    *logit = UNLISTED;
                }
            }
        }
        let mut ids: Vec<Token> = (0..VOCAB as Token).collect();
        ids.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        ids.truncate(self.capacity.candidates.max(1));
        self.asked.push(Asked {
            ask,
            ranked: ids.iter().map(|id| logits[*id as usize]).collect(),
            ids,
            logits,
        });
    }

    /// The hash of positions `0..=row.position`, read back from the pages. `before` is that of the row before, in the same pages.
    fn attend(&self, row: &Row, before: Option<u64>) -> u64 {
        let key = |at: usize| self.keys[row.pages[at / PAGE_TOKENS].0 as usize][at % PAGE_TOKENS];
        match before {
            Some(hash) => absorb(hash, key(row.position)),
            None => (0..=row.position).map(key).fold(0, absorb),
        }
    }
}

impl Executor for Fake {
    type Pass = Pass;
    type Error = Broken;

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn reset(&mut self, slot: Slot) {
        self.states[slot.0 as usize] = State::default();
    }

    fn cut(&mut self, slot: Slot, rows: usize) {
        self.behaviour.calls.cut.fetch_add(rows as u64, Relaxed);
        let state = &mut self.states[slot.0 as usize];
        assert!((1..=state.loose).contains(&rows) && !state.torn);
        state.loose -= rows;
        state.hashes.truncate(state.hashes.len() - rows);
    }

    fn begin(&mut self, lane: Lane, spans: &[Span<'_>]) -> Result<Pass, Broken> {
        let rows: usize = spans.iter().map(|span| span.tokens.len()).sum();
        let logits: usize = spans.iter().map(|span| span.logits).sum();
        let rows_max = match lane {
            Lane::Decode => self.capacity.decode_rows,
            Lane::Prompt => self.capacity.rows,
        };
        assert!((1..=rows_max).contains(&rows) && logits <= self.capacity.logits_rows);
        assert!(
            self.under_way[lane as usize].is_none(),
            "{lane:?} holds a pass"
        );
        self.under_way[lane as usize] = Some(Vec::new());
        for span in spans {
            self.check_span(span);
            self.states[span.slot.0 as usize].loose = span.drafts;
            self.under_way[lane as usize]
                .as_mut()
                .unwrap()
                .push(span.slot);
            self.behaviour
                .calls
                .started
                .fetch_add(u64::from(span.first == 0), Relaxed);
        }
        let rows = spans.iter().flat_map(|span| {
            let tokens = span.tokens.iter().enumerate();
            let pages: Arc<[PageId]> = span.pages.into();
            tokens.map(move |(i, token)| Row {
                slot: span.slot,
                position: span.first as usize + i,
                token: *token,
                pages: pages.clone(),
                ask: (i + span.logits >= span.tokens.len()).then_some(span.ask),
            })
        });
        Ok(Pass {
            lane,
            rows: rows.collect(),
            layers: 0,
        })
    }

    fn ahead(&mut self, slot: Slot, first: usize, tokens: &[Token]) {
        let state = &mut self.states[slot.0 as usize];
        assert!(!state.torn && !tokens.is_empty());
        assert_eq!(first, state.told.len(), "each is told once, in order");
        state.told.extend_from_slice(tokens);
        let calls = &self.behaviour.calls;
        calls.told.fetch_add(tokens.len() as u64, Relaxed);
    }

    fn advance(&mut self, pass: &mut Pass) -> Result<Progress, Broken> {
        let at = self.behaviour.calls.advance.fetch_add(1, Relaxed) + 1;
        let _held = self
            .behaviour
            .hold
            .as_ref()
            .map(|hold| hold.lock().unwrap());
        if self.behaviour.panic_at == Some(at) {
            panic!("told to");
        }
        if self.behaviour.fail_at == Some(at) {
            return Err(Broken { at });
        }
        assert!(
            pass.lane == Lane::Decode || self.under_way[Lane::Decode as usize].is_none(),
            "streams wait for the window of the decode lane"
        );
        self.behaviour.calls.lanes[pass.lane as usize].fetch_add(1, Relaxed);
        if let Some(cost) = self.behaviour.cost {
            let took = cost(&Work {
                lane: pass.lane,
                rows: pass.rows.len(),
                position: pass.rows.iter().map(|row| row.position).max().unwrap(),
                layer: pass.layers,
            });
            let took = took.as_nanos() as u64;
            self.behaviour.calls.clock.fetch_add(took, Relaxed);
            if pass.lane == Lane::Prompt {
                let longest = &self.behaviour.calls.longest_slice;
                longest.fetch_max(took, Relaxed);
            }
        }
        // From the first layer on, what the pass touches is changed.
        for row in &pass.rows {
            let page = row.pages[row.position / PAGE_TOKENS];
            self.keys[page.0 as usize][row.position % PAGE_TOKENS] = row.token;
            if pass.layers == 0 {
                let state = &mut self.states[row.slot.0 as usize];
                state.hashes.push(absorb(state.hash(), row.token));
            }
        }
        pass.layers += 1;
        assert!(pass.layers <= self.capacity.layers, "a layer too many");
        Ok(match pass.layers == self.capacity.layers {
            true => Progress::Done,
            false => Progress::More,
        })
    }

    /// Mostly what the model will say.
    fn predict(
        &mut self,
        guesses: &[Guess<'_>],
        predicted: &mut Vec<(Slot, Token)>,
    ) -> Result<(), Broken> {
        assert!(self.capacity.predicts && self.under_way[Lane::Decode as usize].is_none());
        self.asked.clear();
        for guess in guesses {
            let state = &self.states[guess.slot.0 as usize];
            assert!(!state.torn && guess.position == state.hashes.len() + 1);
            assert!(guess.position + guess.depth - 1 <= guess.pages.len() * PAGE_TOKENS);
            let (mut hash, mut token) = (state.hash(), guess.token);
            let listed = u64::from(guess.among.is_some());
            for position in (guess.position..).take(guess.depth) {
                hash = absorb(hash, token);
                let wrong = u64::from(mix(hash ^ 77).is_multiple_of(3));
                self.tell(hash.wrapping_add(wrong), token, Ask::Logits, guess.among);
                let calls = &self.behaviour.calls;
                calls.listed.fetch_add(listed, Relaxed);
                if self.behaviour.cost.is_some() && self.capacity.frequent > 0 {
                    let took = [30_000, 5_000][listed as usize];
                    calls.clock.fetch_add(took, Relaxed);
                }
                let told = &self.asked.last().expect("it was told just now").logits;
                let scratch = &mut Scratch::default();
                let Ok(chosen) = guess.sampler.choose(told, position as u64, scratch) else {
                    break;
                };
                predicted.push((guess.slot, chosen));
                token = chosen;
                if guess.stop_tokens.contains(&chosen) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn withdraw(&mut self, pass: &mut Pass, slot: Slot) {
        let slots = self.under_way[pass.lane as usize].as_mut().unwrap();
        assert!(slots.contains(&slot), "{slot:?} has no rows in the pass");
        slots.retain(|other| *other != slot);
        pass.rows.retain(|row| row.slot != slot);
        self.states[slot.0 as usize].torn = true;
        self.behaviour.leave_at_withdraw.lock().unwrap().clear();
    }

    fn abandon(&mut self, pass: Pass) {
        assert!(pass.rows.is_empty(), "somebody waits for this pass");
        self.under_way[pass.lane as usize] = None;
    }

    fn finish(&mut self, pass: Pass) -> Result<(), Broken> {
        assert_eq!(pass.layers, self.capacity.layers, "a layer too few");
        self.under_way[pass.lane as usize] = None;
        self.asked.clear();
        let mut before = None;
        for (i, row) in pass.rows.iter().enumerate() {
            let hash = self.attend(row, before);
            let goes_on = pass
                .rows
                .get(i + 1)
                .is_some_and(|next| next.slot == row.slot);
            before = goes_on.then_some(hash);
            let state = &self.states[row.slot.0 as usize];
            assert!(
                goes_on || state.hash() == hash,
                "pages and state of {:?} disagree",
                row.slot
            );
            if let Some(ask) = row.ask {
                self.tell(hash, row.token, ask, None);
            }
        }
        Ok(())
    }

    /// Just what was asked, if there are candidates at all; else logits, which are always an answer.
    fn outcome(&mut self, row: usize) -> Result<Outcome<'_>, Broken> {
        if self.capacity.candidates == 0 || self.asked[row].ask == Ask::Logits {
            return self.logits(row).map(Outcome::Logits);
        }
        let asked = &self.asked[row];
        if !asked.logits.iter().all(|logit| logit.is_finite()) {
            return Ok(Outcome::NotFinite);
        }
        Ok(match asked.ask {
            Ask::Greedy => Outcome::Greedy(asked.ids[0]),
            _ => Outcome::Candidates(Candidates {
                ids: &asked.ids,
                logits: &asked.ranked,
                mass: asked
                    .logits
                    .iter()
                    .map(|l| f64::from(l - asked.ranked[0]).exp())
                    .sum(),
                vocab: VOCAB,
            }),
        })
    }

    fn logits(&mut self, row: usize) -> Result<&[f32], Broken> {
        self.behaviour.calls.logits.fetch_add(1, Relaxed);
        Ok(&self.asked[row].logits)
    }

    fn now(&self) -> Instant {
        match self.behaviour.cost {
            Some(_) => self.begun + Duration::from_nanos(self.behaviour.calls.clock.load(Relaxed)),
            None => Instant::now(),
        }
    }
}

/// How a request must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Finished(FinishReason),
    NotFinite { position: usize },
}

/// What a request must give, whatever else is going on: computed straight from its definition, without an engine.
pub(crate) fn solo(request: &Request, context: usize, behaviour: &Behaviour) -> (Vec<Token>, End) {
    let mut sampler = Sampler::new(&request.sampling, &request.prompt);
    let mut hash = request.prompt.iter().copied().fold(0, absorb);
    let mut tokens = Vec::new();
    let mut scratch = Scratch::default();
    loop {
        let position = request.prompt.len() + tokens.len();
        let last = *tokens.last().or(request.prompt.last()).unwrap();
        let row: Vec<f32> = logits(hash, last, behaviour).collect();
        let Ok(token) = sampler.choose(&row, position as u64, &mut scratch) else {
            return (
                tokens,
                End::NotFinite {
                    position: position - 1,
                },
            );
        };
        sampler.accept(token);
        if request.stop_tokens.contains(&token) {
            return (tokens, End::Finished(FinishReason::Stop));
        }
        tokens.push(token);
        if tokens.len() == request.max_tokens || position + 1 == context {
            return (tokens, End::Finished(FinishReason::Length));
        }
        hash = absorb(hash, token);
    }
}

/// Where a sequence has come to `hash` with the token `last`.
fn logits(hash: u64, last: Token, behaviour: &Behaviour) -> impl Iterator<Item = f32> {
    let poisoned = behaviour
        .poison
        .is_some_and(|poison| hash.is_multiple_of(poison));
    // one time in eight it does something else
    let habit = (behaviour.habits && !mix(hash).is_multiple_of(8))
        .then_some((u64::from(last) * 5 + 1) % VOCAB as u64);
    (0..VOCAB as u64).map(move |token| match poisoned && token == hash % 7 {
        true => f32::NAN,
        false if habit == Some(token) => 16.0,
        false => (mix(hash ^ mix(token)) >> 40) as f32 / (1 << 21) as f32,
    })
}

fn absorb(hash: u64, token: Token) -> u64 {
    mix(hash.wrapping_add(1) ^ u64::from(token).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// A bijection that scatters bits (MurmurHash3's finaliser).
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    z = (z ^ (z >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    z ^ (z >> 33)
}
