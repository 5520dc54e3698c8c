//! What can be wrong with a GGUF file, in words for the person who tries to open it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::tensor::Dims;
use super::value::ValueType;

/// Why a file cannot be opened, or lacks what was asked of it. Every message names the file, key or tensor.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The operating system refused.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// A folder, pipe or device.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// What was named instead.
        path: PathBuf,
    },
    /// The bytes of one file break the format.
    #[error("{}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The rule it breaks.
        reason: Box<FormatError>,
    },
    /// The files of a split model do not belong together.
    #[error("{}: {reason}", path.display())]
    Split {
        /// The file at which it shows.
        path: PathBuf,
        /// The rule it breaks.
        reason: SplitError,
    },
    /// A valid file of another kind.
    #[error("{}: this is {kind}, not a language model ({evidence})", path.display())]
    NotAModel {
        /// The file.
        path: PathBuf,
        /// What it is, for people.
        kind: &'static str,
        /// The key and value that tell.
        evidence: String,
    },
    /// A key that every file of this kind has is missing.
    #[error("metadata key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key holds a value of another type.
    #[error("metadata key `{key}` is {got}, expected {expected}")]
    KeyType {
        /// The key.
        key: String,
        /// The type it has.
        got: String,
        /// The types it may have.
        expected: &'static str,
    },
    /// A key's number does not fit the type it is needed in.
    #[error("metadata key `{key}` is {got}, expected {expected}")]
    KeyRange {
        /// The key.
        key: String,
        /// The number it holds.
        got: String,
        /// The numbers it may hold.
        expected: &'static str,
    },
    /// A per-layer array with fewer entries than layers.
    #[error("metadata key `{key}` has {got} entries, expected at least {expected} (one a layer)")]
    KeyLength {
        /// The key.
        key: String,
        /// Entries it has.
        got: usize,
        /// Layers.
        expected: usize,
    },
    /// A key's text is not UTF-8.
    #[error("metadata key `{key}`{} is not valid UTF-8", Entry(*index))]
    KeyText {
        /// The key.
        key: String,
        /// Which entry, if the key holds an array.
        index: Option<usize>,
    },
    /// A tensor that the model needs is missing.
    #[error("tensor `{name}` is missing, expected shape {expected}")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// The shape it should have.
        expected: Dims,
    },
    /// A tensor has another shape than the metadata promise.
    #[error("tensor `{name}` has shape {got}, expected {expected}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// The shape it has.
        got: Dims,
        /// The shape it should have.
        expected: Dims,
    },
}

