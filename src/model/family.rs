//! From a file's architecture string to the pipeline that runs it: the one place where `src` names families.

use std::sync::Arc;

use super::{
    Frame, Model,
    loader::{LoadError, Loader},
};
use crate::{backend::Backend, gguf::Gguf, op::Block, pipelines};

/// A model family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Qwen3 MoE: 30B-A3B, Coder-30B, 235B, Coder-480B.
    Qwen3Moe,
    /// OLMoE.
    Olmoe,
    /// Llama, and Mixtral where the file has experts.
    Llama,
    /// Qwen3-Next.
    Qwen3Next,
    /// Qwen3.5 and 3.6 MoE.
    Qwen35Moe,
    /// Qwen2, dense.
    Qwen2,
    /// Qwen3, dense.
    Qwen3,
    /// GLM-4.5, Air, 4.6 and 4.7.
    Glm4Moe,
    /// gpt-oss 20b and 120b.
    GptOss,
    /// MiniMax-M2.
    MinimaxM2,
    /// Gemma 4 with experts: 26B-A4B.
    Gemma4,
    /// Qwen3.8-Flash-Next.
    Qwen4Exp,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 12] = [
        Self::Qwen3Moe,
        Self::Olmoe,
        Self::Llama,
        Self::Qwen3Next,
        Self::Qwen35Moe,
        Self::Qwen2,
        Self::Qwen3,
        Self::Glm4Moe,
        Self::GptOss,
        Self::MinimaxM2,
        Self::Gemma4,
        Self::Qwen4Exp,
    ];

    /// `general.architecture`, which is also the prefix of its keys.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Qwen3Moe => "qwen3moe",
            Self::Olmoe => "olmoe",
            Self::Llama => "llama",
            Self::Qwen3Next => "qwen3next",
            Self::Qwen35Moe => "qwen35moe",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Glm4Moe => "glm4moe",
            Self::GptOss => "gpt-oss",
            Self::MinimaxM2 => "minimax-m2",
            Self::Gemma4 => "gemma4",
            Self::Qwen4Exp => "qwen4exp",
        }
    }

    /// The family of a file.
    pub fn of(file: &Gguf) -> Result<Self, LoadError> {
        let architecture = file.architecture()?;
        Self::ALL
            .into_iter()
            .find(|family| family.architecture() == architecture)
            .ok_or_else(|| LoadError::Architecture {
                architecture: architecture.to_owned(),
                supported: Self::ALL.map(Self::architecture).join(", "),
            })
    }

    fn block<B: Backend>(self) -> fn(&mut Loader<'_, B>, &str) -> Result<Block<B>, LoadError> {
        match self {
            Self::Qwen3Moe => pipelines::qwen3moe::block,
            Self::Olmoe => pipelines::olmoe::block,
            Self::Llama => pipelines::llama::block,
            Self::Qwen3Next => pipelines::qwen3next::block,
            Self::Qwen35Moe => pipelines::qwen35moe::block,
            Self::Qwen2 => pipelines::qwen2::block,
            Self::Qwen3 => pipelines::qwen3::block,
            Self::Glm4Moe => pipelines::glm4moe::block,
            Self::GptOss => pipelines::gpt_oss::block,
            Self::MinimaxM2 => pipelines::minimax_m2::block,
            Self::Gemma4 => pipelines::gemma4::block,
            Self::Qwen4Exp => pipelines::qwen4exp::block,
        }
    }

    fn frame(self) -> Frame {
        match self {
            Self::Gemma4 => pipelines::gemma4::FRAME,
            Self::Qwen4Exp => pipelines::qwen4exp::FRAME,
            _ => Frame::default(),
        }
    }
}

/// Loads the model of a file, whatever its family.
pub fn load<B: Backend>(file: &Arc<Gguf>, backend: &mut B) -> Result<Model<B>, LoadError> {
    let family = Family::of(file)?;
    Model::load(file, backend, family.frame(), family.block())
}
