use proptest::prelude::*;

use super::*;
use crate::engine::executor::SLICE_KINDS;

const ROOM: Room = Room {
    rows: 64,
    decode_rows: 64,
    logits_rows: 8,
    chunk_rows: 32,
    slices_ahead: 1,
};

const PASS: UnderWay = UnderWay { rows: 32, kind: 0 };

const MS: Duration = Duration::from_millis(1);

fn demand(slot: usize, want: Want) -> Demand {
    Demand {
        slot: Slot(slot as u32),
        arrival: slot as u64,
        served: 0,
        waited: Duration::ZERO,
        first: 0,
        want,
    }
}

fn situation(room: Room, costs: &Costs) -> Situation<'_> {
    Situation {
        room,
        costs,
        gap_max: 100 * MS,
        under_way: None,
        slice_owed: false,
        rides_left: 0,
    }
}

fn plan(demands: &[Demand], now: &Situation<'_>) -> (Next, Vec<Share>) {
    let mut plan = vec![Share {
        slot: Slot(9),
        rows: 9,
    }]; // of the window before
    let next = schedule(&mut demands.to_vec(), now, &mut plan);
    (next, plan)
}

/// What slots 0, 1, ... want in the order of their arrival and have waited for; what is done and the (slot, rows) they get.
fn check_in(now: &Situation<'_>, wants: &[(Want, u32)], next: Next, expected: &[(u32, usize)]) {
    let demands: Vec<_> = wants
        .iter()
        .enumerate()
        .map(|(slot, (want, ms))| Demand {
            waited: *ms * MS,
            ..demand(slot, *want)
        })
        .collect();
    let (found, plan) = plan(&demands, now);
    let plan: Vec<_> = plan
        .iter()
        .map(|share| (share.slot.0, share.rows))
        .collect();
    assert_eq!((found, &plan[..]), (next, expected), "{wants:?} in {now:?}");
}

/// Where nothing takes any time and nobody has waited.
fn check(room: Room, wants: &[Want], next: Next, expected: &[(u32, usize)]) {
    let wants: Vec<_> = wants.iter().map(|want| (*want, 0)).collect();
    check_in(&situation(room, &Costs::default()), &wants, next, expected);
}

use Next::{Chunk, Nothing, Slice, Window as Beside};
use Want::{Nothing as N, Prompt};

const D: Want = Want::Decode { rows: 1 };

fn p(left: usize) -> Want {
    Prompt { left }
}

