//! Every block type against blocks and values written by the reference implementation (`fixtures/quants`).

use super::*;

/// Blocks of a type and the values they stand for.
fn golden(ty: BlockType) -> Option<(Vec<u8>, Vec<f32>)> {
    let path = format!("{}/fixtures/quants/{ty}.bin", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(path).ok()?;
    let blocks = file.len() / (ty.block_bytes() + 4 * ty.block_values());
    let (bytes, values) = file.split_at(blocks * ty.block_bytes());
    Some((
        bytes.to_vec(),
        values
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect(),
    ))
}

fn check(ty: BlockType, bytes: &[u8], expected: &[f32]) {
    let mut got = vec![f32::NAN; expected.len()];
    dequantise(ty, bytes, &mut got).unwrap();
    let wrong = got
        .iter()
        .zip(expected)
        .position(|(got, expected)| got != expected);
    assert_eq!(
        wrong.map(|at| (at, got[at], expected[at])),
        None,
        "{ty}: first difference (index, got, expected)"
    );
}

#[test]
fn quantised_blocks_equal_the_reference() {
    let mut types = 0;
    for &ty in BlockType::ALL {
        if let Some((bytes, values)) = golden(ty) {
            check(ty, &bytes, &values);
            types += 1;
        }
    }
    assert_eq!(
        types, 27,
        "every type but F32, F64, integers, Q8_1 and Q8_K has a golden file"
    );
}

#[test]
fn plain_types_convert() {
    check(BlockType::F32, &1.5f32.to_le_bytes(), &[1.5]);
    check(BlockType::F64, &(-2.25f64).to_le_bytes(), &[-2.25]);
    check(BlockType::I8, &[0x80, 7], &[-128.0, 7.0]);
    check(BlockType::I16, &(-300i16).to_le_bytes(), &[-300.0]);
    check(BlockType::I32, &70_000i32.to_le_bytes(), &[70_000.0]);
    check(
        BlockType::I64,
        &(-(1i64 << 40)).to_le_bytes(),
        &[-(2f32.powi(40))],
    );
}

#[test]
fn activation_types_decode() {
    let codes: Vec<u8> = (0..=255).collect();
    let q8_1 = [&[0x00, 0x38, 1, 2], &codes[112..144]].concat(); // d = 0.5
    check(
        BlockType::Q8_1,
        &q8_1,
        &codes[112..144]
            .iter()
            .map(|&q| 0.5 * f32::from(q as i8))
            .collect::<Vec<_>>(),
    );
    let q8_k = [&0.25f32.to_le_bytes(), &codes[..], &[9; 32]].concat();
    check(
        BlockType::Q8_K,
        &q8_k,
        &codes
            .iter()
            .map(|&q| 0.25 * f32::from(q as i8))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn lengths_must_agree() {
    let refused = |ty, bytes: usize, values: usize| {
        let error = dequantise(ty, &vec![0; bytes], &mut vec![0.0; values]).unwrap_err();
        assert_eq!(error, LengthMismatch { ty, bytes, values });
    };
    refused(BlockType::Q4_0, 18, 31);
    refused(BlockType::Q4_0, 17, 32);
    refused(BlockType::Q4_K, 288, 256);
    refused(BlockType::F16, 3, 1);
}

#[test]
fn grids_are_whole() {
    // The packed tables ascend strictly, which no wrong offset or width survives; magnitudes come from the alphabets.
    fn ascending<T: Copy + Ord>(grid: &[T], unit: impl Fn(u8) -> u8, bytes: impl Fn(T) -> Vec<u8>) {
        let packed: Vec<u64> = grid
            .iter()
            .map(|&entry| {
                bytes(entry)
                    .iter()
                    .rev()
                    .fold(0, |sum, &e| sum << 4 | u64::from(unit(e)))
            })
            .collect();
        assert!(packed.windows(2).all(|pair| pair[0] < pair[1]));
    }
    let place = |alphabet: &'static [u8]| {
        move |e: u8| {
            alphabet
                .iter()
                .position(|&a| a == e)
                .expect("in the alphabet") as u8
        }
    };
    ascending(&grids::IQ2_XXS, place(&[8, 25, 43]), |entry| {
        entry.to_le_bytes().to_vec()
    });
    ascending(&grids::IQ2_XS, place(&[8, 25, 43]), |entry| {
        entry.to_le_bytes().to_vec()
    });
    ascending(&grids::IQ2_S, place(&[8, 25, 43]), |entry| {
        entry.to_le_bytes().to_vec()
    });
    ascending(
        &grids::IQ3_XXS,
        place(&[4, 12, 20, 28, 36, 44, 52, 62]),
        |entry| entry.to_le_bytes().to_vec(),
    );
    ascending(
        &grids::IQ3_S,
        place(&[1, 3, 5, 7, 9, 11, 13, 15]),
        |entry| entry.to_le_bytes().to_vec(),
    );
    ascending(&grids::IQ1, place(&[0xff, 0, 1]), |entry| {
        entry.to_le_bytes().to_vec()
    });
    assert_eq!(
        [0, 1, 3, 7, 127].map(grids::sign_bits),
        [0, 0x81, 3, 0x87, 0xff]
    );
}

/// The f16 scale of IQ1_M lies in the upper nibbles of four words, the lowest first.
#[test]
fn trap_24_nibbles_of_the_scale_of_iq1_m() {
    let scaled = |d: u16| {
        let words = (0..4).map(|word| (d >> (4 * word) & 15) << 12);
        let block: Vec<u8> = [0; 48]
            .into_iter()
            .chain(words.flat_map(u16::to_le_bytes))
            .collect();
        let mut values = vec![0.0; 256];
        dequantise(BlockType::IQ1_M, &block, &mut values).unwrap();
        values
    };
    // every vector is the first of the book, shifted up, with the least scale of a group
    let one: Vec<f32> = grids::IQ1[0]
        .to_le_bytes()
        .map(|t| f32::from(t as i8) + 0.125)
        .to_vec();
    for d in [1.0, 0.4873, -3.25] {
        let d = half::f16::from_f32(d);
        let expected: Vec<f32> = one.iter().map(|x| x * d.to_f32()).collect();
        assert!(
            scaled(d.to_bits()).chunks(8).all(|eight| eight == expected),
            "{d}"
        );
    }
}

/// Codes stand for twice the four-bit float; with a scale of 1 they give the float itself.
#[test]
fn trap_25_doubled_codes_are_halved_once() {
    let floats = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let both = floats.into_iter().chain(floats.map(|x| -x));
    let expected: Vec<f32> = both.collect();
    // code `e` in the low nibble of its byte, `15 - e` in the high one
    let nibbles: Vec<u8> = (0..16).map(|e: u8| e | (15 - e) << 4).collect();
    let mxfp4 = [&[127], &nibbles[..]].concat();
    let mut values = [0.0; 32];
    dequantise(BlockType::MXFP4, &mxfp4, &mut values).unwrap();
    assert_eq!(values[..16], expected);
    assert!(values[16..].iter().eq(expected.iter().rev()));
    // 0x38 is 1 in e4m3; groups of 16 values take 8 bytes
    let nvfp4 = [&[0x38; 4], &nibbles[..], &nibbles].concat();
    let mut values = [0.0; 64];
    dequantise(BlockType::NVFP4, &nvfp4, &mut values).unwrap();
    for (group, first) in values.chunks(16).zip([0, 8, 0, 8]) {
        assert_eq!(group[..8], expected[first..first + 8]);
        let high = expected.iter().rev().skip(first).take(8);
        assert!(group[8..].iter().eq(high));
    }
}
