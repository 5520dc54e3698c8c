//! The experts of a window: each expert's weights are read once for all rows that chose it.
//!
//! Experts are read where the file is mapped, all at once; or, where memory is for some of them only, from a [`Store`]: whoever is there first, the others as they come. Which way changes
//! no bit: an expert's rows have places of their own, and they are added up in the order of rank when all are there.
//!
//! Three regions: gate, up, activation and requantisation by (expert, part of the intermediate); down projections by (expert, outputs); the
//! weighted sum by row. The shared expert takes part as one more expert, which every row chose. On the prompt lane experts come in two shares; those of a store
//! all with the second, for what is on its way to a slot must arrive before others ask.

use std::ops::Range;

use super::{Cpu, Experts, Matrix, products::task_outputs};
use crate::{
    backend::{Act, ExpertShare, ExpertWeights, Needs, RouteShape, RouteWeights},
    cpu::{
        isa::Isa,
        kernels::{ActKind, Acts, Matmul, OutRows, matmul},
        math,
        pool::{Disjoint, Pool},
        route::{Combine, ExpertBias, Groups, Router, SharedExpert},
        store::Store,
    },
    quant::BlockType,
    residency::tier::Want,
};

/// Units of the intermediate that a task computes are a multiple of this: whole blocks of every quantised form.
const PART: usize = 256;
/// Units that a task computes at most. A job's first outputs come slowly (nobody asked for their bytes ahead), so with enough experts for all
/// workers a task takes a whole one.
const PART_MAX: usize = 1024;
/// Gate, and as many up, values that a task has room for: they stay in the second-level cache.
const ROOM: usize = 64 * 1024;

/// What routing leaves behind, and room for the experts' intermediates.
///
/// All that there is between two shares of a layer's experts, so each lane has its own.
#[derive(Default)]
pub(super) struct ExpertScratch {
    /// `[rows, used] u16`, by rank.
    ids: Vec<u16>,
    /// `[rows, used] f32`, by rank.
    weights: Vec<f32>,
    groups: Groups,
    /// The window's row of each of the groups' places.
    rows: Vec<u32>,
    /// Row `i`: the intermediate of place `i` (row and rank in one number).
    hidden: Acts,
    /// `[rows, used, d] f32`
    outputs: Vec<f32>,
    /// Row `i`: the shared expert's intermediate of row `i`.
    shared_hidden: Acts,
    /// `[rows, d] f32`
    shared_outputs: Vec<f32>,
    /// Experts that are to be computed now.
    share: Range<usize>,
    /// What the window wants of a store.
    wants: Vec<Want>,
    /// `[workers]`: gate and up values of a task's rows, `[2, ROOM] f32`.
    parts: Vec<Vec<f32>>,
}

/// How a layer chooses.
pub(super) fn router(weights: &RouteWeights<Cpu>) -> Router<'_> {
    let shape = &weights.shape;
    Router {
        experts: shape.experts,
        top_k: shape.used,
        gating: shape.gating,
        bias: weights.bias.as_deref(),
        choice_bias: weights.choice_bias.as_deref(),
        expert_scale: weights.expert_scale.as_deref(),
        renormalise: shape.normalise,
        scale: shape.scale,
    }
}

