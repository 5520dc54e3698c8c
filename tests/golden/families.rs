//! The tiny random models, one a family, as tests of whatever is checked of each.

/// `check(file, golden's name)` as a test of this name, for every line.
macro_rules! tests {
    ($check:path; $($name:ident: $file:literal, $golden:literal;)*) => {
        $(#[test]
        fn $name() {
            $check($file, $golden);
        })*
    };
}

/// A test a family: `check(file, golden's name)`.
macro_rules! every_family {
    ($check:path) => {
        $crate::families::tests! {
            $check;
            qwen3moe: "qwen3moe.gguf", "qwen3moe";
            qwen3moe_with_fused_gate_and_up: "qwen3moe-fused.gguf", "qwen3moe";
            olmoe: "olmoe.gguf", "olmoe";
            mixtral: "mixtral.gguf", "mixtral";
            qwen3next: "qwen3next.gguf", "qwen3next";
            qwen35moe: "qwen35moe.gguf", "qwen35moe";
            llama: "llama.gguf", "llama";
            qwen2: "qwen2.gguf", "qwen2";
            qwen3: "qwen3.gguf", "qwen3";
            glm4moe: "glm4moe.gguf", "glm4moe";
            glm4moe_with_qk_norms: "glm4moe-2.gguf", "glm4moe-2";
            glm4moe_with_a_prediction_block: "glm4moe-mtp.gguf", "glm4moe-mtp";
            qwen3next_with_a_prediction_block: "qwen3next-mtp.gguf", "qwen3next-mtp";
            qwen35moe_with_a_prediction_block: "qwen35moe-mtp.gguf", "qwen35moe-mtp";
            gpt_oss: "gpt-oss.gguf", "gpt-oss";
            gpt_oss_with_a_window_over_pages: "gpt-oss-2.gguf", "gpt-oss-2";
            minimax_m2: "minimax-m2.gguf", "minimax-m2";
            minimax_m2_of_another_shape: "minimax-m2-2.gguf", "minimax-m2-2";
            gemma4: "gemma4.gguf", "gemma4";
            gemma4_of_another_shape: "gemma4-2.gguf", "gemma4-2";
            qwen4exp: "qwen4exp.gguf", "qwen4exp";
            qwen4exp_of_another_shape: "qwen4exp-2.gguf", "qwen4exp-2";
            qwen4exp_with_a_prediction_block: "qwen4exp-mtp.gguf", "qwen4exp-mtp";
        }
    };
}

pub(crate) use {every_family, tests};
