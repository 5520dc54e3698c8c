//! A model that repeats its prompt, again and again, or what it was taught: greedy, its tokens can be foretold; sampled, they depend on the seed.

use std::sync::mpsc::{Receiver, Sender, channel};

use tidegate::engine::{
    executor::{Capacity, Executor, Lane, Progress, Slot, Span},
    request::Token,
};

/// The device is gone.
#[derive(Debug, thiserror::Error)]
#[error("the parrot has flown")]
pub(crate) struct Lost;

/// How far the likeliest token stands out, in logits.
const PEAK: f32 = 8.0;
/// KV positions for every slot.
const LAYERS: usize = 2;

/// What a slot has heard.
#[derive(Clone, Debug, Default)]
struct Heard {
    tokens: Vec<Token>,
    /// Where the prompt ends, once it has.
    prompt: Option<usize>,
}

/// See the module.
pub(crate) struct Parrot {
    capacity: Capacity,
    /// A layer takes one of these, or waits.
    gate: Option<Receiver<()>>,
    /// A prompt that ends with this token makes every logit NaN.
    poison: Option<Token>,
    /// A prompt that ends with this token loses the device.
    loss: Option<Token>,
    /// What it says instead of its prompt.
    taught: Option<Vec<Token>>,
    /// Whoever listens gets the tokens that it hears.
    ears: Option<Sender<Vec<Token>>>,
    warm: bool,
    heard: Vec<Heard>,
    logits: Vec<f32>,
}

/// Rows on their way.
pub(crate) struct Flight {
    /// Slot and rows that want logits.
    spans: Vec<(usize, usize)>,
    layer: usize,
}

impl Default for Parrot {
    fn default() -> Self {
        Self::new(4, 512)
    }
}

impl Parrot {
    pub(crate) fn new(slots: usize, context: usize) -> Self {
        let capacity = Capacity {
            slots,
            pages: slots * context.div_ceil(64),
            rows: 128,
            decode_rows: 128,
            logits_rows: slots,
            layers: LAYERS,
            vocab: 0,
            context,
            slices_ahead: 0,
            lanes_alike: false,
            candidates: 0,
            drafts: 0,
            predicts: false,
            frequent: 0,
        };
        Self {
            capacity,
            gate: None,
            poison: None,
            loss: None,
            taught: None,
            ears: None,
            warm: false,
            heard: vec![Heard::default(); slots],
            logits: Vec::new(),
        }
    }

    /// From the warm-up on, every layer waits for a permit. Dropping the sender opens the gate for good.
    pub(crate) fn gated(mut self) -> (Self, Sender<()>) {
        let (permits, gate) = channel();
        self.gate = Some(gate);
        (self, permits)
    }

    pub(crate) fn with_vocab(mut self, vocab: usize) -> Self {
        self.capacity.vocab = vocab;
        self
    }

    /// It says this, whatever it hears, and what it hears comes out here.
    pub(crate) fn taught(mut self, tokens: Vec<Token>) -> (Self, Receiver<Vec<Token>>) {
        let (ears, heard) = channel();
        (self.taught, self.ears) = (Some(tokens), Some(ears));
        (self, heard)
    }

    pub(crate) fn poisoned_by(mut self, token: Token) -> Self {
        self.poison = Some(token);
        self
    }

    pub(crate) fn lost_by(mut self, token: Token) -> Self {
        self.loss = Some(token);
        self
    }
}

impl Executor for Parrot {
    type Pass = Flight;
    type Error = Lost;

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn reset(&mut self, slot: Slot) {
        self.heard[slot.0 as usize] = Heard::default();
    }

    fn begin(&mut self, _: Lane, spans: &[Span<'_>]) -> Result<Flight, Lost> {
        for span in spans {
            let heard = &mut self.heard[span.slot.0 as usize];
            assert_eq!(
                heard.tokens.len(),
                span.first as usize,
                "rows come in order"
            );
            heard.tokens.extend_from_slice(span.tokens);
            if let Some(ears) = &self.ears {
                let _ = ears.send(span.tokens.to_vec()); // nobody needs to listen
            }
            if span.logits > 0 {
                heard.prompt.get_or_insert(heard.tokens.len());
            }
            if self.warm
                && heard.prompt == Some(heard.tokens.len())
                && heard.tokens.last() == self.loss.as_ref()
                && self.loss.is_some()
            {
                return Err(Lost);
            }
        }
        Ok(Flight {
            spans: spans
                .iter()
                .map(|span| (span.slot.0 as usize, span.logits))
                .collect(),
            layer: 0,
        })
    }

    fn advance(&mut self, flight: &mut Flight) -> Result<Progress, Lost> {
        if let Some(gate) = self.gate.as_ref().filter(|_| self.warm) {
            let _ = gate.recv(); // an error is an open gate
        }
        flight.layer += 1;
        Ok(if flight.layer < LAYERS {
            Progress::More
        } else {
            Progress::Done
        })
    }

    fn withdraw(&mut self, flight: &mut Flight, slot: Slot) {
        flight.spans.retain(|&(other, _)| other != slot.0 as usize);
    }

    fn finish(&mut self, flight: Flight) -> Result<(), Lost> {
        self.logits.clear();
        for (slot, _) in flight.spans.into_iter().filter(|&(_, logits)| logits > 0) {
            let Heard { tokens, prompt } = &self.heard[slot];
            let prompt = prompt.expect("logits are asked at a prompt's end at the earliest");
            let next = *match &self.taught {
                Some(taught) => &taught[(tokens.len() - prompt) % taught.len()],
                None => &tokens[tokens.len() - prompt],
            };
            let poisoned = self.warm && self.poison == Some(tokens[prompt - 1]);
            let noise = (0..self.capacity.vocab).map(|token| {
                if poisoned {
                    f32::NAN
                } else {
                    noise(token, tokens.len())
                }
            });
            let row = self.logits.len();
            self.logits.extend(noise);
            if !poisoned {
                self.logits[row + next as usize] = PEAK;
            }
        }
        // The engine's warm-up is two windows; the second begins at the end of the first one's prompt.
        self.warm |= self.heard[0].tokens.len() > self.heard[0].prompt.unwrap_or(usize::MAX);
        Ok(())
    }

    fn logits(&mut self, row: usize) -> Result<&[f32], Lost> {
        let vocab = self.capacity.vocab;
        Ok(&self.logits[row * vocab..][..vocab])
    }
}

/// Below [`PEAK`], different from token to token and place to place.
fn noise(token: usize, position: usize) -> f32 {
    let mixed = (token as u64 ^ (position as u64) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as f32 / (1 << 24) as f32
}
