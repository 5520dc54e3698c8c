//! How much fast memory experts may take: sizes and shares as people write them, and the sweep that is taken where nobody does.

use std::str::FromStr;

use bytesize::ByteSize;

use crate::{ledger::bytes, trace::Header};

/// Capacities of a sweep.
const SWEEP: usize = 6;

/// A capacity as written: `8GiB`, or `25%` of all experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// **Units**: bytes.
    Bytes(u64),
    /// Of all experts' bytes, from 0 to 1.
    Share(f64),
}

/// Why a capacity cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CapacityError {
    /// Neither a size nor a share.
    #[error("a capacity is a size such as 8GiB or a share such as 25%, got '{got}'")]
    Unreadable {
        /// As written.
        got: String,
    },
    /// A share outside its range.
    #[error("a share of the experts is more than 0% and at most 100%, got {got}%")]
    Share {
        /// As written.
        got: f64,
    },
    /// Not even one token's experts fit.
    #[error("a capacity of {} ({got} bytes) is less than the experts of one token take: at least {least} bytes or {percent:.1}% of all are needed ({})", bytes(*got), bytes(*least))]
    TooSmall {
        /// **Units**: bytes. What was asked for.
        got: u64,
        /// **Units**: bytes. What one token's experts take.
        least: u64,
        /// The same, of all experts, rounded up.
        percent: f64,
    },
}

impl FromStr for Capacity {
    type Err = CapacityError;

    fn from_str(written: &str) -> Result<Self, CapacityError> {
        let unreadable = || CapacityError::Unreadable {
            got: written.to_owned(),
        };
        let Some(percent) = written.strip_suffix('%') else {
            let size: ByteSize = written.parse().map_err(|_| unreadable())?;
            return Ok(Self::Bytes(size.as_u64()));
        };
        let percent: f64 = percent.trim().parse().map_err(|_| unreadable())?;
        if percent > 0.0 && percent <= 100.0 {
            Ok(Self::Share(percent / 100.0))
        } else {
            Err(CapacityError::Share { got: percent })
        }
    }
}

impl Capacity {
    /// **Units**: bytes. What it is for a model.
    ///
    /// **Errors**: [`CapacityError::TooSmall`].
    pub fn bytes(self, header: &Header) -> Result<u64, CapacityError> {
        let (all, least) = (header.experts_bytes(), header.token_bytes());
        let got = match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(1.0) => all,
            Self::Share(share) => (all as f64 * share).ceil() as u64,
        };
        if got >= least {
            Ok(got)
        } else {
            let percent = (least as f64 / all as f64 * 1000.0).ceil() / 10.0;
            Err(CapacityError::TooSmall {
                got,
                least,
                percent,
            })
        }
    }
}

/// **Units**: bytes. From one token's experts to everything, each larger than the one before by the same factor.
pub fn sweep(header: &Header) -> Vec<u64> {
    let (all, least) = (header.experts_bytes(), header.token_bytes());
    let step = |at: usize| {
        let factor = (all as f64 / least as f64).powf(at as f64 / (SWEEP - 1) as f64);
        (least as f64 * factor).round() as u64
    };
    let mut sweep: Vec<u64> = (0..SWEEP - 1).map(step).collect();
    sweep.push(all);
    sweep.dedup();
    sweep
}
