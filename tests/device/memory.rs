//! What a model has taken goes back when it is dropped.

use crate::{gpu, reference::tiny_file};
use tidegate::backend::shape::KvType;

#[test]
fn everything_goes_back() {
    gpu::alone(|gpu| {
        let run = || {
            let mut model = gpu.bare(&tiny_file("qwen35moe.gguf"), 2, 64, KvType::F16);
            model.rows(0, 0, &[3, 4, 5, 6, 7]);
            model.rows(0, 5, &[8]); // a recorded window
        };
        run(); // what the driver keeps once it is there
        let before = gpu.in_use();
        run();
        assert_eq!(gpu.in_use(), before);
    });
}
