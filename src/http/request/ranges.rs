//! Checks that fields share: numbers in their ranges, containers of their kind, texts short enough to repeat.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::{message::kind, tree::Tree};
use crate::http::error::ApiError;

/// The number, if it is in its range.
pub(super) fn number(
    name: &str,
    value: Option<f32>,
    allowed: RangeInclusive<f32>,
) -> Result<Option<f32>, ApiError> {
    match value {
        Some(value) if !allowed.contains(&value) => {
            let reason = format!(
                "must be from {} to {}, got {value}",
                allowed.start(),
                allowed.end()
            );
            Err(ApiError::field(name, reason))
        }
        value => Ok(value),
    }
}

/// The count, if it is in its range.
pub(super) fn up_to(
    name: &str,
    value: Option<usize>,
    allowed: RangeInclusive<usize>,
) -> Result<Option<usize>, ApiError> {
    match value {
        Some(value) if !allowed.contains(&value) => {
            let (low, high) = allowed.into_inner();
            let range = if high == usize::MAX {
                format!("at least {low}")
            } else {
                format!("from {low} to {high}")
            };
            Err(ApiError::field(
                name,
                format!("must be {range}, got {value}"),
            ))
        }
        value => Ok(value),
    }
}

/// The container, empty if absent.
pub(super) fn list(name: &str, written: Option<Tree>) -> Result<Vec<Value>, ApiError> {
    match written {
        None => Ok(Vec::new()),
        Some(Tree(Value::Array(items))) => Ok(items),
        Some(Tree(other)) => Err(ApiError::field(
            name,
            format!("must be a list, got {}", kind(&other)),
        )),
    }
}

/// The container, empty if absent.
pub(super) fn object(name: &str, written: Option<Tree>) -> Result<Map<String, Value>, ApiError> {
    match written {
        None => Ok(Map::new()),
        Some(Tree(Value::Object(fields))) => Ok(fields),
        Some(Tree(other)) => Err(ApiError::field(
            name,
            format!("must be an object, got {}", kind(&other)),
        )),
    }
}

/// Enough of a client's text to recognise it in an error.
pub(crate) fn shortened(text: &str) -> String {
    const CHARS: usize = 64;
    match text.char_indices().nth(CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
