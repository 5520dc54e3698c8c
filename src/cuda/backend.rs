//! The device as a [`Backend`]: ops enqueue kernels on its stream and return.
//!
//! What can be one kernel with what follows is put off until that is known: an addition joins the norm after it, the experts' weighted sum joins both.

use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};

use cudarc::driver::{CudaEvent, CudaGraph};

use super::{
    device::Device,
    error::{CudaError, During},
    forms::{Forms, form_of, mask},
    kernels::Kernels,
    launch::{Grid, Queue, launch},
    layout::{self, Layout},
    memory::{DeviceMemory, Pinned},
    tables::{FEW_ROWS, RowTables, Tables, bucket},
    weights::{Experts, Loading, Matrix, Vector, device_bytes},
};
use crate::{
    backend::{
        Act, AttentionWeights, Backend, DeltaWeights, ExpertShare, ExpertSource, ExpertWeights,
        HeadNorm, MatrixSource, Needs, NgramWeights, Room, RouteShape, RouteWeights, States,
        StreamWeights,
        chain::Chain,
        shape::{Activation, DeltaShape, KvShape, KvType, NgramShape},
        torn::TornRows,
    },
    engine::{
        executor::{Outcome, Slot, Torn},
        request::Token,
    },
    gguf::{Gguf, Tensor},
    ledger::Place,
    model::window::{Rows, Window},
    settings::CudaSettings,
    table::{Ngrams, Table, TableStats, Tables as NgramTables},
};

mod experts;
mod head;
mod index;
mod memory;
mod mixers;
mod ngram;
mod pending;
mod predict;
mod products;
mod record;
mod streams;
mod window;

pub(super) use memory::Rotations;
use ngram::NgramRows;
use pending::{ExpertSums, Pending};
use predict::ChainBuffers;
pub(super) use predict::ChainTable;

/// A model's residual rows and row tables on the device, one of each a lane.
pub struct Residual {
    memory: DeviceMemory,
    tables: Tables,
    /// The rows have changed since the tables were sent.
    stale: bool,
    /// Positions that the device moves its rows ahead by itself, if it draws their successors.
    ahead: Option<usize>,
}

/// The CUDA backend.
pub struct Cuda {
    device: Device,
    settings: CudaSettings,
    loading: Loading,
    ready: Option<Box<Ready>>,
    ngrams: Ngrams,
    tables: NgramTables,
    torn: TornRows,
}

/// What there is once everything is allocated.
struct Ready {
    // graphs hold addresses of everything below: they go first
    graphs: HashMap<(usize, usize), CudaGraph>,
    /// Steps of predictions, likewise.
    steps: HashMap<(usize, usize), CudaGraph>,
    /// A window that was recorded for a measure.
    recorded: Option<CudaGraph>,
    kernels: Kernels,
    layout: Layout,
    room: Room,
    /// Of a stream of the residual.
    width: usize,
    streams: usize,
    vocab: usize,
    /// Multiprocessors.
    processors: usize,
    /// Forms that some product reads.
    forms: u32,
    now: Option<Now>,
    pending: Pending,
    /// The buffer whose rows the forms hold.
    formed: Option<Act>,
    slice: [CudaEvent; 2],
    slices: usize,
    results: head::Results,
    chain: ChainBuffers,
    /// Rotations, `[positions, 2, n / 2] f32` for each kind.
    turns: DeviceMemory,
    /// All layers' KV pages, and where each layer's begin.
    kv: DeviceMemory,
    kv_at: Vec<usize>,
    /// Where those of their pooled keys begin.
    index_at: Vec<usize>,
    /// If the model has n-grams.
    ngrams: Option<[NgramRows; 2]>,
    /// All layers' recurrent states, and where each layer's begin.
    states: DeviceMemory,
    states_at: Vec<usize>,
    work: DeviceMemory,
    weights: DeviceMemory,
    queue: Queue,
    /// Whether the device lets kernels begin before others have ended.
    overlaps: bool,
}

/// The window that ops are about.
#[derive(Clone, Copy)]
struct Now {
    tables: RowTables,
    want: u64,
    /// Rows that launches are made for: no fewer than there are.
    rows: usize,
    /// Sequences that launches are made for.
    spans: usize,
    /// Rows with logits that launches are made for.
    asked: usize,
    /// Splits of the context that launches are made for.
    splits: usize,
    residual: u64,
    /// What comes of the rows stays on the device, where their successors are drawn.
    draws: bool,
}

