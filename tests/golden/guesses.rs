//! Checks of prediction blocks and of their guesses, on any backend.

use crate::{
    bare::{Bare, argmax},
    reference::{Drafted, assert_same},
};
use tidegate::{
    backend::Backend,
    engine::{
        executor::{Ask, Executor, Guess, Lane, Progress, Slot, Span},
        request::{Sampling, Token},
    },
    sampler::{Sampler, Scratch},
};

/// Whether the block reads along or late, whether guesses were wrong in between: predictions have the same bits. Needs two slots.
pub(crate) fn check_reading<B: Backend>(model: &mut Bare<B>, tokens: &[u32]) {
    let last = (tokens.len() - 1, tokens[tokens.len() - 1]);
    model.rows(0, 0, &tokens[..last.0]);
    let expected: Vec<f32> = model.predict(0, last, 1).1.to_vec();
    let (mut at, mut turn) = (0, 0);
    while at < last.0 {
        // a prompt, rows alone, rows with guesses right and wrong; now and then something is predicted
        let rows = [40, 1, 5, 70, 1, 9, 1][turn % 7].min(last.0 - at);
        let wrong = [0, 0, 3, 0, 0, 8, 0][turn % 7].min(rows - 1);
        if wrong > 0 {
            let mut guessed = tokens[at..at + rows].to_vec();
            guessed[rows - wrong..].fill(7);
            model.guesses(1, at, &guessed, rows - 1 - wrong);
        } else {
            model.rows(1, at, &tokens[at..at + rows]);
        }
        at += rows - wrong;
        turn += 1;
        if turn % 3 == 0 {
            model.predict(1, (at, tokens[at]), 3);
        }
    }
    assert_same("read otherwise", model.predict(1, last, 1).1, &expected);
    // nothing predicted for longer than hidden states are kept
    model.rows(0, 0, &tokens[..20]);
    for at in 20..last.0 {
        model.rows(0, at, &tokens[at..=at]);
    }
    assert_same("read late", model.predict(0, last, 1).1, &expected);
}

/// Guesses beside what the reference finds with the same weights.
#[derive(Default)]
pub(crate) struct Acceptance {
    /// How many of the first one, two and three guesses were right, of those whose predecessors were.
    pub(crate) ours: [[usize; 2]; 3],
    pub(crate) theirs: [[usize; 2]; 3],
    /// First guesses that are the reference's, of all.
    pub(crate) same: [usize; 2],
}

/// Along the same tokens, up to so many of each text.
pub(crate) fn acceptance<B: Backend>(
    model: &mut Bare<B>,
    texts: &[Drafted],
    most: usize,
) -> Acceptance {
    let mut all = Acceptance::default();
    for expected in texts {
        let tokens = &expected.tokens;
        let (mut greedy, mut drafts) = (Vec::new(), Vec::<[u32; 3]>::new());
        for at in (expected.first..tokens.len() - 1).take(most) {
            let rows = if at == expected.first {
                0..at + 1
            } else {
                at..at + 1
            };
            let vocab = model.vocab();
            let logits = model.rows(0, rows.start, &tokens[rows]);
            greedy.push(argmax(&logits[logits.len() - vocab..]));
            let (chain, _) = model.predict(0, (at + 1, tokens[at + 1]), 3);
            drafts.push(chain.try_into().expect("three guesses"));
        }
        let theirs = &expected.drafts[..drafts.len()];
        let same = drafts.iter().zip(theirs);
        all.same[0] += same.filter(|(ours, theirs)| ours[0] == theirs[0]).count();
        all.same[1] += drafts.len();
        accepted(&greedy, &drafts, &mut all.ours);
        accepted(&expected.greedy[..greedy.len()], theirs, &mut all.theirs);
    }
    all
}

/// Counts, by how far ahead they are, guesses that were made at each place and those that were right, up to the first wrong one.
pub(crate) fn accepted(greedy: &[u32], drafts: &[[u32; 3]], counts: &mut [[usize; 2]; 3]) {
    for (at, drafts) in drafts.iter().enumerate() {
        for (nth, draft) in drafts.iter().enumerate() {
            let Some(truth) = greedy.get(at + 1 + nth) else {
                break;
            };
            counts[nth][1] += 1;
            if draft != truth {
                break;
            }
            counts[nth][0] += 1;
        }
    }
}

/// What sequences that guess have written.
#[derive(Debug, PartialEq)]
pub(crate) struct Written {
    pub(crate) tokens: Vec<Vec<Token>>,
    pub(crate) drafted: usize,
    pub(crate) accepted: usize,
}

struct Writing<'a> {
    slot: Slot,
    prompt: &'a [Token],
    tokens: Vec<Token>,
    guesses: Vec<Token>,
    sampler: Sampler,
}

