//! Prediction blocks whose guesses are right with a chosen chance.
//!
//! Layers add little to an embedding, so the head decides what a model says: here it is a copy of the embeddings, one row further, and what follows token `t` is `t + 1`,
//! whatever came before. The prediction block passes on the embedding of the token that it is told, from a table of its own; wherever it shall be wrong, that
//! table has the embedding of another token. So each guess is right with the chosen chance, and independent of the others. Everything is computed as in a file
//! with trained weights, and hidden states and the experts they choose differ from token to token.

use half::f16;

use super::plan::{Fill, Plan, PlannedTensor, planned};
use super::random::Random;
use super::write::{Chunk, Job, SEED};
use super::{Blueprint, SynthError};
use crate::quant::BlockType;

/// How far the token of a wrong row is from its own.
const WRONG_BY: usize = 2;

impl Plan {
    /// The same with a prediction block whose guesses are right with this chance, each by itself if those before it are. The embedding has the head's type.
    ///
    /// **Errors**: [`SynthError::Acceptance`], [`SynthError::NoPrediction`].
    pub fn predicting(mut self, acceptance: f32) -> Result<Self, SynthError> {
        if !(0.0..=1.0).contains(&acceptance) {
            return Err(SynthError::Acceptance { got: acceptance });
        }
        if !self.model.predicts() {
            let able = Blueprint::ALL.iter().filter(|model| model.predicts());
            return Err(SynthError::NoPrediction {
                model: self.model.name,
                allowed: able.map(|model| model.name).collect::<Vec<_>>().join(", "),
            });
        }
        let head = "output.weight";
        let head = self.tensors.iter_mut().find(|tensor| tensor.name == head);
        let head = head.map(|tensor| {
            tensor.fill = Fill::Successors;
            tensor.ty
        });
        self.tensors[0].ty = head.unwrap_or(self.tensors[0].ty);
        let embeddings = self.tensors[0].ty;
        for (name, dims) in self.model.prediction_tensors(self.layers) {
            let mut tensor = planned(&self.model, self.layers, self.mix, name, dims);
            if tensor.name.ends_with("nextn.eh_proj.weight") {
                (tensor.ty, tensor.fill) = (BlockType::Q8_0, Fill::FirstHalf);
            }
            if tensor.name.ends_with("nextn.embed_tokens.weight") {
                let right = acceptance;
                (tensor.ty, tensor.fill) = (embeddings, Fill::Mistaken { right });
            }
            self.tensors.push(tensor);
        }
        self.predicting = 1;
        Ok(self)
    }
}

impl Job<'_> {
    /// Rows of a head after which token `t + 1` follows token `t`.
    pub(super) fn successors(&self, head: &PlannedTensor, chunk: &Chunk, buffer: &mut Vec<u8>) {
        let tokens = head.dims[1];
        self.embeddings_of(chunk, |token| (token + tokens - 1) % tokens, buffer);
    }

    /// Rows of embeddings, some of which are those of other tokens.
    pub(super) fn mistaken(
        &self,
        table: &PlannedTensor,
        chunk: &Chunk,
        right: f32,
        buffer: &mut Vec<u8>,
    ) {
        let tokens = table.dims[1];
        let of = |token| match Random::new(!SEED, token as u64).unit() < right {
            true => token,
            false => (token + WRONG_BY) % tokens,
        };
        self.embeddings_of(chunk, of, buffer);
    }

    /// For each row of a chunk the embedding of the token that `of` names. Chunks of embeddings are made anew for that: `of` should name neighbours.
    fn embeddings_of(&self, chunk: &Chunk, of: impl Fn(usize) -> usize, buffer: &mut Vec<u8>) {
        // the embeddings are the first tensor, and their chunks the first
        let row_bytes = self.plan.tensors[0].row_bytes();
        let rows = self.chunks[0].rows;
        let (mut at_hand, mut embeddings) = (None, Vec::new());
        for token in (chunk.first..chunk.first + chunk.rows).map(of) {
            let of = token / rows;
            if at_hand != Some(of) {
                self.fill(of, &mut embeddings);
                at_hand = Some(of);
            }
            buffer.extend_from_slice(&embeddings[token % rows * row_bytes..][..row_bytes]);
        }
    }
}

/// Rows of a projection, as Q8_0, that is 1 where input and output are the same channel.
pub(super) fn first_half(projection: &PlannedTensor, chunk: &Chunk, buffer: &mut Vec<u8>) {
    let (values, bytes) = (projection.ty.block_values(), projection.ty.block_bytes());
    let scale = f16::from_f32(1.0 / 127.0).to_le_bytes();
    for row in chunk.first..chunk.first + chunk.rows {
        let start = buffer.len();
        buffer.resize(start + projection.row_bytes(), 0);
        let block = &mut buffer[start + row / values * bytes..][..bytes];
        block[..2].copy_from_slice(&scale);
        block[2 + row % values] = 127;
    }
}
