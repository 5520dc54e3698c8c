//! A table that stays on the disk: rows are read by threads, ahead of when they are needed, and kept in a bounded cache.
//!
//! Which rows a window needs is known when it begins, so they are asked for then, and what is missing has arrived by the time they are used, as a rule. Rows that
//! lie near each other are read together. The engine thread does all the bookkeeping; the threads only read. A read that fails or takes too long is an error
//! with the table's name, never a wait without end.

mod cache;
mod readers;

use std::{
    collections::HashMap,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    backend::MatrixSource,
    engine::executor::Lane,
    gguf::{Gguf, Tensor},
    quant::BlockType,
};
use cache::RowCache;
use readers::{Extent, Readers};

/// A window waits no longer than this for its rows.
const PATIENCE: Duration = Duration::from_secs(20);
/// **Units**: bytes. What rows in memory may take.
const CACHE_BYTES: usize = 256 << 20;

/// A table, not in memory.
#[derive(Debug)]
pub struct Table {
    file: Arc<Gguf>,
    tensor: Tensor,
}

/// Why rows cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The system refused.
    #[error("table `{tensor}`: reading {bytes} bytes at {offset} of its file failed: {reason}")]
    Read {
        /// The table.
        tensor: String,
        /// Where in the file.
        offset: u64,
        /// How many bytes.
        bytes: usize,
        /// What the system said.
        reason: io::Error,
    },
    /// The disk does not answer.
    #[error(
        "table `{tensor}`: {missing} reads have not come back after {}s; is the disk alive?",
        PATIENCE.as_secs()
    )]
    Slow {
        /// The table.
        tensor: String,
        /// How many reads.
        missing: usize,
    },
}

/// What reading has been like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableStats {
    /// Rows asked for, each once a window.
    pub rows: u64,
    /// Of these, in memory already.
    pub hits: u64,
    /// Reads from the disk.
    pub reads: u64,
    /// **Units**: bytes. What they brought.
    pub read_bytes: u64,
    /// How long windows have waited, ascending, the longest waits of all.
    pub waits: Vec<Duration>,
}

impl Table {
    /// A table of which rows are read when they are wanted.
    pub(super) fn new(file: Arc<Gguf>, source: MatrixSource) -> Self {
        Self {
            file,
            tensor: source.tensor,
        }
    }

    /// Element type.
    pub fn ty(&self) -> BlockType {
        self.tensor.ty
    }

    fn row_bytes(&self) -> usize {
        self.tensor.row_bytes()
    }
}

/// The rows of a window that are there.
pub(super) struct Held<'a> {
    lane: &'a LaneRows,
    row_bytes: usize,
}

impl Held<'_> {
    /// A row's bytes.
    ///
    /// **Panics** if it was not asked for.
    pub(super) fn get(&self, row: u64) -> &[u8] {
        let at = self.lane.places[&row] * self.row_bytes;
        &self.lane.bytes[at..at + self.row_bytes]
    }
}

/// The rows that a lane's window needs.
#[derive(Default)]
struct LaneRows {
    /// Where in `bytes` a row is, in rows.
    places: HashMap<u64, usize>,
    bytes: Vec<u8>,
    /// Reads that have not come back.
    pending: usize,
    asked: Option<Instant>,
    /// Which window, so that what comes late for another is known.
    number: u64,
}

/// All that is in memory of a model's table.
#[derive(Default)]
pub(super) struct Tables {
    open: Option<Open>,
    lanes: [LaneRows; Lane::COUNT],
    stats: TableStats,
    number: u64,
}

struct Open {
    table: Arc<Table>,
    cache: RowCache,
    readers: Readers,
}

impl Tables {
    /// Gets ready to read `table`. A model has one.
    pub(super) fn open(&mut self, table: &Arc<Table>) {
        self.open = Some(Open {
            cache: RowCache::new(CACHE_BYTES, table.row_bytes()),
            readers: Readers::new(table.file.clone(), &table.tensor),
            table: table.clone(),
        });
    }

