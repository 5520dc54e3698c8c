//! The template engine, set up as `transformers` sets up Jinja.

use super::error::{Raised, TemplateError};
use super::json;
use jiff::{Timestamp, fmt::strtime, tz::TimeZone};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Value, syntax::SyntaxConfig, value::ValueKind,
};
use minijinja_contrib::pycompat;
use std::{borrow::Cow, time::SystemTime};

/// Steps that rendering may take. 2026-11-29: 1,200 messages with tool calls take 0.1 million of Qwen3's template and 1.4 million of
/// gpt-oss's, which is quadratic in messages; 20 million take 1.5 s.
pub(super) const STEPS_MAX: u64 = 20_000_000;

/// An environment without templates.
pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .unwrap_or_default(),
    );
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(STEPS_MAX));
    environment.set_unknown_method_callback(pycompat::unknown_method_callback);
    environment.add_filter("tojson", json::tojson);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_function("raise_exception", raise_exception);
    environment
}

/// Compiles a template.
pub(super) fn add(
    environment: &mut Environment<'static>,
    name: &'static str,
    source: &str,
) -> Result<(), TemplateError> {
    let source = without_generation_blocks(source).into_owned();
    environment
        .add_template_owned(name, source)
        .map_err(TemplateError::from)
}

/// In Python whatever can be indexed is a sequence: text and mappings as well.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(
        Error::new(ErrorKind::InvalidOperation, "raised by the template")
            .with_source(Raised(message)),
    )
}

/// The function `strftime_now` for one moment.
pub(super) fn strftime_at(now: SystemTime) -> Value {
    Value::from_function(move |format: Cow<'_, str>| {
        let failed =
            |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
        let now = Timestamp::try_from(now)
            .map_err(failed)?
            .to_zoned(TimeZone::system());
        strtime::format(format.as_bytes(), &now).map_err(failed)
    })
}

/// `{% generation %}` marks answers for training and renders what it encloses; the engine does not know it.
fn without_generation_blocks(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return source.into();
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, from)) = rest.split_once("{%") {
        let (tag, after) = from.split_once("%}").unwrap_or((from, ""));
        out.push_str(before);
        out.push_str("{%");
        match tag.trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        if from.len() > tag.len() {
            out.push_str("%}");
        }
        rest = after;
    }
    out.push_str(rest);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_render_what_they_enclose() {
        fn check(source: &str, expected: &str) {
            assert_eq!(without_generation_blocks(source), expected);
        }
        check("a {% if b %}", "a {% if b %}");
        check(
            "{%- generation -%}x{% endgeneration %}",
            "{%- if true -%}x{% endif %}",
        );
        check(
            "{% if add_generation_prompt %}y",
            "{% if add_generation_prompt %}y",
        );
        check("{{ '{% generation' }}", "{{ '{% generation' }}");
    }
}
