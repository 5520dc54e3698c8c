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
        }
    };
}

pub(crate) use {every_family, tests};
