//! Which device the tests of this process run on, found once.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError, RwLock},
};

use crate::bare::Bare;
use tidegate::{
    backend::shape::KvType,
    cuda::{Cuda, Device},
    settings::CudaSettings,
};

/// `host_counter` of the stand-in: how many of something there are.
type Counter = unsafe extern "C" fn(*const c_char) -> i64;

/// A device that tests may use.
pub(crate) struct Gpu {
    counter: Option<Counter>,
    /// Compiled kernels, kept from run to run.
    kernels: PathBuf,
}

static FOUND: OnceLock<Option<Gpu>> = OnceLock::new();
/// Held for writing by a test that must be the only one on the device.
static QUIET: RwLock<()> = RwLock::new(());
/// One model at a time is compiled for, so that two tests do not compile the same kernels.
static LOADING: Mutex<()> = Mutex::new(());

/// Runs a test beside others, if there is a device.
pub(crate) fn shared(test: impl FnOnce(&Gpu)) {
    if let Some(gpu) = found() {
        let _others = QUIET.read().unwrap_or_else(PoisonError::into_inner);
        test(gpu);
    }
}

/// Runs a test while no other uses the device, if there is one.
pub(crate) fn alone(test: impl FnOnce(&Gpu)) {
    if let Some(gpu) = found() {
        let _nobody = QUIET.write().unwrap_or_else(PoisonError::into_inner);
        test(gpu);
    }
}

/// The folder of the stand-ins, for tests of failures.
pub(crate) fn stand_ins() -> Option<PathBuf> {
    let folder = std::env::var_os("TIDEGATE_CUDA_HOST").map(PathBuf::from);
    if folder.is_none() {
        missing("TIDEGATE_CUDA_HOST names no folder of stand-ins");
    }
    folder
}

/// Where the stand-ins' kernels are kept: with them, since they fit only each other.
pub(crate) fn stand_in_kernels(folder: &Path) -> PathBuf {
    folder.join("kernels")
}

/// Whether there is a device of the system's own.
pub(crate) fn is_real() -> bool {
    let found = FOUND.get_or_init(find).as_ref();
    found.is_some_and(|gpu| gpu.counter.is_none())
}

/// Loads models, or has them loaded, one at a time.
pub(crate) fn one_at_a_time<T>(load: impl FnOnce() -> T) -> T {
    let _loading = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    load()
}

fn missing(what: &str) {
    let required = std::env::var("TIDEGATE_REQUIRE_CUDA").is_ok_and(|value| value == "1");
    assert!(!required, "TIDEGATE_REQUIRE_CUDA is set, but {what}");
    eprintln!("skipped: {what}");
}

fn found() -> Option<&'static Gpu> {
    let gpu = FOUND.get_or_init(find).as_ref();
    if gpu.is_none() {
        missing("there is no CUDA device, and TIDEGATE_CUDA_HOST names no folder of stand-ins");
    }
    gpu
}

fn find() -> Option<Gpu> {
    if let Some(driver) = load(Path::new("libcuda.so.1"))
        && devices(driver) > 0
    {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        return Some(Gpu {
            counter: None,
            kernels: folder.join("kernels"),
        });
    }
    let folder = PathBuf::from(std::env::var_os("TIDEGATE_CUDA_HOST")?);
    let library = |name: &str| {
        let path = folder.join(name);
        load(&path).unwrap_or_else(|| panic!("{} cannot be loaded", path.display()))
    };
    library("libnvrtc.so");
    let counter = symbol(library("libcuda.so"), c"host_counter");
    // SAFETY: the stand-in's function has this signature, and is never unloaded.
    let counter = unsafe { std::mem::transmute::<*mut c_void, Counter>(counter) };
    Some(Gpu {
        counter: Some(counter),
        kernels: stand_in_kernels(&folder),
    })
}

/// Loads a library for good, so that others who name it find this one.
fn load(library: &Path) -> Option<*mut c_void> {
    let name = CString::new(library.as_os_str().as_bytes()).expect("a path without zeros");
    // SAFETY: a driver's initialisers are made for being loaded.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    (!handle.is_null()).then_some(handle)
}

fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the handle is of a loaded library.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?} is not there");
    found
}

/// Devices that a driver has.
fn devices(driver: *mut c_void) -> c_int {
    let (init, count) = (
        symbol(driver, c"cuInit"),
        symbol(driver, c"cuDeviceGetCount"),
    );
    // SAFETY: the driver's functions have these signatures.
    let init = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_uint) -> c_int>(init) };
    // SAFETY: likewise.
    let count =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(&mut c_int) -> c_int>(count) };
    let mut devices = 0;
    if init(0) == 0 && count(&mut devices) == 0 {
        devices
    } else {
        0
    }
}

impl Gpu {
    /// Whether it computes slowly, so that a few rows have to do.
    pub(crate) fn is_slow(&self) -> bool {
        self.counter.is_some()
    }

    fn device(&self) -> Device {
        Device::open(0).expect("the device that was found")
    }

    /// Loads something on the device, one at a time.
    pub(crate) fn load<T>(&self, load: impl FnOnce(Device, CudaSettings) -> T) -> T {
        let settings = CudaSettings {
            kernel_cache: Some(self.kernels.clone()),
            ..CudaSettings::default()
        };
        one_at_a_time(|| load(self.device(), settings))
    }

    /// A model, driven without the engine.
    pub(crate) fn bare(
        &self,
        file: &Path,
        slots: usize,
        positions: usize,
        kv_type: KvType,
    ) -> Bare<Cuda> {
        self.load(|device, settings| {
            let cuda = Cuda::new(device, settings);
            Bare::on(cuda, file, slots, positions, kv_type)
        })
    }

    /// How much of everything is in use: device memory, and on a stand-in all that programs can leave behind.
    pub(crate) fn in_use(&self) -> Vec<(&'static str, i64)> {
        let Some(counter) = self.counter else {
            let (free, total) = self.device().memory().expect("free memory");
            return vec![("bytes", (total - free) as i64)];
        };
        let count = |name: &'static str| {
            let c_name = CString::new(name).expect("no zeros");
            // SAFETY: the name is a C string.
            (name, unsafe { counter(c_name.as_ptr()) })
        };
        [
            "device_bytes",
            "pinned_bytes",
            "modules",
            "streams",
            "events",
            "graphs",
            "graph_executables",
        ]
        .map(count)
        .to_vec()
    }
}
