//! Which tokens end an answer. Files name some by key and leave others to be known by name.

use super::{TokenKind, TokenizerSpec, vocabulary::Vocabulary};
use crate::engine::request::Token;

/// Control tokens that end a turn, a message or a text wherever they exist.
const NAMES: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<|eom_id|>",
    "<EOT>",
    "</s>",
    "<eos>",
    "[e~[",
    "<｜end▁of▁sentence｜>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// The stop set, ascending. Every id in it is in the vocabulary.
pub(super) fn of(spec: &TokenizerSpec<'_>, vocabulary: &Vocabulary) -> Vec<Token> {
    let mut ends: Vec<Token> = [spec.eos, spec.eot, spec.eom]
        .into_iter()
        .flatten()
        .collect();
    ends.extend(&spec.fim_ends);
    let name = |token: Token| vocabulary.bytes(token);
    ends.extend(
        vocabulary
            .of_kind(TokenKind::Control)
            .filter(|&id| NAMES.iter().any(|end| end.as_bytes() == name(id))),
    );
    // Where an answer is several messages (Harmony), `<|end|>` ends a message and these two end the answer.
    let has = |end: &str| ends.iter().any(|&id| name(id) == end.as_bytes());
    if has("<|return|>") && has("<|call|>") {
        ends.retain(|&id| name(id) != b"<|end|>");
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}