#[test]
fn windows() {
    // Nothing to do.
    check(ROOM, &[], Nothing, &[]);
    check(ROOM, &[N, N], Nothing, &[]);
    // Decode rows first, all of them, whoever came first.
    check(ROOM, &[D, N, D], Beside, &[(0, 1), (2, 1)]);
    check(ROOM, &[p(5), D, D], Beside, &[(1, 1), (2, 1), (0, 5)]);
    // A sequence with drafts brings all its rows or stays out; rows per slot differ.
    let drafted = Want::Decode { rows: 4 };
    check(ROOM, &[D, drafted, D], Beside, &[(0, 1), (1, 4), (2, 1)]);
    let decode_rows = |decode_rows| Room {
        decode_rows,
        ..ROOM
    };
    let logits_rows = |logits_rows| Room {
        logits_rows,
        ..ROOM
    };
    check(decode_rows(4), &[D, drafted, D], Beside, &[(0, 1), (2, 1)]);
    check(logits_rows(4), &[drafted, D], Beside, &[(0, 4)]);
    // Prompts have what is left of the window, up to the chunk and if it is half a chunk at least.
    check(ROOM, &[p(100), D], Beside, &[(1, 1), (0, 32)]);
    check(decode_rows(17), &[p(100), D], Beside, &[(1, 1), (0, 16)]);
    check(
        decode_rows(17),
        &[p(9), p(99), D],
        Beside,
        &[(2, 1), (0, 6), (1, 10)],
    );
    check(decode_rows(16), &[p(29), D], Beside, &[(1, 1), (0, 15)]);
    // Else those that fit ride and the others go on their own lane.
    check(decode_rows(16), &[p(100), D], Chunk, &[(0, 32)]);
    let narrow = |wants: &[_], expected: &[_]| check(decode_rows(16), wants, Beside, expected);
    narrow(&[p(61), D, p(15)], &[(1, 1), (2, 15)]);
    narrow(&[p(100), D, p(9), p(8)], &[(1, 1), (3, 8), (2, 7)]);
    narrow(&[p(99), D, p(61), p(15)], &[(1, 1), (3, 15)]);
    check(decode_rows(1), &[p(100), D], Chunk, &[(0, 32)]);
    // A prompt that would complete beside decode rows that need all logits keeps a row back, for its own lane.
    check(logits_rows(1), &[p(5), D], Beside, &[(1, 1), (0, 4)]);
    check(logits_rows(1), &[p(1), D], Chunk, &[(0, 1)]);
}
#[test]
fn chunks() {
    // Nobody waits for a window: as many rows as fit.
    check(ROOM, &[p(100)], Chunk, &[(0, 32)]);
    check(Room { rows: 10, ..ROOM }, &[p(100)], Chunk, &[(0, 10)]);
    // A third for the oldest, and the shortest first in the rest.
    let three = |a, b, c, expected: &[(u32, usize)]| {
        check(ROOM, &[p(a), p(b), p(c)], Chunk, expected);
    };
    three(100, 90, 5, &[(0, 11), (2, 5), (1, 16)]);
    three(100, 4, 5, &[(0, 23), (1, 4), (2, 5)]);
    three(3, 90, 80, &[(0, 3), (2, 29)]);
    three(3, 4, 5, &[(0, 3), (1, 4), (2, 5)]);
    // Equal remainders: the older one.
    three(99, 20, 20, &[(0, 11), (1, 20), (2, 1)]);
    let chunk_rows = |chunk_rows| Room { chunk_rows, ..ROOM };
    check(chunk_rows(1), &[p(9), p(1)], Chunk, &[(0, 1)]);
    check(chunk_rows(3), &[p(9), p(9)], Chunk, &[(0, 1), (1, 2)]);
    // A prompt that would complete without room for its logits keeps a row back.
    let one = Room {
        logits_rows: 1,
        ..ROOM
    };
    check(one, &[p(5), p(6)], Chunk, &[(0, 5), (1, 5)]);
    check(one, &[p(5), p(1)], Chunk, &[(0, 5)]);
    // The largest numbers there are.
    let all = Room {
        rows: usize::MAX,
        decode_rows: usize::MAX,
        logits_rows: usize::MAX,
        chunk_rows: usize::MAX,
        slices_ahead: 1,
    };
    let third = usize::MAX / 3;
    check(
        all,
        &[p(usize::MAX); 2],
        Chunk,
        &[(0, third), (1, 2 * third)],
    );
}

/// Rows that attend to nothing.
fn load(rows: usize) -> Load {
    Load { rows, attended: 0 }
}

/// Slices and windows, as (rows, ms).
fn costs(slices: &[(usize, u32)], windows: &[(usize, u32)]) -> Costs {
    let mut costs = Costs::default();
    for (rows, ms) in slices {
        costs.note_slice(0, *rows, *ms * MS);
    }
    for (rows, ms) in windows {
        costs.note_window(load(*rows), *ms * MS);
    }
    costs
}

#[test]
fn a_window_comes_before_the_slice_that_would_make_it_late() {
    let quick = costs(&[(32, 4)], &[(1, 10)]);
    let free = situation(ROOM, &quick);
    let busy = Situation {
        under_way: Some(PASS),
        ..free
    };
    // 85 % of two and a half windows, less one and two slices.
    check_in(&busy, &[(D, 3)], Slice, &[]);
    check_in(&busy, &[(D, 4)], Beside, &[(0, 1)]);
    check_in(&busy, &[(D, 0), (D, 4)], Beside, &[(0, 1), (1, 1)]);
    check_in(&busy, &[(N, 999)], Slice, &[]);
    // So it is before a chunk is begun: here one whose rows are too many to ride.
    let narrow = Situation {
        room: Room {
            decode_rows: 4,
            ..ROOM
        },
        ..free
    };
    check_in(&narrow, &[(D, 3), (p(99), 0)], Chunk, &[(1, 32)]);
    check_in(&narrow, &[(D, 4), (p(99), 0)], Beside, &[(0, 1)]);
    // But after a window comes a slice, however late it is.
    for now in [busy, narrow] {
        let owed = Situation {
            slice_owed: true,
            ..now
        };
        let next = if now.under_way.is_some() {
            Slice
        } else {
            Chunk
        };
        let chunk: &[_] = if now.under_way.is_some() {
            &[]
        } else {
            &[(1, 32)]
        };
        check_in(&owed, &[(D, 999), (p(99), 0)], next, chunk);
    }
    // Where nothing is to be read, there is nothing to owe.
    let owed = Situation {
        slice_owed: true,
        ..free
    };
    check_in(&owed, &[(D, 0)], Beside, &[(0, 1)]);
    let last_slice = |slice, window, waited, gap_max: u32| {
        let costs = costs(&[(32, slice)], &[(1, window)]);
        let busy = Situation {
            costs: &costs,
            gap_max: gap_max * MS,
            ..busy
        };
        check_in(&busy, &[(D, waited)], Slice, &[]);
        check_in(&busy, &[(D, waited + 1)], Beside, &[(0, 1)]);
    };
    // If that is less than a twelfth of the longest pause, that.
    last_slice(1, 1, 67, 1000);
    // Windows that alone take most of that.
    last_slice(5, 80, 80, 100);
}

