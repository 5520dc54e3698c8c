//! A table of n-grams on the disk: rows a second, how many are in memory when they are wanted, and how long windows wait for the others.
//!
//! `cargo bench --bench table -- [FILE | --like MODEL [--layers N] [--quant TYPE]] [--threads N] [--prompt N] [--prompts N] [--decode N] [--cold] [--json]`
//!
//! Every prompt is a new one, read chunk by chunk, of which each is told ahead as the engine does; then tokens of another are read one by one. Checked inside: a prompt read again, its
//! rows in memory, has the same next token.

use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use tidegate::{
    gguf::{Advice, Gguf, Held},
    table::TableStats,
};

mod common;
use common::{Common, Failure, Machine, Measure, rig::Rig};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    common: Common,
    /// Tokens of a prompt.
    #[arg(long, default_value_t = 2048)]
    prompt: usize,
    /// Prompts.
    #[arg(long, default_value_t = 4)]
    prompts: usize,
    /// Tokens that are read one by one.
    #[arg(long, default_value_t = 256)]
    decode: usize,
    /// Has the system forget the file's pages first.
    #[arg(long)]
    cold: bool,
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    args.common.run(Reading(&args))
}

struct Reading<'a>(&'a Args);

impl Measure for Reading<'_> {
    fn run<B: Machine>(self, common: &Common, backend: B) -> Result<bool, Failure> {
        let args = self.0;
        let (name, file) = common.open()?;
        let longest = args.prompt.max(args.decode) + 1;
        let mut rig = Rig::load(common, &file, backend, 1, longest)?;
        let machine = rig.backend().name();
        if args.cold {
            forget(&file)?;
        }
        let chunk = rig.chunk;
        let mut right = true;
        let prompts = phase(&mut rig, args.prompts * args.prompt, |rig| {
            for stream in 0..args.prompts {
                let tokens = rig.prompt(stream, args.prompt);
                rig.read(0, &tokens, chunk)?;
            }
            Ok(())
        })?;
        let decoded = phase(&mut rig, args.decode, |rig| {
            let tokens = rig.prompt(args.prompts, args.decode);
            rig.read(0, &tokens, 1).map(|_| ())
        })?;
        let again = rig.prompt(0, args.prompt);
        let next = rig.read(0, &again, chunk)?;
        right &= rig.read(0, &again, chunk / 2 + 1)? == next;
        if common.json {
            println!(
                "{}",
                json!({
                    "bench": "table", "model": name, "machine": machine, "chunk_rows": chunk, "cold": args.cold, "prompts": prompts.json(), "decode": decoded.json(),
                })
            );
        } else {
            println!("{name}: {machine}, {chunk} rows a window");
            prompts.print("prompts");
            decoded.print("one by one");
        }
        Ok(right)
    }
}

/// Pages of the file are read from the disk again, as far as nobody has them mapped.
fn forget(file: &Gguf) -> Result<(), Failure> {
    use std::os::fd::AsRawFd;
    let table = file.tensor("per_layer_token_embd.weight");
    let table = table.ok_or("the model has no table of n-grams")?;
    file.advise(table, 0..table.bytes, Advice::Random)?;
    let Held::File(held) = file.held(table.shard) else {
        return Err("the file lies in memory".into());
    };
    let (offset, length) = (table.offset as i64, table.bytes as i64);
    // SAFETY: the descriptor is open; advice changes nothing that is read.
    let refused =
        unsafe { libc::posix_fadvise(held.as_raw_fd(), offset, length, libc::POSIX_FADV_DONTNEED) };
    if refused == 0 {
        Ok(())
    } else {
        Err(std::io::Error::from_raw_os_error(refused).into())
    }
}

/// What some windows were like.
struct Phase {
    tokens: usize,
    time: Duration,
    rows: u64,
    /// In memory when their window began.
    hits: u64,
    /// Read for a window that had not begun.
    ahead: u64,
    reads: u64,
    read_bytes: u64,
    /// Of windows, ascending.
    waits: Vec<Duration>,
}

fn phase<B: Machine>(
    rig: &mut Rig<B>,
    tokens: usize,
    read: impl FnOnce(&mut Rig<B>) -> Result<(), Failure>,
) -> Result<Phase, Failure> {
    let stats = |rig: &Rig<B>| {
        let backend = rig.backend();
        let cpu = backend.cpu().map(|cpu| cpu.table_stats());
        let stats = cpu.or_else(|| backend.cuda().map(|cuda| cuda.table_stats()));
        let stats = stats.ok_or("neither a CPU nor a device")?;
        Ok::<TableStats, Failure>(stats.clone())
    };
    let (before, begun) = (stats(rig)?, Instant::now());
    read(rig)?;
    let (time, after) = (begun.elapsed(), stats(rig)?);
    if after.rows == before.rows {
        return Err("the model has no table of n-grams".into());
    }
    let windows = (after.windows - before.windows) as usize;
    let forgotten = after.waits.len().saturating_sub(windows);
    let mut waits: Vec<Duration> = after.waits.iter().skip(forgotten).copied().collect();
    waits.sort_unstable();
    Ok(Phase {
        tokens,
        time,
        rows: after.rows - before.rows,
        hits: after.hits - before.hits,
        ahead: after.ahead - before.ahead,
        reads: after.reads - before.reads,
        read_bytes: after.read_bytes - before.read_bytes,
        waits,
    })
}

impl Phase {
    /// A wait that this share of the windows do not exceed.
    fn wait(&self, share: f64) -> Duration {
        let last = self.waits.len().saturating_sub(1);
        let at = (share * last as f64).ceil() as usize;
        self.waits.get(at).copied().unwrap_or_default()
    }

    fn rows_s(&self) -> f64 {
        self.rows as f64 / self.time.as_secs_f64()
    }

    fn share(&self, rows: u64) -> f64 {
        rows as f64 / self.rows as f64
    }

    fn print(&self, what: &str) {
        let ms = |share| 1e3 * self.wait(share).as_secs_f64();
        println!(
            "{what:>10}: {} tokens in {:.2} s, {:.0} rows/s, {:.1}% in memory when wanted, {:.1}% read ahead, {} reads of {:.0} bytes; waits of {} windows: median {:.3} ms, p99 {:.3} ms, longest {:.3} ms",
            self.tokens,
            self.time.as_secs_f64(),
            self.rows_s(),
            100.0 * self.share(self.hits),
            100.0 * self.share(self.ahead),
            self.reads,
            self.read_bytes as f64 / self.reads.max(1) as f64,
            self.waits.len(),
            ms(0.5),
            ms(0.99),
            ms(1.0),
        );
    }

    fn json(&self) -> Value {
        let ms = |share| 1e3 * self.wait(share).as_secs_f64();
        json!({
            "tokens": self.tokens, "s": self.time.as_secs_f64(), "rows_s": self.rows_s(), "hit_share": self.share(self.hits), "ahead_share": self.share(self.ahead),
            "reads": self.reads, "read_bytes": self.read_bytes, "windows": self.waits.len(), "wait_ms_p50": ms(0.5), "wait_ms_p99": ms(0.99), "wait_ms_max": ms(1.0),
        })
    }
}
