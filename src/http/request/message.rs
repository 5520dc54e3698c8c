//! The messages of a chat: checked so far that a wrong one is named, and passed on as they came. What a template makes of them is its own affair.

use serde_json::{Map, Value};

use super::tree::Tree;
use crate::http::error::ApiError;

/// Checks a conversation.
///
/// **Errors**: [`ApiError::BadField`] naming the message.
pub fn messages(written: Option<Tree>) -> Result<Vec<Value>, ApiError> {
    let Some(Tree(written)) = written else {
        return Err(ApiError::field("messages", "is missing"));
    };
    let Value::Array(list) = written else {
        let reason = format!("must be a list, got {}", kind(&written));
        return Err(ApiError::field("messages", reason));
    };
    if list.is_empty() {
        return Err(ApiError::field(
            "messages",
            "must hold at least one message",
        ));
    }
    for (index, written) in list.iter().enumerate() {
        check(written).map_err(|(place, reason)| {
            ApiError::field(format!("messages[{index}]{place}"), reason)
        })?;
    }
    Ok(list)
}

/// A place in a message, and what is wrong there.
type Wrong = (String, String);

fn check(message: &Value) -> Result<(), Wrong> {
    let wrong = |place: &str, reason: String| Err((place.to_owned(), reason));
    let Value::Object(fields) = message else {
        return wrong("", format!("must be an object, got {}", kind(message)));
    };
    match fields.get("role") {
        Some(Value::String(role)) if !role.is_empty() => {}
        Some(Value::String(_)) => return wrong(".role", "must not be empty".into()),
        Some(other) => return wrong(".role", format!("must be a string, got {}", kind(other))),
        None => return wrong(".role", "is missing".into()),
    }
    match fields.get("content") {
        Some(Value::String(_)) => Ok(()),
        // An answer that only calls tools.
        None | Some(Value::Null) if fields.contains_key("tool_calls") => Ok(()),
        None => wrong(".content", "is missing".into()),
        Some(Value::Array(parts)) => check_parts(parts),
        Some(other) => {
            let reason = format!("must be a string or a list of parts, got {}", kind(other));
            wrong(".content", reason)
        }
    }
}

fn check_parts(parts: &[Value]) -> Result<(), Wrong> {
    for (index, part) in parts.iter().enumerate() {
        let checked = match part {
            Value::Object(part) => check_part(part),
            _ => Err(format!("must be an object, got {}", kind(part))),
        };
        checked.map_err(|reason| (format!(".content[{index}]"), reason))?;
    }
    Ok(())
}

fn check_part(part: &Map<String, Value>) -> Result<(), String> {
    match (part.get("type"), part.get("text")) {
        (Some(Value::String(kind)), Some(Value::String(_))) if kind == "text" => Ok(()),
        (Some(Value::String(kind)), _) if kind == "text" => {
            Err("needs a 'text', which must be a string".into())
        }
        (Some(Value::String(kind)), _) => Err(format!(
            "parts of type '{kind}' are not supported, only 'text'"
        )),
        _ => Err("needs a 'type', which must be 'text'".into()),
    }
}

/// The name of a value's type.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
