//! Routing traces: which experts every row chose, layer by layer, in a compact file.
//!
//! A [`Recorder`](recorder::Recorder) writes one while a backend computes; a [`Reader`](reader::Reader) reads it, also one that breaks off. Knows
//! nothing of policies and tiers: those are [`replay`](crate::replay)'s.
//!
//! # The file
//!
//! All numbers are little-endian; a **varint** has seven bits a byte, the lowest first, and the highest bit set in all bytes but the last.
//!
//! | header | |
//! | --- | --- |
//! | `magic` | 8 bytes, `tgroutes` |
//! | `version` | u32, 1 |
//! | `name` | u16 bytes, and so many of UTF-8 |
//! | `common_bytes` | u64 |
//! | `layers` | u16, and for each u32 layer, u32 experts, u32 used, u64 expert_bytes |
//!
//! Then come **pieces**: u32 number, counted from 0; u32 bytes; and so many bytes of records. What the writer had no time for is missing, so the numbers show
//! how many. A piece of no bytes ends the file, and its number is how many pieces there were to write. A record begins with a byte that holds its kind and, in its highest bit, the lane.
//!
//! | record | |
//! | --- | --- |
//! | 1, window | a pass begins: varint spans, and for each varint slot and varint `2 rows + (1 if it decodes)` |
//! | 2, window again | the same of a pass under way: at the beginning of a piece, or because rows have left it |
//! | 3, layer | varint index into the header's layers; then the ids of the lane's rows, `[rows, used]` by rank, in as few bits each as the layer's experts need, the lowest first, padded to a byte |
//! | 4, ahead | varint index of a layer, and varint how many layers before it the window has just been; then whom that layer's router names for the lane's rows, as in 3. Only of windows with rows that decode, behind the record of the layer where they were |
//!
//! So each piece can be read without the ones before it.

use crate::backend::{ExpertLayer, Needs};

pub mod error;
mod header;
mod pack;
pub mod reader;
pub mod recorder;
#[cfg(test)]
mod tests;

/// The first bytes of a trace.
const MAGIC: [u8; 8] = *b"tgroutes";
/// The one version there is.
const VERSION: u32 = 1;
/// **Units**: bytes. A model's longest name.
const NAME_BYTES_MAX: usize = 1024;
/// Layers with experts.
const LAYERS_MAX: usize = 4096;
/// Experts of a layer: ids have 16 bits.
const EXPERTS_MAX: usize = 1 << 16;
/// Experts of all layers together: far more than any model has, and few enough to keep books of.
const EXPERTS_IN_ALL_MAX: u64 = 1 << 20;
/// **Units**: bytes. One expert, or everything besides experts: sums stay far from overflow.
const BYTES_MAX: u64 = 1 << 40;
/// **Units**: bytes. Pieces are closed when they are larger than this.
const PIECE_BYTES: usize = 64 << 10;
/// **Units**: bytes. A layer's record, which a piece may hold beyond that, is far smaller than this.
const PIECE_BYTES_MAX: usize = 8 << 20;

const WINDOW: u8 = 1;
const WINDOW_AGAIN: u8 = 2;
const LAYER: u8 = 3;
const AHEAD: u8 = 4;
const LANE_BIT: u8 = 0x80;

/// What a trace says about its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The model's id.
    pub name: String,
    /// **Units**: bytes. What every row reads besides its experts.
    pub common_bytes: u64,
    /// The layers that have experts, in their order.
    pub layers: Vec<ExpertLayer>,
}

impl Header {
    /// The header of a model with these needs. A name that is too long is cut.
    pub fn new(name: &str, needs: &Needs) -> Self {
        Self {
            name: name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned(),
            common_bytes: needs.common_bytes,
            layers: needs.expert_layers.clone(),
        }
    }

    /// **Units**: bytes. All experts of all layers.
    pub fn experts_bytes(&self) -> u64 {
        let layers = self.layers.iter();
        layers
            .map(|layer| layer.experts as u64 * layer.expert_bytes)
            .sum()
    }

    /// **Units**: bytes. What one token's experts take.
    pub fn token_bytes(&self) -> u64 {
        let layers = self.layers.iter();
        layers
            .map(|layer| layer.used as u64 * layer.expert_bytes)
            .sum()
    }
}

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanRows {
    /// The sequence's slot.
    pub slot: u32,
    /// How many rows.
    pub rows: usize,
    /// Whether they are a stream's next tokens; else they are a prompt's.
    pub decode: bool,
}
