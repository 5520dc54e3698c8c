//! Reads what a family asks for out of a file: numbers are checked, tensors have the shape the numbers demand.
//!
//! Also keeps count of what the ops will need at run time (buffers, caches, states), so that all memory is planned before the first
//! allocation.

use std::sync::Arc;

use crate::{
    backend::{
        Act, Backend, ExpertLayer, ExpertSource, MatrixSource, Needs, RouteWeights,
        shape::{Activation, AttentionShape, DeltaShape, NgramShape, Rope, RopePairs},
    },
    gguf::{Gguf, GgufError, Tensor},
    quant::{self, BlockType},
};

/// Why a file is not a model that can be run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The container or a tensor's shape is wrong.
    #[error(transparent)]
    File(#[from] GgufError),
    /// Nobody wrote a pipeline for it.
    #[error("general.architecture is `{architecture}`; supported are {supported}")]
    Architecture {
        /// What the file says.
        architecture: String,
        /// What there is.
        supported: String,
    },
    /// A number that must be at least one is zero.
    #[error("`{key}` is 0, it must be at least 1")]
    Zero {
        /// The metadata key.
        key: String,
    },
    /// A number is larger than another allows.
    #[error("`{key}` is {got}, at most {allowed} is possible")]
    TooLarge {
        /// The metadata key.
        key: String,
        /// Its value.
        got: usize,
        /// The limit.
        allowed: usize,
    },
    /// A number must have one value.
    #[error("`{key}` is {got}, only {expected} is supported")]
    NotEqual {
        /// The metadata key.
        key: String,
        /// Its value.
        got: usize,
        /// What it must be.
        expected: usize,
    },
    /// A number must be a multiple of another.
    #[error("`{key}` is {got}, it must be a multiple of {factor}")]
    NotMultiple {
        /// The metadata key.
        key: String,
        /// Its value.
        got: usize,
        /// What must divide it.
        factor: usize,
    },
    /// A number is no finite positive number.
    #[error("`{key}` is {got}, it must be finite and positive")]
    NotPositive {
        /// The metadata key.
        key: String,
        /// Its value.
        got: f32,
    },
    /// A variant of the family that this version does not compute.
    #[error("`{key}` is `{got}`, supported is {supported}")]
    Variant {
        /// The metadata key.
        key: String,
        /// Its value.
        got: String,
        /// What is possible.
        supported: &'static str,
    },
    /// Per-expert tensors disagree.
    #[error("tensor `{tensor}` is {got}, the layer's other experts are {expected}")]
    ExpertType {
        /// The tensor.
        tensor: String,
        /// Its type.
        got: BlockType,
        /// The others' type.
        expected: BlockType,
    },
    /// A vector's type is no type of vectors.
    #[error("tensor `{tensor}` is {got}, it cannot be read as numbers")]
    NotNumbers {
        /// The tensor.
        tensor: String,
        /// Its type.
        got: BlockType,
    },
    /// The backend refused.
    #[error("the {backend} backend: {why}")]
    Backend {
        /// Which.
        backend: &'static str,
        /// Its own words.
        why: String,
    },
}

/// What keys of windowed layers end in, where these differ from others.
const WINDOWED: &str = "_swa";

/// Where YaRN's ramp between pairs begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YarnEnds {
    /// At whole pairs, rounded outwards.
    Whole,
    /// Where the formula says.
    Exact,
}

