//! How fast memory is cut into slots: experts of one size share a pool, and every pool has room for what one token uses.

use super::ExpertSizes;
use crate::{backend::ExpertLayer, ledger::bytes};

/// Slots of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The layers whose experts it is for, as the model counts its layers with experts.
    pub layers: Vec<usize>,
    /// **Units**: bytes. One slot.
    pub slot_bytes: u64,
    /// How many slots, no more than these layers have experts.
    pub slots: usize,
    /// Slots that no resident takes: for experts on their way, and for those that do not stay.
    pub spare: usize,
    /// Experts of all its layers.
    pub experts: usize,
    /// The most that a row uses in one of them.
    pub used: usize,
}

impl Pool {
    /// Slots that residents may take.
    pub fn residents(&self) -> usize {
        self.slots - self.spare
    }

    /// **Units**: bytes. All slots.
    pub fn bytes(&self) -> u64 {
        self.slots as u64 * self.slot_bytes
    }
}

/// All pools of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotPlan {
    /// In the order of their first layers.
    pub pools: Vec<Pool>,
}

/// One token's experts do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("experts may take {} ({got} bytes), and those that one token uses take {}: at least {least} bytes are needed, all experts take {all}", bytes(*got), bytes(*least))]
pub struct TooSmall {
    /// **Units**: bytes. What was allowed.
    pub got: u64,
    /// **Units**: bytes. The least that will do.
    pub least: u64,
    /// **Units**: bytes. What leaves nobody out.
    pub all: u64,
}

impl SlotPlan {
    /// Cuts `capacity` bytes into slots for experts of these layers, whose `expert_bytes` are what a slot takes. Never takes more than all experts need.
    ///
    /// **Errors**: [`TooSmall`].
    pub fn new(layers: &[ExpertLayer], capacity: u64) -> Result<Self, TooSmall> {
        let mut pools = pools(layers);
        let least: u64 = pools.iter().map(Pool::bytes).sum();
        let all: u64 = pools
            .iter()
            .map(|pool| pool.experts as u64 * pool.slot_bytes)
            .sum();
        if capacity < least {
            return Err(TooSmall {
                got: capacity,
                least,
                all,
            });
        }
        // what is left is shared out by what each pool still lacks
        let (mut left, mut lacking) = (capacity.min(all) - least, all - least);
        for pool in &mut pools {
            let lacks = pool.experts as u64 * pool.slot_bytes - pool.bytes();
            let share = if lacking == 0 {
                0
            } else {
                (u128::from(left) * u128::from(lacks) / u128::from(lacking)) as u64
            };
            let more = share / pool.slot_bytes;
            pool.slots += more as usize;
            (left, lacking) = (left - more * pool.slot_bytes, lacking - lacks);
        }
        for pool in &mut pools {
            pool.spare = spare(pool);
        }
        Ok(Self { pools })
    }

    /// **Units**: bytes. All slots.
    pub fn bytes(&self) -> u64 {
        self.pools.iter().map(Pool::bytes).sum()
    }

    /// Slots of all pools.
    pub fn slots(&self) -> usize {
        self.pools.iter().map(|pool| pool.slots).sum()
    }

    /// How large the experts of a pool are, counted through its layers.
    pub(super) fn sizes(&self, pool: usize, layers: &[ExpertLayer]) -> ExpertSizes {
        let own = self.pools[pool].layers.iter();
        ExpertSizes::new(&own.map(|layer| layers[*layer]).collect::<Vec<_>>())
    }
}

/// One pool for every size, with as many slots as one token needs.
fn pools(layers: &[ExpertLayer]) -> Vec<Pool> {
    let mut pools: Vec<Pool> = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let known = pools
            .iter()
            .position(|pool| pool.slot_bytes == layer.expert_bytes);
        let at = known.unwrap_or_else(|| {
            pools.push(Pool {
                layers: Vec::new(),
                slot_bytes: layer.expert_bytes,
                slots: 0,
                spare: 0,
                experts: 0,
                used: 0,
            });
            pools.len() - 1
        });
        let pool = &mut pools[at];
        pool.layers.push(index);
        pool.slots += layer.used;
        pool.experts += layer.experts;
        pool.used = pool.used.max(layer.used);
    }
    pools
}

/// None where everybody is resident; else what a row misses at worst, and as much again for those that are fetched ahead, but no more than half of a small pool.
fn spare(pool: &Pool) -> usize {
    if pool.slots == pool.experts {
        0
    } else {
        (2 * pool.used).min(pool.slots.div_ceil(2)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(experts: usize, used: usize, expert_bytes: u64) -> ExpertLayer {
        ExpertLayer {
            layer: 0,
            experts,
            used,
            expert_bytes,
        }
    }

    /// Layers of two sizes cut into so many slots, of which so many are spare; each pool holds what one token needs, and nothing is wasted but parts of slots.
    fn check(capacity: u64, slots: [usize; 2], spare: [usize; 2]) {
        let layers = [layer(8, 2, 10), layer(8, 2, 30), layer(8, 2, 10)];
        let plan = SlotPlan::new(&layers, capacity).expect("enough");
        assert_eq!(plan.pools[0].layers, [0, 2]);
        assert_eq!(plan.pools[1].layers, [1]);
        let got = |of: fn(&Pool) -> usize| [of(&plan.pools[0]), of(&plan.pools[1])];
        assert_eq!(got(|pool| pool.slots), slots, "{capacity}");
        assert_eq!(got(|pool| pool.spare), spare, "{capacity}");
        assert!(plan.bytes() <= capacity);
    }

    #[test]
    fn pools_share_what_there_is() {
        check(100, [4, 2], [2, 1]);
        check(250, [10, 5], [4, 3]);
        check(399, [15, 8], [4, 0]);
        check(400, [16, 8], [0, 0]);
        check(1 << 40, [16, 8], [0, 0]);
    }

    #[test]
    fn less_than_a_token_needs_is_refused() {
        let layers = [layer(8, 2, 10), layer(8, 2, 30)];
        let refused = SlotPlan::new(&layers, 79).expect_err("too small");
        assert_eq!((refused.got, refused.least, refused.all), (79, 80, 320));
        assert!(SlotPlan::new(&layers, refused.least).is_ok());
    }
}
