//! Routers and experts.

use super::Case;
use crate::remade::{Key, Piece, Remade};

/// The experts' gate and up matrices in one tensor each layer, in this order.
fn fused(file: &Remade, parts: [&str; 2]) -> Remade {
    let mut fused = file.clone();
    let [first, second] = parts.map(|part| format!("ffn_{part}_exps.weight"));
    let is_first = |piece: &&Piece| piece.name.ends_with(&first);
    for of_first in file.tensors.iter().filter(is_first) {
        let at = of_first.name.trim_end_matches(first.as_str());
        let other = format!("{at}{second}");
        let values = [of_first.values(), file.values(&other)];
        let dims = &of_first.dims;
        let expert = dims[0] * dims[1];
        let joined = values[0].chunks(expert).zip(values[1].chunks(expert));
        let joined: Vec<f32> = joined.flat_map(|(a, b)| [a, b].concat()).collect();
        let mut piece = Piece {
            name: format!("{at}ffn_gate_up_exps.weight"),
            dims: vec![dims[0], 2 * dims[1], dims[2]],
            ..of_first.clone()
        };
        piece.put(&joined);
        fused = fused.without(&of_first.name).without(&other);
        fused.tensors.push(piece);
    }
    assert!(fused.tensors.len() < file.tensors.len());
    fused
}

#[test]
fn trap_5_gate_comes_before_up() {
    for name in [
        "qwen3moe",
        "olmoe",
        "qwen3next",
        "qwen35moe",
        "glm4moe",
        "gpt-oss",
        "minimax-m2",
        "qwen4exp",
    ] {
        let (case, file) = Case::new(name);
        case.same("fused", &fused(&file, ["gate", "up"]));
        case.differs("up first", &fused(&file, ["up", "gate"]));
    }
    // as files write it; gemma4's is written so, and its golden says the order
    let (case, _) = Case::new("qwen3moe");
    case.same("as written", &Remade::tiny("qwen3moe-fused.gguf"));
}

/// More on every expert's bias changes no choice, so it changes nothing.
#[test]
fn trap_6_a_bias_on_the_choice_is_not_in_the_weights() {
    for name in ["glm4moe", "glm4moe-2", "minimax-m2", "minimax-m2-2"] {
        let (case, file) = Case::new(name);
        let bias = "exp_probs_b.bias";
        let more = |biases: &mut [f32]| biases.iter_mut().for_each(|bias| *bias += 0.25);
        case.same("more", &file.clone().change(bias, more));
        case.differs("none", &file.times(&[bias], 0.0));
    }
}

/// The only expert of a row has a weight of 1, so a router that is twice as sure changes nothing.
#[test]
fn trap_7_weights_are_made_one_where_no_key_says_so() {
    let one = |file: Remade| file.with("expert_used_count", Some(Key::Unsigned(1)));
    for (name, made_one) in [("qwen3moe", true), ("olmoe", false)] {
        let (mut case, file) = Case::new(name);
        let file = one(file.with("expert_weights_norm", None));
        case.logits = case.says(&file);
        let surer = file.times(&["ffn_gate_inp.weight"], 2.0);
        if made_one {
            case.same("surer", &surer);
        } else {
            case.differs("surer", &surer);
        }
    }
}
