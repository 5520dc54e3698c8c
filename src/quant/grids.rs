//! The code books of the IQ types: which small vectors of magnitudes a grid index stands for.
//!
//! No formula generates them. `grids.bin` holds them packed (layout and licence in `grids.md`, made by `scripts/quant-grids.py`); the tables
//! here are expanded when the crate is compiled: one byte an element, element 0 in the lowest byte.

/// IQ2_XXS: 256 vectors of 8 magnitudes.
pub static IQ2_XXS: [u64; 256] = eight(0, [8, 25, 43, 0]);
/// IQ2_XS: 512 vectors of 8 magnitudes.
pub static IQ2_XS: [u64; 512] = eight(512, [8, 25, 43, 0]);
/// IQ2_S: 1024 vectors of 8 magnitudes.
pub static IQ2_S: [u64; 1024] = eight(1536, [8, 25, 43, 0]);
/// IQ3_XXS: 256 vectors of 4 magnitudes.
pub static IQ3_XXS: [u32; 256] = four(3584, [4, 12, 20, 28, 36, 44, 52, 62]);
/// IQ3_S: 512 vectors of 4 magnitudes.
pub static IQ3_S: [u32; 512] = four(4096, [1, 3, 5, 7, 9, 11, 13, 15]);
/// IQ1_S and IQ1_M: 2048 vectors of 8 values -1, 0 or 1 (two's complement).
pub static IQ1: [u64; 2048] = eight(5120, [0xff, 0, 1, 0]);

/// Sign bits of 8 elements from a 7-bit sign code: the eighth makes the number of minus signs even.
pub const fn sign_bits(code: u8) -> u8 {
    code & 127 | ((code & 127).count_ones() as u8 & 1) << 7
}

/// Expands entries of 8 fields of 2 bits that start at byte `at`.
const fn eight<const N: usize>(at: usize, alphabet: [u8; 4]) -> [u64; N] {
    let mut grid = [0; N];
    let mut entry = 0;
    while entry < N {
        let packed = packed(at + 2 * entry);
        let mut element = 0;
        while element < 8 {
            grid[entry] |=
                (alphabet[(packed >> (2 * element)) as usize & 3] as u64) << (8 * element);
            element += 1;
        }
        entry += 1;
    }
    grid
}

/// Expands entries of 4 fields of 4 bits that start at byte `at`.
const fn four<const N: usize>(at: usize, alphabet: [u8; 8]) -> [u32; N] {
    let mut grid = [0; N];
    let mut entry = 0;
    while entry < N {
        let packed = packed(at + 2 * entry);
        let mut element = 0;
        while element < 4 {
            grid[entry] |=
                (alphabet[(packed >> (4 * element)) as usize & 15] as u32) << (8 * element);
            element += 1;
        }
        entry += 1;
    }
    grid
}

const fn packed(at: usize) -> u16 {
    const PACKED: &[u8; 9216] = include_bytes!("grids.bin");
    u16::from_le_bytes([PACKED[at], PACKED[at + 1]])
}
