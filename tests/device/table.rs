//! A table of n-grams of which rows are gone: on a device, too, nobody but who needs them notices.

use crate::{gone::check, gpu, load::requests_among};
use tidegate::{cuda::Cuda, model::start};

#[test]
fn rows_that_are_gone_end_whoever_needs_them() {
    gpu::shared(|gpu| {
        let mut requests = requests_among(24, 93);
        if gpu.is_slow() {
            requests.truncate(6);
            requests.iter_mut().for_each(|of| of.max_tokens = 6);
        }
        let engine = |file, settings: &_| {
            let started = gpu
                .load(|device, cuda| start::start(file, move || Cuda::new(device, cuda), settings));
            started.expect("an engine")
        };
        check(engine, &requests);
    });
}
