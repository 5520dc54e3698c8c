use super::*;
use crate::cpu::{
    isa::Isa,
    test_numbers::{bits, numbers},
};

/// Runs `ours` at every instruction level: the bits agree, and every element is within `bound` of the f64 reference.
fn check(name: &str, ours: &dyn Fn(Isa) -> Vec<f32>, want: &[f64], bound: f64) {
    let first = ours(Isa::Portable);
    for isa in Isa::available() {
        assert_eq!(bits(&ours(isa)), bits(&first), "{name} {isa:?}");
    }
    assert_eq!(first.len(), want.len(), "{name}");
    for (got, want) in first.iter().zip(want) {
        assert!(
            (f64::from(*got) - want).abs() <= bound,
            "{name}, {} elements: {got} for {want}",
            first.len()
        );
    }
}

fn edited(row: &[f32], edit: impl FnOnce(&mut [f32])) -> Vec<f32> {
    let mut out = row.to_vec();
    edit(&mut out);
    out
}

#[test]
fn rows_agree_with_f64_and_across_levels() {
    for len in [1, 7, 15, 16, 17, 63, 64, 65, 80, 128, 257, 2048] {
        let (a, b) = (numbers(len, len as u64), numbers(len, 99));
        let wide = |row: &[f32]| row.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let (wa, wb) = (wide(&a), wide(&b));
        let each = |f: &dyn Fn(f64, f64) -> f64| {
            wa.iter()
                .zip(&wb)
                .map(|(a, b)| f(*a, *b))
                .collect::<Vec<f64>>()
        };
        let products: f64 = each(&|a, b| a * b).iter().sum();
        let squares: f64 = wa.iter().map(|a| a * a).sum();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());

        check(
            "dot",
            &|isa| vec![dot(isa, &a, &b)],
            &[products],
            1e-6 * len as f64,
        );
        check(
            "axpy",
            &|isa| edited(&b, |out| axpy(isa, 0.3, &a, out)),
            &each(&|a, b| b + f64::from(0.3f32) * a),
            1e-6,
        );
        check(
            "add",
            &|isa| edited(&b, |out| add(isa, &a, out)),
            &each(&|a, b| a + b),
            1e-6,
        );
        let rms = (squares / len as f64 + 1e-6).sqrt();
        check(
            "rms_norm",
            &|isa| edited(&a, |out| rms_norm(isa, out, &b, 1e-6)),
            &each(&|a, b| a / rms * b),
            4e-6,
        );
        check(
            "rms_norm_into",
            &|isa| edited(&b, |out| rms_norm_into(isa, &a, &b, 1e-6, out)),
            &each(&|a, b| a / rms * b),
            4e-6,
        );
        let l2 = (squares + 1e-6).sqrt();
        check(
            "l2_norm",
            &|isa| edited(&a, |out| l2_norm(isa, out, 1e-6, 0.5)),
            &each(&|a, _| a / l2 * 0.5),
            1e-6,
        );
        check(
            "clamped_swiglu",
            &|isa| {
                let (gate, up): (Vec<_>, Vec<_>) =
                    a.iter().zip(&b).map(|(a, b)| (6.0 * a, 6.0 * b)).unzip();
                edited(&gate, |gate| clamped_swiglu(isa, &up, gate))
            },
            &each(&|a, b| {
                let (gate, up) = ((6.0 * a).min(7.0), (6.0 * b).clamp(-7.0, 7.0));
                (up + 1.0) * gate * sigmoid(1.702 * gate)
            }),
            1e-4,
        );
        check(
            "geglu",
            &|isa| edited(&a, |gate| geglu(isa, &b, gate)),
            &each(&|a, b| {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (a + 0.044715 * a * a * a);
                0.5 * a * (1.0 + inner.tanh()) * b
            }),
            4e-6,
        );
        check(
            "swiglu",
            &|isa| edited(&a, |out| swiglu(isa, &b, out)),
            &each(&|a, b| a * sigmoid(a) * b),
            2e-6,
        );
        check(
            "mul_sigmoid",
            &|isa| edited(&b, |out| mul_sigmoid(isa, &a, out)),
            &each(&|a, b| b * sigmoid(a)),
            1e-6,
        );
        let total: f64 = wa.iter().map(|a| a.exp()).sum();
        check(
            "softmax",
            &|isa| edited(&a, |out| softmax(isa, out)),
            &each(&|a, _| a.exp() / total),
            1e-6,
        );
    }
}

#[test]
fn partial_sums_are_joined_as_documented() {
    for len in [5, 64, 100, 200] {
        let (a, b) = (numbers(len, 3), numbers(len, 4));
        let mut p = [0.0f32; 64];
        for i in 0..len {
            p[i % 64] = a[i].mul_add(b[i], p[i % 64]);
        }
        for half in [32, 16, 8, 4, 2, 1] {
            for i in 0..half {
                p[i] += p[i + half];
            }
        }
        assert_eq!(dot(Isa::detect(), &a, &b).to_bits(), p[0].to_bits());
    }
}
