//! Multi-token prediction: a block beside the trunk that turns a position's final hidden state and the token after it into a guess at the token after that.
//!
//! The block has keys and values of its own, so it has to read every position of a sequence, prompt and answer. It reads late: final hidden states are kept
//! for some positions, and when somebody wants a prediction, or when no more can be kept, what is missing is read in one go, keys and values alone. So a
//! sequence of which nothing is predicted hardly pays for it. For further tokens the block's own normed output takes the place of the hidden state.
//!
//! **Source**: c = eh_proj \[rms(embed(x), enorm) ; rms(h, hnorm)\], one decoder block, `shared_head_norm`; positions are counted as the trunk's.

use std::{ops::Range, rc::Rc};

use super::{
    Model,
    loader::{LoadError, Loader},
    window::{RowSpan, Rows, Window},
};
use crate::{
    backend::{Act, Backend, HIDDEN_ROWS, HeadNorm},
    engine::{
        executor::{Ask, Guess, Lane, PageId, Slot, Span},
        request::Token,
    },
    op::{Block, Hidden, Pass, norm::Norm},
};

/// A block that predicts one more token (`nextn`).
pub(super) struct Prediction<B: Backend> {
    /// `{2 d, d}`, the embedding's half first.
    projection: B::Matrix,
    /// Norm of the embedding.
    embedding_norm: Norm<B>,
    /// Norm of the trunk's final hidden state.
    hidden_norm: Norm<B>,
    /// An ordinary decoder block.
    block: Block<B>,
    /// The trunk's norm before its head, which gives final hidden states.
    final_norm: Rc<Norm<B>>,
    /// Norm before the shared head; the trunk's if the file has none.
    head_norm: Rc<Norm<B>>,
    /// Its own embedding, if the file has one.
    embedding: Option<B::Matrix>,
    /// Its own head, if the file has one.
    output: Option<B::Matrix>,
    /// The first rows of the head, those of frequent tokens, where these are few.
    frequent: Option<B::Matrix>,
}

/// Tokens of a vocabulary that count as frequent: this part of it, the first, but no fewer than [`FREQUENT_LEAST`]. **Source**: vocabularies are made by
/// merging what stands together most often first, so the lower an id, the more frequent the token.
const FREQUENT_PART: usize = 8;
/// As small as trained vocabularies are: with fewer, many right tokens would be missing.
const FREQUENT_LEAST: usize = 4096;

/// How many tokens count as frequent; 0 if that would be most of them.
fn frequent(vocab: usize) -> usize {
    let count = (vocab / FREQUENT_PART).max(FREQUENT_LEAST);
    if 2 * count <= vocab { count } else { 0 }
}

impl<B: Backend> Prediction<B> {
    /// How many tokens a prediction can be chosen among without the whole head; 0 if it cannot.
    pub(super) fn frequent(&self, vocab: usize) -> usize {
        self.frequent.as_ref().map_or(0, |_| frequent(vocab))
    }

