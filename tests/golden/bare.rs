//! A model on a backend, driven without the engine.

use std::{path::Path, sync::Arc};

use tidegate::{
    backend::{Backend, Room, shape::KvType},
    cpu::backend::{Cpu, CpuSettings},
    engine::{
        executor::{Ask, Executor, Guess, Lane, PAGE_TOKENS, PageId, Progress, Slot, Span},
        request::Sampling,
    },
    gguf::Gguf,
    model::{Runner, family, window::Window},
    sampler::Sampler,
};

/// A model with room for `slots` sequences of `positions` each.
pub(crate) struct Bare<B: Backend = Cpu> {
    pub(crate) runner: Runner<B>,
    /// Pages of a slot.
    pages: usize,
    /// Of the last rows.
    logits: Vec<f32>,
}

/// Rows `first ..` of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) slot: usize,
    pub(crate) first: usize,
    pub(crate) tokens: &'a [u32],
}

impl Bare {
    /// On the CPU.
    pub(crate) fn open(
        path: &Path,
        slots: usize,
        positions: usize,
        threads: usize,
        kv_type: KvType,
    ) -> Self {
        let backend = Cpu::new(CpuSettings {
            threads: Some(threads),
        });
        Self::on(backend, path, slots, positions, kv_type)
    }

    /// On the CPU, for windows of up to `rows` rows.
    pub(crate) fn with_rows(path: &Path, slots: usize, positions: usize, rows: usize) -> Self {
        let backend = Cpu::new(CpuSettings { threads: Some(2) });
        Self::sized(backend, path, slots, (positions, rows), KvType::F32)
    }
}

impl<B: Backend> Bare<B> {
    pub(crate) fn on(
        backend: B,
        path: &Path,
        slots: usize,
        positions: usize,
        kv_type: KvType,
    ) -> Self {
        Self::sized(backend, path, slots, (positions, positions), kv_type)
    }

    fn sized(
        backend: B,
        path: &Path,
        slots: usize,
        (positions, rows): (usize, usize),
        kv_type: KvType,
    ) -> Self {
        let file = Arc::new(
            Gguf::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        );
        Self::of(backend, &file, slots, (positions, rows), kv_type)
    }

    /// A file that is open already, for windows of up to so many rows.
    pub(crate) fn of(
        mut backend: B,
        file: &Arc<Gguf>,
        slots: usize,
        (positions, rows): (usize, usize),
        kv_type: KvType,
    ) -> Self {
        let model = family::load(file, &mut backend)
            .unwrap_or_else(|error| panic!("{}: {error}", file.path().display()));
        let pages = positions.div_ceil(PAGE_TOKENS);
        let room = Room {
            rows,
            decode_rows: rows,
            logits_rows: rows,
            slots,
            pages: slots * pages,
            kv_type,
        };
        let runner = Runner::new(model, backend, room, positions).expect("room");
        Self {
            runner,
            pages,
            logits: Vec::new(),
        }
    }

    pub(crate) fn vocab(&self) -> usize {
        self.runner.capacity().vocab
    }

    /// Logits of the rows of one sequence, `[tokens, vocab] f32`. Rows at 0 begin the sequence anew; a single row goes with those that decode.
    pub(crate) fn rows(&mut self, slot: usize, first: usize, tokens: &[u32]) -> &[f32] {
        let lane = if tokens.len() == 1 {
            Lane::Decode
        } else {
            Lane::Prompt
        };
        self.window(
            lane,
            &[Part {
                slot,
                first,
                tokens,
            }],
            Ask::Logits,
        )
    }

    /// Logits of a token and of guesses behind it, of which then only the first `right` stay.
    pub(crate) fn guesses(
        &mut self,
        slot: usize,
        first: usize,
        tokens: &[u32],
        right: usize,
    ) -> &[f32] {
        let part = Part {
            slot,
            first,
            tokens,
        };
        self.compute(Lane::Decode, &[part], Ask::Logits, tokens.len() - 1);
        if right + 1 < tokens.len() {
            let wrong = tokens.len() - 1 - right;
            self.runner.cut(Slot(slot as u32), wrong);
        }
        &self.logits
    }

    /// Logits at every position, read in windows whose last rows were wrong guesses.
    pub(crate) fn guessed(&mut self, slot: usize, tokens: &[u32]) -> Vec<f32> {
        let vocab = self.vocab();
        let (mut at, mut all) = (0, Vec::new());
        for (rows, wrong) in [(1, 0), (5, 4), (9, 5), (3, 0), (2, 1), (9, 8)]
            .iter()
            .cycle()
        {
            let rows = tokens.len().min(at + rows) - at;
            let wrong = rows.saturating_sub(1).min(*wrong);
            let mut guessed = tokens[at..at + rows].to_vec();
            for token in &mut guessed[rows - wrong..] {
                *token = (*token + 1) % vocab as u32;
            }
            let logits = self.guesses(slot, at, &guessed, rows - 1 - wrong);
            all.extend_from_slice(&logits[..(rows - wrong) * vocab]);
            at += rows - wrong;
            if at == tokens.len() {
                break;
            }
        }
        all
    }

