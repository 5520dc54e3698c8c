//! Checks of the bundled model and its float twins against their source's own words, on any backend.

use crate::{
    bare::{Bare, argmax},
    reference::Tale,
};
use tidegate::backend::Backend;

/// `<|im_end|>`
pub(crate) const STOP: u32 = 2;

fn logprobs(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from(logit - max).exp())
        .sum();
    logits
        .iter()
        .map(|logit| logit - max - sum.ln() as f32)
        .collect()
}

/// A float twin is exact in tokens, and close in log-probabilities.
pub(crate) fn repeats<B: Backend>(model: &mut Bare<B>, tales: &[Tale]) {
    let vocab = model.vocab();
    for tale in tales {
        assert_eq!(
            model.greedy(&tale.prompt_ids, STOP, tale.greedy_ids.len()),
            tale.greedy_ids,
            "{}",
            tale.prompt
        );
        let tokens = [&tale.prompt_ids[..], &tale.greedy_ids].concat();
        let logits = model.rows(0, 0, &tokens).to_vec();
        for (step, expected) in tale.first4_top5_logprobs.iter().enumerate() {
            let ours = logprobs(&logits[(tale.prompt_ids.len() - 1 + step) * vocab..][..vocab]);
            for (token, logprob) in expected {
                let error = (ours[*token as usize] - logprob).abs();
                assert!(
                    error < 2e-3 * logprob.abs().max(1.0),
                    "{}: step {step}, token {token}: {} for {logprob}",
                    tale.prompt,
                    ours[*token as usize]
                );
            }
        }
    }
}

/// Along the source's own continuations the quantised file chooses the same token but where two are nearly as likely: in `percent` of all cases at least.
pub(crate) fn follows<B: Backend>(model: &mut Bare<B>, tales: &[Tale], percent: usize) {
    let vocab = model.vocab();
    let (mut steps, mut same) = (0, 0);
    for tale in tales {
        let tokens = [&tale.prompt_ids[..], &tale.greedy_ids].concat();
        let logits = model.rows(0, 0, &tokens).to_vec();
        for (step, (expected, margin)) in tale.greedy_ids.iter().zip(&tale.top1_margins).enumerate()
        {
            let chosen = argmax(&logits[(tale.prompt_ids.len() - 1 + step) * vocab..][..vocab]);
            assert!(
                chosen == *expected || *margin < 0.8,
                "{}: step {step}: {chosen} for {expected}, which leads by {margin}",
                tale.prompt
            );
            (steps, same) = (steps + 1, same + usize::from(chosen == *expected));
        }
    }
    assert!(same * 100 >= steps * percent, "{same} of {steps} tokens");
}
