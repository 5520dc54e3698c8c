//! Threads that read pieces of a file.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, channel},
    },
    thread,
    time::Duration,
};

use crate::gguf::{Gguf, Held, Tensor};

/// Threads: as many small reads as a disk is given at once.
const THREADS: usize = 16;
/// **Units**: bytes. Rows no further apart are read together: a disk reads a page of its own anyway.
const NEAR: usize = 4096;
/// **Units**: bytes. One read is no longer.
const LONGEST: usize = 64 << 10;

/// Rows that are read together, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) rows: Vec<u64>,
}

impl Extent {
    /// Puts rows, ascending, that lie near each other together.
    pub(super) fn together(rows: &[u64], row_bytes: usize) -> Vec<Self> {
        let mut extents: Vec<Self> = Vec::new();
        for row in rows {
            if let Some(last) = extents.last_mut() {
                let (first, end) = (last.rows[0], last.rows[last.rows.len() - 1] + 1);
                let gap = (row - end) as usize * row_bytes;
                let length = (row + 1 - first) as usize * row_bytes;
                if gap <= NEAR && length <= LONGEST {
                    last.rows.push(*row);
                    continue;
                }
            }
            extents.push(Self { rows: vec![*row] });
        }
        extents
    }

    /// **Units**: bytes. From the first row to the end of the last.
    pub(super) fn bytes(&self, row_bytes: usize) -> usize {
        (self.rows[self.rows.len() - 1] + 1 - self.rows[0]) as usize * row_bytes
    }
}

/// A read that has come back.
pub(super) struct Read {
    pub(super) extent: Extent,
    /// Whether it began when a window waited for it.
    pub(super) urgent: bool,
    pub(super) offset: u64,
    pub(super) bytes: io::Result<Vec<u8>>,
}

/// What is to be read.
#[derive(Default)]
struct Queue {
    /// Windows wait for these.
    urgent: VecDeque<Extent>,
    /// For these nobody waits yet.
    ahead: VecDeque<Extent>,
    /// Nobody wants anything any more.
    closed: bool,
}

/// What the threads have in common.
#[derive(Default)]
pub(super) struct Shared {
    queue: Mutex<Queue>,
    /// Rings when there is something to read, or nothing ever more.
    bell: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // a queue has no state between two of its changes
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, extents: Vec<Extent>, urgent: bool) {
        let queue = &mut *self.queue();
        let queue = if urgent {
            &mut queue.urgent
        } else {
            &mut queue.ahead
        };
        queue.extend(extents);
        self.bell.notify_all();
    }

    pub(super) fn hurry(&self, waits: impl Fn(u64) -> bool) {
        let queue = &mut *self.queue();
        let waits = |extent: &Extent| extent.rows.iter().any(|row| waits(*row));
        let (mut urgent, ahead): (VecDeque<_>, _) = queue.ahead.drain(..).partition(waits);
        queue.ahead = ahead;
        queue.urgent.append(&mut urgent);
    }

    /// The next extent to be read, and whether it is urgent; none when the queue is closed.
    pub(super) fn next(&self) -> Option<(Extent, bool)> {
        let mut queue = self.queue();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(extent) = queue.urgent.pop_front() {
                return Some((extent, true));
            }
            if let Some(extent) = queue.ahead.pop_front() {
                return Some((extent, false));
            }
            queue = self
                .bell
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The threads. They end when this is dropped.
pub(super) struct Readers {
    shared: Arc<Shared>,
    reads: Receiver<Read>,
}

impl Readers {
    /// Threads that read rows of `tensor`.
    pub(super) fn new(file: Arc<Gguf>, tensor: &Tensor) -> Self {
        let shared = Arc::new(Shared::default());
        let (read, reads) = channel();
        for _ in 0..THREADS {
            let (file, tensor, shared, read) =
                (file.clone(), tensor.clone(), shared.clone(), read.clone());
            let work = move || {
                let row_bytes = tensor.row_bytes();
                while let Some((extent, urgent)) = shared.next() {
                    let offset = extent.rows[0] * row_bytes as u64;
                    let mut bytes = vec![0; extent.bytes(row_bytes)];
                    let done = read_at(&file, &tensor, offset, &mut bytes);
                    let sent = read.send(Read {
                        extent,
                        urgent,
                        offset,
                        bytes: done.map(|()| bytes),
                    });
                    if sent.is_err() {
                        return;
                    }
                }
            };
            // fewer threads read as well, only slower; with none the window's patience ends with an error
            let _ = thread::Builder::new().name("table".into()).spawn(work);
        }
        Self { shared, reads }
    }

    /// Nobody reads, and what the sender sends has been read: a disk that does not answer until it is told to.
    #[cfg(test)]
    pub(super) fn none() -> (Self, std::sync::mpsc::Sender<Read>) {
        let (read, reads) = channel();
        let shared = Arc::new(Shared::default());
        (Self { shared, reads }, read)
    }

    /// Asks for extents: before all others if they are urgent, after all others if not.
    pub(super) fn ask(&self, extents: Vec<Extent>, urgent: bool) {
        if !extents.is_empty() {
            self.shared.put(extents, urgent);
        }
    }

    /// Extents with rows for which somebody waits now become urgent.
    pub(super) fn hurry(&self, waits: impl Fn(u64) -> bool) {
        self.shared.hurry(waits);
    }

    /// The next read that comes back; none within `patience`.
    pub(super) fn next(&self, patience: Duration) -> Option<Read> {
        self.reads.recv_timeout(patience).ok()
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.bell.notify_all();
    }
}

fn read_at(file: &Gguf, tensor: &Tensor, offset: u64, to: &mut [u8]) -> io::Result<()> {
    match file.held(tensor.shard) {
        Held::Memory(_) => {
            let from = offset as usize;
            to.copy_from_slice(&file.bytes(tensor)[from..from + to.len()]);
            Ok(())
        }
        #[cfg(unix)]
        Held::File(held) => {
            use std::os::unix::fs::FileExt;
            held.read_exact_at(to, tensor.offset as u64 + offset)
        }
        #[cfg(not(unix))]
        Held::File(_) => {
            let from = offset as usize;
            to.copy_from_slice(&file.bytes(tensor)[from..from + to.len()]);
            Ok(())
        }
    }
}
