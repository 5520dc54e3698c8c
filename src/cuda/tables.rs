//! The tables of a window: what every row is, where the kernels read it.

use std::{ops::Range, sync::Arc};

use cudarc::driver::{CudaEvent, CudaStream, result};

use super::{
    device::Device,
    error::{CudaError, During},
    memory::{ALIGN, DeviceMemory, Pinned},
};
use crate::{
    engine::executor::{Ask, PAGE_TOKENS},
    model::window::Rows,
};

/// Windows of up to this many rows run the kernels for few rows, as one captured graph.
pub(super) const FEW_ROWS: usize = 16;

/// Rows that the launches of a window are made for: those of the next bucket, so that one graph serves all windows of a bucket.
pub(super) fn bucket(rows: usize) -> usize {
    if rows <= FEW_ROWS {
        rows.next_power_of_two()
    } else {
        rows
    }
}

/// `struct Rows` of `kernels/device.cuh`: addresses of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct RowTables {
    counts: u64,
    tokens: u64,
    positions: u64,
    slots: u64,
    row_pages: u64,
    pages: u64,
    spans: u64,
    logits: u64,
}

impl RowTables {
    /// Where the device finds the number of rows.
    pub(super) fn row_count(&self) -> u64 {
        self.counts
    }

    /// The same tables, of which the number of rows is found elsewhere.
    pub(super) fn counting(self, counts: u64) -> Self {
        Self { counts, ..self }
    }

    /// The same tables with the token of the row after it for each row.
    pub(super) fn of_next_tokens(self) -> Self {
        let tokens = self.tokens + 4;
        Self { tokens, ..self }
    }

    /// Where the device finds the number of rows with logits.
    pub(super) fn asked_count(&self) -> u64 {
        self.counts + 8
    }

    /// Where the device finds the number of rows, each counted once for every stream of the residual.
    pub(super) fn stream_count(&self) -> u64 {
        self.counts + 12
    }
}

/// Where a window's tables lie on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) rows: RowTables,
    /// `[rows with logits] u32`: what is to be known of each, as `kernels/choose.cu` numbers it.
    pub(super) want: u64,
}

/// Words before the rows' own: rows, spans, rows with logits, rows times streams.
const COUNTS: usize = 8;

/// Where the tables of a window lie, in words. The pages come last, so that only those there are must travel.
#[derive(Clone, Copy, Debug)]
struct Layout {
    rows: usize,
    spans: usize,
}

/// Where each table begins, in words.
struct Starts {
    counts: usize,
    tokens: usize,
    positions: usize,
    slots: usize,
    row_pages: usize,
    logits: usize,
    want: usize,
    spans: usize,
    pages: usize,
}

impl Layout {
    fn starts(self) -> Starts {
        let mut end = 0;
        let mut table = |words: usize| {
            let start = end;
            end += words.next_multiple_of(4);
            start
        };
        Starts {
            counts: table(COUNTS),
            tokens: table(self.rows + 1), // there is one after the last, too
            positions: table(self.rows),
            slots: table(self.rows),
            row_pages: table(self.rows),
            logits: table(self.rows),
            want: table(self.rows),
            spans: table(4 * self.spans),
            pages: table(0),
        }
    }
}

/// Room for the tables of a window, on both sides.
pub(super) struct Tables {
    device: DeviceMemory,
    pinned: Pinned,
    /// The device has read what was sent last.
    read: CudaEvent,
    /// Most rows and slots.
    rows: usize,
    slots: usize,
    /// Page numbers there is room for.
    pages: usize,
    /// Of the residual.
    streams: usize,
}

/// **Units**: words. Room for the largest window's tables.
fn words(rows: usize, slots: usize, pages: usize) -> usize {
    let all = Layout {
        rows: bucket(rows),
        spans: slots,
    };
    all.starts().pages + pages
}

impl Tables {
    /// **Units**: bytes of device memory.
    pub(super) fn bytes(rows: usize, slots: usize, pages: usize) -> usize {
        (4 * words(rows, slots, pages)).next_multiple_of(ALIGN)
    }

