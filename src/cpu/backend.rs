//! The CPU as a [`Backend`]: weights are read where the file is mapped, rows are shared out over the pool's workers.
//!
//! Every output value is computed by one task in an order that depends on its row alone, so neither the number of workers nor the
//! other rows of a window can change a bit of it.

use std::{ops::Range, sync::Arc, time::Duration};

use super::{
    cores::Cores,
    isa::Isa,
    kernels::{ActKind, Acts, KernelScratch},
    math,
    pool::Pool,
    store::{Parts, Store, StoreError, StoreSettings, slot_layers},
};
use crate::{
    backend::{
        Act, AttentionWeights, Backend, DeltaWeights, ExpertShare, ExpertSource, ExpertWeights,
        HeadNorm, MatrixSource, Needs, NgramWeights, Room, RouteShape, RouteWeights, States,
        StreamWeights,
        shape::{Activation, DeltaShape, KvShape, KvType, NgramShape},
        torn::TornRows,
    },
    engine::{
        executor::{Lane, Slot, Torn},
        request::Token,
    },
    gguf::Gguf,
    ledger::{Place, scratch_row_bytes},
    model::window::{Rows, Window},
    quant,
    residency::{slots::SlotPlan, tier::Counts},
    table::{Ngrams, Table, TableStats, Tables},
    trace::recorder::Recorder,
};

mod bandwidth;
mod error;
mod experts;
mod head;
mod lookahead;
mod mixers;
mod ngram;
mod predict;
mod products;
mod speeds;
mod streams;
mod weights;

pub use error::CpuError;
use experts::ExpertScratch;
use head::Listed;
use lookahead::Lookahead;
use mixers::Caches;
use ngram::NgramInputs;
pub use speeds::Cold;
pub use weights::{Experts, Matrix};

/// How the CPU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSettings {
    /// Workers; by default one for every core the process may use.
    pub threads: Option<usize>,
}

/// The CPU backend.
pub struct Cpu {
    pool: Pool,
    isa: Isa,
    /// Of a stream of the residual.
    width: usize,
    streams: usize,
    acts: Buffers,
    /// The rows of one buffer in the form that each [`ActKind`] asks for.
    quantised: Quantised,
    experts: ExpertScratch,
    /// Whose these three are, and those of the other lane.
    lane: Lane,
    other_lane: (Buffers, Quantised, ExpertScratch),
    /// 0, 1, 2, ..: all rows, for jobs that take them in order. As many as a window has (row, rank) pairs.
    row_numbers: Vec<u32>,
    /// `[workers]`
    scratch: Vec<KernelScratch>,
    caches: Caches,
    ngrams: Ngrams,
    ngram_inputs: NgramInputs,
    tables: Tables,
    vocab: usize,
    /// `[logits_rows, vocab] f32`
    logits: Vec<f32>,
    /// For logits of few tokens.
    listed: Listed,
    /// Final hidden states `[slots, HIDDEN_ROWS, streams, width] f32`, position `p` in row `p mod HIDDEN_ROWS`; empty if nothing is predicted.
    hidden: Vec<f32>,
    moved_bytes: u64,
    /// Windows still to come before the file counts as being in memory.
    cold_windows: u32,
    /// Where choices of experts are recorded, if they are.
    trace: Option<Box<Recorder>>,
    lookahead: Lookahead,
    /// How experts are to be kept in memory of their own, and what is told of them until there is a store.
    keeping: Option<(StoreSettings, Parts)>,
    store: Option<Box<Store>>,
    torn: TornRows,
    /// `[rows]` of the window at hand: whether they are a stream's next tokens. Short if nobody asks.
    decoding: Vec<bool>,
}

/// In the first windows (the warm-up generation) experts are fetched from disk in one piece each, which is several times faster than by
/// page faults. Later windows do without these system calls.
const COLD_WINDOWS: u32 = 2;

/// Below this much work (multiply-adds or values) a region costs more than it saves.
const INLINE: usize = 16 * 1024;

/// Named buffers, `[rows, width] f32` each.
#[derive(Default)]
struct Buffers {
    buffers: [Vec<f32>; Act::COUNT],
}

