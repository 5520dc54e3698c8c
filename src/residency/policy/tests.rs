use super::*;
use crate::{
    backend::ExpertLayer,
    residency::{ExpertSizes, Residents},
};

/// A layer of ten experts of this size.
fn layer(layer: usize, expert_bytes: u64) -> ExpertLayer {
    ExpertLayer {
        layer,
        experts: 10,
        used: 1,
        expert_bytes,
    }
}

fn decode(expert: u32) -> Wanted {
    Wanted {
        expert: ExpertId(expert),
        decode_rows: 1,
        prompt_rows: 0,
    }
}

fn prompt(expert: u32) -> Wanted {
    Wanted {
        expert: ExpertId(expert),
        decode_rows: 0,
        prompt_rows: 100,
    }
}

/// The visits find so many residents, where `capacity` bytes hold experts of 10 (the first ten) and of 30 bytes.
fn check(
    policy: impl FnOnce(&ExpertSizes) -> Box<dyn Policy>,
    capacity: u64,
    visits: &[(&[Wanted], usize)],
) {
    let sizes = ExpertSizes::new(&[layer(0, 10), layer(1, 30)]);
    let mut policy = policy(&sizes);
    let mut residents = Residents::new(&sizes, capacity);
    for (index, (wanted, hits)) in visits.iter().enumerate() {
        let found = wanted
            .iter()
            .filter(|wanted| residents.holds(wanted.expert));
        assert_eq!(found.count(), *hits, "visit {index}");
        policy.visit(wanted, &mut residents);
        assert!(residents.used() <= residents.capacity(), "visit {index}");
    }
}

fn lru(sizes: &ExpertSizes) -> Box<dyn Policy> {
    Box::new(Lru::new(sizes))
}

fn frequency(sizes: &ExpertSizes) -> Box<dyn Policy> {
    Box::new(Frequency::new(sizes))
}

fn guarded(sizes: &ExpertSizes) -> Box<dyn Policy> {
    Box::new(Guarded::new(sizes, Guard::default()))
}

#[test]
fn least_recently_used_goes() {
    let visits = [(1, 0), (2, 0), (1, 1), (3, 0), (2, 0), (3, 1), (1, 0)]
        .map(|(expert, hits)| ([decode(expert)], hits));
    let visits = visits.each_ref().map(|(wanted, hits)| (&wanted[..], *hits));
    check(lru, 20, &visits);
}

#[test]
fn least_wanted_goes() {
    let visits = [
        (1, 0),
        (1, 1),
        (1, 1),
        (2, 0),
        (3, 0),
        (1, 1),
        (3, 1),
        (2, 0),
    ]
    .map(|(expert, hits)| ([decode(expert)], hits));
    let visits = visits.each_ref().map(|(wanted, hits)| (&wanted[..], *hits));
    check(frequency, 20, &visits);
    check(guarded, 20, &visits);
}

#[test]
fn a_large_one_takes_the_room_of_several() {
    for policy in [lru, frequency, guarded] {
        check(
            policy,
            35,
            &[
                (&[decode(0), decode(1), decode(2)], 0),
                (&[decode(10)], 0),
                (&[decode(10)], 1),
                (&[decode(0), decode(1), decode(2)], 0),
                (&[decode(0), decode(1), decode(2)], 3),
            ],
        );
    }
}

#[test]
fn nobody_makes_room_for_who_came_with_him() {
    for policy in [lru, frequency, guarded] {
        check(
            policy,
            20,
            &[
                (&[decode(0), decode(1), decode(2)], 0),
                (&[decode(0), decode(1), decode(2)], 2),
            ],
        );
    }
}

#[test]
fn prompts_do_not_evict_what_streams_use() {
    let prompts: Vec<Wanted> = (2..10).map(prompt).collect();
    let streams = [decode(0), decode(1)];
    let visits = |hits| {
        [
            (&streams[..], 0),
            (&prompts[..], 0),
            (&prompts[..], if hits == 2 { 0 } else { 2 }),
            (&streams[..], hits),
        ]
    };
    check(guarded, 20, &visits(2));
    check(lru, 20, &visits(0));
}

#[test]
fn prompts_fill_free_room_and_streams_take_it() {
    check(
        guarded,
        30,
        &[
            (&[prompt(0), prompt(1), prompt(2)], 0),
            (&[decode(0), decode(1)], 2),
            (&[decode(3)], 0),
            (&[decode(0), decode(1), decode(3)], 3),
            (&[prompt(2)], 0),
        ],
    );
}

#[test]
fn few_are_replaced_a_visit() {
    let one = |sizes: &ExpertSizes| -> Box<dyn Policy> {
        let guard = Guard {
            replaced_max: 1,
            ..Guard::default()
        };
        Box::new(Guarded::new(sizes, guard))
    };
    check(
        one,
        30,
        &[
            // free room is filled at once
            (&[decode(0), decode(1), decode(2)], 0),
            (&[decode(3), decode(4), decode(5)], 0),
            (&[decode(3), decode(4), decode(5)], 1),
            (&[decode(3), decode(4), decode(5)], 2),
            (&[decode(3), decode(4), decode(5)], 3),
        ],
    );
}
