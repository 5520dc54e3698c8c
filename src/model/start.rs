//! From an open file to a running engine: how much room the settings ask for, and the thread that computes in it.

use std::sync::Arc;

use super::{Model, Runner, family, loader::LoadError};
use crate::{
    backend::{Backend, CUT_ROWS, Needs, Room, shape::KvType},
    engine::{Engine, EngineSettings, Handle, StartError, Stopper, executor::PAGE_TOKENS},
    gguf::Gguf,
    quant::BlockType,
    settings::ModelSettings,
};

/// **Units**: tokens. Room for one sequence where neither settings nor the model ask for less: every slot reserves its worst case.
pub const CONTEXT_DEFAULT: usize = 8192;

/// Why an engine's executor could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError<E: std::error::Error + 'static> {
    /// The file.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The backend could not allocate what the plan asks for, or lacks what it needs to compute.
    #[error(transparent)]
    Allocate(E),
}

/// Why no engine runs on backend `B`.
pub type Failed<B> = StartError<BuildError<<B as Backend>::Error>, <B as Backend>::Error>;

/// A model with weights in place and nothing allocated yet.
pub struct Prepared<B: Backend> {
    model: Model<B>,
    backend: B,
    room: Room,
    context: usize,
}

impl<B: Backend> Prepared<B> {
    /// Finds the weights of `file` and decides how much room there shall be.
    ///
    /// **Errors**: the file is no model that can be run.
    pub fn new(
        file: &Arc<Gguf>,
        mut backend: B,
        settings: &ModelSettings,
    ) -> Result<Self, LoadError> {
        let mut model = family::load(file, &mut backend)?;
        if !settings.engine.drafts {
            model = model.without_prediction();
        }
        let context = settings
            .context_tokens
            .unwrap_or(CONTEXT_DEFAULT)
            .min(model.context());
        Ok(Self {
            room: room::<B>(
                settings,
                context,
                settings.kv.unwrap_or_else(|| natural_kv(file)),
            ),
            model,
            backend,
            context,
        })
    }

    /// What it needs besides weights.
    pub fn needs(&self) -> &Needs {
        self.model.needs()
    }

    /// What will compute.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// How much of everything there will be.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// How much of everything there would be on another backend.
    pub fn room_on<C: Backend>(&self, settings: &ModelSettings) -> Room {
        room::<C>(settings, self.context, self.room.kv_type)
    }

    /// **Units**: tokens. Room for one sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    fn run(self) -> Result<Runner<B>, B::Error> {
        Runner::new(self.model, self.backend, self.room, self.context)
    }
}

/// Rows with logits in a window, of all slots together, up to which slots have room for guesses.
const LOGITS_ROWS: usize = 64;

/// A row for every slot's last token, and room for as many guesses behind each: what can be taken back, less where slots are many.
pub(crate) fn logits_rows(slots: usize) -> usize {
    slots * (LOGITS_ROWS / slots.max(1)).clamp(1, 1 + CUT_ROWS)
}

/// Every slot can decode in one window, with room for prompt rows beside, and every slot's context fits at the same time.
fn room<B: Backend>(settings: &ModelSettings, context: usize, kv_type: KvType) -> Room {
    let chunk_rows = chunk_rows::<B>(settings);
    let logits_rows = logits_rows(settings.slots);
    let decode_rows = logits_rows + chunk_rows.min(B::SPARE_ROWS);
    Room {
        rows: chunk_rows.max(decode_rows),
        decode_rows,
        logits_rows,
        slots: settings.slots,
        pages: settings.slots * context.div_ceil(PAGE_TOKENS),
        kv_type,
    }
}

/// Rows of a prompt that are computed together.
pub(crate) fn chunk_rows<B: Backend>(settings: &ModelSettings) -> usize {
    settings.engine.chunk_rows.unwrap_or(B::CHUNK_ROWS)
}

/// Keys and values of an unquantised file are kept as exact as its weights; f16 has not the range of BF16.
fn natural_kv(file: &Gguf) -> KvType {
    let keys = file
        .tensors()
        .iter()
        .find(|tensor| tensor.name.ends_with(".attn_k.weight"));
    match keys.map(|tensor| tensor.ty) {
        Some(BlockType::F32 | BlockType::BF16) => KvType::F32,
        _ => KvType::F16,
    }
}

/// Starts the engine's thread on a model. Blocks until it is ready.
///
/// **Errors**: the file, the memory, or the warm-up generation.
pub fn start<B: Backend>(
    file: Arc<Gguf>,
    backend: impl FnOnce() -> B + Send + 'static,
    settings: &ModelSettings,
) -> Result<(Handle, Stopper), Failed<B>> {
    let asked = settings.clone();
    let build = move || {
        Prepared::new(&file, backend(), &asked)?
            .run()
            .map_err(BuildError::Allocate)
    };
    let engine = EngineSettings {
        chunk_rows: Some(chunk_rows::<B>(settings)),
        gap_max: Some(settings.engine.gap_max.unwrap_or(B::GAP_MAX)),
        ..settings.engine.clone()
    };
    Engine::start(build, engine)
}
