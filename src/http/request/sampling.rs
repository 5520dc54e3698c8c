//! The fields that say how tokens are chosen.

use super::{
    message::kind,
    ranges::{number, object, shortened},
    tree::Tree,
    written::Body,
};
use crate::{
    engine::request::{Sampling, Token},
    http::{error::ApiError, random::random_u64},
};

/// What the body says, and the defaults where it says nothing. Without a seed there is a new one.
///
/// **Errors**: [`ApiError::BadField`].
pub(super) fn sampling(body: &mut Body, defaults: &Sampling) -> Result<Sampling, ApiError> {
    let penalty = body.repetition_penalty.or(body.repeat_penalty);
    Ok(Sampling {
        temperature: number("temperature", body.temperature, 0.0..=10.0)?
            .unwrap_or(defaults.temperature),
        top_p: number("top_p", body.top_p, 0.0..=1.0)?.unwrap_or(defaults.top_p),
        top_k: match body.top_k {
            None => defaults.top_k,
            Some(..-1) => return Err(ApiError::field("top_k", "must be -1 or more")),
            Some(k) => usize::try_from(k).unwrap_or(0),
        },
        min_p: number("min_p", body.min_p, 0.0..=1.0)?.unwrap_or(defaults.min_p),
        repetition_penalty: number("repetition_penalty", penalty, 0.01..=10.0)?
            .unwrap_or(defaults.repetition_penalty),
        presence_penalty: number("presence_penalty", body.presence_penalty, -2.0..=2.0)?
            .unwrap_or(defaults.presence_penalty),
        frequency_penalty: number("frequency_penalty", body.frequency_penalty, -2.0..=2.0)?
            .unwrap_or(defaults.frequency_penalty),
        logit_bias: logit_bias(body.logit_bias.take())?,
        seed: body.seed.map_or_else(random_u64, |seed| seed.0),
    })
}

/// In ascending order of the id, so that equal requests are equal.
fn logit_bias(written: Option<Tree>) -> Result<Vec<(Token, f32)>, ApiError> {
    let mut biases = Vec::new();
    for (id, bias) in object("logit_bias", written)? {
        let param = || format!("logit_bias.{}", shortened(&id));
        let token = id
            .parse()
            .map_err(|_| ApiError::field(param(), "is not a token id"))?;
        let Some(bias) = bias.as_f64() else {
            return Err(ApiError::field(
                param(),
                format!("must be a number, got {}", kind(&bias)),
            ));
        };
        biases.push((
            token,
            number(&param(), Some(bias as f32), -100.0..=100.0)?.unwrap_or(0.0),
        ));
    }
    biases.sort_by_key(|&(token, _)| token);
    biases.dedup_by_key(|&mut (token, _)| token); // "7" and "07"
    Ok(biases)
}
