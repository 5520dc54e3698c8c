//! What a GGUF file holds, for people and for programs: `tidegate inspect`.
//!
//! Collects facts and judges nothing: any file that opens can be inspected, also one that no pipeline can run.

mod print;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use crate::gguf::{Gguf, GgufError, Tensor, Value};

/// Longest array that is written out; of longer ones only type and length are told.
const ARRAY_SHOWN: usize = 128;

/// The facts about a file. [`text`](Self::text) is for people, [`json`](Self::json) for programs.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The file, or every shard.
    pub files: Vec<FileFacts>,
    /// Version of the container.
    pub version: u32,
    /// All metadata in file order.
    pub metadata: Map<String, Json>,
    /// The vocabulary, if there is one.
    pub tokenizer: Option<TokenizerFacts>,
    /// Bytes by block type, largest first.
    pub types: Vec<TypeFacts>,
    /// What a token reads, for mixtures of experts.
    pub experts: Option<ExpertFacts>,
    /// All tensors, by name.
    pub tensors: Vec<TensorFacts>,
}

/// A file on disk.
#[derive(Clone, Debug, Serialize)]
pub struct FileFacts {
    /// Where, as far as it is UTF-8.
    pub path: String,
    /// Its size.
    pub bytes: usize,
}

/// The vocabulary.
#[derive(Clone, Debug, Serialize)]
pub struct TokenizerFacts {
    /// `tokenizer.ggml.model`.
    pub model: String,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// Tokens.
    pub tokens: usize,
    /// Merges of a BPE vocabulary.
    pub merges: usize,
    /// Role, id and text of the special tokens that the file names.
    pub special: Vec<(String, u32, String)>,
    /// Bytes of the chat template.
    pub chat_template_bytes: Option<usize>,
}

/// All tensors of one type.
#[derive(Clone, Debug, Serialize)]
pub struct TypeFacts {
    /// The type.
    #[serde(rename = "type")]
    pub ty: &'static str,
    /// Tensors.
    pub tensors: usize,
    /// Values in them.
    pub values: usize,
    /// Bytes of them.
    pub bytes: usize,
}

/// What makes a mixture of experts small in use.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ExpertFacts {
    /// Layers with experts.
    pub layers: usize,
    /// Experts of a layer.
    pub count: usize,
    /// Experts that a token uses in a layer.
    pub used: usize,
    /// Bytes of all experts.
    pub bytes: usize,
    /// Bytes of one expert: its gate, up and down matrices. The mean over all.
    pub bytes_each: usize,
    /// Bytes of weights that one token reads: everything but unused experts, other tokens' embeddings and prediction blocks.
    pub bytes_per_token: usize,
}

/// A tensor.
#[derive(Clone, Debug, Serialize)]
pub struct TensorFacts {
    /// Its name.
    pub name: String,
    /// Its shape, the contiguous dimension first.
    pub dims: Vec<usize>,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: &'static str,
    /// Its size.
    pub bytes: usize,
    /// Which file of a split model, 0 for the first.
    pub shard: usize,
    /// Where in that file.
    pub offset: usize,
}

impl Inspection {
    /// Collects the facts.
    ///
    /// **Errors**: keys of the vocabulary or of the experts with values of another type.
    pub fn of(file: &Gguf) -> Result<Self, GgufError> {
        Ok(Self {
            files: file
                .files()
                .map(|(path, bytes)| FileFacts {
                    path: path.display().to_string(),
                    bytes,
                })
                .collect(),
            version: file.version(),
            metadata: file
                .metadata()
                .map(|(key, value)| (key.to_owned(), to_json(value)))
                .collect(),
            tokenizer: tokenizer(file)?,
            types: types(file.tensors()),
            experts: experts(file)?,
            tensors: file.tensors().iter().map(TensorFacts::of).collect(),
        })
    }

    /// The facts as a JSON object on one line.
    pub fn json(&self) -> String {
        let mut line = json!(self).to_string();
        line.push('\n');
        line
    }
}

impl TensorFacts {
    fn of(tensor: &Tensor) -> Self {
        Self {
            name: tensor.name.to_string(),
            dims: tensor.dims.trimmed().to_vec(),
            ty: tensor.ty.label(),
            bytes: tensor.bytes,
            shard: tensor.shard,
            offset: tensor.offset,
        }
    }
}