    /// The likeliest tokens that the prediction block says, one after the other, after a token at this position, and the logits of the last.
    pub(crate) fn predict(
        &mut self,
        slot: usize,
        (at, token): (usize, u32),
        depth: usize,
    ) -> (Vec<u32>, &[f32]) {
        let (mut tokens, logits) = self.predictions(&[(slot, (at, token), None)], depth);
        (tokens.swap_remove(0), logits)
    }

    /// The same after tokens of several slots, each among a shortlist's tokens or all.
    pub(crate) fn predictions(
        &mut self,
        after: &[(usize, (usize, u32), Option<&[u32]>)],
        depth: usize,
    ) -> (Vec<Vec<u32>>, &[f32]) {
        let greedy = Sampling {
            temperature: 0.0,
            ..Sampling::default()
        };
        let sampler = Sampler::new(&greedy, &[]);
        let pages: Vec<_> = after
            .iter()
            .map(|(slot, ..)| self.pages_of(*slot))
            .collect();
        let guesses = after.iter().zip(&pages);
        let guesses: Vec<_> = guesses
            .map(|((slot, (at, token), among), pages)| Guess {
                slot: Slot(*slot as u32),
                token: *token,
                position: at + 1,
                depth,
                pages,
                sampler: &sampler,
                stop_tokens: &[],
                among: *among,
            })
            .collect();
        let mut predicted = Vec::new();
        let outcome = self.runner.predict(&guesses, &mut predicted);
        outcome.expect("predicted");
        let of = |slot: usize| {
            predicted
                .iter()
                .filter(move |(of, _)| of.0 as usize == slot)
        };
        let tokens = |(slot, ..): &(usize, _, _)| of(*slot).map(|(_, token)| *token).collect();
        let tokens = after.iter().map(tokens).collect();
        self.logits.clear();
        for row in 0..guesses.len() {
            let logits = self.runner.logits(row).expect("logits");
            self.logits.extend_from_slice(logits);
        }
        (tokens, &self.logits)
    }

    pub(crate) fn pages_of(&self, slot: usize) -> Vec<PageId> {
        let pages = slot * self.pages..(slot + 1) * self.pages;
        pages.map(|page| PageId(page as u32)).collect()
    }

    /// Logits of all rows of one window, part after part.
    pub(crate) fn window(&mut self, lane: Lane, parts: &[Part<'_>], ask: Ask) -> &[f32] {
        self.compute(lane, parts, ask, 0)
    }

    fn compute(&mut self, lane: Lane, parts: &[Part<'_>], ask: Ask, drafts: usize) -> &[f32] {
        let mut pass = self.begin(lane, parts, ask, drafts);
        while self.runner.advance(&mut pass).expect("computed") == Progress::More {}
        self.finish(pass)
    }

    /// A window of these parts, every row asked; the last `drafts` rows of each are guesses. A part at 0 begins its sequence anew.
    pub(crate) fn begin(
        &mut self,
        lane: Lane,
        parts: &[Part<'_>],
        ask: Ask,
        drafts: usize,
    ) -> Window<B> {
        let pages: Vec<_> = parts.iter().map(|part| self.pages_of(part.slot)).collect();
        let spans: Vec<_> = parts
            .iter()
            .zip(&pages)
            .map(|(part, pages)| Span {
                slot: Slot(part.slot as u32),
                first: part.first as u32,
                tokens: part.tokens,
                pages,
                logits: part.tokens.len(),
                ask,
                drafts,
            })
            .collect();
        for span in spans.iter().filter(|span| span.first == 0) {
            self.runner.reset(span.slot);
        }
        self.runner.begin(lane, &spans).expect("begun")
    }

    /// Logits of the rows of a pass whose layers are done.
    pub(crate) fn finish(&mut self, pass: Window<B>) -> &[f32] {
        let rows = pass.rows().count();
        self.runner.finish(pass).expect("finished");
        self.logits.clear();
        for row in 0..rows {
            let logits = self.runner.logits(row).expect("logits");
            self.logits.extend_from_slice(logits);
        }
        &self.logits
    }

    /// Logits at every position, read in chunks of these sizes (repeated).
    pub(crate) fn chunked(&mut self, slot: usize, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
        let (mut at, mut all) = (0, Vec::new());
        for chunk in chunks.iter().cycle() {
            let part = &tokens[at..tokens.len().min(at + chunk)];
            all.extend_from_slice(self.rows(slot, at, part));
            at += part.len();
            if at == tokens.len() {
                break;
            }
        }
        all
    }

    /// Greedy tokens after a prompt, until `stop` or `max`.
    pub(crate) fn greedy(&mut self, prompt: &[u32], stop: u32, max: usize) -> Vec<u32> {
        let vocab = self.vocab();
        let mut out = Vec::new();
        let mut next = argmax(
            self.rows(0, 0, prompt)
                .rchunks(vocab)
                .next()
                .expect("a row"),
        );
        while out.len() < max {
            out.push(next);
            if next == stop {
                break;
            }
            next = argmax(self.rows(0, prompt.len() + out.len() - 1, &[next]));
        }
        out
    }
}

/// The largest logit, the lower id first.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let best = logits
        .iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (id, logit)| {
            if *logit > best.1 { (id, *logit) } else { best }
        });
    best.0 as u32
}