/// A rule of the container format that a file's bytes break.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The first four bytes are something else.
    #[error("not a GGUF file: it starts with \"{}\", expected \"GGUF\"", got.escape_ascii())]
    Magic {
        /// The first bytes, at most four.
        got: Vec<u8>,
    },
    /// The version is byte-swapped.
    #[error("big-endian GGUF files are not supported, convert the file to little-endian")]
    BigEndian,
    /// Another version.
    #[error("GGUF version {got} is not supported, expected 2 or 3")]
    Version {
        /// The version.
        got: u32,
    },
    /// The file ends inside an item.
    #[error("{item} needs {need} bytes at offset {offset}, but only {left} are left in the file")]
    Truncated {
        /// What is cut off.
        item: Item,
        /// Where it starts.
        offset: usize,
        /// Bytes it needs.
        need: u64,
        /// Bytes left.
        left: usize,
    },
    /// More items are announced than the file could hold.
    #[error("the header announces {got} {of}, but the bytes left hold at most {allowed}")]
    Count {
        /// What is counted.
        of: &'static str,
        /// The count.
        got: i64,
        /// The most that could fit.
        allowed: usize,
    },
    /// A key or tensor without a name, or with one that is not UTF-8.
    #[error("the name of {item} is empty or not valid UTF-8")]
    Name {
        /// Which.
        item: Item,
    },
    /// A name that cannot be held.
    #[error("the name of tensor {index} has {got} bytes, expected at most {allowed}")]
    NameLength {
        /// Position among the tensors.
        index: usize,
        /// Its length.
        got: usize,
        /// The longest allowed.
        allowed: usize,
    },
    /// The same name twice.
    #[error("{item} appears twice")]
    Duplicate {
        /// Which.
        item: Item,
    },
    /// An unknown value type.
    #[error("metadata key `{key}` has value type {got}, expected 0 to 12")]
    ValueType {
        /// The key.
        key: String,
        /// The type's id.
        got: u32,
    },
    /// An array of arrays.
    #[error("metadata key `{key}` is an array of arrays, which the format does not allow")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A truth value other than 0 and 1.
    #[error("metadata key `{key}` is a bool with value {got}, expected 0 or 1")]
    Bool {
        /// The key.
        key: String,
        /// The byte.
        got: u8,
    },
    /// An alignment that is no alignment.
    #[error("metadata key `general.alignment` is {got}, expected a power of two of type u32")]
    Alignment {
        /// The value, or its type.
        got: String,
    },
    /// No dimensions, or too many.
    #[error("tensor `{name}` has {got} dimensions, expected 1 to 4")]
    Rank {
        /// The tensor.
        name: String,
        /// Dimensions.
        got: u32,
    },
    /// A dimension of zero or less.
    #[error("tensor `{name}`: dimension {axis} is {got}, expected at least 1")]
    Dimension {
        /// The tensor.
        name: String,
        /// Which dimension.
        axis: usize,
        /// Its length.
        got: i64,
    },
    /// Dimensions whose product overflows.
    #[error("tensor `{name}`: the size of {dims} overflows")]
    Size {
        /// The tensor.
        name: String,
        /// Its shape.
        dims: Dims,
    },
    /// A row that ends inside a block.
    #[error(
        "tensor `{name}`: its rows have {got} values, expected a multiple of {expected}, the block of {ty}"
    )]
    Row {
        /// The tensor.
        name: String,
        /// The block type's name.
        ty: &'static str,
        /// Values in a row.
        got: usize,
        /// Values in a block.
        expected: usize,
    },
    /// A type that was removed from the format.
    #[error(
        "tensor `{name}` has type {label} (id {id}), which was removed from the format; quantise the model again"
    )]
    RemovedType {
        /// The tensor.
        name: String,
        /// The removed type.
        label: &'static str,
        /// Its id.
        id: u32,
    },
    /// A type that nobody knows.
    #[error("tensor `{name}` has the unknown type id {id}")]
    UnknownType {
        /// The tensor.
        name: String,
        /// The id.
        id: u32,
    },
    /// Data that does not start at a multiple of the alignment.
    #[error("tensor `{name}` starts at data offset {got}, expected a multiple of {alignment}")]
    Misaligned {
        /// The tensor.
        name: String,
        /// Its offset from the start of the data.
        got: u64,
        /// The file's alignment.
        alignment: usize,
    },
    /// Data past the end of the file.
    #[error(
        "tensor `{name}` has {bytes} bytes at data offset {offset}, but the file holds only {allowed} bytes of data"
    )]
    OutOfFile {
        /// The tensor.
        name: String,
        /// Its offset from the start of the data.
        offset: u64,
        /// Its size.
        bytes: usize,
        /// Data bytes in the file.
        allowed: usize,
    },
    /// Two tensors share bytes.
    #[error("tensor `{name}` overlaps tensor `{other}`")]
    Overlap {
        /// The one that starts later.
        name: String,
        /// The one that starts first.
        other: String,
    },
}

/// How the files of a split model fail to belong together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// A later shard was opened.
    #[error("this is shard {no} of {count}: open shard 1 instead ({first})")]
    NotFirst {
        /// The shard, counted from 1.
        no: u64,
        /// Shards.
        count: u64,
        /// The file to open.
        first: String,
    },
    /// The file name does not say where the siblings are.
    #[error("this is one of {count} shards, so its name must end in `{expected}`")]
    Name {
        /// Shards.
        count: u64,
        /// How it should end.
        expected: String,
    },
    /// A sibling has another place than its name says.
    #[error("metadata key `{key}` is {got}, expected {expected}")]
    Key {
        /// `split.no` or `split.count`.
        key: &'static str,
        /// The value, or "missing".
        got: String,
        /// The value that fits the other shards.
        expected: u64,
    },
    /// Shards are complete, tensors are not.
    #[error("the shards hold {got} tensors, metadata key `split.tensors.count` says {expected}")]
    Tensors {
        /// Tensors found.
        got: usize,
        /// Tensors announced.
        expected: u64,
    },
    /// A tensor in two shards.
    #[error("tensor `{name}` is also in another shard")]
    Duplicate {
        /// The tensor.
        name: String,
    },
}

/// A part of a file that an error speaks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The fixed header.
    Header,
    /// A key whose name is not known yet: its position.
    KeyAt(usize),
    /// A key.
    Key(String),
    /// A tensor whose name is not known yet: its position.
    TensorAt(usize),
    /// A tensor.
    Tensor(String),
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("the header"),
            Self::KeyAt(index) => write!(f, "metadata key {index}"),
            Self::Key(key) => write!(f, "metadata key `{}`", key.escape_debug()),
            Self::TensorAt(index) => write!(f, "tensor {index}"),
            Self::Tensor(name) => write!(f, "tensor `{}`", name.escape_debug()),
        }
    }
}

/// Prints which entry of an array is meant, if one is.
struct Entry(Option<usize>);

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |index| write!(f, " (entry {index})"))
    }
}

/// Prints the type of a value as an error names it.
pub(super) fn type_name(ty: ValueType, element: Option<ValueType>) -> String {
    element.map_or_else(
        || ty.label().to_owned(),
        |element| format!("array of {}", element.label()),
    )
}
