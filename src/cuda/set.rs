//! The kernels that a model needs, collected before any is compiled.

use std::{path::Path, sync::Arc};

use cudarc::driver::result;

use super::{
    compile::{self, Kernel, Module, Unit},
    device::Device,
    error::{CudaError, During},
    launch::{Grid, Queue, launch},
    memory::DeviceMemory,
    sources::Source,
};

/// Macros that a source is compiled with.
#[derive(Clone, Debug, Default)]
pub(super) struct Macros(Vec<(&'static str, String)>);

impl Macros {
    /// One more.
    pub(super) fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.0.push((name, value.to_string()));
        self
    }

    /// All of both.
    pub(super) fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }
}

/// A unit of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitId(usize);

/// Units, each once.
#[derive(Default)]
pub(super) struct Set {
    units: Vec<Unit>,
}

/// The same, compiled and on the device.
pub(super) struct Modules(Vec<Arc<Module>>);

impl Set {
    /// A source with these macros.
    pub(super) fn add(&mut self, source: Source, macros: Macros) -> UnitId {
        let macros = macros.0;
        let unit = Unit { source, macros };
        if let Some(at) = self.units.iter().position(|known| *known == unit) {
            return UnitId(at);
        }
        self.units.push(unit);
        UnitId(self.units.len() - 1)
    }

    pub(super) fn load(&self, device: &Device, cache: Option<&Path>) -> Result<Modules, CudaError> {
        compile::modules(device, &self.units, cache).map(Modules)
    }
}

impl Modules {
    /// What a source says about its launches: the words that its kernel `name` writes. So sizes of tiles and of shared memory are computed in one place.
    pub(super) fn constants<const N: usize>(
        &self,
        device: &Device,
        unit: UnitId,
        name: &str,
    ) -> Result<[usize; N], CudaError> {
        let kernel = self.kernel(unit, name, 0)?;
        let memory = DeviceMemory::new(&device.context, 4 * N)?;
        let queue = Queue {
            stream: device.stream.clone(),
            overlap: false,
        };
        // SAFETY: the kernel's one parameter is where it writes its N words.
        unsafe { launch!(&queue, &kernel, Grid::new([1, 1, 1], 1); memory.address()) }?;
        device.finish()?;
        let mut words = [0u32; N];
        // SAFETY: as many words as there are.
        unsafe { result::memcpy_dtoh_sync(&mut words, memory.address()) }
            .during("reading a kernel's constants")?;
        Ok(words.map(|word| word as usize))
    }

    /// A kernel with room for `shared_bytes` of dynamic shared memory.
    pub(super) fn kernel(
        &self,
        unit: UnitId,
        name: &str,
        shared_bytes: usize,
    ) -> Result<Kernel, CudaError> {
        self.0[unit.0].kernel(name, shared_bytes as u32)
    }
}
