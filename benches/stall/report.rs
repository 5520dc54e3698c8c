//! What the runs with a number of streams come to.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    load::{
        Failure, Running,
        probe::Probes,
        quantiles::{Quantiles, median, ms},
    },
    run::{Bench, Read, Run},
};

/// At least one run.
pub(crate) struct Report {
    pub(crate) streams: usize,
    pub(crate) runs: Vec<Run>,
    pub(crate) probes: Probes,
    /// Whether every stream's text is what it says alone.
    pub(crate) identical: bool,
}

impl Report {
    /// What this stream said in every run.
    pub(crate) fn texts(&self, stream: usize) -> impl Iterator<Item = &str> {
        let texts = self
            .runs
            .iter()
            .filter_map(move |run| run.texts.get(stream));
        texts.map(String::as_str)
    }

    fn gaps(&self, of: impl Fn(&Run) -> &Vec<Duration>) -> Option<Quantiles> {
        Quantiles::of(self.runs.iter().flat_map(of).copied().collect())
    }

    /// A run's value, the median over the runs.
    fn median<T: PartialOrd + Copy>(&self, of: impl Fn(&Run) -> Option<T>) -> Option<T> {
        median(self.runs.iter().filter_map(of).collect())
    }

    fn seconds(&self, of: impl Fn(&Run) -> &Read) -> f64 {
        let took = self.median(|run| Some(of(run).took.as_secs_f64()));
        took.unwrap_or_default()
    }

    fn prompt_tokens(&self) -> usize {
        self.median(|run| Some(run.mixed.tokens))
            .unwrap_or_default()
    }

    /// The pause that is promised: the target, or three times what the streams have without the prompt.
    fn bound_ms(&self, target_ms: u64) -> f64 {
        let outside = self.gaps(|run| &run.outside);
        outside
            .map_or(0.0, |gaps| 3.0 * ms(gaps.p50))
            .max(target_ms as f64)
    }

    /// How much longer the prompt took than alone beyond what decoding cost, as a share.
    fn overhead(&self) -> Option<f64> {
        self.median(|run| {
            let (mixed, alone) = (run.mixed.took.as_secs_f64(), run.alone.took.as_secs_f64());
            run.decode_s.map(|decode| (mixed - decode) / alone)
        })
    }

    /// Tokens of the prompt and of the streams over the time that the prompt took.
    fn total_tokens_s(&self) -> f64 {
        let rate = |run: &Run| {
            let tokens = run.mixed.tokens + run.pieces;
            Some(tokens as f64 / run.mixed.took.as_secs_f64())
        };
        self.median(rate).unwrap_or_default()
    }

    /// TTFT of the second prompt beside everything and alone.
    fn second(&self) -> Option<(f64, f64)> {
        let mixed = self.median(|run| run.mixed.second.map(ms))?;
        Some((mixed, self.median(|run| run.alone.second.map(ms))?))
    }

    pub(crate) fn json(&self, running: &Running, target_ms: u64) -> Value {
        let gaps = |quantiles: Option<Quantiles>| quantiles.map(|q| q.json());
        let (alone, mixed) = (self.seconds(|r| &r.alone), self.seconds(|r| &r.mixed));
        let tokens = self.prompt_tokens();
        let worst = |run: &Run| run.inside.iter().max().map(|gap| ms(*gap));
        let second = self.second().map(|(mixed, alone)| {
            json!({"ttft_ms": mixed, "ttft_alone_ms": alone, "ratio": mixed / alone})
        });
        json!({
            "server": running.client.about.owner, "model": running.client.model, "seed": running.seed, "reps": self.runs.len(),
            "streams": self.streams, "prompt_tokens": tokens, "bound_ms": self.bound_ms(target_ms),
            "gap_ms": gaps(self.gaps(|run| &run.inside)), "gap_outside_ms": gaps(self.gaps(|run| &run.outside)),
            "gap_own_ms": gaps(self.gaps(|run| &run.inside_own)),
            "gap_max_ms_reps": self.runs.iter().map(worst).collect::<Vec<_>>(),
            "prompt_s_alone": alone, "prompt_s_mixed": mixed,
            "prompt_tokens_s_alone": tokens as f64 / alone, "prompt_tokens_s_mixed": tokens as f64 / mixed,
            "generated_during": self.median(|run| Some(run.pieces)), "total_tokens_s": self.total_tokens_s(),
            "decode_s_during": self.median(|run| run.decode_s), "overhead": self.overhead(),
            "overlapped": true, "tokens_identical": self.identical,
            "second_prompt": second, "probes_ms": self.probes.json(),
        })
    }

    pub(crate) fn print(&self, target_ms: u64) {
        let (alone, mixed) = (self.seconds(|r| &r.alone), self.seconds(|r| &r.mixed));
        let tokens = self.prompt_tokens();
        println!("\n{} streams, prompt of {tokens} tokens", self.streams);
        let bound = self.bound_ms(target_ms);
        if let Some(gaps) = self.gaps(|run| &run.outside) {
            println!("pause without prompt   {}", gaps.line());
        }
        if let Some(gaps) = self.gaps(|run| &run.inside) {
            let broken = if ms(gaps.max) > bound { "  BROKEN" } else { "" };
            println!(
                "pause with prompt      {}  (promised {bound:.0}){broken}",
                gaps.line()
            );
        }
        if let Some(gaps) = self.gaps(|run| &run.inside_own) {
            println!("less what was stolen   {}", gaps.line());
        }
        println!(
            "prompt alone           {alone:.3} s, {:.0} tokens/s",
            tokens as f64 / alone
        );
        println!(
            "prompt beside streams  {mixed:.3} s, {:.0} tokens/s; with what the streams got {:.0} tokens/s",
            tokens as f64 / mixed,
            self.total_tokens_s()
        );
        if let (Some(decode), Some(overhead)) = (self.median(|run| run.decode_s), self.overhead()) {
            println!(
                "decode windows then    {decode:.3} s; the rest is {overhead:.2} times the prompt alone"
            );
        }
        if let Some((mixed, alone)) = self.second() {
            let ratio = mixed / alone;
            println!("prompt behind it       {mixed:.1} ms, alone {alone:.1} ms, {ratio:.1} times");
        }
        self.probes.print();
        let same = if self.identical {
            "the same as"
        } else {
            "OTHER than"
        };
        println!("streams' text          {same} alone");
    }

    /// **Errors**: a probe failed, or this project's server gave a stream another text than alone. Other servers do not promise that.
    pub(crate) fn verdict(&self, running: &Running) -> Result<(), Failure> {
        self.probes.check()?;
        if running.client.is_tidegate() && !self.identical {
            return Err(format!(
                "of {} streams one gives another text than alone",
                self.streams
            )
            .into());
        }
        Ok(())
    }
}

pub(crate) fn print_head(running: &Running, bench: &Bench<'_>) {
    let client = &running.client;
    let model = client.model.as_deref().unwrap_or("a model");
    println!(
        "{}: {model}, prompts of {} tokens, seed {}",
        client.about.owner,
        bench.prompt_tokens(),
        running.seed
    );
}