impl Buffers {
    /// The first `count` rows of `width` values each. A buffer is used with one width at a time.
    fn rows(&self, act: Act, count: usize, width: usize) -> &[f32] {
        &self.buffers[act as usize][..count * width]
    }

    fn rows_mut(&mut self, act: Act, count: usize, width: usize) -> &mut [f32] {
        &mut self.buffers[act as usize][..count * width]
    }

    /// A buffer taken out while others are read; give it back with [`Buffers::put`].
    fn take(&mut self, act: Act) -> Vec<f32> {
        std::mem::take(&mut self.buffers[act as usize])
    }

    fn put(&mut self, act: Act, buffer: Vec<f32>) {
        self.buffers[act as usize] = buffer;
    }
}

/// One set of rows in up to three forms.
#[derive(Default)]
struct Quantised {
    forms: [Acts; 3],
}

impl Quantised {
    fn form(&self, kind: ActKind) -> &Acts {
        &self.forms[kind as usize]
    }

    fn form_mut(&mut self, kind: ActKind) -> &mut Acts {
        &mut self.forms[kind as usize]
    }
}

impl Cpu {
    /// Starts the workers. The calling thread is one of them and should be the one that computes.
    pub fn new(settings: CpuSettings) -> Self {
        let pool = Pool::new(&Cores::allowed().workers(settings.threads));
        let scratch = (0..pool.workers())
            .map(|_| KernelScratch::default())
            .collect();
        Self {
            pool,
            isa: Isa::detect(),
            width: 0,
            streams: 1,
            acts: Buffers::default(),
            quantised: Quantised::default(),
            experts: ExpertScratch::default(),
            lane: Lane::Decode,
            other_lane: <_>::default(),
            row_numbers: Vec::new(),
            scratch,
            caches: Caches::default(),
            ngrams: Ngrams::default(),
            ngram_inputs: NgramInputs::default(),
            tables: Tables::default(),
            vocab: 0,
            logits: Vec::new(),
            listed: Listed::default(),
            hidden: Vec::new(),
            moved_bytes: 0,
            cold_windows: COLD_WINDOWS,
            trace: None,
            lookahead: Lookahead::default(),
            keeping: None,
            store: None,
            torn: TornRows::default(),
            decoding: Vec::new(),
        }
    }

    /// Keeps experts in memory of their own and reads those that are missing, instead of leaving both to the system's page cache.
    pub fn keeping(mut self, settings: StoreSettings) -> Self {
        self.keeping = Some((settings, Parts::default()));
        self
    }

    /// What a simulated device has taken so far, if experts are kept on one.
    pub fn simulated_time(&mut self) -> Option<Duration> {
        self.store.as_mut()?.simulated_time()
    }

    /// How `ram` bytes would be cut into slots for a model that this backend was told of; nothing if it has no experts, or none are to be kept.
    ///
    /// **Errors**: [`StoreError::TooSmall`].
    pub fn slot_plan(&self, needs: &Needs, ram: u64) -> Result<Option<SlotPlan>, StoreError> {
        let Some((_, parts)) = self
            .keeping
            .as_ref()
            .filter(|_| !needs.expert_layers.is_empty())
        else {
            return Ok(None);
        };
        let layers = slot_layers(&needs.expert_layers, parts);
        Ok(Some(SlotPlan::new(&layers, ram)?))
    }

    /// What the store has found and read so far, if experts are kept in one.
    pub fn store_counts(&self) -> Option<Counts> {
        Some(self.store.as_ref()?.tier().counts())
    }

    /// Records which experts are chosen, from the first window to the end.
    pub fn traced(mut self, recorder: Recorder) -> Self {
        self.trace = Some(Box::new(recorder));
        self
    }

    /// Workers, the computing thread included.
    pub fn threads(&self) -> usize {
        self.pool.workers()
    }

    /// Bytes that windows have had to read since the start: weights (each expert once a window, however many rows use it), recurrent states, keys
    /// and values (once a sequence).
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// What reading rows of a table has been like, where the model has one.
    pub fn table_stats(&self) -> &TableStats {
        self.tables.stats()
    }

