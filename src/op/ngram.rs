//! Rows of a large table, found by the last few tokens, added to every stream of the residual.

use super::{Hidden, Op, Pass};
use crate::{
    backend::{Act, Backend, NgramWeights, shape::NgramShape},
    model::loader::{LoadError, Loader},
};

/// Streams += gated rows + their convolution over time.
pub struct Ngram<B: Backend>(NgramWeights<B>);

impl<B: Backend> Ngram<B> {
    /// The table's tensor.
    pub const TABLE: &'static str = "per_layer_token_embd.weight";

    /// Tensors `{at}.ple_*` and the table `per_layer_token_embd.weight`.
    ///
    /// **Source**: keys `ple.*` and `embedding_length_per_layer_input`.
    pub fn load(from: &mut Loader<'_, B>, at: &str) -> Result<Self, LoadError> {
        let shape = shape(from)?;
        let (width, streams) = (from.residual(), from.streams()?);
        let (all, found) = (streams * width, shape.rows() * shape.width);
        from.need(Act::Ngram, found);
        from.need(Act::Streams, all);
        from.need(Act::StreamGate, all);
        let mut norm =
            |name: &str| from.flat_vector(&format!("{at}.{name}.weight"), width, streams);
        let norms = [
            norm("ple_norm_key")?,
            norm("ple_norm_query")?,
            norm("ple_norm_conv")?,
        ];
        from.ngram(shape.clone());
        Ok(Self(NgramWeights {
            table: from.table(Self::TABLE, &shape)?,
            key: from.matrix(&format!("{at}.ple_key.weight"), found, all)?,
            value: from.matrix(&format!("{at}.ple_value.weight"), found, width)?,
            norms,
            eps: from.rms_eps()?,
            conv: from.turned(&format!("{at}.ple_conv1d.weight"), shape.taps, all)?,
            shape,
        }))
    }
}

fn shape<B: Backend>(from: &Loader<'_, B>) -> Result<NgramShape, LoadError> {
    let tokens = from.count("ple.ngram_size")?;
    from.at_most("ple.ngram_size", tokens, NgramShape::TOKENS_MAX)?;
    let heads = from.count("ple.heads_per_ngram")?;
    let taps = from.count("ple.conv_kernel")?;
    from.at_most("ple.conv_kernel", taps, NgramShape::TAPS_MAX)?;
    let rows = (tokens - 1) * heads;
    let shape = NgramShape {
        tokens,
        heads,
        width: from.count("embedding_length_per_layer_input")?,
        taps,
        multipliers: from.long_numbers("ple.layer_multipliers", tokens)?,
        sizes: from.long_numbers("ple.head_vocab_sizes", rows)?,
        offsets: from.long_numbers("ple.head_offsets", rows)?,
        end: from.count_or_zero("ple.eos_token_id")? as u32,
    };
    Ok(shape)
}

impl<B: Backend> Op<B> for Ngram<B> {
    type In = Hidden;
    type Out = Hidden;

    fn enqueue(&self, pass: &mut Pass<'_, B>, hidden: Hidden) -> Result<Hidden, B::Error> {
        pass.backend.add_ngrams(pass.window, &self.0)?;
        Ok(hidden)
    }
}