/// A file being turned into a model on a backend.
pub struct Loader<'a, B: Backend> {
    file: Arc<Gguf>,
    backend: &'a mut B,
    architecture: String,
    layer: usize,
    blocks: usize,
    needs: Needs,
    /// Whether the block at hand is of the trunk.
    trunk: bool,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// Reads the numbers that every family has.
    pub fn new(file: Arc<Gguf>, backend: &'a mut B) -> Result<Self, LoadError> {
        let architecture = file.architecture()?.to_owned();
        let mut loader = Self {
            file,
            backend,
            architecture,
            layer: 0,
            blocks: 0,
            needs: Needs::default(),
            trunk: true,
        };
        loader.needs.residual = loader.count("embedding_length")?;
        loader.blocks = loader.count("block_count")?;
        loader.need(Act::Normed, loader.needs.residual);
        loader.need(Act::Branch, loader.needs.residual);
        Ok(loader)
    }

    /// Width of the residual.
    pub fn residual(&self) -> usize {
        self.needs.residual
    }

    /// Layers of the trunk, and prediction blocks after it (`nextn_predict_layers`).
    pub fn blocks(&self) -> Result<(usize, usize), LoadError> {
        let nextn = self.optional_count("nextn_predict_layers")?.unwrap_or(0);
        if nextn >= self.blocks {
            return Err(LoadError::TooLarge {
                key: self.key("nextn_predict_layers"),
                got: nextn,
                allowed: self.blocks - 1,
            });
        }
        Ok((self.blocks - nextn, nextn))
    }

    /// Says which block the following per-layer keys are for.
    pub(crate) fn enter(&mut self, layer: usize) {
        self.layer = layer;
    }

    /// What has been asked for, complete once every tensor is loaded.
    pub(crate) fn into_needs(self) -> Needs {
        self.needs
    }

    /// Loads with `load` a block that is not part of the trunk: its reads are not counted.
    pub(crate) fn beside_trunk<T>(
        &mut self,
        load: impl FnOnce(&mut Self) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        let (experts, common_bytes) = (self.needs.expert_layers.len(), self.needs.common_bytes);
        self.trunk = false;
        let loaded = load(self);
        self.trunk = true;
        self.needs.predicts = true;
        self.needs.expert_layers.truncate(experts);
        self.needs.common_bytes = common_bytes;
        loaded
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }
}

/// What ops need at run time.
impl<B: Backend> Loader<'_, B> {
    /// Rows of `act` hold `width` values.
    pub fn need(&mut self, act: Act, width: usize) {
        self.needs.widths.need(act, width);
    }

    /// One more layer with keys and values; which.
    pub fn kv(&mut self, shape: AttentionShape) -> usize {
        self.needs.attention.push(shape);
        self.needs.attention.len() - 1
    }

    /// One more layer with a delta-net state; which.
    pub fn delta(&mut self, shape: DeltaShape) -> usize {
        self.needs.delta.push(shape);
        self.needs.delta.len() - 1
    }

    /// A layer chooses experts like this.
    pub fn routes(&mut self, router: &B::Matrix, weights: &RouteWeights<B>) {
        let shape = weights.shape;
        if self.trunk {
            let layer = self.needs.expert_layers.len();
            self.backend.router(layer, router, weights);
        }
        self.needs.experts_used = self.needs.experts_used.max(shape.used);
        put_once(&mut self.needs.routes, shape);
        self.needs.expert_layers.push(ExpertLayer {
            layer: self.layer,
            experts: shape.experts,
            used: shape.used,
            expert_bytes: 0, // matrices follow
        });
    }

    /// Of a matrix with so many rows, every row of a window reads one only.
    pub(crate) fn reads_one_row(&mut self, name: &str) {
        if let Some(tensor) = self.file.tensor(name) {
            let unread = tensor.bytes - tensor.row_bytes();
            self.needs.common_bytes = self.needs.common_bytes.saturating_sub(unread as u64);
        }
    }

    /// A feed-forward block or its experts use this activation.
    pub fn activates(&mut self, activation: Activation) {
        put_once(&mut self.needs.activations, activation);
    }

    /// Blocks' outputs are normed or scaled, set aside, or logits capped.
    pub fn sandwich(&mut self) {
        self.needs.sandwich = true;
    }

    /// Streams of the residual, `hyper_connection.count`.
    pub fn streams(&mut self) -> Result<usize, LoadError> {
        let streams = self.count("hyper_connection.count")?;
        self.at_most("hyper_connection.count", streams, 16)?;
        self.needs.more_streams = streams - 1;
        Ok(streams)
    }

    /// Rows are found by n-grams.
    pub fn ngram(&mut self, shape: NgramShape) {
        self.needs.ngram = Some(shape);
    }

    /// The intermediate of an expert that is chosen is this wide.
    pub fn routed_width(&mut self, width: usize) {
        put_once(&mut self.needs.routed_widths, width);
        self.needs.expert_width = self.needs.expert_width.max(width);
    }

    /// The intermediate of a shared expert is this wide.
    pub fn shared_width(&mut self, width: usize) {
        put_once(&mut self.needs.shared_widths, width);
        self.needs.expert_width = self.needs.expert_width.max(width);
    }

    /// Tokens in the vocabulary: the outer dimension of `token_embd.weight`. Rows of logits are this wide.
    pub(crate) fn vocabulary(&mut self) -> Result<usize, LoadError> {
        let vocab = match self.file.tensor("token_embd.weight") {
            Some(tensor) => tensor.dims.padded()[1],
            None => self.count("vocab_size")?,
        };
        self.needs.vocab = vocab;
        Ok(vocab)
    }
}

