//! Writes a planned file: chunks are filled by several threads and written where they belong; the file gets its name when it is complete.

use std::collections::btree_map::{BTreeMap, Entry};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use indicatif::ProgressBar;

use super::blocks::BlockWriter;
use super::plan::{Fill, Plan, PlannedTensor};
use super::random::Random;
use super::router::CommonStart;
use super::{SynthError, metadata, planted};
use crate::gguf::HeaderWriter;
use crate::quant::BlockType;

/// Bytes a thread fills and writes at a time, about.
const CHUNK_BYTES: usize = 4 << 20;
/// Seeds everything, so that a plan always gives the same bytes.
pub(super) const SEED: u64 = 0x7469_6465;

/// Rows of one tensor, to be filled and written at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    tensor: usize,
    /// Which of its rows.
    pub(super) first: usize,
    pub(super) rows: usize,
    /// Where in the file.
    offset: u64,
}

/// A plan with all that chunks need to be filled.
pub(super) struct Job<'a> {
    pub(super) plan: &'a Plan,
    header: Vec<u8>,
    pub(super) chunks: Vec<Chunk>,
    /// Of the file.
    bytes: u64,
    writers: BTreeMap<BlockType, BlockWriter>,
    common: CommonStart,
}

impl Plan {
    /// Writes the file, over several threads, and moves `progress` to its size in bytes. Until it is complete it lies beside `path`
    /// under another name; after an error nothing is left.
    ///
    /// **Errors**: [`SynthError::Write`], for example a full disk.
    pub fn write(&self, path: &Path, progress: &ProgressBar) -> Result<(), SynthError> {
        let job = Job::new(self)?;
        progress.set_length(job.bytes);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let partial = Partial(path.with_file_name(name));
        let failed = |reason| SynthError::Write {
            path: path.to_owned(),
            bytes: job.bytes,
            reason,
        };
        File::create(&partial.0)
            .and_then(|file| job.write(&file, progress))
            .map_err(failed)?;
        fs::rename(&partial.0, path).map_err(failed)?;
        progress.set_position(job.bytes);
        Ok(())
    }

    /// Gives a file that is open and empty the header and the size, and leaves the weights out: nobody can compute with it, but all that is known of a file before it is computed with is there.
    ///
    /// **Errors**: [`SynthError::Write`].
    pub fn outline(&self, file: &File) -> Result<(), SynthError> {
        let job = Job::new(self)?;
        let written = file
            .write_all_at(&job.header, 0)
            .and_then(|()| file.set_len(job.bytes));
        written.map_err(|reason| SynthError::Write {
            path: "(an outline)".into(),
            bytes: job.bytes,
            reason,
        })
    }

    /// Writes the same bytes into a file that is open, empty and not to be renamed, such as one that lies in memory.
    ///
    /// **Errors**: [`SynthError::Write`].
    pub fn fill(&self, file: &File) -> Result<(), SynthError> {
        let job = Job::new(self)?;
        job.write(file, &ProgressBar::hidden())
            .map_err(|reason| SynthError::Write {
                path: "(in memory)".into(),
                bytes: job.bytes,
                reason,
            })
    }
}

/// A file that is deleted when this is dropped, unless it was renamed before.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // Nothing is left to delete after success, and nobody to tell after a failure.
        let _ = fs::remove_file(&self.0);
    }
}

impl<'a> Job<'a> {
    fn new(plan: &'a Plan) -> Result<Self, SynthError> {
        let mut header = HeaderWriter::new();
        metadata::describe(
            &mut header,
            &plan.model,
            plan.layers,
            plan.predicting,
            plan.mix,
        );
        let offsets: Vec<u64> = plan
            .tensors
            .iter()
            .map(|tensor| header.tensor(&tensor.name, &tensor.dims, tensor.ty))
            .collect();
        let data_bytes = header.data_bytes();
        let header = header.finish();
        let start = header.len() as u64;
        let chunks = plan.tensors.iter().zip(offsets).enumerate();
        let chunks = chunks
            .filter(|(_, (tensor, _))| tensor.fill != Fill::Hole)
            .flat_map(|(index, (tensor, offset))| chunks_of(index, tensor, start + offset))
            .collect();

        let mut writers = BTreeMap::new();
        for tensor in &plan.tensors {
            if let Entry::Vacant(vacant) = writers.entry(tensor.ty) {
                vacant.insert(BlockWriter::new(tensor.ty)?);
            }
        }
        let embeddings = &plan.tensors[0];
        let common = CommonStart::new(
            embeddings,
            &writers[&embeddings.ty],
            &mut Random::new(SEED, u64::MAX),
        )?;
        Ok(Self {
            plan,
            bytes: start + data_bytes,
            header,
            chunks,
            writers,
            common,
        })
    }

