//! A table of n-grams on the disk of which rows are gone: who needs one of them ends with an error that says so, and nobody else notices.

use std::{fs::OpenOptions, os::unix::fs::FileExt, path::Path, sync::Arc, time::Duration};

use crate::{
    load::{answers, settings, try_answer},
    remade::Remade,
};
use tidegate::{
    engine::{
        Handle, Stopper,
        request::{EngineError, Request},
    },
    gguf::Gguf,
    settings::ModelSettings,
};

const TABLE: &str = "per_layer_token_embd.weight";
/// Rows at the end of the last head's part that are gone.
const GONE: u64 = 2;

/// The tiny model with its table behind everything else, and where the rows begin that will be gone.
fn with_table_last() -> (Vec<u8>, u64) {
    let mut file = Remade::tiny("qwen4exp.gguf");
    let at = file.tensors.iter().position(|tensor| tensor.name == TABLE);
    let table = file.tensors.remove(at.expect("a table"));
    file.tensors.push(table);
    let bytes = file.bytes();
    let file = Gguf::from_bytes(bytes.clone()).expect("a valid file");
    let numbers = |key: &str| file.need_u64s(&format!("qwen4exp.ple.{key}")).expect(key);
    let ends = numbers("head_offsets")
        .into_iter()
        .zip(numbers("head_vocab_sizes"));
    let end = ends
        .map(|(offset, size)| offset + size)
        .max()
        .expect("heads");
    let table = file.tensor(TABLE).expect("a table");
    let cut = table.offset as u64 + (end - GONE) * table.row_bytes() as u64;
    (bytes, cut)
}

/// Of these requests some fail where rows are gone, and say so; the others are answered as before, and all are once the rows are there again.
pub(crate) fn check(
    engine: impl Fn(Arc<Gguf>, &ModelSettings) -> (Handle, Stopper),
    requests: &[Request],
) {
    let start = |path: &Path| {
        let file = Arc::new(Gguf::open(path).expect("a model"));
        engine(file, &settings(17, Some(2), 8))
    };
    let (bytes, cut) = with_table_last();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("table.gguf");
    std::fs::write(&path, &bytes).expect("room");
    let [expected, _] = answers(start(&path), requests);
    let (handle, stopper) = start(&path);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    // all at once: whoever fails leaves the others in his window alone
    let ask = || {
        let asked = requests.iter();
        let answers = asked.map(|request| try_answer(&handle, request.clone()));
        runtime.block_on(futures::future::join_all(answers))
    };
    let open = OpenOptions::new().write(true).open(&path).expect("open");
    open.set_len(cut).expect("cut");
    let (mut failed, mut right) = (0, 0);
    for (answer, expected) in ask().into_iter().zip(&expected) {
        match answer {
            Ok(tokens) => {
                assert_eq!(tokens, *expected);
                right += 1;
            }
            Err(error) => {
                let unreadable = matches!(error, EngineError::Unreadable { .. });
                assert!(unreadable && error.to_string().contains(TABLE), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0 && right > 0, "{failed} failed, {right} right");
    open.write_all_at(&bytes[cut as usize..], cut)
        .expect("whole again");
    for (answer, expected) in ask().into_iter().zip(&expected) {
        assert_eq!(answer.expect("an answer"), *expected);
    }
    drop(handle);
    stopper.stop(Duration::from_secs(10)).expect("it ends");
}
