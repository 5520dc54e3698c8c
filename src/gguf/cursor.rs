//! Reading little-endian items from bytes, never past the end. Knows no GGUF structure and allocates nothing.

/// More bytes were asked for than are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short {
    /// Byte offset at which the item should have started.
    pub(super) offset: usize,
    /// Bytes the item needs.
    pub(super) need: u64,
    /// Bytes left from there to the end.
    pub(super) left: usize,
}

/// A position in a file's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

macro_rules! number {
    ($($name:ident -> $ty:ty;)*) => {
        $(pub(super) fn $name(&mut self) -> Result<$ty, Short> {
            Ok(<$ty>::from_le_bytes(*self.array()?))
        })*
    };
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn offset(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `need` bytes. The length comes from the file, so it is compared before anything is done with it.
    pub(super) fn take(&mut self, need: u64) -> Result<&'a [u8], Short> {
        let left = &self.bytes[self.at..];
        match usize::try_from(need).ok().and_then(|n| left.get(..n)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(Short {
                offset: self.at,
                need,
                left: left.len(),
            }),
        }
    }

    /// A string: a 64-bit length, then that many bytes.
    pub(super) fn string(&mut self) -> Result<&'a [u8], Short> {
        let length = self.u64()?;
        self.take(length)
    }

    number! { u8 -> u8; u16 -> u16; u32 -> u32; i64 -> i64; u64 -> u64; }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], Short> {
        let short = Short {
            offset: self.at,
            need: N as u64,
            left: self.left(),
        };
        let array = self.bytes[self.at..].first_chunk().ok_or(short)?;
        self.at += N;
        Ok(array)
    }
}
