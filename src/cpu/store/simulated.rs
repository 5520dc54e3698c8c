//! A device that is not there: its slots, its link in simulated time, and the CPU's arithmetic.

use std::{collections::HashMap, sync::Arc};

use super::{
    arena::Arena,
    error::{Fault, ReadError},
    layout::Layout,
};
use crate::{
    gguf::Gguf,
    residency::{
        link::SimulatedLink,
        tier::{Landed, Mover, Order, Ticket},
    },
};

/// Brings experts over a simulated link: their bytes are copied when it says that they have landed, and not before.
pub(super) struct Simulated {
    pub(super) link: SimulatedLink,
    orders: HashMap<Ticket, Order>,
    model: Arc<Gguf>,
    layout: Arc<Layout>,
    arena: Arc<Arena>,
}

/// What lies in a slot until its expert has landed: whoever computes with it gives other tokens.
const NOTHING: u8 = 0xa5;

impl Simulated {
    pub(super) fn new(
        link: SimulatedLink,
        model: Arc<Gguf>,
        layout: Arc<Layout>,
        arena: Arc<Arena>,
    ) -> Self {
        Self {
            link,
            orders: HashMap::new(),
            model,
            layout,
            arena,
        }
    }

    /// Fills an expert's regions, from the file or with [`NOTHING`].
    fn write(&self, order: Order, whole: bool) {
        for extent in self.layout.extents(order.layer, order.expert, order.slot) {
            let to = self.arena.pointer(extent.to, extent.needed);
            // SAFETY: the slot is this ticket's until it is reported.
            let to = unsafe { std::slice::from_raw_parts_mut(to, extent.needed) };
            let from = self.model.raw(extent.file);
            if whole {
                let start = extent.offset as usize;
                to.copy_from_slice(&from[start..start + extent.needed]);
            } else {
                to.fill(NOTHING);
            }
        }
    }
}

impl Mover for Simulated {
    type Error = ReadError;

    fn start(&mut self, order: Order) {
        self.write(order, false);
        self.orders.insert(order.ticket, order);
        self.link.start(order);
    }

    fn landed(&mut self, wait: bool) -> Option<Landed<ReadError>> {
        let Landed { ticket, result } = self.link.landed(wait)?;
        let order = self.orders.remove(&ticket)?;
        let result = result.map_err(|failure| ReadError {
            layer: failure.layer,
            expert: failure.expert,
            path: self.model.path().to_owned(),
            offset: 0,
            fault: Fault::Simulated,
        });
        if result.is_ok() {
            self.write(order, true);
        }
        Some(Landed { ticket, result })
    }
}
