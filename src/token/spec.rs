//! What a tokenizer is built from: the file's `tokenizer.ggml.*` keys as plain values, and what can be wrong with them.

use crate::engine::request::Token;

/// What a token is for. Numbers are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenKind {
    /// Part of ordinary text.
    Normal = 1,
    /// Stands for what the vocabulary cannot spell.
    Unknown = 2,
    /// Structure: never part of text.
    Control = 3,
    /// Text that is always one token.
    UserDefined = 4,
    /// A place holder.
    Unused = 5,
    /// One byte, for characters that the vocabulary lacks.
    Byte = 6,
}

/// A tokenizer as a model file describes it.
#[derive(Clone, Debug, Default)]
pub struct TokenizerSpec<'a> {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE), `llama` (SentencePiece BPE) or `gemma4` (the same with ranked merges).
    pub model: &'a str,
    /// `tokenizer.ggml.pre`: how text is cut before merging; only for `gpt2`.
    pub pre: Option<&'a str>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<&'a str>,
    /// `tokenizer.ggml.merges`, best first, each `left right`; not for `llama`.
    pub merges: Vec<&'a str>,
    /// `tokenizer.ggml.scores`, by id; only for `llama`.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, by id; empty: all normal.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<Token>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<Token>,
    /// `tokenizer.ggml.eot_token_id`: end of turn.
    pub eot: Option<Token>,
    /// `tokenizer.ggml.eom_token_id`: end of message.
    pub eom: Option<Token>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown: Option<Token>,
    /// `tokenizer.ggml.fim_{pad,rep,sep}_token_id`: they end an answer.
    pub fim_ends: Vec<Token>,
    /// `tokenizer.ggml.add_bos_token`; absent: the default of the model and its pre-tokenizer.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; absent: true for `llama`.
    pub add_space_prefix: Option<bool>,
}

impl TokenizerSpec<'_> {
    /// The kind of every token.
    pub(super) fn kinds(&self) -> Result<Vec<TokenKind>, TokenizerError> {
        if self.tokens.is_empty() {
            return Err(TokenizerError::NoTokens);
        }
        if self.token_types.is_empty() {
            return Ok(vec![TokenKind::Normal; self.tokens.len()]);
        }
        if self.token_types.len() != self.tokens.len() {
            return Err(TokenizerError::LengthMismatch {
                key: "tokenizer.ggml.token_type",
                got: self.token_types.len(),
                expected: self.tokens.len(),
            });
        }
        let kinds = (0..).zip(&self.token_types).map(|(token, &kind)| {
            TokenKind::from_number(kind).ok_or(TokenizerError::UnknownKind { token, kind })
        });
        kinds.collect()
    }

    /// Checks that every id that a key names is in the vocabulary.
    pub(super) fn check_ids(&self) -> Result<(), TokenizerError> {
        let keys = [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.eot_token_id", self.eot),
            ("tokenizer.ggml.eom_token_id", self.eom),
            ("tokenizer.ggml.unknown_token_id", self.unknown),
        ];
        let fim = self
            .fim_ends
            .iter()
            .map(|&token| ("tokenizer.ggml.fim_*_token_id", Some(token)));
        let vocab = self.tokens.len();
        for (key, token) in keys.into_iter().chain(fim) {
            if let Some(token) = token.filter(|&token| token as usize >= vocab) {
                return Err(TokenizerError::TokenOutOfRange { key, token, vocab });
            }
        }
        Ok(())
    }
}

impl TokenKind {
    fn from_number(number: i32) -> Option<Self> {
        let kinds = [
            Self::Normal,
            Self::Unknown,
            Self::Control,
            Self::UserDefined,
            Self::Unused,
            Self::Byte,
        ];
        kinds.into_iter().find(|&kind| kind as i32 == number)
    }
}

/// What is wrong with a tokenizer's metadata.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A kind of tokenizer that is not implemented.
    #[error("tokenizer.ggml.model is {model:?}; supported are \"gpt2\", \"llama\" and \"gemma4\"")]
    UnknownModel {
        /// As the file says.
        model: String,
    },
    /// A pre-tokenizer that is not implemented. Guessing one would give other tokens than the model was trained with.
    #[error("tokenizer.ggml.pre is {pre:?}; known are {known}")]
    UnknownPre {
        /// As the file says; empty if it does not.
        pre: String,
        /// All that are.
        known: String,
    },
    /// An expression of a pre-tokenizer that does not compile: a fault of the program.
    #[error("the pre-tokenizer {pre} does not compile")]
    Expression {
        /// Its name.
        pre: &'static str,
        /// Why.
        source: Box<regex_automata::meta::BuildError>,
    },
    /// A vocabulary of nothing.
    #[error("tokenizer.ggml.tokens is empty")]
    NoTokens,
    /// More bytes than offsets can tell.
    #[error("tokenizer.ggml.tokens holds more than {bytes_max} bytes: {bytes} and more")]
    VocabularyTooLarge {
        /// When it was noticed.
        bytes: usize,
        /// At most.
        bytes_max: usize,
    },
    /// Arrays by token that differ in length.
    #[error("{key} has {got} entries, the vocabulary has {expected} tokens")]
    LengthMismatch {
        /// The array.
        key: &'static str,
        /// Its length.
        got: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// A kind of token that does not exist.
    #[error("tokenizer.ggml.token_type of token {token} is {kind}; known are 1 to 6")]
    UnknownKind {
        /// The token.
        token: Token,
        /// As the file says.
        kind: i32,
    },
    /// A key that names a token outside the vocabulary.
    #[error("{key} is {token}, the vocabulary has {vocab} tokens")]
    TokenOutOfRange {
        /// The key.
        key: &'static str,
        /// As the file says.
        token: Token,
        /// Ids are below this.
        vocab: usize,
    },
    /// A token that is no word.
    #[error("token {token} is {bytes} bytes long, at most {bytes_max} are read")]
    TokenTooLong {
        /// The token.
        token: Token,
        /// Its length.
        bytes: usize,
        /// At most.
        bytes_max: usize,
    },
    /// A byte token of another form than `<0xXX>`.
    #[error("token {token} is a byte token named {name:?}, expected <0xXX>")]
    BadByteToken {
        /// The token.
        token: Token,
        /// As the file says.
        name: String,
    },
    /// A byte without a token, in a vocabulary that has no unknown token either.
    #[error("no token for the byte {byte:#04x}, and no unknown token")]
    MissingByte {
        /// The byte.
        byte: u8,
    },
    /// A merge that is not two tokens which make a third.
    #[error(
        "tokenizer.ggml.merges[{index}] is {merge:?}, expected two tokens that make a third, with a space between"
    )]
    BadMerge {
        /// Its place.
        index: usize,
        /// As the file says.
        merge: String,
    },
    /// More control and user-defined tokens than can be looked for.
    #[error("{count} control and user-defined tokens are too many")]
    TooManySpecials {
        /// How many.
        count: usize,
    },
}
