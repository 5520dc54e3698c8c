//! The facts of a generated file, and what people see of them.

use super::*;
use crate::gguf::{Entry, HeaderWriter};
use crate::quant::BlockType;

const STACKED: [&str; 3] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];

/// Two blocks of four experts (two used), 32 wide, every matrix Q8_0 (34 bytes a row); the last `predicting` are prediction blocks.
fn sample(expert_names: [&str; 3], tied: bool, predicting: u32) -> Inspection {
    let mut header = HeaderWriter::new();
    header
        .set("general.architecture", Entry::Str("olmoe"))
        .set("general.name", Entry::Str("a\nb"));
    header
        .set("olmoe.expert_count", Entry::U32(4))
        .set("olmoe.expert_used_count", Entry::U32(2));
    header
        .set("olmoe.attention.layer_norm_rms_epsilon", Entry::F32(1e-6))
        .set("olmoe.heads", Entry::I32s(&[4, 4]));
    header
        .set("olmoe.block_count", Entry::U32(2))
        .set("olmoe.nextn_predict_layers", Entry::U32(predicting));
    header.set("split.no", Entry::U16(0));
    let tokens: Vec<String> = (0..200).map(|i| format!("t{i}")).collect();
    header
        .set("tokenizer.ggml.tokens", Entry::Strs(&tokens))
        .set("tokenizer.ggml.model", Entry::Str("gpt2"));
    header
        .set("tokenizer.ggml.eos_token_id", Entry::U32(7))
        .set("tokenizer.ggml.bos_token_id", Entry::U32(200));
    header.tensor("token_embd.weight", &[32, 200], BlockType::Q8_0);
    if !tied {
        header.tensor("output.weight", &[32, 200], BlockType::Q8_0);
    }
    for layer in 0..2 {
        header.tensor(
            &format!("blk.{layer}.attn_norm.weight"),
            &[32],
            BlockType::F32,
        );
        for name in expert_names {
            if name.ends_with("_exps") {
                header.tensor(
                    &format!("blk.{layer}.{name}.weight"),
                    &[32, 32, 4],
                    BlockType::Q8_0,
                );
            } else {
                for expert in 0..4 {
                    header.tensor(
                        &format!("blk.{layer}.{name}.{expert}.weight"),
                        &[32, 32],
                        BlockType::Q8_0,
                    );
                }
            }
        }
    }
    let mut bytes = header.finish();
    bytes.resize(bytes.len() + header.data_bytes() as usize, 0);
    Inspection::of(&Gguf::from_bytes(bytes).unwrap()).unwrap()
}

#[test]
fn experts_are_counted_apart() {
    let check = |names, tied, predicting, shared_bytes: usize, trunk: usize| {
        let experts = sample(names, tied, predicting).experts.unwrap();
        assert_eq!((experts.layers, experts.count, experts.used), (2, 4, 2));
        assert_eq!(
            (experts.bytes_each, experts.bytes),
            (3 * 32 * 34, 2 * 4 * 3 * 32 * 34)
        );
        assert_eq!(
            experts.bytes_per_token,
            shared_bytes + trunk * (128 + 2 * experts.bytes_each)
        );
    };
    check(STACKED, false, 0, 200 * 34 + 34, 2);
    check(STACKED, true, 0, 200 * 34, 2);
    check(STACKED, false, 1, 200 * 34 + 34, 1);
    check(
        ["ffn_gate", "ffn_up", "ffn_down"],
        false,
        0,
        200 * 34 + 34,
        2,
    );
}

#[test]
fn text_is_for_people() {
    let facts = sample(STACKED, false, 0);
    let short = facts.text(false).to_string();
    for expected in [
        "GGUF version 3, 13 keys, 10 tensors",
        "\ngeneral\n  architecture  olmoe\n  name          a\\nb\n",
        "  attention.layer_norm_rms_epsilon  1e-6\n",
        "  heads                             2 x 4\n",
        "  gpt2, 200 tokens, 0 merges\n  eos            7  t7\n  bos          200  outside the vocabulary\n  no chat template\n",
        "\nother keys\n  split.no  0\n",
        "  2 layers of 4 experts, 2 used by a token\n  3.2 KiB each, 25.5 KiB in all\n",
        "Q8_0           8          37376   38.8 KiB   99.4%        8.500\n",
        "blk.*.ffn_up_exps.weight        2    8.5 KiB  {32, 32, 4}            Q8_0\n",
    ] {
        assert!(short.contains(expected), "{expected:?} is not in:\n{short}");
    }
    assert!(
        facts
            .text(true)
            .to_string()
            .contains("blk.1.ffn_up_exps.weight        1    4.2 KiB  {32, 32, 4}")
    );
}

#[test]
fn json_is_for_programs() {
    let json: Json = serde_json::from_str(&sample(STACKED, false, 0).json()).unwrap();
    assert_eq!(
        json["metadata"]["olmoe.attention.layer_norm_rms_epsilon"],
        1e-6
    );
    assert_eq!(json["metadata"]["olmoe.heads"], json!([4, 4]));
    assert_eq!(
        json["metadata"]["tokenizer.ggml.tokens"],
        json!({ "array_of": "string", "length": 200 })
    );
    assert_eq!(json["tokenizer"]["special"][0], json!(["eos", 7, "t7"]));
    assert_eq!(json["types"][0]["type"], "Q8_0");
    assert_eq!(json["tensors"][0]["dims"], json!([32]));
}
