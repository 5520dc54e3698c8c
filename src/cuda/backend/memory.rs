//! Everything is planned, compared with what there is, and only then allocated.

use std::{collections::HashMap, iter::successors};

use cudarc::driver::{CudaEvent, result};

use super::{
    ChainBuffers, CudaError, CudaSettings, Device, DeviceMemory, During, Layout, Loading, Needs,
    Pending, Queue, Ready, Room,
    head::Results,
    layout,
    ngram::{self, NgramRows},
};
use crate::{
    backend::shape::Rope,
    cpu::kernels::ActKind,
    cuda::{
        compile::default_cache,
        forms::{form_of, mask},
        kernels::Kernels,
        memory::ALIGN,
        tables::{Tables, bucket},
    },
    engine::executor::PAGE_TOKENS,
    ledger::bytes,
    model::start::logits_rows,
};

/// **Units**: bytes that the driver, compiled kernels and recorded windows take, about: not ours to plan.
const RESERVE: u64 = 320 << 20;

/// Where each layer's part of a cache begins, and what they take together.
fn parts(sizes: impl Iterator<Item = usize>) -> (Vec<usize>, usize) {
    let mut at = 0;
    let starts = sizes
        .map(|bytes| {
            let start = at;
            at = (at + bytes).next_multiple_of(ALIGN);
            start
        })
        .collect();
    (starts, at)
}

/// **Units**: bytes. Residuals and tables of both lanes, and of a prediction block's windows.
fn window_bytes(needs: &Needs, room: &Room) -> usize {
    let beside = room.beside_rows().into_iter().filter(|_| needs.predicts);
    [room.decode_rows, room.rows]
        .into_iter()
        .chain(beside)
        .map(|rows| {
            let residual = 4 * bucket(rows) * needs.residual * (1 + needs.more_streams);
            residual + Tables::bytes(rows, room.slots, room.pages)
        })
        .sum::<usize>()
        + ngram::bytes(needs, room)
}

/// **Units**: bytes. Everything but weights, caches and logits.
pub(super) fn scratch_bytes(needs: &Needs, room: &Room) -> u64 {
    let rotations = Rotations::new(needs, layout::positions(room));
    let layout = Layout::new(needs, room).bytes;
    (layout + window_bytes(needs, room) + 4 * rotations.values) as u64 - logits_bytes(needs, room)
}

fn logits_bytes(needs: &Needs, room: &Room) -> u64 {
    (4 * room.logits_rows * needs.vocab) as u64
}

/// What the whole plan takes. **Units**: bytes.
struct Plan {
    weights: u64,
    kv: u64,
    states: u64,
    rest: u64,
}

impl Plan {
    fn new(weights: u64, needs: &Needs, room: &Room) -> Self {
        Self {
            weights,
            kv: kv_parts(needs, room).2 as u64,
            states: state_parts(needs, room).1 as u64,
            rest: scratch_bytes(needs, room) + logits_bytes(needs, room),
        }
    }

    fn total(&self) -> u64 {
        self.weights + self.kv + self.states + self.rest
    }
}

/// Where each attention layer's pages begin, and its pooled keys if it has an index, and what all take together.
fn kv_parts(needs: &Needs, room: &Room) -> (Vec<usize>, Vec<usize>, usize) {
    let shapes = needs.attention.iter();
    let pages =
        shapes.map(|shape| room.pages_of(shape) * layout::page_bytes(&shape.kv, room.kv_type));
    let pooled = needs.attention.iter().map(|shape| {
        let page = shape.index.map_or(0, |index| index.page_bytes());
        room.pages_of(shape) * page
    });
    let (mut kv, bytes) = parts(pages.chain(pooled));
    let index = kv.split_off(needs.attention.len());
    (kv, index, bytes)
}

/// Where each delta net's states begin, and what they take together.
fn state_parts(needs: &Needs, room: &Room) -> (Vec<usize>, usize) {
    let shapes = needs.delta.iter();
    parts(shapes.map(|shape| room.slots * layout::state_bytes(shape)))
}

