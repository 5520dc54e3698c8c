//! Typed access to metadata. A missing key is `None` (or, for `need_*`, an error); a key of another type is always an error.

use std::fmt::Display;

use super::value::{StringArray, Value, ValueType};
use super::{Gguf, GgufError};

impl Gguf {
    /// All keys and values in file order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.shards[0]
            .header
            .keys
            .iter(self.shards[0].mapping.bytes())
    }

    /// The value of a key, whatever its type.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.shards[0].get(key).map(|(_, value)| value)
    }

    /// The architecture's name, for example `qwen3moe`: the prefix of the keys that describe the model.
    ///
    /// **Errors**: `general.architecture` is missing or no text.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.need_str("general.architecture")
    }

    /// Refuses files that are valid but hold something else than a language model.
    ///
    /// **Errors**: [`NotAModel`](GgufError::NotAModel); a wrong type of the keys that tell.
    pub fn check_is_model(&self) -> Result<(), GgufError> {
        let refuse = |kind, evidence: String| {
            Err(GgufError::NotAModel {
                path: self.path().to_owned(),
                kind,
                evidence,
            })
        };
        let general = self.str("general.type")?;
        let kind = match general {
            Some("mmproj") => "a vision or audio projector (mmproj)",
            Some("adapter") => "an adapter (LoRA)",
            Some("imatrix") => "an importance matrix (imatrix)",
            _ if self.str("general.architecture")? == Some("clip") => {
                return refuse(
                    "a vision or audio projector (mmproj)",
                    "general.architecture = clip".to_owned(),
                );
            }
            _ => return Ok(()),
        };
        refuse(
            kind,
            format!("general.type = {}", general.unwrap_or_default()),
        )
    }

    /// A text.
    ///
    /// **Errors**: another type, or no UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(bytes)) => {
                std::str::from_utf8(bytes)
                    .map(Some)
                    .map_err(|_| GgufError::KeyText {
                        key: key.to_owned(),
                        index: None,
                    })
            }
            Some(_) => Err(self.wrong_type(key, "string")),
        }
    }

    /// An integer of any width that fits.
    ///
    /// **Errors**: another type, negative, or too large.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.get(key)
            .map(|value| self.integer(key, value, "0 to 4294967295"))
            .transpose()
    }

    /// An integer of any width that fits.
    ///
    /// **Errors**: another type, or negative.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.get(key)
            .map(|value| self.integer(key, value, "0 or more"))
            .transpose()
    }

    /// A float of either width.
    ///
    /// **Errors**: another type, or a finite number beyond `f32`.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.get(key)
            .map(|value| self.float(key, value))
            .transpose()
    }

    /// A truth value.
    ///
    /// **Errors**: another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.get(key)
            .map(|value| self.truth(key, value))
            .transpose()
    }

    /// As [`str`](Self::str), and the key must be there.
    pub fn need_str(&self, key: &str) -> Result<&str, GgufError> {
        self.str(key)?.ok_or_else(|| missing(key))
    }

    /// As [`u32`](Self::u32), and the key must be there.
    pub fn need_u32(&self, key: &str) -> Result<u32, GgufError> {
        self.u32(key)?.ok_or_else(|| missing(key))
    }

    /// As [`u64`](Self::u64), and the key must be there.
    pub fn need_u64(&self, key: &str) -> Result<u64, GgufError> {
        self.u64(key)?.ok_or_else(|| missing(key))
    }

    /// As [`f32`](Self::f32), and the key must be there.
    pub fn need_f32(&self, key: &str) -> Result<f32, GgufError> {
        self.f32(key)?.ok_or_else(|| missing(key))
    }

    /// An array of strings, left in place.
    ///
    /// **Errors**: another type.
    pub fn strings(&self, key: &str) -> Result<Option<StringArray<'_>>, GgufError> {
        match self.shards[0].get(key) {
            None => Ok(None),
            Some((key, Value::Array(array))) if array.element == ValueType::String => {
                Ok(Some(StringArray { key, array }))
            }
            Some(_) => Err(self.wrong_type(key, "array of string")),
        }
    }

    /// An array of floats.
    ///
    /// **Errors**: another type, or a finite number beyond `f32`.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.array(key, "array of f32 or f64", |value| self.float(key, value))
    }

    /// An array of integers of any width that fit.
    ///
    /// **Errors**: another type, or an integer out of range.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.array(key, "array of integers", |value| {
            self.integer(key, value, "-2147483648 to 2147483647")
        })
    }

    /// An array of integers of up to 64 bits, as they are; it must be there.
    ///
    /// **Errors**: missing, another type, or a negative integer.
    pub fn need_u64s(&self, key: &str) -> Result<Vec<u64>, GgufError> {
        let numbers = self.array(key, "array of integers", |value| {
            self.integer(key, value, "0 or more")
        })?;
        numbers.ok_or_else(|| missing(key))
    }

    /// A number a layer: from an array of at least `layers` integers (further ones belong to blocks that are no layers), or one
    /// integer for all.
    ///
    /// **Errors**: another type, an integer out of range, or too few entries.
    pub fn per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u32>>, GgufError> {
        self.layered(key, layers, |value| {
            self.integer(key, value, "0 to 4294967295")
        })
    }

    /// A truth value a layer, as [`per_layer`](Self::per_layer).
    ///
    /// **Errors**: another type, or too few entries.
    pub fn per_layer_bool(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>, GgufError> {
        self.layered(key, layers, |value| self.truth(key, value))
    }

    fn layered<'a, T: Clone>(
        &'a self,
        key: &str,
        layers: usize,
        decode: impl Fn(Value<'a>) -> Result<T, GgufError>,
    ) -> Result<Option<Vec<T>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) if array.len < layers => Err(GgufError::KeyLength {
                key: key.to_owned(),
                got: array.len,
                expected: layers,
            }),
            Some(Value::Array(array)) => array
                .iter()
                .take(layers)
                .map(decode)
                .collect::<Result<_, _>>()
                .map(Some),
            Some(value) => Ok(Some(vec![decode(value)?; layers])),
        }
    }

    fn array<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        decode: impl Fn(Value<'a>) -> Result<T, GgufError>,
    ) -> Result<Option<Vec<T>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => {
                array.iter().map(decode).collect::<Result<_, _>>().map(Some)
            }
            Some(_) => Err(self.wrong_type(key, expected)),
        }
    }

    fn integer<T: TryFrom<u64> + TryFrom<i64>>(
        &self,
        key: &str,
        value: Value<'_>,
        expected: &'static str,
    ) -> Result<T, GgufError> {
        let range = |got: &dyn Display| GgufError::KeyRange {
            key: key.to_owned(),
            got: got.to_string(),
            expected,
        };
        match value {
            Value::Unsigned(n) => T::try_from(n).map_err(|_| range(&n)),
            Value::Signed(n) => T::try_from(n).map_err(|_| range(&n)),
            _ => Err(self.wrong_type(key, "an integer")),
        }
    }

    fn float(&self, key: &str, value: Value<'_>) -> Result<f32, GgufError> {
        match value {
            Value::Float(wide) if wide.is_finite() && !(wide as f32).is_finite() => {
                Err(GgufError::KeyRange {
                    key: key.to_owned(),
                    got: wide.to_string(),
                    expected: "a number that fits f32",
                })
            }
            Value::Float(wide) => Ok(wide as f32),
            _ => Err(self.wrong_type(key, "f32 or f64")),
        }
    }

    fn truth(&self, key: &str, value: Value<'_>) -> Result<bool, GgufError> {
        match value {
            Value::Bool(truth) => Ok(truth),
            _ => Err(self.wrong_type(key, "bool")),
        }
    }

    fn wrong_type(&self, key: &str, expected: &'static str) -> GgufError {
        GgufError::KeyType {
            key: key.to_owned(),
            got: self.shards[0].type_name(key),
            expected,
        }
    }
}

fn missing(key: &str) -> GgufError {
    GgufError::MissingKey {
        key: key.to_owned(),
    }
}
