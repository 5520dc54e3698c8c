//! Who is in: admission, cancels, deadlines, and the giving back of everything a sequence holds.
//!
//! Knows slots, pages and the order of arrival; knows nothing of rows.

use std::{mem, time::Instant};

use super::{
    Engine,
    active::{Active, Ending},
    event::Admission,
    executor::{Executor, Slot},
    pages::PagePool,
    request::Timings,
};

impl<E: Executor> Engine<E> {
    /// Moves requests into free slots, in order, as far as their worst case fits, and tells the others their places.
    pub(super) fn admit(&mut self) {
        while let Some(request) = self.waiting.front()
            && let Some(slot) = self.active.iter().position(Option::is_none)
            && let Some(pages) = self
                .pages
                .reserve(PagePool::needed(request.sequence.positions_max()))
            && let Some(mut request) = self.waiting.pop_front()
        {
            let id = Slot(slot as u32);
            self.executor.reset(id);
            let sampled = request.sampler.is_sampled();
            if let Some(drafts) = &mut request.drafts {
                drafts.take_over(self.experience.of(sampled));
            }
            tell_place(&request, 0);
            let mut active = Active::new(request, id, pages, self.executor.now());
            active.tell_ahead(0, &mut self.executor);
            self.board.slot(active.stats());
            self.active[slot] = Some(active);
            self.show();
        }
        for (before, request) in self.waiting.iter().enumerate() {
            tell_place(request, before + 1);
        }
    }

    /// Removes waiting requests that nobody waits for any more, or that are late.
    pub(super) fn forget_leaving(&mut self, now: Instant) {
        let mut at = 0;
        while let Some(request) = self.waiting.get(at) {
            let Some(ending) = request.leaves(now) else {
                at += 1;
                continue;
            };
            let Some(request) = self.waiting.remove(at) else {
                return;
            };
            self.meters.ended(ending.reason());
            self.board.leave();
            self.show();
            request.close(ending, Timings::default());
        }
    }

    /// Takes the rows of sequences that give up their places out of the passes, and frees what these hold.
    ///
    /// Asks each once: its reader may go away at any moment, and a sequence whose place is free must have no rows in a pass.
    pub(super) fn release_leaving(&mut self, now: Instant) {
        for slot in 0..self.active.len() {
            let active = self.active[slot].as_ref();
            if let Some(ending) = active.and_then(|active| active.leaves(now, self.idle_timeout)) {
                self.withdraw(Slot(slot as u32));
                self.release(slot, ending);
            }
        }
    }

    /// When the next request will give up its place, if nothing happens before.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().filter_map(|request| request.due);
        let active = self.active.iter().flatten();
        let active = active.filter_map(|active| active.due(self.idle_timeout));
        waiting.chain(active).min()
    }

    /// Gives back what a sequence holds, then tells its reader: whoever learns of an end finds its place free.
    pub(super) fn release(&mut self, slot: usize, ending: Ending) {
        let Some(mut active) = self.active[slot].take() else {
            return;
        };
        self.pages.release(mem::take(&mut active.pages));
        if let Some(drafts) = &active.request.drafts {
            let sampled = active.request.sampler.is_sampled();
            self.experience.note(sampled, drafts.rates());
        }
        self.board.note_hold(active.held(self.executor.now()));
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

/// Tells a request's reader its place in the queue, if that has changed.
fn tell_place(request: &Admission, place: usize) {
    request.place.send_if_modified(|told| {
        let moved = *told != place;
        *told = place;
        moved
    });
}
