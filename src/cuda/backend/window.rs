//! Windows on the device: their tables, their slices, and the graphs that small ones are.

use std::ops::Range;

use cudarc::driver::{CudaGraph, result, sys};

use super::{
    Act, Cuda, CudaError, During, Now, Pending, Ready, Residual, Rows, Window, bucket,
    layout::SPLIT,
};
use crate::engine::executor::Lane;

impl Ready {
    /// What launches for these rows are made for.
    fn now_for(&self, rows: &Rows, residual: &Residual) -> Now {
        let bucket = bucket(rows.count());
        let addresses = residual.tables.addresses(bucket);
        let last = |span: &crate::model::window::RowSpan| span.first + span.rows.len();
        let positions = rows.spans().iter().map(last).max().unwrap_or(1);
        let positions = positions + residual.ahead.unwrap_or(0);
        let splits = positions.div_ceil(SPLIT).next_power_of_two();
        Now {
            tables: addresses.rows,
            want: addresses.want,
            rows: bucket,
            spans: if bucket == rows.count() && bucket > super::FEW_ROWS {
                rows.spans().len()
            } else {
                bucket.min(self.room.slots)
            },
            asked: bucket.min(self.room.logits_rows),
            splits: splits.min(self.layout.splits.max(1)),
            residual: residual.memory.address(),
            draws: residual.ahead.is_some(),
        }
    }

    /// Sends the window's tables if its rows have changed, and makes it the one that ops are about.
    pub(super) fn enter(&mut self, window: &mut Window<Cuda>) -> Result<(), CudaError> {
        let (rows, residual) = window.parts_mut();
        if residual.stale {
            let ahead = residual.ahead.unwrap_or(0);
            residual.tables.send(&self.queue.stream, rows, ahead)?;
            residual.stale = false;
        }
        self.now = Some(self.now_for(rows, residual));
        self.formed = None;
        self.queue.overlap = false;
        Ok(())
    }

    /// Ends a slice: no more than this one is on the device when it returns.
    pub(super) fn leave(&mut self) -> Result<(), CudaError> {
        self.flush()?;
        self.now = None;
        let [this, before] = [self.slices % 2, (self.slices + 1) % 2];
        self.slices += 1;
        self.slice[this]
            .record(&self.queue.stream)
            .during("marking the end of a slice")?;
        // an event that was never recorded counts as done
        self.slice[before].synchronize().during("computing a slice")
    }

    /// Rows move up over those that are gone. They pass through a buffer, because they may overlap.
    pub(super) fn close_gap(&mut self, residual: &mut Residual, gone: Range<usize>, count: usize) {
        residual.stale = true;
        let row = 4 * self.streams * self.width;
        let (to, bytes) = (gone.start * row, (count - gone.end) * row);
        // a buffer with room for as many rows of the residual
        let buffer = match self.streams {
            1 => Act::Normed,
            _ => Act::Streams,
        };
        let (memory, buffer) = (residual.memory.address(), self.act(buffer));
        let copy = |to: u64, from: u64| {
            // SAFETY: both buffers have room for a window's rows; the stream orders the two copies.
            unsafe { result::memcpy_dtod_async(to, from, bytes, self.queue.stream.cu_stream()) }
        };
        let moved = match bytes {
            0 => Ok(()),
            _ => copy(buffer, memory + (gone.end * row) as u64)
                .and_then(|()| copy(memory + to as u64, buffer)),
        };
        if moved.is_err() {
            // the next call fails as well, and tells
            tracing::debug!("the device failed while rows were withdrawn");
        }
    }
}

impl Cuda {
    /// The first rows of a residual, once all that was enqueued is done: for tests that look between layers.
    #[doc(hidden)]
    pub fn residual_rows(&self, residual: &Residual, rows: usize) -> Result<Vec<f32>, CudaError> {
        let mut values = Vec::new();
        if let Some(ready) = &self.ready {
            self.device.finish()?;
            values.resize(rows * ready.streams * ready.width, 0.0);
            // SAFETY: a residual has room for a window's rows; the call returns when they are here.
            unsafe { result::memcpy_dtoh_sync(&mut values, residual.memory.address()) }
                .during("reading a residual")?;
        }
        Ok(values)
    }
}

/// A window of few rows in the decode lane: recorded the first time, replayed after that.
pub(super) fn whole(
    cuda: &mut Cuda,
    window: &mut Window<Cuda>,
    enqueue: impl FnOnce(&mut Cuda, &mut Window<Cuda>) -> Result<(), CudaError>,
) -> Result<bool, CudaError> {
    let ready = cuda.ready();
    ready.enter(window)?;
    let now = ready.now();
    if !now.few() || window.lane() != Lane::Decode {
        ready.now = None;
        return Ok(false);
    }
    cuda.bring_ngrams(window)?;
    let ready = cuda.ready();
    let key = (now.rows, now.splits);
    if !ready.graphs.contains_key(&key) {
        let graph = record(cuda, window, enqueue)?;
        tracing::debug!(rows = key.0, splits = key.1, "recorded a decode window");
        cuda.ready().graphs.insert(key, graph);
    }
    let ready = cuda.ready();
    ready.now = None;
    ready.graphs[&key].launch().during("launching a window")?;
    Ok(true)
}

/// What `enqueue` would put on the device.
pub(super) fn record(
    cuda: &mut Cuda,
    window: &mut Window<Cuda>,
    enqueue: impl FnOnce(&mut Cuda, &mut Window<Cuda>) -> Result<(), CudaError>,
) -> Result<CudaGraph, CudaError> {
    let stream = cuda.ready().queue.stream.clone();
    stream
        .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .during("recording a window")?;
    let enqueued = enqueue(cuda, window);
    let ready = cuda.ready();
    ready.queue.overlap = false;
    ready.pending = Pending::default();
    ready.formed = None;
    // ended in any case: a stream that records cannot be used for anything else
    let graph = stream
        .end_capture(sys::CUgraphInstantiate_flags(0))
        .during("recording a window");
    enqueued?;
    let graph = graph?.expect("a window is more than nothing");
    graph.upload().during("preparing a recorded window")?;
    Ok(graph)
}
