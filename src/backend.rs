//! What ops ask of the machine: a backend owns buffers, caches and weights, and computes on them.
//!
//! Buffers have names ([`Act`]) and fixed places, sized once for the largest window, so that nothing is allocated between schedule and
//! emit and a device backend can capture its work. Knows shapes, not model families.

use std::{ops::Range, sync::Arc, time::Duration};

use crate::{
    engine::{
        executor::{Outcome, Slot, Torn},
        request::Token,
    },
    gguf::{Gguf, Tensor},
    ledger::Place,
    model::window::{Rows, Window},
};

pub mod chain;
pub mod shape;
pub(crate) mod torn;
use chain::Chain;
use shape::{Activation, AttentionShape, DeltaShape, Gating, KvShape, KvType, NgramShape};

/// A buffer of activations, `[rows, width] f32`, its width fixed when the model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// The normed residual: a block's input.
    Normed,
    /// A block's output, before it is added.
    Branch,
    /// Attention queries; with an output gate, per head `[query | gate]`.
    Query,
    /// Attention keys.
    Key,
    /// Attention values.
    Value,
    /// What the token mixer gives to its output projection.
    Mixed,
    /// Delta net: `q | k | v` before the convolution.
    DeltaQkv,
    /// Delta net: the output gate's input.
    DeltaZ,
    /// Delta net: the inputs of beta and of the decay, as [`shape::BetaDecay`] says.
    DeltaBeta,
    /// Delta net: the decay's input where it is a projection of its own.
    DeltaDecay,
    /// Feed-forward gate; after the activation, its product with `Up`.
    Gate,
    /// Feed-forward up.
    Up,
    /// Router logits.
    Router,
    /// The shared expert's gate, one value a row.
    SharedGate,
    /// A block's output that waits for another's.
    Aside,
    /// The normed streams of the residual, `[streams, width]` a row.
    Streams,
    /// How much of each counts, before a sigmoid.
    StreamGate,
    /// What that is projected from.
    StreamLow,
    /// How much a block's output counts in each stream, before a sigmoid.
    Inject,
    /// Rows of a table of n-grams, side by side.
    Ngram,
    /// Queries of an index.
    IndexQuery,
    /// Keys of an index, one a position.
    IndexKey,
    /// A prediction block's input before its projection: for each stream `[normed embedding | normed hidden state]`.
    Paired,
}

impl Act {
    /// How many there are.
    pub const COUNT: usize = Act::Paired as usize + 1;
}

/// The widths of the buffers, `0` where a model has no use for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Widths([usize; Act::COUNT]);

impl Widths {
    /// Makes room for rows of `width` values.
    pub fn need(&mut self, act: Act, width: usize) {
        self.0[act as usize] = self.0[act as usize].max(width);
    }

    /// Values a row of `act` has room for.
    pub fn of(&self, act: Act) -> usize {
        self.0[act as usize]
    }

    /// Values a row of the buffer with this index has room for.
    pub(crate) fn at(&self, index: usize) -> usize {
        self.0[index]
    }

    /// All buffers together, in values a row.
    pub fn sum(&self) -> usize {
        self.0.iter().sum()
    }
}

/// Where a weight matrix lies in its file: `outputs` rows of `inputs` values.
#[derive(Clone, Debug)]
pub struct MatrixSource {
    /// The tensor it is a part of.
    pub tensor: Tensor,
    /// Values a row, the contiguous dimension.
    pub inputs: usize,
    /// The tensor's rows it consists of.
    pub rows: Range<usize>,
}

impl MatrixSource {
    /// **Units**: bytes. What it takes in its file.
    pub fn bytes(&self) -> u64 {
        (self.rows.len() * self.tensor.row_bytes()) as u64
    }
}

/// The same matrix of every expert of a layer.
#[derive(Clone, Debug)]
pub struct ExpertSource {
    /// One matrix an expert, all of one shape and type.
    pub experts: Vec<MatrixSource>,
    /// Which of [`Needs::expert_layers`]; none in a block that is not of the trunk.
    pub layer: Option<usize>,
}

