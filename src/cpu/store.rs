//! Experts in memory of their own, where the model is larger than memory: a [`Tier`] over the file, the slots' memory, and what reads into it.
//!
//! Slots are filled by large aligned reads, never by page faults: through io_uring where the kernel has it, else by a pool of threads; past the page cache where the file system can.
//! Knows files and bytes; which expert goes where the tier says.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    backend::{ExpertLayer, ExpertSource},
    gguf::Gguf,
    residency::{
        link::{LinkSpeed, SimulatedLink},
        predict::Predictor,
        slots::{SlotPlan, TooSmall},
        split::{Measured, Split},
        tier::{Here, Tier, Want},
    },
};

mod arena;
#[cfg(unix)]
pub mod drive;
mod error;
mod layout;
mod meters;
mod mover;
mod piece;
mod profile;
mod readers;
mod simulated;
#[cfg(test)]
mod tests;
#[cfg(target_os = "linux")]
mod uring;

use arena::Arena;
pub use error::ReadError;
use layout::Layout;
use meters::Meters;
use mover::FileMover;
pub use profile::Profile;

/// Transfers that may be under way at once: enough to keep a drive busy with one row's misses.
const TICKETS: usize = 32;
/// What a new measurement weighs.
const WEIGHT: f64 = 1.0 / 16.0;

/// How experts are kept in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreSettings {
    /// **Units**: bytes. What they may take.
    pub ram: u64,
    /// Whether those that are expected next are read ahead.
    pub lookahead: bool,
    /// Where the profile of an earlier run lies, and this one's will.
    pub profile: Option<PathBuf>,
    /// Read by threads even where the kernel has io_uring: for tests.
    pub threads_only: bool,
    /// A device in simulated time instead of reads: for tests.
    pub simulated: Option<SimulatedDevice>,
}

/// A device that is not there: its memory is the slots, its arithmetic the CPU's, and its link brings experts in simulated time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedDevice {
    /// Its link.
    pub link: LinkSpeed,
    /// What happens by chance follows from it.
    pub seed: u64,
    /// What an expert takes on the device.
    pub device_expert: Duration,
    /// What an expert takes on the host, where missing ones may be computed as well; `None` brings them all.
    pub host_expert: Option<Duration>,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Too little memory for one token.
    #[error("--ram: {0}")]
    TooSmall(#[from] TooSmall),
    /// The system gives no memory for the slots.
    #[error("cannot set memory aside for experts: {0}")]
    Memory(std::io::Error),
    /// The file cannot be read.
    #[error("cannot read the model's file: {0}")]
    Open(std::io::Error),
    /// Reading the first experts failed.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Which part of which layer's experts a set of matrices is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) layer: usize,
    pub(super) part: usize,
}

/// What is told of a model's experts while it is loaded.
#[derive(Debug, Default)]
pub(super) struct Parts {
    file: Option<Arc<Gguf>>,
    /// `[layers][parts]`
    layers: Vec<Vec<ExpertSource>>,
}

impl Parts {
    /// Takes note of one more matrix of a layer's experts; nothing if they are not of a layer that has a place here.
    pub(super) fn add(&mut self, file: &Arc<Gguf>, source: &ExpertSource) -> Option<Home> {
        let layer = source.layer?;
        self.file.get_or_insert_with(|| file.clone());
        if self.layers.len() <= layer {
            self.layers.resize_with(layer + 1, Vec::new);
        }
        self.layers[layer].push(source.clone());
        Some(Home {
            layer,
            part: self.layers[layer].len() - 1,
        })
    }
}

/// What experts of these layers take in slots.
///
/// **Shapes**: one entry a layer, `expert_bytes` being a slot's.
pub(super) fn slot_layers(layers: &[ExpertLayer], parts: &Parts) -> Vec<ExpertLayer> {
    let layouts = layers.iter().zip(&parts.layers);
    layouts
        .map(|(layer, parts)| ExpertLayer {
            expert_bytes: layout::slot_bytes(parts),
            ..*layer
        })
        .collect()
}

/// Where an expert of the layer at hand is to be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shelf {
    /// It is not its turn.
    Absent,
    /// Here in the arena.
    At(usize),
    /// In the mapped file.
    Below,
}

/// Experts in slots.
pub(super) struct Store {
    tier: Tier<FileMover>,
    layout: Arc<Layout>,
    arena: Arc<Arena>,
    pub(super) predictor: Option<Predictor>,
    batch: Vec<Here>,
    /// `[experts of the layer]`
    shelf: Vec<Shelf>,
    layer: usize,
    meters: Meters,
    profile: Option<(PathBuf, Profile)>,
    pace: Pace,
    device: Option<DeviceVisits>,
}

/// The visits of a simulated device: how its misses are divided, and what that takes.
#[derive(Debug)]
struct DeviceVisits {
    device: SimulatedDevice,
    split: Split,
    begun: Duration,
    /// How far the transfers of the visit had got when it was last looked at.
    measured: Measured,
}

