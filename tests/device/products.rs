//! Products of every block type, dense and of experts, few rows and many: the CPU's results to the bit.

use std::sync::Arc;

use crate::{
    gpu::{self, Gpu},
    reference::assert_same,
    zoo::{self, EXPERTS, Layer, TOKENS, USED, WIDTH},
};
use tidegate::{
    backend::{
        Backend, Room, RouteShape,
        shape::{Activation, Gating, KvType},
    },
    cpu::backend::{Cpu, CpuSettings},
    cuda::Cuda,
    engine::executor::{Ask, Executor, Lane, PAGE_TOKENS, PageId, Progress, Slot, Span},
    gguf::Gguf,
    model::{
        Frame, Model, Runner,
        loader::{LoadError, Loader},
    },
    op::{
        self, Block, Hidden, Op, Pass, experts::Experts, feed_forward::FeedForward, norm::Norm,
        place::Place, residual::Add, route::Route,
    },
    quant::BlockType::{self, *},
};

/// Types whose activations come in blocks of 256.
const WIDE: [BlockType; 11] = [
    Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, IQ3_XXS, IQ3_S, IQ2_XXS, IQ2_XS, IQ2_S,
];
/// In blocks of 32.
const NARROW: [BlockType; 7] = [Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4];
/// As they are; the last two have no kernels of their own.
const FLOAT: [BlockType; 5] = [F32, F16, BF16, IQ1_S, TQ1_0];

/// Rows of a window: one, few that fill no bucket, the most that are few, one more, whole tiles, and tiles with a rest.
const WINDOWS: [usize; 6] = [1, 5, 16, 17, 64, TOKENS];
/// The last of them goes through so many layers only on a slow device.
const DEEP: usize = 6;

/// residual = the rows of a table, so that layers do not depend on each other.
struct Table<B: Backend>(B::Matrix);

impl<B: Backend> Op<B> for Table<B> {
    type In = Hidden;
    type Out = Hidden;

    fn enqueue(&self, pass: &mut Pass<'_, B>, hidden: Hidden) -> Result<Hidden, B::Error> {
        pass.backend.embed(pass.window, &self.0)?;
        Ok(hidden)
    }
}

fn block<B: Backend>(from: &mut Loader<'_, B>, at: &str) -> Result<Block<B>, LoadError> {
    let table = Table(from.matrix(&format!("{at}.table.weight"), WIDTH, TOKENS)?);
    let start = op::Layer::new(table).then(Norm::load(from, &format!("{at}.norm"))?);
    if !from.has(&format!("{at}.ffn_gate_inp.weight")) {
        return Ok(start
            .then(FeedForward::load(from, at, Activation::SwiGlu)?)
            .then(Add)
            .part()
            .block());
    }
    let chosen = RouteShape {
        experts: EXPERTS,
        used: USED,
        gating: Gating::Softmax,
        normalise: true,
        scale: 1.0,
    };
    let route = Route::load(from, at, chosen.gating, chosen.normalise)?;
    let experts = Experts::load(from, at, EXPERTS, Activation::SwiGlu)?;
    let (first, others) = experts.halves();
    Ok(start
        .then(route)
        .then(Place(chosen))
        .then(first)
        .then(others)
        .then(Add)
        .part()
        .block())
}

/// A backend whose residuals a test can read.
trait Readable: Backend {
    fn read(&self, residual: &Self::Residual, rows: usize) -> Vec<f32>;
}

impl Readable for Cpu {
    fn read(&self, residual: &Vec<f32>, rows: usize) -> Vec<f32> {
        residual[..rows * WIDTH].to_vec()
    }
}

impl Readable for Cuda {
    fn read(&self, residual: &Self::Residual, rows: usize) -> Vec<f32> {
        self.residual_rows(residual, rows).expect("rows")
    }
}

fn runner<B: Backend>(file: &Arc<Gguf>, mut backend: B) -> Runner<B> {
    let model = Model::load(file, &mut backend, Frame::default(), block).expect("the model");
    let room = Room {
        rows: TOKENS,
        decode_rows: TOKENS,
        logits_rows: 1,
        slots: 1,
        pages: TOKENS.div_ceil(PAGE_TOKENS),
        kv_type: KvType::F16,
    };
    Runner::new(model, backend, room, TOKENS).expect("room")
}

