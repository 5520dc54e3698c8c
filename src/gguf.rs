//! The GGUF container: opens model files in place, checks them completely, and hands out metadata and tensor bytes.
//!
//! A file is mapped, never copied or converted. Opening reads the header only, in time linear in its bytes; what it returns was checked, so
//! tensors lie inside the file, aligned and apart. It must not know what keys and tensors mean: architectures are read elsewhere.
//!
//! **Source**: the GGUF description of the ggml project, versions 2 and 3.

mod cursor;
mod error;
mod header;
mod keys;
mod mapping;
mod metadata;
mod split;
mod tensor;
mod value;
mod writer;

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use error::{FormatError, GgufError, Item, SplitError};
pub use mapping::Advice;
pub use tensor::{Dims, Tensor};
pub use value::{Array, Elements, StringArray, Value, ValueType};
pub use writer::{Entry, HeaderWriter};

use header::Header;
use mapping::Mapping;

/// An open model file, or all files of a split one. Immutable; share it with `Arc`.
#[derive(Debug)]
pub struct Gguf {
    /// At least one; the first holds the metadata.
    shards: Vec<Shard>,
    /// Of all shards, by name.
    tensors: Vec<Tensor>,
}

/// How a file is held.
#[derive(Clone, Copy, Debug)]
pub enum Held<'a> {
    /// Open, and mapped.
    File(&'a File),
    /// In memory as it is.
    Memory(&'a [u8]),
}

/// One file.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    mapping: Mapping,
    header: Header,
}

impl Gguf {
    /// Opens the file at `path`; for a split model that is its first file, and the others are found beside it.
    ///
    /// **Errors**: the first rule of the format that a file breaks, or what the system says.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        Self::new(split::open(path.as_ref())?)
    }

    /// Reads a file that is already in memory, such as a generated one or one that is part of the program; it is not copied. Split files cannot be read this way.
    ///
    /// **Errors**: as [`open`](Self::open).
    pub fn from_bytes(bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self, GgufError> {
        Self::new(vec![Shard::read(
            Path::new("(in memory)"),
            Mapping::Memory(bytes.into()),
        )?])
    }

    fn new(mut shards: Vec<Shard>) -> Result<Self, GgufError> {
        let mut tensors = Vec::new();
        for (no, shard) in shards.iter_mut().enumerate() {
            tensors.extend(shard.header.tensors.drain(..).map(|tensor| Tensor {
                shard: no,
                ..tensor
            }));
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
            let (path, name) = (shards[pair[1].shard].path.clone(), pair[0].name.to_string());
            return Err(if pair[0].shard == pair[1].shard {
                GgufError::Format {
                    path,
                    reason: FormatError::Duplicate {
                        item: Item::Tensor(name),
                    }
                    .into(),
                }
            } else {
                GgufError::Split {
                    path,
                    reason: SplitError::Duplicate { name },
                }
            });
        }
        Ok(Self { shards, tensors })
    }

    /// The path of the first file, `(in memory)` if that is where it lies.
    pub fn path(&self) -> &Path {
        &self.shards[0].path
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.shards[0].header.version
    }

    /// Path and size in bytes of every file, in shard order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&Path, usize)> {
        self.shards
            .iter()
            .map(|shard| (shard.path.as_path(), shard.mapping.bytes().len()))
    }

    /// How a file is held, for who reads it in another way than by its mapping.
    ///
    /// **Panics** if there are not so many.
    pub fn held(&self, shard: usize) -> Held<'_> {
        match &self.shards[shard].mapping {
            Mapping::File { file, .. } => Held::File(file),
            Mapping::Memory(bytes) => Held::Memory(bytes),
        }
    }

    /// All bytes of a file.
    ///
    /// **Panics** if there are not so many.
    pub fn raw(&self, shard: usize) -> &[u8] {
        self.shards[shard].mapping.bytes()
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors
            .binary_search_by(|tensor| tensor.name.as_ref().cmp(name))
            .ok()
            .map(|index| &self.tensors[index])
    }

    /// The tensor of that name, which must have that shape (trailing ones do not matter).
    ///
    /// **Errors**: [`MissingTensor`](GgufError::MissingTensor), [`TensorShape`](GgufError::TensorShape).
    pub fn need_tensor(&self, name: &str, dims: &[usize]) -> Result<&Tensor, GgufError> {
        let expected = Dims::new(dims);
        match self.tensor(name) {
            Some(tensor) if tensor.dims == expected => Ok(tensor),
            Some(tensor) => Err(GgufError::TensorShape {
                name: name.to_owned(),
                got: tensor.dims,
                expected,
            }),
            None => Err(GgufError::MissingTensor {
                name: name.to_owned(),
                expected,
            }),
        }
    }

    /// A tensor's bytes where they lie in the file: rows one after another, the contiguous dimension first.
    ///
    /// # Panics
    /// If the tensor is of another file.
    pub fn bytes(&self, tensor: &Tensor) -> &[u8] {
        &self.shards[tensor.shard].mapping.bytes()[tensor.offset..][..tensor.bytes]
    }

    /// Tells the system how bytes `range` of a tensor will be read. Changes speed only, so a refusal may be ignored.
    ///
    /// **Errors**: what the system says.
    pub fn advise(&self, tensor: &Tensor, range: Range<usize>, advice: Advice) -> io::Result<()> {
        let end = tensor.bytes.min(range.end);
        let start = range.start.min(end);
        self.shards[tensor.shard]
            .mapping
            .advise(tensor.offset + start..tensor.offset + end, advice)
    }
}

impl Shard {
    fn read(path: &Path, mapping: Mapping) -> Result<Self, GgufError> {
        match Header::read(mapping.bytes()) {
            Ok(header) => Ok(Self {
                path: path.to_owned(),
                mapping,
                header,
            }),
            Err(reason) => Err(GgufError::Format {
                path: path.to_owned(),
                reason: reason.into(),
            }),
        }
    }

    fn get(&self, key: &str) -> Option<(&str, Value<'_>)> {
        self.header.keys.get(self.mapping.bytes(), key)
    }

    fn type_name(&self, key: &str) -> String {
        match self.header.keys.types(self.mapping.bytes(), key) {
            Some((ty, element)) => error::type_name(ty, element),
            None => "missing".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
