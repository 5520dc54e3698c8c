use super::*;
use std::time::SystemTime;

#[test]
fn marks_go_inside_of_what_could_be_a_token() {
    fn check(text: &str, marked: &str) {
        let marks = Marks::new(&["<|end|>", "<|endless|>", "[e~[", "｜x｜", "!"]).unwrap();
        let mut marker = Marker {
            marks: &marks,
            mark: '^',
            count: 0,
        };
        assert_eq!(marker.text(text), marked);
        assert_eq!(marker.count, marked.matches('^').count());
    }
    check("", "");
    check("a < b, end!", "a < b, end!");
    check("<|end|>", "<^|end|>");
    check("a<|end|><|end|>b", "a<^|end|><^|end|>b");
    check("[e~[e~[ ", "^[^e~[^e~[^ ");
    check("a｜x｜b", "a｜^x｜b");
    // the beginning of one at the end, also before white space
    check("a <|en", "a <^|en");
    check("a <|en \n", "a <^|en \n");
    check("<", "<^");
    check("a｜", "a｜^");
    // the end of one at the beginning
    check("d|> a", "^d|> a");
    check("\t> a", "\t^> a");
    check("s|>", "^s|>");
}

/// A conversation of one role, rendered as its contents in a row.
fn rendered(role: &str, contents: &[&str], look_for: &str) -> Result<Rendered, TemplateError> {
    let messages: Vec<Json> = contents
        .iter()
        .map(|content| serde_json::json!({"role": role, "content": content}))
        .collect();
    let variables = Map::new();
    let conversation = Conversation {
        messages: &messages,
        tools: &[],
        add_generation_prompt: true,
        variables: &variables,
        now: SystemTime::UNIX_EPOCH,
    };
    let render = |conversation: &Conversation<'_>| {
        let contents = conversation
            .messages
            .iter()
            .filter_map(|message| message["content"].as_str());
        Ok(contents
            .map(|content| content.trim().replace(look_for, "?"))
            .collect::<String>())
    };
    let text = render(&conversation)?;
    Marks::new(&["<|end|>"])?.render(&conversation, text, render)
}

#[test]
fn breaks_are_where_marks_were() {
    fn check(contents: &[&str], text: &str, breaks: &[usize]) {
        let expected = Rendered {
            text: text.to_owned(),
            breaks: breaks.to_vec(),
        };
        assert_eq!(
            rendered("user", contents, "#"),
            Ok(expected),
            "{contents:?}"
        );
    }
    check(&["a", "b"], "ab", &[]);
    check(&["a<|end|>b"], "a<|end|>b", &[2]);
    check(&["a<|", "end|>b"], "a<|end|>b", &[2, 3]);
    check(&["a <|end \n", " |>b"], "a <|end|>b", &[3, 7]);
    check(&["\u{100000}<|end|>"], "\u{100000}<|end|>", &[5]);
}

#[test]
fn a_template_that_looks_for_the_token() {
    let looked_for = |role| rendered(role, &["a<|end|>b"], "<|end|>");
    assert_eq!(looked_for("user"), Err(TemplateError::SpelledControl));
    assert_eq!(
        looked_for("assistant"),
        Ok(Rendered {
            text: "a?b".into(),
            breaks: Vec::new()
        })
    );
}
