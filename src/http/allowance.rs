//! So much a minute, for one key. What has been used beyond it is owed: nothing more is allowed until it has been made up for.
//!
//! Tokens need this, because an answer's length is known only at its end. The arithmetic is governor's: one time stamp, at which everything used so far
//! will have been refilled. Only the store of that stamp is ours, because governor's own cannot be overdrawn.

use std::{
    fmt,
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::StateInformationMiddleware,
    nanos::Nanos,
    state::{NotKeyed, StateStore},
};

type Limiter<C> = RateLimiter<NotKeyed, Refilled, C, StateInformationMiddleware>;

/// So much a minute: a minute's worth to begin with, refilled steadily.
pub struct Allowance<C: Clock = DefaultClock> {
    per_minute: NonZeroU32,
    /// **Units**: nanoseconds. What refilling one piece takes.
    piece_ns: u64,
    refilled: Refilled,
    /// Held for an instant; never across an await.
    limiter: Mutex<Limiter<C>>,
}

/// **Units**: nanoseconds since the limiter was made. When everything used so far will have been refilled.
#[derive(Clone, Debug, Default)]
struct Refilled(Arc<AtomicU64>);

impl StateStore for Refilled {
    type Key = NotKeyed;

    /// Plain, because the limiter's lock keeps others out.
    fn measure_and_replace<T, F, E>(&self, _: &NotKeyed, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let (outcome, at) = decide(Some(Nanos::new(self.0.load(Relaxed))))?;
        self.0.store(at.as_u64(), Relaxed);
        Ok(outcome)
    }
}

impl Allowance {
    /// `per_minute` pieces a minute.
    pub fn new(per_minute: NonZeroU32) -> Self {
        Self::with_clock(per_minute, DefaultClock::default())
    }
}

impl<C: Clock> Allowance<C> {
    fn with_clock(per_minute: NonZeroU32, clock: C) -> Self {
        let (quota, refilled) = (Quota::per_minute(per_minute), Refilled::default());
        let limiter = RateLimiter::new(quota, refilled.clone(), clock);
        Self {
            per_minute,
            piece_ns: quota.replenish_interval().as_nanos() as u64, // at most a minute
            refilled,
            limiter: Mutex::new(limiter),
        }
    }

    /// Pieces a minute.
    pub fn per_minute(&self) -> u32 {
        self.per_minute.get()
    }

    /// Uses one piece.
    ///
    /// **Errors**: there is none; the wait until there is.
    pub fn take(&self) -> Result<(), Duration> {
        take_from(&self.locked()).map(drop)
    }

    /// The pieces there are, without using any.
    ///
    /// **Errors**: there are none; the wait until there is one.
    pub fn available(&self) -> Result<u32, Duration> {
        let limiter = self.locked();
        let left = take_from(&limiter)?;
        self.refilled.0.fetch_sub(self.piece_ns, Relaxed);
        Ok(left + 1)
    }

    /// Uses so many pieces, whether they are there or not.
    pub fn charge(&self, pieces: usize) {
        let limiter = self.locked();
        // The first one moves a stamp that lies in the past to the present; the others add to it.
        let owed = match pieces.checked_sub(1) {
            None => return,
            Some(others) if take_from(&limiter).is_ok() => others,
            Some(_) => pieces,
        };
        let owed_ns = self.piece_ns.saturating_mul(owed as u64);
        let at = self.refilled.0.load(Relaxed).saturating_add(owed_ns);
        self.refilled.0.store(at, Relaxed);
    }

    fn locked(&self) -> MutexGuard<'_, Limiter<C>> {
        // The stamp is one number, so that a panic elsewhere leaves nothing half done.
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Uses one piece; the pieces left, or the wait until there is one.
fn take_from<C: Clock>(limiter: &Limiter<C>) -> Result<u32, Duration> {
    match limiter.check() {
        Ok(taken) => Ok(taken.remaining_burst_capacity()),
        Err(early) => Err(early.wait_time_from(limiter.clock().now())),
    }
}

impl<C: Clock> fmt::Debug for Allowance<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allowance({} a minute)", self.per_minute)
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    fn allowance(per_minute: u32) -> (Allowance<FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        let per_minute = NonZeroU32::new(per_minute).expect("not zero");
        (Allowance::with_clock(per_minute, clock.clone()), clock)
    }

    #[test]
    fn a_minutes_worth_then_one_after_the_other() {
        let (allowance, clock) = allowance(60);
        assert_eq!(allowance.available(), Ok(60));
        for left in (0..60).rev() {
            assert_eq!(allowance.take(), Ok(()));
            assert_eq!(allowance.available().unwrap_or(0), left);
        }
        assert_eq!(allowance.take(), Err(Duration::from_secs(1)));
        clock.advance(Duration::from_millis(300));
        assert_eq!(allowance.take(), Err(Duration::from_millis(700)));
        clock.advance(Duration::from_millis(700));
        assert_eq!(allowance.take(), Ok(()));
        assert_eq!(allowance.take(), Err(Duration::from_secs(1)));
        clock.advance(Duration::from_secs(3600));
        assert_eq!(
            allowance.available(),
            Ok(60),
            "an hour's rest saves nothing up"
        );
    }

    #[test]
    fn what_is_owed_is_made_up_for_exactly() {
        let (allowance, clock) = allowance(60);
        clock.advance(Duration::from_secs(1000));
        allowance.charge(50);
        assert_eq!(allowance.available(), Ok(10));
        allowance.charge(10 + 600); // ten minutes' worth more than there is
        assert_eq!(allowance.available(), Err(Duration::from_secs(601)));
        allowance.charge(1);
        clock.advance(Duration::from_secs(601));
        assert_eq!(allowance.take(), Err(Duration::from_secs(1)));
        clock.advance(Duration::from_secs(1));
        assert_eq!(allowance.available(), Ok(1));
        clock.advance(Duration::from_secs(9));
        assert_eq!(allowance.available(), Ok(10));
        allowance.charge(0);
        assert_eq!(allowance.available(), Ok(10));
    }
}
