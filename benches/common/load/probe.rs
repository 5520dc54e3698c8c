//! Whether a busy server still answers: `/health` and `/metrics` asked again and again beside everything else.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::{sync::watch, task::JoinHandle};

use super::{
    Failure,
    client::Client,
    quantiles::{Quantiles, ms},
};

/// One question of each kind in so long.
const EVERY: Duration = Duration::from_millis(20);
const PATHS: [&str; 2] = ["/health", "/metrics"];

/// Asks until [`Prober::stop`].
pub(crate) struct Prober {
    stop: watch::Sender<bool>,
    asking: Vec<(&'static str, JoinHandle<Probed>)>,
}

/// What came of a kind of question.
#[derive(Default)]
struct Probed {
    /// From when each was due to its answer.
    took: Vec<Duration>,
    /// Questions without a good answer.
    failed: usize,
    why: Option<String>,
}

/// What came of all.
pub(crate) struct Probes(Vec<(&'static str, Probed)>);

impl Prober {
    /// Asks what this server has: a path without an answer now is left out.
    pub(crate) async fn start(client: &Client) -> Self {
        let stop = watch::Sender::new(false);
        let mut asking = Vec::new();
        for path in PATHS {
            if client.get(path).await.is_ok() {
                let task = tokio::spawn(ask(client.clone(), path, stop.subscribe()));
                asking.push((path, task));
            }
        }
        Self { stop, asking }
    }

    pub(crate) async fn stop(self) -> Result<Probes, Failure> {
        self.stop.send_replace(true);
        let mut probes = Vec::new();
        for (path, task) in self.asking {
            probes.push((path, task.await?));
        }
        Ok(Probes(probes))
    }
}

/// One after the other, each counted from when it was due: a slow answer also counts against those that waited for it.
async fn ask(client: Client, path: &str, stop: watch::Receiver<bool>) -> Probed {
    let mut probed = Probed::default();
    let mut due = Instant::now();
    while !*stop.borrow() {
        tokio::time::sleep_until(due.into()).await;
        match client.get(path).await {
            Ok(_) => probed.took.push(due.elapsed()),
            Err(error) => {
                probed.failed += 1;
                probed.why.get_or_insert(error.to_string());
            }
        }
        due += EVERY;
    }
    probed
}

impl Probes {
    /// By path: quantiles in milliseconds, or nothing where the server has no such path.
    pub(crate) fn json(&self) -> Value {
        let mut all = Map::new();
        for path in PATHS {
            let found = self.0.iter().find(|(of, _)| *of == path);
            let quantiles = found.and_then(|(_, probed)| Quantiles::of(probed.took.clone()));
            let value =
                quantiles.map(|q| json!({"p50": ms(q.p50), "p99": ms(q.p99), "max": ms(q.max)}));
            all.insert(path[1..].into(), value.into());
        }
        all.into()
    }

    pub(crate) fn print(&self) {
        for (path, probed) in &self.0 {
            if let Some(quantiles) = Quantiles::of(probed.took.clone()) {
                println!("{path:<22} {}", quantiles.line());
            }
        }
    }

    /// **Errors**: a question had no good answer.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        for (path, Probed { failed, why, .. }) in &self.0 {
            if let Some(why) = why {
                return Err(format!("{failed} probes of {path} failed, the first: {why}").into());
            }
        }
        Ok(())
    }
}
