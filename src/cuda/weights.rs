//! Weights: where they will lie on the device, decided while a model is loaded and before anything is allocated.

use std::{collections::BTreeSet, sync::Arc};

use cudarc::driver::result;

use super::{
    device::Device,
    error::{CudaError, During},
    memory::{DeviceMemory, OVERRUN, Plan},
    upload::{self, Upload},
};
use crate::{
    backend::{ExpertSource, MatrixSource},
    cpu::kernels::ActKind,
    gguf::{Gguf, Tensor},
    quant::BlockType,
};

/// The type that a tensor's values have on the device. Types without kernels of their own are multiplied out, as the CPU does for each product.
pub(super) fn on_device(ty: BlockType) -> BlockType {
    match (ActKind::of(ty), ty) {
        (ActKind::Float, BlockType::F16 | BlockType::BF16) => ty,
        (ActKind::Float, _) => BlockType::F32,
        _ => ty,
    }
}

/// **Units**: bytes. What `values` values take as `ty`.
fn bytes_of(ty: BlockType, values: usize) -> usize {
    values / ty.block_values() * ty.block_bytes()
}

/// **Units**: bytes. What a tensor takes on the device.
pub fn device_bytes(tensor: &Tensor) -> u64 {
    bytes_of(on_device(tensor.ty), tensor.values()) as u64
}

/// A weight matrix: `outputs` rows of `inputs` values.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    pub(super) ty: BlockType,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Offset in the weights.
    pub(super) at: usize,
}

impl Matrix {
    /// Element type, as it is on the device.
    pub fn ty(&self) -> BlockType {
        self.ty
    }

    /// **Units**: bytes on the device.
    pub fn bytes(&self) -> usize {
        bytes_of(self.ty, self.values())
    }

    /// Weights it has.
    pub fn values(&self) -> usize {
        self.inputs * self.outputs
    }

    pub(super) fn kind(&self) -> ActKind {
        ActKind::of(self.ty)
    }
}

/// The same matrix of every expert of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    pub(super) ty: BlockType,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) count: usize,
    /// Offset of the first; the others follow at equal distances.
    pub(super) at: usize,
    pub(super) stride: usize,
    /// Offset of the table of addresses, `[count] u64`.
    pub(super) table: usize,
}

impl Experts {
    /// Element type, as it is on the device.
    pub fn ty(&self) -> BlockType {
        self.ty
    }

    /// **Units**: bytes of one expert on the device.
    pub fn bytes(&self) -> usize {
        bytes_of(self.ty, self.values())
    }

    /// Weights of one expert.
    pub fn values(&self) -> usize {
        self.inputs * self.outputs
    }
}

/// A vector of f32.
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    /// Offset in the weights.
    pub(super) at: usize,
    /// Values.
    pub(super) len: usize,
}

/// Types by their ids in files.
fn types_of(ids: BTreeSet<u32>) -> Vec<BlockType> {
    ids.into_iter().filter_map(BlockType::from_id).collect()
}

/// What a model's weights will take, and where they come from.
#[derive(Default)]
pub(super) struct Loading {
    plan: Plan,
    uploads: Vec<Upload>,
    vectors: Vec<(usize, Vec<f32>)>,
    tables: Vec<Experts>,
    /// Lengths of rows, types and outputs of dense matrices; types of experts.
    dense: BTreeSet<(usize, u32, usize)>,
    routed: BTreeSet<u32>,
}

impl Loading {
    pub(super) fn matrix(&mut self, file: &Arc<Gguf>, source: &MatrixSource) -> Matrix {
        let ty = on_device(source.tensor.ty);
        self.dense
            .insert((source.inputs, ty as u32, source.rows.len()));
        let at = self
            .plan
            .take(bytes_of(ty, source.inputs * source.rows.len()));
        self.upload(file, source, at);
        Matrix {
            ty,
            inputs: source.inputs,
            outputs: source.rows.len(),
            at,
        }
    }

