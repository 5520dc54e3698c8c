//! What a replay found, for people and for programs.

use std::{
    fmt::{self, Display, Formatter},
    iter, thread,
};

use serde::Serialize;

use super::{PolicyName, Replay, Speeds, Tally};
use crate::ledger::bytes;

/// What was found about one policy and capacity, or about one bound.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The policy; `server` or `lookahead`, what a server does with the guarded policy, without and with lookahead; `oracle` or `no cache`.
    pub policy: &'static str,
    /// From 0 to 1: what rows that decode found resident. Nothing if the trace has no such rows, as in all that follows.
    pub decode_hit_rate: Option<f64>,
    /// From 0 to 1: what prompt rows found resident.
    pub prompt_hit_rate: Option<f64>,
    /// What a decoded token had to wait for.
    pub missed_bytes_per_token: Option<f64>,
    /// Predicted, of all streams together.
    pub tokens_per_second: Option<f64>,
}

/// All findings about one capacity.
#[derive(Clone, Debug, Serialize)]
pub struct CapacityFindings {
    /// What experts may take.
    pub capacity_bytes: u64,
    /// The same, of all experts.
    pub capacity_share: f64,
    /// Policies first, then servers, bounds last.
    pub findings: Vec<Finding>,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The model's id.
    pub model: String,
    /// Layers that have experts.
    pub layers: usize,
    /// What all experts take.
    pub experts_bytes: u64,
    /// What one token's experts take.
    pub token_bytes: u64,
    /// What every row reads besides.
    pub common_bytes: u64,
    /// Windows in the trace.
    pub windows: u64,
    /// Rows that decode; fractions come from what is missing in the trace.
    pub decode_rows: f64,
    /// Prompt rows.
    pub prompt_rows: f64,
    /// Pieces of the trace that are missing because the disk was slower than the engine.
    pub dropped: u32,
    /// Pieces that were read.
    pub pieces: u32,
    /// Whether the trace breaks off.
    pub cut: bool,
    /// What fast memory gives.
    pub fast_bytes_per_second: f64,
    /// What the link gives.
    pub link_bytes_per_second: f64,
    /// `[distances]`, one layer ahead first: from 0 to 1, how many choices of rows that decode routers named so many layers before. Nothing if the trace does not tell.
    pub lookahead_hit_rates: Vec<Option<f64>>,
    /// One entry a capacity.
    pub capacities: Vec<CapacityFindings>,
}

impl Report {
    /// Runs all policies over all capacities, on as many threads as there are cores.
    pub fn new(
        replay: &Replay,
        policies: &[PolicyName],
        capacities: &[u64],
        speeds: Speeds,
    ) -> Self {
        let (header, ending) = (replay.header(), replay.ending());
        Self {
            model: header.name.clone(),
            layers: header.layers.len(),
            experts_bytes: header.experts_bytes(),
            token_bytes: header.token_bytes(),
            common_bytes: header.common_bytes,
            windows: ending.windows,
            decode_rows: replay.decode_tokens(),
            prompt_rows: replay.prompt_tokens(),
            dropped: ending.dropped,
            pieces: ending.pieces,
            cut: ending.cut,
            fast_bytes_per_second: speeds.fast,
            link_bytes_per_second: speeds.link,
            lookahead_hit_rates: replay.lookahead().map(|hits| hits.rate()).to_vec(),
            capacities: side_by_side(capacities, |capacity| {
                findings(replay, policies, capacity, speeds)
            }),
        }
    }

    /// As one JSON object.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("names and numbers only")
    }
}

/// Calls `work` for every capacity, a few at a time.
fn side_by_side<T: Send>(capacities: &[u64], work: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
    let mut done = Vec::with_capacity(capacities.len());
    for some in capacities.chunks(threads) {
        thread::scope(|scope| {
            let work = &work;
            let started: Vec<_> = some
                .iter()
                .map(|capacity| scope.spawn(move || work(*capacity)))
                .collect();
            for thread in started {
                done.push(
                    thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                );
            }
        });
    }
    done
}

