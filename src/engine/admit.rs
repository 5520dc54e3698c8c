//! Who is in: admission, cancels, and the giving back of everything a sequence holds.
//!
//! Knows slots, pages and the order of arrival; knows nothing of rows.

use std::mem;

use super::{
    Engine,
    active::{Active, Ending},
    executor::{Executor, Slot},
    pages::PagePool,
};

impl<E: Executor> Engine<E> {
    /// Moves requests into free slots, in order, as far as their worst case fits.
    pub(super) fn admit(&mut self) {
        while let Some(request) = self.waiting.front()
            && let Some(slot) = self.active.iter().position(Option::is_none)
            && let Some(pages) = self
                .pages
                .reserve(PagePool::needed(request.sequence.positions_max()))
            && let Some(request) = self.waiting.pop_front()
        {
            let id = Slot(slot as u32);
            self.executor.reset(id);
            let active = Active::new(request, id, pages, self.executor.now());
            self.board.slot(active.stats());
            self.active[slot] = Some(active);
            self.show();
        }
    }

    /// Removes waiting requests that nobody waits for any more.
    pub(super) fn forget_cancelled(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|request| {
            let cancelled = request.outbox.is_cancelled();
            if cancelled {
                request.span.record("reason", Ending::Cancelled.reason());
                self.meters.ended(Ending::Cancelled.reason());
                self.board.leave();
            }
            !cancelled
        });
        if self.waiting.len() < before {
            self.show();
        }
    }

    /// Frees what sequences hold whose readers have gone. No pass may hold rows of theirs.
    pub(super) fn release_cancelled(&mut self) {
        for slot in 0..self.active.len() {
            if self.active[slot].as_ref().is_some_and(Active::is_cancelled) {
                self.release(slot, Ending::Cancelled);
            }
        }
    }

    /// Gives back what a sequence holds, then tells its reader: whoever learns of an end finds its place free.
    pub(super) fn release(&mut self, slot: usize, ending: Ending) {
        let Some(mut active) = self.active[slot].take() else {
            return;
        };
        self.pages.release(mem::take(&mut active.pages));
        self.board.slot_free(slot);
        self.board.leave();
        self.show();
        self.meters.ended(ending.reason());
        active.close(ending);
    }

    /// Shows slots, pages and queue as they are now.
    pub(super) fn show(&self) {
        let busy = self.active.iter().flatten().count();
        self.board.hold(busy, self.pages.used());
        self.meters
            .hold(self.waiting.len(), busy, self.pages.used());
    }
}