/// Compiles, uploads and allocates.
pub(super) fn allocate(
    device: &Device,
    settings: &CudaSettings,
    loading: Loading,
    needs: &Needs,
    room: &Room,
) -> Result<Ready, CudaError> {
    let plan = Plan::new(loading.bytes() as u64, needs, room);
    let limit = limit(device, settings)?;
    tracing::info!(
        weights = bytes(plan.weights),
        kv = bytes(plan.kv),
        states = bytes(plan.states),
        working = bytes(plan.rest),
        may_use = bytes(limit),
        "device memory planned"
    );
    if plan.total() > limit {
        return Err(CudaError::DoesNotFit {
            needed: plan.total(),
            limit,
            advice: advice(plan.weights, limit, needs, room),
        });
    }
    let layout = Layout::new(needs, room);
    let (kv_at, index_at, kv) = kv_parts(needs, room);
    let (states_at, states) = state_parts(needs, room);
    let rotations = Rotations::new(needs, layout::positions(room));
    let types = [loading.dense_types(), loading.expert_types()].concat();
    let forms = types
        .iter()
        .fold(0, |all, ty| all | form_of(ActKind::of(*ty)))
        & !mask::FLOAT;
    let cache = settings.kernel_cache.clone().or_else(default_cache);
    let kernels = Kernels::load(device, cache.as_deref(), &loading, needs, room, &rotations)?;
    let zeroed = |bytes: usize| -> Result<DeviceMemory, CudaError> {
        let memory = DeviceMemory::new(&device.context, bytes)?;
        // SAFETY: the memory was just allocated, as long.
        unsafe { result::memset_d8_sync(memory.address(), 0, bytes) }.during("clearing memory")?;
        Ok(memory)
    };
    let (kv, states, work) = (
        zeroed(kv.max(1))?,
        zeroed(states.max(1))?,
        zeroed(layout.bytes)?,
    );
    let turns = DeviceMemory::new(&device.context, 4 * rotations.values)?;
    rotations.send(&turns)?;
    let weights = loading.finish(device)?;
    let event = || -> Result<CudaEvent, CudaError> {
        use cudarc::driver::sys::CUevent_flags as Flags;
        let blocking = Flags::CU_EVENT_BLOCKING_SYNC;
        device
            .context
            .new_event(Some(blocking))
            .during("making an event")
    };
    device.finish()?;
    Ok(Ready {
        graphs: HashMap::new(),
        steps: HashMap::new(),
        chain: ChainBuffers::new(device, room.slots)?,
        recorded: None,
        kernels,
        room: *room,
        width: needs.residual,
        streams: 1 + needs.more_streams,
        vocab: needs.vocab,
        processors: device.processors as usize,
        forms,
        now: None,
        pending: Pending::default(),
        formed: None,
        slice: [event()?, event()?],
        slices: 0,
        results: Results::new(device, room.logits_rows, needs.vocab)?,
        turns,
        kv,
        kv_at,
        index_at,
        ngrams: NgramRows::both(device, needs, room)?,
        states,
        states_at,
        work,
        weights,
        layout,
        queue: Queue {
            stream: device.stream.clone(),
            overlap: false,
        },
        overlaps: device.capability >= 90,
    })
}

/// **Units**: bytes. Device memory that may be used.
fn limit(device: &Device, settings: &CudaSettings) -> Result<u64, CudaError> {
    let (free, _) = device.memory()?;
    let there = free.saturating_sub(RESERVE);
    Ok(settings.vram.map_or(there, |asked| asked.min(there)))
}

/// **Units**: tokens. A shorter context is not worth advising.
const CONTEXT_LEAST: usize = 256;
/// Smaller chunks save little.
const CHUNK_LEAST: usize = 64;

