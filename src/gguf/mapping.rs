//! The bytes of one file, mapped read-only. The only `unsafe` of this module is here.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use super::GgufError;

/// What the system should expect of a byte range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Read it soon: start reading from the disk now.
    WillNeed,
    /// Read in no order: read no further than asked.
    Random,
}

/// A file's bytes.
#[derive(Debug)]
pub(super) enum Mapping {
    /// The file itself, paged in as it is touched.
    File {
        map: Mmap,
        /// Kept open, for who reads it otherwise.
        file: File,
    },
    /// Bytes in memory: a generated file, or one that is part of the program.
    Memory(Cow<'static, [u8]>),
}

impl Mapping {
    /// Maps a regular file. Anything else (a pipe would block) is refused before it is opened.
    pub(super) fn open(path: &Path) -> Result<Self, GgufError> {
        let io = |reason| GgufError::Io {
            path: path.to_owned(),
            reason,
        };
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(GgufError::NotAFile {
                path: path.to_owned(),
            });
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the mapping is private and never written through. What can break the promise of an immutable slice is another process
        // that writes to the file or cuts it while it is mapped: the user must not do that (as with every engine that maps its model; the
        // README says so). Should it happen, changed weights are only numbers, and metadata is decoded with bounds checks every time
        // it is read; a cut file ends the process with SIGBUS.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self::File { map, file })
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::File { map, .. } => map,
            Self::Memory(bytes) => bytes,
        }
    }

    /// Passes advice on a range to the system. Bytes in memory need none.
    pub(super) fn advise(&self, range: Range<usize>, advice: Advice) -> io::Result<()> {
        let Self::File { map, .. } = self else {
            return Ok(());
        };
        let advice = match advice {
            Advice::WillNeed => memmap2::Advice::WillNeed,
            Advice::Random => memmap2::Advice::Random,
        };
        map.advise_range(advice, range.start, range.len())
    }
}
