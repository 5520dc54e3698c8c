//! Delta nets: order of heads, and decay.

use super::Case;
use crate::remade::Remade;

/// Exchanges V heads `a` and `b`, of 4 with 2 K heads, wherever they are: a layer must not notice if both have the same K head.
fn exchanged(file: &Remade, [a, b]: [usize; 2], v_dim: usize) -> Remade {
    // runs of so many values, behind so many that stay
    let swap = |values: &mut [f32], skip: usize, run: usize| {
        let values = &mut values[skip..];
        (0..run).for_each(|at| values.swap(a * run + at, b * run + at));
    };
    let mut file = file.clone();
    let channels = file.values("blk.0.ssm_conv1d.weight").len() / 4;
    let (before, width) = (
        channels - 4 * v_dim,
        file.values("blk.0.attn_qkv.weight").len() / channels,
    );
    file = file
        .change("attn_qkv.weight", |rows| {
            swap(rows, before * width, v_dim * width)
        })
        .change("ssm_conv1d.weight", |taps| {
            swap(taps, before * 4, v_dim * 4)
        })
        .change("attn_gate.weight", |rows| swap(rows, 0, v_dim * width))
        .change("ssm_a", |heads| swap(heads, 0, 1))
        .change("ssm_dt.bias", |heads| swap(heads, 0, 1))
        .change("ssm_out.weight", |rows| {
            rows.chunks_mut(4 * v_dim)
                .for_each(|row| swap(row, 0, v_dim));
        });
    if file.has("ssm_ba.weight") {
        // rows of a K head: beta of its two V heads, then their decay
        let row = |head: usize, decay: usize| 4 * (head / 2) + 2 * decay + head % 2;
        return file.change("ssm_ba.weight", |rows| {
            for (decay, at) in [0, 1]
                .into_iter()
                .flat_map(|of| (0..width).map(move |at| (of, at)))
            {
                rows.swap(row(a, decay) * width + at, row(b, decay) * width + at);
            }
        });
    }
    file.change("ssm_alpha.weight", |rows| swap(rows, 0, width))
        .change("ssm_beta.weight", |rows| swap(rows, 0, width))
}

#[test]
fn trap_3_v_heads_find_their_k_head() {
    // of V heads 0 to 3 those with one K head, in the order that a converter leaves them
    for (name, alike, others) in [
        ("qwen3next", [[0, 1], [2, 3]], [0, 2]),
        ("qwen35moe", [[0, 2], [1, 3]], [0, 1]),
        ("qwen4exp", [[0, 2], [1, 3]], [0, 1]),
    ] {
        let (case, file) = Case::new(name);
        let v_dim = file.values("blk.0.ssm_norm.weight").len();
        for pair in alike {
            case.near(&format!("{pair:?}"), &exchanged(&file, pair, v_dim));
        }
        case.differs("others", &exchanged(&file, others, v_dim));
    }
}

/// A decay of 0 keeps everything, whatever the time step is: it is no logarithm of one.
#[test]
fn trap_4_decays_are_used_as_they_are() {
    for name in ["qwen3next", "qwen35moe", "qwen4exp"] {
        let (case, file) = Case::new(name);
        let decays = file.values("blk.0.ssm_a");
        assert!(decays.iter().all(|decay| *decay < 0.0), "{decays:?}");
        let later = |file: &Remade| {
            let later = |biases: &mut [f32]| biases.iter_mut().for_each(|bias| *bias += 2.0);
            file.clone().change("ssm_dt.bias", later)
        };
        case.differs("longer steps", &later(&file));
        let (mut case, kept) = (case, file.times(&["ssm_a"], 0.0));
        case.logits = case.says(&kept);
        case.same("longer steps of what is kept", &later(&kept));
    }
}
