//! Kernels: from the sources in `kernels/` to code on the device, compiled when a model is loaded, for its shape and for the device found.
//!
//! Compiled code is kept on disk under a name made of everything that went into it, so a second start compiles nothing and needs no compiler.

use std::{
    ffi::{CStr, CString, c_char},
    fs, io,
    io::{IsTerminal, stderr},
    path::{Path, PathBuf},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use cudarc::{
    driver::{CudaContext, result, sys},
    nvrtc,
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sha2::{Digest, Sha256};

use super::{
    device::Device,
    error::{CudaError, During},
    sources::{HEADERS, Source},
};
use crate::settings::cache::cache_directory;

/// A source and the macros it is compiled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) source: Source,
    pub(super) macros: Vec<(&'static str, String)>,
}

/// Code on the device.
pub(super) struct Module {
    module: sys::CUmodule,
    /// Its source.
    pub(super) name: &'static str,
    context: Arc<CudaContext>,
}

/// A kernel: a function of a module, which lives as long.
#[derive(Clone)]
pub(super) struct Kernel {
    pub(super) function: sys::CUfunction,
    pub(super) name: Arc<str>,
    pub(super) module: Arc<Module>,
}

impl Module {
    fn load(
        context: &Arc<CudaContext>,
        name: &'static str,
        image: &[u8],
    ) -> Result<Self, CudaError> {
        // SAFETY: the image is whole code that the compiler made for this device.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .during("loading a kernel")?;
        Ok(Self {
            module,
            name,
            context: context.clone(),
        })
    }

    /// The kernel `name`, with room for `shared_bytes` of dynamic shared memory.
    pub(super) fn kernel(
        self: &Arc<Self>,
        name: &str,
        shared_bytes: u32,
    ) -> Result<Kernel, CudaError> {
        let c_name = CString::new(name).expect("names of kernels hold no zero");
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(self.module, c_name) }
            .during("finding a kernel")?;
        if shared_bytes > 48 * 1024 {
            use sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as SIZE;
            // SAFETY: the function was just found.
            unsafe {
                result::function::set_function_attribute(function, SIZE, shared_bytes as i32)
            }
            .during("asking for shared memory")?;
        }
        Ok(Kernel {
            function,
            name: name.into(),
            module: self.clone(),
        })
    }
}

impl Kernel {
    /// Blocks of this size that are on the device at the same time.
    pub(super) fn resident_blocks(
        &self,
        device: &Device,
        threads: usize,
        shared_bytes: usize,
    ) -> Result<usize, CudaError> {
        // SAFETY: the function belongs to a module that is loaded.
        let each = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(
                self.function,
                threads as i32,
                shared_bytes,
            )
        }
        .during("asking how many blocks fit")?;
        Ok((each.max(1) as u32 * device.processors) as usize)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: loaded here; kernels hold the module, so nobody can launch one any more.
            if unsafe { result::module::unload(self.module) }.is_err() {
                tracing::debug!(kernel = self.name, "the driver kept a module");
            }
        }
    }
}

/// Where compiled kernels are kept when nothing is said: the user's cache directory.
pub fn default_cache() -> Option<PathBuf> {
    cache_directory("kernels")
}

