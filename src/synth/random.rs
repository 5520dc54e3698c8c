//! Random bits: one multiplication chain a word, seeded by what they are for, so that files do not depend on the number of threads.

/// A stream of random bits.
///
/// **Source**: SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream with this number inside the stream family `family`.
    pub(crate) fn new(family: u64, number: u64) -> Self {
        let mut seeds = Self(family);
        let first = seeds.bits();
        Self(first ^ Self(number).bits())
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        words
            .iter_mut()
            .for_each(|word| *word = self.bits().to_le_bytes());
        if !rest.is_empty() {
            let last = self.bits().to_le_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Uniform with mean 0 and standard deviation `std`: sums of products with it are normal soon enough.
    pub(crate) fn centred(&mut self, std: f32) -> f32 {
        (2.0 * self.unit() - 1.0) * 3f32.sqrt() * std
    }

    /// Uniform below `n`. The bias of a plain remainder is far below what anything here could show.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
}
