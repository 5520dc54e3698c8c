//! The metadata keys of a synthetic file: those that a conversion of the real model has.

use crate::gguf::{Entry, HeaderWriter};

use super::{Blueprint, Mix, Streams, random::Random, vocabulary};

/// Adds every key for a model cut to `layers` layers, and so many prediction blocks behind them.
pub(super) fn describe(
    header: &mut HeaderWriter,
    model: &Blueprint,
    layers: usize,
    predicting: usize,
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
        ("block_count", layers + predicting),
        ("context_length", model.context),
        ("embedding_length", model.width),
        ("vocab_size", model.vocabulary),
        ("attention.head_count", model.heads),
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
    if predicting > 0 {
        numbers.push(("nextn_predict_layers", predicting));
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
    more(header, model, layers, predicting);
    if ["qwen35moe", "qwen4exp"].contains(&model.architecture) {
        header.set(
            &key("rope.dimension_sections"),
            Entry::I32s(&[11, 11, 10, 0]),
        );
    }
    vocabulary::describe(header, model.tokenizer, model.vocabulary);
}

/// The keys of what only some models have.
fn more(header: &mut HeaderWriter, model: &Blueprint, layers: usize, predicting: usize) {
    let key = |name: &str| format!("{}.{name}", model.architecture);
    let more = &model.more;
    let mut number = |name: &str, value: usize| {
        header.set(&key(name), Entry::U32(value as u32));
    };
    if more
        .window
        .is_none_or(|windows| windows.own_heads.is_none())
    {
        number("attention.head_count_kv", model.kv_heads);
    }
    if more.leading_dense > 0 {
        number("leading_dense_block_count", more.leading_dense);
    }
    if more.shared_experts > 0 {
        number("expert_shared_count", more.shared_experts);
    }
    if more.choice_bias {
        number("expert_gating_func", 2);
        header.set(&key("expert_weights_norm"), Entry::Bool(true));
        header.set(&key("expert_weights_scale"), Entry::F32(more.weights_scale));
    }
    if let Some((factor, original)) = more.yarn {
        header.set(&key("rope.scaling.type"), Entry::Str("yarn"));
        header.set(&key("rope.scaling.factor"), Entry::F32(factor));
        let original = Entry::U32(original as u32);
        header.set(&key("rope.scaling.original_context_length"), original);
    }
    if let Some(windows) = more.window {
        let positions = Entry::U32(windows.positions as u32);
        header.set(&key("attention.sliding_window"), positions);
        let windowed: Vec<bool> = (0..layers).map(|layer| model.windowed(layer)).collect();
        header.set(
            &key("attention.sliding_window_pattern"),
            Entry::Bools(&windowed),
        );
        if let Some(own) = windows.own_heads {
            let kv = (0..layers).map(|layer| model.kv_heads(layer).0 as i32);
            let kv: Vec<i32> = kv.collect();
            header.set(&key("attention.head_count_kv"), Entry::I32s(&kv));
            for name in [
                "attention.key_length_swa",
                "attention.value_length_swa",
                "rope.dimension_count_swa",
            ] {
                header.set(&key(name), Entry::U32(own.head_width as u32));
            }
            header.set(&key("rope.freq_base_swa"), Entry::F32(own.rope_base));
        }
    }
    if more.sandwich {
        header.set(&key("final_logit_softcapping"), Entry::F32(30.0));
        header.set(&key("embedding_length_per_layer_input"), Entry::U32(0));
    }
    if let Some(streams) = more.streams {
        several(header, model, &streams, layers, predicting);
    }
}

/// The keys of a residual of several streams, of an index and of a table of n-grams.
fn several(
    header: &mut HeaderWriter,
    model: &Blueprint,
    streams: &Streams,
    layers: usize,
    predicting: usize,
) {
    let key = |name: &str| format!("{}.{name}", model.architecture);
    let [tokens, heads, taps] = streams.ngram;
    for (name, value) in [
        ("hyper_connection.count", streams.count),
        ("hyper_connection.low_rank", streams.rank),
        ("attention.indexer.head_count", streams.index_heads),
        ("attention.indexer.key_length", streams.index_width),
        ("attention.indexer.top_k", streams.index_positions),
        ("embedding_length_per_layer_input", streams.ngram_width),
        ("ple.ngram_size", tokens),
        ("ple.heads_per_ngram", heads),
        ("ple.conv_kernel", taps),
        ("ple.eos_token_id", model.vocabulary - 1),
    ] {
        header.set(&key(name), Entry::U32(value as u32));
    }
    // prediction blocks have no index
    let indexed = |layer| layer < layers && model.full_attention(layer);
    let groups: Vec<i32> = (0..layers + predicting)
        .map(|layer| i32::from(indexed(layer)) * streams.index_group as i32)
        .collect();
    header.set(&key("attention.compress_ratios"), Entry::I32s(&groups));
    let ngrams = [streams.ngram_layer as i32];
    let ngrams = if streams.ngram_layer < layers {
        &ngrams[..]
    } else {
        &[]
    };
    header.set(&key("ple.layers"), Entry::I32s(ngrams));
    let sizes = streams.head_rows();
    let offsets: Vec<u64> = sizes
        .iter()
        .scan(0, |end, size| Some(std::mem::replace(end, *end + size)))
        .collect();
    let mut random = Random::new(model.vocabulary as u64, tokens as u64);
    let largest = i64::MAX as u64 / model.vocabulary as u64;
    let multipliers: Vec<u64> = (0..tokens).map(|_| (random.bits() % largest) | 1).collect();
    header.set(&key("ple.head_vocab_sizes"), Entry::U64s(&sizes));
    header.set(&key("ple.head_offsets"), Entry::U64s(&offsets));
    header.set(&key("ple.layer_multipliers"), Entry::U64s(&multipliers));
}
