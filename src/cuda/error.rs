//! How the device fails.

use cudarc::driver::DriverError;

use crate::ledger::bytes;

/// A device that cannot be used, or a call to it that failed.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// The driver's library is not there.
    #[error("no CUDA driver: libcuda.so.1 cannot be loaded")]
    NoDriver,
    /// The driver is older than what the kernels are compiled with.
    #[error("the CUDA driver is for CUDA {}.{}, {}.{} or newer is needed", got / 1000, got % 1000 / 10, needed / 1000, needed % 1000 / 10)]
    OldDriver {
        /// As the driver counts: 1000 major + 10 minor.
        got: i32,
        /// The least that will do.
        needed: i32,
    },
    /// There is no such device.
    #[error("there is no CUDA device {asked}: {found} found")]
    NoDevice {
        /// The number asked for.
        asked: usize,
        /// How many there are.
        found: usize,
    },
    /// The device lacks instructions that every kernel uses.
    #[error("{name} has compute capability {}.{}, at least 7.5 is needed", got / 10, got % 10)]
    OldDevice {
        /// What the device is called.
        name: String,
        /// 10 major + minor.
        got: u32,
    },
    /// Kernels must be compiled and the compiler's library is not there.
    #[error(
        "no CUDA compiler: libnvrtc.so cannot be loaded, and {missing} kernels are not in the cache yet"
    )]
    NoCompiler {
        /// How many have to be compiled.
        missing: usize,
    },
    /// The compiler refused a kernel.
    #[error("kernel {kernel} does not compile for compute capability {}.{}: {log}", capability / 10, capability % 10)]
    Compile {
        /// Its file.
        kernel: &'static str,
        /// 10 major + minor.
        capability: u32,
        /// What the compiler said.
        log: String,
    },
    /// The plan needs more device memory than there is, or than may be used.
    #[error("the plan needs {} of device memory and {} may be used: {advice}", bytes(*needed), bytes(*limit))]
    DoesNotFit {
        /// **Units**: bytes.
        needed: u64,
        /// **Units**: bytes.
        limit: u64,
        /// The nearest settings that fit, or how much is missing.
        advice: String,
    },
    /// A shape that no kernel is made for.
    #[error("the CUDA kernels take {what} {allowed}, got {got}")]
    Shape {
        /// Of what.
        what: &'static str,
        /// As in the file.
        got: usize,
        /// What there are kernels for.
        allowed: &'static str,
    },
    /// An op that no kernel is made for.
    #[error("there are no CUDA kernels for {what} yet; --backend cpu computes this model")]
    NoKernels {
        /// What the model needs.
        what: &'static str,
    },
    /// A window that does not fit the tables.
    #[error("{what}: {got} of at most {allowed}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        got: usize,
        /// How many there is room for.
        allowed: usize,
    },
    /// A call failed. What was under way is lost.
    #[error("CUDA: {what} failed: {}", said(*reason))]
    Call {
        /// What was asked for.
        what: &'static str,
        /// What the driver said.
        reason: DriverError,
    },
}

/// A driver's error in its own words, and by its name.
fn said(reason: DriverError) -> String {
    let text = reason.error_string().map(|text| text.to_string_lossy());
    match text {
        Ok(text) => format!("{text} ({:?})", reason.0),
        Err(_) => format!("{:?}", reason.0),
    }
}

/// Says what a driver call was for.
pub(super) trait During<T> {
    fn during(self, what: &'static str) -> Result<T, CudaError>;
}

impl<T> During<T> for Result<T, DriverError> {
    fn during(self, what: &'static str) -> Result<T, CudaError> {
        self.map_err(|reason| CudaError::Call { what, reason })
    }
}
