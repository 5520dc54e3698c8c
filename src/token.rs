//! Text to tokens and back, from the vocabulary that a model file carries.
//!
//! Knows vocabularies, pre-tokenizers and merges; knows nothing of chat templates, of requests or of how a vocabulary is stored
//! in a file. User text never becomes a control token: [`Specials`] says which parts of a text may.
//!
//! Written here rather than taken from a library for the sake of memory. 2026-11-29, a vocabulary of 248,320 and a prompt of 10 MB: the
//! `tokenizers` crate keeps 65 MB of tables and needs 1.3 GB and 6.4 s for the prompt, because it tracks where every byte came from;
//! this takes 17 MB, and 20 MB and 0.45 s. The worst prompt of that length, one character over and over, takes 230 MB and 8 s.

mod alphabet;
mod byte_level;
mod ends;
mod merge;
mod pre;
mod sentence_piece;
mod spec;
mod specials;
mod split;
mod vocabulary;

pub use spec::{TokenKind, TokenizerError, TokenizerSpec};

use crate::engine::request::Token;
use byte_level::ByteLevel;
use merge::Scratch;
use sentence_piece::SentencePiece;
use specials::{Part, SpecialNames};
use std::{borrow::Cow, fmt, sync::Arc};
use vocabulary::{Spelling, Vocabulary};

/// Which control tokens, written out in a text, count as such. Tokens that the file declares user-defined always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials<'a> {
    /// None: the text is somebody's words.
    Plain,
    /// All: the text is ours, or its author may write control tokens.
    Parse,
    /// Those that span none of these byte offsets (ascending, see [`crate::template::Rendered`]).
    Between(&'a [usize]),
}

/// A vocabulary with its rules.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    specials: SpecialNames,
    rules: Rules,
    bos: Option<Token>,
    eos: Option<Token>,
    add_bos: bool,
    stop_tokens: Arc<[Token]>,
}

/// How text without special tokens is encoded.
enum Rules {
    ByteLevel(ByteLevel),
    SentencePiece(SentencePiece),
}

impl Tokenizer {
    /// Checks `spec` and builds the lookup tables.
    ///
    /// **Errors**: whatever in the metadata contradicts itself or is not supported, named.
    pub fn new(spec: &TokenizerSpec<'_>) -> Result<Self, TokenizerError> {
        spec.check_ids()?;
        let (vocabulary, rules, add_bos) = match spec.model {
            "gpt2" => {
                let vocabulary = Vocabulary::new(spec, Spelling::ByteLevel)?;
                let rules = ByteLevel::new(spec, &vocabulary)?;
                let add_bos = rules.add_bos();
                (vocabulary, Rules::ByteLevel(rules), add_bos)
            }
            "llama" => {
                let vocabulary = Vocabulary::new(spec, Spelling::SentencePiece)?;
                let rules = SentencePiece::new(spec, &vocabulary)?;
                (vocabulary, Rules::SentencePiece(rules), true)
            }
            "gemma4" => {
                let vocabulary = Vocabulary::new(spec, Spelling::SentencePiece)?;
                let rules = SentencePiece::ranked(spec, &vocabulary)?;
                (vocabulary, Rules::SentencePiece(rules), true)
            }
            model => {
                return Err(TokenizerError::UnknownModel {
                    model: model.to_owned(),
                });
            }
        };
        Ok(Self {
            specials: SpecialNames::new(&vocabulary)?,
            bos: spec.bos,
            eos: spec.eos,
            add_bos: spec.add_bos.unwrap_or(add_bos) && spec.bos.is_some(),
            stop_tokens: ends::of(spec, &vocabulary).into(),
            vocabulary,
            rules,
        })
    }

    /// Tokens of `text`, without a begin token.
    pub fn encode(&self, text: &str, specials: Specials<'_>) -> Vec<Token> {
        // English has a token for every 4 to 5 bytes.
        let mut tokens = Vec::with_capacity(text.len() / 4);
        let mut scratch = Scratch::default();
        self.specials.cut(text, specials, &mut |part| match part {
            Part::Special(token) => tokens.push(token),
            Part::Text(text) => match &self.rules {
                Rules::ByteLevel(rules) => {
                    rules.encode(text, &self.vocabulary, &mut scratch, &mut tokens)
                }
                Rules::SentencePiece(rules) => {
                    rules.encode(text, &self.vocabulary, &mut scratch, &mut tokens)
                }
            },
        });
        tokens
    }

    /// Tokens of a whole prompt: [`Self::encode`], with the begin token in front where the file asks for it and the text has none.
    pub fn encode_prompt(&self, text: &str, specials: Specials<'_>) -> Vec<Token> {
        let mut tokens = self.encode(text, specials);
        if let Some(bos) = self
            .bos
            .filter(|&bos| self.add_bos && tokens.first() != Some(&bos))
        {
            tokens.insert(0, bos);
        }
        tokens
    }

    /// The text of `tokens`, as a whole text. Control tokens give their names.
    pub fn decode(&self, tokens: &[Token]) -> String {
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|&token| self.token_bytes(token))
            .copied()
            .collect();
        let text = String::from_utf8_lossy(&bytes);
        match &self.rules {
            Rules::SentencePiece(rules) if rules.space_prefix() => {
                text.strip_prefix(' ').unwrap_or(&text).to_owned()
            }
            _ => text.into_owned(),
        }
    }

    /// Bytes that a token stands for; not always whole characters. A control token gives its name; ids outside give nothing.
    pub fn token_bytes(&self, token: Token) -> &[u8] {
        self.vocabulary.bytes(token)
    }

    /// [`Self::token_bytes`] as text, U+FFFD where it is not UTF-8.
    pub fn token_text(&self, token: Token) -> Cow<'_, str> {
        String::from_utf8_lossy(self.token_bytes(token))
    }

    /// The token that stands for exactly this text, control tokens by their names.
    pub fn token_of(&self, text: &str) -> Option<Token> {
        self.vocabulary
            .ids()
            .find(|&token| self.token_bytes(token) == text.as_bytes())
    }

    /// Whether a token is structure, which is never part of an answer's text.
    pub fn is_control(&self, token: Token) -> bool {
        matches!(
            self.vocabulary.kind(token),
            Some(TokenKind::Control | TokenKind::Unknown)
        )
    }

    /// The tokens that are structure, ascending.
    pub fn control_tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.vocabulary
            .ids()
            .filter(|&token| self.is_control(token))
    }

    /// Number of tokens; ids are below it.
    pub fn vocab(&self) -> usize {
        self.vocabulary.len()
    }

    /// The begin token, if the file names one.
    pub fn bos(&self) -> Option<Token> {
        self.bos
    }

    /// The end token, if the file names one.
    pub fn eos(&self) -> Option<Token> {
        self.eos
    }

    /// Whether a prompt starts with the begin token.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Tokens that end an answer, ascending.
    pub fn stop_tokens(&self) -> Arc<[Token]> {
        Arc::clone(&self.stop_tokens)
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab", &self.vocab())
            .field("bos", &self.bos)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
