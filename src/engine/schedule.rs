//! What the engine does next: a pure function of what every sequence wants, what there is room for and what things take.
//!
//! Knows neither clocks, outboxes nor tokens. A sequence without credit wants nothing, and one whose rows are under way is not here.
//!
//! 1. Decode rows first: all of a sequence's rows or none. If not all sequences fit, those served longest ago go first.
//! 2. Where half of the pause that streams are given suffices for half a chunk or more beside them, all prompts share the spare rows of
//!    windows, and the prompt lane stays empty.
//! 3. Other prompts are read in chunks on the prompt lane, whose pass is left after any slice. Before each the question is whether
//!    one more would typically make a stream wait longer than a few of its windows take, or perhaps longer than the target; if so a decode window comes first.
//!    After a window at least one slice follows, so both lanes get on.
//!    How long streams may wait is told by their windows without guesses; guesses get what slices leave of that.
//! 4. Prompts that are short enough for a few windows do not wait for a pass to end: they ride, at once and with as many rows as the
//!    streams beside them can bear. A few such windows may follow each other; then they take turns with slices.
//! 5. In a chunk the oldest prompt is sure of a third of the rows, so it always gets on; the others share the rest, shortest
//!    remainder first, so a short prompt does not wait for a long one. What one side leaves goes to the other. Beside streams a chunk with which a
//!    short prompt ends is not much larger than that prompt.

use std::time::Duration;

use super::{
    costs::{Costs, Load},
    executor::Slot,
    sequence::Want,
};

/// What one sequence wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Whose.
    pub slot: Slot,
    /// Grows from request to request.
    pub arrival: u64,
    /// When it last had a share; grows from share to share. 0 if it never had.
    pub served: u64,
    /// How long it has been waiting: since its last window, its admission, or since its reader had room again.
    pub waited: Duration,
    /// Position of its next row.
    pub first: usize,
    /// The rows it could use.
    pub want: Want,
}

/// What windows may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Rows on the prompt lane.
    pub rows: usize,
    /// Rows on the decode lane.
    pub decode_rows: usize,
    /// Rows with logits.
    pub logits_rows: usize,
    /// Prompt rows, of all prompts together.
    pub chunk_rows: usize,
    /// Slices that may still be under way when the next one is begun.
    pub slices_ahead: usize,
}

/// The rows that a window holds of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Whose.
    pub slot: Slot,
    /// How many, at least one.
    pub rows: usize,
}

/// A pass under way on the prompt lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// Its rows.
    pub rows: usize,
    /// What kind of slice comes next.
    pub kind: usize,
}

/// Where the engine stands between two slices, and the numbers it decides by.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// What windows may hold.
    pub room: Room,
    /// What things take.
    pub costs: &'a Costs,
    /// The pause that a running stream may have because of others.
    pub gap_max: Duration,
    /// What is on the prompt lane.
    pub under_way: Option<UnderWay>,
    /// Whether no slice has followed the last decode window.
    pub slice_owed: bool,
    /// Windows that may begin all the same because prompts ride in them.
    pub rides_left: usize,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Begin the planned window on the decode lane.
    Window,
    /// The same, although a slice is owed: prompts ride in it.
    Ride,
    /// Begin the planned chunk on the prompt lane.
    Chunk,
    /// Advance the pass under way on the prompt lane.
    Slice,
    /// Nobody wants or may have a row.
    Nothing,
}

/// Decides, and fills `plan` with the shares of the window or chunk that is to begin.
///
/// Reorders `demands` and crosses out whoever rides. `plan` is the caller's so that it can be used again.
pub fn schedule(demands: &mut [Demand], now: &Situation<'_>, plan: &mut Vec<Share>) -> Next {
    plan.clear();
    demands.sort_unstable_by_key(|d| (d.served, d.arrival));
    let mut window = Window::new(now);
    window.share_decode(demands, plan);
    demands.sort_unstable_by_key(|d| (left(d), d.arrival));
    if window.load.rows > 0 || now.under_way.is_some() {
        window.share_prompts(demands, plan);
    }
    // What did not find a place there goes on the prompt lane.
    let (next, pass) = match now.under_way {
        Some(pass) => (Next::Slice, pass),
        None => {
            let slice_max = (window.load.rows > 0).then(|| window.slice_max());
            let mut rows = now.chunk_rows(left_of_all(demands), slice_max);
            if window.load.rows > 0 {
                rows = rows.min(for_the_shortest(demands).max(rows.div_ceil(2)));
            }
            (Next::Chunk, UnderWay { rows, kind: 0 })
        }
    };
    match (plan.is_empty(), pass.rows) {
        (true, 0) => return Next::Nothing,
        (false, 0) => return Next::Window,
        (false, _) if window.comes_first(pass) => return Next::Window,
        (false, _) if window.rides && now.rides_left > 0 => return Next::Ride,
        _ => plan.clear(),
    }
    if next == Next::Chunk {
        share_chunk(demands, pass.rows, now.room.logits_rows, plan);
    }
    next
}

