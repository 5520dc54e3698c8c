//! How fast a model will be on a machine, before it is loaded: what each kind of work takes, added up.
//!
//! A machine is measured here ([`machine`]) or described in a file. Knows bytes and products, no sequence and no schedule: it tells of one stream alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    backend::{
        Needs,
        shape::{AttentionShape, DeltaShape},
    },
    engine::executor::PAGE_TOKENS,
    gguf::{Gguf, Tensor},
    residency::slots::SlotPlan,
};

pub mod machine;
#[cfg(test)]
mod tests;

pub use machine::{Machine, MatrixShape};

/// Regions of the worker pool that a layer consists of, about.
const REGIONS_A_LAYER: f64 = 14.0;
/// Of what a decoded row misses, the share that lookahead names in time: of 1,000 chats of the bundled model 70, 60 and 53 % one, two and three layers ahead.
const SEEN_AHEAD: f64 = 0.6;

/// What a model has to read and multiply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// **Units**: bytes. Matrices that every row reads.
    pub dense: BTreeMap<MatrixShape, u64>,
    /// The head, which only rows with logits read.
    pub head: BTreeMap<MatrixShape, u64>,
    /// The layers that have experts.
    pub experts: Vec<LayerWork>,
    /// All layers.
    pub layers: usize,
    /// **Units**: bytes. Keys and values of one position, all layers.
    pub position_bytes: u64,
    /// The attention layers.
    pub attention: Vec<AttentionWork>,
    /// Multiply-adds of the delta nets for a row of a prompt, all layers.
    pub delta_macs: u64,
    /// **Units**: bytes. Recurrent state of one sequence, all layers.
    pub state_bytes: u64,
    /// Values that work beside products passes over for a row of a prompt: what each product gives, and the residual as it is normed and quantised.
    pub passes: u64,
}

/// A layer's attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionWork {
    /// Multiply-adds for one row and one position that it sees.
    pub macs: u64,
    /// Positions that a row sees, if not all before it.
    pub sees: Option<usize>,
}

/// A layer's experts.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerWork {
    /// How many.
    pub experts: usize,
    /// How many a row uses.
    pub used: usize,
    /// **Units**: bytes. All experts' matrices.
    pub all: BTreeMap<MatrixShape, u64>,
}

impl Work {
    /// What a file's model has to do. `position_bytes` and `state_bytes` are its caches'.
    pub fn of(file: &Gguf, needs: &Needs, position_bytes: u64, state_bytes: u64) -> Self {
        let mut work = Self {
            layers: needs.attention.len() + needs.delta.len(),
            attention: needs.attention.iter().map(AttentionWork::of).collect(),
            delta_macs: needs.delta.iter().map(delta_macs).sum(),
            position_bytes,
            state_bytes,
            // before each mixer and each feed-forward
            passes: (4 * needs.residual * (needs.attention.len() + needs.delta.len())) as u64,
            ..Self::default()
        };
        let layers: BTreeMap<usize, usize> = needs
            .expert_layers
            .iter()
            .enumerate()
            .map(|(index, layer)| (layer.layer, index))
            .collect();
        work.experts = needs
            .expert_layers
            .iter()
            .map(|layer| LayerWork {
                experts: layer.experts,
                used: layer.used,
                all: BTreeMap::new(),
            })
            .collect();
        let tied = file.tensor("output.weight").is_none();
        for tensor in file.tensors() {
            work.add(tensor, &layers, tied);
        }
        work
    }

    /// The shapes of its matrices, each once.
    pub fn shapes(&self) -> BTreeSet<MatrixShape> {
        let experts = self.experts.iter().flat_map(|layer| layer.all.keys());
        let all = self.dense.keys().chain(self.head.keys()).chain(experts);
        all.copied().collect()
    }

