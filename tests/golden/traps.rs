//! What implementations of these families are known to get wrong, one test each: the tiny models are made anew with keys and tensors changed in ways that must, or must not, change what they say.
//!
//! | trap | test |
//! | --- | --- |
//! | 1 `block_count` counts prediction blocks | [`trap_1_prediction_blocks_are_no_layers_of_the_trunk`] |
//! | 2 norms of Qwen's GGUF files have their 1 already | [`norms::trap_2_norms_are_used_as_they_are`] |
//! | 3 order of V heads | [`delta_net::trap_3_v_heads_find_their_k_head`] |
//! | 4 `ssm_a` is `-exp(A_log)` already | [`delta_net::trap_4_decays_are_used_as_they_are`] |
//! | 5 gate before up in fused tensors | [`experts::trap_5_gate_comes_before_up`] |
//! | 6 the bias on the choice is not in the weights | [`experts::trap_6_a_bias_on_the_choice_is_not_in_the_weights`] |
//! | 7 qwen3moe renormalises, whatever `expert_weights_norm` | [`experts::trap_7_weights_are_made_one_where_no_key_says_so`] |
//! | 8 gpt-oss: ends of YaRN, which layers slide, sinks | [`attention::trap_8_yarn_is_not_cut_at_whole_pairs`], [`attention::trap_8_even_layers_slide`], [`attention::trap_8_sinks_are_in_prompts_and_in_decoding`] |
//! | 9 `post_attention_norm` is the norm before the feed-forward block, but in gemma4 | [`norms::trap_9_the_norm_after_attention_is_before_the_feed_forward_block`] |
//! | 10 `head_count_kv` may be an array | [`attention::trap_10_heads_of_keys_may_differ_by_layer`] |
//! | 11 `key_length` is not the width over the heads | [`attention::trap_11_heads_are_as_wide_as_the_file_says`] |
//! | 12 rows that 256 does not divide: several types in a file | `twins::trap_12_rows_that_are_no_whole_blocks_have_other_types` |
//! | 13 `seperator_token_id` | no family reads it, in either spelling |
//! | 14 `<\|end\|>` in gpt-oss | `token::tests::trap_14_the_end_of_a_message_does_not_end_an_answer` |
//! | 15 unknown `pre` | `token::tests::trap_15_an_unknown_pre_tokenizer_is_refused` |
//! | 16 n-grams: 64 bits that wrap, ends of text, dilation | `backend::shape::tests::trap_16_ngrams_wrap_and_end_at_an_end_of_text`, [`trap_16_taps_are_three_positions_apart`] |
//! | 17, 18, 23 deepseek: rotation of the tail, of the output, group scores | families that are not here |
//! | 19 states of delta nets in f32 | `cpu::delta_net::tests::trap_19_states_do_not_drift` |
//! | 20 prediction blocks read hidden states after the final norm | [`trap_20_predictions_read_what_the_head_reads`] |
//! | 21 split files: count and paths | `gguf::tests::trap_21_split_files_are_opened_as_one` |
//! | 22 gemma4: values are keys before their norm | [`attention::trap_22_values_are_keys_before_their_norm`] |
//! | 24 IQ1_M: the scale in nibbles | `quant::tests::trap_24_nibbles_of_the_scale_of_iq1_m` |
//! | 25 MXFP4, NVFP4: halved once | `quant::tests::trap_25_doubled_codes_are_halved_once` |

#[path = "traps/attention.rs"]
mod attention;
#[path = "traps/delta_net.rs"]
mod delta_net;
#[path = "traps/experts.rs"]
mod experts;
#[path = "traps/norms.rs"]
mod norms;

use std::sync::Arc;

use crate::{
    bare::Bare,
    reference::{TOLERANCE, assert_close, assert_same, tiny},
    remade::{Key, Remade},
};
use tidegate::{
    backend::{Needs, shape::KvType},
    cpu::backend::{Cpu, CpuSettings},
    engine::executor::Executor,
    gguf::Gguf,
    model::family,
};

/// Positions that are computed: over a page, and over a block of a delta net.
const POSITIONS: usize = 100;

fn cpu() -> Cpu {
    Cpu::new(CpuSettings { threads: Some(1) })
}

fn open(file: &Arc<Gguf>) -> Bare {
    Bare::of(cpu(), file, 1, (POSITIONS, POSITIONS), KvType::F32)
}

/// What a file's layers are like.
fn needs(remade: &Remade) -> Needs {
    let model = family::load(&remade.file(), &mut cpu()).expect("a model");
    model.needs().clone()
}

/// A tiny model as it is, and what it says.
struct Case {
    name: &'static str,
    ids: Vec<u32>,
    vocab: usize,
    /// `[ids, vocab] f32`
    logits: Vec<f32>,
}

