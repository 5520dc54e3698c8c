use super::*;
use crate::{backend::ExpertLayer, quant::BlockType, residency::slots::SlotPlan};

fn shape(ty: BlockType) -> MatrixShape {
    MatrixShape {
        ty,
        k: 2048,
        outputs: 1024,
    }
}

fn work() -> Work {
    Work {
        dense: BTreeMap::from([(shape(BlockType::Q8_0), 100_000_000)]),
        head: BTreeMap::from([(shape(BlockType::Q6_K), 50_000_000)]),
        experts: vec![
            LayerWork {
                experts: 64,
                used: 8,
                all: BTreeMap::from([(shape(BlockType::Q4_K), 640_000_000)]),
            };
            2
        ],
        layers: 2,
        position_bytes: 1000,
        attention: vec![
            AttentionWork {
                macs: 500,
                sees: None
            };
            2
        ],
        delta_macs: 0,
        state_bytes: 0,
        passes: 0,
    }
}

fn machine(text: &str) -> Machine {
    Machine::parse(text, false, "m.toml").expect("a machine")
}

fn near(got: f64, expected: f64) {
    assert!((got / expected - 1.0).abs() < 0.01, "{got} for {expected}");
}

#[test]
fn bytes_over_speeds_add_up() {
    let (work, machine) = (
        work(),
        machine("dram-gb-s = 50\ndisk-gb-s = 2\nint8-tops = 2"),
    );
    let estimate = Estimate {
        work: &work,
        machine: &machine,
        kept: None,
    };
    // 150 MB besides experts, 160 MB of experts, at 40 GB/s
    near(estimate.decode(0).all, 310e6 / 40e9 + 84e-6);
    assert_eq!(estimate.decode_limit(), Limit::Memory);
    let layers = [ExpertLayer {
        layer: 0,
        experts: 64,
        used: 8,
        expert_bytes: 10_000_000,
    }; 2];
    let plan = SlotPlan::new(&layers, 800_000_000).expect("enough");
    // 80 slots of 128 experts, 16 of them spare: half of what is chosen is missing
    let kept = Kept::new(&plan, &work.experts, &[]);
    near(kept.hit_rates[0] + kept.hit_rates[1], 1.0);
    let estimate = Estimate {
        kept: Some(&kept),
        ..estimate
    };
    near(estimate.decode(0).drive, 80e6 / 2e9);
    // lookahead reads while everything but the head is computed
    near(estimate.decode(0).all, 50e6 / 40e9 + 80e6 / 2e9);
    assert_eq!(estimate.decode_limit(), Limit::Drive);
    // everybody uses the same ten experts
    let ranks: Vec<_> = (0..2)
        .flat_map(|layer| (0..10).map(move |expert| (layer, expert, 3.0)))
        .collect();
    let known = Kept::new(&plan, &work.experts, &ranks);
    near(known.hit_rates[0], 1.0);
}

#[test]
fn prompts_are_bound_by_arithmetic() {
    let (work, machine) = (work(), machine("dram-gb-s = 50\nint8-tops = 0.1"));
    let estimate = Estimate {
        work: &work,
        machine: &machine,
        kept: None,
    };
    let chunk = estimate.chunk(512, 0);
    // dense: 94 M products a row; experts: 2 layers of 8 of 17.8 M each
    let macs = 512.0 * (100e6 / 1.0625 + 2.0 * 8.0 * 10e6 / 0.5625);
    assert!(chunk.all > 2.0 * macs / 0.1e12);
    let long = estimate.first_token(4096, 512);
    assert!(long > 8.0 * chunk.all && long < 12.0 * chunk.all);
}

#[test]
fn rows_see_what_their_windows_let_them() {
    let counted = |rows: usize, before: usize, sees: usize| -> f64 {
        (before..before + rows)
            .map(|at| (at + 1).min(sees) as f64)
            .sum()
    };
    for (rows, before) in [(1, 0), (7, 0), (7, 100), (64, 30), (64, 1000)] {
        for sees in [1, 16, 64, 100, 1_000_000] {
            assert_eq!(pairs(rows, before, Some(sees)), counted(rows, before, sees));
        }
        assert_eq!(pairs(rows, before, None), counted(rows, before, usize::MAX));
    }
}

#[test]
fn wrong_descriptions_say_what_is_wrong() {
    let check = |text: &str, expected: &str| {
        let error = Machine::parse(text, false, "m.toml")
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("disk-gb-s = 2", "dram-gb-s");
    check("dram-gb-s = 0", "dram-gb-s is 0, it must be from 0.001");
    check("dram-gb-s = 50\nspeed = 1", "speed");
    check("dram-gb-s = ", "m.toml");
    let device = Machine::parse(
        "dram-gb-s = 50\ndisk-gb-s = 3\npcie-gb-s = 25\nvram-gb-s = 1000",
        true,
        "m.toml",
    );
    let device = device.expect("a machine");
    assert_eq!(
        (device.dram_bytes_s, device.disk_bytes_s),
        (1e12, Some(25e9))
    );
}