    pub(super) fn new(
        device: &Device,
        rows: usize,
        slots: usize,
        pages: usize,
        streams: usize,
    ) -> Result<Self, CudaError> {
        let bytes = Self::bytes(rows, slots, pages);
        Ok(Self {
            device: DeviceMemory::new(&device.context, bytes)?,
            pinned: Pinned::new(&device.context, bytes)?,
            read: device.context.new_event(None).during("making an event")?,
            rows,
            slots,
            pages,
            streams,
        })
    }

    fn layout(&self, bucket: usize) -> Layout {
        Layout {
            rows: bucket,
            spans: self.slots.min(bucket),
        }
    }

    /// The tables' addresses in windows of this bucket.
    pub(super) fn addresses(&self, bucket: usize) -> Addresses {
        let base = self.device.address();
        let at = |start: usize| base + 4 * start as u64;
        let starts = self.layout(bucket).starts();
        Addresses {
            rows: RowTables {
                counts: at(starts.counts),
                tokens: at(starts.tokens),
                positions: at(starts.positions),
                slots: at(starts.slots),
                row_pages: at(starts.row_pages),
                pages: at(starts.pages),
                spans: at(starts.spans),
                logits: at(starts.logits),
            },
            want: at(starts.want),
        }
    }

    /// Sends the rows' tables on their way. Waits until the device has read those sent before. Each sequence's last row will come to stand up to `ahead` positions
    /// further.
    pub(super) fn send(
        &mut self,
        stream: &Arc<CudaStream>,
        rows: &Rows,
        ahead: usize,
    ) -> Result<(), CudaError> {
        // an event that was never recorded counts as done
        let sending = "sending a window's tables";
        self.read.synchronize().during(sending)?;
        let bucket = bucket(rows.count());
        let room = |what, got, allowed| {
            if got > allowed {
                Err(CudaError::TooMany { what, got, allowed })
            } else {
                Ok(())
            }
        };
        let pages: usize = rows.spans().iter().map(|span| rows.pages(span).len()).sum();
        room("rows of a window", rows.count(), self.rows)?;
        room("sequences of a window", rows.spans().len(), self.slots)?;
        room("pages of a window", pages, self.pages)?;
        let starts = self.layout(bucket).starts();
        let mut put = |start: usize, values: &[u32]| {
            self.pinned.words_mut()[start..start + values.len()].copy_from_slice(values);
        };
        let counts = [
            rows.count(),
            rows.spans().len(),
            rows.logits().len(),
            self.streams * rows.count(),
        ];
        put(starts.counts, &counts.map(|count| count as u32));
        put(starts.tokens, rows.tokens());
        put(starts.tokens + rows.count(), &[0]);
        put(starts.logits, rows.logits());
        for (number, ask) in rows.asks().iter().enumerate() {
            let want = match ask {
                Ask::Greedy => 1,
                Ask::Candidates => 2,
                // the row travels, what there is to choose from is not needed
                Ask::Logits => 0,
            };
            put(starts.want + number, &[want]);
        }
        let mut page = 0;
        for (number, span) in rows.spans().iter().enumerate() {
            let (first, count) = (span.rows.start as u32, span.rows.len() as u32);
            let words = [first, count, span.first as u32, span.slot.0];
            put(starts.spans + 4 * number, &words);
            for (row, position) in span.rows.clone().zip(span.first as u32..) {
                put(starts.positions + row, &[position]);
                put(starts.slots + row, &[span.slot.0]);
                put(starts.row_pages + row, &[page as u32]);
            }
            // pages past the last row are reserved for later rows: nobody reads them now
            let used = (span.first + span.rows.len() + ahead).div_ceil(PAGE_TOKENS);
            let pages = rows.pages(span);
            for id in &pages[..used.min(pages.len())] {
                put(starts.pages + page, &[id.0]);
                page += 1;
            }
        }
        self.copy(stream, 0..starts.pages + page)?;
        self.read.record(stream).during(sending)
    }

    fn copy(&self, stream: &Arc<CudaStream>, words: Range<usize>) -> Result<(), CudaError> {
        let from = &self.pinned.words()[words.clone()];
        // SAFETY: both sides have room for as many words; the pinned side stays until the device has read it.
        unsafe {
            result::memcpy_htod_async(
                self.device.address() + 4 * words.start as u64,
                from,
                stream.cu_stream(),
            )
        }
        .during("sending a window's tables")
    }
}