    pub(super) fn experts(&mut self, file: &Arc<Gguf>, source: &ExpertSource) -> Experts {
        let first = &source.experts[0];
        let (inputs, outputs, count) = (first.inputs, first.rows.len(), source.experts.len());
        let ty = on_device(first.tensor.ty);
        self.routed.insert(ty as u32);
        let stride = bytes_of(ty, inputs * outputs).next_multiple_of(OVERRUN);
        let at = self.plan.take(stride * count);
        for (number, expert) in source.experts.iter().enumerate() {
            self.upload(file, expert, at + number * stride);
        }
        let experts = Experts {
            ty,
            inputs,
            outputs,
            count,
            at,
            stride,
            table: self.plan.take(8 * count),
        };
        self.tables.push(experts);
        experts
    }

    pub(super) fn vector(&mut self, values: Vec<f32>) -> Vector {
        let (at, len) = (self.plan.take(4 * values.len()), values.len());
        self.vectors.push((at, values));
        Vector { at, len }
    }

    fn upload(&mut self, file: &Arc<Gguf>, source: &MatrixSource, to: usize) {
        let row_bytes = source.tensor.row_bytes();
        let dequantise = on_device(source.tensor.ty) != source.tensor.ty;
        let (start, bytes) = (source.rows.start * row_bytes, source.rows.len() * row_bytes);
        // experts that follow each other in the file and on the device travel together
        if let Some(last) = self.uploads.last_mut()
            && last.tensor == source.tensor
            && !dequantise
            && last.start + last.bytes == start
            && last.to + last.bytes == to
        {
            last.bytes += bytes;
            return;
        }
        self.uploads.push(Upload {
            file: file.clone(),
            tensor: source.tensor.clone(),
            start,
            bytes,
            to,
            dequantise,
        });
    }

    /// **Units**: bytes of device memory.
    pub(super) fn bytes(&self) -> usize {
        self.plan.bytes()
    }

    /// Types of dense matrices.
    pub(super) fn dense_types(&self) -> Vec<BlockType> {
        types_of(self.dense.iter().map(|(_, id, _)| *id).collect())
    }

    /// The same by the length of the matrices' rows.
    pub(super) fn dense_inputs(&self) -> Vec<(usize, Vec<BlockType>)> {
        let lengths: BTreeSet<usize> = self.dense.iter().map(|(inputs, ..)| *inputs).collect();
        let of = |inputs| {
            self.dense
                .range((inputs, 0, 0)..=(inputs, u32::MAX, usize::MAX))
        };
        lengths
            .into_iter()
            .map(|inputs| (inputs, types_of(of(inputs).map(|(_, id, _)| *id).collect())))
            .collect()
    }

    /// Types of matrices that read rows of `inputs` values for experts, or for shared ones of the widths `shared`.
    pub(super) fn gate_types(&self, inputs: usize, shared: &[usize]) -> Vec<BlockType> {
        let routed = self.tables.iter().filter(|table| table.inputs == inputs);
        let dense = (self.dense.iter())
            .filter(|(length, _, outputs)| *length == inputs && shared.contains(outputs));
        let dense = dense.map(|(_, id, _)| *id);
        types_of(routed.map(|table| table.ty as u32).chain(dense).collect())
    }

    /// Types of experts.
    pub(super) fn expert_types(&self) -> Vec<BlockType> {
        types_of(self.routed.clone())
    }

    /// Brings everything to the device. Blocks.
    pub(super) fn finish(self, device: &Device) -> Result<DeviceMemory, CudaError> {
        let memory = DeviceMemory::new(&device.context, self.plan.bytes())?;
        upload::run(&device.context, memory.address(), &self.uploads)?;
        for (at, values) in &self.vectors {
            // SAFETY: planned for as many values; the call returns when they are there.
            unsafe { result::memcpy_htod_sync(memory.address() + *at as u64, values) }
                .during("uploading a vector")?;
        }
        for experts in &self.tables {
            let first = memory.address() + experts.at as u64;
            let addresses: Vec<u64> = (0..experts.count)
                .map(|expert| first + (expert * experts.stride) as u64)
                .collect();
            // SAFETY: as above.
            unsafe {
                result::memcpy_htod_sync(memory.address() + experts.table as u64, &addresses)
            }
            .during("uploading a table of experts")?;
        }
        Ok(memory)
    }
}
