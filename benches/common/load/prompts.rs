//! Prompts that no server has seen: pseudo-random token ids where the server says how many there are, else words.

use serde::Serialize;

use super::{Failure, client::Client};

/// What a request's `prompt` holds.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Prompt {
    Ids(Vec<u32>),
    Text(String),
}

/// A fixed sequence of numbers for every seed. **Source**: SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In 0..1, never 0 or 1.
    pub(crate) fn share(&mut self) -> f64 {
        ((self.number() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }
}

/// How this server's prompts are made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prompts {
    Ids {
        vocab: usize,
    },
    /// So many tokens a word, by its own count.
    Words {
        tokens_per_word: f64,
    },
}

const WORDS: [&str; 32] = [
    "river", "stone", "under", "window", "green", "seven", "carry", "table", "north", "paper",
    "quiet", "train", "later", "garden", "often", "bridge", "letter", "yellow", "winter", "market",
    "simple", "doctor", "island", "never", "copper", "before", "silver", "morning", "circle",
    "hunter", "little", "answer",
];
/// Words that are counted to learn how many tokens they make.
const COUNTED: usize = 256;

impl Prompts {
    /// Asks the server what it takes.
    pub(crate) async fn new(client: &Client) -> Result<Self, Failure> {
        if let Some(vocab) = client.about.vocab {
            return Ok(Self::Ids { vocab });
        }
        let answer = client.complete(&Prompt::Text(words(0, COUNTED)), 1).await?;
        let usage = answer.ending.usage.ok_or("the server counts no tokens")?;
        Ok(Self::Words {
            tokens_per_word: usage.prompt_tokens as f64 / COUNTED as f64,
        })
    }

    /// One of so many tokens; of words, about so many.
    pub(crate) fn make(&self, seed: u64, tokens: usize) -> Prompt {
        match *self {
            Self::Ids { vocab } => {
                let mut random = Random(seed);
                let ids = (0..tokens).map(|_| random.below(vocab) as u32);
                Prompt::Ids(ids.collect())
            }
            Self::Words { tokens_per_word } => {
                let count = (tokens as f64 / tokens_per_word).max(1.0);
                Prompt::Text(words(seed, count as usize))
            }
        }
    }
}

fn words(seed: u64, count: usize) -> String {
    let mut random = Random(seed);
    let word = |_| WORDS[random.below(WORDS.len())];
    (0..count).map(word).collect::<Vec<_>>().join(" ")
}
