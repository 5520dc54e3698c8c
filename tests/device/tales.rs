//! The bundled model on the device against its reference.

use crate::{
    follow::{follows, repeats},
    gpu,
    reference::{tales, tales_file, tales_twin},
};
use tidegate::backend::shape::KvType;

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
