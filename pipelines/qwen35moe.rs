//! Qwen3.5 and 3.6 MoE (`qwen35moe`): the blocks of Qwen3-Next, v heads in tiled order, beta and decay projected apart.

use super::qwen3next::hybrid;
use crate::{
    backend::{Backend, shape::HeadMap},
    model::loader::{LoadError, Loader},
    op::Block,
};

/// x += mixer(norm(x)); x += experts(norm(x)) + gated shared expert.
///
/// **Source**: for text the interleaved multi-section rotation equals NeoX rotation, so sections are not needed.
pub fn block<B: Backend>(from: &mut Loader<'_, B>, at: &str) -> Result<Block<B>, LoadError> {
    hybrid(from, at, HeadMap::Tiled)
}
