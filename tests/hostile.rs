//! Bad model files: each is refused with a message that names what is wrong, none panics, and none makes the reader allocate what it only
//! claims to hold.

#[path = "hostile/allocations.rs"]
mod allocations;
#[path = "hostile/bytes.rs"]
mod bytes;
#[path = "hostile/cases.rs"]
mod cases;

use std::fs;
use std::path::Path;

use bytes::{File, array, key, string, tensor, valid};
use cases::Case;
use tidegate::gguf::{Entry, Gguf, GgufError, HeaderWriter};
use tidegate::inspect::Inspection;
use tidegate::quant::BlockType;

fn open(bytes: &[u8]) -> Result<Gguf, GgufError> {
    Gguf::from_bytes(bytes.to_vec())
}

/// The file is refused, its message says everything it must, and refusing it took no more memory than a few times its size.
fn check(case: &Case) {
    let owned = case.bytes.clone();
    let (result, allocated) = allocations::during(|| Gguf::from_bytes(owned));
    let message = result.map(drop).expect_err(case.name).to_string();
    for part in case.says {
        assert!(
            message.contains(part),
            "{}: {part:?} is not in: {message}",
            case.name
        );
    }
    assert!(
        allocated.largest <= 4096 + 16 * case.bytes.len(),
        "{}: {allocated:?} for {} bytes",
        case.name,
        case.bytes.len()
    );
}

#[test]
fn bad_files_are_refused() {
    let cases = cases::all();
    assert!(
        open(&valid().bytes()).is_ok(),
        "the cases must fail for what is wrong with them only"
    );
    cases.iter().for_each(check);
}

/// Every prefix of a valid file is refused: there is no place where an end would go unnoticed.
#[test]
fn cut_files_are_refused() {
    let whole = valid().bytes();
    for end in 0..whole.len() {
        assert!(
            open(&whole[..end]).is_err(),
            "the first {end} of {} bytes",
            whole.len()
        );
    }
}

/// A valid file with a block of every type and a key of every type, alone and in an array.
fn every_type() -> Vec<u8> {
    let mut offset = 0;
    let mut tensors = Vec::new();
    for ty in BlockType::ALL {
        tensors.push(tensor(
            format!("blk.0.{ty}"),
            &[ty.block_values() as i64],
            *ty as u32,
            offset,
        ));
        offset = (offset + ty.block_bytes() as u64).next_multiple_of(32);
    }
    let scalar = |ty| match ty {
        0 | 1 | 7 => vec![1],
        2 | 3 => vec![1; 2],
        8 => string("text"),
        10..=12 => vec![1; 8],
        _ => vec![1; 4],
    };
    let types = || (0..13).filter(|&ty| ty != 9);
    let alone = types().map(|ty| key(format!("k.{ty}"), ty, &scalar(ty)));
    let arrays = types().map(|ty| key(format!("a.{ty}"), 9, &array(ty, 2, &scalar(ty).repeat(2))));
    let keys: Vec<Vec<u8>> = alone.chain(arrays).collect();
    let File {
        tensor_count,
        tensors,
        ..
    } = File::tensors(&tensors);
    File {
        tensor_count,
        tensors,
        data: vec![0x5a; offset as usize],
        ..File::keys(&keys)
    }
    .bytes()
}

