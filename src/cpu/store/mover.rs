//! What brings experts into slots: whichever way there is.

use std::{io, sync::Arc};

#[cfg(target_os = "linux")]
use super::uring::Ring;
use super::{
    arena::Arena, error::ReadError, layout::Layout, piece::Shared, readers::Readers,
    simulated::Simulated,
};
use crate::{
    gguf::Gguf,
    residency::{
        link::SimulatedLink,
        tier::{Landed, Mover, Order},
    },
};

/// A way to bring experts.
pub(in crate::cpu) struct FileMover(Way);

enum Way {
    #[cfg(target_os = "linux")]
    Ring(Box<Ring>),
    Readers(Readers),
    Simulated(Box<Simulated>),
}

impl FileMover {
    /// Through io_uring if the kernel has it and `threads_only` is not set.
    pub(super) fn new(
        model: Arc<Gguf>,
        layout: Arc<Layout>,
        arena: Arc<Arena>,
        tickets: usize,
        threads_only: bool,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::open(model, layout, arena)?);
        #[cfg(target_os = "linux")]
        if !threads_only && shared.all_files() {
            match Ring::new(shared.clone(), tickets) {
                Ok(ring) => return Ok(Self(Way::Ring(Box::new(ring)))),
                Err(error) => tracing::info!(%error, "no io_uring: threads read experts"),
            }
        }
        Ok(Self(Way::Readers(Readers::new(shared, tickets)?)))
    }

    /// In simulated time.
    pub(super) fn simulated(
        link: SimulatedLink,
        model: Arc<Gguf>,
        layout: Arc<Layout>,
        arena: Arc<Arena>,
    ) -> Self {
        let simulated = Simulated::new(link, model, layout, arena);
        Self(Way::Simulated(Box::new(simulated)))
    }

    /// The simulated link, if it is one.
    pub(in crate::cpu) fn link(&mut self) -> Option<&mut SimulatedLink> {
        match &mut self.0 {
            Way::Simulated(simulated) => Some(&mut simulated.link),
            _ => None,
        }
    }
}

impl Mover for FileMover {
    type Error = ReadError;

    fn start(&mut self, order: Order) {
        match &mut self.0 {
            #[cfg(target_os = "linux")]
            Way::Ring(ring) => ring.start(order),
            Way::Readers(readers) => readers.start(order),
            Way::Simulated(simulated) => simulated.start(order),
        }
    }

    fn landed(&mut self, wait: bool) -> Option<Landed<ReadError>> {
        match &mut self.0 {
            #[cfg(target_os = "linux")]
            Way::Ring(ring) => ring.landed(wait),
            Way::Readers(readers) => readers.landed(wait),
            Way::Simulated(simulated) => simulated.landed(wait),
        }
    }
}
