//! A model on a backend: embedding, a trunk of blocks, a head, and the caches they need.
//!
//! Families differ in how a block is composed (`pipelines/`); the trunk is a loop. Knows no sequences: what it computes is a window
//! of rows, one layer at a time, as an [`Executor`]. A block that predicts further tokens stands beside the trunk.

use std::{rc::Rc, sync::Arc};

use crate::{
    backend::{Backend, CUT_ROWS, Needs, Room},
    engine::{
        executor::{
            Capacity, Executor, Guess, Lane, Outcome, Progress, SLICE_KINDS, Slot, Span, Torn,
        },
        request::Token,
    },
    gguf::Gguf,
    op::{Block, Hidden, Pass},
};

pub mod family;
mod last;
pub mod loader;
mod predictor;
pub mod start;
pub mod text;
pub mod window;

use last::Last;
use loader::{LoadError, Loader};
use predictor::{Prediction, Predictor};
use window::{Rows, Window};

/// What is particular about a family outside its layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The embedding is multiplied by the root of its width.
    pub embedding_by_root: bool,
    /// The residual has several streams, each of which begins as the embedding.
    pub streams: bool,
}

/// The blocks and weights of a model, before its caches are allocated.
pub struct Model<B: Backend> {
    embedding: B::Matrix,
    trunk: Vec<Block<B>>,
    last: Rc<Last<B>>,
    /// `None` if the embedding is used for both.
    output: Option<B::Matrix>,
    /// Factor on the embedding, if not 1.
    embedding_scale: Option<f32>,
    /// Bound that logits approach.
    softcap: Option<f32>,
    /// Multi-token prediction. One block is all that is used: its output is fed back for further tokens.
    prediction: Option<Prediction<B>>,
    needs: Needs,
    context: usize,
}

