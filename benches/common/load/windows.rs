//! What a server's `/metrics` say of its windows, where it is this project's.

use super::client::Client;

/// Sums since the server's start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Windows {
    decode: Sum,
    mixed: Sum,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    seconds: f64,
    count: f64,
}

impl Windows {
    /// None if the server does not say.
    pub(crate) async fn scrape(client: &Client) -> Option<Self> {
        let text = client.get("/metrics").await.ok()?;
        let value = |name: &str, kind: &str| -> Option<f64> {
            let name = format!("tidegate_window_seconds_{name}{{kind=\"{kind}\"}} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&name));
            line?.trim().parse().ok()
        };
        // A kind that has not come up yet has no line.
        let sum = |kind| Sum {
            seconds: value("sum", kind).unwrap_or(0.0),
            count: value("count", kind).unwrap_or(0.0),
        };
        text.contains("tidegate_window_seconds").then(|| Self {
            decode: sum("decode"),
            mixed: sum("mixed"),
        })
    }

    /// Seconds spent on decoding between two scrapes: the decode windows, and of each mixed window as much as a decode window took
    /// on average before, between `settled` and `begun`.
    pub(crate) fn decode_s(settled: Self, begun: Self, ended: Self) -> f64 {
        let before = begun.decode - settled.decode;
        let (decode, mixed) = (ended.decode - begun.decode, ended.mixed - begun.mixed);
        let each = before.seconds / before.count.max(1.0);
        decode.seconds + mixed.seconds.min(mixed.count * each)
    }
}

impl std::ops::Sub for Sum {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            seconds: self.seconds - other.seconds,
            count: self.count - other.count,
        }
    }
}
