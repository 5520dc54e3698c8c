//! What norms' weights are, and where norms stand.

use super::Case;

/// What reads the norm before a layer's mixer.
const MIXERS: [&str; 8] = [
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_qkv.weight",
    "attn_gate.weight",
    "ssm_alpha.weight",
    "ssm_beta.weight",
    "ssm_ba.weight",
];
/// What reads the norm before a layer's feed-forward block.
const FEED_FORWARD: [&str; 8] = [
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "ffn_gate_exps.weight",
    "ffn_up_exps.weight",
    "ffn_gate_shexp.weight",
    "ffn_up_shexp.weight",
    "ffn_gate.weight",
    "ffn_up.weight",
];

/// A norm times two before what is halved says the same to the bit; with a 1 added to it, it would not.
#[test]
fn trap_2_norms_are_used_as_they_are() {
    let streams = [
        &["hc_ffn_down.weight", "hc_ffn_inject.weight"][..],
        &FEED_FORWARD,
    ]
    .concat();
    for name in ["qwen3moe", "qwen3next", "qwen35moe", "qwen4exp"] {
        let (case, file) = Case::new(name);
        let mut norms = 0;
        for (norm, readers) in [
            ("attn_norm.weight", &MIXERS[..]),
            ("post_attention_norm.weight", &FEED_FORWARD),
            ("ffn_norm.weight", &FEED_FORWARD),
            ("output_norm.weight", &["output.weight"]),
            ("attn_q_norm.weight", &["attn_k_norm.weight"]),
            ("ssm_norm.weight", &["ssm_out.weight"]),
            ("hc_ffn_norm.weight", &streams),
            (
                "output_hc_norm.weight",
                &["output_hc_down.weight", "output.weight"],
            ),
        ] {
            if file.has(norm) {
                let scaled = file.clone().times(&[norm], 2.0);
                case.differs(norm, &scaled);
                case.same(norm, &scaled.times(readers, 0.5));
                norms += 1;
            }
        }
        assert!(norms >= 4, "{name}");
    }
}

#[test]
fn trap_9_the_norm_after_attention_is_before_the_feed_forward_block() {
    let norm = "post_attention_norm.weight";
    for name in ["qwen3next", "qwen35moe", "glm4moe", "glm4moe-2", "gpt-oss"] {
        let (case, file) = Case::new(name);
        let scaled = file.clone().times(&[norm], 2.0);
        case.same(norm, &scaled.times(&FEED_FORWARD, 0.5));
        // what attention gives goes to the residual as it is
        case.differs("attention", &file.times(&["attn_output.weight"], 2.0));
    }
    for name in ["gemma4", "gemma4-2"] {
        let (case, file) = Case::new(name);
        let scaled = file.clone().times(&[norm], 2.0);
        case.differs(norm, &scaled.times(&FEED_FORWARD, 0.5));
        // what attention gives is normed first, so a factor on it is lost
        case.near("attention", &file.times(&["attn_output.weight"], 2.0));
    }
}