    fn add(&mut self, tensor: &Tensor, layers: &BTreeMap<usize, usize>, tied: bool) {
        let Some(rest) = tensor.name.strip_prefix("blk.") else {
            let head = tensor.name.as_ref() == "output.weight"
                || tied && tensor.name.as_ref() == "token_embd.weight";
            if head {
                *self.head.entry(MatrixShape::of(tensor)).or_default() += tensor.bytes as u64;
            }
            return;
        };
        let layer = rest.split('.').next().and_then(|layer| layer.parse().ok());
        let Some(layer) = layer.filter(|layer: &usize| *layer < self.layers) else {
            return; // a prediction block, which does not run
        };
        let experts = layers.get(&layer).map(|index| &mut self.experts[*index]);
        let [_, outputs, others @ ..] = tensor.dims.padded();
        let outputs = (outputs * others.iter().product::<usize>()) as u64;
        match experts {
            Some(experts) if is_expert(rest) => {
                self.passes += outputs * experts.used as u64 / experts.experts.max(1) as u64;
                *experts.all.entry(MatrixShape::of(tensor)).or_default() += tensor.bytes as u64;
            }
            _ => {
                self.passes += outputs;
                *self.dense.entry(MatrixShape::of(tensor)).or_default() += tensor.bytes as u64;
            }
        }
    }
}

impl AttentionWork {
    fn of(shape: &AttentionShape) -> Self {
        let chosen = shape.index.map(|index| index.group * (index.budget + 1));
        Self {
            macs: attention_macs(shape),
            sees: shape.window.into_iter().chain(chosen).min(),
        }
    }
}

/// Multiply-adds of attention for one row and one position that it sees.
pub fn attention_macs(shape: &AttentionShape) -> u64 {
    2 * (shape.heads * shape.kv.head_dim) as u64
}

/// Multiply-adds of a delta net for a row of a prompt: with the state as it is read, asked and written, and with half a block's rows, twice.
pub fn delta_macs(shape: &DeltaShape) -> u64 {
    let (k, v) = (shape.k_dim, shape.v_dim);
    (shape.v_heads * (3 * k * v + PAGE_TOKENS * (k + v))) as u64
}

/// Pairs of a row and a position that it sees, of so many rows behind so many positions.
pub fn pairs(rows: usize, before: usize, sees: Option<usize>) -> f64 {
    let all =
        |rows: usize, before: usize| rows as f64 * (before as f64 + (rows as f64 + 1.0) / 2.0);
    let Some(sees) = sees else {
        return all(rows, before);
    };
    let whole = sees.saturating_sub(before).min(rows);
    all(whole, before) + ((rows - whole) * sees) as f64
}

/// `ffn_{gate,up,down}_exps`, or a tensor of one expert: `ffn_gate.3`.
fn is_expert(rest: &str) -> bool {
    let mut parts = rest.split('.').skip(1);
    let (Some(role), next) = (parts.next(), parts.next()) else {
        return false;
    };
    role.ends_with("_exps") || next.is_some_and(|part| part.parse::<usize>().is_ok())
}

/// How experts are kept, and how often they are found.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// `[layers with experts]`: what share of a decoded row's choices is in memory.
    pub hit_rates: Vec<f64>,
    /// `[layers with experts] [experts]`: how likely a row is to choose each.
    pub chances: Vec<Vec<f64>>,
    /// The same of those that are not in memory.
    pub missing: Vec<Vec<f64>>,
    /// `[layers with experts]`. **Units**: bytes. What is read for one expert.
    pub read_bytes: Vec<u64>,
}