impl Case {
    fn new(name: &'static str) -> (Self, Remade) {
        let (golden, file) = (tiny(name), Remade::tiny(&format!("{name}.gguf")));
        let ids = golden.ids[..POSITIONS].to_vec();
        let logits = golden.logits[..POSITIONS * golden.vocab].to_vec();
        let mut case = Self {
            name,
            ids,
            vocab: golden.vocab,
            logits,
        };
        let ours = case.says(&file);
        assert_close(name, &ours, &case.logits, case.vocab, TOLERANCE);
        case.logits = ours;
        (case, file)
    }

    fn says(&self, file: &Remade) -> Vec<f32> {
        open(&file.file()).chunked(0, &self.ids, &[POSITIONS])
    }

    /// Another file says the same to the bit.
    fn same(&self, what: &str, file: &Remade) {
        let what = format!("{}, {what}", self.name);
        assert_same(&what, &self.says(file), &self.logits);
    }

    /// Another file says nearly the same.
    fn near(&self, what: &str, file: &Remade) {
        let what = format!("{}, {what}", self.name);
        assert_close(&what, &self.says(file), &self.logits, self.vocab, TOLERANCE);
    }

    /// Another file says something else.
    fn differs(&self, what: &str, file: &Remade) {
        let (ours, theirs) = (self.says(file), &self.logits);
        let largest = theirs.iter().fold(0f32, |max, x| max.max(x.abs()));
        let most = ours
            .iter()
            .zip(theirs)
            .fold(0f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(
            most > 10.0 * TOLERANCE * largest,
            "{}, {what}: at most {most} of {largest} off",
            self.name
        );
    }
}

#[test]
fn trap_1_prediction_blocks_are_no_layers_of_the_trunk() {
    let (case, file) = Case::new("glm4moe-mtp");
    let layers = |file: &Remade| open(&file.file()).runner.capacity().layers;
    let number = |name| match file.key(name) {
        Some(Key::Unsigned(number)) => *number,
        other => panic!("{name}: {other:?}"),
    };
    let (blocks, predict) = (number("block_count"), number("nextn_predict_layers"));
    assert_eq!((blocks, predict), (5, 1));
    assert_eq!(layers(&file), 4);
    // four layers of experts and dense ones, a fifth block's experts are nobody's
    assert_eq!(needs(&file).expert_layers.len(), 3);
    let without = file
        .without("blk.4.")
        .with("block_count", Some(Key::Unsigned(4)))
        .with("nextn_predict_layers", None);
    assert_eq!(layers(&without), 4);
    case.same("without the block", &without);
}

/// With one tap, the oldest, a row's convolution reads its input nine rows before: three taps of three positions.
#[test]
fn trap_16_taps_are_three_positions_apart() {
    let (case, file) = Case::new("qwen4exp");
    assert!(matches!(file.key("ple.ngram_size"), Some(Key::Unsigned(3))));
    let only = |kept: usize| {
        file.clone().change("ple_conv1d.weight", |taps| {
            for (at, tap) in taps.iter_mut().enumerate() {
                *tap = if at % 4 == kept { 4.0 } else { 0.0 };
            }
        })
    };
    let none = case.says(&file.clone().times(&["ple_conv1d.weight"], 0.0));
    for kept in 0..4 {
        let (some, back) = (case.says(&only(kept)), 3 * (3 - kept));
        let at = |row: usize| row * case.vocab..(row + 1) * case.vocab;
        // the first rows have nothing so far back
        assert_same("before", &some[..at(back).start], &none[..at(back).start]);
        assert_ne!(some[at(back)], none[at(back)], "tap {kept}");
    }
}

/// Factors on the final norm that the head takes back change no logit; a prediction block reads what they have changed.
#[test]
fn trap_20_predictions_read_what_the_head_reads() {
    let (case, file) = Case::new("glm4moe-mtp");
    // powers of two, so that no bit is lost
    let factor = |channel: usize| [2.0, 0.5, 1.0, 4.0][channel % 4];
    let width = file.values("output_norm.weight").len();
    let scaled = file
        .clone()
        .change("output_norm.weight", |norm| {
            (norm.iter_mut().enumerate()).for_each(|(at, x)| *x *= factor(at));
        })
        .change("output.weight", |head| {
            (head.iter_mut().enumerate()).for_each(|(at, x)| *x /= factor(at % width));
        });
    case.same("a scaled final norm", &scaled);
    let predicted = |file: &Remade| {
        let mut model = open(&file.file());
        model.rows(0, 0, &case.ids[..POSITIONS - 1]);
        let last = (POSITIONS - 1, case.ids[POSITIONS - 1]);
        model.predict(0, last, 1).1.to_vec()
    };
    // the head is shared, so that what the block says of the same hidden state is the same
    let scaled = scaled.change("nextn.shared_head_norm.weight", |norm| {
        (norm.iter_mut().enumerate()).for_each(|(at, x)| *x *= factor(at));
    });
    assert_ne!(
        predicted(&file),
        predicted(&scaled),
        "it reads what the norm gives"
    );
    let unread = |file: &Remade| predicted(&file.clone().times(&["nextn.hnorm.weight"], 0.0));
    assert_same("without hidden states", &unread(&scaled), &unread(&file));
}
