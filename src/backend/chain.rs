//! Tokens predicted one after the other, each from the one before it.

use super::{Backend, Window};
use crate::{
    engine::{
        executor::{Guess, Slot},
        request::Token,
    },
    sampler::Scratch,
};

/// What is to be predicted, and where it goes.
pub struct Chain<'a> {
    /// One a row of the window, the deepest first.
    pub guesses: &'a [Guess<'a>],
    /// What was predicted: tokens of a slot in their order, none behind one that ends its sequence or behind a row that is not finite.
    pub predicted: &'a mut Vec<(Slot, Token)>,
    /// For who chooses on the host.
    pub scratch: &'a mut Scratch,
}

/// The host chooses, and waits for the backend before every choice.
pub(super) fn by_host<B: Backend>(
    backend: &mut B,
    window: &mut Window<B>,
    chain: Chain<'_>,
    step: impl Fn(&mut B, &mut Window<B>, &[Option<&[Token]>]) -> Result<(), B::Error>,
) -> Result<(), B::Error> {
    let mut going: Vec<&Guess<'_>> = chain.guesses.iter().collect();
    let mut next = Vec::with_capacity(going.len());
    backend.begin(window)?;
    for nth in 0.. {
        let among: Vec<_> = going.iter().map(|guess| guess.among).collect();
        step(backend, window, &among)?;
        backend.settle(window)?;
        next.clear();
        for (row, guess) in going.iter().enumerate() {
            let (logits, position) = (backend.logits(row)?, guess.position + nth);
            let token = guess.sampler.choose(logits, position as u64, chain.scratch);
            chain
                .predicted
                .extend(token.map(|token| (guess.slot, token)));
            let goes_on =
                |token: &Token| nth + 1 < guess.depth && !guess.stop_tokens.contains(token);
            next.push(token.ok().filter(goes_on));
        }
        if next.iter().all(Option::is_none) {
            return Ok(());
        }
        let mut stays = next.iter();
        going.retain(|_| stays.next().is_some_and(Option::is_some));
        window.rows.advance(&next);
    }
    Ok(())
}
