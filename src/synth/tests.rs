//! Files as written read back with the right sizes, spreads and routing.

use indicatif::ProgressBar;

use super::blocks::BlockWriter;
use super::mix::Site;
use super::plan::{Fill, PlannedTensor};
use super::random::Random;
use super::router::{CommonStart, shares};
use super::*;
use crate::gguf::Gguf;
use crate::quant::{BlockType, dequantise};

/// A hybrid small enough to write in a test, its rows too narrow for some 256-wide blocks.
const SMALL: Blueprint = Blueprint {
    name: "small",
    architecture: "qwen35moe",
    layers: 4,
    width: 512,
    heads: 4,
    kv_heads: 2,
    head_width: 64,
    rotated: 64,
    rope_base: 1e4,
    eps: 1e-6,
    qk_norm: QkNorm::Head,
    experts: 16,
    used: 4,
    expert_width: 96,
    feed_forward: None,
    hybrid: Some(Hybrid {
        interval: 4,
        k_heads: 2,
        v_heads: 4,
        head_width: 64,
        conv: 4,
        shared_width: 96,
        fused_ba: false,
    }),
    more: More::NONE,
    vocabulary: 1000,
    context: 256,
    tokenizer: Tokenizer::Bpe("qwen35"),
};

fn mean_and_std(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    (
        mean,
        (values
            .iter()
            .map(|&x| (f64::from(x) - mean).powi(2))
            .sum::<f64>()
            / n)
            .sqrt(),
    )
}

#[test]
fn blocks_have_the_spread_asked_for() {
    use BlockType::*;
    for ty in [
        F32, F16, BF16, Q8_0, Q4_0, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS,
        IQ3_XXS, IQ3_S, IQ2_XXS, IQ2_XS, IQ2_S, MXFP4,
    ] {
        for std in [1.0, 0.02] {
            let blocks = 1 << 20 >> ty.block_values().ilog2();
            let mut bytes = vec![0; blocks * ty.block_bytes()];
            let mut values = vec![0.0; blocks * ty.block_values()];
            BlockWriter::new(ty)
                .unwrap()
                .fill(&mut Random::new(1, 2), std, &mut bytes);
            dequantise(ty, &bytes, &mut values).unwrap();
            let (mean, got) = mean_and_std(&values);
            assert!(
                (got / f64::from(std) - 1.0).abs() < 0.02,
                "{ty}: spread {got}, asked for {std}"
            );
            assert!(
                (mean / got).abs() < 0.02,
                "{ty}: mean {mean} of spread {got}"
            );
        }
    }
}

#[test]
fn mixtures_follow_the_rules() {
    use BlockType::*;
    let check = |mix: &str, role, layer, row, expected| {
        let site = Site {
            role,
            layer,
            layers: 48,
            experts: 128,
            heads_per_kv: 8,
        };
        assert_eq!(
            mix.parse::<Mix>().unwrap().type_of(site, row),
            expected,
            "{mix} {role} in layer {layer}, rows of {row}"
        );
    };
    check("q4_k_m", "attn_v", 0, 2048, Q6_K);
    check("q4_k_m", "attn_v", 6, 2048, Q4_K);
    check("q4_k_m", "attn_v", 8, 2048, Q6_K);
    check("q4_k_m", "ffn_down_exps", 42, 768, Q6_K);
    check("q4_k_m", "ffn_down_shexp", 41, 512, Q6_K);
    check("q4_k_m", "ffn_down_exps", 40, 768, Q4_K);
    check("q4_k_m", "ffn_down_exps", 0, 1408, Q8_0);
    check("q4_k_m", "ffn_gate_exps", 0, 2880, Q5_0);
    check("q4_k_m", "attn_qkv", 9, 2048, Q5_K);
    check("q4_k_m", "output", 0, 2048, Q6_K);
    check("Q5_K_M", "ffn_up_exps", 0, 2880, Q5_1);
    check("q4_k_s", "ffn_down_exps", 5, 768, Q5_K);
    check("q2_k", "attn_v", 20, 2048, Q4_K);
    check("q2_k", "ffn_down_exps", 20, 704, Q4_0);
    check("q3_k_m", "ffn_down_exps", 2, 768, Q5_K);
    check("iq3_xxs", "token_embd", 0, 2048, IQ3_S);
    check("iq3_xxs", "attn_q", 0, 2048, IQ2_S);
    check("iq2_xxs", "ffn_down_exps", 3, 768, Q2_K);
    check("iq2_xs", "ffn_gate_exps", 9, 160, IQ4_NL);
    check("iq4_xs", "attn_v", 9, 2048, Q5_K);
    check("mxfp4", "ffn_up_exps", 9, 2048, MXFP4);
    check("mxfp4", "attn_q", 9, 2048, Q8_0);
    check("q8_0", "output", 9, 40, F16);
    assert!(
        "q9".parse::<Mix>()
            .unwrap_err()
            .to_string()
            .contains("known are f32, f16, bf16")
    );
}

