//! What n-grams add to the streams: rows of a table on the drive, which the host reads and sends before they are needed, gated and convolved on the device.

use cudarc::driver::{CudaEvent, result};

use super::{
    Act, Cuda, CudaError, Device, DeviceMemory, During, Grid, Needs, NgramWeights, Pinned, Ready,
    Room, Window, bucket, form_of, launch, mask,
    products::{From, Target},
};
use crate::engine::executor::Lane;

/// Rows of a table for the rows of a lane's window, multiplied out.
pub(super) struct NgramRows {
    /// `[rows, each, width] f32`
    device: DeviceMemory,
    pinned: Pinned,
    /// The device has read what was sent last.
    read: CudaEvent,
    /// Rows of the table for one row of the window.
    each: usize,
    /// Values of one of them.
    width: usize,
    /// Those of the window at hand were not sent yet.
    awaited: bool,
}

/// Rows of each lane's windows.
fn rows(room: &Room) -> [usize; Lane::COUNT] {
    let mut rows = [0; Lane::COUNT];
    rows[Lane::Decode as usize] = room.decode_rows;
    rows[Lane::Prompt as usize] = room.rows;
    rows
}

/// **Units**: bytes of device memory, for both lanes.
pub(super) fn bytes(needs: &Needs, room: &Room) -> usize {
    let Some(shape) = &needs.ngram else { return 0 };
    let rows = rows(room).map(bucket);
    4 * shape.rows() * shape.width * rows.iter().sum::<usize>()
}

impl NgramRows {
    /// For both lanes, if the model has n-grams.
    pub(super) fn both(
        device: &Device,
        needs: &Needs,
        room: &Room,
    ) -> Result<Option<[Self; Lane::COUNT]>, CudaError> {
        let Some(shape) = &needs.ngram else {
            return Ok(None);
        };
        let new = |rows: usize| -> Result<Self, CudaError> {
            let bytes = 4 * bucket(rows) * shape.rows() * shape.width;
            Ok(Self {
                device: DeviceMemory::new(&device.context, bytes)?,
                pinned: Pinned::new(&device.context, bytes)?,
                read: device.context.new_event(None).during("making an event")?,
                each: shape.rows(),
                width: shape.width,
                awaited: false,
            })
        };
        let [first, second] = rows(room);
        Ok(Some([new(first)?, new(second)?]))
    }
}

impl Cuda {
    /// Sends the rows of the table that a window needs, if that was not done yet; waits for the drive. Nothing of it is recorded: it comes before.
    pub(super) fn bring_ngrams(&mut self, window: &Window<Self>) -> Result<(), CudaError> {
        let lane = window.lane();
        let ready = self.ready.as_mut();
        let ready = ready.expect("everything is allocated before the first window");
        let Some(lanes) = &mut ready.ngrams else {
            return Ok(());
        };
        let of = &mut lanes[lane as usize];
        if !std::mem::take(&mut of.awaited) {
            return Ok(());
        }
        let sending = "sending rows of a table";
        of.read.synchronize().during(sending)?;
        // rows may have been withdrawn since the window began: what is left is found again
        let found = self.ngrams.find(window.rows());
        let values = found.len() * of.width;
        let out = &mut of.pinned.floats_mut()[..values];
        self.tables
            .values(lane, (found, of.each), out, &mut self.torn);
        let (to, from) = (of.device.address(), &of.pinned.floats()[..values]);
        let stream = &ready.queue.stream;
        // SAFETY: both sides have room for a window's rows; the pinned side stays as it is until the device has read it.
        unsafe { result::memcpy_htod_async(to, from, stream.cu_stream()) }.during(sending)?;
        of.read.record(stream).during(sending)
    }
}

impl Ready {
    /// A window begins: the rows of the table that it needs are to be sent.
    pub(super) fn await_ngrams(&mut self, lane: Lane) {
        if let Some(lanes) = &mut self.ngrams {
            lanes[lane as usize].awaited = true;
        }
    }

    /// Every stream += gated rows of the table + their convolution over time.
    pub(super) fn add_ngrams(
        &mut self,
        lane: Lane,
        weights: &NgramWeights<Cuda>,
    ) -> Result<(), CudaError> {
        // streams are read as they are to be, and the branch's buffer is needed
        self.flush()?;
        let now = self.now();
        let lanes = self.ngrams.as_ref();
        let rows = &lanes.expect("allocated for models that have n-grams")[lane as usize];
        let inputs = weights.key.inputs;
        let from = From {
            floats: rows.device.address(),
            stride: inputs,
            forms: self.forms(),
            live: now.tables.row_count(),
            rows: now.rows,
        };
        let forms = form_of(weights.key.kind()) | form_of(weights.value.kind());
        if forms & !mask::FLOAT != 0 {
            self.quantise(from, inputs, forms & !mask::FLOAT)?;
        }
        self.formed = None;
        let (key, value) = (self.act(Act::StreamGate), self.act(Act::Branch));
        let target = |matrix, to| Target { matrix, to };
        self.products(
            from,
            &[target(&weights.key, key), target(&weights.value, value)],
        )?;
        let kernels = self.kernels.ngram();
        let [key_norm, query_norm, input_norm] =
            weights.norms.each_ref().map(|norm| self.weight(norm.at));
        let read = self.act(Act::Streams);
        let grid = Grid::new([now.rows, self.streams, 1], kernels.threads);
        // SAFETY: the parameters of `ngram_gate`; all buffers have room for the rows.
        unsafe {
            launch!(&self.queue, &kernels.gate, grid;
                now.residual, key, value, key_norm, query_norm, input_norm, weights.eps, read, now.tables)
        }?;
        let taps = self.weight(weights.conv.at);
        let ring = self.at(self.layout.ngram_ring);
        let all = self.streams * self.width;
        let grid = Grid::new([all.div_ceil(1024), now.rows, 1], 128);
        // SAFETY: the parameters of `ngram_convolve`; every slot has a ring.
        unsafe {
            launch!(&self.queue, &kernels.convolve, grid;
                now.residual, key, read, taps, ring, now.tables)
        }?;
        // SAFETY: the parameters of `ngram_keep`, likewise.
        unsafe { launch!(&self.queue, &kernels.keep, grid; read, ring, now.tables) }
    }
}