impl Store {
    /// Sets memory aside and opens the file. `layers` are the model's, in the order of `parts`.
    ///
    /// **Errors**: too little memory for one token, or none to be had; the file cannot be opened or read.
    pub(super) fn new(
        layers: &[ExpertLayer],
        parts: Parts,
        settings: &StoreSettings,
    ) -> Result<Option<Self>, StoreError> {
        let slots = slot_layers(layers, &parts);
        let Some(file) = parts.file else {
            return Ok(None); // a model without experts
        };
        let plan = SlotPlan::new(&slots, settings.ram)?;
        let layout = Arc::new(Layout::new(&parts.layers, &plan));
        let arena = Arc::new(Arena::new(layout.arena_bytes()).map_err(StoreError::Memory)?);
        let mover = match settings.simulated {
            Some(device) => {
                let bytes = slots.iter().map(|layer| layer.expert_bytes).collect();
                let link = SimulatedLink::new(bytes, device.link, device.seed);
                FileMover::simulated(link, file, layout.clone(), arena.clone())
            }
            None => {
                let (layout, arena) = (layout.clone(), arena.clone());
                let threads = settings.threads_only;
                FileMover::new(file, layout, arena, TICKETS, threads).map_err(StoreError::Open)?
            }
        };
        let profile = settings
            .profile
            .clone()
            .map(|path| (path, Profile::of(layers)));
        let mut store = Self {
            tier: Tier::new(&slots, &plan, TICKETS, mover),
            layout,
            arena,
            predictor: settings.lookahead.then(|| Predictor::new(layers.len())),
            batch: Vec::new(),
            shelf: Vec::new(),
            layer: 0,
            meters: Meters::new(plan.bytes()),
            profile,
            pace: Pace::default(),
            device: settings.simulated.map(|device| DeviceVisits {
                device,
                split: Split::new(),
                begun: Duration::ZERO,
                measured: Measured::default(),
            }),
        };
        store.warm(layers, &plan)?;
        Ok(Some(store))
    }

    /// Reads who was used most by an earlier run; everybody, if there is room for everybody.
    fn warm(&mut self, layers: &[ExpertLayer], plan: &SlotPlan) -> Result<(), ReadError> {
        let known = self.profile.as_ref().map(|(path, own)| own.read(path));
        let mut ranked = known.unwrap_or_default();
        if plan.pools.iter().all(|pool| pool.slots == pool.experts) {
            let all = layers.iter().enumerate().flat_map(|(layer, shape)| {
                (0..shape.experts).map(move |expert| (layer, expert as u16, f64::NEG_INFINITY))
            });
            ranked.extend(all);
        }
        if ranked.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        self.tier.fill(&ranked)?;
        let read = self.tier.counts().demand_bytes;
        tracing::info!(
            bytes = read,
            seconds = begun.elapsed().as_secs_f64(),
            "experts are in memory"
        );
        self.meters.tell(&self.tier.counts());
        Ok(())
    }

    /// A window has reached a layer and wants these experts.
    pub(super) fn visit(&mut self, layer: usize, wanted: &[Want]) {
        self.pace.begin();
        self.layer = layer;
        let moves_max = self.divide(layer, wanted);
        self.tier.visit(layer, wanted, moves_max);
    }

    /// How many of the missing are brought: all of them, but where a host can compute some.
    fn divide(&mut self, layer: usize, wanted: &[Want]) -> usize {
        let Some(visits) = &mut self.device else {
            return usize::MAX;
        };
        let missing = self.tier.missing(layer, wanted);
        visits.measured = Measured::default();
        if let Some(link) = self.tier.mover_mut().link() {
            visits.begun = link.now();
        }
        match visits.device.host_expert {
            Some(_) => {
                let moved = visits.split.moves(missing);
                visits.measured.moved = moved;
                visits.measured.left = missing - moved;
                moved
            }
            None => usize::MAX,
        }
    }

    /// Simulated time passes while what is on the shelf is computed.
    fn pass(&mut self) {
        let Some(visits) = &mut self.device else {
            return;
        };
        let below = self.batch.iter().filter(|here| here.slot.is_none()).count() as u32;
        let here = self.batch.len() as u32 - below;
        let host = visits.device.host_expert.unwrap_or_default() * below;
        visits.measured.host += host;
        if let Some(link) = self.tier.mover_mut().link() {
            // transfers may have ended while the host was computing
            visits.measured.link = link.ended().saturating_sub(visits.begun);
            link.pass(host.max(visits.device.device_expert * here));
        }
    }

    /// What a simulated device's visits have taken so far, if there is one.
    pub(super) fn simulated_time(&mut self) -> Option<Duration> {
        Some(self.tier.mover_mut().link()?.now())
    }

    /// As [`Tier::take`]: what can be computed now is on the shelf.
    pub(super) fn take(&mut self, wait: bool, experts: usize) -> usize {
        let asked = Instant::now();
        let left = self.tier.take(wait, &mut self.batch);
        if wait {
            self.pace.waited(asked.elapsed());
        }
        self.shelf.clear();
        self.shelf.resize(experts, Shelf::Absent);
        for here in &self.batch {
            self.shelf[usize::from(here.expert)] = match here.slot {
                Some(slot) => Shelf::At(self.layout.slot(slot)),
                None => Shelf::Below,
            };
        }
        self.pass();
        left
    }

