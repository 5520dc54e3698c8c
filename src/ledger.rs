//! The memory plan: every byte a model will occupy, known before the first allocation.

use std::fmt;

use crate::{
    backend::{Backend, Needs, Room, shape::KvType},
    engine::executor::PAGE_TOKENS,
    gguf::Gguf,
    op::ngram::Ngram,
    residency::slots::SlotPlan,
    table::CACHE_BYTES,
};

/// Where bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the mapped file: the system keeps in memory what is used, and may drop it.
    Mapped,
    /// In the file, and read from it when needed.
    File,
    /// In the process's own memory.
    Own,
    /// In a device's memory.
    Device,
}

/// One line of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is for.
    pub what: &'static str,
    /// Where it lies.
    pub place: Place,
    /// How much.
    pub bytes: u64,
    /// How the number comes about.
    pub because: String,
}

/// The whole plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Largest kinds first.
    pub entries: Vec<Entry>,
}

impl Ledger {
    /// What a model with these needs takes in this room; `kept` are the slots of experts that are kept in memory of their own.
    pub fn plan<B: Backend>(
        file: &Gguf,
        needs: &Needs,
        room: &Room,
        kept: Option<&SlotPlan>,
    ) -> Self {
        let sum = |counts: &dyn Fn(&str) -> bool| -> u64 {
            let tensors = file.tensors().iter();
            let counted = tensors.filter(|tensor| counts(&tensor.name));
            counted.map(B::weight_bytes).sum()
        };
        let experts = sum(&|name| name.contains("_exps."));
        let table = sum(&|name| needs.ngram.is_some() && name == Ngram::<B>::TABLE);
        let others = sum(&|_| true) - experts - table;
        let kv: u64 = needs
            .attention
            .iter()
            .map(|layer| {
                let index = layer.index.map_or(0, |index| index.page_bytes());
                (room.pages_of(layer) * (B::page_bytes(&layer.kv, room.kv_type) + index)) as u64
            })
            .sum();
        let windows = needs
            .attention
            .iter()
            .filter(|layer| layer.window.is_some())
            .count();
        let states = needs.delta.iter().map(|shape| B::state_bytes(shape) as u64);
        let state: u64 = states.sum();
        let scratch = B::scratch_bytes(needs, room);
        let logits = room.logits_rows as u64 * needs.vocab as u64 * 4;
        let mut entries = expert_entries(B::WEIGHTS, experts, needs, kept);
        entries.extend([
            Entry {
                what: "other weights",
                place: B::WEIGHTS,
                bytes: others,
                because: "read by every row".to_owned(),
            },
            Entry {
                what: "n-gram table",
                place: Place::File,
                bytes: table,
                because: "few rows for a token".to_owned(),
            },
            Entry {
                what: "n-gram rows",
                place: Place::Own,
                bytes: if needs.ngram.is_some() {
                    CACHE_BYTES as u64
                } else {
                    0
                },
                because: "of the table, those used last".to_owned(),
            },
            Entry {
                what: "KV cache",
                place: B::CACHES,
                bytes: kv,
                because: format!(
                    "{} pages of {PAGE_TOKENS} positions, {} attention layers{}, {}",
                    room.pages,
                    needs.attention.len(),
                    match windows {
                        0 => String::new(),
                        some => format!(", {some} of them with a ring of a window"),
                    },
                    kv_label(room.kv_type)
                ),
            },
            Entry {
                what: "recurrent state",
                place: B::CACHES,
                bytes: state * room.slots as u64,
                because: format!(
                    "{} slots, {state} bytes each, {} delta-net layers",
                    room.slots,
                    needs.delta.len()
                ),
            },
            Entry {
                what: "scratch",
                place: B::CACHES,
                bytes: scratch,
                because: format!(
                    "{} rows of a window, about {} each",
                    room.rows,
                    bytes(scratch / room.rows.max(1) as u64)
                ),
            },
            Entry {
                what: "logits",
                place: B::CACHES,
                bytes: logits,
                because: format!("{} rows, vocabulary of {}", room.logits_rows, needs.vocab),
            },
        ]);
        Self { entries }
    }

    /// Bytes in one place.
    pub fn total(&self, place: Place) -> u64 {
        self.entries
            .iter()
            .filter(|entry| entry.place == place)
            .map(|entry| entry.bytes)
            .sum()
    }
}

/// Experts where all weights are, or in slots and in the file.
fn expert_entries(place: Place, bytes: u64, needs: &Needs, kept: Option<&SlotPlan>) -> Vec<Entry> {
    let because = format!("{} experts of a layer used by a row", needs.experts_used);
    let Some(plan) = kept else {
        return vec![Entry {
            what: "experts",
            place,
            bytes,
            because,
        }];
    };
    let experts: usize = plan.pools.iter().map(|pool| pool.experts).sum();
    let spare: usize = plan.pools.iter().map(|pool| pool.spare).sum();
    vec![
        Entry {
            what: "expert slots",
            place: Place::Own,
            bytes: plan.bytes(),
            because: format!(
                "{} slots for {experts} experts, {spare} of them for who comes and goes",
                plan.slots()
            ),
        },
        Entry {
            what: "experts",
            place: Place::File,
            bytes,
            because,
        },
    ]
}

fn kv_label(kv_type: KvType) -> &'static str {
    match kv_type {
        KvType::F32 => "f32",
        KvType::F16 => "f16",
        KvType::Q8_0 => "q8_0",
    }
}

/// Bytes of scratch for one row of a window: activations, their quantised copies, the experts' intermediates and outputs.
pub fn scratch_row_bytes(needs: &Needs) -> u64 {
    let activations = needs.widths.sum() + (2 + needs.more_streams) * needs.residual;
    let pairs = needs.experts_used + 1;
    let experts = pairs * (2 * needs.expert_width + needs.residual);
    4 * (activations + experts) as u64
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in self.entries.iter().filter(|entry| entry.bytes > 0) {
            let place = match entry.place {
                Place::Mapped => "file",
                Place::File => "drive",
                Place::Own => "own",
                Place::Device => "device",
            };
            writeln!(
                f,
                "{:<16} {:>10}  {place:<6} {}",
                entry.what,
                bytes(entry.bytes),
                entry.because
            )?;
        }
        let totals = [
            (Place::Mapped, "mapped from the file, no copy"),
            (Place::File, "stay in the file until they are needed"),
            (Place::Device, "of the device's memory"),
            (Place::Own, "of the process's own memory"),
        ];
        let there = totals.iter().filter(|(place, _)| self.total(*place) > 0);
        let lines: Vec<String> = there
            .enumerate()
            .map(|(at, (place, what))| {
                let head = if at == 0 { "total" } else { "" };
                format!("{head:<16} {:>10}  {what}", bytes(self.total(*place)))
            })
            .collect();
        f.write_str(&lines.join("\n"))
    }
}

/// A number of bytes for people, in binary units.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{count} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}
