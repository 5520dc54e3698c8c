//! Models that are split over files named `<prefix>-00001-of-0000N.gguf`: finds the siblings and checks that they belong together.

use std::path::{Path, PathBuf};

use super::error::{GgufError, SplitError};
use super::value::Value;
use super::{Shard, mapping::Mapping};

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Opens the file at `path` and, if it is the first shard of several, its siblings in order.
///
/// Siblings are looked for beside the path as given: download caches keep links with the right names, whose targets have others.
pub(super) fn open(path: &Path) -> Result<Vec<Shard>, GgufError> {
    let first = Shard::read(path, Mapping::open(path)?)?;
    let count = integer(&first, COUNT)?.unwrap_or(1);
    if count <= 1 {
        return Ok(vec![first]);
    }
    let failed = |reason| GgufError::Split {
        path: path.to_owned(),
        reason,
    };
    let sibling = |no| sibling(path, no, count).map_err(failed);
    match integer(&first, NO)? {
        Some(0) => {}
        Some(no) => {
            let first = sibling(1)?.display().to_string();
            return Err(failed(SplitError::NotFirst {
                no: no.saturating_add(1),
                count,
                first,
            }));
        }
        None => {
            return Err(failed(SplitError::Key {
                key: NO,
                got: "missing".to_owned(),
                expected: 0,
            }));
        }
    }

    let expected_tensors = integer(&first, TENSORS)?;
    let mut shards = vec![first];
    for no in 1..count {
        let path = sibling(no + 1)?;
        let shard = Shard::read(&path, Mapping::open(&path)?)?;
        expect(&shard, COUNT, count)?;
        expect(&shard, NO, no)?;
        shards.push(shard);
    }
    let got = shards.iter().map(|shard| shard.header.tensors.len()).sum();
    match expected_tensors {
        Some(expected) if expected != got as u64 => {
            Err(failed(SplitError::Tensors { got, expected }))
        }
        _ => Ok(shards),
    }
}

/// The path of shard `no`, counted from 1, given the path of any shard.
fn sibling(path: &Path, no: u64, count: u64) -> Result<PathBuf, SplitError> {
    let wrong = || SplitError::Name {
        count,
        expected: format!("-00001-of-{count:05}.gguf"),
    };
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(wrong)?;
    let stem = name
        .strip_suffix(&format!("-of-{count:05}.gguf"))
        .ok_or_else(wrong)?;
    let (prefix, digits) = stem.rsplit_once('-').ok_or_else(wrong)?;
    if digits.len() != 5 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(wrong());
    }
    Ok(path.with_file_name(format!("{prefix}-{no:05}-of-{count:05}.gguf")))
}

fn expect(shard: &Shard, key: &'static str, expected: u64) -> Result<(), GgufError> {
    let got = integer(shard, key)?;
    if got == Some(expected) {
        return Ok(());
    }
    let got = got.map_or_else(|| "missing".to_owned(), |got| got.to_string());
    Err(GgufError::Split {
        path: shard.path.clone(),
        reason: SplitError::Key { key, got, expected },
    })
}

fn integer(shard: &Shard, key: &'static str) -> Result<Option<u64>, GgufError> {
    shard
        .get(key)
        .map(|(_, value)| match value {
            Value::Unsigned(n) => Ok(n),
            Value::Signed(n) if n >= 0 => Ok(n as u64),
            Value::Signed(n) => Err(GgufError::KeyRange {
                key: key.to_owned(),
                got: n.to_string(),
                expected: "0 or more",
            }),
            _ => Err(GgufError::KeyType {
                key: key.to_owned(),
                got: shard.type_name(key),
                expected: "an integer",
            }),
        })
        .transpose()
}
