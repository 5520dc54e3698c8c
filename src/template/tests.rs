use super::*;
use serde_json::json;
use std::time::Duration;

fn template(
    source: Option<&str>,
    tool_use: Option<&str>,
    controls: &[&str],
) -> Result<ChatTemplate, TemplateError> {
    ChatTemplate::new(&TemplateSpec {
        source,
        tool_use,
        bos: "<s>",
        eos: "</s>",
        controls,
    })
}

/// Renders `messages` with one tool if `tool`, and the variable `extra`.
fn render(template: &ChatTemplate, messages: Json, tool: bool) -> Result<String, TemplateError> {
    let variables = json!({"extra": 1, "messages": "shadowed", "bos_token": "shadowed"});
    let tools = [json!({"type": "function", "function": {"name": "f"}})];
    let rendered = template.render(&Conversation {
        messages: messages.as_array().unwrap(),
        tools: if tool { &tools } else { &[] },
        add_generation_prompt: true,
        variables: variables.as_object().unwrap(),
        now: SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 45 + 12),
    })?;
    Ok(rendered.text)
}

#[test]
fn what_a_template_sees() {
    fn check(source: &str, messages: Json, expected: &str) {
        let template = template(Some(source), None, &[]).unwrap();
        assert_eq!(
            render(&template, messages, false).as_deref(),
            Ok(expected),
            "{source}"
        );
    }
    let hi = json!([{"role": "user", "content": "hi"}]);
    check(
        "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        hi.clone(),
        "<s>hi</s>",
    );
    check(
        "{{ extra }} {{ tools is none }} {{ unknown is defined }}",
        hi.clone(),
        "1 True False",
    );
    check(
        "{{ strftime_now('%Y-%m-%d, %d %B %Y') }}",
        hi.clone(),
        "1970-02-15, 15 February 1970",
    );
    check("{% if true %}\n  a\n  {% endif %}\nb\n", hi, "  a\nb");
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    check("{{ messages[0].content + '.' }}", parts.clone(), "a\nb.");
    let either = "{% set c = messages[0].content %}{% if c is string %}{{ c }}{% else %}{{ c|map(attribute='text')|join }}{% endif %}";
    check(either, parts, "ab");
}

#[test]
fn tools_have_a_template_of_their_own() {
    let template = template(Some("without"), Some("with {{ tools|length }}"), &[]).unwrap();
    let hi = json!([{"role": "user", "content": "hi"}]);
    assert_eq!(
        render(&template, hi.clone(), false).as_deref(),
        Ok("without")
    );
    assert_eq!(render(&template, hi, true).as_deref(), Ok("with 1"));
}

#[test]
fn chatml_where_there_is_no_template() {
    let controls = ["<|im_start|>", "<|im_end|>"];
    let template = template(None, None, &controls).unwrap();
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant"}]);
    let expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(render(&template, messages, false).as_deref(), Ok(expected));
    let none = self::template(None, None, &controls[..1]).unwrap();
    assert_eq!(render(&none, json!([]), false), Err(TemplateError::Missing));
}

#[test]
fn errors_of_a_template() {
    fn check(source: &str, is_expected: fn(&TemplateError) -> bool) {
        let rendered = template(Some(source), None, &[]).and_then(|template| {
            render(&template, json!([{"role": "user", "content": "hi"}]), false)
        });
        let error = rendered.expect_err(source);
        assert!(is_expected(&error), "{source}: {error:?}");
    }
    let syntax = |error: &TemplateError| matches!(error, TemplateError::Syntax { line: 2, .. });
    check("a\n{% if %}", syntax);
    check("a\n{% include 'x' %}", syntax);
    check("a\n{% extends 'x' %}", syntax);
    let refused = |error: &TemplateError| matches!(error, TemplateError::Refused { message } if message == "No hi!");
    check(
        "{{ raise_exception('No ' + messages[0].content + '!') }}",
        refused,
    );
    check(
        "{% macro m() %}{{ raise_exception('No hi!') }}{% endmacro %}{{ m() }}",
        refused,
    );
    let failed = |error: &TemplateError| matches!(error, TemplateError::Failed { line: 2, .. });
    check("a\n{{ messages[0].nothing.at_all }}", failed);
    check("a\n{{ messages[0].content + 1 }}", failed);
    check("a\n{{ strftime_now('%&') }}", failed);
    let costly = |error: &TemplateError| matches!(error, TemplateError::TooCostly { .. });
    check(
        "{% if extra %}{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}{% endif %}",
        costly,
    );
    check("{{ 'x' * 9999999999 }}", |_| true);
    check("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", |_| true);
    check(&format!("{{{{ {}1", "(".repeat(100_000)), |_| true);
}

#[test]
fn parts_that_are_not_text() {
    let template = template(Some("{{ messages[0].content }}"), None, &[]).unwrap();
    let image = json!([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
    let expected = TemplateError::UnsupportedPart {
        message: 1,
        kind: "image_url".into(),
    };
    assert_eq!(render(&template, image, false), Err(expected));
}
