//! The header, written and read.

use std::io::{self, Read};

use bytes::{Buf, BufMut};

use super::{
    BYTES_MAX, EXPERTS_IN_ALL_MAX, EXPERTS_MAX, Header, LAYERS_MAX, MAGIC, NAME_BYTES_MAX, VERSION,
    error::TraceError,
};
use crate::backend::ExpertLayer;

/// **Units**: bytes. A layer's entry.
const LAYER_BYTES: usize = 20;

impl Header {
    /// As it stands in the file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.name.len() + LAYER_BYTES * self.layers.len());
        out.put_slice(&MAGIC);
        out.put_u32_le(VERSION);
        out.put_u16_le(self.name.len() as u16);
        out.put_slice(self.name.as_bytes());
        out.put_u64_le(self.common_bytes);
        out.put_u16_le(self.layers.len() as u16);
        for layer in &self.layers {
            out.put_u32_le(layer.layer as u32);
            out.put_u32_le(layer.experts as u32);
            out.put_u32_le(layer.used as u32);
            out.put_u64_le(layer.expert_bytes);
        }
        out
    }

    /// Reads it from the beginning of a file.
    pub(super) fn decode(from: &mut impl Read) -> Result<Self, TraceError> {
        let magic = array::<8>(from, "the first bytes")?;
        if magic != MAGIC {
            return Err(TraceError::Magic {
                got: magic,
                allowed: MAGIC,
            });
        }
        let version = array::<4>(from, "the version")?.as_slice().get_u32_le();
        if version != VERSION {
            return Err(TraceError::Version {
                got: version,
                allowed: VERSION,
            });
        }
        let length = array::<2>(from, "the name")?.as_slice().get_u16_le();
        let length = within("the name's length", length.into(), 0, NAME_BYTES_MAX as u64)?;
        let mut name = vec![0; length as usize];
        fill(from, &mut name, "the name")?;
        let name = String::from_utf8(name).map_err(|_| TraceError::Name)?;
        let common_bytes = array::<8>(from, "the bytes besides experts")?
            .as_slice()
            .get_u64_le();
        let common_bytes = within("bytes besides experts", common_bytes, 0, BYTES_MAX)?;
        let count = array::<2>(from, "the layers")?.as_slice().get_u16_le();
        let count = within("the number of layers", count.into(), 1, LAYERS_MAX as u64)?;
        let mut layers: Vec<ExpertLayer> = Vec::new();
        for _ in 0..count {
            let layer = layer(from)?;
            if let Some(before) = layers.last().filter(|before| before.layer >= layer.layer) {
                return Err(TraceError::LayerOrder {
                    got: layer.layer as u64,
                    before: before.layer as u64,
                });
            }
            layers.push(layer);
        }
        let experts = layers.iter().map(|layer| layer.experts as u64).sum();
        within("the number of all experts", experts, 1, EXPERTS_IN_ALL_MAX)?;
        Ok(Self {
            name,
            common_bytes,
            layers,
        })
    }
}

fn layer(from: &mut impl Read) -> Result<ExpertLayer, TraceError> {
    let entry = array::<LAYER_BYTES>(from, "the layers")?;
    let mut entry = entry.as_slice();
    let layer = entry.get_u32_le() as usize;
    let experts = u64::from(entry.get_u32_le());
    let experts = within("a layer's experts", experts, 1, EXPERTS_MAX as u64)?;
    let used = u64::from(entry.get_u32_le());
    let used = within("the experts used", used, 1, experts)?;
    let expert_bytes = within("an expert's bytes", entry.get_u64_le(), 1, BYTES_MAX)?;
    Ok(ExpertLayer {
        layer,
        experts: experts as usize,
        used: used as usize,
        expert_bytes,
    })
}

fn within(what: &'static str, got: u64, low: u64, high: u64) -> Result<u64, TraceError> {
    if (low..=high).contains(&got) {
        Ok(got)
    } else {
        Err(TraceError::OutOfRange {
            what,
            got,
            low,
            high,
        })
    }
}

fn array<const N: usize>(from: &mut impl Read, what: &'static str) -> Result<[u8; N], TraceError> {
    let mut bytes = [0; N];
    fill(from, &mut bytes, what)?;
    Ok(bytes)
}

fn fill(from: &mut impl Read, bytes: &mut [u8], what: &'static str) -> Result<(), TraceError> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => TraceError::ShortHeader { what },
        _ => TraceError::Io(error),
    })
}