impl Situation<'_> {
    /// Rows of a chunk for the prompt lane, whose slices should take no more than `slice_max`.
    ///
    /// Of the parts of a chunk the largest is taken whose slices are sure not to. If none is, the smallest, unless that hardly helps.
    fn chunk_rows(&self, wanted: usize, slice_max: Option<Duration>) -> usize {
        let most = wanted.min(self.room.chunk_rows).min(self.room.rows);
        let Some(slice_max) = slice_max else {
            return most;
        };
        let costs = self.costs;
        let least = most.div_ceil(CHUNK_PARTS);
        let parts = (1..=CHUNK_PARTS).rev();
        let mut parts = parts.map(|part| most.saturating_mul(part).div_ceil(CHUNK_PARTS));
        let found = parts.find(|rows| costs.longest_slice(*rows) <= slice_max);
        let measured = costs.measured_slice(most).zip(costs.measured_slice(least));
        found.unwrap_or(match measured {
            Some((whole, part)) if whole <= 2 * part => most,
            _ => least,
        })
    }
}

/// Beside streams a chunk may be so many times smaller.
const CHUNK_PARTS: usize = 8;

/// Windows in which a prompt may be read to the end, rather than on the prompt lane, and windows with such prompts
/// that may follow each other without a slice between them.
pub const RIDES_MAX: usize = 4;
/// The same where the prompt lane is busy, or soon will be with another prompt.
const RIDES_RATHER: usize = 12;

/// The window of the decode lane that could be begun.
struct Window<'a> {
    now: &'a Situation<'a>,
    /// In it so far.
    load: Load,
    /// Of that, what streams have in it whatever is guessed: a row each.
    plain: Load,
    /// Rows with logits that still fit.
    logits_rows: usize,
    /// The longest that a stream in it has waited.
    waited: Duration,
    /// Whether a stream has to wait for the next one.
    left_out: bool,
    /// Whether prompts ride that need not wait for a pass to end.
    rides: bool,
    /// The pause that its streams may have.
    limit: Duration,
    /// The pause that they are given where slices are short enough.
    calm: Duration,
}

impl<'a> Window<'a> {
    fn new(now: &'a Situation<'a>) -> Self {
        Self {
            now,
            load: Load::default(),
            plain: Load::default(),
            logits_rows: now.room.logits_rows,
            waited: Duration::ZERO,
            left_out: false,
            rides: false,
            limit: now.gap_max,
            calm: now.gap_max,
        }
    }

    fn share_decode(&mut self, demands: &[Demand], plan: &mut Vec<Share>) {
        for demand in demands {
            let Want::Decode { rows } = demand.want else {
                continue;
            };
            if self.load.rows + rows <= self.now.room.decode_rows && rows <= self.logits_rows {
                self.logits_rows -= rows;
                self.waited = self.waited.max(demand.waited);
                self.plain = self.plain.with(Load::of(1, demand.first));
                self.put(demand, rows, plan);
            } else {
                self.left_out = true;
            }
        }
        // What they have not been seen to take counts against the prompts.
        let own = self.now.costs.window_typical(self.plain);
        self.limit = pause_max(self.now.gap_max, own);
        if self.load.rows > 0 {
            self.calm = calm(self.now.gap_max, own);
        }
    }

