//! `exp` and what is made of it.
//!
//! | function | form | greatest relative error against f64 over `[-87, 88]` |
//! | --- | --- | --- |
//! | `exp` | `x = n ln 2 + r`, polynomial of degree 6 in `r`, times `2^n` | 7.5e-8 |
//! | `sigmoid` | `1 / (1 + exp(-x))` | 1.6e-7 |
//! | `silu` | `x / (1 + exp(-x))` | 1.7e-7 |
//! | `softplus` | `max(x, 0) + log1p(exp(-abs x))`, `log1p` by degree 3 in the square of `y / (2 + y)` | 2.7e-7 |
//!
//! `exp` gives 0 below -87 and `exp(88)` above 88, so that everything made of it stays finite; a NaN stays a NaN. The same chain
//! of fused multiply-adds on another device gives the same bits.

use super::lanes::Real;

const LOWEST: f32 = -87.0;
const HIGHEST: f32 = 88.0;
/// Added to a number below 2^22, it leaves the nearest integer in the lowest bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
const LN2_HIGH: f32 = std::f32::consts::LN_2;
const LN2_LOW: f32 = -1.904_654_2e-9; // ln 2 - LN2_HIGH
/// `(exp(r) - 1 - r) / r^2`, least greatest relative error of the whole over `abs r <= ln 2 / 2`, highest degree first.
const EXP: [f32; 5] = [
    1.381_447e-3,
    8.368_78e-3,
    4.166_839_3e-2,
    1.666_652e-1,
    4.999_999_4e-1,
];
/// `(atanh(z) / z - 1) / w`, `w = z^2 <= 1/9`, likewise.
const ATANH: [f32; 4] = [
    1.401_255_1e-1,
    1.399_951_1e-1,
    2.001_085_3e-1,
    3.333_320_6e-1,
];

/// e to the power of `x`, with a relative error of at most 7.5e-8 between -87 and 88; 0 below, `exp(88)` above. A NaN stays one.
pub fn exp(x: f32) -> f32 {
    exp_of(x)
}

/// `1 / (1 + exp(-x))`, with a relative error of at most 1.6e-7.
pub fn sigmoid(x: f32) -> f32 {
    sigmoid_of(x)
}

/// `x / (1 + exp(-x))`, with a relative error of at most 1.7e-7.
pub fn silu(x: f32) -> f32 {
    silu_of(x)
}

/// `ln(1 + exp(x))`, with a relative error of at most 2.7e-7.
pub fn softplus(x: f32) -> f32 {
    softplus_of(x)
}

#[inline(always)]
fn horner<R: Real>(coefficients: &[f32], x: R) -> R {
    let highest = R::splat(coefficients[0]);
    coefficients[1..]
        .iter()
        .fold(highest, |sum, next| sum.mul_add(x, R::splat(*next)))
}

/// [`exp`] of every lane.
#[inline(always)]
pub(crate) fn exp_of<R: Real>(x: R) -> R {
    // the constant comes first, so that a NaN stays
    let bounded = R::splat(HIGHEST).less(R::splat(LOWEST).greater(x));
    let shifted = bounded.mul_add(R::splat(std::f32::consts::LOG2_E), R::splat(ROUND));
    let n = shifted - R::splat(ROUND);
    let r = n.mul_add(R::splat(-LN2_HIGH), bounded);
    let r = n.mul_add(R::splat(-LN2_LOW), r);
    let one = R::splat(1.0);
    let p = horner(&EXP, r).mul_add(r, one).mul_add(r, one);
    (p * shifted.pow2()).zero_below(x, LOWEST)
}

/// [`sigmoid`] of every lane.
#[inline(always)]
pub(crate) fn sigmoid_of<R: Real>(x: R) -> R {
    let one = R::splat(1.0);
    one / (one + exp_of(R::splat(0.0) - x))
}

/// [`silu`] of every lane.
#[inline(always)]
pub(crate) fn silu_of<R: Real>(x: R) -> R {
    x / (R::splat(1.0) + exp_of(R::splat(0.0) - x))
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))` of every lane: x times the sigmoid of twice what the tanh is of.
#[inline(always)]
pub(crate) fn gelu_of<R: Real>(x: R) -> R {
    let cubic = (x * x).mul_add(R::splat(0.044_715), R::splat(1.0));
    let of = R::splat(1.595_769) * (x * cubic);
    x * sigmoid_of(of)
}

/// [`softplus`] of every lane.
#[inline(always)]
pub(crate) fn softplus_of<R: Real>(x: R) -> R {
    let zero = R::splat(0.0);
    let y = exp_of((zero - x).less(x));
    let z = y / (R::splat(2.0) + y);
    let w = z * z;
    let log1p = (z + z) * horner(&ATANH, w).mul_add(w, R::splat(1.0));
    zero.greater(x) + log1p
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Greatest relative error over 4 million numbers up to 88, either sign.
    fn check(name: &str, ours: fn(f32) -> f32, exact: fn(f64) -> f64, bound: f64) {
        let mut worst = (0.0, 0.0);
        for bits in (1e-12f32.to_bits()..=88f32.to_bits()).step_by(97) {
            for x in [f32::from_bits(bits), -f32::from_bits(bits).min(86.9)] {
                let want = exact(f64::from(x));
                let error = ((f64::from(ours(x)) - want) / want).abs();
                if error > worst.0 {
                    worst = (error, x);
                }
            }
        }
        assert!(
            worst.0 <= bound,
            "{name}: relative error {:e} at {}",
            worst.0,
            worst.1
        );
    }

    #[test]
    fn errors_against_f64_are_as_stated() {
        check("exp", exp, f64::exp, 7.5e-8);
        check("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 1.6e-7);
        check("silu", silu, |x| x / (1.0 + (-x).exp()), 1.7e-7);
        check(
            "softplus",
            softplus,
            |x| x.max(0.0) + (-x.abs()).exp().ln_1p(),
            2.7e-7,
        );
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-87.1), 0.0);
        assert_eq!(exp(f32::INFINITY), exp(88.0));
        assert!(exp(88.0).is_finite());
        assert_eq!(sigmoid(-1e30), 1.0 / (1.0 + exp(88.0)));
        assert_eq!(sigmoid(1e30), 1.0);
        assert_eq!(silu(1e30), 1e30);
        assert_eq!(softplus(-1e30), 0.0);
        assert_eq!(softplus(1e30), 1e30);
        for function in [exp, sigmoid, silu, softplus] {
            assert!(function(f32::NAN).is_nan());
        }
    }
}
