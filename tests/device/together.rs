//! Same tokens whatever the load, on the device: of the bundled model, and of tiny ones of other families.

use std::sync::Arc;

use crate::{
    gpu,
    load::{answers, bundled, requests, requests_among, settings},
    reference::tiny_file,
};
use tidegate::{cuda::Cuda, engine::request::Request, gguf::Gguf, model::start};

fn check(file: &Arc<Gguf>, mut requests: Vec<Request>) {
    gpu::shared(|gpu| {
        let rounds = if gpu.is_slow() { 1 } else { 2 };
        if gpu.is_slow() {
            requests.truncate(4);
            requests.remove(1); // the long one
            requests.iter_mut().for_each(|of| of.max_tokens = 4);
        }
        let answers = |chunk_rows, slots| {
            let settings = settings(chunk_rows, None, slots);
            let started = gpu.load(|device, cuda| {
                start::start(file.clone(), move || Cuda::new(device, cuda), &settings)
            });
            answers(started.expect("an engine"), &requests)
        };
        let [expected, together] = answers(128, 8);
        assert!(expected.iter().all(|of| of.len() == requests[0].max_tokens));
        assert_eq!(together, expected);
        for (chunk_rows, slots) in [(17, 2), (200, 5)].into_iter().take(rounds) {
            let [alone, together] = answers(chunk_rows, slots);
            assert_eq!(alone, expected, "chunks of {chunk_rows}");
            assert_eq!(
                together, expected,
                "{slots} at once, chunks of {chunk_rows}"
            );
        }
    });
}

#[test]
fn eight_at_once_get_what_each_gets_alone() {
    check(&bundled(), requests(40));
}

fn check_tiny(name: &str) {
    let file = Gguf::open(tiny_file(name)).expect("a tiny file");
    check(&Arc::new(file), requests_among(120, 93));
}

#[test]
fn glm4moe() {
    check_tiny("glm4moe.gguf");
}

#[test]
fn gpt_oss() {
    check_tiny("gpt-oss.gguf");
}

#[test]
fn minimax_m2() {
    check_tiny("minimax-m2.gguf");
}

#[test]
fn gemma4() {
    check_tiny("gemma4.gguf");
}

#[test]
fn qwen4exp() {
    check_tiny("qwen4exp.gguf");
}
