//! Writes the header of a GGUF v3 file. Data follow it in the order in which the tensors were named; this module never sees them.

use super::header::DEFAULT_ALIGNMENT;
use super::tensor::Dims;
use super::value::ValueType;
use crate::quant::BlockType;

/// A value to be written.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// 16-bit unsigned, as the keys of split files have.
    U16(u16),
    /// 32-bit unsigned.
    U32(u32),
    /// 64-bit unsigned.
    U64(u64),
    /// 32-bit signed.
    I32(i32),
    /// IEEE binary32.
    F32(f32),
    /// A truth value.
    Bool(bool),
    /// Text.
    Str(&'a str),
    /// 32-bit signed, several.
    I32s(&'a [i32]),
    /// 64-bit unsigned, several.
    U64s(&'a [u64]),
    /// IEEE binary32, several.
    F32s(&'a [f32]),
    /// Truth values.
    Bools(&'a [bool]),
    /// Texts.
    Strs(&'a [String]),
}

/// A header under construction: keys and tensors in the order in which they are added.
#[derive(Clone, Debug, Default)]
pub struct HeaderWriter {
    keys: Vec<u8>,
    key_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    data_bytes: u64,
}

impl HeaderWriter {
    /// A header without keys and tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key. It is not checked that it is new.
    pub fn set(&mut self, key: &str, value: Entry<'_>) -> &mut Self {
        self.key_count += 1;
        put_str(&mut self.keys, key);
        put_entry(&mut self.keys, value);
        self
    }

    /// Adds a tensor and says where its data start, counted from the end of the header. **Units**: bytes.
    ///
    /// # Panics
    /// If a row is not a whole number of blocks or the size overflows.
    pub fn tensor(&mut self, name: &str, dims: &[usize], ty: BlockType) -> u64 {
        let rows = Dims::new(dims).checked_rows();
        let bytes = ty
            .row_bytes(dims[0])
            .zip(rows)
            .and_then(|(row, rows)| row.checked_mul(rows));
        let bytes = bytes.expect("a tensor of whole blocks that fits memory") as u64;

        self.tensor_count += 1;
        put_str(&mut self.tensors, name);
        self.tensors.extend((dims.len() as u32).to_le_bytes());
        dims.iter()
            .for_each(|&n| self.tensors.extend((n as i64).to_le_bytes()));
        self.tensors.extend((ty as u32).to_le_bytes());
        let offset = self.data_bytes;
        self.tensors.extend(offset.to_le_bytes());
        self.data_bytes = (offset + bytes).next_multiple_of(DEFAULT_ALIGNMENT as u64);
        offset
    }

    /// Bytes of data that must follow the header, padding after the last tensor included.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// The header, padded so that data can follow at once.
    pub fn finish(&self) -> Vec<u8> {
        let mut header =
            Vec::with_capacity(24 + self.keys.len() + self.tensors.len() + DEFAULT_ALIGNMENT);
        header.extend(b"GGUF");
        header.extend(3u32.to_le_bytes());
        header.extend(self.tensor_count.to_le_bytes());
        header.extend(self.key_count.to_le_bytes());
        header.extend(&self.keys);
        header.extend(&self.tensors);
        header.resize(header.len().next_multiple_of(DEFAULT_ALIGNMENT), 0);
        header
    }
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_type(out: &mut Vec<u8>, ty: ValueType) {
    out.extend((ty as u32).to_le_bytes());
}

fn put_array<T>(
    out: &mut Vec<u8>,
    element: ValueType,
    items: &[T],
    put: impl Fn(&mut Vec<u8>, &T),
) {
    put_type(out, ValueType::Array);
    put_type(out, element);
    out.extend((items.len() as u64).to_le_bytes());
    items.iter().for_each(|item| put(out, item));
}

fn put_entry(out: &mut Vec<u8>, value: Entry<'_>) {
    let mut scalar = |ty, bytes: &[u8]| {
        put_type(out, ty);
        out.extend(bytes);
    };
    match value {
        Entry::U16(n) => scalar(ValueType::U16, &n.to_le_bytes()),
        Entry::U32(n) => scalar(ValueType::U32, &n.to_le_bytes()),
        Entry::U64(n) => scalar(ValueType::U64, &n.to_le_bytes()),
        Entry::I32(n) => scalar(ValueType::I32, &n.to_le_bytes()),
        Entry::F32(x) => scalar(ValueType::F32, &x.to_le_bytes()),
        Entry::Bool(truth) => scalar(ValueType::Bool, &[truth.into()]),
        Entry::Str(text) => {
            put_type(out, ValueType::String);
            put_str(out, text);
        }
        Entry::I32s(items) => put_array(out, ValueType::I32, items, |out, n| {
            out.extend(n.to_le_bytes())
        }),
        Entry::U64s(items) => put_array(out, ValueType::U64, items, |out, n| {
            out.extend(n.to_le_bytes())
        }),
        Entry::F32s(items) => put_array(out, ValueType::F32, items, |out, x| {
            out.extend(x.to_le_bytes())
        }),
        Entry::Bools(items) => put_array(out, ValueType::Bool, items, |out, &truth| {
            out.push(truth.into())
        }),
        Entry::Strs(items) => put_array(out, ValueType::String, items, |out, text| {
            put_str(out, text)
        }),
    }
}
