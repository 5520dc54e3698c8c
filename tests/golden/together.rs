//! Same tokens whatever the load: for several chunk sizes and numbers of threads, and for every family.

use std::sync::Arc;

use crate::{
    families::every_family,
    load::{answers, bundled, requests, requests_among, settings},
    reference::tiny_file,
};
use tidegate::{
    cpu::backend::{Cpu, CpuSettings},
    engine::request::{Request, Token},
    gguf::Gguf,
    model::start,
};

const TOKENS: usize = 40;

fn on_the_cpu(
    file: Arc<Gguf>,
    requests: &[Request],
    [chunk_rows, threads, slots]: [usize; 3],
) -> [Vec<Vec<Token>>; 2] {
    let backend = move || {
        Cpu::new(CpuSettings {
            threads: Some(threads),
        })
    };
    let settings = settings(chunk_rows, Some(threads), slots);
    let started = start::start(file, backend, &settings).expect("an engine");
    answers(started, requests)
}

/// A tiny model's answers are longer, so that windows slide and indexes choose.
fn check(file: &str, _golden: &str) {
    let (path, requests) = (tiny_file(file), requests_among(120, 93));
    let run = |how| {
        let file = Arc::new(Gguf::open(&path).expect("a tiny file"));
        on_the_cpu(file, &requests, how)
    };
    let [expected, together] = run([128, 1, 8]);
    assert!(expected.iter().all(|tokens| tokens.len() == 120), "{file}");
    assert_eq!(together, expected, "{file}");
    let [alone, together] = run([17, 2, 8]);
    assert_eq!(alone, expected, "{file}, chunks of 17");
    assert_eq!(together, expected, "{file}, chunks of 17, together");
}

every_family!(check);

#[test]
fn eight_at_once_get_what_each_gets_alone() {
    let run = |how| on_the_cpu(bundled(), &requests(TOKENS), how);
    let [expected, together] = run([128, 1, 8]);
    assert!(expected.iter().all(|tokens| tokens.len() == TOKENS));
    assert_eq!(together, expected);
    for (chunk_rows, threads, slots) in [(1, 2, 8), (17, 3, 3), (64, 2, 8), (200, 2, 5)] {
        let [alone, together] = run([chunk_rows, threads, slots]);
        assert_eq!(alone, expected, "chunks of {chunk_rows}, {threads} threads");
        assert_eq!(
            together, expected,
            "{slots} at once, chunks of {chunk_rows}, {threads} threads"
        );
    }
}
