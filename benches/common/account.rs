//! What windows of a model must read and compute at the least, from its file alone.

use tidegate::{
    backend::{Backend, Needs, shape::KvType},
    cuda::device_bytes,
    engine::executor::PAGE_TOKENS,
    gguf::{Gguf, Tensor},
};

/// Bytes and operations of a model's parts.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// Weights that every window reads, the output head included. **Units**: bytes.
    pub(crate) dense_bytes: u64,
    /// One expert of each layer that has some. **Units**: bytes.
    pub(crate) expert_bytes: Vec<Option<u64>>,
    /// A row of the embedding. **Units**: bytes.
    pub(crate) embedding_bytes: u64,
    /// Keys and values of a position, all layers together. **Units**: bytes.
    pub(crate) position_bytes: u64,
    /// Recurrent states of a sequence, all layers together. **Units**: bytes.
    pub(crate) state_bytes: u64,
    /// Weights that a row is multiplied with, the head aside.
    pub(crate) active: u64,
    /// Weights of the head.
    pub(crate) head: u64,
    /// Operations that attention needs for a row and a position it looks at, all layers together.
    pub(crate) attention_ops: u64,
    /// Layers with attention, and with a recurrent state.
    pub(crate) attention_layers: usize,
    pub(crate) state_layers: usize,
    /// Experts that a row uses in a layer.
    pub(crate) experts_used: usize,
}

/// The layer that a tensor belongs to.
fn layer(tensor: &Tensor) -> Option<usize> {
    let rest = tensor.name.strip_prefix("blk.")?;
    rest.split_once('.')?.0.parse().ok()
}

impl Account {
    /// Of a model with `layers` layers in its trunk, as backend `B` keeps it.
    pub(crate) fn new<B: Backend>(file: &Gguf, needs: &Needs, layers: usize, kv: KvType) -> Self {
        let on_device = B::NAME == "cuda";
        let bytes = |tensor: &Tensor| {
            if on_device {
                device_bytes(tensor)
            } else {
                tensor.bytes as u64
            }
        };
        let embedding = file.tensor("token_embd.weight").expect("a model has it");
        let output = file.tensor("output.weight").unwrap_or(embedding);
        let mut account = Self {
            dense_bytes: bytes(output),
            expert_bytes: vec![None; layers],
            embedding_bytes: bytes(embedding) / needs.vocab.max(1) as u64,
            position_bytes: needs
                .attention
                .iter()
                .map(|shape| (B::page_bytes(&shape.kv, kv) / PAGE_TOKENS) as u64)
                .sum(),
            state_bytes: needs
                .delta
                .iter()
                .map(|shape| 4 * (shape.v_heads * shape.k_dim * shape.v_dim) as u64)
                .sum(),
            active: 0,
            head: output.values() as u64,
            attention_ops: needs
                .attention
                .iter()
                .map(|shape| 4 * (shape.heads * shape.kv.head_dim) as u64)
                .sum(),
            attention_layers: needs.attention.len(),
            state_layers: needs.delta.len(),
            experts_used: needs.experts_used,
        };
        for tensor in file.tensors() {
            match layer(tensor) {
                Some(at) if at < layers => account.add(tensor, at, bytes(tensor), needs),
                _ => {}
            }
        }
        account
    }

    fn add(&mut self, tensor: &Tensor, layer: usize, bytes: u64, needs: &Needs) {
        let [_, rows, experts, _] = tensor.dims.padded();
        if tensor.name.contains("_exps.") {
            *self.expert_bytes[layer].get_or_insert(0) += bytes / experts as u64;
            self.active += (tensor.values() / experts * needs.experts_used) as u64;
            return;
        }
        self.dense_bytes += bytes;
        if rows > 1 {
            self.active += tensor.values() as u64;
        }
    }

    /// **Units**: bytes. What a window of one row for each of `sequences` reads at the least, if `context` positions of each are there, its own included,
    /// and it reads so many experts of each layer.
    pub(crate) fn decode_bytes(&self, sequences: usize, context: usize, experts: &[usize]) -> u64 {
        let routed: u64 = self
            .expert_bytes
            .iter()
            .zip(experts)
            .map(|(bytes, count)| bytes.unwrap_or(0) * *count as u64)
            .sum();
        let each = self.embedding_bytes + self.state_bytes + self.position_bytes * context as u64;
        self.dense_bytes + routed + sequences as u64 * each
    }

    /// Operations of a prompt, of which the last position has logits: two for every weight that a position is multiplied with, and attention's.
    pub(crate) fn prompt_ops(&self, tokens: usize) -> u64 {
        let tokens = tokens as u64;
        let looks = tokens * (tokens + 1) / 2;
        2 * (tokens * self.active + self.head) + self.attention_ops * looks
    }
}