    /// Calls `row(index, values, worker)` for rows of `width` values of `out`, on the pool if that is worth it.
    fn each_row(
        pool: &Pool,
        out: &mut [f32],
        width: usize,
        cost: usize,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let rows = out.len() / width;
        if rows * cost <= INLINE {
            out.chunks_exact_mut(width)
                .enumerate()
                .for_each(|(index, values)| row(index, values));
            return;
        }
        // a few tasks a worker, so that a slow one does not hold up the rest
        let part = rows.div_ceil(4 * pool.workers());
        pool.split(out, part * width, |task, values, _| {
            values
                .chunks_exact_mut(width)
                .enumerate()
                .for_each(|(index, values)| row(task * part + index, values));
        });
    }
}

impl Cpu {
    /// What is computed from here on is a window of this lane.
    fn turn_to(&mut self, lane: Lane) {
        if self.lane != lane {
            self.lane = lane;
            let (acts, quantised, experts) = &mut self.other_lane;
            std::mem::swap(&mut self.acts, acts);
            std::mem::swap(&mut self.quantised, quantised);
            std::mem::swap(&mut self.experts, experts);
        }
    }

    /// Takes note of which rows streams wait for: those of sequences that ask for the logits of all their rows.
    fn note_decoding(&mut self, rows: &Rows) {
        self.decoding.clear();
        self.decoding.resize(rows.count(), false);
        for span in rows.spans() {
            let before = |end: usize| rows.logits().partition_point(|row| (*row as usize) < end);
            let asked = before(span.rows.end) - before(span.rows.start);
            if asked == span.rows.len() && span.first > 0 {
                self.decoding[span.rows.clone()].fill(true);
            }
        }
    }
}

impl Backend for Cpu {
    const NAME: &'static str = "cpu";
    /// Larger chunks read prompts no faster: products are bound by arithmetic from here on.
    const GAP_MAX: Duration = Duration::from_millis(150);
    const CHUNK_ROWS: usize = 128;
    /// A window costs the same in either lane, so a whole chunk may ride.
    const SPARE_ROWS: usize = usize::MAX;
    const PARTED: bool = true;
    const SLICES_AHEAD: usize = 0;
    const LANES_ALIKE: bool = true;
    const SHORTLISTS: bool = true;

    type Error = CpuError;
    type Matrix = Matrix;
    type Experts = Experts;
    type Vector = Vec<f32>;
    type Residual = Vec<f32>;
    type Table = Arc<Table>;

    fn matrix(&mut self, file: &Arc<Gguf>, source: MatrixSource) -> Result<Matrix, CpuError> {
        Ok(Matrix::new(file.clone(), source))
    }

    fn table(
        &mut self,
        file: &Arc<Gguf>,
        source: MatrixSource,
        _shape: &NgramShape,
    ) -> Result<Arc<Table>, CpuError> {
        let table = Arc::new(Table::new(file.clone(), source));
        self.tables.open(&table);
        Ok(table)
    }

    fn begin(&mut self, window: &mut Window<Self>) -> Result<(), CpuError> {
        self.turn_to(window.lane());
        if window.is_beside() {
            return Ok(()); // no n-grams there
        }
        let found = self.ngrams.find(window.rows());
        if !found.is_empty() {
            self.tables.ask(window.lane(), found);
        }
        Ok(())
    }

    fn ahead(&mut self, slot: Slot, first: usize, tokens: &[Token]) {
        let found = self.ngrams.find_ahead(slot, first, tokens);
        if !found.is_empty() {
            self.tables.ahead(found);
        }
    }

    fn read_streams(
        &mut self,
        window: &Window<Self>,
        weights: &StreamWeights<Self>,
    ) -> Result<(), CpuError> {
        self.gather_streams(window, None, weights);
        Ok(())
    }

    fn add_to_streams(&mut self, window: &mut Window<Self>) -> Result<(), CpuError> {
        self.spread(window);
        Ok(())
    }