/// What a model needs besides its weights, known before anything is allocated.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Widths of the activation buffers.
    pub widths: Widths,
    /// Width of a stream of the residual.
    pub residual: usize,
    /// Streams that the residual has beside the first.
    pub more_streams: usize,
    /// What finds rows of a table by the last tokens, if anything does.
    pub ngram: Option<NgramShape>,
    /// Every attention layer.
    pub attention: Vec<AttentionShape>,
    /// Every delta-net layer's state.
    pub delta: Vec<DeltaShape>,
    /// The ways in which layers choose experts, each once.
    pub routes: Vec<RouteShape>,
    /// What becomes of gates and up projections, each once.
    pub activations: Vec<Activation>,
    /// Whether blocks' outputs are normed or scaled, set aside, or logits capped.
    pub sandwich: bool,
    /// Whether experts have biases.
    pub expert_bias: bool,
    /// Experts a row uses in one layer, at most.
    pub experts_used: usize,
    /// Width of an expert's intermediate, at most.
    pub expert_width: usize,
    /// Widths of the intermediates of experts that are chosen, each once.
    pub routed_widths: Vec<usize>,
    /// Widths of the intermediates of shared experts, each once.
    pub shared_widths: Vec<usize>,
    /// Width of a row of logits.
    pub vocab: usize,
    /// Whether there is a prediction block, so that final hidden states are kept.
    pub predicts: bool,
    /// The layers of the trunk that have experts, in their order.
    pub expert_layers: Vec<ExpertLayer>,
    /// **Units**: bytes. Weights of the trunk that every row reads: all but the experts it chooses among.
    pub common_bytes: u64,
}

/// A layer's experts, as weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLayer {
    /// Which layer of the model.
    pub layer: usize,
    /// How many experts.
    pub experts: usize,
    /// How many of them a row uses.
    pub used: usize,
    /// **Units**: bytes. Gate, up and down projections of one expert.
    pub expert_bytes: u64,
}

/// How much of everything a backend shall hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Rows of the largest window of either lane.
    pub rows: usize,
    /// Rows of the largest window of the decode lane.
    pub decode_rows: usize,
    /// Rows with logits in one window.
    pub logits_rows: usize,
    /// Slots with recurrent state.
    pub slots: usize,
    /// KV pages.
    pub pages: usize,
    /// How keys and values are stored.
    pub kv_type: shape::KvType,
}

impl Room {
    /// Rows of the windows of a prediction block: of what it reads late, and of what it predicts.
    pub fn beside_rows(&self) -> [usize; 2] {
        [self.rows.min(HIDDEN_ROWS / 2), self.slots]
    }

    /// KV pages of one attention layer: where it has a window every slot has a ring.
    pub fn pages_of(&self, layer: &AttentionShape) -> usize {
        layer
            .ring_pages(self.rows)
            .map_or(self.pages, |ring| ring * self.slots)
    }
}

/// Attention of one layer, as weights on a backend.
pub struct AttentionWeights<B: Backend> {
    /// Heads, rotation, scale, gate.
    pub shape: AttentionShape,
    /// Which KV cache of the model.
    pub kv: usize,
    /// `[H*hd]`, `[KV*hd]`, `[KV*hd]`, where the file has biases.
    pub bias: Option<[B::Vector; 3]>,
    /// Query and key norm weights, per head `[hd]` or over the whole projection.
    pub qk_norm: Option<[B::Vector; 2]>,
    /// Logits that only the softmax's denominator has, `[H]`.
    pub sinks: Option<B::Vector>,
    /// Norms of the index's queries and pooled keys, `[index head]` each.
    pub index_norm: Option<[B::Vector; 2]>,
}

/// What makes one input of several streams, and spreads one output over them.
pub struct StreamWeights<B: Backend> {
    /// Norm of each stream by itself, `[streams, d]`.
    pub norm: B::Vector,
    /// Epsilon of that norm.
    pub eps: f32,
    /// `{streams d, rank}`
    pub down: B::Matrix,
    /// `{rank, streams d}`
    pub up: B::Matrix,
    /// `{streams d, streams}`; before the head nothing is spread.
    pub inject: Option<B::Matrix>,
}

/// What n-grams add to the streams.
pub struct NgramWeights<B: Backend> {
    /// How rows are found.
    pub shape: NgramShape,
    /// The table, `{width, rows}`.
    pub table: B::Table,
    /// `{rows of a row of the window * width, streams d}`
    pub key: B::Matrix,
    /// `{rows of a row of the window * width, d}`
    pub value: B::Matrix,
    /// Norms of keys, of the streams and of what the convolution reads, `[streams, d]` each.
    pub norms: [B::Vector; 3],
    /// Epsilon of these norms.
    pub eps: f32,
    /// `[taps, streams d]`
    pub conv: B::Vector,
}