fn put_once<T: PartialEq>(list: &mut Vec<T>, entry: T) {
    if !list.contains(&entry) {
        list.push(entry);
    }
}

/// Numbers. Every name stands for the key `{architecture}.{name}`.
impl<B: Backend> Loader<'_, B> {
    /// A count of at least one, if it is there.
    pub fn optional_count(&self, name: &str) -> Result<Option<usize>, LoadError> {
        Ok(self.file.u32(&self.key(name))?.map(|value| value as usize))
    }

    /// A count of at least one.
    pub fn count(&self, name: &str) -> Result<usize, LoadError> {
        self.positive(name, self.file.need_u32(&self.key(name))? as usize)
    }

    /// A count of at least one, or `default`.
    pub fn count_or(&self, name: &str, default: usize) -> Result<usize, LoadError> {
        let value = self.optional_count(name)?.unwrap_or(default);
        self.positive(name, value)
    }

    /// This layer's count, the key being a scalar or an array over the layers.
    pub fn layer_count(&self, name: &str) -> Result<usize, LoadError> {
        match self.file.per_layer(&self.key(name), self.blocks)? {
            Some(values) => self.positive(name, values[self.layer] as usize),
            None => self.count(name),
        }
    }

    /// This layer's count, or `default`.
    pub fn layer_count_or(&self, name: &str, default: usize) -> Result<usize, LoadError> {
        match self.file.per_layer(&self.key(name), self.blocks)? {
            Some(values) => self.positive(name, values[self.layer] as usize),
            None => Ok(default),
        }
    }

    /// A count, or 0.
    pub fn count_or_zero(&self, name: &str) -> Result<usize, LoadError> {
        Ok(self.optional_count(name)?.unwrap_or(0))
    }

    /// This layer's count, 0 where there is none; an array may end with the trunk.
    pub fn layer_count_or_zero(&self, name: &str) -> Result<usize, LoadError> {
        let trunk = self.blocks()?.0;
        let layers = trunk.max(self.layer + 1);
        match self.file.per_layer(&self.key(name), layers) {
            Err(GgufError::KeyLength { got, .. }) if got >= trunk => Ok(0),
            values => Ok(values?.map_or(0, |values| values[self.layer] as usize)),
        }
    }

    /// Whether an array over some layers names this one.
    pub fn names_layer(&self, name: &str) -> Result<bool, LoadError> {
        let layers = self.file.i32s(&self.key(name))?.unwrap_or_default();
        Ok(layers.contains(&(self.layer as i32)))
    }

    /// Exactly `count` numbers of up to 64 bits, none of them 0 but offsets.
    pub fn long_numbers(&self, name: &str, count: usize) -> Result<Vec<u64>, LoadError> {
        let numbers = self.file.need_u64s(&self.key(name))?;
        self.equal(name, numbers.len(), count)?;
        if !name.ends_with("offsets") && numbers.contains(&0) {
            return Err(LoadError::Zero {
                key: self.key(name),
            });
        }
        Ok(numbers)
    }

    /// A float, if it is there; it must be finite.
    pub fn float(&self, name: &str) -> Result<Option<f32>, LoadError> {
        match self.file.f32(&self.key(name))? {
            Some(got) if !got.is_finite() => Err(LoadError::NotPositive {
                key: self.key(name),
                got,
            }),
            value => Ok(value),
        }
    }

    /// `attention.layer_norm_rms_epsilon`.
    pub fn rms_eps(&self) -> Result<f32, LoadError> {
        let key = "attention.layer_norm_rms_epsilon";
        let got = self.float(key)?.unwrap_or(0.0);
        if got > 0.0 {
            Ok(got)
        } else {
            Err(LoadError::NotPositive {
                key: self.key(key),
                got,
            })
        }
    }

    /// Whether full attention is used in this layer: `attention.recurrent_layers`, else every `full_attention_interval`-th. Prediction
    /// blocks always use it.
    pub fn full_attention(&self) -> Result<bool, LoadError> {
        let trunk = self.blocks()?.0;
        if self.layer >= trunk {
            return Ok(true);
        }
        if let Some(recurrent) = self
            .file
            .per_layer_bool(&self.key("attention.recurrent_layers"), trunk)?
        {
            return Ok(!recurrent[self.layer]);
        }
        let interval = self.count_or("full_attention_interval", 4)?;
        Ok((self.layer + 1).is_multiple_of(interval))
    }

    /// Whether this is one of the `leading_dense_block_count` first layers, which have no experts.
    pub fn leading_dense(&self) -> Result<bool, LoadError> {
        let leading = self.optional_count("leading_dense_block_count")?;
        Ok(self.layer < leading.unwrap_or(0))
    }

    /// This layer's window, if it has one: all layers but every `period`-th, or those that `attention.sliding_window_pattern` names.
    pub fn window(&self, period: usize) -> Result<Option<usize>, LoadError> {
        let key = self.key("attention.sliding_window_pattern");
        let periodic = |period: usize| self.layer % period + 1 < period;
        let windowed = match self.file.u32(&key) {
            Ok(None) => periodic(period),
            Ok(Some(period)) => periodic(self.positive(&key, period as usize)?),
            // no number: a truth for every layer
            Err(_) => {
                let layers = self.file.per_layer_bool(&key, self.blocks)?;
                layers.is_some_and(|layers| layers[self.layer])
            }
        };
        windowed
            .then(|| self.count("attention.sliding_window"))
            .transpose()
    }

    /// The key that holds for this layer: windowed layers may have one of their own.
    pub fn windowed(&self, name: &str, windowed: bool) -> String {
        let own = format!("{name}{WINDOWED}");
        if windowed && self.file.get(&self.key(&own)).is_some() {
            own
        } else {
            name.to_owned()
        }
    }

    /// How this layer rotates the first `rotated` channels, scaling and `rope_freqs.weight` included.
    ///
    /// **Source**: theta_i = base^(-2i/n); linear scaling divides by the factor; `rope_freqs` divides each by its own; YaRN is arXiv 2309.00071.
    pub fn rope(
        &self,
        rotated: usize,
        pairs: RopePairs,
        ends: YarnEnds,
        windowed: bool,
    ) -> Result<Rope, LoadError> {
        let key = self.windowed("rope.freq_base", windowed);
        let base = f64::from(self.float(&key)?.unwrap_or(10_000.0));
        if base <= 0.0 {
            return Err(LoadError::NotPositive {
                key: self.key(&key),
                got: base as f32,
            });
        }
        let own = key.ends_with(WINDOWED);
        let plain = |pair: usize| base.powf(-2.0 * pair as f64 / rotated as f64);
        let key = self.key("rope.scaling.type");
        let factor = self
            .float("rope.scaling.factor")?
            .filter(|factor| *factor > 0.0)
            .map_or(1.0, f64::from);
        let mut magnitude = 1.0;
        let mut frequencies: Vec<f64> = (0..rotated / 2).map(plain).collect();
        match self.file.str(&key)? {
            None | Some("none") => {}
            Some("linear") => frequencies.iter_mut().for_each(|theta| *theta /= factor),
            Some("yarn") => {
                let (low, high) = self.yarn_ramp(rotated, base, ends)?;
                for (pair, theta) in frequencies.iter_mut().enumerate() {
                    let ramp = ((pair as f64 - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
                    *theta = *theta / factor * ramp + *theta * (1.0 - ramp);
                }
                let given = self.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
                magnitude = f64::from(given) * (0.1 * factor.ln() + 1.0);
            }
            Some(got) => {
                return Err(LoadError::Variant {
                    key,
                    got: got.to_owned(),
                    supported: "none, linear or yarn",
                });
            }
        }
        let divisors = match self.file.tensor("rope_freqs.weight").filter(|_| !own) {
            Some(tensor) => self.numbers(&tensor.clone(), &[rotated / 2])?,
            None => vec![1.0; rotated / 2],
        };
        for (theta, divisor) in frequencies.iter_mut().zip(divisors) {
            *theta /= f64::from(divisor);
        }
        Ok(Rope {
            pairs,
            frequencies,
            magnitude: magnitude as f32,
        })
    }

    /// Between which pairs YaRN goes from as they are to divided: pairs that turn often within the original context stay.
    ///
    /// **Source**: keys `rope.scaling.{original_context_length, yarn_beta_fast, yarn_beta_slow}`; `rope.scaling.yarn_truncate` overrides `ends`.
    fn yarn_ramp(
        &self,
        rotated: usize,
        base: f64,
        ends: YarnEnds,
    ) -> Result<(f64, f64), LoadError> {
        let original = self.count("rope.scaling.original_context_length")? as f64;
        let turns = |name: &str, default| -> Result<f64, LoadError> {
            Ok(f64::from(self.float(name)?.unwrap_or(default)))
        };
        let pair = |turns: f64| {
            let radians = 2.0 * std::f64::consts::PI * turns;
            rotated as f64 * (original / radians).ln() / (2.0 * base.ln())
        };
        let low = pair(turns("rope.scaling.yarn_beta_fast", 32.0)?);
        let high = pair(turns("rope.scaling.yarn_beta_slow", 1.0)?);
        let whole = match self.file.bool(&self.key("rope.scaling.yarn_truncate"))? {
            Some(whole) => whole,
            None => ends == YarnEnds::Whole,
        };
        let (low, high) = if whole {
            (low.floor(), high.ceil())
        } else {
            (low, high)
        };
        Ok((low.max(0.0), high.min((rotated - 1) as f64)))
    }

    /// Errors unless `got` is `expected`.
    pub fn equal(&self, name: &str, got: usize, expected: usize) -> Result<(), LoadError> {
        if got == expected {
            Ok(())
        } else {
            Err(LoadError::NotEqual {
                key: self.key(name),
                got,
                expected,
            })
        }
    }

    /// Errors unless `factor` divides `got`.
    pub fn multiple(&self, name: &str, got: usize, factor: usize) -> Result<(), LoadError> {
        if factor > 0 && got.is_multiple_of(factor) && got > 0 {
            Ok(())
        } else {
            Err(LoadError::NotMultiple {
                key: self.key(name),
                got,
                factor,
            })
        }
    }

    /// Errors if `got` is larger than `allowed`.
    pub fn at_most(&self, name: &str, got: usize, allowed: usize) -> Result<(), LoadError> {
        if got <= allowed {
            Ok(())
        } else {
            Err(LoadError::TooLarge {
                key: self.key(name),
                got,
                allowed,
            })
        }
    }

    fn positive(&self, name: &str, value: usize) -> Result<usize, LoadError> {
        if value > 0 {
            Ok(value)
        } else {
            Err(LoadError::Zero {
                key: self.key(name),
            })
        }
    }
}

/// Tensors.
impl<B: Backend> Loader<'_, B> {
    /// Whether the file has it.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// A matrix `{inputs, outputs}`.
    pub fn matrix(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<B::Matrix, LoadError> {
        let tensor = self.tensor(name, &[inputs, outputs])?;
        self.place(MatrixSource {
            tensor,
            inputs,
            rows: 0..outputs,
        })
    }

    /// The first `rows` rows of a matrix `{inputs, outputs}`.
    pub(crate) fn first_rows(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        rows: usize,
    ) -> Result<B::Matrix, LoadError> {
        let tensor = self.tensor(name, &[inputs, outputs])?;
        self.place(MatrixSource {
            tensor,
            inputs,
            rows: 0..rows,
        })
    }

    /// A vector `{inputs}` used as a matrix with one output.
    pub fn row(&mut self, name: &str, inputs: usize) -> Result<B::Matrix, LoadError> {
        let tensor = self.tensor(name, &[inputs])?;
        self.place(MatrixSource {
            tensor,
            inputs,
            rows: 0..1,
        })
    }

    /// Three matrices with common inputs, from one fused tensor (its rows in order) if the file has it, else from three.
    pub fn parts(
        &mut self,
        fused: &str,
        names: [String; 3],
        inputs: usize,
        outputs: [usize; 3],
    ) -> Result<[B::Matrix; 3], LoadError> {
        if !self.has(fused) {
            let [a, b, c] = names;
            return Ok([
                self.matrix(&a, inputs, outputs[0])?,
                self.matrix(&b, inputs, outputs[1])?,
                self.matrix(&c, inputs, outputs[2])?,
            ]);
        }
        let tensor = self.tensor(fused, &[inputs, outputs.iter().sum()])?;
        let mut at = 0;
        let mut next = |loader: &mut Self, outputs: usize| {
            let rows = at..at + outputs;
            at += outputs;
            loader.place(MatrixSource {
                tensor: tensor.clone(),
                inputs,
                rows,
            })
        };
        Ok([
            next(self, outputs[0])?,
            next(self, outputs[1])?,
            next(self, outputs[2])?,
        ])
    }

    /// Three biases, fused or not, or none.
    pub fn bias_parts(
        &mut self,
        fused: &str,
        names: [String; 3],
        widths: [usize; 3],
    ) -> Result<Option<[B::Vector; 3]>, LoadError> {
        let parts = if self.has(fused) {
            let all = self.values(fused, &[widths.iter().sum()])?;
            let (a, rest) = all.split_at(widths[0]);
            let (b, c) = rest.split_at(widths[1]);
            [a.to_vec(), b.to_vec(), c.to_vec()]
        } else if self.has(&names[0]) {
            [
                self.values(&names[0], &[widths[0]])?,
                self.values(&names[1], &[widths[1]])?,
                self.values(&names[2], &[widths[2]])?,
            ]
        } else {
            return Ok(None);
        };
        let [a, b, c] = parts;
        Ok(Some([self.upload(a)?, self.upload(b)?, self.upload(c)?]))
    }

    /// A vector `{width}`.
    pub fn vector(&mut self, name: &str, width: usize) -> Result<B::Vector, LoadError> {
        let values = self.values(name, &[width])?;
        self.upload(values)
    }

    /// A vector `{width}` times `factor`.
    pub fn scaled_vector(
        &mut self,
        name: &str,
        width: usize,
        factor: f32,
    ) -> Result<B::Vector, LoadError> {
        let mut values = self.values(name, &[width])?;
        values.iter_mut().for_each(|value| *value *= factor);
        self.upload(values)
    }

    /// A single number, if the file has it.
    pub fn scalar(&mut self, name: &str) -> Result<Option<f32>, LoadError> {
        if self.has(name) {
            Ok(Some(self.values(name, &[1])?[0]))
        } else {
            Ok(None)
        }
    }

    /// A vector `{width}`, if the file has it.
    pub fn optional_vector(
        &mut self,
        name: &str,
        width: usize,
    ) -> Result<Option<B::Vector>, LoadError> {
        if self.has(name) {
            self.vector(name, width).map(Some)
        } else {
            Ok(None)
        }
    }

    /// A bias for each expert, `{width, experts}`.
    pub fn expert_biases(
        &mut self,
        name: &str,
        width: usize,
        experts: usize,
    ) -> Result<B::Vector, LoadError> {
        let values = self.values(name, &[width, experts])?;
        self.needs.expert_bias = true;
        self.upload(values)
    }

    /// A vector of `{inner, outer}` values, in one dimension or two.
    pub fn flat_vector(
        &mut self,
        name: &str,
        inner: usize,
        outer: usize,
    ) -> Result<B::Vector, LoadError> {
        let flat = self
            .file
            .tensor(name)
            .is_some_and(|tensor| tensor.dims.padded()[1] == 1);
        let dims: &[usize] = if flat {
            &[inner * outer]
        } else {
            &[inner, outer]
        };
        let values = self.values(name, dims)?;
        self.upload(values)
    }

    /// A table of which few rows are read at a time, found by `shape`.
    pub fn table(&mut self, name: &str, shape: &NgramShape) -> Result<B::Table, LoadError> {
        let rows = (shape.sizes.iter().zip(&shape.offsets))
            .map(|(size, offset)| size.saturating_add(*offset))
            .max()
            .unwrap_or(0);
        let tensor = match self.file.tensor(name) {
            Some(tensor) => tensor.clone(),
            None => self.tensor(name, &[shape.width, rows as usize])?,
        };
        let there = tensor.dims.padded()[1];
        let tensor = self.tensor(name, &[shape.width, there])?;
        self.at_most("ple.head_vocab_sizes", rows as usize, there)?;
        let source = MatrixSource {
            tensor,
            inputs: shape.width,
            rows: 0..there,
        };
        self.backend
            .table(&self.file, source, shape)
            .map_err(refused::<B>)
    }

    /// A small table `{inner, outer}` as f32, turned so that `outer` is contiguous.
    pub fn turned(
        &mut self,
        name: &str,
        inner: usize,
        outer: usize,
    ) -> Result<B::Vector, LoadError> {
        let values = self.values(name, &[inner, outer])?;
        let turned = (0..inner)
            .flat_map(|column| values.iter().skip(column).step_by(inner))
            .copied()
            .collect();
        self.upload(turned)
    }

    /// `ffn_gate_exps` and `ffn_up_exps`, or the two halves of `ffn_gate_up_exps` (gate first).
    pub fn gate_up_experts(
        &mut self,
        at: &str,
        inputs: usize,
        width: usize,
        experts: usize,
    ) -> Result<(B::Experts, B::Experts), LoadError> {
        let fused = format!("{at}.ffn_gate_up_exps.weight");
        if !self.has(&fused) {
            return Ok((
                self.experts(at, "gate", inputs, width, experts)?,
                self.experts(at, "up", inputs, width, experts)?,
            ));
        }
        let tensor = self.tensor(&fused, &[inputs, 2 * width, experts])?;
        let half = |first: usize| {
            let rows =
                |expert: usize| expert * 2 * width + first..expert * 2 * width + first + width;
            ExpertSource {
                layer: None, // `place_experts` says
                experts: (0..experts)
                    .map(|expert| MatrixSource {
                        tensor: tensor.clone(),
                        inputs,
                        rows: rows(expert),
                    })
                    .collect(),
            }
        };
        let (gate, up) = (half(0), half(width));
        Ok((self.place_experts(gate)?, self.place_experts(up)?))
    }

    /// `{at}.ffn_{kind}_exps.weight` `{inputs, outputs, experts}`, or `{at}.ffn_{kind}.{expert}.weight` of old files.
    pub fn experts(
        &mut self,
        at: &str,
        kind: &str,
        inputs: usize,
        outputs: usize,
        experts: usize,
    ) -> Result<B::Experts, LoadError> {
        let stacked = format!("{at}.ffn_{kind}_exps.weight");
        let each = |expert: usize| format!("{at}.ffn_{kind}.{expert}.weight");
        let sources: Vec<MatrixSource> = if !self.has(&stacked) && self.has(&each(0)) {
            (0..experts)
                .map(|expert| {
                    Ok(MatrixSource {
                        tensor: self.tensor(&each(expert), &[inputs, outputs])?,
                        inputs,
                        rows: 0..outputs,
                    })
                })
                .collect::<Result<_, LoadError>>()?
        } else {
            let tensor = self.tensor(&stacked, &[inputs, outputs, experts])?;
            (0..experts)
                .map(|expert| MatrixSource {
                    tensor: tensor.clone(),
                    inputs,
                    rows: expert * outputs..(expert + 1) * outputs,
                })
                .collect()
        };
        self.place_experts(ExpertSource {
            layer: None, // `place_experts` says
            experts: sources,
        })
    }

    fn tensor(&mut self, name: &str, dims: &[usize]) -> Result<Tensor, LoadError> {
        Ok(self.file.need_tensor(name, dims)?.clone())
    }

    fn values(&mut self, name: &str, dims: &[usize]) -> Result<Vec<f32>, LoadError> {
        let tensor = self.tensor(name, dims)?;
        self.numbers(&tensor, dims)
    }

    fn numbers(&self, tensor: &Tensor, dims: &[usize]) -> Result<Vec<f32>, LoadError> {
        let tensor = self.file.need_tensor(&tensor.name, dims)?;
        let mut values = vec![0.0; dims.iter().product()];
        quant::dequantise(tensor.ty, self.file.bytes(tensor), &mut values).map_err(|_| {
            LoadError::NotNumbers {
                tensor: tensor.name.to_string(),
                got: tensor.ty,
            }
        })?;
        Ok(values)
    }

    fn upload(&mut self, values: Vec<f32>) -> Result<B::Vector, LoadError> {
        self.needs.common_bytes += 4 * values.len() as u64;
        self.backend.vector(values).map_err(refused::<B>)
    }

    fn place(&mut self, source: MatrixSource) -> Result<B::Matrix, LoadError> {
        self.needs.common_bytes += source.bytes();
        self.backend
            .matrix(&self.file, source)
            .map_err(refused::<B>)
    }

    fn place_experts(&mut self, mut source: ExpertSource) -> Result<B::Experts, LoadError> {
        let expected = source.experts[0].tensor.ty;
        if let Some(odd) = source
            .experts
            .iter()
            .find(|expert| expert.tensor.ty != expected)
        {
            return Err(LoadError::ExpertType {
                tensor: odd.tensor.name.to_string(),
                got: odd.tensor.ty,
                expected,
            });
        }
        let here = self.needs.expert_layers.last_mut();
        if let Some(layer) = here.filter(|layer| layer.layer == self.layer) {
            layer.expert_bytes += source.experts[0].bytes();
            source.layer = self.trunk.then(|| self.needs.expert_layers.len() - 1);
        }
        self.backend
            .experts(&self.file, source)
            .map_err(refused::<B>)
    }
}

pub(crate) fn refused<B: Backend>(error: B::Error) -> LoadError {
    LoadError::Backend {
        backend: B::NAME,
        why: error.to_string(),
    }
}
