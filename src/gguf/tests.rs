//! Valid files read back as written, in one piece and split; what must be refused is in `tests/hostile.rs`.

use super::*;
use crate::quant::BlockType;

/// Two tensors and a key of every kind. Data byte `i` is `i mod 251`.
fn sample(extra: impl FnOnce(&mut HeaderWriter)) -> Vec<u8> {
    let mut header = HeaderWriter::new();
    header.set("general.architecture", Entry::Str("qwen3moe"));
    header
        .set("n.u16", Entry::U16(65535))
        .set("n.u32", Entry::U32(7))
        .set("n.u64", Entry::U64(1 << 40))
        .set("n.i32", Entry::I32(-3));
    header
        .set("x.f32", Entry::F32(1e-6))
        .set("t.bool", Entry::Bool(true));
    header
        .set("a.i32", Entry::I32s(&[4, 5, 6]))
        .set("a.f32", Entry::F32s(&[0.5, -1.0]))
        .set("a.bool", Entry::Bools(&[false, true]));
    header.set(
        "a.str",
        Entry::Strs(&["a".into(), String::new(), "größer".into()]),
    );
    header.tensor("b.weight", &[64, 3], BlockType::Q8_0);
    header.tensor("a.bias", &[5], BlockType::F32);
    extra(&mut header);
    with_data(&header)
}

fn with_data(header: &HeaderWriter) -> Vec<u8> {
    let mut file = header.finish();
    file.extend((0..header.data_bytes()).map(|i| (i % 251) as u8));
    file
}

fn open(file: Vec<u8>) -> Gguf {
    Gguf::from_bytes(file).expect("a valid file")
}

#[test]
fn keys_read_back() {
    let file = open(sample(|_| {}));
    assert_eq!(file.version(), 3);
    assert_eq!(file.architecture().unwrap(), "qwen3moe");
    assert_eq!(file.u32("n.u16").unwrap(), Some(65535));
    assert_eq!(file.need_u32("n.u32").unwrap(), 7);
    assert_eq!(file.need_u64("n.u64").unwrap(), 1 << 40);
    assert_eq!(file.get("n.i32"), Some(Value::Signed(-3)));
    assert_eq!(file.need_f32("x.f32").unwrap(), 1e-6);
    assert_eq!(file.bool("t.bool").unwrap(), Some(true));
    assert_eq!(file.i32s("a.i32").unwrap(), Some(vec![4, 5, 6]));
    assert_eq!(file.f32s("a.f32").unwrap(), Some(vec![0.5, -1.0]));
    assert_eq!(file.per_layer("a.i32", 2).unwrap(), Some(vec![4, 5]));
    assert_eq!(file.per_layer("n.u32", 2).unwrap(), Some(vec![7, 7]));
    assert_eq!(
        file.per_layer_bool("a.bool", 2).unwrap(),
        Some(vec![false, true])
    );
    let strings = file.strings("a.str").unwrap().unwrap();
    assert_eq!(strings.len(), 3);
    assert_eq!(
        strings.texts().collect::<Result<Vec<_>, _>>().unwrap(),
        ["a", "", "größer"]
    );
    assert_eq!(
        file.metadata().map(|(key, _)| key).next(),
        Some("general.architecture")
    );
    assert_eq!(file.metadata().count(), 11);
    assert_eq!(
        (
            file.str("absent").unwrap(),
            file.u32("absent").unwrap(),
            file.per_layer("absent", 1).unwrap()
        ),
        (None, None, None)
    );
}

#[test]
fn keys_of_another_kind_are_errors() {
    let file = open(sample(|_| {}));
    let check = |got: Result<(), GgufError>, expected: &str| {
        assert_eq!(got.unwrap_err().to_string(), expected)
    };
    check(
        file.str("n.u32").map(drop),
        "metadata key `n.u32` is u32, expected string",
    );
    check(
        file.u32("a.i32").map(drop),
        "metadata key `a.i32` is array of i32, expected an integer",
    );
    check(
        file.u32("n.u64").map(drop),
        "metadata key `n.u64` is 1099511627776, expected 0 to 4294967295",
    );
    check(
        file.u64("n.i32").map(drop),
        "metadata key `n.i32` is -3, expected 0 or more",
    );
    check(
        file.f32("n.u32").map(drop),
        "metadata key `n.u32` is u32, expected f32 or f64",
    );
    check(
        file.strings("a.i32").map(drop),
        "metadata key `a.i32` is array of i32, expected array of string",
    );
    check(
        file.need_u32("absent").map(drop),
        "metadata key `absent` is missing",
    );
    check(
        file.per_layer("a.i32", 4).map(drop),
        "metadata key `a.i32` has 3 entries, expected at least 4 (one a layer)",
    );
}

