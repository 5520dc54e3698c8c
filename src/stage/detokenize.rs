//! Tokens to text: a token's bytes come out as soon as they are whole characters.
//!
//! Knows the vocabulary; knows nothing of stop strings or of what the text means.

use super::{
    Stage,
    text::{Sampled, TextEvent},
};
use crate::{
    engine::request::{EngineError, Output},
    token::Tokenizer,
};
use futures::{Stream, StreamExt};
use std::sync::Arc;

/// The stage. One per sequence.
#[derive(Debug)]
pub struct Detokenize {
    tokenizer: Arc<Tokenizer>,
}

impl Detokenize {
    /// For sequences of `tokenizer`'s tokens.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer }
    }
}

impl Stage for Detokenize {
    type In = Output;
    type Out = TextEvent;
    type Error = EngineError;

    /// Every token gives one piece. The end gives one more where bytes are left that are no character.
    fn attach(
        self,
        input: impl Stream<Item = Result<Output, EngineError>> + Send,
    ) -> impl Stream<Item = Result<TextEvent, EngineError>> + Send {
        async_stream::try_stream! {
            let mut hold = Utf8Hold::default();
            let mut input = std::pin::pin!(input);
            while let Some(output) = input.next().await {
                match output? {
                    Output::Token { token, logprobs } => {
                        // Control tokens are structure: with `ignore_eos` they turn up in answers, but not in their text.
                        let control = self.tokenizer.is_control(token);
                        let bytes = if control { &[] } else { self.tokenizer.token_bytes(token) };
                        let text = hold.push(bytes);
                        yield TextEvent::Piece { text, sampled: Some(Sampled { token, logprobs }) };
                    }
                    Output::Finished { reason, timings } => {
                        let text = std::mem::take(&mut hold).finish();
                        if !text.is_empty() {
                            yield TextEvent::Piece { text, sampled: None };
                        }
                        yield TextEvent::Finished { reason, timings };
                    }
                }
            }
        }
    }
}

/// Bytes that may be the beginning of a character, until it is whole.
#[derive(Clone, Debug, Default)]
pub struct Utf8Hold {
    held: Vec<u8>,
}

impl Utf8Hold {
    /// Adds bytes and returns the text that is certain. Bytes that no continuation can make a character come out as U+FFFD at once;
    /// all texts together are what `String::from_utf8_lossy` makes of all bytes together.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let certain = self.held.len() - unfinished(&self.held);
        let rest = self.held.split_off(certain);
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held = rest;
        text
    }

    /// What is held when nothing follows: empty, or one U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

/// Length of the character that `bytes` ends inside of, 0 to 3.
fn unfinished(bytes: &[u8]) -> usize {
    (1..=bytes.len().min(3))
        .find(|&length| {
            let tail = &bytes[bytes.len() - length..];
            // `None`: the error is that the input ends.
            std::str::from_utf8(tail)
                .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::request::{FinishReason, Timings},
        token::TokenizerSpec,
    };
    use futures::{executor::block_on, stream};
    use proptest::{prelude::*, test_runner::RngSeed};

    fn check(parts: &[&[u8]], texts: &[&str], end: &str) {
        let mut hold = Utf8Hold::default();
        let got: Vec<String> = parts.iter().map(|part| hold.push(part)).collect();
        assert_eq!(got, texts, "{parts:x?}");
        assert_eq!(hold.finish(), end, "{parts:x?}");
    }

    #[test]
    fn characters_come_whole() {
        check(&[b"ab", b"c"], &["ab", "c"], "");
        check(&[b"\xc3", b"\xa9!"], &["", "é!"], "");
        check(&[b"\xf0\x9f", b"\x98", b"\x80"], &["", "", "😀"], "");
        check(&[b"a\xf0\x9f\x98"], &["a"], "\u{fffd}");
        check(&[b""], &[""], "");
    }

    #[test]
    fn what_cannot_become_a_character_is_not_held() {
        check(&[b"\xff"], &["\u{fffd}"], "");
        check(&[b"\xc3", b"a"], &["", "\u{fffd}a"], "");
        check(&[b"\xa9"], &["\u{fffd}"], "");
        // a surrogate's first two bytes have no continuation
        check(&[b"\xed\xa0"], &["\u{fffd}\u{fffd}"], "");
        check(
            &[b"\xe0\x80", b"\x80"],
            &["\u{fffd}\u{fffd}", "\u{fffd}"],
            "",
        );
    }

    /// Byte `b` is token `b + 1`; token 0 is a control token.
    fn bytes_tokenizer() -> Tokenizer {
        let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
        let tokens: Vec<&str> = ["<s>"]
            .into_iter()
            .chain(bytes.iter().map(String::as_str))
            .collect();
        let token_types = tokens
            .iter()
            .map(|&name| if name == "<s>" { 3 } else { 6 })
            .collect();
        let scores = vec![0.0; 257];
        Tokenizer::new(&TokenizerSpec {
            model: "llama",
            tokens,
            token_types,
            scores,
            ..TokenizerSpec::default()
        })
        .unwrap()
    }

    #[test]
    fn every_token_gives_a_piece() {
        fn check(tokens: &[u32], expected: &[(&str, Option<u32>)]) {
            let token = |&token: &u32| {
                Ok(Output::Token {
                    token,
                    logprobs: None,
                })
            };
            let (reason, timings) = (FinishReason::Length, Timings::default());
            let end = [Ok(Output::Finished { reason, timings })];
            let input = stream::iter(tokens.iter().map(token).chain(end).collect::<Vec<_>>());
            let events = Detokenize::new(Arc::new(bytes_tokenizer())).attach(input);
            let events: Vec<TextEvent> = block_on(events.map(Result::unwrap).collect());
            let pieces = expected.iter().map(|&(text, token)| TextEvent::Piece {
                text: text.to_owned(),
                sampled: token.map(|token| Sampled {
                    token,
                    logprobs: None,
                }),
            });
            let expected: Vec<TextEvent> = pieces
                .chain([TextEvent::Finished { reason, timings }])
                .collect();
            assert_eq!(events, expected);
        }
        check(&[], &[]);
        check(&[98, 99], &[("a", Some(98)), ("b", Some(99))]);
        check(
            &[0xc4, 0xaa, 98],
            &[("", Some(0xc4)), ("é", Some(0xaa)), ("a", Some(98))],
        );
        check(
            &[98, 0, 0xc4],
            &[
                ("a", Some(98)),
                ("", Some(0)),
                ("", Some(0xc4)),
                ("\u{fffd}", None),
            ],
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn any_split_gives_the_same_text(parts in prop::collection::vec(prop::collection::vec(bytes(), 0..5), 0..20)) {
            let mut hold = Utf8Hold::default();
            let mut text: String = parts.iter().map(|part| hold.push(part)).collect();
            text.push_str(&hold.finish());
            let bytes = parts.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }

    /// Mostly bytes at the edges of what UTF-8 allows.
    fn bytes() -> impl Strategy<Value = u8> {
        prop_oneof![
            any::<u8>(),
            prop::sample::select(b"a\x80\x8f\x9f\xa0\xbf\xc2\xe0\xe2\xed\xf0\xf4\xf5".to_vec())
        ]
    }
}
