//! Code books of the IQ types in the two forms that lookups want: whole entries for gathers, and entries spelled in letters of
//! a small alphabet, short enough for byte permutes.

use crate::quant::grids;

/// A code book of `TABLES * 256` entries. An entry has one part of 4 magnitudes (IQ3) or two (IQ2).
pub(in super::super) struct Book<const TABLES: usize> {
    /// `[parts][entries]`: 4 magnitudes, one a byte.
    words: [&'static [u32]; 2],
    /// The magnitudes that occur.
    alphabet: [u8; 16],
    /// Letters a byte of the tables holds: 4 of 2 bits, or 2 of 4 bits.
    fields: u32,
    /// `[part or half a part][table][entry]`: indices into the alphabet, element 0 in the lowest bits.
    letters: [[[u8; 256]; TABLES]; 2],
}

impl<const TABLES: usize> Book<TABLES> {
    /// The words of a part.
    #[inline(always)]
    pub(in super::super) fn words(&self, part: usize) -> &[u32] {
        self.words[part]
    }

    /// The magnitudes that occur.
    #[inline(always)]
    pub(in super::super) fn alphabet(&self) -> &[u8; 16] {
        &self.alphabet
    }

    /// Letters a byte holds.
    #[inline(always)]
    pub(in super::super) fn fields(&self) -> u32 {
        self.fields
    }

    /// The letters of a part: one set of tables if a byte holds all four, else two.
    #[inline(always)]
    pub(in super::super) fn letters(&self, part: usize) -> &[[[u8; 256]; TABLES]] {
        if self.fields == 4 {
            &self.letters[part..=part]
        } else {
            &self.letters
        }
    }

    /// Spells the entries of a book. `words[p]` are the entries' parts.
    const fn new(words: [&'static [u32]; 2], alphabet: [u8; 16], fields: u32) -> Self {
        let mut letters = [[[0; 256]; TABLES]; 2];
        let mut entry = 0;
        while entry < 256 * TABLES {
            let mut half = 0;
            while half < 2 {
                // a part with 2-bit letters is one byte; with 4-bit letters its halves are
                let (word, first) = if fields == 4 {
                    (words[half][entry], 0)
                } else {
                    (words[0][entry], 2 * half as u32)
                };
                let mut field = 0;
                while field < fields {
                    let magnitude = (word >> (8 * (first + field))) as u8;
                    letters[half][entry / 256][entry % 256] |=
                        letter(&alphabet, magnitude) << (8 / fields * field);
                    field += 1;
                }
                half += 1;
            }
            entry += 1;
        }
        Self {
            words,
            alphabet,
            fields,
            letters,
        }
    }
}

/// Where a magnitude stands in its alphabet.
const fn letter(alphabet: &[u8; 16], magnitude: u8) -> u8 {
    let mut i = 0;
    while alphabet[i as usize] != magnitude {
        i += 1;
    }
    i
}

/// Low or high halves of entries of 8.
const fn halves<const N: usize>(grid: &[u64; N], shift: u32) -> [u32; N] {
    let mut words = [0; N];
    let mut i = 0;
    while i < N {
        words[i] = (grid[i] >> shift) as u32;
        i += 1;
    }
    words
}

const THREE: [u8; 16] = [8, 25, 43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const EIGHT: [u8; 16] = [4, 12, 20, 28, 36, 44, 52, 62, 0, 0, 0, 0, 0, 0, 0, 0];
const ODD: [u8; 16] = [1, 3, 5, 7, 9, 11, 13, 15, 0, 0, 0, 0, 0, 0, 0, 0];

macro_rules! books_of_eight {
    ($($name:ident: $tables:literal;)*) => {
        $(#[doc = concat!("The book of ", stringify!($name), ".")]
        pub(super) static $name: Book<$tables> = {
            static LOW: [u32; 256 * $tables] = halves(&grids::$name, 0);
            static HIGH: [u32; 256 * $tables] = halves(&grids::$name, 32);
            Book::new([&LOW, &HIGH], THREE, 4)
        };)*
    };
}

books_of_eight! {
    IQ2_XXS: 1;
    IQ2_XS: 2;
    IQ2_S: 4;
}

/// The book of IQ3_XXS.
pub(super) static IQ3_XXS: Book<1> = Book::new([&grids::IQ3_XXS, &[]], EIGHT, 2);
/// The book of IQ3_S.
pub(super) static IQ3_S: Book<2> = Book::new([&grids::IQ3_S, &[]], ODD, 2);
