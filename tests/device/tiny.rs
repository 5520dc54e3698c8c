//! Tiny random models of every family: logits against transformers and against the CPU; the same bits for any chunks and any company.

use crate::{
    bare::{Bare, Part},
    families::every_family,
    gpu,
    reference::{TOLERANCE, assert_close, assert_same, tiny, tiny_file},
    turns::{SLOTS, check_turns},
};
use std::process::Command;
use tidegate::{
    backend::shape::KvType,
    cuda::Cuda,
    engine::executor::{Ask, Lane},
};

/// Logits may differ from the CPU's by this share of the position's largest: attention and delta nets add up in another order.
const CPU_TOLERANCE: f32 = 1e-4;
/// With keys and values in few bits: a number that differs in its last bit may be rounded to the next step.
const KV_TOLERANCE: f32 = 1e-2;

fn check(file: &str, golden_name: &str) {
    gpu::shared(|gpu| {
        let golden = tiny(golden_name);
        let (ids, vocab) = (&golden.ids[..], golden.vocab);
        let mut model = gpu.bare(&tiny_file(file), 3, ids.len(), KvType::F32);
        let whole = model.chunked(0, ids, &[ids.len()]);
        assert_close(file, &whole, &golden.logits, vocab, TOLERANCE);
        let mut cpu = Bare::open(&tiny_file(file), 1, ids.len(), 1, KvType::F32);
        let theirs = cpu.chunked(0, ids, &[ids.len()]);
        assert_close(
            &format!("{file} on the CPU"),
            &whole,
            &theirs,
            vocab,
            CPU_TOLERANCE,
        );
        let all: &[(usize, &[usize])] = &[(1, &[1]), (0, &[3]), (2, &[17]), (1, &[64, 1, 7])];
        let few: &[(usize, &[usize])] = &[(1, &[1]), (2, &[17, 3, 64])];
        for &(slot, chunks) in if gpu.is_slow() { few } else { all } {
            let again = model.chunked(slot, ids, chunks);
            assert_same(&format!("{file}, chunks of {chunks:?}"), &again, &whole);
        }
        let guessed = model.guessed(1, ids);
        assert_same(
            &format!("{file}, with guesses taken back"),
            &guessed,
            &whole,
        );
        check_company(&mut model, file, ids);
    });
}

/// Three sequences that share windows get what each gets alone.
fn check_company(model: &mut Bare<Cuda>, file: &str, ids: &[u32]) {
    let backwards: Vec<u32> = ids.iter().rev().copied().collect();
    let sequences = [ids, &ids[31..], &backwards];
    let alone = sequences.map(|tokens| model.chunked(0, tokens, &[tokens.len()]));
    let vocab = model.vocab();
    let mut at = [0; 3];
    // rows that each sequence brings, window after window
    for (lane, rows) in [
        (Lane::Prompt, [40, 0, 1]),
        (Lane::Decode, [1, 0, 1]),
        (Lane::Prompt, [1, 29, 20]),
        (Lane::Decode, [1, 1, 1]),
        (Lane::Decode, [4, 1, 2]),
        (Lane::Prompt, [70, 3, 1]),
        (Lane::Prompt, [2, 64, 64]),
        (Lane::Decode, [0, 1, 1]),
    ] {
        // short sequences end before the last windows
        let part = |slot: usize| Part {
            slot,
            first: at[slot],
            tokens: &sequences[slot][at[slot]..]
                [..rows[slot].min(sequences[slot].len() - at[slot])],
        };
        let parts: Vec<Part<'_>> = (0..3)
            .map(part)
            .filter(|part| !part.tokens.is_empty())
            .collect();
        let logits = model.window(lane, &parts, Ask::Logits);
        let mut logits = logits.chunks(vocab);
        for part in parts {
            for row in part.first..part.first + part.tokens.len() {
                let what = format!("{file}, {rows:?}: sequence {}, row {row}", part.slot);
                let expected = &alone[part.slot][row * vocab..][..vocab];
                assert_same(&what, logits.next().expect("a row"), expected);
            }
            at[part.slot] += part.tokens.len();
        }
    }
}

/// Keys and values in fewer bits: near the CPU's logits, and any chunks give the same bits.
fn check_kv(file: &str, golden_name: &str, kv_type: KvType) {
    gpu::shared(|gpu| {
        let golden = tiny(golden_name);
        let ids = &golden.ids[..100];
        let mut model = gpu.bare(&tiny_file(file), 2, ids.len(), kv_type);
        let whole = model.chunked(0, ids, &[ids.len()]);
        let theirs =
            Bare::open(&tiny_file(file), 1, ids.len(), 1, kv_type).chunked(0, ids, &[ids.len()]);
        let what = format!("{file}, {kv_type:?}");
        assert_close(&what, &whole, &theirs, golden.vocab, KV_TOLERANCE);
        for chunks in [&[1][..], &[30, 3]] {
            assert_same(&what, &model.chunked(1, ids, chunks), &whole);
        }
    });
}

every_family!(check);

#[test]
fn keys_and_values_in_f16() {
    check_kv("qwen3moe.gguf", "qwen3moe", KvType::F16);
    check_kv("qwen35moe.gguf", "qwen35moe", KvType::F16);
    check_kv("qwen4exp.gguf", "qwen4exp", KvType::F16);
}

#[test]
fn keys_and_values_in_q8_0() {
    check_kv("qwen3moe.gguf", "qwen3moe", KvType::Q8_0);
    check_kv("qwen35moe.gguf", "qwen35moe", KvType::Q8_0);
    check_kv("qwen4exp.gguf", "qwen4exp", KvType::Q8_0);
}

fn take_turns(name: &str, turns: [usize; 2]) {
    gpu::shared(|gpu| {
        let (golden, file) = (tiny(name), tiny_file(&format!("{name}.gguf")));
        let mut model = gpu.bare(&file, SLOTS, golden.ids.len(), KvType::F16);
        let turns = turns[usize::from(gpu.is_slow())];
        let count = check_turns(name, &mut model, &golden.ids, turns, 1);
        println!("{count:?}");
    });
}

#[test]
fn passes_take_turns() {
    take_turns("qwen35moe", [4000, 100]);
}

#[test]
fn passes_with_n_grams_take_turns() {
    take_turns("qwen4exp", [2000, 60]);
}

/// The same where the device does nothing before somebody waits for it: what is still to be read must not be written anew.
#[test]
fn passes_take_turns_on_a_lazy_device() {
    if gpu::is_real() || gpu::stand_ins().is_none() {
        return;
    }
    let mut test = Command::new(std::env::current_exe().expect("this program"));
    test.args([
        "--exact",
        "tiny::passes_take_turns",
        "tiny::passes_with_n_grams_take_turns",
    ]);
    let output = test.env("CUDA_HOST_MODE", "lazy").output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("2 passed"), "{said}");
}
