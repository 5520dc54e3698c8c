//! A model file made anew, with some of its keys and tensors changed.

use std::sync::Arc;

use tidegate::{
    gguf::{Entry, Gguf, HeaderWriter, Value, ValueType},
    quant::{self, BlockType},
};

use crate::reference::tiny_file;

/// A key's value, no longer in the file.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    Unsigned(u64),
    Signed(i64),
    Float(f32),
    Bool(bool),
    Text(String),
    I32s(Vec<i32>),
    U64s(Vec<u64>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
    Texts(Vec<String>),
}

/// A tensor, no longer in the file.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) name: String,
    /// As in a file: the contiguous dimension first.
    pub(crate) dims: Vec<usize>,
    pub(crate) ty: BlockType,
    pub(crate) bytes: Vec<u8>,
}

/// A file in pieces.
#[derive(Clone, Debug)]
pub(crate) struct Remade {
    keys: Vec<(String, Key)>,
    pub(crate) tensors: Vec<Piece>,
}

impl Key {
    fn of(value: Value<'_>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        match value {
            Value::Unsigned(number) => Self::Unsigned(number),
            Value::Signed(number) => Self::Signed(number),
            Value::Float(number) => Self::Float(number as f32),
            Value::Bool(truth) => Self::Bool(truth),
            Value::String(bytes) => Self::Text(text(bytes)),
            Value::Array(array) => {
                let all = array.iter();
                match array.element() {
                    ValueType::String => Self::Texts(all.map(|of| text_of(of, text)).collect()),
                    ValueType::Bool => Self::Bools(all.map(|of| of == Value::Bool(true)).collect()),
                    ValueType::F32 | ValueType::F64 => Self::F32s(all.map(float).collect()),
                    ValueType::U64 => Self::U64s(all.map(|of| integer(of) as u64).collect()),
                    _ => Self::I32s(all.map(|of| integer(of) as i32).collect()),
                }
            }
        }
    }

    fn put(&self, header: &mut HeaderWriter, name: &str) {
        header.set(
            name,
            match self {
                Self::Unsigned(number) => match u32::try_from(*number) {
                    Ok(number) => Entry::U32(number),
                    Err(_) => Entry::U64(*number),
                },
                Self::Signed(number) => Entry::I32(i32::try_from(*number).expect("32 bits")),
                Self::Float(number) => Entry::F32(*number),
                Self::Bool(truth) => Entry::Bool(*truth),
                Self::Text(text) => Entry::Str(text),
                Self::I32s(all) => Entry::I32s(all),
                Self::U64s(all) => Entry::U64s(all),
                Self::F32s(all) => Entry::F32s(all),
                Self::Bools(all) => Entry::Bools(all),
                Self::Texts(all) => Entry::Strs(all),
            },
        );
    }
}

fn text_of(value: Value<'_>, text: impl Fn(&[u8]) -> String) -> String {
    match value {
        Value::String(bytes) => text(bytes),
        other => panic!("{other:?} among texts"),
    }
}

fn float(value: Value<'_>) -> f32 {
    match value {
        Value::Float(number) => number as f32,
        other => panic!("{other:?} among floats"),
    }
}

fn integer(value: Value<'_>) -> i128 {
    match value {
        Value::Unsigned(number) => number.into(),
        Value::Signed(number) => number.into(),
        other => panic!("{other:?} among integers"),
    }
}

impl Piece {
    /// **Panics** if its type cannot be decoded.
    pub(crate) fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.dims.iter().product()];
        quant::dequantise(self.ty, &self.bytes, &mut values).expect("whole blocks");
        values
    }

    /// The same tensor of f32.
    pub(crate) fn put(&mut self, values: &[f32]) {
        self.ty = BlockType::F32;
        self.bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    }
}

impl Remade {
    /// A file of `fixtures/tiny`, as it is.
    pub(crate) fn tiny(name: &str) -> Self {
        Self::of(&Gguf::open(tiny_file(name)).expect("a tiny file"))
    }

    /// A file as it is.
    pub(crate) fn of(file: &Gguf) -> Self {
        let keys = file.metadata();
        let piece = |tensor: &tidegate::gguf::Tensor| Piece {
            name: tensor.name.to_string(),
            dims: tensor.dims.trimmed().to_vec(),
            ty: tensor.ty,
            bytes: file.bytes(tensor).to_vec(),
        };
        Self {
            keys: keys
                .map(|(key, value)| (key.to_owned(), Key::of(value)))
                .collect(),
            tensors: file.tensors().iter().map(piece).collect(),
        }
    }

    fn named(&self, name: &str) -> String {
        let architecture = self.keys.iter().find_map(|(key, value)| match value {
            Key::Text(text) if key == "general.architecture" => Some(text.clone()),
            _ => None,
        });
        format!("{}.{name}", architecture.expect("an architecture"))
    }

    /// What the architecture's key says.
    pub(crate) fn key(&self, name: &str) -> Option<&Key> {
        let name = self.named(name);
        let found = self.keys.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value)
    }

    /// With this value of the architecture's key, or without it.
    pub(crate) fn with(mut self, name: &str, value: Option<Key>) -> Self {
        let name = self.named(name);
        self.keys.retain(|(key, _)| *key != name);
        self.keys.extend(value.map(|value| (name, value)));
        self
    }

    /// A tensor's values.
    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        let found = self.tensors.iter().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("no tensor {name}")).values()
    }

    /// Whether there is a tensor of this name, in any layer.
    pub(crate) fn has(&self, end: &str) -> bool {
        self.tensors.iter().any(|tensor| is(&tensor.name, end))
    }

    /// The tensors of this name in any layer, and there must be some, are changed.
    pub(crate) fn change(mut self, end: &str, change: impl Fn(&mut [f32])) -> Self {
        let all = self.tensors.iter_mut();
        let mut found = 0;
        for tensor in all.filter(|tensor| is(&tensor.name, end)) {
            let mut values = tensor.values();
            change(&mut values);
            tensor.put(&values);
            found += 1;
        }
        assert!(found > 0, "no tensor {end}");
        self
    }

    /// The tensors of these names, as far as there are some, times a factor.
    pub(crate) fn times(mut self, ends: &[&str], factor: f32) -> Self {
        for end in ends {
            if self.has(end) {
                self = self.change(end, |values| values.iter_mut().for_each(|x| *x *= factor));
            }
        }
        self
    }

    /// Without the tensors whose names begin like this.
    pub(crate) fn without(mut self, start: &str) -> Self {
        self.tensors
            .retain(|tensor| !tensor.name.starts_with(start));
        self
    }

    /// The file of this, in memory.
    pub(crate) fn file(&self) -> Arc<Gguf> {
        Arc::new(Gguf::from_bytes(self.bytes()).expect("a valid file"))
    }

    /// The file's bytes, tensors in their order.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut header = HeaderWriter::new();
        for (name, key) in &self.keys {
            key.put(&mut header, name);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            let at = header.tensor(&tensor.name, &tensor.dims, tensor.ty) as usize;
            data.resize(at, 0);
            data.extend(&tensor.bytes);
        }
        data.resize(header.data_bytes() as usize, 0);
        let mut bytes = header.finish();
        bytes.append(&mut data);
        bytes
    }
}

/// Whether a tensor has this name, or has it in a layer.
fn is(name: &str, end: &str) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|of| of.split_once('.'));
    layer.map_or(name, |(_, role)| role) == end
}
