//! JSON of any shape with a bound on its size: what a client passes on to the chat template.
//!
//! A parsed value takes many times the bytes of its text (`0,` is two bytes and becomes 72), so its nodes are counted while it is read.

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use std::{cell::Cell, fmt};

/// Values in one tree at most: some ten thousand messages.
pub const NODES_MAX: usize = 200_000;

/// A JSON value of at most [`NODES_MAX`] nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree(pub Value);

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Node {
            left: &Cell::new(NODES_MAX),
        }
        .deserialize(from)
        .map(Tree)
    }
}

/// Reads one value; `left` is shared by the whole tree.
#[derive(Clone, Copy)]
struct Node<'a> {
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Err(de::Error::custom(format_args!(
                "more than {NODES_MAX} JSON values"
            )));
        };
        self.left.set(left);
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key()? {
            fields.insert(name, map.next_value_seed(self)?);
        }
        Ok(Value::Object(fields))
    }
}
