//! Reads the header of one file: fixed part, metadata table, tensor table. Every number is checked before it is used.

use super::cursor::Cursor;
use super::error::{FormatError, Item, type_name};
use super::keys::{KeyTable, truncated};
use super::tensor::{Dims, Tensor};
use super::value::{Value, ValueType};
use crate::quant::BlockType;

/// Alignment of tensor data where the file does not say.
pub(super) const DEFAULT_ALIGNMENT: usize = 32;
/// Longest tensor name. **Source**: `GGML_MAX_NAME`, less the terminator.
const NAME_BYTES: usize = 63;
/// Fewest bytes of a key with its value: empty name, type, one byte.
const KEY_MIN_BYTES: usize = 8 + 4 + 1;
/// Fewest bytes of a tensor's entry: empty name, rank, one dimension, type, offset.
const TENSOR_MIN_BYTES: usize = 8 + 4 + 8 + 4 + 8;

/// The header of one file.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) keys: KeyTable,
    /// In file order; `shard` is left 0 and `offset` counts from the start of the file.
    pub(super) tensors: Vec<Tensor>,
}

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, FormatError> {
        let cursor = &mut Cursor::new(bytes);
        let version = read_version(cursor)?;
        let tensors = cursor
            .i64()
            .map_err(|short| truncated(short, Item::Header))?;
        let keys = cursor
            .i64()
            .map_err(|short| truncated(short, Item::Header))?;
        let keys = checked_count("metadata keys", keys, cursor.left(), KEY_MIN_BYTES)?;
        let tensors = checked_count("tensors", tensors, cursor.left(), TENSOR_MIN_BYTES)?;

        let keys = KeyTable::read(cursor, bytes, keys)?;
        let alignment = read_alignment(&keys, bytes)?;
        let infos = (0..tensors)
            .map(|index| TensorInfo::read(cursor, index))
            .collect::<Result<Vec<_>, _>>()?;

        // Data starts at the next multiple of the alignment; a file without tensors may end before it.
        let data_start = cursor
            .offset()
            .checked_next_multiple_of(alignment)
            .unwrap_or(usize::MAX);
        let data_bytes = bytes.len().saturating_sub(data_start);
        let tensors = infos
            .into_iter()
            .map(|info| info.place(alignment, data_start, data_bytes))
            .collect::<Result<Vec<_>, _>>()?;
        check_overlap(&tensors)?;
        Ok(Self {
            version,
            keys,
            tensors,
        })
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, FormatError> {
    let start = *cursor;
    let magic = cursor.take(4).ok().filter(|magic| *magic == b"GGUF");
    if magic.is_none() {
        let mut start = start;
        let got = start.take(start.left().min(4) as u64).unwrap_or_default();
        return Err(FormatError::Magic {
            got: got.to_owned(),
        });
    }
    let version = cursor
        .u32()
        .map_err(|short| truncated(short, Item::Header))?;
    match version {
        2 | 3 => Ok(version),
        // Versions are small, so a version whose low half is empty was written with the other byte order.
        swapped if swapped & 0xffff == 0 && swapped != 0 => Err(FormatError::BigEndian),
        got => Err(FormatError::Version { got }),
    }
}

fn checked_count(
    of: &'static str,
    got: i64,
    left: usize,
    min_bytes: usize,
) -> Result<usize, FormatError> {
    let allowed = left / min_bytes;
    usize::try_from(got)
        .ok()
        .filter(|&count| count <= allowed)
        .ok_or(FormatError::Count { of, got, allowed })
}

fn read_alignment(keys: &KeyTable, bytes: &[u8]) -> Result<usize, FormatError> {
    let key = "general.alignment";
    let Some(((_, value), (ty, element))) = keys.get(bytes, key).zip(keys.types(bytes, key)) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match value {
        Value::Unsigned(n) if ty == ValueType::U32 && n.is_power_of_two() => Ok(n as usize),
        Value::Unsigned(n) if ty == ValueType::U32 => {
            Err(FormatError::Alignment { got: n.to_string() })
        }
        _ => Err(FormatError::Alignment {
            got: type_name(ty, element),
        }),
    }
}

/// A tensor's entry as written, its shape and type checked, its place not yet.
struct TensorInfo {
    name: String,
    dims: Dims,
    ty: BlockType,
    bytes: usize,
    offset: u64,
}

impl TensorInfo {
    fn read(cursor: &mut Cursor<'_>, index: usize) -> Result<Self, FormatError> {
        let name = cursor
            .string()
            .map_err(|short| truncated(short, Item::TensorAt(index)))?;
        if name.len() > NAME_BYTES {
            return Err(FormatError::NameLength {
                index,
                got: name.len(),
                allowed: NAME_BYTES,
            });
        }
        let name = std::str::from_utf8(name)
            .ok()
            .filter(|name| !name.is_empty());
        let name = name
            .ok_or(FormatError::Name {
                item: Item::TensorAt(index),
            })?
            .to_owned();
        let short = |short| truncated(short, Item::Tensor(name.clone()));

        let rank = cursor.u32().map_err(short)?;
        if !(1..=Dims::MAX as u32).contains(&rank) {
            return Err(FormatError::Rank { name, got: rank });
        }
        let mut dims = [1; Dims::MAX];
        for (axis, n) in dims.iter_mut().enumerate().take(rank as usize) {
            let got = cursor.i64().map_err(short)?;
            let positive = usize::try_from(got).ok().filter(|&n| n > 0);
            *n = positive.ok_or_else(|| FormatError::Dimension {
                name: name.clone(),
                axis,
                got,
            })?;
        }
        let id = cursor.u32().map_err(short)?;
        let offset = cursor.u64().map_err(short)?;

        let dims = Dims::new(&dims);
        let ty = block_type(&name, id)?;
        let bytes = checked_bytes(&name, dims, ty)?;
        Ok(Self {
            name,
            dims,
            ty,
            bytes,
            offset,
        })
    }

    fn place(
        self,
        alignment: usize,
        data_start: usize,
        data_bytes: usize,
    ) -> Result<Tensor, FormatError> {
        let Self {
            name,
            dims,
            ty,
            bytes,
            offset,
        } = self;
        if !offset.is_multiple_of(alignment as u64) {
            return Err(FormatError::Misaligned {
                name,
                got: offset,
                alignment,
            });
        }
        let fits = usize::try_from(offset).ok().filter(|start| {
            start
                .checked_add(bytes)
                .is_some_and(|end| end <= data_bytes)
        });
        match fits {
            Some(start) => Ok(Tensor {
                name: name.into(),
                dims,
                ty,
                shard: 0,
                offset: data_start + start,
                bytes,
            }),
            None => Err(FormatError::OutOfFile {
                name,
                offset,
                bytes,
                allowed: data_bytes,
            }),
        }
    }
}

fn block_type(name: &str, id: u32) -> Result<BlockType, FormatError> {
    let removed = match id {
        4 => "Q4_2",
        5 => "Q4_3",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        _ => {
            return BlockType::from_id(id).ok_or_else(|| FormatError::UnknownType {
                name: name.to_owned(),
                id,
            });
        }
    };
    Err(FormatError::RemovedType {
        name: name.to_owned(),
        label: removed,
        id,
    })
}

/// The size of a tensor. The number of values must fit as well, so that nobody downstream has to check products again.
fn checked_bytes(name: &str, dims: Dims, ty: BlockType) -> Result<usize, FormatError> {
    let (got, expected) = (dims.row(), ty.block_values());
    if !got.is_multiple_of(expected) {
        return Err(FormatError::Row {
            name: name.to_owned(),
            ty: ty.label(),
            got,
            expected,
        });
    }
    let overflow = || FormatError::Size {
        name: name.to_owned(),
        dims,
    };
    let rows = dims.checked_rows().ok_or_else(overflow)?;
    rows.checked_mul(got)
        .filter(|&values| isize::try_from(values).is_ok())
        .ok_or_else(overflow)?;
    let bytes = ty.row_bytes(got).and_then(|row| row.checked_mul(rows));
    bytes
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(overflow)
}

fn check_overlap(tensors: &[Tensor]) -> Result<(), FormatError> {
    let mut by_offset: Vec<&Tensor> = tensors.iter().collect();
    by_offset.sort_unstable_by_key(|tensor| tensor.offset);
    match by_offset
        .windows(2)
        .find(|pair| pair[0].offset + pair[0].bytes > pair[1].offset)
    {
        Some(pair) => Err(FormatError::Overlap {
            name: pair[1].name.to_string(),
            other: pair[0].name.to_string(),
        }),
        None => Ok(()),
    }
}
