//! Weight matrices where the file is mapped.

use std::{ops::Range, sync::Arc};

use crate::{
    backend::{ExpertSource, MatrixSource},
    cpu::{kernels::ActKind, store::Home},
    gguf::{Advice, Gguf, Tensor},
    quant::BlockType,
};

/// `outputs` rows of `inputs` values of one tensor.
#[derive(Clone)]
pub struct Matrix {
    file: Arc<Gguf>,
    tensor: Tensor,
    inputs: usize,
    outputs: usize,
    bytes: Range<usize>,
}

impl Matrix {
    pub(super) fn new(file: Arc<Gguf>, source: MatrixSource) -> Self {
        let row_bytes = source.tensor.row_bytes();
        let bytes = source.rows.start * row_bytes..source.rows.end * row_bytes;
        // every row of every window reads it: the system may as well fetch it now, in large pieces. Only advice, so failing is no harm
        let _ = file.advise(&source.tensor, bytes.clone(), Advice::WillNeed);
        Self {
            file,
            tensor: source.tensor,
            inputs: source.inputs,
            outputs: source.rows.len(),
            bytes,
        }
    }

    /// Element type.
    pub fn ty(&self) -> BlockType {
        self.tensor.ty
    }

    /// The form its kernels want activations in.
    pub fn kind(&self) -> ActKind {
        ActKind::of(self.tensor.ty)
    }

    /// Values of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Rows.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// All rows, `[outputs]` of the type's blocks.
    pub fn bytes(&self) -> &[u8] {
        &self.file.bytes(&self.tensor)[self.bytes.clone()]
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[u8] {
        let row_bytes = self.tensor.row_bytes();
        &self.bytes()[row * row_bytes..][..row_bytes]
    }
}

/// The same matrix of every expert of a layer.
pub struct Experts {
    file: Arc<Gguf>,
    tensors: Vec<Tensor>,
    /// `[experts]`: which tensor, and where in it. **Units**: bytes.
    at: Vec<(usize, usize)>,
    inputs: usize,
    outputs: usize,
    bytes: usize,
    /// Which of the trunk's layers with experts they are of.
    layer: Option<usize>,
    /// Where they have a place in memory of their own, if they have.
    home: Option<Home>,
}

impl Experts {
    pub(super) fn new(file: Arc<Gguf>, source: ExpertSource, home: Option<Home>) -> Self {
        let first = &source.experts[0];
        let (inputs, outputs, row_bytes) =
            (first.inputs, first.rows.len(), first.tensor.row_bytes());
        let mut tensors: Vec<Tensor> = Vec::new();
        let mut at = Vec::with_capacity(source.experts.len());
        for expert in source.experts {
            let start = expert.rows.start * row_bytes;
            if tensors.last() != Some(&expert.tensor) {
                tensors.push(expert.tensor);
            }
            at.push((tensors.len() - 1, start));
        }
        Self {
            file,
            tensors,
            at,
            inputs,
            outputs,
            bytes: outputs * row_bytes,
            layer: source.layer,
            home,
        }
    }

    /// Element type.
    pub fn ty(&self) -> BlockType {
        self.tensors[0].ty
    }

    /// The form its kernels want activations in.
    pub fn kind(&self) -> ActKind {
        ActKind::of(self.ty())
    }

    /// Values of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Rows of one expert.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Asks the system to fetch one expert from disk, in one piece, if it is not in memory. Only advice, so failing is no harm.
    pub(super) fn fetch(&self, expert: usize) {
        let (tensor, start) = self.at[expert];
        let bytes = start..start + self.bytes;
        let _ = self
            .file
            .advise(&self.tensors[tensor], bytes, Advice::WillNeed);
    }

    /// Which of the trunk's layers with experts they are of.
    pub(super) fn layer(&self) -> Option<usize> {
        self.layer
    }

    /// Where they have a place in memory of their own.
    pub(super) fn home(&self) -> Option<Home> {
        self.home
    }

    /// All rows of one expert, in the mapped file.
    pub fn bytes(&self, expert: usize) -> &[u8] {
        let (tensor, start) = self.at[expert];
        &self.file.bytes(&self.tensors[tensor])[start..][..self.bytes]
    }
}