    fn add_ngrams(
        &mut self,
        window: &mut Window<Self>,
        weights: &NgramWeights<Self>,
    ) -> Result<(), CpuError> {
        self.ngrams(window, weights);
        Ok(())
    }

    fn experts(&mut self, file: &Arc<Gguf>, source: ExpertSource) -> Result<Experts, CpuError> {
        let home = match &mut self.keeping {
            Some((_, parts)) => parts.add(file, &source),
            None => None,
        };
        Ok(Experts::new(file.clone(), source, home))
    }

    fn torn(&mut self, window: &Window<Self>) -> Option<Torn> {
        self.torn.take(window.rows())
    }

    fn router(&mut self, layer: usize, router: &Matrix, weights: &RouteWeights<Self>) {
        self.lookahead.add(layer, router.clone(), weights.clone());
    }

    fn vector(&mut self, values: Vec<f32>) -> Result<Vec<f32>, CpuError> {
        Ok(values)
    }

    fn allocate(&mut self, needs: &Needs, room: &Room) -> Result<(), CpuError> {
        self.width = needs.residual;
        self.streams = 1 + needs.more_streams;
        self.ngrams = Ngrams::new(needs, room);
        self.ngram_inputs = NgramInputs::new(needs, room);
        self.vocab = needs.vocab;
        let workers = self.pool.workers();
        for (acts, experts) in [
            (&mut self.acts, &mut self.experts),
            (&mut self.other_lane.0, &mut self.other_lane.2),
        ] {
            for (index, buffer) in acts.buffers.iter_mut().enumerate() {
                *buffer = vec![0.0; room.rows * needs.widths.at(index)];
            }
            *experts = ExpertScratch::new(needs, room.rows, workers);
        }
        self.caches = Caches::new(needs, room, self.pool.workers());
        let numbers = room.rows * needs.experts_used.max(self.streams);
        self.row_numbers = (0..numbers as u32).collect();
        self.logits = vec![0.0; room.logits_rows * needs.vocab];
        self.hidden = vec![0.0; predict::hidden_len(needs, room)];
        if let Some(trace) = &mut self.trace {
            trace.describe(needs);
        }
        if let Some((settings, parts)) = self.keeping.take() {
            let store =
                Store::new(&needs.expert_layers, parts, &settings).map_err(CpuError::Store)?;
            self.store = store.map(Box::new);
        }
        // the computing thread is worker 0; where it may not be bound it runs where it is
        let _ = self.pool.pin_caller();
        Ok(())
    }

    fn residual(&mut self, rows: usize) -> Result<Vec<f32>, CpuError> {
        Ok(vec![0.0; rows * self.streams * self.width])
    }

    fn enter(&mut self, window: &mut Window<Self>) -> Result<(), CpuError> {
        self.turn_to(window.lane());
        if let Some(trace) = &mut self.trace {
            let place = (window.layer, window.part);
            trace.enter(window.lane(), place, window.rows());
        }
        if self.store.is_some() || self.trace.is_some() {
            self.note_decoding(window.rows());
        }
        Ok(())
    }

    fn leave(&mut self, _window: &mut Window<Self>) -> Result<(), CpuError> {
        if let Some(trace) = &mut self.trace {
            trace.leave();
        }
        Ok(())
    }

    const WEIGHTS: Place = Place::Mapped;
    const CACHES: Place = Place::Own;

    fn scratch_bytes(needs: &Needs, room: &Room) -> u64 {
        let residual = 4 * (needs.residual * (1 + needs.more_streams)) as u64;
        let hidden = size_of::<f32>() * predict::hidden_len(needs, room);
        let beside = usize::from(needs.predicts) * room.beside_rows().iter().sum::<usize>();
        scratch_row_bytes(needs) * (Lane::COUNT * room.rows) as u64
            + residual * (room.decode_rows + beside) as u64
            + (hidden + mixers::index_bytes(needs, room)) as u64
    }

    fn page_bytes(kv: &KvShape, kind: KvType) -> usize {
        mixers::page_bytes(kv, kind)
    }

    fn state_bytes(shape: &DeltaShape) -> usize {
        mixers::state_bytes(shape)
    }