#[test]
fn slices_of_several_kinds_fill_a_pause() {
    let mut costs = costs(&[(32, 7)], &[(1, 10)]);
    costs.note_slice(1, 32, 2 * MS);
    // 85 % of two and a half windows, less a window
    for (kind, room) in [(0, 4), (1, 9), (2, 4)] {
        let now = Situation {
            under_way: Some(UnderWay { rows: 32, kind }),
            room: Room {
                slices_ahead: 0,
                ..ROOM
            },
            ..situation(ROOM, &costs)
        };
        check_in(&now, &[(D, room)], Slice, &[]);
        check_in(&now, &[(D, room + 1)], Beside, &[(0, 1)]);
    }
}

#[test]
fn guesses_take_slices_only_where_the_longest_pause_would_be_exceeded() {
    let costs = costs(&[(32, 4)], &[(1, 10), (8, 40)]);
    let busy = |gap_max: u32| Situation {
        under_way: Some(PASS),
        gap_max: gap_max * MS,
        ..situation(ROOM, &costs)
    };
    let guesses = Want::Decode { rows: 8 };
    for want in [D, guesses] {
        check_in(&busy(100), &[(want, 3)], Slice, &[]);
    }
    check_in(&busy(100), &[(guesses, 4)], Beside, &[(0, 8)]);
    // 85 % of it, less two slices and the window
    check_in(&busy(55), &[(D, 0)], Slice, &[]);
    check_in(&busy(57), &[(guesses, 0)], Slice, &[]);
    check_in(&busy(55), &[(guesses, 0)], Beside, &[(0, 8)]);
}

#[test]
fn guesses_get_what_slices_leave_of_the_pause() {
    let check = |windows: &[u32], gap_max: u32, slice: Option<u32>, expected_us: u32| {
        let mut costs = Costs::default();
        windows
            .iter()
            .for_each(|ms| costs.note_window(load(1), *ms * MS));
        let slice = slice.map(|ms| ms * MS);
        let found = window_max(&costs, gap_max * MS, load(1), slice);
        assert_eq!(found.as_micros(), u128::from(expected_us), "{windows:?}");
    };
    // alone: half the target, or two windows
    check(&[10], 100, None, 50_000);
    check(&[60], 100, None, 120_000);
    // beside slices: 75 % of the target, or of three windows, less a slice, or less as many as fit beside two and a half windows
    check(&[20], 100, Some(40), 35_000);
    check(&[60], 100, Some(40), 67_500);
    check(&[10], 100, Some(99), 0);
    // no more than half of what slices take on top of a window: one that is long, or what fits beside two and a half windows
    check(&[10], 100, Some(40), 30_000);
    check(&[10], 100, Some(4), 15_625);
    // less where the second longest window takes half as much again as a typical one
    check(&[10, 10, 10, 15, 15], 100, Some(45), 20_000);
    // before anything is known
    check(&[], 100, Some(40), 20_000);
}

