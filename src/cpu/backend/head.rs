//! The head: logits of the whole vocabulary, or of few tokens.

use super::{
    Cpu, Matrix,
    products::{Part, run_parts},
};
use crate::{
    backend::{Act, HeadNorm},
    cpu::{
        kernels::{Matmul, OutRows, matmul},
        math,
        pool::Disjoint,
    },
    engine::{executor::UNLISTED, request::Token},
    model::window::Window,
};

/// Scattered tokens of a task: as many as a kernel's panel has outputs.
const GATHERED: usize = 32;

/// Room for logits of scattered tokens.
#[derive(Default)]
pub(super) struct Listed {
    /// `[workers]`: weights of a task's tokens, row after row, so that they are neighbours while they are multiplied.
    weights: Vec<Vec<u8>>,
    /// Logits of one row's tokens.
    logits: Vec<f32>,
}

impl Cpu {
    /// `Normed` = what the head reads of each row that is asked.
    pub(super) fn normed(&mut self, window: &Window<Self>, norm: HeadNorm<'_, Self>) {
        let (isa, width, count) = (self.isa, self.width, window.rows().logits().len());
        self.cold_windows = self.cold_windows.saturating_sub(1);
        match norm {
            HeadNorm::Rms(weight, eps) => {
                let normed = self.acts.rows_mut(Act::Normed, count, width);
                for (out, row) in normed.chunks_exact_mut(width).zip(window.rows().logits()) {
                    let row = &window.residual()[*row as usize * width..][..width];
                    math::rms_norm_into(isa, row, weight, eps, out);
                }
            }
            HeadNorm::Streams(weights) if count > 0 => {
                self.gather_streams(window, Some(window.rows().logits()), weights);
            }
            HeadNorm::Streams(_) => {}
        }
    }

    /// Logits of all tokens for the first `count` rows of `Normed`.
    pub(super) fn whole_head(&mut self, count: usize, output: &Matrix, softcap: Option<f32>) {
        let mut logits = std::mem::take(&mut self.logits);
        self.quantise(count, Act::Normed, self.width, &[output.kind()]);
        self.product_into(output, count, &mut logits);
        if let Some(cap) = softcap {
            let (isa, vocab) = (self.isa, self.vocab);
            let logits = &mut logits[..count * vocab];
            Self::each_row(&self.pool, logits, vocab, 8 * vocab, |_, row| {
                math::softcap(isa, row, cap);
            });
        }
        self.logits = logits;
    }

    /// Logits of the first rows of `Normed`, one for each of `among`: of the first tokens and of those that it names, or of all.
    pub(super) fn listed_head(
        &mut self,
        [output, frequent]: [&Matrix; 2],
        softcap: Option<f32>,
        among: &[Option<&[Token]>],
    ) {
        let (isa, vocab) = (self.isa, self.vocab);
        let mut logits = std::mem::take(&mut self.logits);
        self.quantise(among.len(), Act::Normed, self.width, &[output.kind()]);
        let rows = |listed: bool| -> Vec<u32> {
            let rows = (0..).zip(among).filter(|(_, of)| of.is_some() == listed);
            rows.map(|(row, _)| row).collect()
        };
        let (whole_rows, listed_rows) = (rows(false), rows(true));
        let all = OutRows::new(&mut logits[..among.len() * vocab], vocab);
        // SAFETY: the two products have different rows.
        let others = unsafe { all.share() };
        let workers = self.pool.workers();
        let parts = [
            Part::new(output, &whole_rows, all.placed(&whole_rows), workers),
            Part::new(frequent, &listed_rows, others.placed(&listed_rows), workers),
        ]
        .map(Some);
        self.moved_bytes += parts.iter().flatten().map(Part::weight_bytes).sum::<u64>();
        run_parts(&self.pool, isa, &self.quantised, &mut self.scratch, &parts);

        for (row, among) in (0..).zip(among) {
            let logits = &mut logits[row as usize * vocab..][..vocab];
            let Some(among) = among else {
                if let Some(cap) = softcap {
                    math::softcap(isa, logits, cap);
                }
                continue;
            };
            let (first, others) = logits.split_at_mut(frequent.outputs());
            others.fill(UNLISTED);
            let own = self.gathered(output, row, among);
            if let Some(cap) = softcap {
                math::softcap(isa, first, cap);
                math::softcap(isa, own, cap);
            }
            for (token, logit) in among.iter().zip(own) {
                logits[*token as usize] = *logit;
            }
        }
        self.logits = logits;
    }

    /// Logits of these tokens for one row, which is quantised already.
    fn gathered(&mut self, output: &Matrix, row: u32, tokens: &[Token]) -> &mut [f32] {
        let (isa, quantised, rows) = (self.isa, &self.quantised, [row]);
        let Listed { weights, logits } = &mut self.listed;
        logits.resize(logits.len().max(tokens.len()), 0.0);
        let logits = &mut logits[..tokens.len()];
        weights.resize_with(self.pool.workers(), Vec::new);
        let (weights, scratch) = (Disjoint::new(weights), Disjoint::new(&mut self.scratch));
        self.pool.split(logits, GATHERED, |task, out, worker| {
            // SAFETY: a worker runs one task at a time, so what it has for itself has one user.
            let weights = unsafe { &mut weights.nth(worker, 1)[0] };
            // SAFETY: likewise.
            let scratch = unsafe { &mut scratch.nth(worker, 1)[0] };
            weights.clear();
            for token in &tokens[task * GATHERED..][..out.len()] {
                weights.extend_from_slice(output.row(*token as usize));
            }
            let outputs = out.len();
            let job = Matmul {
                ty: output.ty(),
                weights,
                k: output.inputs(),
                outputs: 0..outputs,
                acts: quantised.form(output.kind()),
                rows: &rows,
                out: OutRows::new(out, outputs),
            };
            matmul(isa, &job, scratch);
        });
        self.moved_bytes += (tokens.len() * output.row(0).len()) as u64;
        logits
    }
}
