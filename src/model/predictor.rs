//! Multi-token prediction: a block beside the trunk that turns a position's final hidden state and the token after it into a guess at the token after that.
//!
//! The block has keys and values of its own, so it has to read every position of a sequence, prompt and answer, keys and values alone. A prompt's rows it reads
//! as they are: with a window that has many. Others it reads late: final hidden states are kept for some positions, and when somebody wants a prediction, or when no more can
//! be kept, what is missing is read in one go. So a sequence of which nothing is predicted hardly pays for it. For further tokens the block's own normed output takes the
//! place of the hidden state.
//!
//! **Source**: c = eh_proj \[rms(embed(x), enorm) ; rms(h, hnorm)\], one decoder block, `shared_head_norm`; positions are counted as the trunk's.

use std::rc::Rc;

use super::{
    Model,
    loader::{LoadError, Loader},
    window::{RowSpan, Rows, Window},
};
use crate::{
    backend::{Act, Backend, HIDDEN_ROWS, HeadNorm, Room, States, chain::Chain},
    engine::{
        executor::{Ask, Guess, Lane, PageId, Slot, Span},
        request::Token,
    },
    op::{Block, Hidden, Pass, norm::Norm},
    sampler::Scratch,
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
        let (embedding, output) = (own("embed_tokens")?, own("shared_head_head")?);
        let own_head = format!("{at}.nextn.shared_head_head.weight");
        let head = [own_head.as_str(), "output.weight", "token_embd.weight"];
        let head = head.into_iter().find(|name| from.has(name));
        let frequent = match (head, self::frequent(vocab)) {
            (Some(head), count @ 1..) if B::SHORTLISTS => {
                Some(from.first_rows(head, width, vocab, count)?)
            }
            _ => None,
        };
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

    /// Keeps the final hidden states of a window.
    pub(super) fn keep(&self, backend: &mut B, window: &Window<B>) -> Result<(), B::Error> {
        let (norm, eps) = self.final_norm.parts();
        backend.keep(window, 0, norm, eps)
    }

    /// From tokens and hidden states to the block's input.
    fn begin(
        &self,
        pass: &mut Pass<'_, B>,
        model: &Model<B>,
        states: States<'_, B>,
    ) -> Result<Hidden, B::Error> {
        let (embedding_norm, eps) = self.embedding_norm.parts();
        let (hidden_norm, _) = self.hidden_norm.parts();
        let table = self.embedding.as_ref().unwrap_or(&model.embedding);
        let Pass { backend, window } = pass;
        backend.pair(window, states, table, [embedding_norm, hidden_norm], eps)?;
        backend.project(window, Act::Paired, &self.projection)?;
        Ok(Hidden(()))
    }

    /// Leaves behind what later rows need of a window's.
    fn read(
        &self,
        pass: &mut Pass<'_, B>,
        model: &Model<B>,
        states: States<'_, B>,
    ) -> Result<(), B::Error> {
        let input = self.begin(pass, model, states)?;
        self.block.remember(pass, input)
    }

    /// To the logits of the tokens behind a window's.
    fn step(
        &self,
        pass: &mut Pass<'_, B>,
        model: &Model<B>,
        among: &[Option<&[Token]>],
    ) -> Result<(), B::Error> {
        let input = self.begin(pass, model, States::Kept)?;
        let Hidden(()) = self.block.enqueue(pass, input)?;
        let (norm, eps) = self.head_norm.parts();
        // its output stands for the hidden state of the position after its own
        pass.backend.keep(pass.window, 1, norm, eps)?;
        let output = self.output.as_ref().or(model.output.as_ref());
        let (output, norm) = (output.unwrap_or(&model.embedding), HeadNorm::Rms(norm, eps));
        match &self.frequent {
            Some(frequent) if among.iter().any(Option::is_some) => {
                let outputs = [output, frequent];
                let Pass { backend, window } = pass;
                backend.head_among(window, norm, outputs, model.softcap, among)
            }
            _ => pass.backend.head(pass.window, norm, output, model.softcap),
        }
    }
}

/// Certain rows of a window that are read at once rather than late: they are a prompt's.
const AT_ONCE: usize = 32;
/// Tokens that are remembered: of each position whose hidden state is kept, and the one after it.
const TOKENS: usize = 2 * HIDDEN_ROWS;

fn block<B: Backend>(model: &Model<B>) -> &Prediction<B> {
    let block = model.prediction.as_ref();
    block.expect("there is a predictor where there is a prediction block")
}

/// Rows whose successors are certain, if they are read at once.
fn at_once(span: &RowSpan) -> Option<usize> {
    let certain = span.rows.len() - span.drafts;
    (certain > AT_ONCE).then_some(certain - 1)
}

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
    /// What is read late.
    late: Window<B>,
    /// What is predicted.
    ahead: Window<B>,
    slots: Box<[Followed]>,
    /// Rows of `late`, at most.
    late_rows: usize,
    scratch: Scratch,
}

/// Whose positions up to which are to be read.
type Unread<'a> = (Slot, usize, &'a [PageId]);

impl<B: Backend> Predictor<B> {
    pub(super) fn new(backend: &mut B, room: &Room) -> Result<Self, B::Error> {
        let [late_rows, ahead_rows] = room.beside_rows();
        let mut window = |rows| {
            Ok(Window {
                lane: Lane::Decode,
                layer: 0,
                part: 0,
                rows: Rows::default(),
                residual: backend.residual(rows)?,
            })
        };
        Ok(Self {
            late: window(late_rows)?,
            ahead: window(ahead_rows)?,
            slots: vec![Followed::NOTHING; room.slots].into(),
            late_rows,
            scratch: Scratch::default(),
        })
    }

