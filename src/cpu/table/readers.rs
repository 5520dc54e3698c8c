//! Threads that read pieces of a file.

use std::{
    io,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use crate::{
    engine::executor::Lane,
    gguf::{Gguf, Held, Tensor},
};

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
    pub(super) lane: Lane,
    pub(super) number: u64,
    pub(super) extent: Extent,
    pub(super) offset: u64,
    pub(super) bytes: io::Result<Vec<u8>>,
}

struct Asked {
    lane: Lane,
    number: u64,
    extent: Extent,
}

/// The threads. They end when this is dropped.
pub(super) struct Readers {
    asks: Sender<Asked>,
    reads: Receiver<Read>,
}

impl Readers {
    /// Threads that read rows of `tensor`.
    pub(super) fn new(file: Arc<Gguf>, tensor: &Tensor) -> Self {
        let (asks, asked) = channel::<Asked>();
        let (read, reads) = channel();
        let asked = Arc::new(Mutex::new(asked));
        for _ in 0..THREADS {
            let (file, tensor, asked, read) =
                (file.clone(), tensor.clone(), asked.clone(), read.clone());
            let work = move || {
                loop {
                    // one thread waits for the next ask, the others for it
                    let next = asked.lock().map(|asked| asked.recv());
                    let Ok(Ok(Asked {
                        lane,
                        number,
                        extent,
                    })) = next
                    else {
                        return;
                    };
                    let row_bytes = tensor.row_bytes();
                    let offset = extent.rows[0] * row_bytes as u64;
                    let mut bytes = vec![0; extent.bytes(row_bytes)];
                    let done = read_at(&file, &tensor, offset, &mut bytes);
                    let sent = read.send(Read {
                        lane,
                        number,
                        extent,
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
        Self { asks, reads }
    }

    /// Asks for rows.
    pub(super) fn ask(&self, lane: Lane, number: u64, extent: Extent) {
        let asked = Asked {
            lane,
            number,
            extent,
        };
        // without a thread that listens nothing comes back, which whoever waits finds out
        let _ = self.asks.send(asked);
    }

    /// The next read that comes back; none within `patience`.
    pub(super) fn next(&self, patience: Duration) -> Option<Read> {
        self.reads.recv_timeout(patience).ok()
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
