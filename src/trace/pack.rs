//! Numbers in few bits.

use bytes::{Buf, BufMut};

/// Bits that name one of so many experts; at least one, so that a record of many ids is never empty.
pub(super) fn id_bits(experts: usize) -> u32 {
    (usize::BITS - experts.saturating_sub(1).leading_zeros()).max(1)
}

/// **Units**: bytes. What so many ids take.
pub(super) fn packed_bytes(ids: usize, bits: u32) -> Option<usize> {
    Some(ids.checked_mul(bits as usize)?.div_ceil(8))
}

/// Appends the ids, the lowest bit first, padded to a byte.
pub(super) fn put_ids(out: &mut Vec<u8>, ids: &[u16], bits: u32) {
    let (mut held, mut count) = (0_u64, 0);
    for id in ids {
        held |= u64::from(*id) << count;
        count += bits;
        while count >= 8 {
            out.push(held as u8);
            held >>= 8;
            count -= 8;
        }
    }
    if count > 0 {
        out.push(held as u8);
    }
}

/// Reads `ids.len()` ids from a slice of [`packed_bytes`].
pub(super) fn get_ids(packed: &[u8], ids: &mut [u16], bits: u32) {
    let (mut held, mut count) = (0_u64, 0);
    let mut bytes = packed.iter();
    for id in ids {
        while count < bits {
            held |= u64::from(*bytes.next().expect("as many bytes as the ids take")) << count;
            count += 8;
        }
        *id = (held & ((1 << bits) - 1)) as u16;
        held >>= bits;
        count -= bits;
    }
}

/// Appends a number, seven bits a byte.
pub(super) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

/// Reads one; `None` if the bytes end or it has more than 63 bits.
pub(super) fn get_varint(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let byte = from.try_get_u8().ok()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
