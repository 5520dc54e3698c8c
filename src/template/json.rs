//! JSON in and out of templates: the client's values as the engine's, and `tojson` as Python's `json.dumps` writes it.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};
use serde_json::Value as Json;
use std::fmt::Write;

/// Levels of nesting that `tojson` follows; serde_json reads no more than this either.
const DEPTH_MAX: usize = 128;

/// A client's value as the engine's.
pub(super) fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => ().into(),
        Json::Bool(bool) => (*bool).into(),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => integer.into(),
            (None, Some(integer)) => integer.into(),
            (None, None) => number.as_f64().into(),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => list(items),
        Json::Object(entries) => Value::from_pairs(
            entries
                .iter()
                .map(|(key, value)| (key.as_str(), to_value(value))),
        ),
    }
}

/// [`to_value`] of an array.
pub(super) fn list(items: &[Json]) -> Value {
    items.iter().map(to_value).collect()
}

/// The filter. **Source**: `transformers`' `tojson`, which is `json.dumps` without escaping for HTML.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let [between, after_key] = match separators.as_deref() {
        Some([between, after_key]) => [between.clone(), after_key.clone()],
        _ if indent.is_some() => [",".into(), ": ".into()],
        _ => [", ".into(), ": ".into()],
    };
    let mut writer = Writer {
        out: String::new(),
        indent,
        between,
        after_key,
        ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer {
    out: String,
    indent: Option<usize>,
    between: String,
    after_key: String,
    ascii: bool,
    sort_keys: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson: nested deeper than {DEPTH_MAX}"),
            ));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.items(value, depth)?,
            ValueKind::Map => self.entries(value, depth)?,
            kind => {
                let reason = format!("tojson: {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        }
        Ok(())
    }

    fn items(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut count = 0;
        for item in value.try_iter()? {
            self.next_line(count, depth + 1);
            self.value(&item, depth + 1)?;
            count += 1;
        }
        self.close(']', count, depth);
        Ok(())
    }

    fn entries(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('{');
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        for (index, key) in keys.iter().enumerate() {
            self.next_line(index, depth + 1);
            self.string(&key.to_string());
            self.out.push_str(&self.after_key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close('}', keys.len(), depth);
        Ok(())
    }

    /// What goes before entry `index`.
    fn next_line(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push_str(&self.between);
        }
        self.new_line(depth);
    }

    fn close(&mut self, bracket: char, count: usize, depth: usize) {
        if count > 0 {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && c > '~') => self.escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // writing to a string cannot fail
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }
}

/// A number as Python writes it: the shortest digits that give it back, with an exponent below 1e-4 and from 1e16.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .into();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{number:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Expected texts are Python's `json.dumps`.
    #[test]
    fn numbers_are_written_as_python_does() {
        fn check(number: f64, expected: &str) {
            assert_eq!(float(number), expected);
        }
        check(1.0, "1.0");
        check(-0.0, "-0.0");
        check(0.1, "0.1");
        check(1e15, "1000000000000000.0");
        check(1e16, "1e+16");
        check(123_456_789_012_345_680.0, "1.2345678901234568e+17");
        check(0.0001, "0.0001");
        check(0.00001, "1e-05");
        check(1.5e-7, "1.5e-07");
        check(5e-324, "5e-324");
        check(f64::MAX, "1.7976931348623157e+308");
        check(f64::NEG_INFINITY, "-Infinity");
    }

    #[test]
    fn options_of_tojson() {
        fn check(value: &Json, options: &[(&str, Value)], expected: &str) {
            let options: Kwargs = options.iter().cloned().collect();
            assert_eq!(tojson(&to_value(value), options).unwrap(), expected);
        }
        let plain = json!({"b": [1, 2.5, null, true], "a": {"é": "\"\\\n\u{1}\u{7f}</a>"}, "c": [], "d": {}});
        check(
            &plain,
            &[],
            "{\"b\": [1, 2.5, null, true], \"a\": {\"é\": \"\\\"\\\\\\n\\u0001\u{7f}</a>\"}, \"c\": [], \"d\": {}}",
        );
        let nested = json!({"b": [1, {"c": []}], "a": {}});
        let indented = "{\n  \"b\": [\n    1,\n    {\n      \"c\": []\n    }\n  ],\n  \"a\": {}\n}";
        check(&nested, &[("indent", 2.into())], indented);
        let compact = Value::from(vec![Value::from(","), Value::from(":")]);
        let options = [("separators", compact), ("sort_keys", true.into())];
        check(&nested, &options, "{\"a\":{},\"b\":[1,{\"c\":[]}]}");
        check(
            &json!("é😀"),
            &[("ensure_ascii", true.into())],
            r#""\u00e9\ud83d\ude00""#,
        );
        check(&json!(u64::MAX), &[], "18446744073709551615");
    }

    #[test]
    fn what_is_not_json_is_an_error() {
        fn check(value: &Value) {
            let none: [(&str, Value); 0] = [];
            assert!(tojson(value, none.into_iter().collect()).is_err());
        }
        check(&Value::UNDEFINED);
        check(&(0..=DEPTH_MAX).fold(Value::from(0), |inner, _| Value::from(vec![inner])));
    }
}
