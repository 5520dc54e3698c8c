//! A model on the CPU, driven without the engine.

use std::{path::Path, sync::Arc};

use tidegate::{
    backend::{Room, shape::KvType},
    cpu::backend::{Cpu, CpuSettings},
    engine::executor::{Executor, PAGE_TOKENS, PageId, Progress, Slot, Span},
    gguf::Gguf,
    model::{Runner, family},
};

/// A model with room for `slots` sequences of `positions` each.
pub(crate) struct Bare {
    runner: Runner<Cpu>,
    /// Pages of a slot.
    pages: usize,
}

impl Bare {
    pub(crate) fn open(
        path: &Path,
        slots: usize,
        positions: usize,
        threads: usize,
        kv_type: KvType,
    ) -> Self {
        let file = Arc::new(
            Gguf::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        );
        let mut backend = Cpu::new(CpuSettings {
            threads: Some(threads),
        });
        let model = family::load(&file, &mut backend)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let pages = positions.div_ceil(PAGE_TOKENS);
        let room = Room {
            rows: positions,
            logits_rows: positions,
            slots,
            pages: slots * pages,
            kv_type,
        };
        let Ok(runner) = Runner::new(model, backend, room, positions);
        Self { runner, pages }
    }

    pub(crate) fn vocab(&self) -> usize {
        self.runner.capacity().vocab
    }

    /// Logits of the rows `first ..` of one sequence, `[tokens, vocab] f32`. Rows at 0 begin the sequence anew.
    pub(crate) fn rows(&mut self, slot: usize, first: usize, tokens: &[u32]) -> &[f32] {
        let pages: Vec<_> = (0..self.pages)
            .map(|page| PageId((slot * self.pages + page) as u32))
            .collect();
        let slot = Slot(slot as u32);
        if first == 0 {
            self.runner.reset(slot);
        }
        let span = Span {
            slot,
            first: first as u32,
            tokens,
            pages: &pages,
            logits: tokens.len(),
        };
        let Ok(mut pass) = self.runner.begin(&[span]);
        while self.runner.advance(&mut pass) == Ok(Progress::More) {}
        let Ok(logits) = self.runner.finish(pass);
        logits
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
