//! Small files of the types that popular ones mix: the device says what the CPU says, and any chunks give the same bits.

use crate::{
    bare::Bare,
    gpu,
    made::{VOCAB, made},
    reference::{assert_close, assert_same},
};
use tidegate::{
    backend::shape::KvType,
    cpu::backend::{Cpu, CpuSettings},
    cuda::Cuda,
    synth::Mix,
};

/// Attention adds up in another order, and a number that differs in its last bit may be rounded to another eight.
const TOLERANCE: f32 = 2e-2;

fn check(name: &str, mix: Mix) {
    gpu::shared(|gpu| {
        let file = made(name, mix).file();
        let positions = if gpu.is_slow() { 20 } else { 120 };
        let ids: Vec<u32> = (0..positions as u32)
            .map(|at| 300 + at * 131 % 600)
            .collect();
        let room = (positions, positions);
        let cpu = Cpu::new(CpuSettings { threads: Some(2) });
        let expected = Bare::of(cpu, &file, 1, room, KvType::F32).chunked(0, &ids, &[positions]);
        let mut model = gpu.load(|device, settings| {
            Bare::of(Cuda::new(device, settings), &file, 2, room, KvType::F32)
        });
        let whole = model.chunked(0, &ids, &[positions]);
        let what = format!("{name}, {}", mix.name());
        assert_close(&what, &whole, &expected, VOCAB, TOLERANCE);
        assert_same(&what, &model.chunked(1, &ids, &[7, 1]), &whole);
    });
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
