//! A model on a backend: embedding, a trunk of blocks, a head, and the caches they need.
//!
//! Families differ in how a block is composed (`pipelines/`); the trunk is a loop. Knows no sequences: what it computes is a window
//! of rows, one layer at a time, as an [`Executor`].

use std::sync::Arc;

use crate::{
    backend::{Backend, Needs, Room},
    engine::executor::{Capacity, Executor, Progress, Slot, Span},
    gguf::Gguf,
    op::{Block, Hidden, Pass, norm::Norm},
};

pub mod family;
pub mod loader;
pub mod start;
pub mod text;
pub mod window;

use loader::{LoadError, Loader};
use window::{Rows, Window};

/// The blocks and weights of a model, before its caches are allocated.
pub struct Model<B: Backend> {
    embedding: B::Matrix,
    trunk: Vec<Block<B>>,
    norm: Norm<B>,
    /// `None` if the embedding is used for both.
    output: Option<B::Matrix>,
    /// Multi-token prediction: loaded, so that a damaged file is refused, and ready for speculation.
    prediction: Vec<Prediction<B>>,
    needs: Needs,
    context: usize,
}

/// A block that predicts one more token (`nextn`).
///
/// **Source**: c = eh_proj \[rms(embed(x), enorm) ; rms(h, hnorm)\], one decoder block, `shared_head_norm`.
pub struct Prediction<B: Backend> {
    /// `{2 d, d}`, the embedding's half first.
    pub projection: B::Matrix,
    /// Norm of the embedding.
    pub embedding_norm: Norm<B>,
    /// Norm of the trunk's final hidden state.
    pub hidden_norm: Norm<B>,
    /// An ordinary decoder block.
    pub block: Block<B>,
    /// Norm before the shared head; the trunk's if the file has none.
    pub head_norm: Option<Norm<B>>,
}

impl<B: Backend> Model<B> {
    /// Loads a model whose layer `i` is `block(loader, i, "blk.{i}")`.
    pub fn load(
        file: &Arc<Gguf>,
        backend: &mut B,
        mut block: impl FnMut(&mut Loader<'_, B>, &str) -> Result<Block<B>, LoadError>,
    ) -> Result<Self, LoadError> {
        let mut from = Loader::new(file.clone(), backend)?;
        let vocab = from.vocabulary()?;
        let width = from.residual();
        let embedding = from.matrix("token_embd.weight", width, vocab)?;
        let (layers, nextn) = from.blocks()?;
        let trunk = (0..layers)
            .map(|layer| {
                from.enter(layer);
                block(&mut from, &format!("blk.{layer}"))
            })
            .collect::<Result<_, _>>()?;
        let norm = Norm::load(&mut from, "output_norm")?;
        let output = if from.has("output.weight") {
            Some(from.matrix("output.weight", width, vocab)?)
        } else {
            None
        };
        let prediction = (layers..layers + nextn)
            .map(|layer| {
                from.enter(layer);
                from.without_caches(|from| prediction(from, &format!("blk.{layer}"), &mut block))
            })
            .collect::<Result<_, _>>()?;
        let context = from.count("context_length")?;
        Ok(Self {
            embedding,
            trunk,
            norm,
            output,
            prediction,
            needs: from.into_needs(),
            context,
        })
    }

    /// What it needs besides weights.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Positions it was made for.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Blocks that predict further tokens.
    pub fn prediction(&self) -> &[Prediction<B>] {
        &self.prediction
    }
}

fn prediction<B: Backend>(
    from: &mut Loader<'_, B>,
    at: &str,
    block: &mut impl FnMut(&mut Loader<'_, B>, &str) -> Result<Block<B>, LoadError>,
) -> Result<Prediction<B>, LoadError> {
    let width = from.residual();
    let head_norm = format!("{at}.nextn.shared_head_norm");
    Ok(Prediction {
        projection: from.matrix(&format!("{at}.nextn.eh_proj.weight"), 2 * width, width)?,
        embedding_norm: Norm::load(from, &format!("{at}.nextn.enorm"))?,
        hidden_norm: Norm::load(from, &format!("{at}.nextn.hnorm"))?,
        block: block(from, at)?,
        head_norm: if from.has(&format!("{head_norm}.weight")) {
            Some(Norm::load(from, &head_norm)?)
        } else {
            None
        },
    })
}

/// A model with its caches: what the engine drives.
pub struct Runner<B: Backend> {
    model: Model<B>,
    backend: B,
    room: Room,
    context: usize,
    /// Windows that have been used and can be again, so that a pass allocates nothing.
    free: Vec<Window<B>>,
}

impl<B: Backend> Runner<B> {
    /// Allocates what `room` says. `context` limits a sequence, at most to what the model was made for.
    pub fn new(
        model: Model<B>,
        mut backend: B,
        room: Room,
        context: usize,
    ) -> Result<Self, B::Error> {
        backend.allocate(&model.needs, &room)?;
        let context = context.min(model.context);
        Ok(Self {
            model,
            backend,
            room,
            context,
            free: Vec::new(),
        })
    }
}

impl<B: Backend> Runner<B> {
    /// What computes.
    pub fn backend(&self) -> &B {
        &self.backend
    }
}

impl<B: Backend> Executor for Runner<B> {
    type Pass = Window<B>;
    type Error = B::Error;

    fn capacity(&self) -> Capacity {
        Capacity {
            slots: self.room.slots,
            pages: self.room.pages,
            rows: self.room.rows,
            logits_rows: self.room.logits_rows,
            layers: self.model.trunk.len(),
            vocab: self.model.needs.vocab,
            context: self.context,
        }
    }

    fn reset(&mut self, slot: Slot) {
        self.backend.reset(slot);
    }

    fn begin(&mut self, spans: &[Span<'_>]) -> Result<Window<B>, B::Error> {
        let mut window = match self.free.pop() {
            Some(window) => window,
            None => Window {
                layer: 0,
                rows: Rows::default(),
                residual: self.backend.residual()?,
            },
        };
        window.layer = 0;
        window.rows.fill(spans);
        self.backend.embed(&mut window, &self.model.embedding)?;
        Ok(window)
    }

    fn advance(&mut self, window: &mut Window<B>) -> Result<Progress, B::Error> {
        let layer = window.layer;
        let Hidden(()) = self.model.trunk[layer].enqueue(
            &mut Pass {
                backend: &mut self.backend,
                window,
            },
            Hidden(()),
        )?;
        window.layer += 1;
        Ok(if window.layer < self.model.trunk.len() {
            Progress::More
        } else {
            Progress::Done
        })
    }

    fn withdraw(&mut self, window: &mut Window<B>, slot: Slot) {
        let count = window.rows.count();
        if let Some(gone) = window.rows.remove(slot) {
            self.backend.close_gap(&mut window.residual, gone, count);
        }
    }

    fn finish(&mut self, window: Window<B>) -> Result<&[f32], B::Error> {
        let (norm, eps) = self.model.norm.parts();
        let output = self.model.output.as_ref().unwrap_or(&self.model.embedding);
        self.free.push(window);
        let window = self.free.last().expect("just pushed");
        self.backend.head(window, norm, eps, output)
    }
}