fn findings(
    replay: &Replay,
    policies: &[PolicyName],
    capacity: u64,
    speeds: Speeds,
) -> CapacityFindings {
    let finding = |policy, tally: Tally| Finding {
        policy,
        decode_hit_rate: tally.decode_hit_rate(),
        prompt_hit_rate: tally.prompt_hit_rate(),
        missed_bytes_per_token: replay.missed_bytes_per_token(&tally),
        tokens_per_second: replay.tokens_per_second(&tally, speeds),
    };
    let policies = policies
        .iter()
        .map(|policy| finding(policy.name(), replay.run_named(*policy, capacity)));
    let mut servers = Vec::new();
    let kinds = [("server", false), ("lookahead", true)];
    let kinds = kinds
        .iter()
        .filter(|(_, ahead)| !ahead || replay.visits().look_ahead());
    for (policy, ahead) in kinds {
        // the least capacity that is taken here may be cut into slots
        if let Ok(simulated) = replay.simulate(capacity, speeds, *ahead) {
            servers.push(Finding {
                policy,
                decode_hit_rate: simulated.decode.rate(),
                prompt_hit_rate: None,
                missed_bytes_per_token: None,
                tokens_per_second: replay.simulated_tokens_per_second(&simulated),
            });
        }
    }
    let bounds = [
        finding("oracle", replay.oracle(capacity)),
        finding("no cache", replay.no_cache()),
    ];
    CapacityFindings {
        capacity_bytes: capacity,
        capacity_share: capacity as f64 / replay.header().experts_bytes() as f64,
        findings: policies.chain(servers).chain(bounds).collect(),
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} windows, {:.0} prompt rows, {:.0} rows that decode",
            self.model, self.windows, self.prompt_rows, self.decode_rows
        )?;
        writeln!(
            f,
            "{} layers with experts of {} in all; a token uses {} of them and {} besides",
            self.layers,
            bytes(self.experts_bytes),
            bytes(self.token_bytes),
            bytes(self.common_bytes)
        )?;
        if self.dropped > 0 {
            writeln!(
                f,
                "the trace has gaps: {} of {} pieces are missing",
                self.dropped,
                u64::from(self.dropped) + u64::from(self.pieces)
            )?;
        }
        if self.cut {
            writeln!(f, "the trace breaks off: it was not closed")?;
        }
        writeln!(
            f,
            "fast memory gives {:.1} GB/s (--dram), the link {:.1} GB/s (--link)\n",
            self.fast_bytes_per_second / 1e9,
            self.link_bytes_per_second / 1e9
        )?;
        let rates = self.lookahead_hit_rates.iter().enumerate();
        let rates: Vec<String> = rates
            .filter_map(|(at, rate)| Some(format!("{:.1}% {} ahead", 100.0 * (*rate)?, at + 1)))
            .collect();
        if !rates.is_empty() {
            writeln!(
                f,
                "lookahead names, of what is chosen: {}\n",
                rates.join(", ")
            )?;
        }
        write!(
            f,
            "{:>10} {:>6}  {:<10} {:>11} {:>11} {:>12} {:>9}",
            "capacity", "", "policy", "decode hits", "prompt hits", "missed/token", "tok/s"
        )?;
        self.capacities
            .iter()
            .try_for_each(|capacity| capacity.fmt(f))
    }
}

impl Display for CapacityFindings {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let head = [
            bytes(self.capacity_bytes),
            format!("{:.1}%", 100.0 * self.capacity_share),
        ];
        let heads = iter::once(head).chain(iter::repeat_with(Default::default));
        let rate = |rate: Option<f64>| or_none(rate, |rate| format!("{:.1}%", 100.0 * rate));
        for ([size, share], finding) in heads.zip(&self.findings) {
            write!(
                f,
                "\n{size:>10} {share:>6}  {:<10} {:>11} {:>11} {:>12} {:>9}",
                finding.policy,
                rate(finding.decode_hit_rate),
                rate(finding.prompt_hit_rate),
                or_none(finding.missed_bytes_per_token, |missed| bytes(
                    missed as u64
                )),
                or_none(finding.tokens_per_second, |speed| format!("{speed:.1}")),
            )?;
        }
        Ok(())
    }
}

fn or_none(number: Option<f64>, shown: impl Fn(f64) -> String) -> String {
    number.map_or_else(|| "-".to_owned(), shown)
}
