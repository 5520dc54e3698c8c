//! SentencePiece BPE (`llama`): no pre-tokenizer; a text starts as its characters, pairs are merged by the score of what they
//! become, and characters that the vocabulary lacks are spelled in bytes.
//!
//! Or (`gemma4`) pairs are merged by the rank that the file gives them, line by line.
//!
//! Spaces stand for U+2581 throughout, so a token's bytes are its text.

use super::{
    TokenKind, TokenizerError, TokenizerSpec,
    merge::{Merge, Merges, Scratch},
    vocabulary::{SPACE_MARK, Vocabulary},
};
use crate::engine::request::Token;
use std::cmp::Reverse;

/// The rules of a SentencePiece vocabulary.
pub(super) struct SentencePiece {
    merges: Merges,
    /// The tokens of the bytes.
    bytes: Box<[Token; 256]>,
    /// A text starts with a space.
    space_prefix: bool,
    cut: Cut,
}

/// What is merged by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// The whole text.
    Nowhere,
    /// Words with the spaces before them: no token has a space after something else.
    Words,
    /// Runs of line ends, and what is between them. A run that is a token is that token.
    Lines,
}

impl SentencePiece {
    pub(super) fn new(
        spec: &TokenizerSpec<'_>,
        vocabulary: &Vocabulary,
    ) -> Result<Self, TokenizerError> {
        Ok(Self {
            merges: merges(spec, vocabulary)?,
            bytes: byte_tokens(spec, vocabulary)?,
            space_prefix: spec.add_space_prefix.unwrap_or(true),
            cut: if ordinary(vocabulary)
                .all(|id| starts_of_words(vocabulary.bytes(id)).next().is_none())
            {
                Cut::Words
            } else {
                Cut::Nowhere
            },
        })
    }

    /// With merges that the file ranks.
    pub(super) fn ranked(
        spec: &TokenizerSpec<'_>,
        vocabulary: &Vocabulary,
    ) -> Result<Self, TokenizerError> {
        Ok(Self {
            merges: ranked(spec, vocabulary)?,
            bytes: byte_tokens(spec, vocabulary)?,
            space_prefix: spec.add_space_prefix.unwrap_or(false),
            cut: Cut::Lines,
        })
    }

    /// Whether a text's first space is not of the text.
    pub(super) fn space_prefix(&self) -> bool {
        self.space_prefix
    }

    /// Appends the tokens of `text`, which has nothing or a special token before it.
    pub(super) fn encode(
        &self,
        text: &str,
        vocabulary: &Vocabulary,
        scratch: &mut Scratch,
        into: &mut Vec<Token>,
    ) {
        let mut spaced = String::with_capacity(text.len() + 1);
        if self.space_prefix {
            spaced.push(' ');
        }
        spaced.extend(text.chars().map(|c| if c == SPACE_MARK { ' ' } else { c }));
        let mut start = 0;
        let bytes = spaced.as_bytes();
        let begins = |at: usize| match self.cut {
            Cut::Nowhere => false,
            Cut::Words => bytes[at] == b' ' && bytes[at - 1] != b' ',
            Cut::Lines => (bytes[at] == b'\n') != (bytes[at - 1] == b'\n'),
        };
        for end in (1..bytes.len())
            .filter(|at| begins(*at))
            .chain([bytes.len()])
        {
            let piece = &spaced[start..end];
            let run = self.cut == Cut::Lines && piece.starts_with('\n');
            match vocabulary.find(piece.as_bytes()).filter(|_| run) {
                Some(token) => into.push(token),
                None => {
                    self.merge(piece, vocabulary, scratch);
                    into.extend_from_slice(&scratch.symbols);
                }
            }
            start = end;
        }
    }

    fn merge(&self, piece: &str, vocabulary: &Vocabulary, scratch: &mut Scratch) {
        scratch.symbols.clear();
        for (start, c) in piece.char_indices() {
            let bytes = &piece.as_bytes()[start..start + c.len_utf8()];
            match vocabulary.find(bytes) {
                Some(token) => scratch.symbols.push(token),
                None => scratch
                    .symbols
                    .extend(bytes.iter().map(|&byte| self.bytes[usize::from(byte)])),
            }
        }
        self.merges.apply(scratch);
    }
}