    /// What reading has been like.
    pub(super) fn stats(&self) -> TableStats {
        let mut stats = self.stats.clone();
        stats.waits.sort_unstable();
        stats
    }

    /// Asks for the rows of a window that begins.
    pub(super) fn ask(&mut self, lane: Lane, rows: &[u64]) {
        let Some(open) = &mut self.open else {
            return;
        };
        self.number += 1;
        let of = &mut self.lanes[lane as usize];
        of.places.clear();
        of.pending = 0;
        of.number = self.number;
        of.asked = Some(Instant::now());
        let row_bytes = open.table.row_bytes();
        let mut missing = Vec::new();
        for row in rows {
            let next = of.places.len();
            let std::collections::hash_map::Entry::Vacant(vacant) = of.places.entry(*row) else {
                continue;
            };
            vacant.insert(next);
            let need = (next + 1) * row_bytes;
            if of.bytes.len() < need {
                of.bytes.resize(need, 0);
            }
            self.stats.rows += 1;
            match open.cache.get(*row) {
                Some(bytes) => {
                    self.stats.hits += 1;
                    of.bytes[need - row_bytes..need].copy_from_slice(bytes);
                }
                None => missing.push(*row),
            }
        }
        missing.sort_unstable();
        for extent in Extent::together(&missing, row_bytes) {
            of.pending += 1;
            self.stats.reads += 1;
            open.readers.ask(lane, of.number, extent);
        }
    }

    /// The rows that were asked for, `rows` among them. Waits for those that are on their way.
    ///
    /// **Errors**: a read that failed, or did not come back.
    pub(super) fn rows(
        &mut self,
        table: &Table,
        lane: Lane,
        rows: &[u64],
    ) -> Result<Held<'_>, TableError> {
        let asked = {
            let of = &self.lanes[lane as usize];
            of.asked.is_some() && rows.iter().all(|row| of.places.contains_key(row))
        };
        if !asked {
            // nobody said that this window begins
            self.ask(lane, rows);
        }
        let begun = Instant::now();
        let waited = self.lanes[lane as usize].pending > 0;
        while self.lanes[lane as usize].pending > 0 {
            self.receive(table, begun)?;
        }
        if waited {
            self.note(begun.elapsed());
        } else {
            self.note(Duration::ZERO);
        }
        Ok(Held {
            lane: &self.lanes[lane as usize],
            row_bytes: table.row_bytes(),
        })
    }

    fn note(&mut self, wait: Duration) {
        // the last waits only: enough for percentiles
        if self.stats.waits.len() == 4096 {
            self.stats.waits.remove(0);
        }
        self.stats.waits.push(wait);
    }

    /// Takes one read that has come back to where it belongs.
    fn receive(&mut self, table: &Table, begun: Instant) -> Result<(), TableError> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let left = PATIENCE.saturating_sub(begun.elapsed());
        let Some(read) = open.readers.next(left) else {
            let missing = self.lanes.iter().map(|lane| lane.pending).sum();
            self.lanes.iter_mut().for_each(|lane| lane.asked = None);
            return Err(TableError::Slow {
                tensor: table.tensor.name.to_string(),
                missing,
            });
        };
        let row_bytes = table.row_bytes();
        let of = &mut self.lanes[read.lane as usize];
        let mine = of.number == read.number;
        if mine {
            of.pending -= 1;
        }
        let bytes = match read.bytes {
            Ok(bytes) => bytes,
            Err(reason) => {
                of.asked = None;
                return Err(TableError::Read {
                    tensor: table.tensor.name.to_string(),
                    offset: read.offset,
                    bytes: read.extent.bytes(row_bytes),
                    reason,
                });
            }
        };
        self.stats.read_bytes += bytes.len() as u64;
        for row in &read.extent.rows {
            let from = (row - read.extent.rows[0]) as usize * row_bytes;
            let bytes = &bytes[from..from + row_bytes];
            open.cache.put(*row, bytes);
            if let Some(place) = of.places.get(row).filter(|_| mine) {
                of.bytes[place * row_bytes..][..row_bytes].copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
