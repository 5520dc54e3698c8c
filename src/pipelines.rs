//! One file a model family: its layer, readable aloud. The files lie in `pipelines/` at the top of the repository.

#[path = "../pipelines/gemma4.rs"]
pub mod gemma4;
#[path = "../pipelines/glm4moe.rs"]
pub mod glm4moe;
#[path = "../pipelines/gpt_oss.rs"]
pub mod gpt_oss;
#[path = "../pipelines/llama.rs"]
pub mod llama;
#[path = "../pipelines/minimax_m2.rs"]
pub mod minimax_m2;
#[path = "../pipelines/olmoe.rs"]
pub mod olmoe;
#[path = "../pipelines/qwen2.rs"]
pub mod qwen2;
#[path = "../pipelines/qwen3.rs"]
pub mod qwen3;
#[path = "../pipelines/qwen35moe.rs"]
pub mod qwen35moe;
#[path = "../pipelines/qwen3moe.rs"]
pub mod qwen3moe;
#[path = "../pipelines/qwen3next.rs"]
pub mod qwen3next;
#[path = "../pipelines/qwen4exp.rs"]
pub mod qwen4exp;