/// The settings that would fit, each by itself, or the least of all.
fn advice(weights: u64, limit: u64, needs: &Needs, room: &Room) -> String {
    let fits = |room: &Room| Plan::new(weights, needs, room).total() <= limit;
    let halves = |most: usize, least| {
        let halves = successors(Some(most / 2), |half| Some(half / 2));
        halves.take_while(move |half| *half >= least)
    };
    let mut slots = (1..room.slots).rev();
    let slots = slots.find(|slots| fits(&with_slots(*room, *slots)));
    let mut contexts = halves(layout::positions(room), CONTEXT_LEAST);
    let context = contexts.find(|tokens| fits(&with_context(*room, *tokens)));
    let mut chunks = halves(room.rows, CHUNK_LEAST);
    let chunk = chunks.find(|rows| fits(&with_chunk(*room, *rows)));
    let ways: Vec<String> = [("slots", slots), ("ctx", context), ("chunk-rows", chunk)]
        .into_iter()
        .filter_map(|(name, value)| Some(format!("--{name} {}", value?)))
        .collect();
    if !ways.is_empty() {
        return format!("{} would fit", ways.join(" or "));
    }
    let least = with_context(with_slots(*room, 1), CONTEXT_LEAST);
    let least = with_chunk(least, CHUNK_LEAST);
    let needed = Plan::new(weights, needs, &least).total();
    if needed <= limit {
        return format!("--slots 1 --ctx {CONTEXT_LEAST} --chunk-rows {CHUNK_LEAST} would fit");
    }
    format!(
        "the least that would do is {}, weights of {} included; the CPU reads these where the file is mapped",
        bytes(needed),
        bytes(weights)
    )
}

/// The same for other numbers of sequences, each as long.
fn with_slots(room: Room, slots: usize) -> Room {
    Room {
        slots,
        decode_rows: room.decode_rows - room.logits_rows + logits_rows(slots),
        logits_rows: logits_rows(slots),
        pages: room.pages / room.slots * slots,
        ..room
    }
}

/// The same for sequences of another length.
fn with_context(room: Room, tokens: usize) -> Room {
    Room {
        pages: room.slots * tokens.div_ceil(PAGE_TOKENS),
        ..room
    }
}

/// The same for other chunks.
fn with_chunk(room: Room, rows: usize) -> Room {
    Room {
        rows: rows.max(room.decode_rows),
        ..room
    }
}

/// Cosines and sines of every position, once for every kind of rotation.
pub(in crate::cuda) struct Rotations<'a> {
    kinds: Vec<&'a Rope>,
    starts: Vec<usize>,
    positions: usize,
    /// Floats of all of them.
    values: usize,
}

impl<'a> Rotations<'a> {
    fn new(needs: &'a Needs, positions: usize) -> Self {
        let mut kinds: Vec<&Rope> = Vec::new();
        for shape in &needs.attention {
            if !kinds.contains(&&shape.rope) {
                kinds.push(&shape.rope);
            }
        }
        let mut values = 0;
        let starts = kinds
            .iter()
            .map(|kind| {
                let start = values;
                values += 2 * kind.frequencies.len() * positions;
                start
            })
            .collect();
        Self {
            kinds,
            starts,
            positions,
            values,
        }
    }

    /// Where the table of this rotation begins, in floats.
    pub(in crate::cuda) fn start(&self, rope: &Rope) -> usize {
        let kind = self.kinds.iter().position(|kind| *kind == rope);
        kind.map_or(0, |kind| self.starts[kind])
    }

    /// **Shapes**: `[positions, 2, n / 2] f32`, cosines, then sines: as the CPU computes them, angles in f64 from f32 frequencies.
    fn send(&self, to: &DeviceMemory) -> Result<(), CudaError> {
        for (kind, start) in self.kinds.iter().zip(&self.starts) {
            let of = &kind.frequencies;
            let mut table = Vec::with_capacity(2 * of.len() * self.positions);
            let scaled = |x: f64| x as f32 * kind.magnitude;
            for position in 0..self.positions {
                let angle = |frequency: &f64| position as f64 * f64::from(*frequency as f32);
                table.extend(of.iter().map(|frequency| scaled(angle(frequency).cos())));
                table.extend(of.iter().map(|frequency| scaled(angle(frequency).sin())));
            }
            // SAFETY: the memory has room for all tables.
            unsafe { result::memcpy_htod_sync(to.address() + 4 * *start as u64, &table) }
                .during("uploading rotations")?;
        }
        Ok(())
    }
}
