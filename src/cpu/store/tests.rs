//! What reads mean for their pieces.

use std::io;

use super::{
    error::Fault,
    layout::Extent,
    piece::{Piece, Settled},
};
use crate::residency::tier::{Order, SlotId, Ticket, Urgency};

/// After these reads of a piece of 10,000 bytes, of which 9,000 are needed, it is whole (`Some(true)`), failed, or neither.
fn check(reads: &[Result<usize, i32>], direct: bool, expected: Option<bool>) -> Option<Fault> {
    let mut piece = Piece {
        order: Order {
            ticket: Ticket(0),
            layer: 0,
            expert: 0,
            slot: SlotId(0),
            urgency: Urgency::Demand,
        },
        extent: Extent {
            file: 0,
            offset: 4096,
            needed: 9_000,
            asked: 12_288,
            to: 0,
        },
        done: 0,
    };
    let mut last = Settled::Rest;
    for read in reads {
        assert!(matches!(last, Settled::Rest), "{reads:?} goes on");
        let read = read.map_err(io::Error::from_raw_os_error);
        last = piece.settle(read, direct);
    }
    let (got, fault) = match last {
        Settled::Whole => (Some(true), None),
        Settled::Rest => (None, None),
        Settled::Failed(fault) => (Some(false), Some(fault)),
    };
    assert_eq!(got, expected, "{reads:?}");
    fault
}

#[test]
fn reads_are_continued_and_ends_are_told() {
    check(&[Ok(12_288)], true, Some(true));
    // the file ends behind what is needed
    check(&[Ok(9_001)], true, Some(true));
    check(&[Ok(4_096), Ok(8_192)], true, Some(true));
    check(&[Ok(4_096), Err(libc::EINTR), Ok(4_096)], true, None);
    check(&[Ok(100), Ok(8_900)], false, Some(true));
    for (reads, direct, missing_bytes) in [
        (&[Ok(4_096), Ok(0)][..], true, 4_904),
        (&[Ok(8_999)], true, 1),
        (&[Ok(8_999), Ok(0)], false, 1),
    ] {
        match check(reads, direct, Some(false)) {
            Some(Fault::Truncated { missing }) => assert_eq!(missing, missing_bytes),
            other => panic!("{other:?}"),
        }
    }
    match check(&[Ok(4_096), Err(libc::EIO)], true, Some(false)) {
        Some(Fault::System(error)) => assert_eq!(error.raw_os_error(), Some(libc::EIO)),
        other => panic!("{other:?}"),
    }
}