#[test]
fn short_prompts_do_not_wait_for_the_end_of_a_pass() {
    let costs = costs(&[(32, 5)], &[(1, 10), (16, 20)]);
    let room = Room {
        decode_rows: 16,
        ..ROOM
    };
    let busy = Situation {
        under_way: Some(PASS),
        ..situation(room, &costs)
    };
    check_in(&busy, &[(p(16), 0)], Beside, &[(0, 16)]);
    check_in(&busy, &[(p(7), 0), (p(5), 0)], Beside, &[(1, 5), (0, 7)]);
    // In a few windows, if one is not enough.
    check_in(&busy, &[(p(192), 0)], Beside, &[(0, 16)]);
    check_in(&busy, &[(p(64), 0), (p(9), 0)], Beside, &[(1, 9), (0, 7)]);
    // Nor if a longer one comes with it, which will be on the lane.
    let free = Situation {
        under_way: None,
        ..busy
    };
    check_in(&free, &[(D, 1), (p(60), 0)], Beside, &[(0, 1), (1, 15)]);
    check_in(&free, &[(D, 1), (p(61), 0)], Chunk, &[(1, 32)]);
    let longer = [(D, 1), (p(199), 0), (p(61), 0)];
    check_in(&free, &longer, Beside, &[(0, 1), (2, 15)]);
    // The streams beside it bear it as long as they need not wait too long: 85 % of two and a half windows.
    check_in(&busy, &[(D, 1), (p(9), 0)], Beside, &[(0, 1), (1, 9)]);
    check_in(&busy, &[(D, 2), (p(4), 0)], Beside, &[(0, 1), (1, 4)]);
    check_in(&busy, &[(D, 12), (p(4), 0)], Beside, &[(0, 1)]);
    // Guesses take nothing of that.
    let guesses = Want::Decode { rows: 4 };
    check_in(&busy, &[(guesses, 7), (p(4), 0)], Beside, &[(0, 4), (1, 4)]);
    // A few times in a row, then a slice comes between.
    let owed = |rides_left| Situation {
        slice_owed: true,
        rides_left,
        ..busy
    };
    check_in(
        &owed(1),
        &[(D, 1), (p(9), 0)],
        Next::Ride,
        &[(0, 1), (1, 9)],
    );
    check_in(&owed(0), &[(D, 1), (p(9), 0)], Slice, &[]);
    check_in(&owed(1), &[(D, 99)], Slice, &[]);
    // Others wait for their turn on the lane.
    check_in(&busy, &[(p(193), 999)], Slice, &[]);
    check_in(&busy, &[(p(193), 0), (D, 99)], Beside, &[(1, 1)]);
    // Without logits to spare, a row is kept back.
    let costly = Situation {
        room: Room {
            logits_rows: 1,
            ..room
        },
        ..busy
    };
    check_in(&costly, &[(p(5), 0), (D, 0)], Beside, &[(1, 1), (0, 4)]);
    check_in(&costly, &[(p(1), 0), (D, 99)], Beside, &[(1, 1)]);
}

#[test]
fn prompts_ride_within_half_of_the_pause() {
    let check = |windows: &[(usize, u32)], prompt, next, expected: &[_]| {
        let costs = costs(&[], windows);
        check_in(
            &situation(ROOM, &costs),
            &[(D, 0), (p(prompt), 0)],
            next,
            expected,
        );
    };
    check(&[(1, 20), (64, 25)], 99, Beside, &[(0, 1), (1, 32)]);
    check(
        &[(1, 20), (64, 26), (30, 25)],
        99,
        Beside,
        &[(0, 1), (1, 27)],
    );
    // Not measured: no more than in proportion.
    check(&[(1, 6)], 2, Beside, &[(0, 1), (1, 1)]);
    // Short ones ride with what is left of the pause, as far as four windows go.
    check(&[(1, 10)], 3, Beside, &[(0, 1), (1, 1)]);
    check(&[(1, 10)], 4, Beside, &[(0, 1), (1, 1)]);
    check(&[(1, 10)], 5, Beside, &[(0, 1)]);
    check(&[(1, 46)], 1, Beside, &[(0, 1), (1, 1)]);
    // Slow windows have a longer pause.
    check(&[(1, 80), (2, 80)], 1, Beside, &[(0, 1), (1, 1)]);
}

#[test]
fn chunks_are_smaller_where_slices_take_long() {
    let narrow = Room {
        decode_rows: 1,
        ..ROOM
    };
    let check = |slices: &[(usize, u32)], rows| {
        let costs = costs(slices, &[]);
        let now = Situation {
            slice_owed: true,
            ..situation(narrow, &costs)
        };
        check_in(&now, &[(D, 0), (p(99), 0)], Chunk, &[(1, rows)]);
        check_in(&now, &[(N, 0), (p(99), 0)], Chunk, &[(1, 32)]);
    };
    check(&[], 32);
    check(&[(32, 37)], 32);
    check(&[(32, 38)], 4);
    // By bounds: more rows take no more than in proportion.
    check(&[(4, 9)], 16);
    check(&[(4, 9), (16, 18)], 32);
    // Smaller parts, and then larger ones again.
    check(&[(4, 9), (16, 36), (32, 72)], 16);
    check(&[(4, 9), (16, 30)], 20);
    check(&[(4, 9), (24, 36)], 24);
    check(&[(4, 9), (24, 36), (22, 28), (23, 28), (24, 28)], 32);
    check(&[(4, 60)], 4);
    check(&[(4, 60), (32, 121)], 4);
    check(&[(4, 60), (32, 120)], 32);
}