/// Sizes of the files that people download. **Source**: their listings, in GB.
#[test]
fn files_have_the_true_size() {
    let check = |model: &str, mix: &str, expected: f64| {
        let plan = Plan::new(Blueprint::named(model).unwrap(), None, mix.parse().unwrap()).unwrap();
        let bytes: usize = plan.tensors.iter().map(PlannedTensor::bytes).sum();
        assert!(
            (bytes as f64 / 1e9 / expected - 1.0).abs() < 0.01,
            "{model} {mix}: {bytes} bytes, expected {expected} GB"
        );
    };
    check("qwen3-30b-a3b", "q4_k_m", 18.56);
    check("qwen3-30b-a3b", "q8_0", 32.48);
    check("qwen3-30b-a3b", "q2_k", 11.26);
    check("qwen3-30b-a3b", "bf16", 61.1);
    check("olmoe-1b-7b", "q4_k_m", 4.21);
    check("mixtral-8x7b", "q4_k_m", 28.45);
    check("mixtral-8x7b", "q5_k_m", 33.23);
}

#[test]
fn files_read_back() {
    let plan = Plan::new(SMALL, None, Mix::Q4KM).unwrap();
    reads_back(plan.clone(), 4);
    reads_back(plan.predicting(0.8).unwrap(), 5);
}

fn reads_back(plan: Plan, blocks: u32) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.gguf");
    let bar = ProgressBar::hidden();
    plan.write(&path, &bar).unwrap();
    let file = Gguf::open(&path).unwrap();
    assert_eq!(
        file.files().map(|(_, bytes)| bytes as u64).sum::<u64>(),
        bar.position(),
        "every byte was written and counted"
    );
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing else is left"
    );
    assert_eq!(file.tensors().len(), plan.tensors.len());
    assert_eq!(file.need_u32("qwen35moe.block_count").unwrap(), blocks);

    let values = |name: &str| {
        let tensor = file.tensor(name).unwrap();
        let mut values = vec![0.0; tensor.values()];
        dequantise(tensor.ty, file.bytes(tensor), &mut values).unwrap();
        values
    };
    for planned in &plan.tensors {
        let got = values(&planned.name);
        let (mean, std) = mean_and_std(&got);
        let fits = match planned.fill {
            Fill::Weights { std: asked } => {
                got.len() < 4096 || (std / f64::from(asked) - 1.0).abs() < 0.05
            }
            Fill::Embeddings | Fill::Successors | Fill::Mistaken { .. } => (std - 1.0).abs() < 0.2,
            Fill::FirstHalf => got.iter().filter(|x| **x > 0.99).count() == 512,
            Fill::Router => std > 0.0,
            Fill::Norm { mean: asked } => (mean - f64::from(asked)).abs() < 0.05 && std < 0.1,
            Fill::Hole => got.iter().all(|x| *x == 0.0),
            Fill::Divisors => got.iter().all(|x| *x >= 1.0),
            Fill::Decay => got.iter().all(|x| (-16.0..=-1.0).contains(x)),
            Fill::TimeStep => got
                .iter()
                .all(|x| (0.0009..=0.11).contains(&x.exp().ln_1p())),
        };
        assert!(fits, "{}: mean {mean}, spread {std}", planned.name);
    }
    // Every embedding starts alike and goes on differently.
    let embeddings = values("token_embd.weight");
    let rows: Vec<&[f32]> = embeddings.chunks_exact(512).collect();
    assert!(
        rows.iter().all(|row| row[..256] == rows[0][..256]
            && (row[256..] == rows[0][256..]) == (row == &rows[0]))
    );

    let again = folder.path().join("again.gguf");
    plan.write(&again, &bar).unwrap();
    assert!(
        std::fs::read(path).unwrap() == std::fs::read(again).unwrap(),
        "the same plan gives the same bytes"
    );
}