    fn close_gap(&mut self, residual: &mut Vec<f32>, gone: Range<usize>, count: usize) {
        let width = self.streams * self.width;
        residual.copy_within(gone.end * width..count * width, gone.start * width);
    }

    fn reset(&mut self, slot: Slot) {
        self.caches.reset(slot);
    }

    fn cut(&mut self, slot: Slot, rows: usize) {
        self.caches.cut(slot, rows);
    }

    fn embed(&mut self, window: &mut Window<Self>, table: &Matrix) -> Result<(), CpuError> {
        let (rows, residual) = window.parts_mut();
        let all = self.streams * self.width;
        for (row, token) in residual.chunks_exact_mut(all).zip(rows.tokens()) {
            let (first, others) = row.split_at_mut(self.width);
            // ids are checked when a request is submitted; an id past the table would be a bug, not an input
            quant::dequantise(table.ty(), table.row(*token as usize), first)
                .expect("a row of the table has the residual's width");
            for other in others.chunks_exact_mut(self.width) {
                other.copy_from_slice(first);
            }
        }
        Ok(())
    }

    fn norm(&mut self, window: &Window<Self>, weight: &Vec<f32>, eps: f32) -> Result<(), CpuError> {
        let (isa, width, count) = (self.isa, self.width, window.rows().count());
        let residual = window.residual();
        let out = self.acts.rows_mut(Act::Normed, count, width);
        Self::each_row(&self.pool, out, width, width, |row, out| {
            math::rms_norm_into(isa, &residual[row * width..][..width], weight, eps, out);
        });
        Ok(())
    }

    fn add(&mut self, window: &mut Window<Self>) -> Result<(), CpuError> {
        let (isa, width) = (self.isa, self.width);
        let (rows, residual) = window.parts_mut();
        let branch = self.acts.rows(Act::Branch, rows.count(), width);
        Self::each_row(
            &self.pool,
            &mut residual[..rows.count() * width],
            width,
            width,
            |row, out| {
                math::add(isa, &branch[row * width..][..width], out);
            },
        );
        Ok(())
    }

    fn norm_branch(&mut self, rows: usize, weight: &Vec<f32>, eps: f32) -> Result<(), CpuError> {
        let (isa, width) = (self.isa, self.width);
        let branch = self.acts.rows_mut(Act::Branch, rows, width);
        Self::each_row(&self.pool, branch, width, width, |_, row| {
            math::rms_norm(isa, row, weight, eps);
        });
        Ok(())
    }

    fn scale(&mut self, window: &mut Window<Self>, factor: f32) -> Result<(), CpuError> {
        let width = self.width;
        let (rows, residual) = window.parts_mut();
        let residual = &mut residual[..rows.count() * width];
        Self::each_row(&self.pool, residual, width, width, |_, row| {
            row.iter_mut().for_each(|x| *x *= factor);
        });
        Ok(())
    }

    fn set_aside(&mut self, rows: usize) -> Result<(), CpuError> {
        let branch = self.acts.take(Act::Branch);
        let width = self.width;
        self.acts
            .rows_mut(Act::Aside, rows, width)
            .copy_from_slice(&branch[..rows * width]);
        self.acts.put(Act::Branch, branch);
        Ok(())
    }

    fn add_aside(&mut self, rows: usize) -> Result<(), CpuError> {
        let (isa, width) = (self.isa, self.width);
        let mut branch = self.acts.take(Act::Branch);
        let aside = self.acts.rows(Act::Aside, rows, width);
        Self::each_row(
            &self.pool,
            &mut branch[..rows * width],
            width,
            width,
            |row, out| math::add(isa, &aside[row * width..][..width], out),
        );
        self.acts.put(Act::Branch, branch);
        Ok(())
    }

    fn matmul(&mut self, rows: usize, from: Act, to: &[(&Matrix, Act)]) -> Result<(), CpuError> {
        self.products(rows, from, to);
        Ok(())
    }

    fn attend(&mut self, rows: &Rows, weights: &AttentionWeights<Self>) -> Result<(), CpuError> {
        self.attention(rows, weights);
        Ok(())
    }

