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
