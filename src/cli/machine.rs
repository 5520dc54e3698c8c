//! This machine: measured when a prediction first needs it, and kept in the user's cache directory.

use std::{collections::BTreeMap, fs, path::PathBuf, thread, time::Duration};

use super::start;
use crate::{
    backend::{
        Needs,
        shape::{KvShape, KvType},
    },
    cpu::{
        backend::{Cold, Cpu},
        isa::Isa,
        store::drive::drive_speed,
    },
    estimate::{Machine, Work, attention_macs},
    gguf::Gguf,
    settings::{ModelSettings, cache::cache_directory},
};

/// Everything that predictions for this file need; what is not known yet is measured. Memory is measured every time, as it says whether the
/// rest still holds, and the drive, as files lie on different ones; so are attention and delta nets, which have as many shapes as there are models.
pub(super) fn measured(
    file: &Gguf,
    work: &Work,
    needs: &Needs,
    kv_type: KvType,
    settings: &ModelSettings,
) -> Machine {
    let weights = file.tensors().iter().map(|tensor| tensor.bytes).sum();
    let mut cold = Cold::new(weights);
    let path = kept(settings, cold.size());
    let known = path.as_ref().and_then(|path| fs::read(path).ok());
    let known: Option<Machine> = known.and_then(|text| serde_json::from_slice(&text).ok());
    let mut cpu = Cpu::new(start::cpu(settings));
    let dram_bytes_s = memory_speed(&cpu);
    // what was measured while the machine was busy, or in another state, holds no more
    let known = known.filter(|known| agree(known.dram_bytes_s, dram_bytes_s));
    let mut machine = known.unwrap_or_else(|| fresh(&cpu, dram_bytes_s));
    for shape in work.shapes() {
        if shape.counts() && !machine.knows(shape) {
            let speed = cpu.kernel_speed(shape, &mut cold);
            machine.note(shape, speed);
        }
    }
    // only kept so that the next prediction is quicker
    if let Some(path) = path
        && let Some(folder) = path.parent()
        && let Ok(text) = serde_json::to_vec(&machine)
    {
        let _ = fs::create_dir_all(folder).and_then(|()| fs::write(&path, text));
    }
    // kept is the memory's speed that went with the others
    machine.dram_bytes_s = dram_bytes_s;
    machine.disk_bytes_s = drive_speed(file);
    machine.pass_s = cpu.pass_time(needs.residual);
    machine.attention_macs_s = attention_speed(&mut cpu, needs, kv_type);
    if let Some(shape) = needs.delta.first() {
        machine.delta_macs_s = cpu.delta_speed(shape);
    }
    machine
}

/// **Units**: multiply-adds a second, over all layers.
fn attention_speed(cpu: &mut Cpu, needs: &Needs, kind: KvType) -> f64 {
    let mut known: Vec<((usize, KvShape), f64)> = Vec::new();
    let (mut macs, mut seconds) = (0.0, 0.0);
    for shape in &needs.attention {
        let key = (shape.heads, shape.kv);
        let speed = known
            .iter()
            .find(|(of, _)| *of == key)
            .map(|(_, speed)| *speed);
        let speed = speed.unwrap_or_else(|| {
            let speed = cpu.attention_speed(shape, kind);
            known.push((key, speed));
            speed
        });
        let work = attention_macs(shape) as f64;
        macs += work;
        seconds += work / speed;
    }
    if seconds > 0.0 {
        macs / seconds
    } else {
        f64::INFINITY
    }
}

/// Two measures of the same are at most so many times apart.
const APART: f64 = 1.15;
/// Measures of the memory, at most.
const MEASURES: usize = 6;
/// Before the next one, when they disagree.
const PAUSE: Duration = Duration::from_millis(500);

fn agree(one: f64, other: f64) -> bool {
    one.max(other) <= APART * one.min(other)
}

/// **Units**: bytes a second. What memory gives, once two measures in a row agree: whatever else runs, such as a file that is still being written, takes its part.
fn memory_speed(cpu: &Cpu) -> f64 {
    let mut last = cpu.read_bandwidth();
    for _ in 1..MEASURES {
        let before = std::mem::replace(&mut last, cpu.read_bandwidth());
        if agree(before, last) {
            return before.max(last);
        }
        thread::sleep(PAUSE);
    }
    last
}

fn fresh(cpu: &Cpu, dram_bytes_s: f64) -> Machine {
    let region_s = cpu.region_time();
    Machine {
        dram_bytes_s,
        disk_bytes_s: None,
        // measured for each file; JSON has no infinity, and what cannot be read back is not kept
        attention_macs_s: f64::MAX,
        delta_macs_s: f64::MAX,
        pass_s: 0.0,
        kernels: BTreeMap::new(),
        region_s,
        int8_ops_s: None,
    }
}

/// Where it is kept: by everything that speeds depend on, also how many bytes were measured with.
fn kept(settings: &ModelSettings, bytes: usize) -> Option<PathBuf> {
    let threads = settings.threads.map_or(0, |threads| threads.get());
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let name = format!(
        "{}-{cores}-{threads}-{:?}-{}.json",
        env!("CARGO_PKG_VERSION"),
        Isa::detect(),
        bytes >> 20
    );
    Some(cache_directory("machine")?.join(name))
}

/// **Units**: bytes. What this process may use: the machine's memory, or what its cgroup allows; nothing where nobody tells.
pub(super) fn memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let limits = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ];
    let limits = limits
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    limits.chain([1024 * kib]).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cpu::backend::CpuSettings, estimate::MatrixShape, quant::BlockType};

    #[test]
    fn what_was_measured_can_be_read_back() {
        let mut cpu = Cpu::new(CpuSettings::default());
        let mut machine = fresh(&cpu, 4e10);
        let shape = MatrixShape {
            ty: BlockType::Q8_0,
            k: 64,
            outputs: 64,
        };
        machine.note(shape, cpu.kernel_speed(shape, &mut Cold::new(0)));
        let text = serde_json::to_vec(&machine).expect("written");
        let back: Machine = serde_json::from_slice(&text).expect("read back");
        assert!(agree(back.dram_bytes_s, machine.dram_bytes_s));
        assert!(agree(back.attention_macs_s, machine.attention_macs_s));
        assert!(agree(back.delta_macs_s, machine.delta_macs_s));
        assert!(agree(back.region_s, machine.region_s));
        assert!(back.knows(shape));
        assert!(agree(back.byte_s(shape, 1.0), machine.byte_s(shape, 1.0)));
    }
}
