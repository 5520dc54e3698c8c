//! The random numbers of sampling: a function of (seed, position), without state.
//!
//! So a sequence draws the same numbers whatever else is computed, and a rejected draft has used none up.

/// A number in `[0, 1)` with 53 random bits.
///
/// **Source** The finaliser of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), once over
/// the seed and once more over the position, so that neighbouring seeds and positions have nothing to do with each other.
pub(super) fn uniform(seed: u64, position: u64) -> f64 {
    let stream = mix(seed.wrapping_add(GOLDEN));
    let bits = mix(stream.wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_as_published() {
        // The first outputs of SplitMix64 with seed 1234567, as other implementations print them.
        let published = [
            6457827717110365317u64,
            3203168211198807973,
            9817491932198370423,
        ];
        let ours = [1, 2, 3].map(|n: u64| mix(1234567u64.wrapping_add(n.wrapping_mul(GOLDEN))));
        assert_eq!(ours, published);
    }

    /// Moments of many draws along one axis, and their correlation with the next draw.
    fn check(name: &str, draw: impl Fn(u64) -> f64) {
        let n = 100_000;
        let draws: Vec<f64> = (0..n).map(draw).collect();
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)), "{name}");
        let mean = |f: &dyn Fn(usize) -> f64| (0..draws.len() - 1).map(f).sum::<f64>() / n as f64;
        let of = |x: f64, expected: f64| assert!((x - expected).abs() < 0.005, "{name}: {x}");
        of(mean(&|i| draws[i]), 1.0 / 2.0);
        of(mean(&|i| draws[i].powi(2)), 1.0 / 3.0);
        of(mean(&|i| draws[i] * draws[i + 1]), 1.0 / 4.0);
    }

    #[test]
    fn draws_are_uniform_and_unrelated() {
        check("positions", |i| uniform(0, i));
        check("seeds", |i| uniform(i, 7));
        check("far seeds", |i| uniform(u64::MAX - i, u64::MAX));
        check("both", |i| uniform(i, i));
    }
}