#[test]
fn refusals_name_what_is_possible() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan::new(SMALL, Some(1), Mix::F16).unwrap();
    let error = plan
        .write(&folder.path().join("absent/x.gguf"), &ProgressBar::hidden())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("No such file") && error.contains("bytes"),
        "{error}"
    );
    assert!(
        Blueprint::named("gpt-5")
            .unwrap_err()
            .to_string()
            .contains("known are qwen3-30b-a3b, qwen3-next-80b-a3b")
    );
    for (model, acceptance, why) in [
        ("qwen3.5-35b-a3b", 1.5, "a chance of 1.5; 0 to 1"),
        ("qwen3.5-35b-a3b", f32::NAN, "a chance of NaN"),
        (
            "mixtral-8x7b",
            0.5,
            "qwen3.5-397b-a17b, qwen3.8-flash-next, glm-4.5-air are",
        ),
    ] {
        let plan = Plan::new(Blueprint::named(model).unwrap(), Some(1), Mix::F16).unwrap();
        let error = plan.predicting(acceptance).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    for layers in [0, 5] {
        let error = Plan::new(SMALL, Some(layers), Mix::F16)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("cut to {layers} layers; it has 4")),
            "{error}"
        );
    }
}

/// Routes many random hidden states as an engine would and compares how often the expert of each rank is chosen with its share.
#[test]
fn experts_are_as_popular_as_their_rank() {
    const TOKENS: usize = 2000;
    for (experts, used) in [(128, 8), (64, 8), (8, 2)] {
        let width = 2048;
        let embeddings = PlannedTensor {
            name: String::new(),
            dims: vec![width, 1],
            ty: BlockType::Q4_K,
            fill: Fill::Embeddings,
        };
        let writer = BlockWriter::new(embeddings.ty).unwrap();
        let random = &mut Random::new(3, 4);
        let common = CommonStart::new(&embeddings, &writer, random).unwrap();
        let router = common.router(width, experts, used, random);

        let mut counts = vec![0u32; experts];
        for _ in 0..TOKENS {
            let mut bytes = vec![0; embeddings.row_bytes()];
            let mut hidden = vec![0.0; width];
            writer.fill(random, 1.0, &mut bytes);
            bytes[..common.bytes.len()].copy_from_slice(&common.bytes);
            dequantise(embeddings.ty, &bytes, &mut hidden).unwrap();
            let scores: Vec<f32> = router
                .chunks_exact(width)
                .map(|row| row.iter().zip(&hidden).map(|(w, x)| w * x).sum())
                .collect();
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_unstable_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            order[..used].iter().for_each(|&expert| counts[expert] += 1);
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        for (rank, share) in shares(experts, used)
            .into_iter()
            .enumerate()
            .filter(|(rank, _)| (rank + 1).is_power_of_two())
        {
            let got = counts[rank] as f32 / TOKENS as f32;
            eprintln!(
                "{experts} rank {}: chosen by {got:.3} of the tokens, its share is {share:.3}",
                rank + 1
            );
            assert!(
                (0.7..1.4).contains(&(got / share)),
                "{experts} experts, rank {}: chosen by {got:.3} of the tokens, its share is {share:.3}",
                rank + 1
            );
        }
    }
}
