//! The bundled model against its reference: the quantised file always, the float twins where `TIDEGATE_TALES_TWINS` names a folder
//! with `tales-f32.gguf` and `tales-bf16.gguf` (made by `scripts/convert-tales.py`).

use crate::{
    bare::Bare,
    follow::{follows, repeats},
    reference::{tales, tales_file, tales_twin},
};
use tidegate::backend::shape::KvType;

fn check_twin(name: &str) {
    if let Some(file) = tales_twin(name) {
        repeats(&mut Bare::open(&file, 1, 256, 2, KvType::F32), &tales());
    }
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
fn bundled_file_follows_the_goldens() {
    let mut model = Bare::open(&tales_file(), 1, 256, 2, KvType::F16);
    follows(&mut model, &tales(), 96);
}
