//! A sequence as a pure state machine: `Prefill -> Decode -> Finished`.
//!
//! Knows tokens and positions; knows no slot, page, outbox or clock. Whoever drives it tells it what was computed and
//! chosen, and reads off what it wants next. Behind the tokens that are known there may be guesses, whose rows are computed with the last token's:
//! a guess that is then chosen has its row already.

use std::sync::Arc;

use super::request::{FinishReason, Request, Token};

/// Where a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Part of the prompt is computed.
    Prefill {
        /// Prompt positions computed.
        done: usize,
    },
    /// The prompt is computed; the last token has yet to be.
    Decode,
    /// Nothing more will be computed.
    Finished(FinishReason),
}

/// The rows a sequence could use in the next window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// All of these or none, each with logits: the last token, and drafts behind it.
    Decode {
        /// At least one.
        rows: usize,
    },
    /// Any number of these; the last of them needs logits.
    Prompt {
        /// Prompt rows not computed yet, at least one.
        left: usize,
    },
    /// None.
    Nothing,
}

/// The next rows of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows<'a> {
    /// Position of the first.
    pub first: usize,
    /// Their tokens.
    pub tokens: &'a [Token],
    /// How many at the end need logits.
    pub logits: usize,
}

/// What became of a chosen token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Whether the reader gets it (a stop token is kept from him).
    pub emit: bool,
    /// Whether it was guessed, so that the next row of the window is its own.
    pub guessed: bool,
    /// The end, if this was it.
    pub end: Option<FinishReason>,
}

/// A prompt and what was generated after it.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// The prompt, then the generated tokens, then guesses.
    tokens: Vec<Token>,
    /// Guesses among them.
    drafts: usize,
    prompt_tokens: usize,
    /// Tokens generated at most.
    limit: usize,
    stop_tokens: Arc<[Token]>,
    phase: Phase,
}

impl Sequence {
    /// The sequence that `request` asks for. The prompt must leave room for a token in the `context`.
    pub fn new(request: &Request, context: usize) -> Self {
        let prompt_tokens = request.prompt.len();
        let limit = request
            .max_tokens
            .min(context.saturating_sub(prompt_tokens));
        // The whole worst case at once, so that nothing is allocated between windows.
        let mut tokens = Vec::with_capacity(prompt_tokens + limit);
        tokens.extend_from_slice(&request.prompt);
        Self {
            tokens,
            drafts: 0,
            prompt_tokens,
            limit,
            stop_tokens: request.stop_tokens.clone(),
            phase: Phase::Prefill { done: 0 },
        }
    }

    /// Where it is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Length of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Tokens chosen so far, a stop token included.
    pub fn generated(&self) -> usize {
        self.next_position() - self.prompt_tokens
    }

    /// Position that the next token will have.
    pub fn next_position(&self) -> usize {
        self.tokens.len() - self.drafts
    }

    /// The prompt and the tokens chosen so far.
    pub fn known(&self) -> &[Token] {
        &self.tokens[..self.next_position()]
    }

    /// Tokens that end it.
    pub fn stop_tokens(&self) -> &[Token] {
        &self.stop_tokens
    }

    /// The last token or guess.
    pub fn last(&self) -> Token {
        self.tokens[self.tokens.len() - 1]
    }

    /// Guesses behind them.
    pub fn drafts(&self) -> usize {
        self.drafts
    }

    /// Guesses that may be of use: those of which each could be followed by a token more.
    pub fn drafts_max(&self, credit: usize) -> usize {
        let left = self.limit - self.generated();
        left.min(credit).saturating_sub(1)
    }

    /// Positions computed so far.
    pub fn computed(&self) -> usize {
        match self.phase {
            Phase::Prefill { done } => done,
            Phase::Decode | Phase::Finished(_) => self.next_position() - 1,
        }
    }

    /// Positions it may come to occupy: what admission has to reserve.
    pub fn positions_max(&self) -> usize {
        self.prompt_tokens + self.limit
    }

    /// What it could use, given room for `credit` more tokens at its reader.
    pub fn want(&self, credit: usize) -> Want {
        match self.phase {
            Phase::Finished(_) => Want::Nothing,
            _ if credit == 0 => Want::Nothing,
            Phase::Prefill { done } => Want::Prompt {
                left: self.prompt_tokens - done,
            },
            Phase::Decode => Want::Decode {
                rows: 1 + self.drafts,
            },
        }
    }

    /// Forgets all guesses.
    pub fn guess_nothing(&mut self) {
        self.tokens.truncate(self.next_position());
        self.drafts = 0;
    }

    /// Guesses one more token, unless it would end the sequence: then no row is needed behind it.
    pub fn guess(&mut self, token: Token) -> bool {
        let useful = self.phase == Phase::Decode && !self.stop_tokens.contains(&token);
        if useful {
            self.tokens.push(token);
            self.drafts += 1;
        }
        useful
    }

    /// Guesses that up to `count` tokens from position `from` on come again, which may be guesses themselves.
    pub fn guess_again(&mut self, from: usize, count: usize) {
        for at in from..from + count {
            if at >= self.tokens.len() || !self.guess(self.tokens[at]) {
                break;
            }
        }
    }

