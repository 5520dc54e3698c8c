//! What a file says about its tensors: names, shapes, types and where the bytes lie.

use std::fmt;

use crate::quant::BlockType;

/// A tensor's shape in file order: the contiguous dimension first. `{in, out}` for a matrix, `{in, out, experts}` for a stack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dims([usize; Dims::MAX]);

impl Dims {
    /// Dimensions a tensor may have.
    pub const MAX: usize = 4;

    /// A shape. Dimensions that are not given are 1, so `{n}` equals `{n, 1}`.
    ///
    /// # Panics
    /// With more than [`MAX`](Self::MAX) dimensions.
    pub fn new(dims: &[usize]) -> Self {
        let mut padded = [1; Self::MAX];
        padded[..dims.len()].copy_from_slice(dims);
        Self(padded)
    }

    /// All four dimensions.
    pub fn padded(&self) -> [usize; Self::MAX] {
        self.0
    }

    /// The dimensions without trailing ones, at least one.
    pub fn trimmed(&self) -> &[usize] {
        let rank = self
            .0
            .iter()
            .rposition(|&n| n != 1)
            .map_or(1, |last| last + 1);
        &self.0[..rank]
    }

    /// Values in a row.
    pub fn row(&self) -> usize {
        self.0[0]
    }

    /// Rows of all matrices together, unless that overflows.
    pub(super) fn checked_rows(&self) -> Option<usize> {
        self.0[1..]
            .iter()
            .try_fold(1usize, |rows, &n| rows.checked_mul(n))
    }
}

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (axis, n) in self.trimmed().iter().enumerate() {
            write!(f, "{}{n}", if axis == 0 { "" } else { ", " })?;
        }
        f.write_str("}")
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A tensor of an open file. Its numbers were checked against the file when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// Name, for example `blk.0.attn_q.weight`.
    pub name: Box<str>,
    /// Shape.
    pub dims: Dims,
    /// How a row is cut into blocks.
    pub ty: BlockType,
    /// Which file of a split model holds it, 0 for the first.
    pub shard: usize,
    /// Where it starts in that file. **Units**: bytes.
    pub offset: usize,
    /// Its size. **Units**: bytes.
    pub bytes: usize,
}

impl Tensor {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.dims.row() / self.ty.block_values() * self.ty.block_bytes()
    }

    /// Bytes of one `{in, out}` matrix, so of one expert in a stack.
    pub fn matrix_bytes(&self) -> usize {
        self.row_bytes() * self.dims.padded()[1]
    }

    /// Values it holds. Saturates for types of more than 8 values a byte (none is that small in practice).
    pub fn values(&self) -> usize {
        (self.bytes / self.ty.block_bytes()).saturating_mul(self.ty.block_values())
    }
}