    fn remember(&mut self, rows: &Rows, weights: &AttentionWeights<Self>) -> Result<(), CpuError> {
        self.append_keys(rows, weights);
        Ok(())
    }

    fn delta_net(&mut self, rows: &Rows, weights: &DeltaWeights<Self>) -> Result<(), CpuError> {
        self.gated_delta(rows, weights);
        Ok(())
    }

    fn bias(&mut self, rows: usize, act: Act, bias: &Vec<f32>) -> Result<(), CpuError> {
        let (isa, width) = (self.isa, bias.len());
        let out = self.acts.rows_mut(act, rows, width);
        Self::each_row(&self.pool, out, width, width, |_, row| {
            math::add(isa, bias, row)
        });
        Ok(())
    }

    fn activate(
        &mut self,
        rows: usize,
        width: usize,
        activation: Activation,
    ) -> Result<(), CpuError> {
        let isa = self.isa;
        let mut gate = self.acts.take(Act::Gate);
        let up = self.acts.rows(Act::Up, rows, width);
        Self::each_row(
            &self.pool,
            &mut gate[..rows * width],
            width,
            8 * width,
            |row, gate| {
                math::activate(isa, activation, &up[row * width..][..width], gate);
            },
        );
        self.acts.put(Act::Gate, gate);
        Ok(())
    }

    fn route(&mut self, rows: usize, weights: &RouteWeights<Self>) -> Result<(), CpuError> {
        let shape = &weights.shape;
        let logits = self.acts.rows_mut(Act::Router, rows, shape.experts);
        self.experts.route(&self.pool, self.isa, logits, weights);
        if let Some(trace) = &mut self.trace {
            trace.chosen(self.experts.chosen(rows * shape.used));
        }
        Ok(())
    }

    fn place(&mut self, rows: usize, shape: &RouteShape) -> Result<(), CpuError> {
        self.experts.group(rows, shape);
        Ok(())
    }

    fn run_experts(
        &mut self,
        rows: usize,
        weights: &ExpertWeights<Self>,
        share: ExpertShare,
    ) -> Result<(), CpuError> {
        self.feed_experts(rows, weights, share);
        Ok(())
    }

    fn head(
        &mut self,
        window: &Window<Self>,
        norm: HeadNorm<'_, Self>,
        output: &Matrix,
        softcap: Option<f32>,
    ) -> Result<(), CpuError> {
        self.normed(window, norm);
        self.whole_head(window.rows().logits().len(), output, softcap);
        Ok(())
    }

    fn head_among(
        &mut self,
        window: &Window<Self>,
        norm: HeadNorm<'_, Self>,
        outputs: [&Matrix; 2],
        softcap: Option<f32>,
        among: &[Option<&[Token]>],
    ) -> Result<(), CpuError> {
        self.normed(window, norm);
        self.listed_head(outputs, softcap, among);
        Ok(())
    }

    fn keep(
        &mut self,
        window: &Window<Self>,
        ahead: usize,
        norm: Option<(&Vec<f32>, f32)>,
    ) -> Result<(), CpuError> {
        self.keep_states(window, ahead, norm);
        Ok(())
    }

    fn pair(
        &mut self,
        window: &mut Window<Self>,
        states: States<'_, Self>,
        table: &Matrix,
        norms: [&Vec<f32>; 2],
        eps: f32,
    ) -> Result<(), CpuError> {
        self.pair_states(window, states, table, norms, eps)
    }

    fn project(
        &mut self,
        window: &mut Window<Self>,
        from: Act,
        matrix: &Matrix,
    ) -> Result<(), CpuError> {
        let (rows, residual) = window.parts_mut();
        let count = rows.count() * self.streams;
        self.quantise(count, from, matrix.inputs(), &[matrix.kind()]);
        self.product_into(matrix, count, residual);
        Ok(())
    }

    fn logits(&mut self, row: usize) -> Result<&[f32], CpuError> {
        Ok(&self.logits[row * self.vocab..][..self.vocab])
    }
}