/// Compiles what is not in the cache, on all cores, and loads everything. What is in the cache and cannot be loaded is compiled once more.
///
/// **Errors**: a kernel must be compiled and there is no compiler, or it refuses.
pub(super) fn modules(
    device: &Device,
    units: &[Unit],
    cache: Option<&Path>,
) -> Result<Vec<Arc<Module>>, CudaError> {
    let capability = device.capability;
    for unit in units {
        tracing::debug!(kernel = unit.source.name, macros = unit.macros(), "in use");
    }
    let mut images: Vec<Option<Vec<u8>>> = units
        .iter()
        .map(|unit| kept(&cache?.join(unit.key(capability))))
        .collect();
    let missing: Vec<usize> = (0..units.len())
        .filter(|at| images[*at].is_none())
        .collect();
    for (at, image) in compile_and_keep(units, &missing, capability, cache)? {
        images[at] = Some(image);
    }
    device
        .context
        .bind_to_thread()
        .during("binding the context")?;
    let load = |at: usize, image: &[u8]| {
        Module::load(&device.context, units[at].source.name, image).map(Arc::new)
    };
    images
        .iter()
        .enumerate()
        .map(|(at, image)| {
            let image = image.as_ref().expect("cached or just compiled");
            match load(at, image) {
                // from another compiler, or for another driver
                Err(error) if !missing.contains(&at) => {
                    let kernel = units[at].source.name;
                    tracing::warn!(kernel, %error, "a kernel of the cache is compiled anew");
                    let anew = compile_and_keep(units, &[at], capability, cache)?;
                    load(at, &anew[0].1)
                }
                loaded => loaded,
            }
        })
        .collect()
}

/// **Units**: bytes of the checksum at the end of a kept image.
const CHECKSUM: usize = 32;

/// An image from the cache, if it is there as it was written: the driver trusts what it is given.
fn kept(path: &Path) -> Option<Vec<u8>> {
    let mut image = fs::read(path).ok()?;
    let checksum = image.split_off(image.len().checked_sub(CHECKSUM)?);
    (Sha256::digest(&image)[..] == checksum[..]).then_some(image)
}

/// Writes an image as a whole or not at all.
fn keep(cache: &Path, name: &str, image: &[u8]) -> io::Result<()> {
    static PARTS: AtomicUsize = AtomicUsize::new(0);
    let part = PARTS.fetch_add(1, Ordering::Relaxed);
    let part = cache.join(format!("{name}.{}-{part}.part", std::process::id()));
    fs::create_dir_all(cache)?;
    fs::write(&part, [image, &Sha256::digest(image)].concat())?;
    fs::rename(part, cache.join(name))
}

fn compile_and_keep(
    units: &[Unit],
    missing: &[usize],
    capability: u32,
    cache: Option<&Path>,
) -> Result<Vec<(usize, Vec<u8>)>, CudaError> {
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    // SAFETY: loads a library and lets it go.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err(CudaError::NoCompiler {
            missing: missing.len(),
        });
    }
    let images = compile_all(units, missing, capability)?;
    for (at, image) in &images {
        if let Some(cache) = cache {
            // a cache that cannot be written costs time at the next start, nothing else
            if let Err(error) = keep(cache, &units[*at].key(capability), image) {
                tracing::warn!(%error, cache = %cache.display(), "compiled kernels are not kept");
            }
        }
    }
    Ok(images)
}

fn compile_all(
    units: &[Unit],
    missing: &[usize],
    capability: u32,
) -> Result<Vec<(usize, Vec<u8>)>, CudaError> {
    let target = if stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style =
        ProgressStyle::with_template("compiling kernels {bar:40} {pos}/{len} (first start)")
            .expect("the template is right");
    let bar = ProgressBar::with_draw_target(Some(missing.len() as u64), target).with_style(style);
    tracing::info!(
        kernels = missing.len(),
        capability,
        "compiling kernels, once for this device and model shape"
    );
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism()
        .map_or(1, |cores| cores.get())
        .min(missing.len());
    let work = || -> Result<Vec<(usize, Vec<u8>)>, CudaError> {
        let mut done = Vec::new();
        while let Some(at) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push((*at, units[*at].compile(capability)?));
            bar.inc(1);
        }
        Ok(done)
    };
    let outcome = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("compiling does not panic"))
            .collect::<Result<Vec<_>, _>>()
    });
    bar.finish_and_clear();
    Ok(outcome?.into_iter().flatten().collect())
}

impl Unit {
    /// As `kernels/variants.txt` writes them.
    fn macros(&self) -> String {
        let macros = self.macros.iter();
        let macros: Vec<_> = macros
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        macros.join(" ")
    }

