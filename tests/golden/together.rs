//! Same tokens whatever the load: for several chunk sizes and numbers of threads.

use crate::load::{answers, bundled, requests, settings};
use tidegate::{
    cpu::backend::{Cpu, CpuSettings},
    engine::request::Token,
    model::start,
};

const TOKENS: usize = 40;

fn on_the_cpu(chunk_rows: usize, threads: usize, slots: usize) -> [Vec<Vec<Token>>; 2] {
    let backend = move || {
        Cpu::new(CpuSettings {
            threads: Some(threads),
        })
    };
    let settings = settings(chunk_rows, Some(threads), slots);
    let started = start::start(bundled(), backend, &settings).expect("an engine");
    answers(started, &requests(TOKENS))
}

#[test]
fn eight_at_once_get_what_each_gets_alone() {
    let [expected, together] = on_the_cpu(128, 1, 8);
    assert!(expected.iter().all(|tokens| tokens.len() == TOKENS));
    assert_eq!(together, expected);
    for (chunk_rows, threads, slots) in [(1, 2, 8), (17, 3, 3), (64, 2, 8), (200, 2, 5)] {
        let [alone, together] = on_the_cpu(chunk_rows, threads, slots);
        assert_eq!(alone, expected, "chunks of {chunk_rows}, {threads} threads");
        assert_eq!(
            together, expected,
            "{slots} at once, chunks of {chunk_rows}, {threads} threads"
        );
    }
}
