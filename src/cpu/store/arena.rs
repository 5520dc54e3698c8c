//! The memory of all slots: one anonymous mapping, touched as it is filled.

use std::io;

use memmap2::{MmapOptions, MmapRaw};

/// Bytes that readers write and workers read, at different times.
pub(super) struct Arena(MmapRaw);

impl Arena {
    /// So many bytes, aligned to a page.
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        let map = MmapRaw::from(MmapOptions::new().len(bytes.max(1)).map_anon()?);
        // fewer and larger pages make direct reads cheaper; only advice, so failing is no harm
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self(map))
    }

    /// Where byte `at` lies.
    ///
    /// **Panics** if `len` bytes from there are not all inside.
    pub(super) fn pointer(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.0.len()));
        // SAFETY: inside the mapping, as was just checked.
        unsafe { self.0.as_mut_ptr().add(at) }
    }

    /// Bytes that lie there.
    ///
    /// # Safety
    /// Nobody writes to them while the slice lives.
    ///
    /// **Panics** if they are not all inside.
    pub(super) unsafe fn read(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: inside the mapping, which lives as long as `self` and was zero at first; the caller promises that nobody writes.
        unsafe { std::slice::from_raw_parts(self.pointer(at, len), len) }
    }
}