impl Now {
    fn few(&self) -> bool {
        self.rows <= FEW_ROWS
    }
}

impl Cuda {
    /// A device with nothing on it.
    pub fn new(device: Device, settings: CudaSettings) -> Self {
        Self {
            device,
            settings,
            loading: Loading::default(),
            ready: None,
            ngrams: Ngrams::default(),
            tables: NgramTables::default(),
            torn: TornRows::default(),
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What reading rows of a table has been like, where the model has one.
    pub fn table_stats(&self) -> &TableStats {
        self.tables.stats()
    }

    /// Experts that the layer computed last has read. Waits for the device.
    pub fn experts_read(&self) -> Result<usize, CudaError> {
        self.ready
            .as_ref()
            .map_or(Ok(0), |ready| ready.experts_read())
    }

    fn ready(&mut self) -> &mut Ready {
        self.ready
            .as_mut()
            .expect("everything is allocated before the first window")
    }
}

impl Ready {
    fn now(&self) -> Now {
        self.now.expect("ops stand between `enter` and `leave`")
    }

    /// The address of a buffer of activations.
    fn act(&self, act: Act) -> u64 {
        self.work.address() + self.layout.acts[act as usize] as u64
    }

    fn forms(&self) -> Forms {
        self.layout.forms.at(self.work.address())
    }

    /// What is written of rows of `width` values: floats, and the forms that products of such rows read.
    fn forms_for(&self, width: usize) -> u32 {
        let possible = if width.is_multiple_of(256) {
            mask::WIDE | mask::NARROW
        } else {
            mask::NARROW
        };
        self.forms & possible | mask::FLOAT
    }

    fn at(&self, offset: usize) -> u64 {
        self.work.address() + offset as u64
    }

    fn weight(&self, offset: usize) -> u64 {
        self.weights.address() + offset as u64
    }

    fn vector(&self, vector: Option<&Vector>) -> u64 {
        vector.map_or(0, |vector| self.weight(vector.at))
    }

    /// Rows of a table, each so many times side by side. Begins a window.
    fn embed(
        &mut self,
        table: &Matrix,
        (to, copies): (u64, usize),
        tables: RowTables,
    ) -> Result<(), CudaError> {
        let now = self.now();
        let grid = Grid::new([table.inputs.div_ceil(256), now.rows, copies], 32);
        let row_bytes = (table.bytes() / table.outputs) as u64;
        // SAFETY: the parameters of `embed`; tokens are below the table's rows, as requests are checked.
        let embedded = unsafe {
            launch!(&self.queue, &self.kernels.embed, grid;
                self.weight(table.at), table.ty as u32, table.inputs as u32, row_bytes, to, tables)
        };
        // the first kernel of a window waits for its tables; those after it overlap
        self.queue.overlap = self.overlaps && now.few();
        embedded
    }
}

impl Backend for Cuda {
    const NAME: &'static str = "cuda";
    const GAP_MAX: Duration = Duration::from_millis(30);
    const CHUNK_ROWS: usize = 4096;
    const SPARE_ROWS: usize = 8;
    /// A layer is short beside the pauses that streams may have, and what ends one is fused with what begins the next.
    const PARTED: bool = false;
    const SLICES_AHEAD: usize = 1;
    const LANES_ALIKE: bool = false;
    const CANDIDATES: usize = layout::CANDIDATES;

    type Error = CudaError;
    type Matrix = Matrix;
    type Experts = Experts;
    type Vector = Vector;
    type Residual = Residual;
    type Table = Arc<Table>;

    fn matrix(&mut self, file: &Arc<Gguf>, source: MatrixSource) -> Result<Matrix, CudaError> {
        Ok(self.loading.matrix(file, &source))
    }

    fn experts(&mut self, file: &Arc<Gguf>, source: ExpertSource) -> Result<Experts, CudaError> {
        Ok(self.loading.experts(file, &source))
    }

    fn vector(&mut self, values: Vec<f32>) -> Result<Vector, CudaError> {
        Ok(self.loading.vector(values))
    }

    fn allocate(&mut self, needs: &Needs, room: &Room) -> Result<(), CudaError> {
        let loading = std::mem::take(&mut self.loading);
        self.ngrams = Ngrams::new(needs, room);
        self.ready = Some(Box::new(memory::allocate(
            &self.device,
            &self.settings,
            loading,
            needs,
            room,
        )?));
        Ok(())
    }

    fn residual(&mut self, rows: usize) -> Result<Residual, CudaError> {
        let (width, streams, room) = {
            let ready = self.ready();
            (ready.width, ready.streams, ready.room)
        };
        // launches are made for whole buckets, and blocks may load their row before they know that there is none
        let bytes = 4 * bucket(rows) * streams * width;
        Ok(Residual {
            memory: DeviceMemory::new(&self.device.context, bytes)?,
            tables: Tables::new(&self.device, rows, room.slots, room.pages, streams)?,
            stale: false,
            ahead: None,
        })
    }

    const WEIGHTS: Place = Place::Device;
    const CACHES: Place = Place::Device;

    fn weight_bytes(tensor: &Tensor) -> u64 {
        device_bytes(tensor)
    }

    fn scratch_bytes(needs: &Needs, room: &Room) -> u64 {
        memory::scratch_bytes(needs, room)
    }

    fn page_bytes(kv: &KvShape, kind: KvType) -> usize {
        layout::page_bytes(kv, kind)
    }

    fn state_bytes(shape: &DeltaShape) -> usize {
        layout::state_bytes(shape)
    }

    fn begin(&mut self, window: &mut Window<Self>) -> Result<(), CudaError> {
        window.residual.stale = true;
        if window.is_beside() {
            return Ok(()); // no n-grams there
        }
        let lane = window.lane();
        let found = self.ngrams.find(window.rows());
        if !found.is_empty() {
            self.tables.ask(lane, found);
        }
        self.ready().await_ngrams(lane);
        Ok(())
    }

    fn ahead(&mut self, slot: Slot, first: usize, tokens: &[Token]) {
        let found = self.ngrams.find_ahead(slot, first, tokens);
        if !found.is_empty() {
            self.tables.ahead(found);
        }
    }

    fn torn(&mut self, window: &Window<Self>) -> Option<Torn> {
        self.torn.take(window.rows())
    }

    fn enter(&mut self, window: &mut Window<Self>) -> Result<(), CudaError> {
        self.ready().enter(window)
    }

    fn leave(&mut self, _window: &mut Window<Self>) -> Result<(), CudaError> {
        self.ready().leave()
    }

    fn whole(
        &mut self,
        window: &mut Window<Self>,
        enqueue: impl FnOnce(&mut Self, &mut Window<Self>) -> Result<(), CudaError>,
    ) -> Result<bool, CudaError> {
        window::whole(self, window, enqueue)
    }

    fn close_gap(&mut self, residual: &mut Residual, gone: Range<usize>, count: usize) {
        self.ready().close_gap(residual, gone, count);
    }

    fn reset(&mut self, _slot: Slot) {
        // a sequence that begins at position 0 reads no state
    }

    fn cut(&mut self, _slot: Slot, _rows: usize) {
        // rows are taken back by giving their positions again
    }

    fn embed(&mut self, window: &mut Window<Self>, table: &Matrix) -> Result<(), CudaError> {
        let _ = window;
        let ready = self.ready();
        let now = ready.now();
        let to = (now.residual, ready.streams);
        ready.embed(table, to, now.tables)
    }

    fn norm(&mut self, _window: &Window<Self>, weight: &Vector, eps: f32) -> Result<(), CudaError> {
        self.ready().norm(weight, eps)
    }

    fn add(&mut self, _window: &mut Window<Self>) -> Result<(), CudaError> {
        self.ready().add()
    }

    fn table(
        &mut self,
        file: &Arc<Gguf>,
        source: MatrixSource,
        _shape: &NgramShape,
    ) -> Result<Arc<Table>, CudaError> {
        let table = Arc::new(Table::new(file.clone(), source));
        self.tables.open(&table);
        Ok(table)
    }

    fn read_streams(
        &mut self,
        _window: &Window<Self>,
        weights: &StreamWeights<Self>,
    ) -> Result<(), CudaError> {
        self.ready().read_streams(weights)
    }

    fn add_to_streams(&mut self, _window: &mut Window<Self>) -> Result<(), CudaError> {
        self.ready().add()
    }

    fn add_ngrams(
        &mut self,
        window: &mut Window<Self>,
        weights: &NgramWeights<Self>,
    ) -> Result<(), CudaError> {
        self.bring_ngrams(window)?;
        self.ready().add_ngrams(window.lane(), weights)
    }

    fn norm_branch(&mut self, _rows: usize, weight: &Vector, eps: f32) -> Result<(), CudaError> {
        self.ready().norm_branch(weight, eps)
    }

    fn scale(&mut self, _window: &mut Window<Self>, factor: f32) -> Result<(), CudaError> {
        self.ready().scale(factor)
    }

    fn set_aside(&mut self, _rows: usize) -> Result<(), CudaError> {
        self.ready().set_aside()
    }

    fn add_aside(&mut self, _rows: usize) -> Result<(), CudaError> {
        self.ready().add_aside()
    }

    fn matmul(&mut self, _rows: usize, from: Act, to: &[(&Matrix, Act)]) -> Result<(), CudaError> {
        self.ready().matmul(from, to)
    }

    fn attend(&mut self, _rows: &Rows, weights: &AttentionWeights<Self>) -> Result<(), CudaError> {
        self.ready().attend(weights)
    }

    fn remember(
        &mut self,
        _rows: &Rows,
        weights: &AttentionWeights<Self>,
    ) -> Result<(), CudaError> {
        self.ready().prepare(weights, 0)
    }

    fn delta_net(&mut self, _rows: &Rows, weights: &DeltaWeights<Self>) -> Result<(), CudaError> {
        self.ready().delta_net(weights)
    }

    fn bias(&mut self, _rows: usize, act: Act, bias: &Vector) -> Result<(), CudaError> {
        self.ready().bias(act, bias)
    }

    fn activate(
        &mut self,
        _rows: usize,
        width: usize,
        _activation: Activation,
    ) -> Result<(), CudaError> {
        // the kernel is compiled for the one activation that the model has
        self.ready().swiglu(width)
    }

    fn route(&mut self, _rows: usize, weights: &RouteWeights<Self>) -> Result<(), CudaError> {
        self.ready().route(weights)
    }

    fn place(&mut self, _rows: usize, shape: &RouteShape) -> Result<(), CudaError> {
        self.ready().place(shape)
    }

    fn run_experts(
        &mut self,
        _rows: usize,
        weights: &ExpertWeights<Self>,
        _share: ExpertShare, // all of them: slices are whole layers
    ) -> Result<(), CudaError> {
        self.ready().run_experts(weights)
    }

    fn head(
        &mut self,
        _window: &Window<Self>,
        norm: HeadNorm<'_, Self>,
        output: &Matrix,
        softcap: Option<f32>,
    ) -> Result<(), CudaError> {
        self.ready().head(norm, output, softcap)
    }

    fn keep(
        &mut self,
        _window: &Window<Self>,
        ahead: usize,
        norm: Option<(&Vector, f32)>,
    ) -> Result<(), CudaError> {
        self.ready().keep(ahead, norm)
    }

    fn pair(
        &mut self,
        window: &mut Window<Self>,
        states: States<'_, Self>,
        table: &Matrix,
        norms: [&Vector; 2],
        eps: f32,
    ) -> Result<(), CudaError> {
        self.ready().pair(window, states, table, norms, eps)
    }

    fn project(
        &mut self,
        _window: &mut Window<Self>,
        from: Act,
        matrix: &Matrix,
    ) -> Result<(), CudaError> {
        self.ready().project(from, matrix)
    }

    fn chain(
        &mut self,
        window: &mut Window<Self>,
        chain: Chain<'_>,
        step: impl Fn(&mut Self, &mut Window<Self>, &[Option<&[Token]>]) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        predict::chain(self, window, chain, step)
    }

    fn settle(&mut self, window: &Window<Self>) -> Result<(), CudaError> {
        self.ready().settle(window.rows())
    }

    fn outcome(&mut self, row: usize) -> Result<Outcome<'_>, CudaError> {
        self.ready().outcome(row)
    }

    fn logits(&mut self, row: usize) -> Result<&[f32], CudaError> {
        self.ready().logits(row)
    }
}