    /// Shares spare rows out to prompts and crosses out whoever is in, or need not be read on the prompt lane.
    fn share_prompts(&mut self, demands: &mut [Demand], plan: &mut Vec<Share>) {
        if self.left_out {
            return; // whose turn comes later must not wait for prompts each time
        }
        let prompts = demands.iter().filter(|d| left(d) > 0);
        let Some(reach) = prompts.map(|d| d.first).max() else {
            return;
        };
        let spare = self.spare(self.calm / 2, reach);
        let chunk = left_of_all(demands).min(self.now.room.chunk_rows);
        let all = self.now.under_way.is_none() && chunk.div_ceil(2) <= spare;
        if all && self.logits_rows > 0 {
            let first = plan.len();
            share_chunk(demands, chunk.min(spare), self.logits_rows, plan);
            let rows = plan[first..].iter().map(|share| share.rows).sum();
            self.load = self.load.with(Load::of(rows, reach));
            demands
                .iter_mut()
                .for_each(|demand| demand.want = Want::Nothing);
            return;
        }
        let mut spare = self.rides(usable(self.calm).saturating_sub(self.waited), reach);
        let prompts = demands.iter().filter(|d| left(d) > 0);
        let rides = match self.now.under_way.is_some() || prompts.count() > 1 {
            true => RIDES_RATHER,
            false => RIDES_MAX,
        };
        let most = rides.saturating_mul(spare);
        for demand in demands {
            let left = left(demand);
            let mut rows = left.min(spare);
            if rows == left && self.logits_rows == 0 {
                rows = rows.saturating_sub(1); // its last row waits for a window with logits to spare
            }
            if left <= most && rows > 0 {
                spare -= rows;
                self.logits_rows -= usize::from(rows == left);
                self.rides = true;
                self.put(demand, rows, plan);
                demand.want = Want::Nothing;
            }
        }
    }

    fn put(&mut self, demand: &Demand, rows: usize, plan: &mut Vec<Share>) {
        self.load = self.load.with(Load::of(rows, demand.first));
        plan.push(Share {
            slot: demand.slot,
            rows,
        });
    }

    /// Prompt rows, from position `reach` on, with which the window takes surely no longer than `most`.
    fn spare(&self, most: Duration, reach: usize) -> usize {
        self.room_for(most, reach, |load| self.now.costs.window(load))
    }

    /// The same, as far as is known: once they were too many, it will be known.
    fn rides(&self, most: Duration, reach: usize) -> usize {
        self.room_for(most, reach, |load| self.now.costs.window_perhaps(load))
    }

    /// What guesses take comes on top, as far as the longest pause has room for that: they have one of their own.
    fn room_for(&self, most: Duration, reach: usize, takes: impl Fn(Load) -> Duration) -> usize {
        let guesses = takes(self.load).saturating_sub(takes(self.plain));
        let room = usable_with_slices(self.limit).saturating_sub(self.waited);
        let most = most.max(room.min(most + guesses));
        let takes = |rows| takes(self.load.with(Load::of(rows, reach)));
        let mut rows = self.now.room.decode_rows.saturating_sub(self.load.rows);
        while rows > 0 && takes(rows) > most {
            rows -= rows.div_ceil(8);
        }
        rows
    }

    /// Whether it comes before the next slice of a pass: because it would end too late after it, or because prompts ride.
    ///
    /// Too late is what typically exceeds the pause that streams are given, or perhaps the longest that they may have. Guesses count in the
    /// latter only: what they bring is not the prompts' loss.
    fn comes_first(&self, pass: UnderWay) -> bool {
        let (costs, slices) = (self.now.costs, self.slices());
        let own = costs.window_typical(self.plain);
        let typically = self.waited + slices * costs.slice_typical(pass.kind, pass.rows) + own;
        let perhaps =
            self.waited + slices * costs.slice(pass.kind, pass.rows) + costs.window(self.load);
        let late = typically > usable(self.calm) || perhaps > usable(self.limit);
        !self.now.slice_owed && (self.rides || late)
    }

    /// What a slice may take, so that one and a window fit into the longest pause: smaller chunks cost a prompt more than windows between
    /// its slices. Where windows are unsteady, slices are too. Guesses get what it leaves of the pause.
    fn slice_max(&self) -> Duration {
        let pause = usable_with_slices(self.limit).div_f64(unsteady(self.now.costs, self.plain));
        let own = self.now.costs.window_typical(self.plain);
        pause.saturating_sub(own) / self.slices()
    }

    /// How many slices it waits for if one more is begun.
    fn slices(&self) -> u32 {
        u32::try_from(1 + self.now.room.slices_ahead).unwrap_or(u32::MAX)
    }
}