    /// Tensors `{at}.nextn.{eh_proj, enorm, hnorm}`, where the file has them `{at}.nextn.{shared_head_norm, embed_tokens, shared_head_head}`, and those of an ordinary
    /// block.
    pub(super) fn load(
        from: &mut Loader<'_, B>,
        at: &str,
        final_norm: &Rc<Norm<B>>,
        block: &mut impl FnMut(&mut Loader<'_, B>, &str) -> Result<Block<B>, LoadError>,
    ) -> Result<Self, LoadError> {
        let width = from.residual();
        let head_norm = format!("{at}.nextn.shared_head_norm");
        let (mut embedding, mut output, mut frequent) = (None, None, None);
        if B::PREDICTS {
            from.need(Act::Paired, 2 * width);
            let vocab = from.vocabulary()?;
            let mut own = |name: &str| {
                let name = format!("{at}.nextn.{name}.weight");
                if from.has(&name) {
                    from.matrix(&name, width, vocab).map(Some)
                } else {
                    Ok(None)
                }
            };
            (embedding, output) = (own("embed_tokens")?, own("shared_head_head")?);
            let own_head = format!("{at}.nextn.shared_head_head.weight");
            let head = [own_head.as_str(), "output.weight", "token_embd.weight"];
            let head = head.into_iter().find(|name| from.has(name));
            if let (Some(head), count @ 1.., true) = (head, self::frequent(vocab), B::SHORTLISTS) {
                frequent = Some(from.first_rows(head, width, vocab, count)?);
            }
        }
        Ok(Self {
            projection: from.matrix(&format!("{at}.nextn.eh_proj.weight"), 2 * width, width)?,
            embedding_norm: Norm::load(from, &format!("{at}.nextn.enorm"))?,
            hidden_norm: Norm::load(from, &format!("{at}.nextn.hnorm"))?,
            block: block(from, at)?,
            head_norm: if from.has(&format!("{head_norm}.weight")) {
                Rc::new(Norm::load(from, &head_norm)?)
            } else {
                final_norm.clone()
            },
            final_norm: final_norm.clone(),
            embedding,
            output,
            frequent,
        })
    }
}

/// Positions that are read in one go, at most: as many can then be kept of the next window.
const READ_ROWS: usize = HIDDEN_ROWS / 2;
/// Certain rows of a window that are read at once rather than late: they are a prompt's.
const AT_ONCE: usize = 32;
/// Tokens that are remembered: of each position whose hidden state is kept, and the one after it.
const TOKENS: usize = 2 * HIDDEN_ROWS;

/// What is known of a slot's sequence.
#[derive(Clone)]
struct Followed {
    /// Positions whose hidden states the trunk has computed.
    end: usize,
    /// Of these, the first that the block has not read.
    unread: usize,
    /// By position, modulo their number.
    tokens: [Token; TOKENS],
}

impl Followed {
    const NOTHING: Self = Self {
        end: 0,
        unread: 0,
        tokens: [0; TOKENS],
    };

    fn put(&mut self, position: usize, token: Token) {
        self.tokens[position % TOKENS] = token;
    }
}

/// The block at work.
pub(super) struct Predictor<B: Backend> {
    window: Window<B>,
    slots: Box<[Followed]>,
    /// Positions that are read in one go.
    read_rows: usize,
    tokens: Vec<Token>,
}

impl<B: Backend> Predictor<B> {
    /// For so many slots, on a backend whose windows have room for so many rows.
    pub(super) fn new(backend: &mut B, slots: usize, rows: usize) -> Result<Self, B::Error> {
        let read_rows = READ_ROWS.min(rows);
        Ok(Self {
            window: Window {
                lane: Lane::Decode,
                layer: 0,
                rows: Rows::default(),
                residual: backend.residual(read_rows.max(slots))?,
            },
            slots: vec![Followed::NOTHING; slots].into(),
            read_rows,
            tokens: Vec::with_capacity(read_rows),
        })
    }

    /// A slot's sequence begins anew.
    pub(super) fn reset(&mut self, slot: Slot) {
        let followed = &mut self.slots[slot.0 as usize];
        (followed.end, followed.unread) = (0, 0);
    }

    /// A slot's last rows were taken back. None of them has been read: what follows them was not known.
    pub(super) fn cut(&mut self, slot: Slot, rows: usize) {
        let followed = &mut self.slots[slot.0 as usize];
        followed.end -= rows;
        debug_assert!(followed.unread <= followed.end);
    }

    /// Keeps the hidden states of a window that the trunk has computed, and reads what would otherwise be lost.
    pub(super) fn follow(
        &mut self,
        backend: &mut B,
        model: &Model<B>,
        window: &Window<B>,
    ) -> Result<(), B::Error> {
        let (norm, eps) = model.prediction[0].final_norm.parts();
        for span in window.rows.spans() {
            let pages = window.rows.pages(span);
            let certain = span.rows.len() - span.drafts;
            let mut row = 0;
            while row < span.rows.len() {
                let piece = row..span.rows.len().min(row + self.read_rows);
                row = piece.end;
                self.make_room(backend, model, span, &piece, pages)?;
                let followed = &mut self.slots[span.slot.0 as usize];
                let in_window = span.rows.start + piece.start..span.rows.start + piece.end;
                let tokens = &window.rows.tokens()[in_window.clone()];
                for (position, token) in (span.first + piece.start..).zip(tokens) {
                    followed.put(position, *token);
                }
                followed.end = span.first + piece.end;
                backend.keep(window, in_window, 0, norm, eps)?;
            }
            // what a prompt's rows are followed by is known
            if certain > AT_ONCE {
                self.read(backend, model, span.slot, pages)?;
            }
        }
        Ok(())
    }

