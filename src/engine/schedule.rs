//! Which rows the next window holds: a pure function of what every sequence wants and what there is room for.
//!
//! Knows neither clocks, outboxes nor tokens. A sequence without credit wants nothing and so is not here.
//!
//! 1. Decode rows first: all of a sequence's rows or none. If not all sequences fit, those served longest ago go first.
//! 2. The room left, up to `chunk_rows`, is offered to prompts. The oldest is sure of half of it, so it always gets on; the
//!    others share the other half, shortest remainder first, so a short prompt does not wait for a long one. What one side
//!    leaves goes to the other.

use super::{executor::Slot, sequence::Want};

/// What one sequence wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Whose.
    pub slot: Slot,
    /// Grows from request to request.
    pub arrival: u64,
    /// When it last had a share; grows from share to share. 0 if it never had.
    pub served: u64,
    /// The rows it could use.
    pub want: Want,
}

/// What a window may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Rows.
    pub rows: usize,
    /// Rows with logits.
    pub logits_rows: usize,
    /// Prompt rows, of all prompts together.
    pub chunk_rows: usize,
}

/// The rows that a window holds of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Whose.
    pub slot: Slot,
    /// How many, at least one.
    pub rows: usize,
}

/// Fills `plan` with the shares of the next window; it stays empty if nobody wants or may have a row.
///
/// Reorders `demands`. `plan` is the caller's so that it can be used again.
pub fn schedule(demands: &mut [Demand], mut room: Room, plan: &mut Vec<Share>) {
    plan.clear();
    demands.sort_unstable_by_key(|d| (d.served, d.arrival));
    share_decode(demands, &mut room, plan);
    demands.sort_unstable_by_key(|d| (left(d), d.arrival));
    share_prompts(demands, room, plan);
}

fn share_decode(demands: &[Demand], room: &mut Room, plan: &mut Vec<Share>) {
    for demand in demands {
        let Want::Decode { rows } = demand.want else {
            continue;
        };
        if rows <= room.rows.min(room.logits_rows) {
            room.rows -= rows;
            room.logits_rows -= rows;
            plan.push(Share {
                slot: demand.slot,
                rows,
            });
        }
    }
}

