use super::*;
use futures::{executor::block_on, stream};
use proptest::{prelude::*, test_runner::RngSeed};

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|&text| text.to_owned()).collect()
}

fn piece(text: &str, token: Option<u32>) -> TextEvent {
    let sampled = token.map(|token| Sampled {
        token,
        logprobs: None,
    });
    TextEvent::Piece {
        text: text.to_owned(),
        sampled,
    }
}

/// What the stage makes of tokens 0, 1, ... with these texts: pieces and tokens, whether it was a match, tokens counted.
fn run(stops: &[&str], texts: &[&str]) -> (Vec<TextEvent>, bool, usize) {
    let timings = Timings {
        generated_tokens: texts.len(),
        prompt_tokens: 3,
        ..Timings::default()
    };
    let end = TextEvent::Finished {
        reason: FinishReason::Length,
        timings,
    };
    let pieces = texts
        .iter()
        .zip(0..)
        .map(|(text, token)| piece(text, Some(token)));
    let input = stream::iter(pieces.chain([end]).map(Ok));
    let output = Stop::new(strings(stops), 3).attach(input);
    let mut events: Vec<TextEvent> = block_on(output.map(Result::unwrap).collect());
    let Some(TextEvent::Finished { reason, timings }) = events.pop() else {
        panic!("no end: {events:?}")
    };
    assert_eq!(timings.prompt_tokens, 3);
    (
        events,
        reason == FinishReason::Stop,
        timings.generated_tokens,
    )
}

fn check(
    stops: &[&str],
    texts: &[&str],
    expected: &[(&str, Option<u32>)],
    matched: bool,
    tokens: usize,
) {
    let expected: Vec<TextEvent> = expected
        .iter()
        .map(|&(text, token)| piece(text, token))
        .collect();
    assert_eq!(
        run(stops, texts),
        (expected, matched, tokens),
        "{stops:?} {texts:?}"
    );
}

#[test]
fn text_without_a_stop_passes() {
    check(
        &[],
        &["a", "b"],
        &[("a", Some(0)), ("b", Some(1))],
        false,
        2,
    );
    check(&[""], &["a"], &[("a", Some(0))], false, 1);
    check(
        &["x"],
        &["", "a", ""],
        &[("", Some(0)), ("a", Some(1)), ("", Some(2))],
        false,
        3,
    );
}

#[test]
fn a_match_cuts_at_its_first_byte() {
    check(&["STOP"], &["aSTOPb", "c"], &[("a", Some(0))], true, 1);
    check(&["STOP"], &["STOP"], &[], true, 1);
    check(
        &["STOP"],
        &["a", "S", "TO", "P", "x"],
        &[("a", Some(0))],
        true,
        4,
    );
    check(&["\n\n"], &["a\n", "\nb"], &[("a", Some(0))], true, 2);
    check(&["é"], &["caf", "é!"], &[("caf", Some(0))], true, 2);
}

#[test]
fn what_was_held_for_nothing_comes_once() {
    check(
        &["STOP"],
        &["aST", "ay"],
        &[("a", Some(0)), ("ST", None), ("ay", Some(1))],
        false,
        2,
    );
    check(
        &["STOP"],
        &["aST"],
        &[("a", Some(0)), ("ST", None)],
        false,
        1,
    );
    check(&["aab"], &["a", "a", "a", "b"], &[("a", Some(0))], true, 4);
    check(&["abc", "bd"], &["ab", "d!"], &[("a", Some(0))], true, 2);
}

#[test]
fn of_several_the_first_to_be_complete_counts() {
    check(&["b", "abc"], &["a", "b", "c"], &[("a", Some(0))], true, 2);
    check(&["ab", "b"], &["xab"], &[("x", Some(0))], true, 1);
}

#[test]
fn a_match_drops_the_input() {
    let (sender, receiver) = futures::channel::mpsc::unbounded();
    let mut output = Box::pin(Stop::new(strings(&["b"]), 1).attach(receiver));
    sender.unbounded_send(Ok(piece("ab", Some(0)))).unwrap();
    assert_eq!(block_on(output.next()), Some(Ok(piece("a", Some(0)))));
    assert!(matches!(
        block_on(output.next()),
        Some(Ok(TextEvent::Finished { .. }))
    ));
    assert!(sender.is_closed(), "the input outlives the match");
}

#[test]
fn an_error_ends_the_text() {
    let input = stream::iter([Ok(piece("a", Some(0))), Err(EngineError::Stopped(None))]);
    let output: Vec<_> = block_on(Stop::new(strings(&["x"]), 1).attach(input).collect());
    assert_eq!(
        output,
        [Ok(piece("a", Some(0))), Err(EngineError::Stopped(None))]
    );
}

/// The text before the first stop string, by looking at every end.
fn expected(stops: &[String], text: &str) -> (String, bool) {
    for end in 0..=text.len() {
        let longest = stops
            .iter()
            .filter(|stop| !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes()))
            .map(String::len)
            .max();
        if let Some(length) = longest {
            return (text[..end - length].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same_text(
        stops in prop::collection::vec("[abé]{0,4}", 0..4),
        texts in prop::collection::vec("[abcé]{0,4}", 0..12),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let (events, matched, tokens) = run(&stops, &texts);
        let mut text = String::new();
        let mut sampled = Vec::new();
        for event in events {
            let TextEvent::Piece { text: part, sampled: token } = event else { panic!("two ends") };
            text.push_str(&part);
            sampled.extend(token.map(|sampled| sampled.token));
        }
        prop_assert_eq!((text, matched), expected(&strings(&stops), &texts.concat()));
        // tokens come in order, none twice; without a match all of them do
        prop_assert!(sampled.iter().copied().eq(0..sampled.len() as u32));
        prop_assert!(sampled.len() <= tokens);
        prop_assert!(matched || sampled.len() == texts.len());
    }
}
