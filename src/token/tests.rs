use super::*;

/// The 256 bytes in the byte alphabet, then `more`.
fn byte_level<'a>(alphabet: &'a [String], more: &[(&'a str, i32)]) -> TokenizerSpec<'a> {
    let mut spec = TokenizerSpec {
        model: "gpt2",
        pre: Some("qwen2"),
        tokens: alphabet.iter().map(String::as_str).collect(),
        token_types: vec![1; 256],
        ..TokenizerSpec::default()
    };
    for &(name, kind) in more {
        spec.tokens.push(name);
        spec.token_types.push(kind);
    }
    spec
}

/// Ids 0 to 255, by byte.
fn alphabet() -> Vec<String> {
    let mut spelled: Vec<(u8, char)> = ('\0'..'\u{200}')
        .filter_map(|c| Some((alphabet::byte_of(c)?, c)))
        .collect();
    spelled.sort_unstable();
    spelled.into_iter().map(|(_, c)| c.to_string()).collect()
}

/// Bytes as the ids of [`alphabet`].
fn ids(text: &str) -> Vec<Token> {
    text.bytes().map(Token::from).collect()
}

/// `<unk>`, `<s>`, `</s>`, the bytes, then words with scores.
fn sentence_piece() -> (Vec<String>, Vec<i32>, Vec<f32>) {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut types = vec![2, 3, 3];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    types.extend([6; 256]);
    let words = ["▁", "a", "b", "▁a", "ab", "▁ab", "▁▁"];
    tokens.extend(words.map(str::to_owned));
    types.extend([1; 7]);
    let mut scores = vec![0.0; 259];
    scores.extend([-9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0]);
    (tokens, types, scores)
}

#[test]
fn what_is_wrong_with_a_file() {
    fn check(change: impl Fn(&mut TokenizerSpec<'_>), expected: &str) {
        let alphabet = alphabet();
        let mut spec = byte_level(&alphabet, &[("ab", 1)]);
        spec.merges = vec!["a b"];
        change(&mut spec);
        assert_eq!(Tokenizer::new(&spec).unwrap_err().to_string(), expected);
    }
    check(
        |spec| spec.model = "bert",
        "tokenizer.ggml.model is \"bert\"; supported are \"gpt2\", \"llama\" and \"gemma4\"",
    );
    check(|spec| spec.tokens.clear(), "tokenizer.ggml.tokens is empty");
    check(
        |spec| spec.token_types.truncate(3),
        "tokenizer.ggml.token_type has 3 entries, the vocabulary has 257 tokens",
    );
    check(
        |spec| spec.token_types[7] = 9,
        "tokenizer.ggml.token_type of token 7 is 9; known are 1 to 6",
    );
    check(
        |spec| spec.eos = Some(257),
        "tokenizer.ggml.eos_token_id is 257, the vocabulary has 257 tokens",
    );
    let bad_merge = "tokenizer.ggml.merges[0] is \"a c\", expected two tokens that make a third, with a space between";
    check(|spec| spec.merges = vec!["a c"], bad_merge);
    check(
        |spec| spec.merges = vec!["ac"],
        &bad_merge.replace("a c", "ac"),
    );
    check(
        |spec| spec.merges = vec!["日 a"],
        &bad_merge.replace("a c", "日 a"),
    );
    let long = "x".repeat(5000);
    let alphabet = alphabet();
    let error = Tokenizer::new(&byte_level(&alphabet, &[(&long, 1)])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "token 256 is 5000 bytes long, at most 4096 are read"
    );
}

#[test]
fn trap_15_an_unknown_pre_tokenizer_is_refused() {
    for (pre, said) in [(Some("x"), "x"), (None, "")] {
        let alphabet = alphabet();
        let mut spec = byte_level(&alphabet, &[]);
        spec.pre = pre;
        let known = pre::names();
        assert_eq!(
            Tokenizer::new(&spec).unwrap_err().to_string(),
            format!("tokenizer.ggml.pre is \"{said}\"; known are {known}")
        );
    }
}

#[test]
fn what_is_wrong_with_a_sentence_piece_file() {
    fn check(change: impl Fn(&mut TokenizerSpec<'_>), expected: &str) {
        let (tokens, token_types, scores) = sentence_piece();
        let tokens = tokens.iter().map(String::as_str).collect();
        let mut spec = TokenizerSpec {
            model: "llama",
            tokens,
            token_types,
            scores,
            ..TokenizerSpec::default()
        };
        change(&mut spec);
        assert_eq!(Tokenizer::new(&spec).unwrap_err().to_string(), expected);
    }
    check(
        |spec| spec.scores.truncate(3),
        "tokenizer.ggml.scores has 3 entries, the vocabulary has 266 tokens",
    );
    check(
        |spec| spec.tokens[5] = "<0xZZ>",
        "token 5 is a byte token named \"<0xZZ>\", expected <0xXX>",
    );
    let no_byte =
        |spec: &mut TokenizerSpec<'_>| (spec.token_types[3], spec.token_types[0]) = (1, 1);
    check(no_byte, "no token for the byte 0x00, and no unknown token");
}

#[test]
fn specials_are_read_where_they_may_be() {
    let alphabet = alphabet();
    let spec = byte_level(
        &alphabet,
        &[("<|a|>", 3), ("<|a|>b", 3), ("<tool>", 4), ("[PAD]", 5)],
    );
    let tokenizer = Tokenizer::new(&spec).unwrap();
    let check = |text: &str, specials: Specials<'_>, expected: &[Token]| {
        assert_eq!(
            tokenizer.encode(text, specials),
            expected,
            "{text:?} {specials:?}"
        );
        assert_eq!(tokenizer.decode(expected), text);
    };
    check("<|a|>", Specials::Parse, &[256]);
    check("<|a|>", Specials::Plain, &ids("<|a|>"));
    check("<|a|>b<|a|>", Specials::Parse, &[257, 256]);
    check("<tool>", Specials::Plain, &[258]);
    check("[PAD]", Specials::Parse, &ids("[PAD]"));
    check("<|a|>", Specials::Between(&[0, 5]), &[256]);
    check("<|a|>", Specials::Between(&[1]), &ids("<|a|>"));
    let one = [&[256], ids("<|a|>").as_slice(), &[256]].concat();
    check("<|a|><|a|><|a|>", Specials::Between(&[6]), &one);
    // the longer one is cut, the shorter is not
    check("<|a|>b", Specials::Between(&[5]), &[256, 98]);
    check("", Specials::Parse, &[]);
}

#[test]
fn begin_tokens() {
    fn check(
        pre: &'static str,
        add_bos: Option<bool>,
        bos: Option<Token>,
        text: &str,
        expected: &[Token],
    ) {
        let alphabet = alphabet();
        let mut spec = byte_level(&alphabet, &[("<s>", 3)]);
        (spec.pre, spec.add_bos, spec.bos) = (Some(pre), add_bos, bos);
        let tokenizer = Tokenizer::new(&spec).unwrap();
        assert_eq!(
            tokenizer.encode_prompt(text, Specials::Parse),
            expected,
            "{pre} {add_bos:?} {text}"
        );
    }
    check("qwen2", None, Some(256), "a", &[97]);
    check("qwen2", Some(true), Some(256), "a", &[256, 97]);
    check("qwen2", Some(true), Some(256), "<s>a", &[256, 97]);
    check("qwen2", Some(true), Some(256), "", &[256]);
    check("qwen2", Some(true), None, "a", &[97]);
    check("llama-bpe", None, Some(256), "a", &[256, 97]);
    check("llama-bpe", Some(false), Some(256), "a", &[97]);
    check("llama-bpe", Some(false), Some(256), "<s>a", &[256, 97]);
}

/// What ends an answer where these tokens follow the bytes.
fn check_ends(more: &[(&str, i32)], eos: Option<Token>, expected: &[Token]) {
    let alphabet = alphabet();
    let mut spec = byte_level(&alphabet, more);
    spec.eos = eos;
    assert_eq!(
        *Tokenizer::new(&spec).unwrap().stop_tokens(),
        *expected,
        "{more:?}"
    );
}

#[test]
fn stop_sets() {
    check_ends(
        &[("<|im_start|>", 3), ("<|im_end|>", 3), ("<|endoftext|>", 3)],
        Some(257),
        &[257, 258],
    );
    check_ends(&[("<|im_end|>", 1), ("</s>", 4)], None, &[]);
    check_ends(&[("x", 3), ("y", 3)], Some(256), &[256]);
}

#[test]
fn trap_14_the_end_of_a_message_does_not_end_an_answer() {
    let harmony = [("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3)];
    check_ends(&harmony, Some(257), &[257, 258]);
    // nor where the file calls it the end
    check_ends(&harmony, Some(256), &[257, 258]);
    check_ends(&harmony[..1], None, &[256]);
}

#[test]
fn pieces_that_are_tokens() {
    fn check(pre: &'static str, expected: &[Token]) {
        let alphabet = alphabet();
        let mut spec = byte_level(&alphabet, &[("abc", 1), ("ab", 1)]);
        (spec.pre, spec.merges) = (Some(pre), vec!["a b"]);
        assert_eq!(
            Tokenizer::new(&spec)
                .unwrap()
                .encode("abc", Specials::Plain),
            expected,
            "{pre}"
        );
    }
    // "abc" has no merge that makes it
    check("qwen2", &[257, 99]);
    check("llama-bpe", &[256]);
}

#[test]
fn sentence_piece_spells_bytes_and_spaces() {
    let (tokens, token_types, scores) = sentence_piece();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let spec = TokenizerSpec {
        model: "llama",
        tokens,
        token_types,
        scores,
        ..TokenizerSpec::default()
    };
    let with_prefix = Tokenizer::new(&spec).unwrap();
    let without = Tokenizer::new(&TokenizerSpec {
        add_space_prefix: Some(false),
        ..spec
    })
    .unwrap();
    let check = |tokenizer: &Tokenizer, text: &str, expected: &[Token]| {
        assert_eq!(
            tokenizer.encode(text, Specials::Parse),
            expected,
            "{text:?}"
        );
        assert_eq!(tokenizer.decode(expected), text);
    };
    // "ab" scores better than "▁a"
    check(&with_prefix, "ab", &[264]);
    check(&with_prefix, "a ab", &[262, 264]);
    check(&with_prefix, " a", &[259, 262]);
    check(&with_prefix, "é", &[259, 3 + 0xc3, 3 + 0xa9]);
    check(&without, "ab", &[263]);
    check(
        &without,
        "<s>a<0x41>",
        &[
            1,
            260,
            3 + 0x3c,
            3 + 0x30,
            3 + 0x78,
            3 + 0x34,
            3 + 0x31,
            3 + 0x3e,
        ],
    );
    assert_eq!(without.token_bytes(3 + 0xc3), [0xc3]);
    assert_eq!(without.token_text(1), "<s>");
    assert_eq!(without.token_bytes(999), [0u8; 0]);
    assert!(
        without.is_control(0)
            && without.is_control(1)
            && !without.is_control(3)
            && !without.is_control(999)
    );
}