/// The residual after each of the first `layers` layers of a window of `rows` rows.
fn residuals<B: Readable>(runner: &mut Runner<B>, rows: usize, layers: usize) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = (0..rows as u32).collect();
    let pages: Vec<PageId> = (0..TOKENS.div_ceil(PAGE_TOKENS) as u32)
        .map(PageId)
        .collect();
    let span = Span {
        slot: Slot(0),
        first: 0,
        tokens: &tokens,
        pages: &pages,
        logits: 0,
        ask: Ask::Logits,
        drafts: 0,
    };
    let mut pass = runner.begin(Lane::Prompt, &[span]).expect("begun");
    let mut residuals = Vec::new();
    for _ in 0..layers {
        let progress = runner.advance(&mut pass).expect("computed");
        residuals.push(runner.backend().read(pass.residual(), rows));
        if progress == Progress::Done {
            break;
        }
    }
    runner.abandon(pass);
    residuals
}

fn check(gpu: &Gpu, layers: &[Layer]) {
    let file = Arc::new(zoo::file(layers));
    let cpu = Cpu::new(CpuSettings { threads: Some(2) });
    let expected = residuals(&mut runner(&file, cpu), TOKENS, layers.len());
    let mut device = gpu.load(|device, settings| runner(&file, Cuda::new(device, settings)));
    for rows in WINDOWS {
        let deep = if gpu.is_slow() && rows == TOKENS {
            DEEP
        } else {
            layers.len()
        };
        let got = residuals(&mut device, rows, deep);
        for ((got, expected), layer) in got.iter().zip(&expected).zip(layers) {
            assert_same(
                &format!("{rows} rows, {layer:?}"),
                got,
                &expected[..rows * WIDTH],
            );
        }
    }
}

fn dense(types: [BlockType; 3], width: usize) -> Layer {
    Layer {
        types,
        width,
        router: None,
        shared: None,
    }
}

fn experts(types: [BlockType; 3], width: usize) -> Layer {
    Layer {
        router: Some(F32),
        ..dense(types, width)
    }
}

/// The widths in turn: one block, and several; where blocks are short, no multiple of a tile.
fn of_every_type(layer: fn([BlockType; 3], usize) -> Layer) -> Vec<Layer> {
    let typed = |types: &[BlockType], widths: [usize; 2]| {
        let layers = types.iter().zip(widths.into_iter().cycle());
        layers
            .map(|(ty, width)| layer([*ty; 3], width))
            .collect::<Vec<_>>()
    };
    [
        typed(&WIDE, [256, 768]),
        typed(&NARROW, [96, 288]),
        typed(&FLOAT, [256, 256]),
    ]
    .concat()
}

#[test]
fn every_type_gives_the_bits_of_the_cpu() {
    gpu::shared(|gpu| {
        let mut layers = vec![
            // with different types side by side
            dense([Q4_K, Q8_0, Q6_K], 256),
            dense([F16, Q5_K, BF16], 256),
            experts([Q4_K, Q5_0, Q6_K], 256),
            Layer {
                router: Some(Q8_0),
                shared: Some([Q4_K, Q6_K, Q8_0]),
                ..experts([IQ3_S, IQ3_S, Q5_1], 288)
            },
            Layer {
                router: Some(BF16),
                shared: Some([F16, BF16, F32]),
                ..experts([Q8_0, F16, Q4_K], 256)
            },
        ];
        layers.extend(of_every_type(dense));
        layers.extend(of_every_type(experts));
        check(gpu, &layers);
    });
}

/// A shared expert of floats beside experts without: it is computed apart.
#[test]
fn a_shared_expert_of_floats_gives_the_bits_of_the_cpu() {
    gpu::shared(|gpu| {
        let layer = |shared| Layer {
            shared: Some(shared),
            ..experts([Q4_K, Q4_K, Q6_K], 256)
        };
        check(gpu, &[layer([BF16; 3]), layer([Q4_K, Q4_K, Q6_K])]);
    });
}
