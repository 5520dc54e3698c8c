//! From a file's architecture string to the pipeline that runs it: the one place where `src` names families.

use std::sync::Arc;

use super::{
    Model,
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
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 7] = [
        Self::Qwen3Moe,
        Self::Olmoe,
        Self::Llama,
        Self::Qwen3Next,
        Self::Qwen35Moe,
        Self::Qwen2,
        Self::Qwen3,
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
        }
    }
}

/// Loads the model of a file, whatever its family.
pub fn load<B: Backend>(file: &Arc<Gguf>, backend: &mut B) -> Result<Model<B>, LoadError> {
    Model::load(file, backend, Family::of(file)?.block())
}
