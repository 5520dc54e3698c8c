//! Typed metadata values, read where they lie in the file.

use std::iter::FusedIterator;

use super::cursor::{Cursor, Short};

macro_rules! value_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $label:literal, $width:literal;)*) => {
        /// The type of a metadata value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ValueType { $($(#[$doc])* $name = $id,)* }

        impl ValueType {
            pub(super) fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$name),)* _ => None }
            }

            /// The type's name, for example `u32`.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }

            /// Bytes of a scalar, or the fewest bytes of a string or array.
            pub(super) const fn min_bytes(self) -> usize {
                match self { $(Self::$name => $width,)* }
            }
        }
    };
}

value_types! {
    #[doc = "8-bit unsigned."] U8 = 0, "u8", 1;
    #[doc = "8-bit signed."] I8 = 1, "i8", 1;
    #[doc = "16-bit unsigned."] U16 = 2, "u16", 2;
    #[doc = "16-bit signed."] I16 = 3, "i16", 2;
    #[doc = "32-bit unsigned."] U32 = 4, "u32", 4;
    #[doc = "32-bit signed."] I32 = 5, "i32", 4;
    #[doc = "IEEE binary32."] F32 = 6, "f32", 4;
    #[doc = "One byte, 0 or 1."] Bool = 7, "bool", 1;
    #[doc = "Length and bytes."] String = 8, "string", 8;
    #[doc = "Element type, count, elements."] Array = 9, "array", 12;
    #[doc = "64-bit unsigned."] U64 = 10, "u64", 8;
    #[doc = "64-bit signed."] I64 = 11, "i64", 8;
    #[doc = "IEEE binary64."] F64 = 12, "f64", 8;
}

/// A metadata value. Text and arrays borrow the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// `f32` or `f64` (every f32 is an f64 exactly).
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text, UTF-8 unless the writer was careless.
    String(&'a [u8]),
    /// A sequence of values of one type.
    Array(Array<'a>),
}

/// A sequence of values of one type, decoded when iterated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    pub(super) element: ValueType,
    pub(super) len: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The type of every element.
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> Elements<'a> {
        Elements {
            element: self.element,
            left: self.len,
            cursor: Cursor::new(self.bytes),
        }
    }
}

/// The elements of an [`Array`].
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    element: ValueType,
    left: usize,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    /// Ends early, rather than panics, if the file was changed after it was opened.
    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        scalar(&mut self.cursor, self.element).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Elements<'_> {}
impl FusedIterator for Elements<'_> {}

/// An array of strings, such as a vocabulary: walked in place, nothing is allocated per string.
///
/// `iter().collect::<Vec<_>>()` gives access by position for one allocation.
#[derive(Clone, Copy, Debug)]
pub struct StringArray<'a> {
    pub(super) key: &'a str,
    pub(super) array: Array<'a>,
}

impl<'a> StringArray<'a> {
    /// Strings.
    pub fn len(&self) -> usize {
        self.array.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.array.is_empty()
    }

    /// The strings' bytes in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.array.iter().map(|value| match value {
            Value::String(bytes) => bytes,
            _ => &[],
        })
    }

    /// The strings in order.
    ///
    /// **Errors**: [`KeyText`](super::GgufError::KeyText) in place of a string that is not UTF-8.
    pub fn texts(
        &self,
    ) -> impl ExactSizeIterator<Item = Result<&'a str, super::GgufError>> + use<'a> {
        let key = self.key;
        self.iter().enumerate().map(move |(index, bytes)| {
            std::str::from_utf8(bytes).map_err(|_| super::GgufError::KeyText {
                key: key.to_owned(),
                index: Some(index),
            })
        })
    }
}

/// Reads one value that is not an array. A bool other than 0 and 1 reads as true; the scan at opening refuses it.
pub(super) fn scalar<'a>(cursor: &mut Cursor<'a>, ty: ValueType) -> Result<Value<'a>, Short> {
    Ok(match ty {
        ValueType::U8 => Value::Unsigned(cursor.u8()?.into()),
        ValueType::I8 => Value::Signed((cursor.u8()? as i8).into()),
        ValueType::U16 => Value::Unsigned(cursor.u16()?.into()),
        ValueType::I16 => Value::Signed((cursor.u16()? as i16).into()),
        ValueType::U32 => Value::Unsigned(cursor.u32()?.into()),
        ValueType::I32 => Value::Signed((cursor.u32()? as i32).into()),
        ValueType::U64 => Value::Unsigned(cursor.u64()?),
        ValueType::I64 => Value::Signed(cursor.i64()?),
        ValueType::F32 => Value::Float(f32::from_bits(cursor.u32()?).into()),
        ValueType::F64 => Value::Float(f64::from_bits(cursor.u64()?)),
        ValueType::Bool => Value::Bool(cursor.u8()? != 0),
        ValueType::String => Value::String(cursor.string()?),
        // The scan at opening lets no array of arrays through, and whole arrays are never read by this function.
        ValueType::Array => Value::Array(Array {
            element: ValueType::U8,
            len: 0,
            bytes: &[],
        }),
    })
}
