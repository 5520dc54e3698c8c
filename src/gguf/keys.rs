//! The metadata table of one file: where each key and value lies. Keeps byte ranges only, so that a vocabulary costs nothing to open.

use std::ops::Range;

use super::cursor::{Cursor, Short};
use super::error::{FormatError, Item};
use super::value::{Array, Value, ValueType, scalar};

/// Where a key and its value lie.
#[derive(Debug)]
struct Entry {
    key: Range<usize>,
    kind: Kind,
    /// A scalar's bytes, or an array's elements.
    value: Range<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Scalar(ValueType),
    Array { element: ValueType, len: usize },
}

/// Where all keys and values of a file lie. Every method wants the bytes the table was read from.
#[derive(Debug)]
pub(super) struct KeyTable {
    /// In file order.
    entries: Vec<Entry>,
    /// Indices into `entries`, by key.
    sorted: Vec<usize>,
}

impl KeyTable {
    /// Reads `count` keys, checking every length and type on the way. Time grows with the bytes, memory with the keys.
    pub(super) fn read(
        cursor: &mut Cursor<'_>,
        bytes: &[u8],
        count: usize,
    ) -> Result<Self, FormatError> {
        let mut entries = Vec::new();
        for index in 0..count {
            entries.push(read_entry(cursor, index)?);
        }
        let key = |&index: &usize| &bytes[entries[index].key.clone()];
        let mut sorted: Vec<usize> = (0..entries.len()).collect();
        sorted.sort_unstable_by(|a, b| key(a).cmp(key(b)));
        if let Some(pair) = sorted
            .windows(2)
            .find(|pair| key(&pair[0]) == key(&pair[1]))
        {
            return Err(FormatError::Duplicate {
                item: Item::Key(text(key(&pair[0])).to_owned()),
            });
        }
        Ok(Self { entries, sorted })
    }

    /// A key as it stands in the file, and its value.
    pub(super) fn get<'a>(&self, bytes: &'a [u8], key: &str) -> Option<(&'a str, Value<'a>)> {
        let entry = self.find(bytes, key)?;
        Some((text(&bytes[entry.key.clone()]), entry.value(bytes)?))
    }

    /// The exact type of a key's value, and of its elements if it is an array.
    pub(super) fn types(&self, bytes: &[u8], key: &str) -> Option<(ValueType, Option<ValueType>)> {
        Some(match self.find(bytes, key)?.kind {
            Kind::Scalar(ty) => (ty, None),
            Kind::Array { element, .. } => (ValueType::Array, Some(element)),
        })
    }

    fn find(&self, bytes: &[u8], key: &str) -> Option<&Entry> {
        let order = |&index: &usize| bytes[self.entries[index].key.clone()].cmp(key.as_bytes());
        let found = self.sorted.binary_search_by(order).ok()?;
        Some(&self.entries[self.sorted[found]])
    }

    /// All keys and values in file order.
    pub(super) fn iter<'a>(
        &'a self,
        bytes: &'a [u8],
    ) -> impl Iterator<Item = (&'a str, Value<'a>)> {
        self.entries
            .iter()
            .filter_map(|entry| Some((text(&bytes[entry.key.clone()]), entry.value(bytes)?)))
    }
}

impl Entry {
    /// Decodes the value; `None` only if the file was changed after the table was read.
    fn value<'a>(&self, bytes: &'a [u8]) -> Option<Value<'a>> {
        let bytes = &bytes[self.value.clone()];
        match self.kind {
            Kind::Scalar(ty) => scalar(&mut Cursor::new(bytes), ty).ok(),
            Kind::Array { element, len } => Some(Value::Array(Array {
                element,
                len,
                bytes,
            })),
        }
    }
}

fn read_entry(cursor: &mut Cursor<'_>, index: usize) -> Result<Entry, FormatError> {
    let key = cursor
        .string()
        .map_err(|short| truncated(short, Item::KeyAt(index)))?;
    let key_range = cursor.offset() - key.len()..cursor.offset();
    let key = std::str::from_utf8(key).ok().filter(|key| !key.is_empty());
    let key = key.ok_or(FormatError::Name {
        item: Item::KeyAt(index),
    })?;
    let short = |short| truncated(short, Item::Key(key.to_owned()));

    let ty = read_type(cursor, key)?;
    let kind = match ty {
        ValueType::Array => {
            let element = read_type(cursor, key)?;
            if element == ValueType::Array {
                return Err(FormatError::NestedArray {
                    key: key.to_owned(),
                });
            }
            let len = cursor.u64().map_err(short)?;
            let least = Short {
                offset: cursor.offset(),
                need: len.saturating_mul(element.min_bytes() as u64),
                left: cursor.left(),
            };
            let len = usize::try_from(len)
                .ok()
                .filter(|_| least.need <= least.left as u64)
                .ok_or_else(|| short(least))?;
            Kind::Array { element, len }
        }
        scalar => Kind::Scalar(scalar),
    };

    let start = cursor.offset();
    match kind {
        Kind::Scalar(ty) => skip(cursor, key, ty, 1)?,
        Kind::Array { element, len } => skip(cursor, key, element, len)?,
    }
    Ok(Entry {
        key: key_range,
        kind,
        value: start..cursor.offset(),
    })
}

fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, FormatError> {
    let id = cursor
        .u32()
        .map_err(|short| truncated(short, Item::Key(key.to_owned())))?;
    ValueType::from_id(id).ok_or_else(|| FormatError::ValueType {
        key: key.to_owned(),
        got: id,
    })
}

/// Steps over `len` values, of which at least `len * min_bytes` bytes are known to be there.
fn skip(cursor: &mut Cursor<'_>, key: &str, ty: ValueType, len: usize) -> Result<(), FormatError> {
    let short = |short| truncated(short, Item::Key(key.to_owned()));
    if ty == ValueType::String {
        for _ in 0..len {
            cursor.string().map_err(short)?;
        }
        return Ok(());
    }
    let taken = cursor
        .take((len as u64).saturating_mul(ty.min_bytes() as u64))
        .map_err(short)?;
    match taken
        .iter()
        .find(|&&byte| ty == ValueType::Bool && byte > 1)
    {
        Some(&got) => Err(FormatError::Bool {
            key: key.to_owned(),
            got,
        }),
        None => Ok(()),
    }
}

pub(super) fn truncated(short: Short, item: Item) -> FormatError {
    FormatError::Truncated {
        item,
        offset: short.offset,
        need: short.need,
        left: short.left,
    }
}

/// A key's text. Keys were checked when read; a file changed since then gives an empty key instead of a panic.
fn text(key: &[u8]) -> &str {
    std::str::from_utf8(key).unwrap_or_default()
}
