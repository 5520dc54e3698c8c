//! `tidegate replay`: placement policies over a recorded trace, in simulated time.

use super::{ReplayArgs, failure::Failure, output::written};
use crate::replay::{PolicyName, Replay, Speeds, capacity::sweep, report::Report};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate serve model.gguf --trace chats.trace        record, until it is ended
  tidegate replay chats.trace                          from one token's experts to all of them
  tidegate replay chats.trace --capacity 8GiB,25% --policy guarded
  tidegate replay chats.trace --dram 900 --link 24     experts in device memory, the rest over PCIe 4.0
  tidegate replay chats.trace --json | jq .capacities";

/// **Units**: GB/s. Two channels of DDR5.
const DRAM_DEFAULT: f64 = 60.0;
/// **Units**: GB/s. A fast NVMe drive.
const LINK_DEFAULT: f64 = 6.0;

pub(super) fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    let wrong = |source| Failure::Trace {
        path: args.trace.clone(),
        source,
    };
    let replay = Replay::open(&args.trace).map_err(wrong)?;
    let capacities = if args.capacity.is_empty() {
        sweep(replay.header())
    } else {
        let capacities = args.capacity.iter();
        capacities
            .map(|capacity| capacity.bytes(replay.header()))
            .collect::<Result<_, _>>()?
    };
    let policies = if args.policy.is_empty() {
        &PolicyName::ALL[..]
    } else {
        &args.policy
    };
    let speeds = Speeds {
        fast: args.dram.unwrap_or(DRAM_DEFAULT) * 1e9,
        link: args.link.unwrap_or(LINK_DEFAULT) * 1e9,
    };
    let report = Report::new(&replay, policies, &capacities, speeds);
    let text = if args.json {
        report.json()
    } else {
        report.to_string()
    };
    written(&format!("{text}\n")).map(drop)
}

/// A speed from the command line. **Units**: GB/s.
pub(super) fn speed(written: &str) -> Result<f64, String> {
    match written.parse() {
        Ok(speed) if (0.001..=1e6).contains(&speed) => Ok(speed),
        _ => Err("a number of GB/s from 0.001 to 1000000 is needed".to_owned()),
    }
}
