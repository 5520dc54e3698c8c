//! Reads by a pool of threads, where the kernel has no io_uring or the model lies in memory.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
};

use super::{
    error::ReadError,
    piece::{Piece, Settled, Shared, Source, Tally},
};
use crate::{
    gguf::Held,
    residency::tier::{Landed, Mover, Order, Ticket, Urgency},
};

/// Reads under way at once.
const THREADS: usize = 8;

/// The pool.
pub(super) struct Readers {
    shared: Arc<Shared>,
    queue: Arc<(Mutex<Queue>, Condvar)>,
    ended: mpsc::Receiver<(Ticket, Option<ReadError>)>,
    tally: Tally,
    under_way: usize,
    threads: Vec<JoinHandle<()>>,
}

/// What is to be read. Whom somebody waits for goes first.
#[derive(Default)]
struct Queue {
    demand: VecDeque<Piece>,
    ahead: VecDeque<Piece>,
    stop: bool,
}

impl Readers {
    /// Starts the threads.
    pub(super) fn new(shared: Arc<Shared>, tickets: usize) -> io::Result<Self> {
        let queue = Arc::new((Mutex::new(Queue::default()), Condvar::new()));
        let (ends, ended) = mpsc::channel();
        let start = |_| {
            let (shared, queue, ends) = (shared.clone(), queue.clone(), ends.clone());
            let thread = thread::Builder::new().name("experts".into());
            thread.spawn(move || work(&shared, &queue, &ends))
        };
        Ok(Self {
            threads: (0..THREADS).map(start).collect::<io::Result<_>>()?,
            shared,
            queue,
            ended,
            tally: Tally::new(tickets),
            under_way: 0,
        })
    }
}

/// Reads pieces until told to stop.
fn work(
    shared: &Shared,
    queue: &(Mutex<Queue>, Condvar),
    ends: &mpsc::Sender<(Ticket, Option<ReadError>)>,
) {
    loop {
        let mut waiting = queue.0.lock().unwrap_or_else(PoisonError::into_inner);
        let piece = loop {
            let next = waiting.demand.pop_front();
            match next.or_else(|| waiting.ahead.pop_front()) {
                Some(piece) => break piece,
                None if waiting.stop => return,
                None => {
                    let woken = queue.1.wait(waiting);
                    waiting = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(waiting);
        let failed = read(shared, piece).err();
        if ends.send((piece.ticket(), failed)).is_err() {
            return; // nobody wants to know any more
        }
    }
}

/// Reads one piece to its end.
fn read(shared: &Shared, mut piece: Piece) -> Result<(), ReadError> {
    loop {
        let to = piece.extent.to + piece.done;
        let to = shared.arena.pointer(to, piece.left());
        // SAFETY: the slot is this ticket's until it is reported, and its pieces go to regions of their own.
        let room = unsafe { std::slice::from_raw_parts_mut(to, piece.left()) };
        let (read, direct) = match &shared.sources[piece.extent.file] {
            Source::File { file, direct, .. } => (read_at(file, room, piece.offset()), *direct),
            Source::Memory { shard } => (Ok(copy(shared, *shard, room, piece.offset())), false),
        };
        match piece.settle(read, direct) {
            Settled::Whole => return Ok(()),
            Settled::Rest => {}
            Settled::Failed(fault) => return Err(shared.error(&piece, fault)),
        }
    }
}

#[cfg(unix)]
fn read_at(file: &std::fs::File, room: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, room, offset)
}

#[cfg(windows)]
fn read_at(file: &std::fs::File, room: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, room, offset)
}

/// What a read would do, where the file is in memory.
fn copy(shared: &Shared, shard: usize, room: &mut [u8], offset: u64) -> usize {
    let Held::Memory(bytes) = shared.model.held(shard) else {
        return 0;
    };
    let from = bytes.get(offset as usize..).unwrap_or_default();
    let count = from.len().min(room.len());
    room[..count].copy_from_slice(&from[..count]);
    count
}

impl Mover for Readers {
    type Error = ReadError;

    fn start(&mut self, order: Order) {
        let pieces = self.shared.pieces(order);
        self.tally.begin(order.ticket, pieces.len());
        self.under_way += 1;
        let mut queue = self.queue.0.lock().unwrap_or_else(PoisonError::into_inner);
        match order.urgency {
            Urgency::Demand => queue.demand.extend(pieces),
            Urgency::Ahead => queue.ahead.extend(pieces),
        }
        drop(queue);
        self.queue.1.notify_all();
    }

    fn landed(&mut self, wait: bool) -> Option<Landed<ReadError>> {
        while self.under_way > 0 {
            let ended = if wait {
                self.ended.recv().ok()
            } else {
                self.ended.try_recv().ok()
            };
            let (ticket, failed) = ended?;
            if let Some(result) = self.tally.end(ticket, failed) {
                self.under_way -= 1;
                return Some(Landed { ticket, result });
            }
        }
        None
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let mut queue = self.queue.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.stop = true;
        queue.demand.clear();
        queue.ahead.clear();
        drop(queue);
        self.queue.1.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a panic in it has been reported by the panic hook
        }
    }
}
