//! The metadata keys of a synthetic file: those that a conversion of the real model has.

use crate::gguf::{Entry, HeaderWriter};

use super::{Blueprint, Mix, vocabulary};

/// Adds every key for a model cut to `layers` layers, with or without a prediction block behind them.
pub(super) fn describe(
    header: &mut HeaderWriter,
    model: &Blueprint,
    layers: usize,
    predicts: bool,
    mix: Mix,
) {
    let name = format!(
        "Synthetic {}, {layers} of {} layers",
        model.name, model.layers
    );
    header.set("general.architecture", Entry::Str(model.architecture));
    header.set("general.type", Entry::Str("model"));
    header.set("general.name", Entry::Str(&name));
    header.set("general.quantization_version", Entry::U32(2));
    header.set("general.file_type", Entry::U32(mix.file_type()));
    let mut numbers = vec![
        ("block_count", layers + usize::from(predicts)),
        ("context_length", model.context),
        ("embedding_length", model.width),
        ("vocab_size", model.vocabulary),
        ("attention.head_count", model.heads),
        ("attention.head_count_kv", model.kv_heads),
        ("attention.key_length", model.head_width),
        ("attention.value_length", model.head_width),
        ("rope.dimension_count", model.rotated),
        ("expert_count", model.experts),
        ("expert_used_count", model.used),
        ("expert_feed_forward_length", model.expert_width),
    ];
    numbers.extend(
        model
            .feed_forward
            .map(|width| ("feed_forward_length", width)),
    );
    if predicts {
        numbers.push(("nextn_predict_layers", 1));
    }
    if let Some(hybrid) = model.hybrid {
        numbers.extend([
            ("expert_shared_feed_forward_length", hybrid.shared_width),
            ("full_attention_interval", hybrid.interval),
            ("ssm.conv_kernel", hybrid.conv),
            ("ssm.state_size", hybrid.head_width),
            ("ssm.group_count", hybrid.k_heads),
            ("ssm.time_step_rank", hybrid.v_heads),
            ("ssm.inner_size", hybrid.v_heads * hybrid.head_width),
        ]);
    }
    let key = |name: &str| format!("{}.{name}", model.architecture);
    for (name, value) in numbers {
        header.set(&key(name), Entry::U32(value as u32));
    }
    header.set(
        &key("attention.layer_norm_rms_epsilon"),
        Entry::F32(model.eps),
    );
    header.set(&key("rope.freq_base"), Entry::F32(model.rope_base));
    if model.architecture == "qwen35moe" {
        header.set(
            &key("rope.dimension_sections"),
            Entry::I32s(&[11, 11, 10, 0]),
        );
    }
    vocabulary::describe(header, model.tokenizer, model.vocabulary);
}