    /// The next `count` rows, no more than were wanted.
    pub fn rows(&self, count: usize) -> Rows<'_> {
        let first = self.computed();
        let end = (first + count).min(self.tokens.len());
        Rows {
            first,
            tokens: &self.tokens[first..end],
            logits: match self.phase {
                Phase::Prefill { .. } => usize::from(end == self.tokens.len()),
                Phase::Decode | Phase::Finished(_) => end - first,
            },
        }
    }

    /// Takes note that the next `count` prompt rows are computed. Decode rows are noted when their tokens are accepted.
    pub fn advance(&mut self, count: usize) {
        if let Phase::Prefill { done } = &mut self.phase {
            *done = (*done + count).min(self.prompt_tokens);
        }
    }

    /// Takes the token chosen from the logits of the last known token's row. What was guessed behind another token is forgotten.
    pub fn accept(&mut self, token: Token) -> Accepted {
        let guessed = self.drafts > 0 && self.tokens[self.next_position()] == token;
        if guessed {
            self.drafts -= 1;
        } else {
            self.guess_nothing();
            self.tokens.push(token);
        }
        let end = if self.stop_tokens.contains(&token) {
            Some(FinishReason::Stop)
        } else if self.generated() >= self.limit {
            Some(FinishReason::Length)
        } else {
            None
        };
        self.phase = end.map_or(Phase::Decode, Phase::Finished);
        if end.is_some() {
            self.guess_nothing();
        }
        Accepted {
            emit: end != Some(FinishReason::Stop),
            guessed,
            end,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sequence(prompt: usize, max_tokens: usize, context: usize) -> Sequence {
        let request = Request {
            prompt: (0..prompt as Token).collect(),
            sampling: Default::default(),
            max_tokens,
            stop_tokens: [STOP].into(),
            logprobs: None,
            deadline: None,
            drafts: true,
        };
        Sequence::new(&request, context)
    }

    const STOP: Token = 1000;

    /// Computes the wanted rows in pieces of at most the given sizes, choosing `stop_after` tokens and then a stop token.
    /// Whatever the pieces, rows are computed once each and in order, and only the last of the prompt and decode rows have
    /// logits.
    fn check(
        prompt: usize,
        max_tokens: usize,
        context: usize,
        pieces: &[usize],
        stop_after: usize,
    ) {
        let mut sequence = sequence(prompt, max_tokens, context);
        let limit = max_tokens.min(context - prompt);
        let mut pieces = pieces.iter().copied().cycle();
        let mut computed = Vec::new();
        let mut chosen = Vec::new();
        let mut emitted = 0;
        let end = loop {
            assert_eq!(sequence.want(0), Want::Nothing);
            assert_eq!(sequence.computed(), computed.len());
            let piece = match sequence.want(1) {
                Want::Prompt { left } => {
                    assert_eq!(left, prompt - computed.len());
                    pieces.next().unwrap().min(left)
                }
                Want::Decode { rows } => rows,
                Want::Nothing => panic!("wants nothing before its end"),
            };
            let rows = sequence.rows(piece);
            assert_eq!((rows.first, rows.tokens.len()), (computed.len(), piece));
            let logits = rows.logits;
            computed.extend_from_slice(rows.tokens);
            assert_eq!(logits, usize::from(computed.len() >= prompt));
            sequence.advance(piece);
            if logits == 0 {
                continue;
            }
            assert_eq!(sequence.next_position(), computed.len());
            chosen.push(if chosen.len() == stop_after {
                STOP
            } else {
                500 + chosen.len() as Token
            });
            let accepted = sequence.accept(chosen[chosen.len() - 1]);
            emitted += usize::from(accepted.emit);
            if let Some(end) = accepted.end {
                break end;
            }
        };
        let expected_end = if stop_after < limit {
            FinishReason::Stop
        } else {
            FinishReason::Length
        };
        assert_eq!(
            (end, sequence.phase()),
            (expected_end, Phase::Finished(expected_end))
        );
        assert_eq!(
            (emitted, sequence.generated()),
            (limit.min(stop_after), chosen.len())
        );
        assert_eq!(sequence.want(9), Want::Nothing);
        // Everything but the last token was computed, and it fitted what admission reserved.
        let known: Vec<Token> = (0..prompt as Token).chain(chosen).collect();
        assert_eq!(computed, known[..known.len() - 1]);
        assert!(known.len() <= sequence.positions_max() && sequence.positions_max() <= context);
    }

    #[test]
    fn ends() {
        check(1, 1, 2, &[1], 9);
        check(5, 3, 100, &[2], 9); // by max_tokens
        check(5, 3, 100, &[9], 0); // by a stop token at once
        check(5, 3, 100, &[9], 2); // by a stop token as the last that was allowed
        check(5, usize::MAX, 7, &[1], 9); // by the context
    }

    proptest! {
        #[test]
        fn any_pieces_any_end(
            prompt in 1usize..200,
            max_tokens in 1usize..60,
            room in 1usize..60,
            pieces in prop::collection::vec(1usize..70, 1..8),
            stop_after in 0usize..70,
        ) {
            check(prompt, max_tokens, prompt + room, &pieces, stop_after);
        }
    }
}
