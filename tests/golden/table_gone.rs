//! A table of n-grams of which rows are gone, on the CPU.

use crate::{load::requests_among, table::check};
use tidegate::{
    cpu::backend::{Cpu, CpuSettings},
    model::start,
};

#[test]
fn rows_that_are_gone_end_whoever_needs_them() {
    let engine = |file, settings: &_| {
        let backend = || Cpu::new(CpuSettings { threads: Some(2) });
        start::start(file, backend, settings).expect("an engine")
    };
    check(engine, &requests_among(24, 93));
}