fn to_json(value: Value<'_>) -> Json {
    match value {
        Value::Unsigned(n) => n.into(),
        Value::Signed(n) => n.into(),
        // An f32 is told in as few digits as name it, not in those of the f64 it fits.
        Value::Float(x) if f64::from(x as f32) == x => {
            (x as f32).to_string().parse::<f64>().unwrap_or(x).into()
        }
        Value::Float(x) => x.into(),
        Value::Bool(truth) => truth.into(),
        Value::String(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::Array(array) if array.len() <= ARRAY_SHOWN => array.iter().map(to_json).collect(),
        Value::Array(array) => {
            json!({ "array_of": array.element().label(), "length": array.len() })
        }
    }
}

fn tokenizer(file: &Gguf) -> Result<Option<TokenizerFacts>, GgufError> {
    let Some(tokens) = file.strings("tokenizer.ggml.tokens")? else {
        return Ok(None);
    };
    let mut special = Vec::new();
    for (key, _) in file.metadata() {
        let role = key
            .strip_prefix("tokenizer.ggml.")
            .and_then(|rest| rest.strip_suffix("_token_id"));
        if let Some(role) = role
            && let Some(id) = file.u32(key)?
        {
            let text = tokens
                .iter()
                .nth(id as usize)
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            special.push((
                role.to_owned(),
                id,
                text.unwrap_or_else(|| "outside the vocabulary".to_owned()),
            ));
        }
    }
    Ok(Some(TokenizerFacts {
        model: file
            .str("tokenizer.ggml.model")?
            .unwrap_or("not named")
            .to_owned(),
        pre: file.str("tokenizer.ggml.pre")?.map(str::to_owned),
        tokens: tokens.len(),
        merges: file
            .strings("tokenizer.ggml.merges")?
            .map_or(0, |merges| merges.len()),
        special,
        chat_template_bytes: file.str("tokenizer.chat_template")?.map(str::len),
    }))
}

fn types(tensors: &[Tensor]) -> Vec<TypeFacts> {
    let mut by_type = BTreeMap::new();
    for tensor in tensors {
        let facts = by_type.entry(tensor.ty).or_insert(TypeFacts {
            ty: tensor.ty.label(),
            tensors: 0,
            values: 0,
            bytes: 0,
        });
        facts.tensors += 1;
        facts.values = facts.values.saturating_add(tensor.values());
        facts.bytes += tensor.bytes;
    }
    let mut types: Vec<TypeFacts> = by_type.into_values().collect();
    types.sort_by_key(|facts| std::cmp::Reverse(facts.bytes));
    types
}

fn experts(file: &Gguf) -> Result<Option<ExpertFacts>, GgufError> {
    let Ok(architecture) = file.architecture() else {
        return Ok(None);
    };
    let number = |name: &str| {
        file.u32(&format!("{architecture}.{name}"))
            .map(|n| n.unwrap_or(0) as usize)
    };
    let (count, used) = (number("expert_count")?, number("expert_used_count")?);
    let of_experts: Vec<&Tensor> = file
        .tensors()
        .iter()
        .filter(|tensor| is_expert(&tensor.name))
        .collect();
    let mut layers: Vec<&str> = of_experts
        .iter()
        .filter_map(|tensor| tensor.name.split('.').nth(1))
        .collect();
    layers.sort_unstable();
    layers.dedup();
    let (layers, bytes) = (
        layers.len(),
        of_experts.iter().map(|tensor| tensor.bytes).sum::<usize>(),
    );
    if count == 0 || layers == 0 {
        return Ok(None);
    }
    let trunk = number("block_count")?.saturating_sub(number("nextn_predict_layers")?);
    let layer = |tensor: &Tensor| {
        tensor
            .name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split('.').next()?.parse::<usize>().ok())
    };
    let read = file
        .tensors()
        .iter()
        .filter(|tensor| trunk == 0 || layer(tensor).is_none_or(|layer| layer < trunk))
        .map(|tensor| {
            // With an output matrix of its own, the embedding table is read one row a token.
            let one_row =
                &*tensor.name == "token_embd.weight" && file.tensor("output.weight").is_some();
            match (one_row, is_expert(&tensor.name)) {
                (true, _) => tensor.row_bytes(),
                (_, true) => tensor.bytes / count * used.min(count),
                _ => tensor.bytes,
            }
        });
    Ok(Some(ExpertFacts {
        layers,
        count,
        used,
        bytes,
        bytes_each: bytes / (layers * count),
        bytes_per_token: read.sum(),
    }))
}

/// Whether a tensor holds routed experts: a stack of all, or (in old files) `ffn_gate.7.weight`, one each.
fn is_expert(name: &str) -> bool {
    let role = name.splitn(3, '.').nth(2).unwrap_or_default();
    let mut parts = role.split('.');
    let (kind, second) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    kind.ends_with("_exps") || kind.starts_with("ffn_") && second.parse::<u32>().is_ok()
}

#[cfg(test)]
mod tests;
