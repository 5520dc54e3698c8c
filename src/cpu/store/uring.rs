//! Reads by io_uring: handed to the kernel in one call for all that wait, and found done without any.

use std::{collections::VecDeque, io, os::fd::AsRawFd, sync::Arc};

use io_uring::{IoUring, opcode, types};

use super::{
    error::ReadError,
    piece::{PARTS_MAX, Piece, Settled, Shared, Source, Tally},
};
use crate::residency::tier::{Landed, Mover, Order};

/// A ring of reads.
pub(super) struct Ring {
    ring: IoUring,
    shared: Arc<Shared>,
    /// `[tickets, PARTS_MAX]`: the reads under way.
    pieces: Vec<Option<Piece>>,
    tally: Tally,
    ended: VecDeque<Landed<ReadError>>,
    /// Pieces that the kernel has, or is about to.
    under_way: usize,
}

impl Ring {
    /// A ring for so many tickets.
    ///
    /// **Errors**: the kernel has none for us.
    pub(super) fn new(shared: Arc<Shared>, tickets: usize) -> io::Result<Self> {
        let places = tickets * PARTS_MAX;
        let ring = IoUring::new(places.next_power_of_two() as u32)?;
        Ok(Self {
            ring,
            shared,
            pieces: vec![None; places],
            tally: Tally::new(tickets),
            ended: VecDeque::new(),
            under_way: 0,
        })
    }

    /// Puts a piece's next read on the ring.
    fn push(&mut self, place: usize, piece: Piece) {
        let Source::File { file, .. } = &self.shared.sources[piece.extent.file] else {
            unreachable!("a ring reads files only")
        };
        let to = piece.extent.to + piece.done;
        let to = self.shared.arena.pointer(to, piece.left());
        let read = opcode::Read::new(types::Fd(file.as_raw_fd()), to, piece.left() as u32)
            .offset(piece.offset())
            .build()
            .user_data(place as u64);
        self.pieces[place] = Some(piece);
        self.under_way += 1;
        // SAFETY: the file and the arena are kept by `shared`, which outlives the read: dropping the ring waits for it. The slot is this ticket's until it is reported.
        let pushed = unsafe { self.ring.submission().push(&read) };
        pushed.expect("the ring has a place for every piece");
    }

    /// Hands over what was pushed, and waits for `wait` ends.
    fn submit(&mut self, wait: usize) {
        loop {
            match self.ring.submit_and_wait(wait) {
                Ok(_) => return,
                // it has no room at the moment, or a signal came: ends make room
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                    ) =>
                {
                    if !self.ring.completion().is_empty() {
                        return;
                    }
                    std::thread::yield_now();
                }
                // only a wrong call ends otherwise, and what the kernel holds cannot be taken back
                Err(error) => panic!("io_uring: {error}"),
            }
        }
    }

    /// Takes note of reads that have ended.
    fn reap(&mut self) {
        let mut again = false;
        loop {
            let end = self.ring.completion().next();
            let Some(end) = end else {
                break;
            };
            let place = end.user_data() as usize;
            let Some(mut piece) = self.pieces[place].take() else {
                continue;
            };
            self.under_way -= 1;
            let read = match end.result() {
                failed if failed < 0 => Err(io::Error::from_raw_os_error(-failed)),
                read => Ok(read as usize),
            };
            let source = &self.shared.sources[piece.extent.file];
            let direct = matches!(source, Source::File { direct: true, .. });
            let failed = match piece.settle(read, direct) {
                Settled::Whole => None,
                Settled::Failed(fault) => Some(self.shared.error(&piece, fault)),
                Settled::Rest => {
                    self.push(place, piece);
                    again = true;
                    continue;
                }
            };
            let ticket = piece.ticket();
            if let Some(result) = self.tally.end(ticket, failed) {
                self.ended.push_back(Landed { ticket, result });
            }
        }
        if again {
            self.submit(0);
        }
    }
}

impl Mover for Ring {
    type Error = ReadError;

    fn start(&mut self, order: Order) {
        let shared = self.shared.clone();
        let first = order.ticket.0 as usize * PARTS_MAX;
        let pieces = shared.pieces(order);
        self.tally.begin(order.ticket, pieces.len());
        for (part, piece) in pieces.enumerate() {
            self.push(first + part, piece);
        }
        self.submit(0);
    }

    fn landed(&mut self, wait: bool) -> Option<Landed<ReadError>> {
        loop {
            if let Some(landed) = self.ended.pop_front() {
                return Some(landed);
            }
            self.reap();
            if self.ended.is_empty() {
                if !wait || self.under_way == 0 {
                    return None;
                }
                self.submit(1);
            }
        }
    }
}

impl Drop for Ring {
    /// The kernel writes to the arena until the last read has ended.
    fn drop(&mut self) {
        while self.under_way > 0 {
            self.submit(1);
            self.reap();
        }
    }
}