/// Valid files that are unusual.
#[test]
fn odd_files_open() {
    let check = |name: &str, bytes: Vec<u8>, tensors: usize| match open(&bytes) {
        Ok(file) => assert_eq!(file.tensors().len(), tensors, "{name}"),
        Err(error) => panic!("{name}: {error}"),
    };
    let no_tensors = File::tensors(&[]).bytes();
    check(
        "version 2",
        File {
            version: 2,
            ..valid()
        }
        .bytes(),
        2,
    );
    check("no keys", File::keys(&[]).bytes(), 2);
    check(
        "no tensors and no padding",
        no_tensors[..24 + valid().keys.len()].to_vec(),
        0,
    );
    check(
        "tensors out of order, with a gap",
        File::tensors(&[tensor("a", &[1], 0, 32), tensor("b", &[4], 0, 0)]).bytes(),
        2,
    );
    check(
        "a name of 63 bytes",
        File::tensors(&[tensor([b'x'; 63], &[4], 0, 0)]).bytes(),
        1,
    );
    check(
        "empty arrays",
        File::keys(&[
            key("a", 9, &array(8, 0, &[])),
            key("b", 9, &array(4, 0, &[])),
        ])
        .bytes(),
        2,
    );
    check("every type", every_type(), BlockType::ALL.len());
    check(
        "a token that is not UTF-8",
        File::keys(&[key("a", 9, &array(8, 1, &string(b"\xff")))]).bytes(),
        2,
    );
}

/// Files of other kinds are told apart from models.
#[test]
fn other_kinds_are_named() {
    let check = |name: &str, value: &str, says: Option<&str>| {
        let file = open(&File::keys(&[key(name, 8, &string(value))]).bytes()).unwrap();
        match (file.check_is_model(), says) {
            (Ok(()), None) => {}
            (Err(error), Some(says)) => assert!(error.to_string().contains(says), "{error}"),
            (got, says) => panic!("{name} = {value}: {got:?}, expected {says:?}"),
        }
    };
    check("general.type", "model", None);
    check("general.architecture", "olmoe", None);
    check(
        "general.type",
        "mmproj",
        Some("projector (mmproj), not a language model (general.type = mmproj)"),
    );
    check(
        "general.type",
        "adapter",
        Some("an adapter (LoRA), not a language model"),
    );
    check(
        "general.type",
        "imatrix",
        Some("an importance matrix (imatrix), not a language model"),
    );
    check(
        "general.architecture",
        "clip",
        Some("(general.architecture = clip)"),
    );
}

/// A vocabulary of a quarter of a million entries costs a handful of allocations, not one a string.
#[test]
fn vocabularies_cost_no_allocation_per_string() {
    let tokens: Vec<String> = (0..250_000).map(|i| format!("token {i}")).collect();
    let mut header = HeaderWriter::new();
    header
        .set("tokenizer.ggml.tokens", Entry::Strs(&tokens))
        .set("tokenizer.ggml.merges", Entry::Strs(&tokens));
    let bytes = header.finish();
    let (file, allocated) = allocations::during(|| Gguf::from_bytes(bytes).unwrap());
    assert!(allocated.count < 50, "{allocated:?}");
    let strings = file.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    let (lengths, allocated) =
        allocations::during(|| strings.iter().map(<[u8]>::len).sum::<usize>());
    assert_eq!(
        (lengths, allocated.count),
        (tokens.iter().map(String::len).sum(), 0)
    );
}

/// The fuzzer's seeds are the table's files, and whatever the fuzzer found is beside them. None may panic, opened or refused.
///
/// A seed that is missing is written and the test fails once; to change one, delete it.
#[test]
fn seeds_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hostile/gguf");
    let mut seeds: Vec<(String, Vec<u8>)> = cases::all()
        .into_iter()
        .map(|case| (case.name.to_owned(), case.bytes))
        .collect();
    seeds.push(("valid".to_owned(), valid().bytes()));
    seeds.push(("valid-types".to_owned(), every_type()));
    let mut written = 0;
    for (name, bytes) in &seeds {
        let path = folder.join(format!("{name}.gguf"));
        match fs::read(&path) {
            Ok(found) => assert!(
                found == *bytes,
                "{name}.gguf is not what the table makes; delete it and run this test twice"
            ),
            Err(_) => {
                fs::write(&path, bytes).unwrap();
                written += 1;
            }
        }
    }
    for entry in fs::read_dir(folder).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        if let Ok(file) = open(&bytes) {
            let _ = Inspection::of(&file).map(|facts| facts.text(true).to_string() + &facts.json());
        }
    }
    assert_eq!(
        written, 0,
        "seeds were missing and have been written; run the test again"
    );
}
