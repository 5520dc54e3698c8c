//! Numbers for tests: they look random and are the same every time.

/// `len` numbers between -2 and 2.
pub(crate) fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 22) as f32 - 2.0
    };
    (0..len).map(|_| next()).collect()
}

/// The bits, so that a comparison tells -0 from 0 and equal NaNs are equal.
pub(crate) fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// `total` rows in chunks of `size`: first row and rows of each.
pub(crate) fn chunks(total: usize, size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..total)
        .step_by(size)
        .map(move |first| (first, size.min(total - first)))
}
