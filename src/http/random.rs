//! Numbers that nobody can guess: seeds of requests that name none, ids of answers.

use std::time::{SystemTime, UNIX_EPOCH};

/// 64 random bits from the operating system.
pub fn random_u64() -> u64 {
    // A system without a source of randomness still has a clock, which tells requests apart.
    getrandom::u64().unwrap_or_else(|_| {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        since.as_nanos() as u64 // the low bits are the ones that differ
    })
}