/// Offsets of spaces after something else.
fn starts_of_words(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    (1..bytes.len()).filter(|&at| bytes[at] == b' ' && bytes[at - 1] != b' ')
}

/// Tokens that merging can make.
fn ordinary(vocabulary: &Vocabulary) -> impl Iterator<Item = Token> + '_ {
    let kinds = [TokenKind::Normal, TokenKind::UserDefined, TokenKind::Unused];
    kinds.into_iter().flat_map(|kind| vocabulary.of_kind(kind))
}

fn byte_tokens(
    spec: &TokenizerSpec<'_>,
    vocabulary: &Vocabulary,
) -> Result<Box<[Token; 256]>, TokenizerError> {
    let mut tokens = [None; 256];
    for id in vocabulary.of_kind(TokenKind::Byte) {
        tokens[usize::from(vocabulary.bytes(id)[0])] = Some(id);
    }
    let unknown = spec
        .unknown
        .or_else(|| vocabulary.of_kind(TokenKind::Unknown).next());
    let mut all = Box::new([0; 256]);
    for (byte, token) in (0..=255u8).zip(tokens) {
        all[usize::from(byte)] = token
            .or(unknown)
            .ok_or(TokenizerError::MissingByte { byte })?;
    }
    Ok(all)
}

/// The merges of `spec`, whose rank is their place.
fn ranked(spec: &TokenizerSpec<'_>, vocabulary: &Vocabulary) -> Result<Merges, TokenizerError> {
    let mut merges = Merges::with_capacity(spec.merges.len());
    for (rank, written) in (0..).zip(&spec.merges) {
        let bad = || TokenizerError::BadMerge {
            index: rank as usize,
            merge: (*written).to_owned(),
        };
        let (left, right) = written.split_once(' ').ok_or_else(bad)?;
        let spaced = |half: &str| half.replace(SPACE_MARK, " ");
        let (left, right) = (spaced(left), spaced(right));
        let find = |text: &str| vocabulary.find(text.as_bytes()).ok_or_else(bad);
        let into = find(&format!("{left}{right}"))?;
        merges.insert(find(&left)?, find(&right)?, Merge { rank, into });
    }
    Ok(merges)
}

/// Every way to make a token of two, ranked by the token's score.
///
/// Equal scores: the longer left half, then the longer right half first (**Source**: how `transformers` converts such a vocabulary).
fn merges(spec: &TokenizerSpec<'_>, vocabulary: &Vocabulary) -> Result<Merges, TokenizerError> {
    if spec.scores.len() != vocabulary.len() {
        return Err(TokenizerError::LengthMismatch {
            key: "tokenizer.ggml.scores",
            got: spec.scores.len(),
            expected: vocabulary.len(),
        });
    }
    let mut found = Vec::new();
    for into in ordinary(vocabulary) {
        let Ok(text) = std::str::from_utf8(vocabulary.bytes(into)) else {
            continue;
        };
        let chars = text.chars().count();
        for (left_chars, (middle, _)) in text.char_indices().enumerate().skip(1) {
            let (left, right) = text.as_bytes().split_at(middle);
            if let (Some(left), Some(right)) = (vocabulary.find(left), vocabulary.find(right)) {
                found.push((into, left, right, left_chars, chars - left_chars));
            }
        }
    }
    let score = |token: Token| spec.scores[token as usize];
    // Stable: pairs that are equal in all this stay in the order of their ids.
    found.sort_by(|a, b| {
        let by_score = score(b.0).total_cmp(&score(a.0));
        by_score.then_with(|| (Reverse(a.3), Reverse(a.4)).cmp(&(Reverse(b.3), Reverse(b.4))))
    });
    let mut merges = Merges::with_capacity(found.len());
    for (rank, (into, left, right, ..)) in (0..).zip(found) {
        merges.insert(left, right, Merge { rank, into });
    }
    Ok(merges)
}