    /// Reads so much that a piece of a span can be kept.
    fn make_room(
        &mut self,
        backend: &mut B,
        model: &Model<B>,
        span: &RowSpan,
        piece: &Range<usize>,
        pages: &[PageId],
    ) -> Result<(), B::Error> {
        let followed = &self.slots[span.slot.0 as usize];
        debug_assert_eq!(followed.end, span.first + piece.start);
        if span.first + piece.end - followed.unread <= HIDDEN_ROWS {
            return Ok(());
        }
        self.read(backend, model, span.slot, pages)
    }

    /// Reads all positions but the last, whose successor may not be known.
    fn read(
        &mut self,
        backend: &mut B,
        model: &Model<B>,
        slot: Slot,
        pages: &[PageId],
    ) -> Result<(), B::Error> {
        let end = self.slots[slot.0 as usize].end.saturating_sub(1);
        while self.slots[slot.0 as usize].unread < end {
            let followed = &mut self.slots[slot.0 as usize];
            let first = followed.unread;
            followed.unread = end.min(first + self.read_rows);
            self.tokens.clear();
            let successors = first + 1..=followed.unread;
            self.tokens
                .extend(successors.map(|position| followed.tokens[position % TOKENS]));
            self.window.rows.fill(&[Span {
                slot,
                first: first as u32,
                tokens: &self.tokens,
                pages,
                logits: 0,
                ask: Ask::Greedy,
                drafts: 0,
            }]);
            self.begin(backend, model)?;
            let (window, prediction) = (&mut self.window, &model.prediction[0]);
            let mut pass = Pass { backend, window };
            prediction.block.remember(&mut pass, Hidden(()))?;
        }
        Ok(())
    }

    /// From tokens and hidden states to the block's input.
    fn begin(&mut self, backend: &mut B, model: &Model<B>) -> Result<(), B::Error> {
        let (window, prediction) = (&mut self.window, &model.prediction[0]);
        let (embedding_norm, eps) = prediction.embedding_norm.parts();
        let (hidden_norm, _) = prediction.hidden_norm.parts();
        backend.begin(window)?;
        let table = prediction.embedding.as_ref().unwrap_or(&model.embedding);
        backend.pair(window, table, [embedding_norm, hidden_norm], eps)?;
        let to = [(&prediction.projection, Act::Branch)];
        backend.matmul(window.rows.count(), Act::Paired, &to)?;
        backend.replace(window)
    }

    /// See [`Executor::predict`](crate::engine::executor::Executor::predict).
    pub(super) fn predict(
        &mut self,
        backend: &mut B,
        model: &Model<B>,
        step: usize,
        guesses: &[Guess<'_>],
    ) -> Result<(), B::Error> {
        if step == 0 {
            for guess in guesses {
                let followed = &mut self.slots[guess.slot.0 as usize];
                followed.put(followed.end, guess.token);
                self.read(backend, model, guess.slot, guess.pages)?;
                let followed = &mut self.slots[guess.slot.0 as usize];
                followed.unread = followed.end; // the last position is read below
            }
        }
        let spans: Vec<Span<'_>> = guesses
            .iter()
            .map(|guess| Span {
                slot: guess.slot,
                first: (self.slots[guess.slot.0 as usize].end - 1 + step) as u32,
                tokens: std::slice::from_ref(&guess.token),
                pages: guess.pages,
                logits: 1,
                ask: guess.ask,
                drafts: 0,
            })
            .collect();
        self.window.rows.fill(&spans);
        self.begin(backend, model)?;
        let (window, prediction) = (&mut self.window, &model.prediction[0]);
        let mut pass = Pass { backend, window };
        prediction.block.enqueue(&mut pass, Hidden(()))?;
        let (norm, eps) = prediction.head_norm.parts();
        // its output stands for the hidden state of the position after its own
        backend.keep(window, 0..guesses.len(), 1, norm, eps)?;
        let output = prediction.output.as_ref().or(model.output.as_ref());
        let output = output.unwrap_or(&model.embedding);
        let norm = HeadNorm::Rms(norm, eps);
        let among: Vec<_> = guesses.iter().map(|guess| guess.among).collect();
        match &prediction.frequent {
            Some(frequent) if among.iter().any(Option::is_some) => {
                let outputs = [output, frequent];
                backend.head_among(window, norm, outputs, model.softcap, &among)?;
            }
            _ => backend.head(window, norm, output, model.softcap)?,
        }
        backend.settle(window)
    }
}