/// What the logits are made of.
pub enum HeadNorm<'a, B: Backend> {
    /// The normed residual: weight and epsilon.
    Rms(&'a B::Vector, f32),
    /// One input of its streams.
    Streams(&'a StreamWeights<B>),
}

/// Delta net of one layer, as weights on a backend.
pub struct DeltaWeights<B: Backend> {
    /// Heads, convolution, head map, gate.
    pub shape: DeltaShape,
    /// Which recurrent state of the model.
    pub state: usize,
    /// Convolution taps, `[taps, channels]`.
    pub conv: B::Vector,
    /// `-exp(A_log)`, `[v heads]`.
    pub decay: B::Vector,
    /// Added to the decay's input, `[v heads]`.
    pub decay_bias: B::Vector,
    /// Output norm, `[dv]`.
    pub norm: B::Vector,
}

/// How a row's experts are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteShape {
    /// Experts of the layer.
    pub experts: usize,
    /// Experts a row uses.
    pub used: usize,
    /// From logits to weights.
    pub gating: Gating,
    /// Whether the chosen weights are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// The router of one layer, as weights on a backend.
pub struct RouteWeights<B: Backend> {
    /// How experts are chosen.
    pub shape: RouteShape,
    /// Added to the logits, `[experts]`.
    pub bias: Option<B::Vector>,
    /// Added to what a choice goes by, not to the weights, `[experts]`.
    pub choice_bias: Option<B::Vector>,
    /// Factor on the weight of a chosen expert, `[experts]`.
    pub expert_scale: Option<B::Vector>,
}

impl<B: Backend<Vector: Clone>> Clone for RouteWeights<B> {
    fn clone(&self) -> Self {
        Self {
            shape: self.shape,
            bias: self.bias.clone(),
            choice_bias: self.choice_bias.clone(),
            expert_scale: self.expert_scale.clone(),
        }
    }
}

/// Experts of one layer, as weights on a backend.
pub struct ExpertWeights<B: Backend> {
    /// Gate projections.
    pub gate: B::Experts,
    /// Up projections.
    pub up: B::Experts,
    /// Down projections.
    pub down: B::Experts,
    /// Width of the intermediate.
    pub width: usize,
    /// What becomes of gate and up, the shared expert's too.
    pub activation: Activation,
    /// Of gate and up `[experts, width]`, of down `[experts, residual]`; the shared expert has none.
    pub bias: Option<[B::Vector; 3]>,
    /// The expert that every row uses.
    pub shared: Option<SharedExpert<B>>,
}

/// Which of a layer's experts are to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertShare {
    /// About half of them.
    First,
    /// The others, and then the sum.
    Others,
    /// All of them, and the sum.
    All,
}

/// The expert that every row uses.
pub struct SharedExpert<B: Backend> {
    /// Gate projection.
    pub gate: B::Matrix,
    /// Up projection.
    pub up: B::Matrix,
    /// Down projection.
    pub down: B::Matrix,
    /// Width of the intermediate.
    pub width: usize,
    /// Its output is multiplied by the sigmoid of `Act::SharedGate`.
    pub gated: bool,
}