    /// Whether anything is on the shelf.
    pub(super) fn has_some(&self) -> bool {
        !self.batch.is_empty()
    }

    /// An expert of the layer at hand, if it is on the shelf: `below` where it is to be read in the mapped file.
    pub(super) fn bytes<'a>(
        &'a self,
        home: Home,
        expert: usize,
        below: impl FnOnce() -> &'a [u8],
    ) -> Option<&'a [u8]> {
        match *self.shelf.get(expert)? {
            Shelf::Absent => None,
            Shelf::Below => Some(below()),
            Shelf::At(slot) => {
                let at = self.layout.place(home.layer, home.part, expert);
                // SAFETY: the tier handed this slot out in the last `take`, whole, and nobody writes to it before the next call, which needs `&mut self`.
                Some(unsafe { self.arena.read(slot + at.start, at.len()) })
            }
        }
    }

    /// Whom the visit has wanted and who cannot be read.
    pub(super) fn failures(&mut self) -> impl Iterator<Item = (u16, ReadError)> {
        self.tier.failures()
    }

    /// The visit's last experts are computed.
    pub(super) fn finish(&mut self) {
        self.shelf.clear();
        self.batch.clear();
        let moved = self.tier.counts().demand_bytes;
        self.pace
            .end(moved, self.layout.layer_slot_bytes(self.layer));
        self.tier.allow_ahead(self.pace.aheads());
        self.tier.finish();
        if let Some(visits) = &mut self.device
            && let Some(link) = self.tier.mover_mut().link()
        {
            visits.measured.whole = link.now().saturating_sub(visits.begun);
            visits.split.note(visits.measured);
        }
        self.meters.tell(&self.tier.counts());
    }

    /// Whether looking ahead could bring anybody.
    pub(super) fn looks_ahead(&self) -> bool {
        self.predictor.is_some() && !self.tier.is_complete()
    }

    /// Takes note of what is predicted for a layer, and has it read ahead if that pays. **Shapes**: `ids [rows, used]`.
    pub(super) fn look_ahead(&mut self, layer: usize, distance: usize, ids: &[u16], used: usize) {
        let Some(predictor) = &mut self.predictor else {
            return;
        };
        predictor.say(layer, distance, ids);
        let worth = predictor.worth(layer, distance, used);
        self.tier.look_ahead(layer, worth.iter().copied());
    }

    /// Takes note of what the rows of a layer have chosen.
    pub(super) fn chosen(&mut self, layer: usize, ids: &[u16], used: usize) {
        if let Some(predictor) = &mut self.predictor {
            predictor.chosen(layer, ids, used);
            self.meters.tell_hits(predictor.hits());
        }
    }

    /// The tier, to ask it.
    pub(super) fn tier(&self) -> &Tier<FileMover> {
        &self.tier
    }
}

impl Drop for Store {
    /// Writes the profile, if there is anything to tell.
    fn drop(&mut self) {
        if let Some((path, own)) = &self.profile
            && let Err(error) = own.write(path, &self.tier.ranked())
        {
            tracing::warn!(path = %path.display(), %error, "the experts' profile was not saved");
        }
    }
}

/// How long the link is left alone between two visits, and what it brings meanwhile.
#[derive(Debug, Default)]
struct Pace {
    /// **Units**: seconds. From a visit's end to the next one's beginning.
    idle_s: f64,
    /// **Units**: seconds. What an expert takes while somebody waits.
    expert_s: f64,
    ended: Option<Instant>,
    waited: Duration,
    moved: u64,
}

impl Pace {
    fn begin(&mut self) {
        if let Some(ended) = self.ended.take() {
            average(&mut self.idle_s, ended.elapsed().as_secs_f64());
        }
        self.waited = Duration::ZERO;
    }

    fn waited(&mut self, time: Duration) {
        self.waited += time;
    }

    /// A visit ends, when `moved` bytes were brought since the start, and an expert of its layer has so many.
    fn end(&mut self, moved: u64, expert_bytes: u64) {
        let brought = (moved - self.moved) / expert_bytes.max(1);
        self.moved = moved;
        if brought > 0 && !self.waited.is_zero() {
            average(
                &mut self.expert_s,
                self.waited.as_secs_f64() / brought as f64,
            );
        }
        self.ended = Some(Instant::now());
    }

    /// How many experts the link brings while nobody waits; one at least, for whatever it is worth.
    fn aheads(&self) -> usize {
        if self.expert_s > 0.0 {
            ((self.idle_s / self.expert_s) as usize).max(1)
        } else {
            1
        }
    }
}

/// Moves an average, which is 0 before the first measurement.
fn average(average: &mut f64, measured: f64) {
    *average = if *average == 0.0 {
        measured
    } else {
        *average + WEIGHT * (measured - *average)
    };
}
