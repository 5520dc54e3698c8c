//! Weights from the mapped file to the device: a few threads copy pieces into pinned buffers, from where the link takes them.

use std::{
    io::{IsTerminal, stderr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    error::{CudaError, During},
    memory::Pinned,
};
use crate::gguf::{Gguf, Tensor};

/// **Units**: bytes. Long enough for the link's full speed, short enough to share out well.
const PIECE: usize = 8 << 20;
/// A copy by one core is slower than the link; more than this many do not help.
const THREADS_MAX: usize = 8;

/// Bytes of a tensor, or their dequantised form, and where they go.
pub(super) struct Upload {
    pub(super) file: Arc<Gguf>,
    pub(super) tensor: Tensor,
    /// First byte of the tensor's.
    pub(super) start: usize,
    pub(super) bytes: usize,
    /// Offset in the weights' memory.
    pub(super) to: usize,
    /// Whether values are multiplied out to f32 on the way: types without kernels of their own. `to` then has room for four bytes a value.
    pub(super) dequantise: bool,
}

/// A piece of an upload.
struct Piece<'a> {
    upload: &'a Upload,
    /// First byte, counted from the upload's own start.
    start: usize,
    bytes: usize,
}

impl Piece<'_> {
    /// Puts the piece's bytes, as they shall be on the device, at the start of `to`; returns how many and where they go.
    fn fill(&self, to: &mut [u8]) -> (usize, usize) {
        let upload = self.upload;
        let all = upload.file.bytes(&upload.tensor);
        let bytes = &all[upload.start + self.start..][..self.bytes];
        if !upload.dequantise {
            to[..bytes.len()].copy_from_slice(bytes);
            return (bytes.len(), upload.to + self.start);
        }
        let ty = upload.tensor.ty;
        let values = self.bytes / ty.block_bytes() * ty.block_values();
        let mut floats = vec![0.0f32; values];
        crate::quant::dequantise(ty, bytes, &mut floats).expect("whole blocks on both sides");
        for (to, value) in to.chunks_exact_mut(4).zip(&floats) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        let before = self.start / ty.block_bytes() * ty.block_values();
        (4 * values, upload.to + 4 * before)
    }
}

fn pieces(uploads: &[Upload]) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for upload in uploads {
        let ty = upload.tensor.ty;
        // whole blocks; multiplied out they must fit a piece too
        let step = if upload.dequantise {
            PIECE / (4 * ty.block_values()) * ty.block_bytes()
        } else {
            PIECE / ty.block_bytes() * ty.block_bytes()
        };
        let mut start = 0;
        while start < upload.bytes {
            let bytes = step.min(upload.bytes - start);
            pieces.push(Piece {
                upload,
                start,
                bytes,
            });
            start += bytes;
        }
    }
    pieces
}

/// A thread's way to the device: one piece is filled in while the one before is on the link.
struct Copier {
    stream: Arc<CudaStream>,
    buffers: [(Pinned, CudaEvent); 2],
    /// Of `buffers`, the next to be used.
    at: usize,
}

impl Copier {
    fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let buffer = || -> Result<_, CudaError> {
            let event = context.new_event(None).during("making an event")?;
            Ok((Pinned::new(context, PIECE)?, event))
        };
        Ok(Self {
            stream: context.new_stream().during("making a stream")?,
            buffers: [buffer()?, buffer()?],
            at: 0,
        })
    }

    /// Enqueues the copy of a piece to the weights' memory at `base`.
    fn copy(&mut self, piece: &Piece<'_>, base: u64) -> Result<(), CudaError> {
        let (buffer, event) = &mut self.buffers[self.at];
        self.at = 1 - self.at;
        // an event that was never recorded counts as done
        event.synchronize().during("uploading weights")?;
        let buffer = buffer.bytes_mut();
        let (bytes, to) = piece.fill(buffer);
        // SAFETY: the destination was planned for these bytes; the buffer is not touched before its event.
        unsafe {
            result::memcpy_htod_async(base + to as u64, &buffer[..bytes], self.stream.cu_stream())
        }
        .during("uploading weights")?;
        event.record(&self.stream).during("uploading weights")
    }

    fn finish(self) -> Result<(), CudaError> {
        self.stream.synchronize().during("uploading weights")
    }
}

/// Brings all `uploads` to the device, where `base` is the start of the weights' memory. Blocks; shows progress where somebody looks.
pub(super) fn run(
    context: &Arc<CudaContext>,
    base: u64,
    uploads: &[Upload],
) -> Result<(), CudaError> {
    let pieces = pieces(uploads);
    let total: usize = pieces.iter().map(|piece| piece.bytes).sum();
    let bar = progress(total as u64);
    let begun = Instant::now();
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let threads = std::thread::available_parallelism()
        .map_or(1, |cores| cores.get())
        .min(THREADS_MAX)
        .min(pieces.len().max(1));
    // all made before the first copy, so that whatever fails later is an upload
    let copiers = (0..threads)
        .map(|_| Copier::new(context))
        .collect::<Result<Vec<_>, _>>()?;
    let copy = |mut copier: Copier| -> Result<(), CudaError> {
        context.bind_to_thread().during("uploading weights")?;
        while !failed.load(Ordering::Relaxed)
            && let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed))
        {
            copier.copy(piece, base)?;
            bar.inc(piece.bytes as u64);
        }
        copier.finish()
    };
    let outcome = std::thread::scope(|scope| {
        let workers: Vec<_> = copiers
            .into_iter()
            .map(|copier| {
                scope.spawn(|| {
                    let outcome = copy(copier);
                    if outcome.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    outcome
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("copying does not panic"))
            .collect::<Result<Vec<_>, _>>()
    });
    bar.finish_and_clear();
    outcome?;
    let seconds = begun.elapsed().as_secs_f64();
    tracing::info!(
        bytes = total,
        seconds,
        gb_per_s = total as f64 / seconds / 1e9,
        "weights are on the device"
    );
    Ok(())
}

fn progress(bytes: u64) -> ProgressBar {
    let target = if stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style =
        ProgressStyle::with_template("weights {bar:40} {bytes}/{total_bytes} {bytes_per_sec}")
            .expect("the template is right");
    ProgressBar::with_draw_target(Some(bytes), target).with_style(style)
}