    fn options(&self, capability: u32) -> Vec<String> {
        // with its own instructions, which no later card has: kernels/mma_group.cuh
        let own = if capability == 90 { "a" } else { "" };
        let mut options = vec![
            format!("--gpu-architecture=sm_{capability}{own}"),
            "--std=c++17".to_owned(),
            "--device-as-default-execution-space".to_owned(),
            // a product and a sum become one operation only where the source says so
            "--fmad=false".to_owned(),
        ];
        options.extend(
            self.macros
                .iter()
                .map(|(name, value)| format!("-D{name}={value}")),
        );
        options
    }

    /// The name of the compiled code: everything that it depends on.
    fn key(&self, capability: u32) -> String {
        let mut hash = Sha256::new();
        for part in [env!("CARGO_PKG_VERSION"), self.source.text]
            .into_iter()
            .chain(HEADERS.iter().map(|header| header.text))
        {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        for option in self.options(capability) {
            hash.update(option.len().to_le_bytes());
            hash.update(option);
        }
        let hex: String = hash
            .finalize()
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{}-sm{capability}-{hex}.cubin", self.source.name)
    }

    fn compile(&self, capability: u32) -> Result<Vec<u8>, CudaError> {
        let failed = |log: String| CudaError::Compile {
            kernel: self.source.name,
            capability,
            log,
        };
        let text = CString::new(self.source.text).expect("sources hold no zero");
        let name = CString::new(self.source.name).expect("names hold no zero");
        let headers: Vec<(CString, CString)> = HEADERS
            .iter()
            .map(|header| {
                (
                    CString::new(header.text).expect("sources hold no zero"),
                    CString::new(header.name).expect("names hold no zero"),
                )
            })
            .collect();
        let texts: Vec<*const c_char> = headers.iter().map(|(text, _)| text.as_ptr()).collect();
        let names: Vec<*const c_char> = headers.iter().map(|(_, name)| name.as_ptr()).collect();
        let mut program = ptr::null_mut();
        // SAFETY: all strings live until the program is destroyed.
        unsafe {
            nvrtc::sys::nvrtcCreateProgram(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                headers.len() as i32,
                texts.as_ptr(),
                names.as_ptr(),
            )
        }
        .result()
        .map_err(|error| failed(format!("{error:?}")))?;
        let options = self.options(capability);
        // SAFETY: the program was just created and is destroyed below.
        let compiled = unsafe { nvrtc::result::compile_program(program, &options) }
            .map_err(|_| failed(log(program)))
            // SAFETY: as above; it is compiled.
            .and_then(|()| unsafe { cubin(program) }.map_err(|error| failed(format!("{error:?}"))));
        // SAFETY: nothing uses it after this.
        let _ = unsafe { nvrtc::result::destroy_program(program) };
        compiled
    }
}

/// What the compiler said.
fn log(program: nvrtc::sys::nvrtcProgram) -> String {
    // SAFETY: the program exists.
    match unsafe { nvrtc::result::get_program_log(program) } {
        // SAFETY: the log is a C string with its zero.
        Ok(log) if log.contains(&0) => unsafe { CStr::from_ptr(log.as_ptr()) }
            .to_string_lossy()
            .trim()
            .to_owned(),
        _ => "no log".to_owned(),
    }
}

/// The compiled code.
///
/// # Safety
/// The program is compiled, for a real architecture.
unsafe fn cubin(program: nvrtc::sys::nvrtcProgram) -> Result<Vec<u8>, nvrtc::result::NvrtcError> {
    let mut bytes = 0;
    // SAFETY: by the caller's promise.
    unsafe { nvrtc::sys::nvrtcGetCUBINSize(program, &mut bytes) }.result()?;
    let mut image = vec![0u8; bytes];
    // SAFETY: as many bytes as it asked for.
    unsafe { nvrtc::sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()) }.result()?;
    Ok(image)
}
