//! How fast a machine is: measured where we are, or as a file describes one.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::{gguf::Tensor, quant::BlockType};

/// Rows that products are measured with; between them costs are interpolated.
pub const ROWS: [usize; 5] = [1, 2, 4, 16, 64];
/// Of a described memory's speed, what products with one row reach. Measured ones reach 75 to 88 % on CPUs.
const REACHED: f64 = 0.8;
/// **Units**: seconds. What a described machine takes to share out one region's work.
const REGION_S: f64 = 3e-6;

/// Outputs beyond which a matrix is multiplied no differently.
const OUTPUTS_MAX: usize = 1024;

/// Matrices that are multiplied alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatrixShape {
    /// The weights' type.
    pub ty: BlockType,
    /// Values of a row.
    pub k: usize,
    /// Rows, or 1,024 where there are more.
    pub outputs: usize,
}

impl MatrixShape {
    /// Of a matrix, or of each of a stack.
    pub fn of(tensor: &Tensor) -> Self {
        let [k, outputs, ..] = tensor.dims.padded();
        Self {
            ty: tensor.ty,
            k,
            outputs: outputs.min(OUTPUTS_MAX),
        }
    }

    /// Whether it is large enough that its products' speed counts.
    pub fn counts(self) -> bool {
        self.k >= 32 && self.outputs >= 32
    }

    /// The name that its speed is kept by.
    fn key(self) -> String {
        format!("{} {}x{}", self.ty.label(), self.k, self.outputs)
    }
}

/// A machine.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Machine {
    /// **Units**: bytes a second that memory gives to all workers together.
    pub dram_bytes_s: f64,
    /// **Units**: bytes a second that the drive gives to direct reads.
    pub disk_bytes_s: Option<f64>,
    /// By shape, `[ROWS]`. **Units**: seconds. What a byte of weights takes in a product with so many rows.
    pub kernels: BTreeMap<String, [f64; ROWS.len()]>,
    /// **Units**: multiply-adds of attention a second.
    pub attention_macs_s: f64,
    /// **Units**: multiply-adds of delta nets a second, in prompts.
    pub delta_macs_s: f64,
    /// **Units**: seconds. What a value of a row takes in work that is no product.
    pub pass_s: f64,
    /// **Units**: seconds. What sharing out a region's work takes.
    pub region_s: f64,
    /// 8-bit operations a second, where the machine is described and not measured.
    pub int8_ops_s: Option<f64>,
}

/// A machine as written. **Units**: GB/s, and 10^12 operations a second.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Described {
    dram_gb_s: f64,
    disk_gb_s: Option<f64>,
    pcie_gb_s: Option<f64>,
    vram_gb_s: Option<f64>,
    int8_tops: Option<f64>,
}

/// Why a description cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It is not TOML, or says something else.
    #[error(
        "{path}: {reason}; a machine is dram-gb-s, and if you like disk-gb-s, pcie-gb-s, vram-gb-s and int8-tops"
    )]
    Toml {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// A speed outside its range.
    #[error("{path}: {name} is {got}, it must be from 0.001 to 1000000")]
    OutOfRange {
        /// The file.
        path: String,
        /// Which.
        name: &'static str,
        /// As written.
        got: f64,
    },
}

impl Machine {
    /// Reads a description. A card's memory and bus take the places of memory and drive if `device` is set.
    ///
    /// **Errors**: it is none.
    pub fn described(path: &Path, device: bool) -> Result<Self, MachineError> {
        let shown = path.display().to_string();
        let text = fs::read_to_string(path).map_err(|source| MachineError::Read {
            path: shown.clone(),
            source,
        })?;
        Self::parse(&text, device, &shown)
    }

    /// The same of a text.
    pub(super) fn parse(text: &str, device: bool, path: &str) -> Result<Self, MachineError> {
        let described: Described = toml::from_str(text).map_err(|error| MachineError::Toml {
            path: path.to_owned(),
            reason: error.message().to_owned(),
        })?;
        let checked = |name, got: Option<f64>| match got {
            Some(got) if !(0.001..=1e6).contains(&got) => Err(MachineError::OutOfRange {
                path: path.to_owned(),
                name,
                got,
            }),
            got => Ok(got),
        };
        let dram = checked("dram-gb-s", Some(described.dram_gb_s))?;
        let disk = checked("disk-gb-s", described.disk_gb_s)?;
        let pcie = checked("pcie-gb-s", described.pcie_gb_s)?;
        let vram = checked("vram-gb-s", described.vram_gb_s)?;
        let ops = checked("int8-tops", described.int8_tops)?.map(|tops| 1e12 * tops);
        let (memory, below) = if device {
            (vram.or(dram), pcie)
        } else {
            (dram, disk)
        };
        let memory = 1e9 * memory.unwrap_or(described.dram_gb_s);
        // a float multiply-add for eight 8-bit operations
        let floats = ops.map_or(f64::INFINITY, |ops| ops / 8.0);
        Ok(Self {
            dram_bytes_s: memory,
            disk_bytes_s: below.map(|below| 1e9 * below),
            kernels: BTreeMap::new(),
            attention_macs_s: floats,
            delta_macs_s: floats,
            pass_s: 0.0,
            region_s: REGION_S,
            int8_ops_s: ops,
        })
    }

    /// Whether it is known how fast matrices of a shape are multiplied.
    pub fn knows(&self, shape: MatrixShape) -> bool {
        self.kernels.contains_key(&shape.key())
    }

    /// Takes note of how fast they are, as in [`Machine::kernels`].
    pub fn note(&mut self, shape: MatrixShape, bytes_s: [f64; ROWS.len()]) {
        self.kernels.insert(shape.key(), bytes_s);
    }

    /// **Units**: seconds. What a byte of weights takes in a product with so many rows.
    pub fn byte_s(&self, shape: MatrixShape, rows: f64) -> f64 {
        match self.kernels.get(&shape.key()) {
            Some(measured) => interpolated(measured, rows),
            None => {
                let ty = shape.ty;
                let values = ty.block_values() as f64 / ty.block_bytes() as f64;
                let compute = self.int8_ops_s.map_or(0.0, |ops| 2.0 * values * rows / ops);
                compute.max(1.0 / (REACHED * self.dram_bytes_s))
            }
        }
    }
}

/// Between two measurements, and beyond the last in proportion.
fn interpolated(measured: &[f64; ROWS.len()], rows: f64) -> f64 {
    let rows = rows.max(1.0);
    let above = ROWS.iter().position(|measured| *measured as f64 >= rows);
    match above {
        Some(0) => measured[0],
        Some(at) => {
            let (low, high) = (ROWS[at - 1] as f64, ROWS[at] as f64);
            let share = (rows - low) / (high - low);
            measured[at - 1] + share * (measured[at] - measured[at - 1])
        }
        None => {
            let last = ROWS.len() - 1;
            measured[last] * rows / ROWS[last] as f64
        }
    }
}