/// The longest pause of streams whose windows typically take `own`: where these alone take most of the target, prompts still have most of
/// the time.
fn pause_max(gap_max: Duration, own: Duration) -> Duration {
    gap_max.max(3 * own)
}

/// The pause that streams whose windows typically take `own` are given where slices are short enough: two and a half of their windows, so that they
/// keep a good part of their speed and the prompt about half of its own. No less than a small part of the target, which nobody sees.
fn calm(gap_max: Duration, own: Duration) -> Duration {
    (own * 5 / 2).max(gap_max / 12)
}

/// What a window may take because of guesses in it, where streams with a load of `plain` would have it to themselves or wait for slices of which each
/// may take `slice` before it: half the target or twice what it takes without guesses; beside slices half of what they take more, but no more than
/// they leave of the longest pause.
pub(super) fn window_max(
    costs: &Costs,
    gap_max: Duration,
    plain: Load,
    slice: Option<Duration>,
) -> Duration {
    let own = costs.window_typical(plain);
    let most = (gap_max / 2).max(2 * own);
    match slice {
        None => most,
        Some(slice) => {
            let slices = slice.max(usable(calm(gap_max, own)).saturating_sub(own));
            let room = usable_with_slices(pause_max(gap_max, own)).saturating_sub(slices);
            // who guesses counts on windows that are not interrupted
            let room = room.div_f64(unsteady(costs, plain));
            most.min(own + slices / 2).min(room)
        }
    }
}

/// How many times longer than typical ones windows of such a load take when they take long; at least 1.
fn unsteady(costs: &Costs, load: Load) -> f64 {
    let typical = costs.window_typical(load).as_secs_f64();
    let ratio = costs.window(load).as_secs_f64() / typical;
    if typical > 0.0 { ratio.max(1.0) } else { 1.0 }
}

/// A pause, less a part of it for what comes between and for what takes longer than expected.
fn usable(pause: Duration) -> Duration {
    pause * 17 / 20
}

/// The same where slices of a prompt are in it: what they take varies more, as the experts that they read do.
fn usable_with_slices(pause: Duration) -> Duration {
    pause * 3 / 4
}

/// Of a chunk's rows the oldest prompt has one in so many.
const THIRD: usize = 3;

/// Rows of a chunk with which the shortest prompt ends that is not the oldest.
fn for_the_shortest(demands: &[Demand]) -> usize {
    let prompts = demands.iter().filter(|d| left(d) > 0);
    let oldest = prompts.clone().map(|d| d.arrival).min();
    let others = prompts.filter(|d| Some(d.arrival) != oldest);
    let shortest = others.map(left).min();
    shortest.map_or(usize::MAX, |rows| {
        rows.saturating_mul(THIRD).div_ceil(THIRD - 1)
    })
}

/// Shares `rows` rows out to prompts. `demands` are sorted by the prompt rows left.
fn share_chunk(demands: &[Demand], rows: usize, mut logits_rows: usize, plan: &mut Vec<Share>) {
    let prompts = demands.iter().filter(|d| left(d) > 0);
    let Some(oldest) = prompts.clone().min_by_key(|d| d.arrival) else {
        return;
    };
    let others = prompts.filter(|d| d.slot != oldest.slot);
    let wanted = others
        .clone()
        .fold(0, |sum: usize, d| sum.saturating_add(left(d)));
    // A third, rounded up, and what the others cannot use of theirs.
    let first = left(oldest).min(rows - (rows - rows.div_ceil(THIRD)).min(wanted));
    let mut rest = rows;
    for (demand, rows_max) in std::iter::once((oldest, first)).chain(others.map(|d| (d, left(d)))) {
        let mut rows = rows_max.min(rest);
        let completes = rows > 0 && rows == left(demand);
        if completes && logits_rows == 0 {
            rows -= 1; // its last row waits for a window with logits to spare
        } else if completes {
            logits_rows -= 1;
        }
        rest -= rows;
        if rows > 0 {
            plan.push(Share {
                slot: demand.slot,
                rows,
            });
        }
    }
}

fn left(demand: &Demand) -> usize {
    match demand.want {
        Want::Prompt { left } => left,
        Want::Decode { .. } | Want::Nothing => 0,
    }
}

fn left_of_all(demands: &[Demand]) -> usize {
    let lefts = demands.iter().map(left);
    lefts.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests;