/// One expert at work: the routed and the shared ones look alike to the regions.
struct Job<'a> {
    gate: (BlockType, &'a [u8]),
    up: (BlockType, &'a [u8]),
    down: (BlockType, &'a [u8]),
    width: usize,
    /// Rows of the window that use it.
    rows: &'a [u32],
    /// Where the intermediates and the outputs of these rows lie.
    places: &'a [u32],
    /// Of gate and up, `[width]` each.
    bias: Option<[&'a [f32]; 2]>,
    shared: bool,
}

impl ExpertScratch {
    pub(super) fn new(needs: &Needs, rows: usize, workers: usize) -> Self {
        if needs.experts_used == 0 {
            return Self::default();
        }
        let places = rows * needs.experts_used;
        Self {
            ids: vec![0; places],
            weights: vec![0.0; places],
            rows: Vec::with_capacity(places),
            outputs: vec![0.0; places * needs.residual],
            shared_outputs: vec![0.0; rows * needs.residual],
            parts: (0..workers).map(|_| vec![0.0; 2 * ROOM]).collect(),
            ..Self::default()
        }
    }

    pub(super) fn route(
        &mut self,
        pool: &Pool,
        isa: Isa,
        logits: &mut [f32],
        weights: &RouteWeights<Cpu>,
    ) {
        let shape = &weights.shape;
        let places = logits.len() / shape.experts * shape.used;
        router(weights).run(
            pool,
            isa,
            logits,
            &mut self.ids[..places],
            &mut self.weights[..places],
        );
    }

    /// What the last [`route`](Self::route) chose, `[rows, used] u16`.
    pub(super) fn chosen(&self, places: usize) -> &[u16] {
        &self.ids[..places]
    }

    pub(super) fn group(&mut self, rows: usize, shape: &RouteShape) {
        self.groups
            .fill(shape.experts, &self.ids[..rows * shape.used]);
        self.rows.clear();
        self.rows.extend(
            self.groups
                .places()
                .iter()
                .map(|place| place / shape.used as u32),
        );
    }
}

impl Cpu {
    /// `Branch` = weighted sum of the chosen experts' outputs for `Normed`. Rows whose experts cannot be read are torn.
    pub(super) fn feed_experts(
        &mut self,
        rows: usize,
        weights: &ExpertWeights<Self>,
        share: ExpertShare,
    ) {
        let stored = weights.gate.home().is_some() && self.store.is_some();
        let share = match (share, stored) {
            (ExpertShare::First, true) => return,
            (ExpertShare::Others, true) => ExpertShare::All,
            (share, _) => share,
        };
        let mut scratch = std::mem::take(&mut self.experts);
        let (middle, all) = (scratch.groups.middle(), scratch.groups.starts().len() - 1);
        scratch.share = match share {
            ExpertShare::First => 0..middle,
            ExpertShare::Others => middle..all,
            ExpertShare::All => 0..all,
        };
        if share != ExpertShare::Others {
            self.prepare(rows, weights, &mut scratch);
        }
        match (weights.gate.home(), self.store.take()) {
            (Some(home), Some(mut store)) => {
                self.feed_from_store(rows, weights, home.layer, &mut scratch, &mut store);
                self.store = Some(store);
            }
            (_, store) => {
                self.store = store;
                self.feed_from_file(rows, weights, &mut scratch, share);
            }
        }
        if share != ExpertShare::First {
            self.combine(rows, weights, &scratch);
        }
        self.experts = scratch;
    }

    /// Rows in the forms that experts read, and room for what they make of them.
    fn prepare(&mut self, rows: usize, weights: &ExpertWeights<Self>, scratch: &mut ExpertScratch) {
        let shared = weights.shared.as_ref();
        let kinds = [
            weights.gate.kind(),
            weights.up.kind(),
            shared.map_or(weights.gate.kind(), |shared| shared.gate.kind()),
            shared.map_or(weights.up.kind(), |shared| shared.up.kind()),
        ];
        self.quantise(rows, Act::Normed, self.width, &kinds);
        scratch.hidden.reserve(
            weights.down.kind(),
            scratch.groups.places().len(),
            weights.width,
        );
        if let Some(shared) = shared {
            scratch
                .shared_hidden
                .reserve(shared.down.kind(), rows, shared.width);
        }
    }

    /// A share of the experts at once, where the file is mapped.
    fn feed_from_file(
        &mut self,
        rows: usize,
        weights: &ExpertWeights<Self>,
        scratch: &mut ExpertScratch,
        share: ExpertShare,
    ) {
        if self.cold_windows > 0 {
            let now = |(expert, _): &(usize, &[u32])| scratch.share.contains(expert);
            for (expert, _) in scratch.groups.iter().filter(now) {
                weights.gate.fetch(expert);
                weights.up.fetch(expert);
                weights.down.fetch(expert);
            }
        }
        // the shared expert comes with the second share: the first has routing before it
        let shared = share != ExpertShare::First;
        self.regions(rows, weights, scratch, Shelf::File, shared);
        if let (Some(layer), true) = (weights.gate.layer(), shared) {
            self.look_ahead(rows, layer, None);
        }
    }

    /// Whoever is in memory first, then the others as they come.
    fn feed_from_store(
        &mut self,
        rows: usize,
        weights: &ExpertWeights<Self>,
        layer: usize,
        scratch: &mut ExpertScratch,
        store: &mut Store,
    ) {
        let mut wants = std::mem::take(&mut scratch.wants);
        wants.clear();
        let used = scratch.groups.places().len() / rows;
        wants.extend(scratch.groups.iter().map(|(expert, places)| {
            let decodes =
                |place: &&u32| *self.decoding.get(**place as usize / used).unwrap_or(&true);
            let decode_rows = places.iter().filter(decodes).count() as u32;
            Want {
                expert: expert as u16,
                decode_rows,
                prompt_rows: places.len() as u32 - decode_rows,
            }
        }));
        store.chosen(layer, &scratch.ids[..rows * used], used);
        store.visit(layer, &wants);
        scratch.wants = wants;
        let experts = scratch.groups.starts().len() - 1;
        let mut left = store.take(false, experts);
        self.regions(rows, weights, scratch, Shelf::Store(store), true);
        self.look_ahead(rows, layer, Some(store));
        while left > 0 {
            left = store.take(true, experts);
            self.regions(rows, weights, scratch, Shelf::Store(store), false);
        }
        for (expert, error) in store.failures() {
            let places = scratch.groups.of(usize::from(expert)).iter();
            let rows = places.map(|place| place / used as u32);
            self.torn.add(rows);
            self.torn.because(error);
        }
        store.finish();
    }

    /// Whoever is on the shelf, and the shared expert if it is his turn.
    fn regions(
        &mut self,
        rows: usize,
        weights: &ExpertWeights<Self>,
        scratch: &mut ExpertScratch,
        shelf: Shelf<'_>,
        shared: bool,
    ) {
        if shelf.is_empty() && (!shared || weights.shared.is_none()) {
            return;
        }
        self.hidden_region(rows, weights, scratch, shelf, shared);
        self.down_region(rows, weights, scratch, shelf, shared);
    }

    /// Gate, up, activation and requantisation of the experts on the shelf.
    fn hidden_region(
        &mut self,
        rows: usize,
        weights: &ExpertWeights<Self>,
        scratch: &mut ExpertScratch,
        shelf: Shelf<'_>,
        shared_too: bool,
    ) {
        let (isa, normed) = (self.isa, &self.quantised);
        let plenty = scratch.groups.iter().count() >= 4 * self.pool.workers();
        let step = if plenty { PART_MAX } else { PART };
        let (routed, shared) = (scratch.hidden.writer(), scratch.shared_hidden.writer());
        let jobs = Jobs::new(
            (&scratch.groups, &scratch.share),
            &scratch.rows,
            weights,
            shelf,
            shared_too.then_some(&self.row_numbers[..rows]),
            |job| job.width.div_ceil(step),
        );
        self.moved_bytes += jobs.weight_bytes();
        let parts = Disjoint::new(&mut scratch.parts);
        let kernels = Disjoint::new(&mut self.scratch);
        self.pool.run(jobs.tasks(), |task, worker| {
            let (job, part) = jobs.find(task);
            // SAFETY: a worker runs one task at a time, so each worker's room has one user.
            let (part_room, kernel) =
                unsafe { (&mut parts.nth(worker, 1)[0], &mut kernels.nth(worker, 1)[0]) };
            let writer = if job.shared { &shared } else { &routed };
            let columns = part * step..job.width.min((part + 1) * step);
            let count = ROOM / columns.len();
            for (rows, places) in job.rows.chunks(count).zip(job.places.chunks(count)) {
                let (gate, up) = part_room.split_at_mut(ROOM);
                let bias = job.bias.map(|bias| bias.map(|bias| &bias[columns.clone()]));
                for ((ty, bytes), out) in [(job.gate, &mut *gate), (job.up, &mut *up)] {
                    let acts = normed.form(ActKind::of(ty));
                    let row_bytes = bytes.len() / job.width;
                    let job = Matmul {
                        ty,
                        weights: &bytes[columns.start * row_bytes..],
                        k: acts.k(),
                        outputs: 0..columns.len(),
                        acts,
                        rows,
                        out: OutRows::new(out, columns.len()),
                    };
                    matmul(isa, &job, kernel);
                }
                for ((gate, up), place) in gate
                    .chunks_exact_mut(columns.len())
                    .zip(up.chunks_exact_mut(columns.len()))
                    .zip(places)
                {
                    if let Some([of_gate, of_up]) = bias {
                        math::add(isa, of_gate, gate);
                        math::add(isa, of_up, up);
                    }
                    math::activate(isa, weights.activation, up, gate);
                    // SAFETY: this part of this intermediate is this task's alone.
                    unsafe { writer.write_part(isa, *place as usize, columns.start, gate) };
                }
            }
        });
    }

    /// Down projections of the experts on the shelf.
    fn down_region(
        &mut self,
        rows: usize,
        weights: &ExpertWeights<Self>,
        scratch: &mut ExpertScratch,
        shelf: Shelf<'_>,
        shared_too: bool,
    ) {
        let (isa, width, workers) = (self.isa, self.width, self.pool.workers());
        let step = |job: &Job<'_>| task_outputs(width, job.down.1.len() / width, workers);
        let jobs = Jobs::new(
            (&scratch.groups, &scratch.share),
            &scratch.rows,
            weights,
            shelf,
            shared_too.then_some(&self.row_numbers[..rows]),
            |job| width.div_ceil(step(job)),
        );
        let routed = OutRows::new(&mut scratch.outputs, width);
        let shared = OutRows::new(&mut scratch.shared_outputs, width);
        let kernels = Disjoint::new(&mut self.scratch);
        self.pool.run(jobs.tasks(), |task, worker| {
            let (job, part) = jobs.find(task);
            // SAFETY: a worker runs one task at a time, so each worker's room has one user.
            let kernel = unsafe { &mut kernels.nth(worker, 1)[0] };
            let (acts, out) = if job.shared {
                (&scratch.shared_hidden, &shared)
            } else {
                (&scratch.hidden, &routed)
            };
            let step = step(job);
            // SAFETY: an expert's outputs are rows of their own, and its tasks write different columns.
            let out = unsafe { out.share() };
            let job = Matmul {
                ty: job.down.0,
                weights: job.down.1,
                k: job.width,
                outputs: part * step..width.min((part + 1) * step),
                acts,
                rows: job.places,
                out: out.placed(job.places),
            };
            matmul(isa, &job, kernel);
        });
    }

    /// The weighted sums, in the order of rank, the shared expert last.
    fn combine(&mut self, rows: usize, weights: &ExpertWeights<Self>, scratch: &ExpertScratch) {
        let (width, used) = (self.width, scratch.groups.places().len() / rows);
        let mut branch = self.acts.take(Act::Branch);
        let shared = weights.shared.as_ref().map(|shared| SharedExpert {
            results: &scratch.shared_outputs,
            gate: shared
                .gated
                .then(|| self.acts.rows(Act::SharedGate, rows, 1)),
        });
        let combine = Combine {
            width,
            top_k: used,
            weights: &scratch.weights,
            results: &scratch.outputs,
            bias: weights.bias.as_ref().map(|[_, _, down]| ExpertBias {
                of: down,
                ids: &scratch.ids,
            }),
            shared,
        };
        combine.run(&self.pool, self.isa, &mut branch[..rows * width]);
        self.acts.put(Act::Branch, branch);
    }
}

/// The experts that have rows, cut into tasks.
struct Jobs<'a> {
    jobs: Vec<Job<'a>>,
    /// First task of each job, and the number of tasks.
    first: Vec<usize>,
}

impl<'a> Jobs<'a> {
    fn new(
        (groups, share): (&'a Groups, &Range<usize>),
        rows: &'a [u32],
        weights: &'a ExpertWeights<Cpu>,
        shelf: Shelf<'a>,
        shared_rows: Option<&'a [u32]>,
        tasks: impl Fn(&Job<'a>) -> usize,
    ) -> Self {
        let mut rest = rows;
        let routed = groups.iter().filter_map(|(expert, places)| {
            let (rows, after) = rest.split_at(places.len());
            rest = after;
            if !share.contains(&expert) {
                return None;
            }
            let [gate, up, down] = [&weights.gate, &weights.up, &weights.down]
                .map(|part| Some((part.ty(), shelf.bytes(part, expert)?)));
            Some(Job {
                gate: gate?,
                up: up?,
                down: down?,
                width: weights.width,
                rows,
                places,
                bias: weights.bias.as_ref().map(|[gate, up, _]| {
                    [gate, up].map(|bias| &bias[expert * weights.width..][..weights.width])
                }),
                shared: false,
            })
        });
        let shared = weights.shared.as_ref().zip(shared_rows);
        let shared = shared.map(|(shared, all_rows)| Job {
            gate: single(&shared.gate),
            up: single(&shared.up),
            down: single(&shared.down),
            width: shared.width,
            rows: all_rows,
            places: all_rows,
            bias: None,
            shared: true,
        });
        let jobs: Vec<_> = shared.into_iter().chain(routed).collect();
        let mut first = vec![0];
        for job in &jobs {
            first.push(first[first.len() - 1] + tasks(job));
        }
        Self { jobs, first }
    }

    fn tasks(&self) -> usize {
        self.first[self.jobs.len()]
    }

    /// The job of a task, and which of its tasks it is.
    fn find(&self, task: usize) -> (&Job<'a>, usize) {
        let job = self.first.partition_point(|first| *first <= task) - 1;
        (&self.jobs[job], task - self.first[job])
    }

    /// Bytes of weights that the window reads here.
    fn weight_bytes(&self) -> u64 {
        self.jobs
            .iter()
            .map(|job| (job.gate.1.len() + job.up.1.len() + job.down.1.len()) as u64)
            .sum()
    }
}

/// Where experts are read from.
#[derive(Clone, Copy)]
enum Shelf<'a> {
    /// All of them where the file is mapped.
    File,
    /// Whoever has been taken from a store.
    Store(&'a Store),
}

impl<'a> Shelf<'a> {
    fn is_empty(self) -> bool {
        matches!(self, Self::Store(store) if !store.has_some())
    }

    /// One expert's matrix, if it is there.
    fn bytes(self, experts: &'a Experts, expert: usize) -> Option<&'a [u8]> {
        match (self, experts.home()) {
            (Self::Store(store), Some(home)) => store.bytes(home, expert, || experts.bytes(expert)),
            _ => Some(experts.bytes(expert)),
        }
    }
}

fn single(matrix: &Matrix) -> (BlockType, &[u8]) {
    (matrix.ty(), matrix.bytes())
}