    fn write(&self, file: &File, progress: &ProgressBar) -> io::Result<()> {
        file.set_len(self.bytes)?;
        file.write_all_at(&self.header, 0)?;
        progress.inc(self.header.len() as u64);
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            let threads = thread::available_parallelism().map_or(1, usize::from);
            let workers: Vec<_> = (0..threads)
                .map(|_| scope.spawn(|| self.work(file, &next, progress)))
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }

    /// Takes chunks until there are none.
    fn work(&self, file: &File, next: &AtomicUsize, progress: &ProgressBar) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = self.chunks.get(index) else {
                return Ok(());
            };
            self.fill(index, &mut buffer);
            // After a failure no chunk is left for the others either.
            file.write_all_at(&buffer, chunk.offset)
                .inspect_err(|_| next.store(self.chunks.len(), Ordering::Relaxed))?;
            progress.inc(buffer.len() as u64);
        }
    }

    /// The bytes of the chunk with this index.
    pub(super) fn fill(&self, index: usize, buffer: &mut Vec<u8>) {
        let (chunk, random) = (self.chunks[index], &mut Random::new(SEED, index as u64));
        let tensor = &self.plan.tensors[chunk.tensor];
        buffer.clear();
        match tensor.fill {
            Fill::Weights { std } => {
                buffer.resize(chunk.rows * tensor.row_bytes(), 0);
                self.writers[&tensor.ty].fill(random, std, buffer);
            }
            Fill::Embeddings => {
                buffer.resize(chunk.rows * tensor.row_bytes(), 0);
                self.writers[&tensor.ty].fill(random, 1.0, buffer);
                let start = &self.common.bytes;
                buffer
                    .chunks_exact_mut(tensor.row_bytes())
                    .for_each(|row| row[..start.len()].copy_from_slice(start));
            }
            Fill::Successors => self.successors(tensor, &chunk, buffer),
            Fill::Mistaken { right } => self.mistaken(tensor, &chunk, right, buffer),
            Fill::FirstHalf => planted::first_half(tensor, &chunk, buffer),
            Fill::Router => {
                let router = self.common.router(
                    tensor.dims[0],
                    tensor.dims[1],
                    self.plan.model.used,
                    random,
                );
                buffer.extend(router.iter().flat_map(|x| x.to_le_bytes()));
            }
            Fill::Norm { mean } => floats(tensor, buffer, || mean + random.centred(0.05)),
            Fill::Hole => {}
            Fill::Divisors => {
                let half = tensor.dims[0];
                let divisor = |pair: usize| if 4 * pair < half { 1f32 } else { 1e30 };
                buffer.extend((0..half).flat_map(|pair| divisor(pair).to_le_bytes()));
            }
            Fill::Decay => floats(tensor, buffer, || -1.0 - 15.0 * random.unit()),
            Fill::TimeStep => floats(tensor, buffer, || {
                let step = 0.001 * 100f32.powf(random.unit());
                step.exp_m1().ln()
            }),
        }
    }
}

fn floats(tensor: &PlannedTensor, buffer: &mut Vec<u8>, mut value: impl FnMut() -> f32) {
    let count = tensor.dims.iter().product();
    buffer.extend((0..count).flat_map(|_: usize| value().to_le_bytes()));
}

/// Cuts a tensor: matrices of weights into runs of rows, everything else stays whole.
fn chunks_of(index: usize, tensor: &PlannedTensor, offset: u64) -> Vec<Chunk> {
    let (row_bytes, all) = (tensor.row_bytes(), tensor.bytes() / tensor.row_bytes());
    let rows = match tensor.fill {
        Fill::Weights { .. }
        | Fill::Embeddings
        | Fill::Successors
        | Fill::Mistaken { .. }
        | Fill::FirstHalf => (CHUNK_BYTES / row_bytes).clamp(1, all),
        _ => all,
    };
    let chunk = |first: usize| Chunk {
        tensor: index,
        first,
        rows: rows.min(all - first),
        offset: offset + (first * row_bytes) as u64,
    };
    (0..all).step_by(rows).map(chunk).collect()
}
