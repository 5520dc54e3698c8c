//! API keys as checked: who may use the server, and how much. Knows a key's SHA-256, never the key.

use std::{collections::HashMap, num::NonZeroU32};

use super::written::{KeyWritten, ServerWritten};

/// What every key that tidegate makes begins with, so that people and scanners of repositories know one when they see it.
pub const KEY_PREFIX: &str = "tg-";

/// **Units**: characters.
const NAME_MAX: usize = 64;
const STREAMS_MAX: u32 = 65_536;
const PER_MINUTE_MAX: u32 = 1_000_000_000;

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySettings {
    /// Whose it is.
    pub name: String,
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
    /// How much it may use.
    pub limits: KeyLimits,
}

/// How much a key may use; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Answers running at once.
    pub streams: Option<NonZeroU32>,
    /// Requests a minute.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Tokens a minute, of prompts and answers.
    pub tokens_per_minute: Option<NonZeroU32>,
}

/// Why a key cannot be used. Shows nothing of what stands where a hash should: it may be the key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A table without `name`.
    #[error("[[key]] number {number} has no name")]
    NoName {
        /// Which table, counted from 1.
        number: usize,
    },
    /// The key itself was written where its owner's name belongs.
    #[error(
        "[[key]] number {number}: its name begins with {KEY_PREFIX} as keys do, and names are no secret: they appear in the log"
    )]
    NameIsKey {
        /// Which table, counted from 1.
        number: usize,
    },
    /// A name that cannot be a label in log and metrics.
    #[error("a key's name has 1 to {NAME_MAX} letters, digits and . _ @ + -, got '{name}'")]
    Name {
        /// As written.
        name: String,
    },
    /// Two keys of one name.
    #[error("two keys are named '{name}'")]
    SameName {
        /// The name.
        name: String,
    },
    /// Two names for one key.
    #[error("'{first}' and '{second}' have the same key")]
    SameKey {
        /// The earlier one's name.
        first: String,
        /// The later one's name.
        second: String,
    },
    /// A table without `sha256`.
    #[error("key '{name}' has no sha256")]
    NoHash {
        /// Whose.
        name: String,
    },
    /// A hash of the wrong length.
    #[error("key '{name}': sha256 must be 64 hexadecimal digits, got {got} characters")]
    HashLength {
        /// Whose.
        name: String,
        /// How many.
        got: usize,
    },
    /// A hash with something else than hexadecimal digits.
    #[error("key '{name}': sha256 must be 64 hexadecimal digits, number {at} is none")]
    HashDigit {
        /// Whose.
        name: String,
        /// Where, counted from 1.
        at: usize,
    },
    /// A limit outside its range.
    #[error("{}{limit} must be from 1 to {high}, got {got}", name.as_deref().map(|name| format!("key '{name}': ")).unwrap_or_default())]
    Limit {
        /// Whose; `None` is the limit for all keys.
        name: Option<String>,
        /// Which.
        limit: &'static str,
        /// As written.
        got: usize,
        /// Largest allowed value.
        high: u32,
    },
}

/// Checks the keys and the limits for those that set none.
///
/// **Errors**: [`KeyError`].
pub fn check(written: &ServerWritten) -> Result<Vec<KeySettings>, KeyError> {
    let common = KeyLimits {
        streams: limit(None, "key-streams", written.key_streams, STREAMS_MAX)?,
        requests_per_minute: limit(
            None,
            "key-requests-per-minute",
            written.key_requests_per_minute,
            PER_MINUTE_MAX,
        )?,
        tokens_per_minute: limit(
            None,
            "key-tokens-per-minute",
            written.key_tokens_per_minute,
            PER_MINUTE_MAX,
        )?,
    };
    let tables = written.key.iter().flatten();
    let keys: Vec<KeySettings> = tables
        .enumerate()
        .map(|(index, table)| key(table, index + 1, common))
        .collect::<Result<_, _>>()?;
    let (mut names, mut hashes) = (HashMap::new(), HashMap::new());
    for KeySettings { name, sha256, .. } in &keys {
        if names.insert(name, ()).is_some() {
            return Err(KeyError::SameName { name: name.clone() });
        }
        if let Some(first) = hashes.insert(sha256, name) {
            return Err(KeyError::SameKey {
                first: first.clone(),
                second: name.clone(),
            });
        }
    }
    Ok(keys)
}

/// Checks what somebody wants to call the `number`th key.
///
/// **Errors**: [`KeyError::Name`], [`KeyError::NameIsKey`].
pub fn check_name(name: &str, number: usize) -> Result<(), KeyError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._@+-".contains(c);
    if name.starts_with(KEY_PREFIX) {
        return Err(KeyError::NameIsKey { number });
    }
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(fits) {
        return Err(KeyError::Name { name: name.into() });
    }
    Ok(())
}

fn key(written: &KeyWritten, number: usize, common: KeyLimits) -> Result<KeySettings, KeyError> {
    let name = written.name.as_deref();
    let name = name.ok_or(KeyError::NoName { number })?;
    check_name(name, number)?;
    let own = |limited, got, high| limit(Some(name), limited, got, high);
    let (requests, tokens) = (written.requests_per_minute, written.tokens_per_minute);
    let streams = own("streams", written.streams, STREAMS_MAX)?;
    let requests = own("requests-per-minute", requests, PER_MINUTE_MAX)?;
    let tokens = own("tokens-per-minute", tokens, PER_MINUTE_MAX)?;
    Ok(KeySettings {
        name: name.into(),
        sha256: hash(name, written.sha256.as_deref())?,
        limits: KeyLimits {
            streams: streams.or(common.streams),
            requests_per_minute: requests.or(common.requests_per_minute),
            tokens_per_minute: tokens.or(common.tokens_per_minute),
        },
    })
}

fn hash(name: &str, written: Option<&str>) -> Result<[u8; 32], KeyError> {
    let written = written.ok_or_else(|| KeyError::NoHash { name: name.into() })?;
    let digits: Vec<Option<u32>> = written.trim().chars().map(|c| c.to_digit(16)).collect();
    let mut sha256 = [0; 32];
    if digits.len() != 2 * sha256.len() {
        return Err(KeyError::HashLength {
            name: name.into(),
            got: digits.len(),
        });
    }
    for (index, digit) in digits.into_iter().enumerate() {
        let digit = digit.ok_or_else(|| KeyError::HashDigit {
            name: name.into(),
            at: index + 1,
        })?;
        sha256[index / 2] = sha256[index / 2] << 4 | digit as u8;
    }
    Ok(sha256)
}

fn limit(
    name: Option<&str>,
    limit: &'static str,
    got: Option<usize>,
    high: u32,
) -> Result<Option<NonZeroU32>, KeyError> {
    let Some(got) = got else { return Ok(None) };
    let number = u32::try_from(got).ok().and_then(NonZeroU32::new);
    match number.filter(|number| number.get() <= high) {
        Some(number) => Ok(Some(number)),
        None => Err(KeyError::Limit {
            name: name.map(str::to_owned),
            limit,
            got,
            high,
        }),
    }
}
