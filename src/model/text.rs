//! What a model file says about text: its tokenizer, its chat template, and how it wants tokens chosen.

use std::sync::Arc;

use crate::{
    engine::request::{Sampling, Token},
    gguf::{Gguf, GgufError},
    stage::reason::Markup,
    template::{ChatTemplate, TemplateError, TemplateSpec},
    token::{Tokenizer, TokenizerError, TokenizerSpec},
};

/// Where a file says nothing. **Source**: common practice for chat models.
const TEMPERATURE: f32 = 0.7;
/// As [`TEMPERATURE`].
const TOP_P: f32 = 0.95;

/// Everything between a client's text and the model's tokens.
pub struct ModelText {
    /// The vocabulary.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template.
    pub template: Arc<ChatTemplate>,
    /// How the model marks its reasoning.
    pub markup: Markup,
    /// How tokens are chosen where a request says nothing; its seed means nothing.
    pub sampling: Sampling,
}

/// Why a file's text side cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A key is missing or has another type.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The vocabulary contradicts itself or is of an unsupported kind.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The template does not compile.
    #[error("tokenizer.chat_template: {0}")]
    Template(#[from] TemplateError),
}

impl ModelText {
    /// Reads it all.
    ///
    /// **Errors**: [`TextError`], naming the key.
    pub fn read(file: &Gguf) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::new(&vocabulary(file)?)?;
        let template = template(file, &tokenizer)?;
        Ok(Self {
            markup: Markup::of(&tokenizer),
            tokenizer: Arc::new(tokenizer),
            template: Arc::new(template),
            sampling: sampling(file)?,
        })
    }
}

fn vocabulary(file: &Gguf) -> Result<TokenizerSpec<'_>, GgufError> {
    let texts = |key: &str| -> Result<Vec<&str>, GgufError> {
        file.strings(key)?
            .map_or_else(|| Ok(Vec::new()), |strings| strings.texts().collect())
    };
    let id = |name: &str| file.u32(&format!("tokenizer.ggml.{name}_token_id"));
    let fim_ends: Vec<Option<Token>> = ["fim_pad", "fim_rep", "fim_sep"]
        .into_iter()
        .map(id)
        .collect::<Result<_, _>>()?;
    Ok(TokenizerSpec {
        model: file.need_str("tokenizer.ggml.model")?,
        pre: file.str("tokenizer.ggml.pre")?,
        tokens: texts("tokenizer.ggml.tokens")?,
        merges: texts("tokenizer.ggml.merges")?,
        scores: file.f32s("tokenizer.ggml.scores")?.unwrap_or_default(),
        token_types: file.i32s("tokenizer.ggml.token_type")?.unwrap_or_default(),
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unknown: id("unknown")?,
        fim_ends: fim_ends.into_iter().flatten().collect(),
        add_bos: file.bool("tokenizer.ggml.add_bos_token")?,
        add_space_prefix: file.bool("tokenizer.ggml.add_space_prefix")?,
    })
}

fn template(file: &Gguf, tokenizer: &Tokenizer) -> Result<ChatTemplate, TextError> {
    let name = |token: Option<Token>| {
        token
            .map(|token| tokenizer.token_text(token))
            .unwrap_or_default()
    };
    let controls = tokenizer.control_tokens();
    let controls: Vec<_> = controls.map(|token| tokenizer.token_text(token)).collect();
    Ok(ChatTemplate::new(&TemplateSpec {
        source: file.str("tokenizer.chat_template")?,
        tool_use: file.str("tokenizer.chat_template.tool_use")?,
        bos: &name(tokenizer.bos()),
        eos: &name(tokenizer.eos()),
        controls: &controls.iter().map(AsRef::as_ref).collect::<Vec<&str>>(),
    })?)
}

/// **Source**: the keys `general.sampling.*`, as llama.cpp writes them.
fn sampling(file: &Gguf) -> Result<Sampling, GgufError> {
    let number = |name: &str| file.f32(&format!("general.sampling.{name}"));
    let neutral = Sampling::default();
    Ok(Sampling {
        temperature: number("temp")?.unwrap_or(TEMPERATURE),
        top_p: number("top_p")?.unwrap_or(TOP_P),
        top_k: file
            .u32("general.sampling.top_k")?
            .map_or(neutral.top_k, |k| k as usize),
        min_p: number("min_p")?.unwrap_or(neutral.min_p),
        repetition_penalty: number("penalty_repeat")?.unwrap_or(neutral.repetition_penalty),
        ..neutral
    })
}
