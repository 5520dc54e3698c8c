//! A model on a backend, driven without the engine.

use std::{path::Path, sync::Arc};

use tidegate::{
    backend::{Backend, Room, shape::KvType},
    cpu::backend::{Cpu, CpuSettings},
    engine::executor::{Ask, Executor, Lane, PAGE_TOKENS, PageId, Progress, Slot, Span},
    gguf::Gguf,
    model::{Runner, family, window::Window},
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
}

impl<B: Backend> Bare<B> {
    pub(crate) fn on(
        mut backend: B,
        path: &Path,
        slots: usize,
        positions: usize,
        kv_type: KvType,
    ) -> Self {
        let file = Arc::new(
            Gguf::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        );
        let model = family::load(&file, &mut backend)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let pages = positions.div_ceil(PAGE_TOKENS);
        let room = Room {
            rows: positions,
            decode_rows: positions,
            logits_rows: positions,
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

    /// Logits of all rows of one window, part after part.
    pub(crate) fn window(&mut self, lane: Lane, parts: &[Part<'_>], ask: Ask) -> &[f32] {
        let mut pass = self.begin(lane, parts, ask);
        while self.runner.advance(&mut pass).expect("computed") == Progress::More {}
        self.finish(pass)
    }

    /// A window of these parts, every row asked. A part at 0 begins its sequence anew.
    pub(crate) fn begin(&mut self, lane: Lane, parts: &[Part<'_>], ask: Ask) -> Window<B> {
        let pages = |slot: usize| {
            let pages = slot * self.pages..(slot + 1) * self.pages;
            pages.map(|page| PageId(page as u32)).collect::<Vec<_>>()
        };
        let pages: Vec<_> = parts.iter().map(|part| pages(part.slot)).collect();
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