    fn slot(&mut self, slot: Slot) -> &mut Followed {
        &mut self.slots[slot.0 as usize]
    }

    /// A slot's sequence begins anew.
    pub(super) fn reset(&mut self, slot: Slot) {
        let followed = self.slot(slot);
        (followed.end, followed.unread) = (0, 0);
    }

    /// A slot's last rows were taken back. None of them has been read: what follows them was not known.
    pub(super) fn cut(&mut self, slot: Slot, rows: usize) {
        let followed = self.slot(slot);
        followed.end -= rows;
        debug_assert!(followed.unread <= followed.end);
    }

    /// Reads what cannot be kept beside the rows of a window that is about to be computed, or comes before rows that will be read at once.
    pub(super) fn make_room(
        &mut self,
        backend: &mut B,
        model: &Model<B>,
        rows: &Rows,
    ) -> Result<(), B::Error> {
        let mut unread: Vec<Unread<'_>> = Vec::new();
        for span in rows.spans() {
            let followed = self.slot(span.slot);
            debug_assert_eq!(followed.end, span.first);
            followed.put(span.first, rows.tokens()[span.rows.start]);
            let kept = span.first + span.rows.len() - followed.unread;
            if kept > HIDDEN_ROWS || at_once(span).is_some() {
                unread.push((span.slot, span.first, rows.pages(span)));
            }
        }
        self.read(backend, model, &unread)
    }

    /// Takes note of a window that the trunk has computed, and reads prompts.
    pub(super) fn follow(
        &mut self,
        backend: &mut B,
        model: &Model<B>,
        window: &mut Window<B>,
    ) -> Result<(), B::Error> {
        let mut reads = false;
        for span in window.rows.spans() {
            let tokens = &window.rows.tokens()[span.rows.clone()];
            let followed = self.slot(span.slot);
            for (position, token) in (span.first..).zip(tokens) {
                followed.put(position, *token);
            }
            followed.end = span.first + span.rows.len();
            if let Some(rows) = at_once(span) {
                followed.unread = span.first + rows;
                reads = true;
            }
        }
        if !reads {
            return Ok(());
        }
        // what it reads of rows that are not certain, or have no successor yet, it will read again
        let prediction = block(model);
        let (norm, eps) = prediction.final_norm.parts();
        prediction.read(&mut Pass { backend, window }, model, States::Own(norm, eps))
    }

    /// Reads all positions of these sequences up to their ends, of which the successors are known.
    fn read(
        &mut self,
        backend: &mut B,
        model: &Model<B>,
        unread: &[Unread<'_>],
    ) -> Result<(), B::Error> {
        let mut left = unread;
        while let Some((slot, end, _)) = left.first() {
            if self.slot(*slot).unread >= *end {
                left = &left[1..];
                continue;
            }
            self.fill_late(left);
            let (backend, window) = (&mut *backend, &mut self.late);
            backend.begin(window)?;
            let pass = &mut Pass { backend, window };
            block(model).read(pass, model, States::Kept)?;
        }
        Ok(())
    }

    /// As many positions as a window has room for.
    fn fill_late(&mut self, unread: &[Unread<'_>]) {
        let mut parts = Vec::with_capacity(unread.len());
        let mut tokens = Vec::with_capacity(self.late_rows);
        for (slot, end, pages) in unread {
            let room = self.late_rows - tokens.len();
            let followed = &mut self.slots[slot.0 as usize];
            let read = followed.unread..(*end).min(followed.unread + room);
            if read.is_empty() {
                continue;
            }
            followed.unread = read.end;
            tokens.extend((read.start + 1..=read.end).map(|at| followed.tokens[at % TOKENS]));
            parts.push((*slot, read, *pages));
        }
        let mut tokens = &tokens[..];
        let spans = parts.into_iter().map(|(slot, read, pages)| {
            let (own, others) = tokens.split_at(read.len());
            tokens = others;
            Span {
                slot,
                first: read.start as u32,
                tokens: own,
                pages,
                logits: 0,
                ask: Ask::Greedy,
                drafts: 0,
            }
        });
        self.late.rows.fill(&spans.collect::<Vec<_>>());
    }

    /// See [`Executor::predict`](crate::engine::executor::Executor::predict).
    pub(super) fn predict(
        &mut self,
        backend: &mut B,
        model: &Model<B>,
        guesses: &[Guess<'_>],
        predicted: &mut Vec<(Slot, Token)>,
    ) -> Result<(), B::Error> {
        let mut unread = Vec::with_capacity(guesses.len());
        for guess in guesses {
            let followed = self.slot(guess.slot);
            debug_assert_eq!(followed.end + 1, guess.position);
            followed.put(followed.end, guess.token);
            unread.push((guess.slot, followed.end - 1, guess.pages));
        }
        self.read(backend, model, &unread)?;
        let mut guesses = guesses.to_vec();
        guesses.sort_by_key(|guess| std::cmp::Reverse(guess.depth));
        let spans: Vec<Span<'_>> = guesses
            .iter()
            .map(|guess| {
                let followed = self.slot(guess.slot);
                followed.unread = followed.end; // its first step reads the last position
                Span {
                    slot: guess.slot,
                    first: followed.end as u32 - 1,
                    tokens: std::slice::from_ref(&guess.token),
                    pages: guess.pages,
                    logits: 1,
                    ask: guess.sampler.ask_to_draw(B::CANDIDATES),
                    drafts: 0,
                }
            })
            .collect();
        self.ahead.rows.fill(&spans);
        let chain = Chain {
            guesses: &guesses,
            predicted,
            scratch: &mut self.scratch,
        };
        backend.chain(&mut self.ahead, chain, |backend, window, among| {
            block(model).step(&mut Pass { backend, window }, model, among)
        })
    }
}
