//! The table of bad files: what is wrong, the bytes, and what the message must say.

use super::bytes::{File, array, key, string, tensor, valid};

/// A bad file.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
    /// Parts of the message: the thing that is wrong, the value found, the value allowed.
    pub(crate) says: &'static [&'static str],
}

/// Every bad file.
pub(crate) fn all() -> Vec<Case> {
    [
        containers(),
        counts(),
        keys(),
        alignments(),
        tensor_entries(),
        tensor_places(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn case(name: &'static str, bytes: Vec<u8>, says: &'static [&'static str]) -> Case {
    Case { name, bytes, says }
}

fn containers() -> Vec<Case> {
    let version = |version| File { version, ..valid() }.bytes();
    let cut = |bytes: usize| valid().bytes()[..bytes].to_vec();
    vec![
        case("empty", vec![], &["not a GGUF file", "expected \"GGUF\""]),
        case("two-bytes", b"GG".to_vec(), &["not a GGUF file", "\"GG\""]),
        case(
            "other-magic",
            File {
                magic: b"PK\x03\x04".to_vec(),
                ..valid()
            }
            .bytes(),
            &["not a GGUF file", "\"PK\\x03\\x04\""],
        ),
        case(
            "magic-only",
            cut(4),
            &["the header needs 4 bytes at offset 4", "only 0 are left"],
        ),
        case("big-endian", version(3u32.swap_bytes()), &["big-endian"]),
        case("version-0", version(0), &["version 0", "expected 2 or 3"]),
        case("version-1", version(1), &["version 1", "expected 2 or 3"]),
        case("version-4", version(4), &["version 4", "expected 2 or 3"]),
        case(
            "cut-in-counts",
            cut(20),
            &["the header needs 8 bytes at offset 16", "only 4 are left"],
        ),
        case(
            "cut-in-key",
            File {
                tensor_count: 0,
                key_count: 1,
                ..valid()
            }
            .bytes()[..44]
                .to_vec(),
            &[
                "metadata key 0 needs 20 bytes at offset 32",
                "only 12 are left",
            ],
        ),
        case(
            "cut-in-tensors",
            cut(24 + valid().keys.len() + 50),
            &["tensor `b`", "left in the file"],
        ),
    ]
}

fn counts() -> Vec<Case> {
    let keys = |key_count| {
        File {
            key_count,
            ..valid()
        }
        .bytes()
    };
    let tensors = |tensor_count| {
        File {
            tensor_count,
            ..valid()
        }
        .bytes()
    };
    vec![
        case(
            "keys-negative",
            keys(-1),
            &["announces -1 metadata keys", "at most"],
        ),
        case(
            "keys-huge",
            keys(i64::MAX),
            &["announces 9223372036854775807 metadata keys", "at most"],
        ),
        case("keys-one-more", keys(3), &["the name of tensor 0 is empty"]),
        case(
            "keys-one-less",
            keys(1),
            &["tensor `olmoe.expert_count`: dimension 3 is 0"],
        ),
        case(
            "tensors-negative",
            tensors(-5),
            &["announces -5 tensors", "at most"],
        ),
        case(
            "tensors-huge",
            tensors(1 << 40),
            &["announces 1099511627776 tensors", "at most"],
        ),
        case(
            "tensors-one-more",
            tensors(3),
            &["the name of tensor 2 is empty"],
        ),
    ]
}

fn keys() -> Vec<Case> {
    let one = |entry: Vec<u8>| File::keys(&[entry]).bytes();
    let long = |length: u64| [&length.to_le_bytes()[..], b"abc"].concat();
    vec![
        case(
            "key-empty",
            one(key("", 4, &[0; 4])),
            &["the name of metadata key 0 is empty"],
        ),
        case(
            "key-no-text",
            one(key(b"a\xff", 4, &[0; 4])),
            &["the name of metadata key 0 is empty or not valid UTF-8"],
        ),
        case(
            "key-too-long",
            one(long(u64::MAX)),
            &[
                "metadata key 0 needs 18446744073709551615 bytes",
                "left in the file",
            ],
        ),
        case(
            "key-twice",
            File::keys(&[
                key("a.b", 4, &[0; 4]),
                key("a.c", 7, &[1]),
                key("a.b", 0, &[0]),
            ])
            .bytes(),
            &["`a.b` appears twice"],
        ),
        case(
            "type-13",
            one(key("a.b", 13, &[0; 8])),
            &["`a.b` has value type 13", "0 to 12"],
        ),
        case(
            "type-huge",
            one(key("a.b", u32::MAX, &[0; 8])),
            &["`a.b` has value type 4294967295"],
        ),
        case(
            "bool-2",
            one(key("a.b", 7, &[2])),
            &["`a.b` is a bool with value 2", "0 or 1"],
        ),
        case(
            "bools-255",
            one(key("a.b", 9, &array(7, 3, &[0, 1, 255]))),
            &["`a.b` is a bool with value 255"],
        ),
        case(
            "string-too-long",
            one(key("a.b", 8, &long(1 << 60))),
            &["`a.b` needs 1152921504606846976 bytes"],
        ),
        case(
            "array-of-arrays",
            one(key("a.b", 9, &array(9, 1, &array(4, 1, &[0; 4])))),
            &["`a.b` is an array of arrays"],
        ),
        case(
            "array-type",
            one(key("a.b", 9, &array(99, 1, &[0; 8]))),
            &["`a.b` has value type 99"],
        ),
        case(
            "array-huge",
            one(key("a.b", 9, &array(0, u64::MAX, &[0; 8]))),
            &["`a.b` needs 18446744073709551615 bytes"],
        ),
        case(
            "array-overflow",
            one(key("a.b", 9, &array(10, (1 << 61) + 1, &[0; 8]))),
            &["`a.b` needs 18446744073709551615 bytes"],
        ),
        case(
            "array-too-long",
            one(key("a.b", 9, &array(5, 1000, &[0; 8]))),
            &["`a.b` needs 4000 bytes"],
        ),
        case(
            "strings-huge",
            one(key("a.b", 9, &array(8, 1 << 61, &[0; 8]))),
            &["`a.b` needs 18446744073709551615 bytes"],
        ),
        case(
            "strings-last-too-long",
            one(key(
                "a.b",
                9,
                &array(8, 2, &[string("x"), long(1 << 33)].concat()),
            )),
            &["`a.b` needs 8589934592 bytes"],
        ),
    ]
}

fn alignments() -> Vec<Case> {
    let alignment = |ty, value: &[u8]| File::keys(&[key("general.alignment", ty, value)]).bytes();
    vec![
        case(
            "alignment-0",
            alignment(4, &[0; 4]),
            &["`general.alignment` is 0", "power of two"],
        ),
        case(
            "alignment-48",
            alignment(4, &48u32.to_le_bytes()),
            &["`general.alignment` is 48", "power of two"],
        ),
        case(
            "alignment-u64",
            alignment(10, &32u64.to_le_bytes()),
            &["`general.alignment` is u64", "u32"],
        ),
        case(
            "alignment-text",
            alignment(8, &string("32")),
            &["`general.alignment` is string", "u32"],
        ),
        case(
            "alignment-array",
            alignment(9, &array(4, 1, &32u32.to_le_bytes())),
            &["`general.alignment` is array of u32"],
        ),
        case(
            "alignment-larger-than-file",
            alignment(4, &(1u32 << 31).to_le_bytes()),
            &["tensor `a`", "holds only 0 bytes"],
        ),
    ]
}

fn tensor_entries() -> Vec<Case> {
    let one = |entry: Vec<u8>| File::tensors(&[entry]).bytes();
    let typed = |ty| one(tensor("a.b", &[256], ty, 0));
    let shaped = |dims: &[i64]| one(tensor("a.b", dims, 0, 0));
    vec![
        case(
            "tensor-name-empty",
            one(tensor("", &[4], 0, 0)),
            &["the name of tensor 0 is empty"],
        ),
        case(
            "tensor-name-no-text",
            one(tensor(b"\x80", &[4], 0, 0)),
            &["the name of tensor 0 is empty or not valid UTF-8"],
        ),
        case(
            "tensor-name-long",
            one(tensor([b'x'; 64], &[4], 0, 0)),
            &["the name of tensor 0 has 64 bytes", "at most 63"],
        ),
        case(
            "tensor-twice",
            File::tensors(&[tensor("a.b", &[4], 0, 0), tensor("a.b", &[4], 0, 32)]).bytes(),
            &["`a.b` appears twice"],
        ),
        case("rank-0", shaped(&[]), &["`a.b` has 0 dimensions", "1 to 4"]),
        case(
            "rank-5",
            shaped(&[1; 5]),
            &["`a.b` has 5 dimensions", "1 to 4"],
        ),
        case(
            "dimension-0",
            shaped(&[4, 0]),
            &["`a.b`: dimension 1 is 0", "at least 1"],
        ),
        case(
            "dimension-negative",
            shaped(&[-4]),
            &["`a.b`: dimension 0 is -4", "at least 1"],
        ),
        case(
            "values-overflow",
            shaped(&[1 << 32, 1 << 32]),
            &["`a.b`: the size of {4294967296, 4294967296} overflows"],
        ),
        case(
            "rows-overflow",
            shaped(&[1, i64::MAX, i64::MAX, i64::MAX]),
            &["`a.b`: the size of", "overflows"],
        ),
        case(
            "bytes-overflow",
            shaped(&[1 << 62]),
            &["`a.b`: the size of {4611686018427387904} overflows"],
        ),
        case(
            "row-ends-in-block",
            one(tensor("a.b", &[48, 2], 2, 0)),
            &["`a.b`: its rows have 48 values", "multiple of 32", "Q4_0"],
        ),
        case(
            "row-below-block",
            one(tensor("a.b", &[32], 12, 0)),
            &["`a.b`: its rows have 32 values", "multiple of 256", "Q4_K"],
        ),
        case(
            "type-q4_2",
            typed(4),
            &["`a.b` has type Q4_2 (id 4)", "removed"],
        ),
        case(
            "type-q4_3",
            typed(5),
            &["`a.b` has type Q4_3 (id 5)", "removed"],
        ),
        case(
            "type-q4_0_4_4",
            typed(31),
            &["`a.b` has type Q4_0_4_4 (id 31)", "removed"],
        ),
        case(
            "type-q4_0_4_8",
            typed(32),
            &["`a.b` has type Q4_0_4_8 (id 32)", "removed"],
        ),
        case(
            "type-q4_0_8_8",
            typed(33),
            &["`a.b` has type Q4_0_8_8 (id 33)", "removed"],
        ),
        case(
            "type-iq4_nl_4_4",
            typed(36),
            &["`a.b` has type IQ4_NL_4_4 (id 36)", "removed"],
        ),
        case(
            "type-iq4_nl_4_8",
            typed(37),
            &["`a.b` has type IQ4_NL_4_8 (id 37)", "removed"],
        ),
        case(
            "type-iq4_nl_8_8",
            typed(38),
            &["`a.b` has type IQ4_NL_8_8 (id 38)", "removed"],
        ),
        case("type-43", typed(43), &["`a.b` has the unknown type id 43"]),
        case(
            "type-negative",
            typed(u32::MAX),
            &["`a.b` has the unknown type id 4294967295"],
        ),
    ]
}

fn tensor_places() -> Vec<Case> {
    let at = |offset| File::tensors(&[tensor("a.b", &[4], 0, offset)]).bytes();
    let two =
        |a: i64, b| File::tensors(&[tensor("a", &[a], 0, 0), tensor("b", &[4], 0, b)]).bytes();
    let cut = |data: usize| {
        File {
            data: vec![0; data],
            ..valid()
        }
        .bytes()
    };
    vec![
        case(
            "offset-odd",
            at(33),
            &["`a.b` starts at data offset 33", "multiple of 32"],
        ),
        case(
            "offset-past-end",
            at(64),
            &["`a.b` has 16 bytes at data offset 64", "only 48 bytes"],
        ),
        case(
            "offset-huge",
            at(u64::MAX - 31),
            &[
                "`a.b` has 16 bytes at data offset 18446744073709551584",
                "only 48 bytes",
            ],
        ),
        case(
            "data-one-byte-short",
            cut(47),
            &["`b` has 16 bytes at data offset 32", "only 47 bytes"],
        ),
        case(
            "data-missing",
            cut(0),
            &["`a` has 16 bytes at data offset 0", "only 0 bytes"],
        ),
        case(
            "larger-than-data",
            File::tensors(&[tensor("a.b", &[13], 0, 0)]).bytes(),
            &["`a.b` has 52 bytes", "only 48 bytes"],
        ),
        case("same-place", two(8, 0), &["tensor `b` overlaps tensor `a`"]),
        case(
            "partly-same-place",
            two(12, 32),
            &["tensor `b` overlaps tensor `a`"],
        ),
    ]
}
