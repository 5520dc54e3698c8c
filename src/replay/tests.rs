use proptest::prelude::*;

use super::{capacity::sweep, *};
use crate::{
    backend::ExpertLayer,
    trace::{SpanRows, reader::Choices},
};

/// Two layers of experts that differ in size: 8 of 10 bytes, of which a row uses 2, and 5 of 7 bytes, of which it uses 1.
fn header() -> Header {
    let layer = |layer, experts, used, expert_bytes| ExpertLayer {
        layer,
        experts,
        used,
        expert_bytes,
    };
    Header {
        name: "m".to_owned(),
        common_bytes: 100,
        layers: vec![layer(0, 8, 2, 10), layer(1, 5, 1, 7)],
    }
}

/// A replay of windows: rows, each with whether it decodes and its ids in either layer.
fn replay(windows: &[Vec<(bool, [u16; 2], u16)>]) -> Replay {
    let header = header();
    let sizes = ExpertSizes::new(&header.layers);
    let mut visits = Visits::default();
    for rows in windows {
        let spans: Vec<SpanRows> = rows
            .iter()
            .map(|(decode, ..)| SpanRows {
                slot: 0,
                rows: 1,
                decode: *decode,
            })
            .collect();
        let first: Vec<u16> = rows.iter().flat_map(|(_, ids, _)| *ids).collect();
        let second: Vec<u16> = rows.iter().map(|(.., id)| *id).collect();
        for (layer, ids) in [(0, &first), (1, &second)] {
            let choices = Choices {
                layer,
                spans: &spans,
                ids,
            };
            visits.push(&choices, header.layers[layer].used, &sizes);
        }
    }
    Replay {
        header,
        sizes,
        visits,
        ending: Ending::default(),
    }
}

#[test]
fn choices_are_counted_by_row_and_bytes_by_window() {
    // two streams and a prompt row share expert 1; the prompt alone wants expert 3
    let replay = replay(&[
        vec![(true, [1, 2], 0), (true, [1, 4], 0), (false, [1, 3], 1)],
        vec![(true, [1, 2], 1)],
    ]);
    let got = replay.run_named(PolicyName::Lru, replay.header.experts_bytes());
    let expected = Tally {
        decode_choices: 9,
        decode_hits: 3.0,
        prompt_choices: 3,
        prompt_hits: 0.0,
        decode_held_bytes: 27,
        decode_missed_bytes: 37,
        prompt_missed_bytes: 17,
    };
    assert_eq!(got, expected);
    assert_eq!((replay.decode_tokens(), replay.prompt_tokens()), (3.0, 1.0));
    let speeds = Speeds {
        fast: 227.0,
        link: 37.0,
    };
    // two windows: (2 x 100 + 27) / 227 + 37 / 37 seconds for three tokens
    assert_eq!(replay.tokens_per_second(&got, speeds), Some(1.5));
    let none = replay.no_cache();
    assert_eq!((none.decode_hits, none.decode_missed_bytes), (0.0, 64));
}

#[test]
fn the_oracle_keeps_what_comes_soonest() {
    // layer 0 only matters: 1 2 | 3 4 | 1 2 | 3 4 in a circle, room for half
    let circle = |ids| vec![(true, ids, 0)];
    let replay = replay(&[
        circle([1, 2]),
        circle([3, 4]),
        circle([1, 2]),
        circle([3, 4]),
    ]);
    let capacity = 27;
    assert_eq!(replay.run_named(PolicyName::Lru, capacity).decode_hits, 3.0);
    let oracle = replay.oracle(capacity);
    // layer 1's expert stays; of layer 0's, 1 and 2 stay once, or 3 and 4
    assert_eq!((oracle.decode_hits, oracle.decode_missed_bytes), (5.0, 67));
}

#[test]
fn capacities_are_sizes_or_shares() {
    let header = header();
    let bytes = |written: &str| written.parse::<Capacity>().unwrap().bytes(&header).unwrap();
    assert_eq!(
        (bytes("100%"), bytes("50%"), bytes("27"), bytes("1KiB")),
        (115, 58, 27, 1024)
    );
    let check = |written: &str, expected: &str| {
        let error = written.parse::<Capacity>().and_then(|it| it.bytes(&header));
        let error = error.expect_err(written).to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("26", "27 bytes or 23.5% of all");
    check("22%", "(26 bytes)");
    assert_eq!(bytes("23.5%"), 28);
    check("0%", "at most 100%, got 0%");
    check("101%", "got 101%");
    check("NaN%", "more than 0%");
    check("much", "8GiB");
    let sweep = sweep(&header);
    assert_eq!((sweep[0], sweep[sweep.len() - 1]), (27, 115));
    assert!(sweep.is_sorted());
}

fn windows() -> impl Strategy<Value = Vec<Vec<(bool, [u16; 2], u16)>>> {
    let ids = (0_u16..8, 1_u16..8).prop_map(|(id, step)| [id, (id + step) % 8]);
    let row = (prop::bool::weighted(0.7), ids, 0_u16..5);
    prop::collection::vec(prop::collection::vec(row, 1..4), 1..60)
}

proptest! {
    #[test]
    fn nobody_beats_the_oracle(windows in windows(), capacity in 27_u64..=115) {
        let replay = replay(&windows);
        let speeds = Speeds { fast: 50.0, link: 5.0 };
        let (oracle, none) = (replay.oracle(capacity), replay.no_cache());
        let speed = |tally: &Tally| replay.tokens_per_second(tally, speeds).unwrap_or_default();
        for policy in PolicyName::ALL {
            let tally = replay.run_named(policy, capacity);
            prop_assert!(oracle.decode_missed_bytes <= tally.decode_missed_bytes, "{policy:?}");
            prop_assert!(speed(&oracle) >= speed(&tally) && speed(&tally) >= speed(&none), "{policy:?}");
            prop_assert_eq!(
                tally.decode_held_bytes + tally.decode_missed_bytes,
                none.decode_missed_bytes
            );
        }
    }

    #[test]
    fn with_room_for_everything_only_the_first_use_misses(windows in windows()) {
        let replay = replay(&windows);
        let everybody: std::collections::BTreeSet<_> =
            replay.visits.iter().flatten().map(|wanted| wanted.expert).collect();
        let cold: u64 = everybody.iter().map(|expert| replay.sizes.bytes(*expert)).sum();
        let missed = |tally: Tally| tally.decode_missed_bytes + tally.prompt_missed_bytes;
        let capacity = replay.header.experts_bytes();
        for policy in PolicyName::ALL {
            prop_assert_eq!(missed(replay.run_named(policy, capacity)), cold, "{:?}", policy);
        }
        prop_assert_eq!(missed(replay.oracle(capacity)), cold);
    }
}
