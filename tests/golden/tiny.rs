//! Logits against transformers: tiny random models of every family, at every position, for any chunk size.
//!
//! The goldens are float32 and come from `scripts/tiny-models.py`; see `fixtures/tiny/README.md`.

use crate::{
    bare::Bare,
    families::every_family,
    reference::{TOLERANCE, assert_close, assert_same, tiny, tiny_file},
    turns::{SLOTS, check_turns},
};
use tidegate::backend::shape::KvType;

fn check(file: &str, golden_name: &str) {
    let golden = tiny(golden_name);
    let open = |threads| Bare::open(&tiny_file(file), 2, golden.ids.len(), threads, KvType::F32);
    let mut one = open(1);
    let whole = one.chunked(0, &golden.ids, &[golden.ids.len()]);
    assert_close(file, &whole, &golden.logits, golden.vocab, TOLERANCE);
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

#[test]
fn passes_take_turns() {
    for (seed, family) in [(1, "qwen35moe"), (2, "qwen3moe")] {
        let (golden, file) = (tiny(family), tiny_file(&format!("{family}.gguf")));
        let mut model = Bare::open(&file, SLOTS, golden.ids.len(), 2, KvType::F16);
        let count = check_turns(family, &mut model, &golden.ids, 400, seed);
        println!("{family}: {count:?}");
    }
}
