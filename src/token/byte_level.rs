//! Byte-level BPE (`gpt2`): text is cut into pieces, a piece starts as its bytes, and pairs are merged by rank.

use super::{
    TokenizerError, TokenizerSpec, alphabet,
    merge::{Merge, Merges, Scratch},
    pre::{self, Pre},
    split::Splitter,
    vocabulary::Vocabulary,
};
use crate::engine::request::Token;
use std::borrow::Cow;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// The rules of a byte-level vocabulary.
pub(super) struct ByteLevel {
    pre: &'static Pre,
    splitter: Splitter,
    merges: Merges,
    /// The token of each byte. Some vocabularies have none for rare control characters, which are then dropped, as in the reference.
    bytes: Box<[Option<Token>; 256]>,
}

impl ByteLevel {
    pub(super) fn new(
        spec: &TokenizerSpec<'_>,
        vocabulary: &Vocabulary,
    ) -> Result<Self, TokenizerError> {
        let pre = spec
            .pre
            .and_then(pre::find)
            .ok_or_else(|| TokenizerError::UnknownPre {
                pre: spec.pre.unwrap_or_default().to_owned(),
                known: pre::names(),
            })?;
        let splitter =
            Splitter::new(pre.expressions).map_err(|source| TokenizerError::Expression {
                pre: pre.names[0],
                source,
            })?;
        Ok(Self {
            pre,
            splitter,
            merges: merges(spec, vocabulary)?,
            bytes: Box::new(std::array::from_fn(|byte| vocabulary.find(&[byte as u8]))),
        })
    }

    /// Whether prompts have a begin token where the file does not say.
    pub(super) fn add_bos(&self) -> bool {
        self.pre.add_bos
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(
        &self,
        text: &str,
        vocabulary: &Vocabulary,
        scratch: &mut Scratch,
        into: &mut Vec<Token>,
    ) {
        let text = self.composed(text);
        self.splitter.split(&text, &mut |piece| {
            if self.pre.ignore_merges
                && let Some(token) = vocabulary.find(piece.as_bytes())
            {
                into.push(token);
                return;
            }
            scratch.symbols.clear();
            scratch.symbols.extend(
                piece
                    .bytes()
                    .filter_map(|byte| self.bytes[usize::from(byte)]),
            );
            self.merges.apply(scratch);
            into.extend_from_slice(&scratch.symbols);
        });
    }

    fn composed<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let as_is =
            !self.pre.compose || text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes;
        if as_is {
            text.into()
        } else {
            text.nfc().collect::<String>().into()
        }
    }
}

/// The merges of `spec`, whose rank is their place.
fn merges(spec: &TokenizerSpec<'_>, vocabulary: &Vocabulary) -> Result<Merges, TokenizerError> {
    let mut merges = Merges::with_capacity(spec.merges.len());
    let mut bytes = Vec::new();
    for (rank, written) in (0..).zip(&spec.merges) {
        let bad = || TokenizerError::BadMerge {
            index: rank as usize,
            merge: (*written).to_owned(),
        };
        let (left, right) = written.split_once(' ').ok_or_else(bad)?;
        bytes.clear();
        if !alphabet::unspell(left, &mut bytes) {
            return Err(bad());
        }
        let middle = bytes.len();
        if !alphabet::unspell(right, &mut bytes) {
            return Err(bad());
        }
        let find = |bytes: &[u8]| vocabulary.find(bytes).ok_or_else(bad);
        let into = find(&bytes)?;
        merges.insert(
            find(&bytes[..middle])?,
            find(&bytes[middle..])?,
            Merge { rank, into },
        );
    }
    Ok(merges)
}