impl Kept {
    /// By a plan, and by how often experts were used: `ranks` holds layer, expert and the binary logarithm of uses. Without ranks all experts are as likely as each other.
    pub fn new(plan: &SlotPlan, layers: &[LayerWork], ranks: &[(usize, u16, f64)]) -> Self {
        let mut kept = Self {
            hit_rates: vec![0.0; layers.len()],
            chances: vec![Vec::new(); layers.len()],
            missing: vec![Vec::new(); layers.len()],
            read_bytes: vec![0; layers.len()],
        };
        for pool in &plan.pools {
            if ranks.is_empty() {
                let share = pool.residents() as f64 / pool.experts as f64;
                for layer in &pool.layers {
                    let LayerWork { experts, used, .. } = layers[*layer];
                    let chance = used as f64 / experts.max(1) as f64;
                    let missing = ((1.0 - share) * experts as f64).round() as usize;
                    kept.hit_rates[*layer] = share;
                    kept.chances[*layer] = vec![chance; experts];
                    kept.missing[*layer] = vec![chance; missing];
                    kept.read_bytes[*layer] = pool.slot_bytes;
                }
                continue;
            }
            let mut chances: Vec<(f64, usize)> = Vec::new();
            for layer in &pool.layers {
                let shape = &layers[*layer];
                let own = ranks.iter().filter(|(of, _, _)| of == layer);
                chances.extend(self::chances(shape, own).map(|chance| (chance, *layer)));
                kept.read_bytes[*layer] = pool.slot_bytes;
            }
            chances.sort_by(|a, b| b.0.total_cmp(&a.0));
            for (rank, (chance, layer)) in chances.iter().enumerate() {
                kept.chances[*layer].push(*chance);
                if rank < pool.residents() {
                    kept.hit_rates[*layer] += chance / layers[*layer].used as f64;
                } else {
                    kept.missing[*layer].push(*chance);
                }
            }
        }
        kept
    }
}

/// How many experts so many rows choose, by how likely one row is to choose each.
fn chosen(chances: &[f64], rows: f64) -> f64 {
    let chances = chances.iter();
    chances.map(|chance| 1.0 - (1.0 - chance).powf(rows)).sum()
}

/// How likely a row is to use each expert of a layer; they add up to as many as it uses.
fn chances<'a>(
    layer: &LayerWork,
    ranks: impl Iterator<Item = &'a (usize, u16, f64)>,
) -> impl Iterator<Item = f64> {
    let mut uses = vec![0.0; layer.experts];
    for (_, expert, rank) in ranks {
        if let Some(uses) = uses.get_mut(usize::from(*expert)) {
            *uses = rank.exp2();
        }
    }
    let all: f64 = uses.iter().sum();
    let (used, experts) = (layer.used as f64, layer.experts as f64);
    uses.into_iter().map(move |uses| {
        if all > 0.0 {
            (used * uses / all).min(1.0)
        } else {
            used / experts
        }
    })
}

/// What binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Reading missing experts.
    Drive,
    /// Reading weights from memory, and multiplying with them as they come.
    Memory,
    /// Arithmetic.
    Arithmetic,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drive => "the drive",
            Self::Memory => "memory",
            Self::Arithmetic => "arithmetic",
        })
    }
}

/// What a step takes. **Units**: seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Reading from the drive, while experts in memory are computed.
    pub drive: f64,
    /// Computing.
    pub compute: f64,
    /// All of it.
    pub all: f64,
}

/// A model on a machine.
pub struct Estimate<'a> {
    /// What there is to do.
    pub work: &'a Work,
    /// Who does it.
    pub machine: &'a Machine,
    /// How experts are kept, if not all of them are in memory.
    pub kept: Option<&'a Kept>,
}

