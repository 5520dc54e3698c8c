//! What a prediction takes, by how much of the vocabulary it is compared with.

use std::{sync::Arc, time::Instant};

use tidegate::{
    cpu::backend::{Cpu, CpuSettings},
    engine::{
        executor::{Executor, Guess, Slot},
        request::Sampling,
    },
    gguf::Gguf,
    sampler::Sampler,
};

use crate::common::{
    Common, Failure,
    rig::{Rig, Spread},
};

/// Tokens that a prediction is chosen among, and the milliseconds that it takes then; in turns, the medians.
pub(crate) fn predictions(common: &Common, file: &Arc<Gguf>) -> Result<Vec<(usize, f64)>, Failure> {
    const TIMES: usize = 60;
    let threads = common.threads;
    let mut rig = Rig::load(common, file, Cpu::new(CpuSettings { threads }), 1, 128)?;
    let capacity = rig.runner.capacity();
    if !capacity.predicts {
        return Ok(Vec::new());
    }
    let prompt = rig.prompt(0, 64);
    let token = rig.read(0, &prompt, rig.chunk)?;
    let pages = rig.pages(0);
    let mut kinds = vec![(capacity.vocab, None)];
    if capacity.frequent > 0 {
        kinds.push((capacity.frequent, Some(&[][..])));
    }
    let greedy = Sampling {
        temperature: 0.0,
        ..Sampling::default()
    };
    let (sampler, mut predicted) = (Sampler::new(&greedy, &[]), Vec::new());
    let mut times = vec![Vec::new(); kinds.len()];
    for _ in 0..TIMES {
        for ((_, among), times) in kinds.iter().zip(&mut times) {
            let guess = Guess {
                slot: Slot(0),
                token,
                pages: &pages,
                position: prompt.len() + 1,
                depth: 1,
                sampler: &sampler,
                stop_tokens: &[],
                among: *among,
            };
            let begun = Instant::now();
            predicted.clear();
            rig.runner.predict(&[guess], &mut predicted)?;
            times.push(begun.elapsed());
        }
    }
    let took = |times| 1e3 * Spread::of(times).median.as_secs_f64();
    Ok((kinds.iter().zip(times))
        .map(|((count, _), times)| (*count, took(times)))
        .collect())
}