/// Sequences, one a slot and all at once, that predict as many tokens as `depth(turn, slot)` says before each window.
pub(crate) fn write<B: Backend>(
    model: &mut Bare<B>,
    prompts: &[(&[Token], Sampling)],
    most: usize,
    depth: impl Fn(usize, usize) -> usize,
) -> Written {
    let mut scratch = Scratch::default();
    let mut sequences: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(slot, (prompt, sampling))| {
            let (prompt, vocab) = (*prompt, model.vocab());
            let sampler = Sampler::new(sampling, prompt);
            let logits = model.rows(slot, 0, prompt);
            let first = &logits[logits.len() - vocab..];
            let first = sampler.choose(first, prompt.len() as u64, &mut scratch);
            Writing {
                slot: Slot(slot as u32),
                prompt,
                tokens: [prompt, &[first.expect("finite")]].concat(),
                guesses: Vec::new(),
                sampler,
            }
        })
        .collect();
    let (mut drafted, mut accepted) = (0, 0);
    for turn in 0.. {
        let goes_on = |of: &&mut Writing<'_>| of.tokens.len() < of.prompt.len() + most;
        let mut going: Vec<_> = sequences.iter_mut().filter(goes_on).collect();
        if going.is_empty() {
            break;
        }
        let pages = |model: &Bare<B>, slot: Slot| model.pages_of(slot.0 as usize);
        let of_all: Vec<_> = going.iter().map(|of| pages(model, of.slot)).collect();
        let guesses: Vec<_> = going
            .iter()
            .zip(&of_all)
            .map(|(of, pages)| Guess {
                slot: of.slot,
                token: of.tokens[of.tokens.len() - 1],
                position: of.tokens.len(),
                depth: depth(turn, of.slot.0 as usize),
                pages,
                sampler: &of.sampler,
                stop_tokens: &[],
                among: None,
            })
            .filter(|guess| guess.depth > 0)
            .collect();
        let mut predicted = Vec::new();
        if !guesses.is_empty() {
            let asked: usize = guesses.iter().map(|guess| guess.depth).sum();
            let outcome = model.runner.predict(&guesses, &mut predicted);
            outcome.expect("predicted");
            assert_eq!(predicted.len(), asked);
        }
        drafted += predicted.len();
        for of in &mut going {
            let own = predicted.iter().filter(|(slot, _)| *slot == of.slot);
            of.guesses = own.map(|(_, token)| *token).collect();
        }
        accepted += window(model, &mut going, &mut scratch);
    }
    Written {
        tokens: sequences.into_iter().map(|of| of.tokens).collect(),
        drafted,
        accepted,
    }
}

/// One window of all of them; how many guesses were right.
fn window<B: Backend>(
    model: &mut Bare<B>,
    going: &mut [&mut Writing<'_>],
    scratch: &mut Scratch,
) -> usize {
    let rows: Vec<_> = going
        .iter()
        .map(|of| {
            let last = of.tokens.len() - 1;
            let tokens = [&of.tokens[last..], &of.guesses].concat();
            (tokens, model.pages_of(of.slot.0 as usize))
        })
        .collect();
    let spans: Vec<_> = going
        .iter()
        .zip(&rows)
        .map(|(of, (tokens, pages))| Span {
            slot: of.slot,
            first: of.tokens.len() as u32 - 1,
            tokens,
            pages,
            logits: tokens.len(),
            ask: Ask::Logits,
            drafts: of.guesses.len(),
        })
        .collect();
    let mut pass = model.runner.begin(Lane::Decode, &spans).expect("begun");
    while model.runner.advance(&mut pass).expect("computed") == Progress::More {}
    model.runner.finish(pass).expect("finished");
    let (mut row, mut accepted) = (0, 0);
    for of in going {
        for nth in 0..=of.guesses.len() {
            let logits = model.runner.logits(row + nth).expect("logits");
            let position = of.tokens.len() as u64;
            let token = of.sampler.choose(logits, position, scratch);
            of.tokens.push(token.expect("finite"));
            if of.guesses.get(nth) != of.tokens.last() {
                let wrong = of.guesses.len() - nth;
                if wrong > 0 {
                    model.runner.cut(of.slot, wrong);
                }
                break;
            }
            accepted += 1;
        }
        row += 1 + of.guesses.len();
    }
    accepted
}

/// Greedy and seeded sequences, alone and at once, with chains of any length: they write what they write without. Needs four slots; how many guesses were right.
pub(crate) fn check_writing<B: Backend>(
    model: &mut Bare<B>,
    prompt: &[Token],
    most: usize,
) -> usize {
    let warm = |temperature, top_p, top_k, min_p, seed| Sampling {
        temperature,
        top_p,
        top_k,
        min_p,
        seed,
        ..Sampling::default()
    };
    let samplings = [
        warm(0.0, 1.0, 0, 0.0, 0),
        warm(0.8, 0.9, 0, 0.0, 1),
        warm(0.7, 0.95, 20, 0.02, 2),
        warm(0.5, 1.0, 0, 0.0, 3),
    ];
    let whole = prompt.len();
    let lengths = [whole, whole.min(7), whole / 2, 1];
    let prompts: Vec<_> = samplings
        .into_iter()
        .zip(lengths)
        .map(|(sampling, length)| (&prompt[..length], sampling))
        .collect();
    let plain = write(model, &prompts, most, |_, _| 0);
    let at_once = write(model, &prompts, most, |turn, slot| {
        [3, 1, 8, 0, 2][(turn + slot) % 5]
    });
    let (mut right, mut made) = (at_once.accepted, at_once.drafted);
    for (slot, (prompt, sampling)) in prompts.iter().enumerate() {
        let alone = [(*prompt, sampling.clone())];
        let alone = write(model, &alone, most, |turn, _| [2, 4, 1, 0][turn % 4]);
        for (what, tokens) in [
            ("alone", &alone.tokens[0]),
            ("at once", &at_once.tokens[slot]),
        ] {
            // a window may bring more than were wanted
            let most = prompt.len() + most;
            assert_eq!(
                tokens[..most],
                plain.tokens[slot][..most],
                "{what}, {sampling:?}"
            );
        }
        (right, made) = (right + alone.accepted, made + alone.drafted);
    }
    assert!(made > 0 && plain.drafted == 0);
    println!("{right} of {made} guesses were right");
    right
}
