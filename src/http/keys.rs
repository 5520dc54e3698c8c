//! API keys at work: which key a request brings, and what that key has used. Knows a key's SHA-256, never the key.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use metrics::{Counter, Gauge, counter, gauge};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    allowance::Allowance,
    denied::Denied,
    metrics::{KEY_REFUSED, KEY_REQUESTS, KEY_STREAMS, KEY_TOKENS},
};
use crate::settings::keys::{KeyLimits, KeySettings};

/// The keys that open this server. None is an open server.
#[derive(Debug)]
pub struct Keys(Vec<Arc<Key>>);

/// One key, with what it has used.
#[derive(Debug)]
pub struct Key {
    name: String,
    sha256: [u8; 32],
    limits: KeyLimits,
    places: Arc<Semaphore>,
    running: AtomicUsize,
    requests: Option<Allowance>,
    tokens: Option<Allowance>,
    prompt_tokens: Counter,
    generated_tokens: Counter,
    streams: Gauge,
}

/// Running answers of a key. Dropping it is their end.
#[derive(Debug)]
pub struct Streams {
    key: Arc<Key>,
    count: usize,
    /// None where the key has no such limit.
    _places: Option<OwnedSemaphorePermit>,
}

impl Keys {
    /// These keys, with nothing used yet. Install the recorder of the metrics first.
    pub fn new(keys: &[KeySettings]) -> Self {
        Self(keys.iter().map(|key| Arc::new(Key::new(key))).collect())
    }

    /// Whether everybody may use the server.
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// The key that these bytes are. Takes equally long whichever of them it is, and whether it is one.
    pub fn find(&self, presented: &[u8]) -> Option<&Arc<Key>> {
        let hash: [u8; 32] = Sha256::digest(presented).into();
        let mut found = u64::MAX;
        for (index, key) in (0..).zip(&self.0) {
            found.conditional_assign(&index, hash.ct_eq(&key.sha256));
        }
        self.0.get(usize::try_from(found).ok()?)
    }
}

impl Key {
    fn new(settings: &KeySettings) -> Self {
        let KeySettings { name, limits, .. } = settings;
        let per_minute = |limit: Option<NonZeroU32>| limit.map(Allowance::new);
        Self {
            sha256: settings.sha256,
            limits: *limits,
            places: Arc::new(Semaphore::new(
                limits.streams.map_or(0, NonZeroU32::get) as usize
            )),
            running: AtomicUsize::new(0),
            requests: per_minute(limits.requests_per_minute),
            tokens: per_minute(limits.tokens_per_minute),
            prompt_tokens: counter!(KEY_TOKENS, "key" => name.clone(), "kind" => "prompt"),
            generated_tokens: counter!(KEY_TOKENS, "key" => name.clone(), "kind" => "generated"),
            streams: gauge!(KEY_STREAMS, "key" => name.clone()),
            name: name.clone(),
        }
    }

    /// Whose it is.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Answers running now.
    pub fn running(&self) -> usize {
        self.running.load(Relaxed)
    }

    /// Lets one request in.
    ///
    /// **Errors**: the key has used up its requests or its tokens.
    pub fn request(&self) -> Result<(), Denied> {
        let denied = |allowance: &Allowance, denied: fn(u32, Duration) -> Denied| {
            let per_minute = allowance.per_minute();
            move |wait| self.denied(denied(per_minute, wait))
        };
        // Tokens first: whoever has none left does not lose a request over it.
        if let Some(tokens) = &self.tokens {
            let error = |per_minute, wait| Denied::Tokens { per_minute, wait };
            tokens.available().map_err(denied(tokens, error))?;
        }
        if let Some(requests) = &self.requests {
            let error = |per_minute, wait| Denied::Requests { per_minute, wait };
            requests.take().map_err(denied(requests, error))?;
        }
        Ok(())
    }

    /// The most answers that one request may ask for.
    pub fn streams_max(&self) -> Option<NonZeroU32> {
        self.limits.streams
    }

    /// Lets so many answers run.
    ///
    /// **Errors**: too many run already.
    pub fn run(self: &Arc<Self>, count: usize) -> Result<Streams, Denied> {
        let places = match self.limits.streams {
            None => None,
            Some(limit) => {
                let places = Arc::clone(&self.places);
                let wanted = u32::try_from(count).unwrap_or(u32::MAX);
                let got = places.try_acquire_many_owned(wanted);
                let (limit, asked) = (limit.get(), count);
                Some(got.map_err(|_| self.denied(Denied::Streams { limit, asked }))?)
            }
        };
        self.running.fetch_add(count, Relaxed);
        self.streams.increment(count as f64);
        Ok(Streams {
            key: Arc::clone(self),
            count,
            _places: places,
        })
    }

    /// Counts the tokens of an admitted prompt.
    pub fn charge_prompt(&self, tokens: usize) {
        self.prompt_tokens.increment(tokens as u64);
        if let Some(allowance) = &self.tokens {
            allowance.charge(tokens);
        }
    }

    /// Counts a token of an answer.
    pub fn charge_generated(&self) {
        self.generated_tokens.increment(1);
        if let Some(allowance) = &self.tokens {
            allowance.charge(1);
        }
    }

    /// Counts a generation request that has ended.
    pub fn ended(&self, outcome: &'static str) {
        counter!(KEY_REQUESTS, "key" => self.name.clone(), "outcome" => outcome).increment(1);
    }

    /// Tells what is left. **Source**: header names as OpenAI has them.
    pub fn tell(&self, headers: &mut HeaderMap) {
        let allowances = [
            (&self.requests, REQUESTS_LIMIT, REQUESTS_REMAINING),
            (&self.tokens, TOKENS_LIMIT, TOKENS_REMAINING),
        ];
        for (allowance, limit, remaining) in allowances {
            if let Some(allowance) = allowance {
                let left = allowance.available().unwrap_or(0);
                headers.insert(limit, HeaderValue::from(allowance.per_minute()));
                headers.insert(remaining, HeaderValue::from(left));
            }
        }
    }

    fn denied(&self, denied: Denied) -> Denied {
        if let Some(limit) = denied.limit() {
            counter!(KEY_REFUSED, "key" => self.name.clone(), "limit" => limit).increment(1);
        }
        denied
    }
}

const REQUESTS_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit-requests");
const REQUESTS_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining-requests");
const TOKENS_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit-tokens");
const TOKENS_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining-tokens");

impl Drop for Streams {
    fn drop(&mut self) {
        self.key.running.fetch_sub(self.count, Relaxed);
        self.key.streams.decrement(self.count as f64);
    }
}