#[test]
fn tensors_read_back() {
    let file = open(sample(|_| {}));
    let names: Vec<_> = file
        .tensors()
        .iter()
        .map(|tensor| tensor.name.as_ref())
        .collect();
    assert_eq!(names, ["a.bias", "b.weight"]);
    let weight = file.need_tensor("b.weight", &[64, 3, 1]).unwrap();
    assert_eq!(
        (weight.row_bytes(), weight.matrix_bytes(), weight.values()),
        (68, 204, 192)
    );
    assert_eq!(
        file.bytes(weight),
        (0..204).map(|i| (i % 251) as u8).collect::<Vec<_>>()
    );
    let bias = file.tensor("a.bias").unwrap();
    assert_eq!(
        file.bytes(bias)[0],
        224,
        "the second tensor starts at the next multiple of 32"
    );
    let check = |name, dims: &[usize], expected| {
        assert_eq!(
            file.need_tensor(name, dims).unwrap_err().to_string(),
            expected
        )
    };
    check(
        "b.weight",
        &[64, 4],
        "tensor `b.weight` has shape {64, 3}, expected {64, 4}",
    );
    check("c", &[1, 2], "tensor `c` is missing, expected shape {1, 2}");
}

#[test]
fn files_are_mapped_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    std::fs::write(&path, sample(|_| {})).unwrap();
    let file = Gguf::open(&path).unwrap();
    let weight = file.tensor("b.weight").unwrap();
    assert_eq!(file.bytes(weight)[203], 203);
    file.advise(weight, 68..136, Advice::WillNeed).unwrap();
    file.advise(weight, 0..usize::MAX, Advice::Random).unwrap();
    let refused = |path: &Path| Gguf::open(path).unwrap_err().to_string();
    assert!(refused(folder.path()).ends_with("not a regular file"));
    assert!(refused(&folder.path().join("absent.gguf")).contains("No such file"));
}

/// One shard's bytes: `tensors` tensors named after the shard.
fn shard(no: u16, count: u16, tensors: usize, total: i32) -> Vec<u8> {
    let mut header = HeaderWriter::new();
    header
        .set("split.no", Entry::U16(no))
        .set("split.count", Entry::U16(count))
        .set("split.tensors.count", Entry::I32(total));
    if no == 0 {
        header.set("general.architecture", Entry::Str("olmoe"));
    }
    for i in 0..tensors {
        header.tensor(&format!("{no}.{i}"), &[8], BlockType::F32);
    }
    with_data(&header)
}

#[test]
fn trap_21_split_files_are_opened_as_one() {
    /// (shards as (no, count, tensors), total announced, file opened, error or none)
    type Case<'a> = (&'a [(u16, u16, usize)], i32, &'a str, Option<&'a str>);
    let cases: &[Case<'_>] = &[
        (
            &[(0, 3, 0), (1, 3, 2), (2, 3, 1)],
            3,
            "m-00001-of-00003.gguf",
            None,
        ),
        (
            &[(0, 2, 1), (1, 2, 1)],
            2,
            "m-00002-of-00002.gguf",
            Some("this is shard 2 of 2: open shard 1 instead"),
        ),
        (
            &[(0, 2, 1), (1, 2, 1)],
            3,
            "m-00001-of-00002.gguf",
            Some("hold 2 tensors, metadata key `split.tensors.count` says 3"),
        ),
        (
            &[(0, 2, 1), (0, 2, 1)],
            2,
            "m-00001-of-00002.gguf",
            Some("`split.no` is 0, expected 1"),
        ),
        (
            &[(0, 2, 1), (1, 3, 1)],
            2,
            "m-00001-of-00002.gguf",
            Some("`split.count` is 3, expected 2"),
        ),
        (
            &[(0, 2, 1)],
            2,
            "m-00001-of-00002.gguf",
            Some("m-00002-of-00002.gguf: No such file"),
        ),
        (
            &[(0, 3, 1), (1, 3, 1)],
            2,
            "m-00001-of-00002.gguf",
            Some("its name must end in `-00001-of-00003.gguf`"),
        ),
    ];
    for (shards, total, opened, error) in cases {
        let folder = tempfile::tempdir().unwrap();
        for (index, &(no, count, tensors)) in shards.iter().enumerate() {
            let name = format!("m-{:05}-of-{:05}.gguf", index + 1, shards.len().max(2));
            std::fs::write(folder.path().join(name), shard(no, count, tensors, *total)).unwrap();
        }
        match (Gguf::open(folder.path().join(opened)), error) {
            (Ok(file), None) => {
                assert_eq!(
                    file.tensors()
                        .iter()
                        .map(|tensor| tensor.shard)
                        .collect::<Vec<_>>(),
                    [1, 1, 2]
                );
                assert!(
                    file.tensors()
                        .iter()
                        .all(|tensor| file.bytes(tensor)[..3] == *b"\x00\x01\x02"
                            || tensor.name.ends_with(".1"))
                );
            }
            (Err(got), Some(expected)) => assert!(got.to_string().contains(expected), "{got}"),
            (got, _) => panic!("{opened}: {got:?}, expected {error:?}"),
        }
    }
}

/// As caches of downloads keep them: links with the right names, to files with others in another folder.
#[cfg(unix)]
#[test]
fn trap_21_siblings_are_beside_the_path_that_was_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for no in 0..2 {
        std::fs::write(at(&format!("blob{no}")), shard(no, 2, 1, 2)).unwrap();
    }
    std::fs::create_dir(at("model")).unwrap();
    for (no, name) in ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
        .iter()
        .enumerate()
    {
        let target = at(&format!("blob{no}"));
        std::os::unix::fs::symlink(target, at("model").join(name)).unwrap();
    }
    let file = Gguf::open(at("model").join("m-00001-of-00002.gguf")).unwrap();
    assert_eq!(file.tensors().len(), 2);
}
