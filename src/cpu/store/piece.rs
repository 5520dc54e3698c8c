//! One read of several that bring an expert, and what becomes of it.

use std::{fs::File, io, path::PathBuf, sync::Arc};

use super::{
    arena::Arena,
    error::{Fault, ReadError},
    layout::{ALIGN, Extent, Layout},
};
use crate::{
    gguf::{Gguf, Held},
    residency::tier::{Order, Ticket},
};

/// Matrices that an expert may consist of.
pub(super) const PARTS_MAX: usize = 8;

/// Where a file of the model is read.
pub(super) enum Source {
    /// An open file; `direct` past the page cache.
    File {
        file: File,
        direct: bool,
        path: PathBuf,
    },
    /// It is in memory as it is.
    Memory { shard: usize },
}

/// What readers share.
pub(super) struct Shared {
    pub(super) model: Arc<Gguf>,
    pub(super) sources: Vec<Source>,
    pub(super) layout: Arc<Layout>,
    pub(super) arena: Arc<Arena>,
}

impl Shared {
    /// Opens the files of a model once more, for reading past the page cache where the file system can.
    pub(super) fn open(
        model: Arc<Gguf>,
        layout: Arc<Layout>,
        arena: Arc<Arena>,
    ) -> io::Result<Self> {
        let paths = model.files().map(|(path, _)| path.to_owned());
        let sources = paths.enumerate().map(|(shard, path)| {
            Ok(match model.held(shard) {
                Held::Memory(_) => Source::Memory { shard },
                Held::File(open) => match direct(open) {
                    Some(file) => Source::File {
                        file,
                        direct: true,
                        path,
                    },
                    None => Source::File {
                        file: open.try_clone()?,
                        direct: false,
                        path,
                    },
                },
            })
        });
        Ok(Self {
            sources: sources.collect::<io::Result<_>>()?,
            model,
            layout,
            arena,
        })
    }

    /// Whether all of it lies in files.
    pub(super) fn all_files(&self) -> bool {
        let mut sources = self.sources.iter();
        sources.all(|source| matches!(source, Source::File { .. }))
    }

    /// The reads that bring an expert.
    pub(super) fn pieces(&self, order: Order) -> impl ExactSizeIterator<Item = Piece> {
        let extents = self.layout.extents(order.layer, order.expert, order.slot);
        extents.map(move |extent| Piece {
            order,
            extent,
            done: 0,
        })
    }

    /// The error that a piece ends with.
    pub(super) fn error(&self, piece: &Piece, fault: Fault) -> ReadError {
        let path = match &self.sources[piece.extent.file] {
            Source::File { path, .. } => path.clone(),
            Source::Memory { .. } => PathBuf::from("(in memory)"),
        };
        ReadError {
            layer: piece.order.layer,
            expert: piece.order.expert,
            path,
            offset: piece.offset(),
            fault,
        }
    }
}

/// The same file, opened to be read past the page cache; nothing where that does not work.
#[cfg(target_os = "linux")]
pub(super) fn direct(open: &File) -> Option<File> {
    use std::os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    };

    #[repr(align(4096))]
    struct Block([u8; ALIGN as usize]);

    let same = format!("/proc/self/fd/{}", open.as_raw_fd());
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(same)
        .ok()?;
    // some file systems let it be opened, and refuse every read
    let mut block = Block([0; ALIGN as usize]);
    file.read_at(&mut block.0, 0).ok()?;
    Some(file)
}

/// Other systems have no such thing.
#[cfg(not(target_os = "linux"))]
pub(super) fn direct(_: &File) -> Option<File> {
    None
}

/// One read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) order: Order,
    pub(super) extent: Extent,
    /// What has been read of it.
    pub(super) done: usize,
}

/// What a read that has ended means for its piece.
#[derive(Debug)]
pub(super) enum Settled {
    /// Everything that is needed is there.
    Whole,
    /// Less was read than asked for: the rest is to be asked for.
    Rest,
    /// It cannot be had.
    Failed(Fault),
}

impl Piece {
    pub(super) fn ticket(&self) -> Ticket {
        self.order.ticket
    }

    /// Where the next read begins.
    pub(super) fn offset(&self) -> u64 {
        self.extent.offset + self.done as u64
    }

    /// How much it asks for.
    pub(super) fn left(&self) -> usize {
        self.extent.asked - self.done
    }

    /// Takes note of a read of so many bytes, or of its failure. A read that ends early at no multiple of [`ALIGN`] has met the file's end where it is direct; elsewhere the next
    /// one tells.
    pub(super) fn settle(&mut self, read: io::Result<usize>, direct: bool) -> Settled {
        match read {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Settled::Rest,
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Settled::Rest,
            Err(error) => Settled::Failed(error.into()),
            Ok(read) => {
                self.done += read;
                if self.done >= self.extent.needed {
                    return Settled::Whole;
                }
                let at_end = read == 0 || direct && !(self.done as u64).is_multiple_of(ALIGN);
                if at_end {
                    let missing = (self.extent.needed - self.done) as u64;
                    Settled::Failed(Fault::Truncated { missing })
                } else {
                    Settled::Rest
                }
            }
        }
    }
}

/// The pieces of every ticket that have not ended, and the first failure among those that have.
#[derive(Debug)]
pub(super) struct Tally {
    tickets: Vec<(usize, Option<ReadError>)>,
}

impl Tally {
    pub(super) fn new(tickets: usize) -> Self {
        Self {
            tickets: (0..tickets).map(|_| (0, None)).collect(),
        }
    }

    /// A ticket consists of so many pieces.
    pub(super) fn begin(&mut self, ticket: Ticket, pieces: usize) {
        self.tickets[ticket.0 as usize] = (pieces, None);
    }

    /// A piece has ended; the ticket's result if it was the last.
    pub(super) fn end(
        &mut self,
        ticket: Ticket,
        failed: Option<ReadError>,
    ) -> Option<Result<(), ReadError>> {
        let (left, first) = &mut self.tickets[ticket.0 as usize];
        *left -= 1;
        if first.is_none() {
            *first = failed;
        }
        (*left == 0).then(|| first.take().map_or(Ok(()), Err))
    }
}
