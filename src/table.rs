//! A table that stays on the disk: rows are read by threads, ahead of when they are needed, and kept in a bounded cache.
//!
//! Which rows a window needs is known when it begins, and which the next chunk of a prompt will need when this one begins; so they are asked for then, and what is missing
//! has arrived by the time it is used, as a rule. Rows that lie near each other are read together. The engine thread does all the bookkeeping; the threads only read.
//! What cannot be read, or not in time, is told row by row with the table's name, never a wait without end.

mod cache;
mod lane;
mod ngrams;
mod readers;

use std::{
    collections::{HashSet, VecDeque},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    backend::{MatrixSource, torn::TornRows},
    engine::executor::Lane,
    gguf::{Gguf, Tensor},
    quant::{self, BlockType},
};
use cache::RowCache;
use lane::{Held, LaneRows};
pub(crate) use ngrams::Ngrams;
use readers::{Extent, Read, Readers};

/// How long a window waits for its rows.
const PATIENCE: Duration = Duration::from_secs(20);
/// **Units**: bytes. What rows in memory, and finding them, may take.
pub(crate) const CACHE_BYTES: usize = 256 << 20;
/// Waits that are remembered: enough for percentiles.
const WAITS: usize = 4096;

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
        "table `{tensor}`: {missing} rows have not come after {}s; is the disk alive?",
        .patience.as_secs()
    )]
    Slow {
        /// The table.
        tensor: String,
        /// How many rows.
        missing: usize,
        /// How long they were waited for.
        patience: Duration,
    },
}

/// What reading has been like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableStats {
    /// Rows asked for, each once a window.
    pub rows: u64,
    /// Of these, in memory when their window began.
    pub hits: u64,
    /// Rows that were read for a window which had not begun.
    pub ahead: u64,
    /// Reads from the disk.
    pub reads: u64,
    /// **Units**: bytes. What they brought.
    pub read_bytes: u64,
    /// Windows that used rows.
    pub windows: u64,
    /// How long the last few thousand of them have waited, in their order.
    pub waits: VecDeque<Duration>,
}

impl Table {
    /// A table of which rows are read when they are wanted.
    pub(crate) fn new(file: Arc<Gguf>, source: MatrixSource) -> Self {
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

/// All that is in memory of a model's table.
pub(crate) struct Tables {
    open: Option<Open>,
    /// A window waits no longer than this for its rows.
    patience: Duration,
    lanes: [LaneRows; Lane::COUNT],
    stats: TableStats,
}

struct Open {
    table: Arc<Table>,
    cache: RowCache,
    readers: Readers,
    /// Rows that were asked for and have not come.
    awaited: HashSet<u64>,
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            open: None,
            patience: PATIENCE,
            lanes: Default::default(),
            stats: TableStats::default(),
        }
    }
}

impl Tables {
    /// Gets ready to read `table`. A model has one.
    pub(crate) fn open(&mut self, table: &Arc<Table>) {
        self.open = Some(Open {
            cache: RowCache::new(CACHE_BYTES, table.row_bytes()),
            readers: Readers::new(table.file.clone(), &table.tensor),
            table: table.clone(),
            awaited: HashSet::new(),
        });
    }

    /// What reading has been like.
    pub(crate) fn stats(&self) -> &TableStats {
        &self.stats
    }

    /// Asks for rows of a window that has not begun; they are read when no window waits for others.
    pub(crate) fn ahead(&mut self, rows: &[u64]) {
        self.take_arrived();
        let Some(open) = &mut self.open else {
            return;
        };
        let mut missing = Vec::new();
        for row in rows {
            if !open.cache.has(*row) && open.awaited.insert(*row) {
                missing.push(*row);
            }
        }
        self.stats.ahead += missing.len() as u64;
        self.stats.reads += open.read(missing, false);
    }

    /// Asks for the rows of a window that begins.
    pub(crate) fn ask(&mut self, lane: Lane, rows: &[u64]) {
        self.take_arrived();
        let Some(open) = &mut self.open else {
            return;
        };
        let of = &mut self.lanes[lane as usize];
        of.begin(open.table.row_bytes());
        let (mut missing, mut coming) = (Vec::new(), false);
        for row in rows {
            if !of.list(*row) {
                continue;
            }
            self.stats.rows += 1;
            if let Some(bytes) = open.cache.get(*row) {
                self.stats.hits += 1;
                of.arrive(*row, bytes);
            } else if open.awaited.insert(*row) {
                missing.push(*row);
            } else {
                coming = true;
            }
        }
        if coming {
            open.readers.hurry(|row| of.awaits(row));
        }
        self.stats.reads += open.read(missing, true);
    }