#[test]
fn chunks_are_smaller_beside_unsteady_windows() {
    let narrow = Room {
        decode_rows: 1,
        ..ROOM
    };
    let check = |windows: &[u32], rows| {
        let windows: Vec<_> = windows.iter().map(|ms| (1, *ms)).collect();
        let costs = costs(&[(8, 8), (16, 16), (32, 30)], &windows);
        let now = Situation {
            slice_owed: true,
            ..situation(narrow, &costs)
        };
        check_in(&now, &[(D, 0), (p(99), 0)], Chunk, &[(1, rows)]);
    };
    // two slices in 75 % of the pause, less a window
    check(&[10, 10, 10, 10, 10], 32);
    // in two thirds of that, where the second longest window takes half as much again as a typical one
    check(&[10, 10, 10, 15, 15], 16);
}

#[test]
fn chunks_are_smaller_where_a_short_prompt_ends() {
    let costs = costs(&[(32, 9)], &[(1, 10)]);
    let narrow = Room {
        decode_rows: 1,
        ..ROOM
    };
    let owed = Situation {
        slice_owed: true,
        ..situation(narrow, &costs)
    };
    let check = |stream, short, expected: &[_]| {
        check_in(
            &owed,
            &[(stream, 0), (p(99), 0), (p(short), 0)],
            Chunk,
            expected,
        );
    };
    check(D, 30, &[(1, 11), (2, 21)]);
    check(D, 12, &[(1, 6), (2, 12)]);
    // not beyond half
    check(D, 2, &[(1, 14), (2, 2)]);
    // nor where nobody waits
    check(N, 12, &[(1, 20), (2, 12)]);
}

#[test]
fn too_many_decoders_take_turns() {
    let room = Room {
        decode_rows: 2,
        ..ROOM
    };
    let mut demands: Vec<_> = (0..5).map(|slot| demand(slot, D)).collect();
    let mut counts = [0; 5];
    let mut served = 0;
    for _window in 0..50 {
        let (_, shares) = plan(&demands, &situation(room, &Costs::default()));
        for share in shares {
            served += 1;
            let slot = share.slot.0 as usize;
            counts[slot] += 1;
            demands[slot].served = served;
        }
    }
    assert_eq!(counts, [20; 5]);
}

fn wants() -> impl Strategy<Value = Vec<(Want, u32)>> {
    let want = prop_oneof![
        (1usize..5).prop_map(|rows| Want::Decode { rows }),
        (1usize..300).prop_map(|left| Want::Prompt { left }),
        Just(Want::Nothing),
    ];
    prop::collection::vec((want, 0u32..200), 0..12)
}

fn room() -> impl Strategy<Value = Room> {
    (1usize..200, 1usize..200, 1usize..12, 1usize..200).prop_map(
        |(rows, decode_rows, logits_rows, chunk_rows)| Room {
            rows,
            decode_rows,
            logits_rows,
            chunk_rows,
            slices_ahead: rows % 2,
        },
    )
}

fn measured() -> impl Strategy<Value = Costs> {
    let times = || prop::collection::vec((1usize..300, 0u32..120), 0..6);
    (times(), times()).prop_map(|(slices, windows)| costs(&slices, &windows))
}

fn is_window(next: Next) -> bool {
    matches!(next, Beside | Next::Ride)
}

