//! Placement policies run over a recorded trace in simulated time: how often what rows want would be resident, and how fast decoding would be.
//!
//! For policies and bounds a machine holds `capacity` bytes of experts in fast memory and fetches every other one over a link, each once a window however many rows want it. Nothing is
//! fetched ahead, and nothing overlaps: a window takes what its bytes take, from fast memory and over the link. Beside them stands what a server would do (`replay/simulation.rs`): its slots, its
//! tickets, a link that brings one expert while another is computed, and what is fetched ahead.

use std::path::Path;

use crate::{
    residency::{
        ExpertSizes, Residents,
        policy::{Frequency, Guard, Guarded, Lru, Policy},
        predict::{DISTANCES, Hits, Predictor},
    },
    trace::{
        Header,
        error::TraceError,
        reader::{Ending, Reader, Told},
    },
};

pub mod capacity;
mod oracle;
pub mod report;
mod simulation;
mod tally;
#[cfg(test)]
mod tests;
mod visits;

pub use capacity::{Capacity, CapacityError};
pub use simulation::Simulated;
pub use tally::{Speeds, Tally};
pub use visits::Visits;

/// A placement policy by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PolicyName {
    /// Least recently used goes first
    Lru,
    /// Least wanted goes first, where a use counts half after a while
    Frequency,
    /// Both, with few replacements a layer and window, and prompts do not evict what streams use
    Guarded,
}

impl PolicyName {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lru, Self::Frequency, Self::Guarded];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Frequency => "frequency",
            Self::Guarded => "guarded",
        }
    }

    /// The policy, for experts of these sizes.
    pub fn policy(self, sizes: &ExpertSizes) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::new(Lru::new(sizes)),
            Self::Frequency => Box::new(Frequency::new(sizes)),
            Self::Guarded => Box::new(Guarded::new(sizes, Guard::default())),
        }
    }
}

/// A trace in memory, as far as policies see it.
#[derive(Debug)]
pub struct Replay {
    header: Header,
    sizes: ExpertSizes,
    visits: Visits,
    ending: Ending,
}

impl Replay {
    /// Reads a file.
    ///
    /// **Errors**: it is no trace, or is damaged. One that breaks off is read as far as it goes.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        Self::read(Reader::open(path)?)
    }

    /// Reads a trace to its end.
    ///
    /// **Errors**: as [`open`](Self::open).
    pub fn read(mut reader: Reader<impl std::io::Read>) -> Result<Self, TraceError> {
        let sizes = ExpertSizes::new(&reader.header().layers);
        let mut visits = Visits::default();
        let used: Vec<usize> = reader
            .header()
            .layers
            .iter()
            .map(|layer| layer.used)
            .collect();
        while let Some(told) = reader.next_told()? {
            match told {
                Told::Chosen(choices) => visits.push(&choices, used[choices.layer], &sizes),
                Told::Ahead(ahead) => visits.say(&ahead),
            }
        }
        Ok(Self {
            header: reader.header().clone(),
            ending: reader.ending(),
            sizes,
            visits,
        })
    }

    /// What the trace says about its model.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How the trace ended.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// What was wanted.
    pub fn visits(&self) -> &Visits {
        &self.visits
    }

    /// What a policy makes of a capacity. **Units**: bytes.
    pub fn run(&self, policy: &mut dyn Policy, capacity: u64) -> Tally {
        let mut residents = Residents::new(&self.sizes, capacity);
        let mut tally = Tally::default();
        for wanted in self.visits.iter() {
            for wanted in wanted {
                let bytes = self.sizes.bytes(wanted.expert);
                let held = if residents.holds(wanted.expert) {
                    bytes
                } else {
                    0
                };
                tally.count(wanted, bytes, held);
            }
            residents.begin();
            policy.visit(wanted, &mut residents);
        }
        tally
    }

    /// What a policy by name makes of it.
    pub fn run_named(&self, name: PolicyName, capacity: u64) -> Tally {
        self.run(&mut *name.policy(&self.sizes), capacity)
    }

    /// The best that anybody could make of a capacity who knows what comes, as far as decoding goes: the fewest bytes of decoding are missed.
    pub fn oracle(&self, capacity: u64) -> Tally {
        oracle::run(&self.visits, &self.sizes, capacity)
    }

    /// What it is without any resident.
    pub fn no_cache(&self) -> Tally {
        let mut tally = Tally::default();
        for wanted in self.visits.iter().flatten() {
            tally.count(wanted, self.sizes.bytes(wanted.expert), 0);
        }
        tally
    }

    /// Tokens that streams were given: rows that decode. Holes in the trace are left out.
    pub fn decode_tokens(&self) -> f64 {
        self.visits.decode_rows() as f64 / self.sizes.layers() as f64
    }

    /// Rows of prompts, in the same way.
    pub fn prompt_tokens(&self) -> f64 {
        self.visits.prompt_rows() as f64 / self.sizes.layers() as f64
    }

    /// How often what routers named ahead was chosen, one layer ahead first.
    pub fn lookahead(&self) -> [Hits; DISTANCES] {
        let mut predictor = Predictor::new(self.header.layers.len());
        self.visits.walk(|layer, ids, _, said| {
            predictor.chosen(layer, ids, self.header.layers[layer].used);
            for (layer, distance, ids) in said.filter(|(_, distance, _)| *distance <= DISTANCES) {
                predictor.say(layer, distance, ids);
            }
        });
        predictor.hits()
    }

    /// **Units**: tokens a second, of all streams together, as a server gives them that was simulated. Nothing if no row decodes.
    pub fn simulated_tokens_per_second(&self, simulated: &Simulated) -> Option<f64> {
        let (tokens, seconds) = (self.decode_tokens(), simulated.decode_time.as_secs_f64());
        (tokens > 0.0 && seconds > 0.0).then(|| tokens / seconds)
    }

    /// **Units**: bytes. What a decoded token had to wait for over the link.
    pub fn missed_bytes_per_token(&self, tally: &Tally) -> Option<f64> {
        let tokens = self.decode_tokens();
        (tokens > 0.0).then(|| tally.decode_missed_bytes as f64 / tokens)
    }

    /// **Units**: tokens a second, of all streams together. Nothing if no row decodes.
    pub fn tokens_per_second(&self, tally: &Tally, speeds: Speeds) -> Option<f64> {
        let tokens = self.decode_tokens();
        let windows = self.visits.decode_visits() as f64 / self.sizes.layers() as f64;
        let common = windows * self.header.common_bytes as f64;
        let seconds = (common + tally.decode_held_bytes as f64) / speeds.fast
            + tally.decode_missed_bytes as f64 / speeds.link;
        (tokens > 0.0 && seconds > 0.0).then(|| tokens / seconds)
    }
}
