//! Small files of the types that popular ones mix: the device says what the CPU says, and any chunks give the same bits.

use crate::{
    bare::Bare,
    gpu::{self, Gpu},
    made::{VOCAB, made, made_of, small},
    reference::{assert_close, assert_same},
};
use std::sync::Arc;
use tidegate::{
    backend::shape::KvType,
    cpu::backend::{Cpu, CpuSettings},
    cuda::Cuda,
    gguf::Gguf,
    synth::{Blueprint, Mix, More, Streams, WindowHeads, Windows},
};

/// Attention adds up in another order, and a number that differs in its last bit may be rounded to another eight.
const TOLERANCE: f32 = 2e-2;
/// Where two experts are chosen by numbers that are as good as the same, that last bit decides which: of a hundred positions, so many may differ by more.
const TIES: usize = 2;
/// By no more than this.
const TIE_TOLERANCE: f32 = 5e-2;

/// Positions of which a logit is off by more than `share` of the largest. **Shapes**: `[positions, VOCAB] f32` both.
fn off_by_more(got: &[f32], expected: &[f32], share: f32) -> Vec<usize> {
    let rows = got.chunks(VOCAB).zip(expected.chunks(VOCAB));
    let off = rows.enumerate().filter(|(_, (got, expected))| {
        let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
        let pairs = got.iter().zip(*expected);
        pairs.fold(0f32, |max, (a, b)| max.max((a - b).abs())) > share * largest
    });
    off.map(|(position, _)| position).collect()
}

fn check(name: &str, mix: Mix) {
    gpu::shared(|gpu| {
        let positions = if gpu.is_slow() { 20 } else { 120 };
        let what = format!("{name}, {}", mix.name());
        check_file(gpu, &what, &made(name, mix).file(), KvType::F32, positions);
    });
}

fn check_file(gpu: &Gpu, what: &str, file: &Arc<Gguf>, kv_type: KvType, positions: usize) {
    let ids: Vec<u32> = (0..positions as u32)
        .map(|at| 300 + at * 131 % 600)
        .collect();
    let room = (positions, positions);
    let cpu = Cpu::new(CpuSettings { threads: Some(2) });
    let expected = Bare::of(cpu, file, 1, room, kv_type).chunked(0, &ids, &[positions]);
    let mut bare =
        gpu.load(|device, settings| Bare::of(Cuda::new(device, settings), file, 2, room, kv_type));
    let whole = bare.chunked(0, &ids, &[positions]);
    assert_close(what, &whole, &expected, VOCAB, TIE_TOLERANCE);
    let off = off_by_more(&whole, &expected, TOLERANCE);
    assert!(
        off.len() <= (TIES * positions).div_ceil(100),
        "{what}: positions {off:?}"
    );
    assert_same(what, &bare.chunked(1, &ids, &[7, 1]), &whole);
}

#[test]
fn glm4moe() {
    check("glm-4.5-air", Mix::Q4KM);
    check("glm-4.5-air", Mix::Iq4Xs);
}

#[test]
fn gpt_oss() {
    check("gpt-oss-20b", Mix::Mxfp4Moe);
}

#[test]
fn minimax_m2() {
    check("minimax-m2", Mix::Q4KM);
    check("minimax-m2", Mix::Iq2Xxs);
}

#[test]
fn gemma4() {
    check("gemma-4-26b-a4b", Mix::Q4_0);
    check("gemma-4-26b-a4b", Mix::Q4KM);
}

#[test]
fn qwen4exp() {
    check("qwen3.8-flash-next", Mix::Q4KM);
    check("qwen3.8-flash-next", Mix::Iq4Xs);
}

/// Heads and an index as wide as the model's, keys and values in few bits, over more positions than a split has and than rows see.
#[test]
fn qwen4exp_past_its_budget() {
    gpu::shared(|gpu| {
        let model = small("qwen3.8-flash-next");
        let streams = model.more.streams.expect("streams");
        let model = Blueprint {
            layers: 4,
            heads: 12,
            kv_heads: 1,
            head_width: 256,
            rotated: 64,
            more: More {
                streams: Some(Streams {
                    index_width: 128,
                    ..streams
                }),
                ..model.more
            },
            ..model
        };
        let file = made_of(model, Mix::Q4KM).file();
        for kv_type in [KvType::F32, KvType::F16, KvType::Q8_0] {
            let what = format!("past the budget, {kv_type:?}");
            check_file(gpu, &what, &file, kv_type, 200);
        }
    });
}

/// Heads as wide as the model's own, over more positions than a split has and a window that begins in the middle of a page.
#[test]
fn gemma4_with_wide_heads() {
    gpu::shared(|gpu| {
        let model = small("gemma-4-26b-a4b");
        let windows = Windows {
            positions: 70,
            period: 2,
            own_heads: Some(WindowHeads {
                kv_heads: 2,
                head_width: 256,
                rope_base: 1e4,
            }),
        };
        let model = Blueprint {
            layers: 2,
            heads: 4,
            kv_heads: 1,
            head_width: 512,
            rotated: 512,
            more: More {
                window: Some(windows),
                ..model.more
            },
            ..model
        };
        let file = made_of(model, Mix::Q4_0).file();
        let types = [KvType::F32, KvType::Q8_0, KvType::F16];
        for kv_type in types.into_iter().take(if gpu.is_slow() { 2 } else { 3 }) {
            check_file(
                gpu,
                &format!("wide heads, {kv_type:?}"),
                &file,
                kv_type,
                140,
            );
        }
    });
}