/// A window or chunk holds what is wanted, and fits.
fn check_plan(wants: &[(Want, u32)], room: Room, next: Next, plan: &[Share]) {
    let (mut all, mut prompt, mut logits) = (0, 0, 0);
    for (i, share) in plan.iter().enumerate() {
        let twice = plan[..i].iter().any(|other| other.slot == share.slot);
        assert!(!twice, "twice in {plan:?}");
        all += share.rows;
        match wants[share.slot.0 as usize].0 {
            Want::Nothing => panic!("rows for nobody in {plan:?}"),
            Want::Decode { rows } => {
                assert_eq!((rows, true), (share.rows, is_window(next)));
                logits += rows;
            }
            Want::Prompt { left } => {
                assert!((1..=left).contains(&share.rows));
                prompt += share.rows;
                logits += usize::from(share.rows == left);
            }
        }
    }
    let rows_max = if is_window(next) {
        room.decode_rows
    } else {
        room.rows
    };
    assert!(
        all <= rows_max && logits <= room.logits_rows,
        "{plan:?} in {room:?}"
    );
    // Beside a pass, short prompts are not kept to a chunk.
    assert!(prompt <= room.chunk_rows.max(room.decode_rows), "{plan:?}");
    assert!(is_window(next) || prompt <= room.chunk_rows, "{plan:?}");
    assert_eq!(plan.is_empty(), matches!(next, Nothing | Slice));
}

proptest! {
    #[test]
    fn any_demands_in_any_situation(
        wants in wants(), room in room(), costs in measured(),
        pass_rows in prop::option::of(1usize..200), slice_owed in any::<bool>(), rides_left in 0usize..2,
    ) {
        let under_way = pass_rows.map(|rows| UnderWay { rows, kind: rows % SLICE_KINDS });
        let now = Situation { under_way, slice_owed, rides_left, ..situation(room, &costs) };
        let demands: Vec<_> = wants
            .iter()
            .enumerate()
            .map(|(i, (want, ms))| Demand { waited: *ms * MS, ..demand(i, *want) })
            .collect();
        let (next, plan) = plan(&demands, &now);
        check_plan(&wants, room, next, &plan);
        let can_decode = |want: &Want| match want {
            Want::Decode { rows } => *rows <= room.decode_rows.min(room.logits_rows),
            _ => false,
        };
        let decodes = wants.iter().any(|(want, _)| can_decode(want));
        let reads = wants.iter().any(|(want, _)| matches!(want, Prompt { .. }));
        // Somebody gets on whenever anybody could.
        prop_assert_eq!(next == Nothing, !decodes && !reads && pass_rows.is_none());
        // A lane holds one pass.
        prop_assert!(next != Chunk || pass_rows.is_none());
        prop_assert!(next != Slice || pass_rows.is_some());
        // After a window the pass gets on; without one to wait for, it always does.
        let rides = plan.iter().any(|share| matches!(wants[share.slot.0 as usize].0, Prompt { .. }));
        prop_assert!(pass_rows.is_none() || !slice_owed || matches!(next, Slice | Next::Ride));
        prop_assert!(pass_rows.is_none() || decodes || reads || next == Slice);
        // Whoever has waited too long gets a window, unless a slice is owed.
        let slowest = (0..64).map(|rows| costs.window(load(rows))).max();
        let limit = now.gap_max.max(3 * slowest.unwrap_or_default());
        let late = wants.iter().any(|(want, ms)| matches!(want, Want::Decode { .. }) && *ms * MS > limit);
        let rows: usize = wants
            .iter()
            .map(|(want, _)| if let Want::Decode { rows } = want { *rows } else { 0 })
            .sum();
        let fit = rows <= room.decode_rows.min(room.logits_rows);
        prop_assert!(!late || !fit || slice_owed || next == Beside);
        prop_assert!(next != Next::Ride || rides && slice_owed && rides_left > 0);
    }

    /// Hours of one stream and an endless prompt, with slices and windows that always take the same.
    #[test]
    fn both_lanes_get_on(slice in 1u32..60, window in 1u32..300) {
        let costs = costs(&[(32, slice)], &[(1, window)]);
        let mut now = Situation { under_way: Some(PASS), ..situation(ROOM, &costs) };
        let (mut waited, mut worst, mut slices, mut windows) = (0, 0, 0, 0);
        for _ in 0..1000 {
            let demands = [Demand { waited: waited * MS, ..demand(0, D) }];
            match plan(&demands, &now).0 {
                Next::Slice => {
                    (slices, waited, now.slice_owed) = (slices + 1, waited + slice, false);
                }
                Next::Window => {
                    worst = worst.max(waited + window);
                    (windows, waited, now.slice_owed) = (windows + 1, 0, true);
                }
                other => panic!("{other:?}"),
            }
        }
        prop_assert!(windows > 0 && slices >= windows);
        prop_assert!(worst <= 100.max(3 * window).max(slice + window), "{worst}");
    }
}