    /// Multiplies out the rows that a window has `found`, in its order, for each of its rows `each` of them. Waits for those that are on their way; zeros stand for those that were
    /// lost, and the window's rows that need them are torn.
    ///
    /// **Shapes**: `out [rows, each, width] f32`.
    pub(crate) fn values(
        &mut self,
        lane: Lane,
        (found, each): (&[u64], usize),
        out: &mut [f32],
        torn: &mut TornRows,
    ) {
        let Some(ty) = self.open.as_ref().map(|open| open.table.ty()) else {
            return;
        };
        let width = out.len() / found.len().max(1);
        let of = self.rows(lane, found);
        for (at, (to, row)) in out.chunks_exact_mut(width.max(1)).zip(found).enumerate() {
            match of.get(*row) {
                Some(bytes) => {
                    quant::dequantise(ty, bytes, to).expect("a row of the table has its width");
                }
                None => {
                    to.fill(0.0);
                    torn.add([(at / each) as u32]);
                }
            }
        }
        if let Some(why) = of.why() {
            torn.because(why);
        }
    }

    /// The rows that were asked for, `rows` among them. Waits for those that are on their way; some may have been lost.
    fn rows(&mut self, lane: Lane, rows: &[u64]) -> Held<'_> {
        if !rows.iter().all(|row| self.lanes[lane as usize].lists(*row)) {
            // nobody said that this window begins
            self.ask(lane, rows);
        }
        let begun = Instant::now();
        let mut waited = Duration::ZERO;
        while self.lanes[lane as usize].awaited() > 0 {
            let arrived = match &mut self.open {
                Some(open) => open
                    .readers
                    .next(self.patience.saturating_sub(begun.elapsed())),
                None => None,
            };
            match arrived {
                Some(read) => self.take(read),
                None => self.give_up(lane),
            }
            waited = begun.elapsed();
        }
        self.stats.windows += 1;
        if self.stats.waits.len() == WAITS {
            self.stats.waits.pop_front();
        }
        self.stats.waits.push_back(waited);
        Held::new(&self.lanes[lane as usize])
    }

    /// A window does without what has not come.
    fn give_up(&mut self, lane: Lane) {
        let tensor = match &self.open {
            Some(open) => open.table.tensor.name.to_string(),
            None => String::new(),
        };
        let of = &mut self.lanes[lane as usize];
        let slow = TableError::Slow {
            tensor,
            missing: of.awaited(),
            patience: self.patience,
        };
        of.lose(|_| true, &Arc::new(slow));
    }

    fn take_arrived(&mut self) {
        while let Some(read) = self
            .open
            .as_mut()
            .and_then(|open| open.readers.next(Duration::ZERO))
        {
            self.take(read);
        }
    }

    /// Takes one read that has come back to where it belongs.
    fn take(&mut self, read: Read) {
        let Some(open) = &mut self.open else {
            return;
        };
        let row_bytes = open.table.row_bytes();
        let rows = &read.extent.rows;
        rows.iter().for_each(|row| _ = open.awaited.remove(row));
        match read.bytes {
            Ok(bytes) => {
                self.stats.read_bytes += bytes.len() as u64;
                for row in rows {
                    let from = (row - rows[0]) as usize * row_bytes;
                    let bytes = &bytes[from..from + row_bytes];
                    open.cache.put(*row, bytes);
                    self.lanes.iter_mut().for_each(|of| of.arrive(*row, bytes));
                }
            }
            // it may have failed before a window waited for it, or because of one row of several
            Err(_) if !read.urgent || rows.len() > 1 => {
                let awaits = |row: &u64| self.lanes.iter().any(|of| of.awaits(*row));
                let again = rows.iter().copied().filter(awaits);
                let again: Vec<Extent> = again.map(|row| Extent { rows: vec![row] }).collect();
                open.awaited
                    .extend(again.iter().flat_map(|extent| &extent.rows));
                self.stats.reads += again.len() as u64;
                open.readers.ask(again, true);
            }
            Err(reason) => {
                let why = Arc::new(TableError::Read {
                    tensor: open.table.tensor.name.to_string(),
                    offset: read.offset,
                    bytes: read.extent.bytes(row_bytes),
                    reason,
                });
                for of in &mut self.lanes {
                    of.lose(|row| rows.binary_search(&row).is_ok(), &why);
                }
            }
        }
    }
}

impl Open {
    /// Has rows read; says in how many reads.
    fn read(&mut self, mut rows: Vec<u64>, urgent: bool) -> u64 {
        rows.sort_unstable();
        let extents = Extent::together(&rows, self.table.row_bytes());
        let reads = extents.len() as u64;
        self.readers.ask(extents, urgent);
        reads
    }
}

#[cfg(test)]
mod tests;
