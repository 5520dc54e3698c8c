//! The tokens themselves: id to bytes and bytes to id.
//!
//! All bytes lie in one arena and the table holds ids only, because vocabularies have a quarter of a million entries and a string
//! of its own for each is what makes opening a file slow. Knows nothing of how text is cut or merged.

use super::{TokenKind, TokenizerError, TokenizerSpec, alphabet};
use crate::engine::request::Token;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// How the strings of a file spell bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Ordinary tokens use the byte alphabet.
    ByteLevel,
    /// U+2581 is a space and `<0xXX>` a byte.
    SentencePiece,
}

/// Longest token, bytes. Real ones end at 256; without a bound a file could make its own opening quadratic.
const TOKEN_BYTES_MAX: usize = 4096;

/// What SentencePiece writes for a space.
pub(super) const SPACE_MARK: char = '\u{2581}';

/// Tokens by id and by bytes.
pub(super) struct Vocabulary {
    /// Bytes of all tokens, by id.
    arena: Vec<u8>,
    /// Where each token's bytes end, `[vocab]`.
    ends: Vec<u32>,
    /// `[vocab]`.
    kinds: Vec<TokenKind>,
    /// Tokens that text may be made of, by their bytes.
    table: HashTable<Token>,
    hasher: DefaultHashBuilder,
}

impl Vocabulary {
    pub(super) fn new(
        spec: &TokenizerSpec<'_>,
        spelling: Spelling,
    ) -> Result<Self, TokenizerError> {
        let kinds = spec.kinds()?;
        let mut this = Self {
            arena: Vec::with_capacity(spec.tokens.iter().map(|token| token.len()).sum()),
            ends: Vec::with_capacity(kinds.len()),
            table: HashTable::with_capacity(kinds.len()),
            hasher: DefaultHashBuilder::default(),
            kinds,
        };
        let mut literal = Vec::new();
        for (id, name) in (0..).zip(&spec.tokens) {
            let spelled = this.push(id, name, spelling)?;
            match this.kind(id) {
                Some(TokenKind::Normal) if spelled => this.enter(id),
                Some(TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused) => {
                    literal.push(id);
                }
                _ => {}
            }
        }
        // After the properly spelled ones, which win where both have the same bytes.
        for id in literal {
            this.enter(id);
        }
        Ok(this)
    }

    /// Appends a token's bytes. Whether they follow the spelling, or are the name as it is.
    fn push(&mut self, id: Token, name: &str, spelling: Spelling) -> Result<bool, TokenizerError> {
        let kind = self.kind(id);
        let ordinary = matches!(kind, Some(TokenKind::Normal | TokenKind::Unused));
        if name.len() > TOKEN_BYTES_MAX {
            return Err(TokenizerError::TokenTooLong {
                token: id,
                bytes: name.len(),
                bytes_max: TOKEN_BYTES_MAX,
            });
        }
        let spelled = match (spelling, kind) {
            (Spelling::SentencePiece, Some(TokenKind::Byte)) => {
                let byte = byte_token(name).ok_or_else(|| TokenizerError::BadByteToken {
                    token: id,
                    name: name.to_owned(),
                })?;
                self.arena.push(byte);
                true
            }
            (Spelling::SentencePiece, Some(TokenKind::Control | TokenKind::Unknown)) => false,
            (Spelling::SentencePiece, _) => {
                for (index, part) in name.split(SPACE_MARK).enumerate() {
                    if index > 0 {
                        self.arena.push(b' ');
                    }
                    self.arena.extend_from_slice(part.as_bytes());
                }
                true
            }
            (Spelling::ByteLevel, _) => ordinary && alphabet::unspell(name, &mut self.arena),
        };
        if !spelled {
            self.arena.extend_from_slice(name.as_bytes());
        }
        let end =
            u32::try_from(self.arena.len()).map_err(|_| TokenizerError::VocabularyTooLarge {
                bytes: self.arena.len(),
                bytes_max: u32::MAX as usize,
            })?;
        self.ends.push(end);
        Ok(spelled)
    }

    /// Enters a token into the table, unless its bytes are there already.
    fn enter(&mut self, id: Token) {
        let hash = self.hasher.hash_one(self.bytes(id));
        let Self {
            arena,
            ends,
            table,
            hasher,
            ..
        } = self;
        let bytes_of = |id: Token| slice(arena, ends, id);
        table
            .entry(
                hash,
                |&other| bytes_of(other) == bytes_of(id),
                |&other| hasher.hash_one(bytes_of(other)),
            )
            .or_insert(id);
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes that a token stands for; its name if it stands for none. Empty for ids outside.
    pub(super) fn bytes(&self, id: Token) -> &[u8] {
        slice(&self.arena, &self.ends, id)
    }

    /// What a token is for; `None` for ids outside.
    pub(super) fn kind(&self, id: Token) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The token of text with exactly these bytes. Never a control, unknown or byte token.
    pub(super) fn find(&self, bytes: &[u8]) -> Option<Token> {
        let hash = self.hasher.hash_one(bytes);
        self.table
            .find(hash, |&id| self.bytes(id) == bytes)
            .copied()
    }

    /// All ids.
    pub(super) fn ids(&self) -> impl Iterator<Item = Token> + use<> {
        (0..).take(self.len())
    }

    /// All ids of one kind.
    pub(super) fn of_kind(&self, kind: TokenKind) -> impl Iterator<Item = Token> + '_ {
        self.ids().filter(move |&id| self.kind(id) == Some(kind))
    }
}

fn slice<'a>(arena: &'a [u8], ends: &[u32], id: Token) -> &'a [u8] {
    let id = id as usize;
    let Some(&end) = ends.get(id) else { return &[] };
    let start = if id == 0 { 0 } else { ends[id - 1] };
    &arena[start as usize..end as usize]
}

/// The byte of a SentencePiece byte token.
fn byte_token(name: &str) -> Option<u8> {
    let hex = name.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}