impl<B: Backend> Model<B> {
    /// Loads a model whose layer `i` is `block(loader, i, "blk.{i}")`; `frame` says what is particular outside the layers.
    pub fn load(
        file: &Arc<Gguf>,
        backend: &mut B,
        frame: Frame,
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
        let name = if frame.streams {
            "output_hc"
        } else {
            "output_norm"
        };
        let last = Rc::new(Last::load(&mut from, name, frame.streams)?);
        let output = if from.has("output.weight") {
            from.reads_one_row("token_embd.weight"); // the head has a matrix of its own
            Some(from.matrix("output.weight", width, vocab)?)
        } else {
            None
        };
        let prediction = if nextn > 0 {
            from.enter(layers);
            Some(from.beside_trunk(|from| {
                Prediction::load(from, &format!("blk.{layers}"), &last, &mut block)
            })?)
        } else {
            None
        };
        let context = from.count("context_length")?;
        let softcap = from
            .float("final_logit_softcapping")?
            .filter(|cap| *cap > 0.0);
        if softcap.is_some() || frame.embedding_by_root {
            from.sandwich();
        }
        Ok(Self {
            embedding_scale: frame.embedding_by_root.then(|| (width as f32).sqrt()),
            softcap,
            embedding,
            trunk,
            last,
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

    fn layer(&self, backend: &mut B, window: &mut Window<B>, layer: usize) -> Result<(), B::Error> {
        let Hidden(()) = self.trunk[layer].enqueue(&mut Pass { backend, window }, Hidden(()))?;
        Ok(())
    }

    /// The slice that a window is at: a layer, or a part of one.
    fn slice(&self, backend: &mut B, window: &mut Window<B>) -> Result<(), B::Error> {
        let layer = window.layer;
        if !B::PARTED || window.lane == Lane::Decode {
            window.layer += 1;
            return self.layer(backend, window, layer);
        }
        let (block, part) = (&self.trunk[layer], window.part);
        (window.layer, window.part) = match part + 1 < block.parts() {
            true => (layer, part + 1),
            false => (layer + 1, 0),
        };
        block.enqueue_part(part, &mut Pass { backend, window })
    }

    /// Whether all that there is of a window's rows is their residual.
    fn by_residual(&self, window: &Window<B>) -> bool {
        let block = self.trunk.get(window.layer);
        block.is_none_or(|block| block.by_residual(window.part))
    }

    /// Everything from the tokens to what becomes of them.
    fn enqueue(&self, backend: &mut B, window: &mut Window<B>) -> Result<(), B::Error> {
        self.embed(backend, window)?;
        for layer in 0..self.trunk.len() {
            self.layer(backend, window, layer)?;
        }
        self.head(backend, window)
    }

    fn embed(&self, backend: &mut B, window: &mut Window<B>) -> Result<(), B::Error> {
        backend.embed(window, &self.embedding)?;
        match self.embedding_scale {
            Some(factor) => backend.scale(window, factor),
            None => Ok(()),
        }
    }

    fn head(&self, backend: &mut B, window: &mut Window<B>) -> Result<(), B::Error> {
        if let Some(prediction) = &self.prediction {
            prediction.keep(backend, window)?;
        }
        let output = self.output.as_ref().unwrap_or(&self.embedding);
        backend.head(window, self.last.of_head(), output, self.softcap)
    }

    /// Leaves out what predicts tokens: nobody will ask.
    pub fn without_prediction(mut self) -> Self {
        self.prediction = None;
        if std::mem::take(&mut self.needs.predicts) {
            self.needs.attention.pop(); // its own keys and values
        }
        self
    }
}

/// A model with its caches: what the engine drives.
pub struct Runner<B: Backend> {
    model: Model<B>,
    backend: B,
    room: Room,
    context: usize,
    /// Each lane's window while no pass uses it, so that a pass allocates nothing.
    free: [Option<Window<B>>; Lane::COUNT],
    /// What went wrong while rows were withdrawn.
    failed: Option<B::Error>,
    predictor: Option<Predictor<B>>,
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
        let mut window = |lane, rows| {
            Ok(Some(Window {
                lane,
                beside: false,
                layer: 0,
                part: 0,
                rows: Rows::default(),
                residual: backend.residual(rows)?,
            }))
        };
        Ok(Self {
            free: [
                window(Lane::Decode, room.decode_rows)?,
                window(Lane::Prompt, room.rows)?,
            ],
            failed: None,
            predictor: match &model.prediction {
                Some(_) => Some(Predictor::new(&mut backend, &room)?),
                None => None,
            },
            model,
            backend,
            room,
            context,
        })
    }
}

impl<B: Backend> Runner<B> {
    /// What computes.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The same, to change it: for measures.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Computes the slice that a window is at.
    fn slice(&mut self, window: &mut Window<B>) -> Result<(), B::Error> {
        self.backend.enter(window)?;
        if (window.layer, window.part) == (0, 0) {
            self.model.embed(&mut self.backend, window)?;
        }
        self.model.slice(&mut self.backend, window)?;
        self.backend.leave(window)
    }

    /// Puts all of a window on the backend, between whatever the caller does before and after: for measures.
    pub fn enqueue(&mut self, window: &mut Window<B>) -> Result<(), B::Error> {
        self.model.enqueue(&mut self.backend, window)
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
            decode_rows: self.room.decode_rows,
            logits_rows: self.room.logits_rows,
            layers: self.model.trunk.len(),
            vocab: self.model.needs.vocab,
            context: self.context,
            slices_ahead: B::SLICES_AHEAD,
            lanes_alike: B::LANES_ALIKE,
            candidates: B::CANDIDATES,
            drafts: CUT_ROWS,
            predicts: self.predictor.is_some(),
            frequent: self
                .model
                .prediction
                .as_ref()
                .map_or(0, |block| block.frequent(self.model.needs.vocab)),
        }
    }

    fn reset(&mut self, slot: Slot) {
        if let Some(predictor) = &mut self.predictor {
            predictor.reset(slot);
        }
        self.backend.reset(slot);
    }

    fn begin(&mut self, lane: Lane, spans: &[Span<'_>]) -> Result<Window<B>, B::Error> {
        let mut window = self.free[lane as usize]
            .take()
            .expect("a lane holds one pass at most");
        (window.layer, window.part) = (0, 0);
        window.rows.fill(spans);
        if let Some(predictor) = &mut self.predictor {
            predictor.make_room(&mut self.backend, &self.model, &window.rows)?;
        }
        self.backend.begin(&mut window)?;
        Ok(window)
    }

    fn ahead(&mut self, slot: Slot, first: usize, tokens: &[Token]) {
        self.backend.ahead(slot, first, tokens);
    }

    fn advance(&mut self, window: &mut Window<B>) -> Result<Progress, B::Error> {
        let layers = self.model.trunk.len();
        if window.lane == Lane::Decode && window.layer == 0 {
            let model = &self.model;
            let whole = self
                .backend
                .whole(window, |backend, window| model.enqueue(backend, window))?;
            if whole {
                window.layer = layers + 1; // the head is done too
                return Ok(Progress::Done);
            }
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if window.layer < layers {
            self.slice(window)?; // if rows left it, it may be through
        }
        Ok(if window.layer < layers {
            Progress::More
        } else {
            Progress::Done
        })
    }

    fn slice_kind(&self, pass: &Window<B>) -> usize {
        // where slices are whole layers, they are of one kind
        pass.part.min(SLICE_KINDS - 1)
    }

    fn cut(&mut self, slot: Slot, rows: usize) {
        if let Some(predictor) = &mut self.predictor {
            predictor.cut(slot, rows);
        }
        self.backend.cut(slot, rows);
    }

    fn predict(
        &mut self,
        guesses: &[Guess<'_>],
        predicted: &mut Vec<(Slot, Token)>,
    ) -> Result<(), B::Error> {
        match &mut self.predictor {
            Some(predictor) => {
                predictor.predict(&mut self.backend, &self.model, guesses, predicted)
            }
            None => unreachable!("nobody predicts without a prediction block"),
        }
    }

    fn torn(&mut self, window: &mut Window<B>) -> Option<Torn> {
        self.backend.torn(window)
    }

    fn withdraw(&mut self, window: &mut Window<B>, slot: Slot) {
        let last = window.rows.spans().iter().all(|span| span.slot == slot);
        while !last && self.failed.is_none() && !self.model.by_residual(window) {
            self.failed = self.slice(window).err();
        }
        let count = window.rows.count();
        if let Some(gone) = window.rows.remove(slot) {
            self.backend.close_gap(&mut window.residual, gone, count);
        }
    }

    fn abandon(&mut self, window: Window<B>) {
        let lane = window.lane as usize;
        self.free[lane] = Some(window);
    }

    fn finish(&mut self, mut window: Window<B>) -> Result<(), B::Error> {
        if window.layer <= self.model.trunk.len() {
            self.backend.enter(&mut window)?;
            self.model.head(&mut self.backend, &mut window)?;
        }
        if let Some(predictor) = &mut self.predictor {
            predictor.follow(&mut self.backend, &self.model, &mut window)?;
        }
        self.backend.settle(&window)?;
        self.abandon(window);
        Ok(())
    }

    fn outcome(&mut self, row: usize) -> Result<Outcome<'_>, B::Error> {
        self.backend.outcome(row)
    }

    fn logits(&mut self, row: usize) -> Result<&[f32], B::Error> {
        self.backend.logits(row)
    }
}
