//! Logits against transformers: tiny random models of every family, at every position, for any chunk size.
//!
//! The goldens are float32 and come from `scripts/tiny-models.py`; see `fixtures/tiny/README.md`.

use crate::{
    bare::{Bare, Part, argmax},
    families::every_family,
    reference::{
        TOLERANCE, assert_close, assert_same, tiny, tiny_chain, tiny_file, tiny_predictions,
    },
    turns::{SLOTS, check_turns},
};
use tidegate::{
    backend::shape::KvType,
    engine::executor::{Ask, Executor, Lane, Progress},
};

/// Inside a mixer, between it and the experts, and inside these: what streams wait for is a fourth as long.
#[test]
fn a_prompts_pass_can_be_left_inside_every_layer() {
    let mut model = Bare::open(&tiny_file("qwen35moe.gguf"), 1, 9, 1, KvType::F32);
    let layers = model.runner.capacity().layers;
    for (lane, slices) in [(Lane::Prompt, 4 * layers), (Lane::Decode, layers)] {
        let part = Part {
            slot: 0,
            first: 0,
            tokens: &[5; 9],
        };
        let mut pass = model.begin(lane, &[part], Ask::Greedy, 0);
        let mut count = 1;
        while matches!(model.runner.advance(&mut pass).unwrap(), Progress::More) {
            count += 1;
        }
        model.finish(pass);
        assert_eq!(count, slices, "{lane:?}");
    }
}

fn check(file: &str, golden_name: &str) {
    let golden = tiny(golden_name);
    let chosen = golden.logits.chunks(golden.vocab).map(argmax);
    let open = |threads| Bare::open(&tiny_file(file), 2, golden.ids.len(), threads, KvType::F32);
    let mut one = open(1);
    let whole = one.chunked(0, &golden.ids, &[golden.ids.len()]);
    assert_close(file, &whole, &golden.logits, golden.vocab, TOLERANCE);
    assert!(whole.chunks(golden.vocab).map(argmax).eq(chosen), "{file}");
    let guessed = one.guessed(1, &golden.ids);
    assert_same(
        &format!("{file}, with guesses taken back"),
        &guessed,
        &whole,
    );
    // any chunking, any slot and any number of threads: the same bits
    let mut three = open(3);
    for (threads, slot, chunks) in [
        (1, 1, &[1][..]),
        (1, 0, &[3]),
        (3, 1, &[17]),
        (3, 0, &[64, 1, 7]),
    ] {
        let model = if threads == 1 { &mut one } else { &mut three };
        let again = model.chunked(slot, &golden.ids, chunks);
        assert_same(&format!("{file}, chunks of {chunks:?}"), &again, &whole);
    }
}

every_family!(check);

/// What a prediction block says at every position, given the token after it; the same bits whether it has read along or reads late.
fn check_predictions(name: &str) {
    let (ids, expected) = (tiny(name).ids, tiny_predictions(name));
    assert_eq!(expected.ids, ids[1..]);
    let file = tiny_file(&format!("{name}.gguf"));
    let mut model = Bare::open(&file, 2, ids.len(), 1, KvType::F32);
    let mut along = Vec::new();
    for at in 1..ids.len() {
        model.rows(0, at - 1, &ids[at - 1..at]);
        along.extend_from_slice(model.predict(0, (at, ids[at]), 1).1);
    }
    assert_close(name, &along, &expected.logits, expected.vocab, TOLERANCE);
    let chosen = expected.logits.chunks(expected.vocab).map(argmax);
    assert!(
        along.chunks(expected.vocab).map(argmax).eq(chosen),
        "{name}"
    );
    for known in [1, 17, 100, ids.len() - 1] {
        model.rows(1, 0, &ids[..known]);
        let (_, late) = model.predict(1, (known, ids[known]), 1);
        let along = &along[(known - 1) * expected.vocab..][..expected.vocab];
        assert_same(&format!("{name} after {known}"), late, along);
    }
    check_chain(name, &mut model, &ids);
    check_reading_again(name, &mut model, &ids, &along);
}