impl Estimate<'_> {
    /// One token of one stream, with so many positions before it.
    pub fn decode(&self, context: usize) -> Step {
        let (work, machine) = (self.work, self.machine);
        let caches = (work.state_bytes + work.position_bytes * context as u64) as f64;
        let mut step = Step {
            compute: self.matrices(&work.dense, 1.0, 1.0)
                + self.matrices(&work.head, 1.0, 1.0)
                + caches / machine.dram_bytes_s
                + work.layers as f64 * REGIONS_A_LAYER * machine.region_s,
            ..Step::default()
        };
        step.all = step.compute;
        // what is named ahead is read while the layers before compute; nothing is named while the head does
        let head = self.matrices(&work.head, 1.0, 1.0);
        let besides = (step.compute - head) / work.experts.len().max(1) as f64;
        for (index, layer) in work.experts.iter().enumerate() {
            let compute = layer.used as f64 * self.matrices(&layer.all, 1.0, layer.share());
            let drive = self.kept.map_or(0.0, |kept| {
                let missing = layer.used as f64 * (1.0 - kept.hit_rates[index]).max(0.0);
                missing * kept.read_bytes[index] as f64 / self.drive()
            });
            let hidden = (SEEN_AHEAD * drive).min(besides);
            step.add(drive, compute);
            step.all -= drive.max(compute) - (drive - hidden).max(compute);
        }
        step
    }

    /// A chunk of a prompt, behind so many positions.
    pub fn chunk(&self, rows: usize, before: usize) -> Step {
        let (work, machine) = (self.work, self.machine);
        let count = rows as f64;
        let attention = work.attention.iter();
        let attention: f64 = attention
            .map(|layer| pairs(rows, before, layer.sees) * layer.macs as f64)
            .sum();
        let mut step = Step {
            compute: self.matrices(&work.dense, count, 1.0)
                + work.state_bytes as f64 * count / 64.0 / machine.dram_bytes_s
                + attention / machine.attention_macs_s
                + count * work.delta_macs as f64 / machine.delta_macs_s
                + count * work.passes as f64 * machine.pass_s
                + work.layers as f64 * REGIONS_A_LAYER * machine.region_s,
            ..Step::default()
        };
        step.all = step.compute;
        for (index, layer) in work.experts.iter().enumerate() {
            let (experts, used) = (layer.experts as f64, layer.used as f64);
            let touched = match self.kept {
                Some(kept) => chosen(&kept.chances[index], count),
                None => experts * (1.0 - (1.0 - used / experts).powf(count)),
            };
            let each = count * used / touched.max(1.0);
            let compute = touched * self.matrices(&layer.all, each, layer.share());
            let drive = self.kept.map_or(0.0, |kept| {
                chosen(&kept.missing[index], count) * kept.read_bytes[index] as f64 / self.drive()
            });
            step.add(drive, compute);
        }
        step
    }

    /// **Units**: seconds. From a prompt's first row to its answer's first token, read in chunks of so many rows.
    pub fn first_token(&self, prompt: usize, chunk_rows: usize) -> f64 {
        let mut seconds = self.matrices(&self.work.head, 1.0, 1.0);
        let mut at = 0;
        while at < prompt {
            let rows = chunk_rows.min(prompt - at);
            seconds += self.chunk(rows, at).all;
            at += rows;
        }
        seconds
    }

    /// What binds a decoded token.
    pub fn decode_limit(&self) -> Limit {
        let step = self.decode(0);
        if step.drive > step.compute {
            return Limit::Drive;
        }
        let bytes: u64 = self
            .work
            .dense
            .values()
            .chain(self.work.head.values())
            .sum();
        let experts = self.work.experts.iter();
        let experts: f64 = experts
            .map(|layer| layer.used as f64 * layer.all.values().sum::<u64>() as f64 * layer.share())
            .sum();
        let memory = (bytes as f64 + experts) / self.machine.dram_bytes_s;
        if memory > 0.6 * step.compute {
            Limit::Memory
        } else {
            Limit::Arithmetic
        }
    }

    /// **Units**: seconds. Products of these matrices, of which a share takes part, with so many rows.
    fn matrices(&self, matrices: &BTreeMap<MatrixShape, u64>, rows: f64, share: f64) -> f64 {
        let each = matrices.iter();
        each.map(|(shape, bytes)| *bytes as f64 * share * self.machine.byte_s(*shape, rows))
            .sum()
    }

    fn drive(&self) -> f64 {
        self.machine.disk_bytes_s.unwrap_or(f64::INFINITY)
    }
}

impl LayerWork {
    /// One expert's share of all.
    fn share(&self) -> f64 {
        1.0 / self.experts as f64
    }
}

impl Step {
    /// Experts of one layer: what is missing is read while the others are computed.
    fn add(&mut self, drive: f64, compute: f64) {
        self.drive += drive;
        self.compute += compute;
        self.all += drive.max(compute);
    }
}