/// Which hidden states stand beside which tokens at the input of a prediction block.
pub enum States<'a, B: Backend> {
    /// To each row's token the state that is kept for its position.
    Kept,
    /// To each row's state, the residual of a window that has been computed, the token of the row after it, or any where there is none. Weight and epsilon of the
    /// norm that gives the state, if it is not the residual as it is.
    Own(Option<(&'a B::Vector, f32)>),
}

/// Positions of a slot whose final hidden states are kept, so that a prediction block can read what it has not read yet.
pub const HIDDEN_ROWS: usize = 128;

/// The most rows that can be taken back after a window.
pub const CUT_ROWS: usize = 8;

/// A machine that computes windows. One thread calls it.
///
/// Every computing method works on all rows of the window, and a row's result depends on no other row but through the caches
/// of its own sequence.
pub trait Backend: Sized + 'static {
    /// What it is called in settings and messages.
    const NAME: &'static str;

    /// The pause that a running stream may have because of others, where settings name none.
    const GAP_MAX: Duration;

    /// Prompt rows of a window where settings name no number: as few as read a long prompt at nearly full speed.
    const CHUNK_ROWS: usize;

    /// Prompt rows that a window of the decode lane has room for, beside a row for every slot.
    const SPARE_ROWS: usize;

    /// Whether slices on the prompt lane are the [parts](crate::op::Block::parts) of layers rather than whole ones. Each lane has buffers of its own then.
    const PARTED: bool;

    /// Slices that may still be computed when the next one is enqueued.
    const SLICES_AHEAD: usize;

    /// Whether a window takes as long on either lane, because both are computed in the same way.
    const LANES_ALIKE: bool;

    /// How many likeliest tokens [`outcome`](Self::outcome) tells of a row; 0 if it tells logits only.
    const CANDIDATES: usize = 0;

    /// A failed device or memory operation. Fatal to the engine.
    type Error: std::error::Error + Send + Sync + 'static;
    /// A weight matrix.
    type Matrix;
    /// One matrix of every expert of a layer.
    type Experts;
    /// A vector of f32 weights.
    type Vector;
    /// The residual of a window, `[rows, width] f32`.
    type Residual;
    /// A matrix of which few rows are read at a time, which are known before a window begins.
    type Table;

    /// Whether it computes logits of few tokens ([`head_among`](Self::head_among)).
    const SHORTLISTS: bool = false;

    /// Makes a matrix of the file usable. No copy where the backend reads the mapped file.
    fn matrix(
        &mut self,
        file: &Arc<Gguf>,
        source: MatrixSource,
    ) -> Result<Self::Matrix, Self::Error>;

    /// Makes a table usable, of which rows are found by `shape`.
    fn table(
        &mut self,
        file: &Arc<Gguf>,
        source: MatrixSource,
        shape: &NgramShape,
    ) -> Result<Self::Table, Self::Error>;

    /// Makes the experts of a layer usable.
    fn experts(
        &mut self,
        file: &Arc<Gguf>,
        source: ExpertSource,
    ) -> Result<Self::Experts, Self::Error>;

    /// Whose rows the slice that was computed last has left without what they need, since it was asked before.
    fn torn(&mut self, window: &Window<Self>) -> Option<Torn> {
        let _ = window;
        None
    }

    /// A layer's router, for who looks ahead. `layer` is one of [`Needs::expert_layers`].
    fn router(&mut self, layer: usize, router: &Self::Matrix, weights: &RouteWeights<Self>) {
        let _ = (layer, router, weights);
    }

    /// Makes a vector usable.
    fn vector(&mut self, values: Vec<f32>) -> Result<Self::Vector, Self::Error>;

    /// Allocates every buffer, cache and state. Called once, after all weights and before the first window.
    fn allocate(&mut self, needs: &Needs, room: &Room) -> Result<(), Self::Error>;

    /// A residual for so many rows. Called once a lane, after `allocate`.
    fn residual(&mut self, rows: usize) -> Result<Self::Residual, Self::Error>;

    /// **Units**: bytes. One KV page of one attention layer.
    fn page_bytes(kv: &KvShape, kind: KvType) -> usize;

    /// **Units**: bytes. One slot's state in one delta-net layer.
    fn state_bytes(shape: &DeltaShape) -> usize;

    /// Takes note of a window's rows before anything of it is computed, whether it goes through the trunk or through a block beside it.
    fn begin(&mut self, window: &mut Window<Self>) -> Result<(), Self::Error> {
        let _ = window;
        Ok(())
    }

    /// Takes note of prompt tokens that will be a slot's rows: see [`Executor::ahead`](crate::engine::executor::Executor::ahead).
    fn ahead(&mut self, slot: Slot, first: usize, tokens: &[Token]) {
        let _ = (slot, first, tokens);
    }

    /// The ops that follow, up to [`leave`](Self::leave), are a slice of this window.
    fn enter(&mut self, window: &mut Window<Self>) -> Result<(), Self::Error> {
        let _ = window;
        Ok(())
    }

    /// Ends a slice. On return no slice before this one is still being computed.
    fn leave(&mut self, window: &mut Window<Self>) -> Result<(), Self::Error> {
        let _ = window;
        Ok(())
    }

    /// Computes a window of the decode lane as a whole, which `enqueue` says, and tells that it did; or leaves it to be computed slice by slice. What
    /// `enqueue` puts on a device may be recorded and used again for other windows of as many rows: it must depend on nothing else.
    fn whole(
        &mut self,
        window: &mut Window<Self>,
        enqueue: impl FnOnce(&mut Self, &mut Window<Self>) -> Result<(), Self::Error>,
    ) -> Result<bool, Self::Error> {
        let _ = (window, enqueue);
        Ok(false)
    }

    /// Where weights are read from.
    const WEIGHTS: Place;
    /// Where caches and buffers lie.
    const CACHES: Place;

    /// **Units**: bytes. What a tensor takes where weights are read from.
    fn weight_bytes(tensor: &Tensor) -> u64 {
        tensor.bytes as u64
    }

    /// **Units**: bytes. All buffers of windows but the logits.
    fn scratch_bytes(needs: &Needs, room: &Room) -> u64;

    /// Closes the gap that `gone` leaves among the first `count` rows of a residual.
    fn close_gap(&mut self, residual: &mut Self::Residual, gone: Range<usize>, count: usize);

    /// Forgets a slot's recurrent state.
    fn reset(&mut self, slot: Slot);

    /// Takes back a slot's last `rows` rows, at most [`CUT_ROWS`], all of its last window.
    fn cut(&mut self, slot: Slot, rows: usize);

    /// residual = rows of `table` named by the tokens.
    fn embed(&mut self, window: &mut Window<Self>, table: &Self::Matrix)
    -> Result<(), Self::Error>;

    /// `Normed` = rms norm of the residual.
    fn norm(
        &mut self,
        window: &Window<Self>,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<(), Self::Error>;

    /// residual += `Branch`.
    fn add(&mut self, window: &mut Window<Self>) -> Result<(), Self::Error>;

    /// `Normed` = the mean of the normed streams, each gated: the input of a block. Keeps how the block's output is to be spread.
    fn read_streams(
        &mut self,
        window: &Window<Self>,
        weights: &StreamWeights<Self>,
    ) -> Result<(), Self::Error>;

    /// Every stream += its share of `Branch`.
    fn add_to_streams(&mut self, window: &mut Window<Self>) -> Result<(), Self::Error>;

    /// Every stream += what the rows' last tokens add.
    fn add_ngrams(
        &mut self,
        window: &mut Window<Self>,
        weights: &NgramWeights<Self>,
    ) -> Result<(), Self::Error>;

    /// `Branch` = rms norm of `Branch`.
    fn norm_branch(
        &mut self,
        rows: usize,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<(), Self::Error>;

    /// residual *= `factor`.
    fn scale(&mut self, window: &mut Window<Self>, factor: f32) -> Result<(), Self::Error>;

    /// `Aside` = `Branch`.
    fn set_aside(&mut self, rows: usize) -> Result<(), Self::Error>;

    /// `Branch` += `Aside`.
    fn add_aside(&mut self, rows: usize) -> Result<(), Self::Error>;

    /// `to = matrix . from` for every pair; `from` is quantised once.
    fn matmul(
        &mut self,
        rows: usize,
        from: Act,
        to: &[(&Self::Matrix, Act)],
    ) -> Result<(), Self::Error>;

    /// `Mixed` = attention of `Query`, after bias, norm and rotation, over the sequence's keys and values, to which the window's own
    /// `Key` and `Value` rows are appended first.
    fn attend(&mut self, rows: &Rows, weights: &AttentionWeights<Self>) -> Result<(), Self::Error>;

    /// Appends the rows' `Key`, after bias, norm and rotation, and `Value` to their sequences' keys and values.
    fn remember(
        &mut self,
        rows: &Rows,
        weights: &AttentionWeights<Self>,
    ) -> Result<(), Self::Error>;

    /// `Mixed` = gated delta net of `DeltaQkv`, `DeltaZ`, `DeltaBeta` (and `DeltaDecay`); advances the slots' states.
    fn delta_net(&mut self, rows: &Rows, weights: &DeltaWeights<Self>) -> Result<(), Self::Error>;

    /// Adds `bias`, which is as wide as a row, to every row of `act`.
    fn bias(&mut self, rows: usize, act: Act, bias: &Self::Vector) -> Result<(), Self::Error>;

    /// `Gate` = what `activation` makes of `Gate` and `Up`, on `width` values a row.
    fn activate(
        &mut self,
        rows: usize,
        width: usize,
        activation: Activation,
    ) -> Result<(), Self::Error>;

    /// Chooses every row's experts from `Router`.
    fn route(&mut self, rows: usize, weights: &RouteWeights<Self>) -> Result<(), Self::Error>;

    /// Groups the chosen rows by expert, so that a window reads each expert's weights once.
    fn place(&mut self, rows: usize, shape: &RouteShape) -> Result<(), Self::Error>;

    /// `Branch` = weighted sum of the chosen experts' outputs for `Normed`, in rank order, the shared expert last. On a backend that is [`PARTED`](Self::PARTED) in two
    /// shares, between which other windows may be computed.
    fn run_experts(
        &mut self,
        rows: usize,
        weights: &ExpertWeights<Self>,
        share: ExpertShare,
    ) -> Result<(), Self::Error>;

    /// Computes the logits of the rows that are asked, of `softcap` c as `c tanh(x / c)`. After [`settle`](Self::settle) what became of them can be read until the next call.
    fn head(
        &mut self,
        window: &Window<Self>,
        norm: HeadNorm<'_, Self>,
        output: &Self::Matrix,
        softcap: Option<f32>,
    ) -> Result<(), Self::Error>;

    /// Computes, as [`head`](Self::head), the logits of the rows that are asked, but where `among` names tokens those of the first tokens and of these only: the first
    /// tokens' are those of the second matrix. All others are [`UNLISTED`](crate::engine::executor::UNLISTED).
    fn head_among(
        &mut self,
        window: &Window<Self>,
        norm: HeadNorm<'_, Self>,
        outputs: [&Self::Matrix; 2],
        softcap: Option<f32>,
        among: &[Option<&[Token]>],
    ) -> Result<(), Self::Error> {
        let _ = (window, norm, outputs, softcap, among);
        unreachable!("{} computes no logits of few tokens", Self::NAME)
    }

    /// Keeps the residual of a window's rows, normed or with all its streams as they are, each as the hidden state of the position `ahead` positions after its own:
    /// of a slot the last [`HIDDEN_ROWS`] positions are kept.
    fn keep(
        &mut self,
        window: &Window<Self>,
        ahead: usize,
        norm: Option<(&Self::Vector, f32)>,
    ) -> Result<(), Self::Error>;

    /// `Paired` = `[norm(row of table named by a token) | norm(hidden state)]`, for every stream of the state by itself; the norms' weights are `[d]` and `[streams, d]`.
    /// Begins a window of a block that is beside the trunk: it has no slices, and neither [`enter`](Self::enter) nor [`leave`](Self::leave) is called.
    fn pair(
        &mut self,
        window: &mut Window<Self>,
        states: States<'_, Self>,
        table: &Self::Matrix,
        norms: [&Self::Vector; 2],
        eps: f32,
    ) -> Result<(), Self::Error>;

    /// residual = `matrix . from`, for every stream by itself.
    fn project(
        &mut self,
        window: &mut Window<Self>,
        from: Act,
        matrix: &Self::Matrix,
    ) -> Result<(), Self::Error>;

    /// Predicts tokens: `step` says how the successors of a window's rows, one a sequence, come to their logits, and is told which tokens each is chosen
    /// among, as in [`head_among`](Self::head_among); what is chosen of these is the rows' next
    /// token, one position further. What `step` puts on a device may be recorded and used again, as in [`whole`](Self::whole). Waits for all of it; the logits of the last step can be
    /// read until the next call.
    fn chain(
        &mut self,
        window: &mut Window<Self>,
        chain: Chain<'_>,
        step: impl Fn(&mut Self, &mut Window<Self>, &[Option<&[Token]>]) -> Result<(), Self::Error>,
    ) -> Result<(), Self::Error> {
        chain::by_host(self, window, chain, step)
    }

    /// Waits for what [`head`](Self::head) has enqueued.
    fn settle(&mut self, window: &Window<Self>) -> Result<(), Self::Error> {
        let _ = window;
        Ok(())
    }

    /// What became of the `row`th row that was asked: no less than was asked.
    fn outcome(&mut self, row: usize) -> Result<Outcome<'_>, Self::Error> {
        self.logits(row).map(Outcome::Logits)
    }

    /// Logits of the same row, `[vocab] f32`.
    fn logits(&mut self, row: usize) -> Result<&[f32], Self::Error>;
}
