//! Device memory, and host memory that the device reads by itself.

use std::{ffi::c_void, sync::Arc};

use cudarc::driver::{CudaContext, result};

use super::error::{CudaError, During};

/// Where every buffer starts: a multiple of this. **Units**: bytes.
pub(super) const ALIGN: usize = 256;
/// Loads may run over the end of a matrix by this much. **Units**: bytes.
pub(super) const OVERRUN: usize = 16;

/// Device memory that goes back when it is dropped.
pub(super) struct DeviceMemory {
    address: u64,
    context: Arc<CudaContext>,
}

impl DeviceMemory {
    pub(super) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, CudaError> {
        context.bind_to_thread().during("binding the context")?;
        // SAFETY: the context is this thread's; the memory is not read before it is written.
        let address =
            unsafe { result::malloc_sync(bytes.max(ALIGN)) }.during("allocating device memory")?;
        Ok(Self {
            address,
            context: context.clone(),
        })
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated here; freeing waits for the device, so nothing uses it any more. After a failed kernel the driver refuses, and
            // the process is about to end.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Parts of one allocation that are handed out before it exists.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    bytes: usize,
}

impl Plan {
    /// The offset of a part of `bytes`.
    pub(super) fn take(&mut self, bytes: usize) -> usize {
        let at = self.bytes;
        self.bytes = (at + bytes + OVERRUN).next_multiple_of(ALIGN);
        at
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Page-locked host memory.
pub(super) struct Pinned {
    at: *mut u8,
    bytes: usize,
    context: Arc<CudaContext>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, CudaError> {
        context.bind_to_thread().during("binding the context")?;
        // SAFETY: the context is this thread's.
        let at =
            unsafe { result::malloc_host(bytes.max(1), 0) }.during("allocating pinned memory")?;
        // SAFETY: just allocated, `bytes` long.
        unsafe { std::ptr::write_bytes(at.cast::<u8>(), 0, bytes) };
        Ok(Self {
            at: at.cast(),
            bytes,
            context: context.clone(),
        })
    }

    /// The memory as words. The device must not be using it.
    pub(super) fn words(&self) -> &[u32] {
        // SAFETY: allocated with room for that many words, page-aligned, initialised, and the device is done by the caller's word.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.bytes / 4) }
    }

    /// As [`Pinned::words`], to write.
    pub(super) fn words_mut(&mut self) -> &mut [u32] {
        // SAFETY: as above; exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.bytes / 4) }
    }

    /// As [`Pinned::words`], as floats.
    pub(super) fn floats(&self) -> &[f32] {
        // SAFETY: as above; every word is a float.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.bytes / 4) }
    }

    /// As [`Pinned::words_mut`], as floats.
    pub(super) fn floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above; exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.bytes / 4) }
    }

    /// As [`Pinned::words_mut`], as bytes.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by the driver and not freed before; freeing waits for the device.
            let _ = unsafe { result::free_host(self.at.cast::<c_void>()) };
        }
    }
}
