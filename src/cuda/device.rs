//! The device: found at run time, in a process that may have no driver at all.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};

use super::error::{CudaError, During};

/// The oldest driver whose kernels and graphs we use: CUDA 12.0.
const DRIVER_NEEDED: i32 = 12_000;
/// 10 major + minor: int8 matrix instructions and 64 KiB of shared memory.
const CAPABILITY_NEEDED: u32 = 75;

/// A device, its context, and the one stream that everything computed goes through.
pub struct Device {
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    /// What it is called.
    pub name: String,
    /// Compute capability, 10 major + minor.
    pub capability: u32,
    /// Multiprocessors.
    pub processors: u32,
    /// **Units**: bytes of shared memory that a block may have.
    pub(super) shared_bytes: u32,
}

/// Whether the driver's library can be loaded. Nothing else of it may be called before.
pub fn has_driver() -> bool {
    // SAFETY: loads a library and lets it go; the driver's own initialisers are made for that.
    unsafe { sys::is_culib_present() }
}

impl Device {
    /// Opens device `ordinal`.
    ///
    /// **Errors**: no driver, no such device, or too old ones.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        if !has_driver() {
            return Err(CudaError::NoDriver);
        }
        match result::init() {
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => {
                return Err(CudaError::NoDevice {
                    asked: ordinal,
                    found: 0,
                });
            }
            outcome => outcome.during("initialising the driver")?,
        }
        let version = driver_version()?;
        if version < DRIVER_NEEDED {
            return Err(CudaError::OldDriver {
                got: version,
                needed: DRIVER_NEEDED,
            });
        }
        let found = result::device::get_count().during("counting devices")? as usize;
        if ordinal >= found {
            return Err(CudaError::NoDevice {
                asked: ordinal,
                found,
            });
        }
        let context = CudaContext::new(ordinal).during("opening the device")?;
        // one stream orders everything, so nothing is to be tracked
        // SAFETY: buffers of this crate are used on `stream` only, or after it was waited for.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().during("making a stream")?;
        let name = context.name().during("asking the device's name")?;
        let (major, minor) = context
            .compute_capability()
            .during("asking the compute capability")?;
        let capability = (10 * major + minor) as u32;
        if capability < CAPABILITY_NEEDED {
            return Err(CudaError::OldDevice {
                name,
                got: capability,
            });
        }
        let attribute = |attribute| context.attribute(attribute).during("asking an attribute");
        use sys::CUdevice_attribute as A;
        let processors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        let shared_bytes =
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32;
        Ok(Self {
            stream,
            name,
            capability,
            processors,
            shared_bytes,
            context,
        })
    }

    /// Free and all memory. **Units**: bytes.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let (free, total) = self
            .context
            .mem_get_info()
            .during("asking for free memory")?;
        Ok((free as u64, total as u64))
    }

    /// Waits until everything that was enqueued is done.
    pub(super) fn finish(&self) -> Result<(), CudaError> {
        self.stream.synchronize().during("waiting for the device")
    }
}

fn driver_version() -> Result<i32, CudaError> {
    let mut version = 0;
    // SAFETY: the driver is there, and writes one number.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .during("asking the driver's version")?;
    Ok(version)
}
