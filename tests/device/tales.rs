//! The bundled model on the device: against its reference, and the same tokens whatever the load.

use crate::{
    follow::{follows, repeats},
    gpu,
    load::{answers, bundled, requests, settings},
    reference::{tales, tales_file, tales_twin},
};
use tidegate::{backend::shape::KvType, cuda::Cuda, model::start};

#[test]
fn bundled_file_follows_the_goldens() {
    gpu::shared(|gpu| {
        let mut tales = tales();
        if gpu.is_slow() {
            tales.truncate(2);
        }
        follows(
            &mut gpu.bare(&tales_file(), 1, 256, KvType::F16),
            &tales,
            94,
        );
    });
}

fn check_twin(name: &str) {
    gpu::shared(|gpu| {
        let Some(file) = tales_twin(name) else { return };
        let mut tales = tales();
        if gpu.is_slow() {
            tales.truncate(1);
            tales[0].greedy_ids.truncate(8);
        }
        repeats(&mut gpu.bare(&file, 1, 256, KvType::F32), &tales);
    });
}

#[test]
fn float_twin_repeats_the_goldens() {
    check_twin("tales-f32.gguf");
}

#[test]
fn bf16_twin_repeats_the_goldens() {
    check_twin("tales-bf16.gguf");
}

#[test]
fn eight_at_once_get_what_each_gets_alone() {
    gpu::shared(|gpu| {
        let tokens = if gpu.is_slow() { 4 } else { 40 };
        let rounds = if gpu.is_slow() { 1 } else { 2 };
        let mut requests = requests(tokens);
        if gpu.is_slow() {
            requests.truncate(4);
            requests.remove(1); // the long one
        }
        let answers = |chunk_rows, slots| {
            let settings = settings(chunk_rows, None, slots);
            let started = gpu.load(|device, cuda| {
                start::start(bundled(), move || Cuda::new(device, cuda), &settings)
            });
            answers(started.expect("an engine"), &requests)
        };
        let [expected, together] = answers(128, 8);
        assert!(expected.iter().all(|answer| answer.len() == tokens));
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