/// `demands` are sorted by the prompt rows left.
fn share_prompts(demands: &[Demand], mut room: Room, plan: &mut Vec<Share>) {
    let prompts = demands.iter().filter(|d| left(d) > 0);
    let Some(oldest) = prompts.clone().min_by_key(|d| d.arrival) else {
        return;
    };
    let others = prompts.filter(|d| d.slot != oldest.slot);
    let budget = room.rows.min(room.chunk_rows);
    let wanted = others
        .clone()
        .fold(0, |sum: usize, d| sum.saturating_add(left(d)));
    // Half, rounded up, and what the others cannot use of theirs.
    let first = left(oldest).min(budget - (budget / 2).min(wanted));
    let mut rest = budget;
    for (demand, rows_max) in std::iter::once((oldest, first)).chain(others.map(|d| (d, left(d)))) {
        let mut rows = rows_max.min(rest);
        let completes = rows > 0 && rows == left(demand);
        if completes && room.logits_rows == 0 {
            rows -= 1; // its last row waits for a window with logits to spare
        } else if completes {
            room.logits_rows -= 1;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOM: Room = Room {
        rows: 64,
        logits_rows: 8,
        chunk_rows: 32,
    };

    fn demand(slot: usize, want: Want) -> Demand {
        Demand {
            slot: Slot(slot as u32),
            arrival: slot as u64,
            served: 0,
            want,
        }
    }

    fn plan(demands: &[Demand], room: Room) -> Vec<Share> {
        let mut plan = vec![Share {
            slot: Slot(9),
            rows: 9,
        }]; // of the window before
        schedule(&mut demands.to_vec(), room, &mut plan);
        plan
    }

    /// What slots 0, 1, ... want in the order of their arrival, and the (slot, rows) they get.
    fn check(room: Room, wants: &[Want], expected: &[(u32, usize)]) {
        let demands: Vec<_> = wants
            .iter()
            .enumerate()
            .map(|(slot, want)| demand(slot, *want))
            .collect();
        let plan: Vec<_> = plan(&demands, room)
            .iter()
            .map(|share| (share.slot.0, share.rows))
            .collect();
        assert_eq!(plan, expected, "{wants:?} in {room:?}");
    }

    #[test]
    fn shares() {
        use Want::{Nothing as N, Prompt};
        let p = |left| Prompt { left };
        let d = Want::Decode { rows: 1 };
        // Nothing to do.
        check(ROOM, &[], &[]);
        check(ROOM, &[N, N], &[]);
        // Decode rows first, all of them, whoever came first.
        check(ROOM, &[d, N, d], &[(0, 1), (2, 1)]);
        check(ROOM, &[p(5), d, d], &[(1, 1), (2, 1), (0, 5)]);
        // A sequence with drafts brings all its rows or stays out; rows per slot differ.
        let drafted = Want::Decode { rows: 4 };
        check(ROOM, &[d, drafted, d], &[(0, 1), (1, 4), (2, 1)]);
        check(
            Room { rows: 4, ..ROOM },
            &[d, drafted, d],
            &[(0, 1), (2, 1)],
        );
        check(
            Room {
                logits_rows: 4,
                ..ROOM
            },
            &[drafted, d],
            &[(0, 4)],
        );
        // A prompt has what is left of the window, up to the chunk.
        check(ROOM, &[p(100)], &[(0, 32)]);
        check(Room { rows: 10, ..ROOM }, &[p(100), d], &[(1, 1), (0, 9)]);
        check(Room { rows: 1, ..ROOM }, &[p(100), d], &[(1, 1)]);
        // Half for the oldest, and the shortest first in the other half.
        check(ROOM, &[p(100), p(90), p(5)], &[(0, 16), (2, 5), (1, 11)]);
        check(ROOM, &[p(100), p(4), p(5)], &[(0, 23), (1, 4), (2, 5)]);
        check(ROOM, &[p(3), p(90), p(80)], &[(0, 3), (2, 29)]);
        check(ROOM, &[p(3), p(4), p(5)], &[(0, 3), (1, 4), (2, 5)]);
        check(
            Room {
                chunk_rows: 1,
                ..ROOM
            },
            &[p(9), p(1)],
            &[(0, 1)],
        );
        check(
            Room {
                chunk_rows: 3,
                ..ROOM
            },
            &[p(9), p(9)],
            &[(0, 2), (1, 1)],
        );
        // Equal remainders: the older one.
        check(ROOM, &[p(99), p(20), p(20)], &[(0, 16), (1, 16)]);
        // A prompt that would complete without room for its logits keeps a row back.
        check(
            Room {
                logits_rows: 1,
                ..ROOM
            },
            &[p(5), d],
            &[(1, 1), (0, 4)],
        );
        check(
            Room {
                logits_rows: 1,
                ..ROOM
            },
            &[p(5), p(6)],
            &[(0, 5), (1, 5)],
        );
        check(
            Room {
                logits_rows: 1,
                ..ROOM
            },
            &[p(1), d],
            &[(1, 1)],
        );
        // The largest numbers there are.
        let all = Room {
            rows: usize::MAX,
            logits_rows: usize::MAX,
            chunk_rows: usize::MAX,
        };
        check(
            all,
            &[p(usize::MAX), p(usize::MAX)],
            &[(0, usize::MAX / 2 + 1), (1, usize::MAX / 2)],
        );
    }

    #[test]
    fn too_many_decoders_take_turns() {
        let room = Room { rows: 2, ..ROOM };
        let mut demands: Vec<_> = (0..5)
            .map(|slot| demand(slot, Want::Decode { rows: 1 }))
            .collect();
        let mut counts = [0; 5];
        let shares = |demands: &[Demand]| plan(demands, room).into_iter();
        let mut served = 0;
        for _window in 0..50 {
            for share in shares(&demands) {
                served += 1;
                let slot = share.slot.0 as usize;
                counts[slot] += 1;
                demands[slot].served = served;
            }
        }
        assert_eq!(counts, [20; 5]);
    }

    fn wants() -> impl Strategy<Value = Vec<Want>> {
        let want = prop_oneof![
            (1usize..5).prop_map(|rows| Want::Decode { rows }),
            (1usize..300).prop_map(|left| Want::Prompt { left }),
            Just(Want::Nothing),
        ];
        prop::collection::vec(want, 0..12)
    }

    proptest! {
        #[test]
        fn any_demands_in_any_room(
            wants in wants(), rows in 1usize..200, logits_rows in 1usize..12, chunk_rows in 1usize..200,
        ) {
            let room = Room { rows, logits_rows, chunk_rows };
            let demands: Vec<_> = wants.iter().enumerate().map(|(i, want)| demand(i, *want)).collect();
            let plan = plan(&demands, room);
            let (mut all, mut prompt, mut logits) = (0, 0, 0);
            for (i, share) in plan.iter().enumerate() {
                assert!(plan[..i].iter().all(|other| other.slot != share.slot), "twice in {plan:?}");
                all += share.rows;
                match wants[share.slot.0 as usize] {
                    Want::Nothing => panic!("rows for nobody in {plan:?}"),
                    Want::Decode { rows } => {
                        assert_eq!(rows, share.rows);
                        logits += rows;
                    }
                    Want::Prompt { left } => {
                        assert!((1..=left).contains(&share.rows));
                        prompt += share.rows;
                        logits += usize::from(share.rows == left);
                    }
                }
            }
            assert!(all <= rows && prompt <= chunk_rows && logits <= logits_rows, "{plan:?} in {room:?}");
            // Somebody gets on whenever anybody could.
            let possible = |want: &Want| match want {
                Want::Decode { rows } => *rows <= room.rows.min(room.logits_rows),
                Want::Prompt { .. } => true,
                Want::Nothing => false,
            };
            assert_eq!(plan.is_empty(), !wants.iter().any(possible), "{wants:?} in {room:?}");
        }
    }
}
