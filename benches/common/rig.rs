//! A model on a backend, driven without engine and HTTP: windows of made-up tokens.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate::{
    backend::{Room, shape::KvType},
    engine::executor::{
        Ask, Capacity, Executor, Lane, Outcome, PAGE_TOKENS, PageId, Progress, Slot, Span,
    },
    engine::request::Sampling,
    gguf::Gguf,
    model::{Runner, family},
    sampler::{Sampler, Scratch},
};

use super::{Common, Failure, Machine, account::Account};

/// A model with its caches.
pub(crate) struct Rig<B: Machine> {
    pub(crate) runner: Runner<B>,
    pub(crate) account: Account,
    /// Prompt rows of a window.
    pub(crate) chunk: usize,
    vocab: u32,
    /// Takes the likeliest token.
    sampler: (Sampler, Scratch),
}

/// When the parts of a window were over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Everything was enqueued, or computed where nothing is enqueued.
    pub(crate) launched: Instant,
    /// Everything was computed.
    pub(crate) settled: Instant,
}

impl<B: Machine> Rig<B> {
    /// Loads the model, with room for so many sequences of so many positions.
    pub(crate) fn load(
        common: &Common,
        file: &Arc<Gguf>,
        mut backend: B,
        sequences: usize,
        positions: usize,
    ) -> Result<Self, Failure> {
        let model = family::load(file, &mut backend)?;
        let chunk = common.chunk_rows.unwrap_or(B::CHUNK_ROWS).min(positions);
        let room = Room {
            rows: chunk.max(sequences),
            decode_rows: sequences,
            logits_rows: sequences,
            slots: sequences,
            pages: sequences * positions.div_ceil(PAGE_TOKENS),
            kv_type: KvType::F16,
        };
        let needs = model.needs().clone();
        let runner = Runner::new(model, backend, room, positions)?;
        let Capacity { layers, vocab, .. } = runner.capacity();
        let greedy = Sampling {
            temperature: 0.0,
            ..Sampling::default()
        };
        Ok(Self {
            account: Account::new::<B>(file, &needs, layers, room.kv_type),
            runner,
            chunk,
            vocab: vocab as u32,
            sampler: (Sampler::new(&greedy, &[]), Scratch::default()),
        })
    }

    pub(crate) fn backend(&self) -> &B {
        self.runner.backend()
    }

    /// Fixed pseudo-random tokens, different for every stream.
    pub(crate) fn prompt(&self, stream: usize, count: usize) -> Vec<u32> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(stream as u64 + 1);
        (0..count)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                ((state >> 33) as u32) % self.vocab
            })
            .collect()
    }

    /// The pages of a slot.
    pub(crate) fn pages(&self, slot: usize) -> Vec<PageId> {
        let Capacity { pages, slots, .. } = self.runner.capacity();
        (slot * pages / slots..(slot + 1) * pages / slots)
            .map(|page| PageId(page as u32))
            .collect()
    }

    /// Computes a window; the likeliest token of every row that is asked goes to `next`. After each slice `between` is called. When it has begun, `ahead` is told: tokens
    /// that will follow the first span.
    pub(crate) fn window(
        &mut self,
        lane: Lane,
        (spans, ahead): (&[Span<'_>], &[u32]),
        next: &mut Vec<u32>,
        mut between: impl FnMut(&B) -> Result<(), Failure>,
    ) -> Result<Times, Failure> {
        let mut pass = self.runner.begin(lane, spans)?;
        if let Some(span) = spans.first().filter(|_| !ahead.is_empty()) {
            let behind = span.first as usize + span.tokens.len();
            self.runner.ahead(span.slot, behind, ahead);
        }
        loop {
            let progress = self.runner.advance(&mut pass)?;
            between(self.runner.backend())?;
            if progress == Progress::Done {
                break;
            }
        }
        let launched = Instant::now();
        self.runner.finish(pass)?;
        let settled = Instant::now();
        next.clear();
        for row in 0..spans.iter().map(|span| span.logits).sum() {
            next.push(match self.runner.outcome(row)? {
                Outcome::Greedy(token) => token,
                Outcome::Candidates(candidates) => candidates.ids[0],
                Outcome::Logits(logits) => self.sampler.0.choose(logits, 0, &mut self.sampler.1)?,
                Outcome::NotFinite => return Err("logits are not finite".into()),
            });
        }
        Ok(Times { launched, settled })
    }

    /// Reads the first positions of a sequence, `chunk` rows a window; the token that follows.
    pub(crate) fn read(
        &mut self,
        slot: usize,
        tokens: &[u32],
        chunk: usize,
    ) -> Result<u32, Failure> {
        let pages = self.pages(slot);
        self.runner.reset(Slot(slot as u32));
        let mut next = Vec::new();
        let mut first = 0;
        for part in tokens.chunks(chunk) {
            let last = first + part.len() == tokens.len();
            let span = Span {
                slot: Slot(slot as u32),
                first: first as u32,
                tokens: part,
                pages: &pages,
                logits: usize::from(last),
                ask: Ask::Greedy,
                drafts: 0,
            };
            first += part.len();
            let ahead = &tokens[first..tokens.len().min(first + chunk)];
            self.window(Lane::Prompt, (&[span], ahead), &mut next, |_| Ok(()))?;
        }
        Ok(next[0])
    }
}

/// Of several times: the least, the median, the greatest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) least: Duration,
    pub(crate) median: Duration,
    pub(crate) greatest: Duration,
}

impl Spread {
    /// Of at least one; of many the least and the greatest tenth are left out of the ends.
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let tenth = times.len() / 10;
        Self {
            least: times[tenth],
            median: times[times.len() / 2],
            greatest: times[times.len() - 1 - tenth],
        }
    }
}

/// Processor time of this process so far.
pub(crate) fn processor_time() -> Duration {
    // SAFETY: plain numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes the struct.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}
