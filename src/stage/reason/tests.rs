use super::*;

const TAGS: TagTokens = TagTokens {
    pair: &tags::PAIRS[0],
    open: Some(7),
    close: Some(8),
};

/// Content and reasoning, and what the pieces were.
fn run(mut parser: Parser, pieces: &[(&str, Token)]) -> [String; 2] {
    let mut said = [String::new(), String::new()];
    let mut take = |parts: Parts| {
        for (part, text) in parts {
            said[part as usize].push_str(&text);
        }
    };
    for (text, token) in pieces {
        take(parser.push((*text).to_owned(), Some(*token)));
    }
    take(parser.end());
    said
}

/// However the text is cut into pieces.
fn check_tags(inside: bool, text: &str, content: &str, reasoning: &str) {
    let chars: Vec<String> = text.chars().map(String::from).collect();
    for size in 1..=chars.len().max(1) {
        let pieces: Vec<String> = chars.chunks(size).map(<[String]>::concat).collect();
        let pieces: Vec<(&str, Token)> = pieces.iter().map(|piece| (piece.as_str(), 1)).collect();
        let got = run(Parser::Tags(Tags::new(TAGS, inside)), &pieces);
        assert_eq!(got, [content, reasoning], "{text:?} in pieces of {size}");
    }
}

#[test]
fn tags_in_any_pieces() {
    check_tags(false, "<think>\nso\n</think>\n\nyes", "yes", "so");
    check_tags(
        true,
        "\nso it is\n</think>\n\nyes <b> & é",
        "yes <b> & é",
        "so it is",
    );
    check_tags(true, "</think>yes", "yes", "");
    check_tags(false, "<think></think>\n\nyes\n", "yes\n", "");
    check_tags(
        false,
        "  plain <thin> text </thi",
        "  plain <thin> text </thi",
        "",
    );
    check_tags(true, "cut short", "", "cut short");
    check_tags(true, "a < b </thinking", "", "a < b </thinking");
    check_tags(
        false,
        "one<think>two</think>three<think>four",
        "onethree",
        "twofour",
    );
    check_tags(false, "stray</think>text", "straytext", "");
    check_tags(false, "", "", "");
}

#[test]
fn tags_as_control_tokens() {
    let pieces = [("", 7), ("\nso\n", 1), ("", 8), ("\n\nyes", 1)];
    let got = run(Parser::Tags(Tags::new(TAGS, false)), &pieces);
    assert_eq!(got, ["yes", "so"]);
}

#[test]
fn tags_of_a_token_and_a_word() {
    let tokens = TagTokens {
        pair: &tags::PAIRS[1],
        ..TAGS
    };
    let pieces = [
        ("", 7),
        ("thought", 1),
        ("\nso", 1),
        ("\n", 1),
        ("", 8),
        ("yes", 1),
    ];
    let got = run(Parser::Tags(Tags::new(tokens, false)), &pieces);
    assert_eq!(got, ["yes", "so"]);
    // cut inside a tag, of which the token is no text
    for cut in 1..pieces.len() {
        let [content, reasoning] = run(Parser::Tags(Tags::new(tokens, false)), &pieces[..cut]);
        assert_eq!(content, "", "{cut} pieces");
        assert!("so".starts_with(reasoning.trim_end()), "{cut}: {reasoning}");
    }
}

#[test]
fn tags_come_as_soon_as_they_are_certain() {
    let mut tags = Tags::new(TAGS, true);
    assert_eq!(tags.push("so ", None), [(Part::Reasoning, "so".into())]);
    assert_eq!(tags.push("it <", None), [(Part::Reasoning, " it".into())]);
    assert_eq!(tags.push("b", None), [(Part::Reasoning, " <b".into())]);
    assert_eq!(tags.push("</think>", None), []);
    assert_eq!(tags.push("yes", None), [(Part::Content, "yes".into())]);
}

const CHANNELS: ChannelTokens = ChannelTokens {
    start: Some(90),
    channel: 91,
    message: 92,
    end: Some(93),
};

fn check_channels(head: bool, pieces: &[(&str, Token)], content: &str, reasoning: &str) {
    let got = run(Parser::Channels(Channels::new(CHANNELS, head)), pieces);
    assert_eq!(got, [content, reasoning], "{pieces:?}");
}

#[test]
fn channels() {
    let analysis = [
        ("", 91),
        ("anal", 1),
        ("ysis", 1),
        ("", 92),
        ("so", 1),
        (" it is", 1),
        ("", 93),
    ];
    let last = [
        ("", 90),
        ("assistant", 1),
        ("", 91),
        ("final", 1),
        ("", 92),
        ("yes", 1),
    ];
    check_channels(true, &[&analysis[..], &last].concat(), "yes", "so it is");
    check_channels(true, &analysis[..5], "", "so");
    check_channels(true, &last[2..], "yes", "");
    let call = [
        ("", 91),
        ("commentary to=functions.f ", 1),
        ("json", 1),
        ("", 92),
        ("{}", 1),
    ];
    check_channels(true, &call, "{}", "");
    // a model that leaves out the head, and a prompt that ends behind one
    check_channels(true, &[("yes", 1), (" no", 1)], "yes no", "");
    check_channels(false, &[("yes", 1), (" no", 1)], "yes no", "");
    // cut inside a head: its text is no answer
    check_channels(true, &analysis[..2], "", "");
    for cut in 0..4 {
        let pieces = [&analysis[..], &last[..cut]].concat();
        check_channels(true, &pieces, "", "so it is");
    }
}
