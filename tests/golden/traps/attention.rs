//! Heads, windows, sinks, rotation, and where values come from.

use super::{Case, POSITIONS, needs, open};
use crate::{
    reference::assert_same,
    remade::{Key, Remade},
};

#[test]
fn trap_8_yarn_is_not_cut_at_whole_pairs() {
    let truncate = "rope.scaling.yarn_truncate";
    for name in ["gpt-oss", "gpt-oss-2"] {
        let (case, file) = Case::new(name);
        let said = |value: Option<bool>| file.clone().with(truncate, value.map(Key::Bool));
        case.same("nothing is said", &said(None));
        case.same("not cut", &said(Some(false)));
        case.differs("cut", &said(Some(true)));
    }
}

#[test]
fn trap_8_even_layers_slide() {
    for (name, window) in [("gpt-oss", 8), ("gpt-oss-2", 70)] {
        let file = Remade::tiny(&format!("{name}.gguf"));
        for said in [
            file.clone(),
            file.with("attention.sliding_window_pattern", None),
        ] {
            for (layer, shape) in needs(&said).attention.iter().enumerate() {
                let expected = (layer % 2 == 0).then_some(window);
                assert_eq!(shape.window, expected, "{name}, layer {layer}");
            }
        }
    }
}

/// Before a sink that takes everything, attention gives nothing, to rows of prompts and to those that decode.
#[test]
fn trap_8_sinks_are_in_prompts_and_in_decoding() {
    let sinks = "attn_sinks.weight";
    for name in ["gpt-oss", "gpt-oss-2"] {
        let (mut case, file) = Case::new(name);
        case.differs("none", &file.clone().change(sinks, |all| all.fill(-1e4)));
        case.logits = case.says(&file.clone().times(&["attn_output.weight"], 0.0));
        let all = file.change(sinks, |all| all.fill(1e4));
        case.same("prompt", &all);
        let decoded = open(&all.file()).chunked(0, &case.ids, &[POSITIONS / 2, 1]);
        assert_same(name, &decoded, &case.logits);
    }
}

#[test]
fn trap_10_heads_of_keys_may_differ_by_layer() {
    let key = "attention.head_count_kv";
    let file = Remade::tiny("gemma4.gguf");
    assert!(matches!(file.key(key), Some(Key::I32s(heads)) if *heads == [2, 1, 2, 1]));
    let heads = |file: &Remade| {
        let layers = needs(file).attention;
        layers.iter().map(|of| of.kv.heads).collect::<Vec<_>>()
    };
    assert_eq!(heads(&file), [2, 1, 2, 1]);
    for name in ["qwen3moe", "glm4moe", "gpt-oss", "minimax-m2"] {
        let (case, file) = Case::new(name);
        let Some(Key::Unsigned(one)) = file.key(key) else {
            panic!("{name}: {:?}", file.key(key));
        };
        let layers = needs(&file).attention.len();
        let several = Key::I32s(vec![*one as i32; layers]);
        case.same("an array", &file.with(key, Some(several)));
    }
}

#[test]
fn trap_11_heads_are_as_wide_as_the_file_says() {
    for (name, said) in [("qwen3", 32), ("qwen3moe", 32), ("glm4moe", 16)] {
        let file = Remade::tiny(&format!("{name}.gguf"));
        let shape = &needs(&file).attention[0];
        assert_eq!(shape.kv.head_dim, said, "{name}");
        let width = file.values("output_norm.weight").len();
        assert_ne!(said, width / shape.heads, "{name} can tell");
        Case::new(name);
    }
    // and where it says nothing, they share the width
    let (case, file) = Case::new("llama");
    let keys = ["attention.key_length", "attention.value_length"];
    let silent = keys.iter().fold(file, |file, key| file.with(key, None));
    case.same("nothing is said", &silent);
}

#[test]
fn trap_22_values_are_keys_before_their_norm() {
    for (name, half) in [("gemma4", 16), ("gemma4-2", 32)] {
        let (case, file) = Case::new(name);
        let full = |piece: &&crate::remade::Piece| {
            let at = piece.name.trim_end_matches("attn_k.weight");
            piece.name.ends_with("attn_k.weight")
                && !file
                    .tensors
                    .iter()
                    .any(|of| of.name == format!("{at}attn_v.weight"))
        };
        let keys: Vec<_> = file.tensors.iter().filter(full).cloned().collect();
        assert!(!keys.is_empty(), "{name} has layers without values");
        let mut with_values = file.clone();
        with_values
            .tensors
            .extend(keys.iter().cloned().map(|mut key| {
                key.name = key.name.replace("attn_k", "attn_v");
                key
            }));
        case.same("values of their own", &with_values);
        // factors that queries take back change no score; values do not have them. Channels that turn together have the same.
        let scaled = |file: Remade, norm: &str, up: bool| {
            file.change(norm, |norm| {
                if norm.len() == 2 * half {
                    for (at, x) in norm.iter_mut().enumerate() {
                        let factor = [1.0, 2.0, 4.0][at % half % 3];
                        *x *= if up { factor } else { 1.0 / factor };
                    }
                }
            })
        };
        let keys = scaled(file.clone(), "attn_k_norm.weight", true);
        case.differs("scaled keys", &keys);
        case.same(
            "scaled keys and queries",
            &scaled(keys, "attn_q_norm.weight", false),
        );
    }
}