/// What it says when its own output is fed back.
fn check_chain(name: &str, model: &mut Bare, ids: &[u32]) {
    let (expected, last) = (tiny_chain(name), ids.len() - 1);
    model.rows(0, 0, &ids[..last]);
    let rows = expected.logits.chunks(expected.vocab);
    for (depth, row) in (1..).zip(rows) {
        let (tokens, logits) = model.predict(0, (last, ids[last]), depth);
        assert_eq!(tokens, expected.ids[..depth], "{name}");
        let what = format!("{name}, {depth} ahead");
        assert_close(&what, logits, row, expected.vocab, TOLERANCE);
    }
}

/// Another's prompt is read at once in a window that has rows of this sequence too, of which it has read less: these are read again.
fn check_reading_again(name: &str, model: &mut Bare, ids: &[u32], along: &[f32]) {
    let part = |slot, first, tokens| Part {
        slot,
        first,
        tokens,
    };
    let vocab = model.vocab();
    for read in [21, 30, 39] {
        model.rows(0, 0, &ids[..read]);
        model.predict(0, (read, ids[read]), 1);
        model.rows(0, read, &ids[read..read + 9]);
        model.rows(0, read + 9, &ids[read + 9..75]);
        let parts = [part(1, 0, &ids[..60]), part(0, 75, &ids[75..90])];
        model.window(Lane::Prompt, &parts, Ask::Logits);
        for at in 90..ids.len() {
            let (_, again) = model.predict(0, (at, ids[at]), 1);
            let along = &along[(at - 1) * vocab..][..vocab];
            assert_same(&format!("{name}, {at} after {read}"), again, along);
            model.rows(0, at, &ids[at..=at]);
        }
    }
}

#[test]
fn prediction_blocks_say_what_the_goldens_say() {
    for name in [
        "glm4moe-mtp",
        "qwen3next-mtp",
        "qwen35moe-mtp",
        "qwen4exp-mtp",
    ] {
        check_predictions(name);
    }
}

/// Windows of few rows: rings of a window's pages, and of what an index and n-grams keep, are shorter than the sequence and go round, guesses in between.
#[test]
fn rings_go_round() {
    for name in [
        "gpt-oss-2",
        "gpt-oss",
        "gemma4",
        "gemma4-2",
        "qwen4exp",
        "qwen4exp-2",
        "qwen4exp-mtp",
    ] {
        let golden = tiny(name);
        for (rows, chunks) in [
            (9, [&[9][..], &[1], &[7, 2]]),
            (40, [&[40][..], &[17, 1], &[3]]),
        ] {
            let file = tiny_file(&format!("{name}.gguf"));
            let mut model = Bare::with_rows(&file, 2, golden.ids.len(), rows);
            let guessed = model.guessed(1, &golden.ids);
            assert_close(name, &guessed, &golden.logits, golden.vocab, TOLERANCE);
            for (slot, chunks) in chunks.into_iter().enumerate() {
                let logits = model.chunked(slot % 2, &golden.ids, chunks);
                assert_same(
                    &format!("{name}, {rows} rows, {chunks:?}"),
                    &logits,
                    &guessed,
                );
            }
        }
    }
}

#[test]
fn passes_take_turns() {
    for (seed, family) in [
        (1, "qwen35moe"),
        (2, "qwen3moe"),
        (3, "gpt-oss"),
        (4, "gemma4-2"),
        (5, "qwen4exp"),
    ] {
        let (golden, file) = (tiny(family), tiny_file(&format!("{family}.gguf")));
        let mut model = Bare::open(&file, SLOTS, golden.ids.len(), 2, KvType::F16);
        let count = check_turns(family, &mut model, &golden.ids, 400, seed);
        println!("{family}: {count:?}");
    }
}
