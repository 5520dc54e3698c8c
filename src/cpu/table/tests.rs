use super::*;
use crate::gguf::{Entry, HeaderWriter};

const WIDTH: usize = 64;
const ROWS: usize = 1000;

/// A file with a table whose row `r` is `r, r, ..`, and one byte more than there should be, or fewer.
fn table(folder: &tempfile::TempDir, cut: usize) -> (std::path::PathBuf, Arc<Table>) {
    let mut header = HeaderWriter::new();
    header.set("general.architecture", Entry::Str("table"));
    header.tensor("t.weight", &[WIDTH, ROWS], BlockType::F32);
    let mut bytes = header.finish();
    for row in 0..ROWS {
        bytes.extend([row as f32; WIDTH].iter().flat_map(|x| x.to_le_bytes()));
    }
    let path = folder.path().join("table.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let file = Arc::new(Gguf::open(&path).unwrap());
    if cut > 0 {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len((bytes.len() - cut) as u64).unwrap();
    }
    let tensor = file.tensor("t.weight").unwrap().clone();
    let source = MatrixSource {
        tensor,
        inputs: WIDTH,
        rows: 0..ROWS,
    };
    (path, Arc::new(Table::new(file, source)))
}

fn first(held: &Held<'_>, row: u64) -> f32 {
    f32::from_le_bytes(held.get(row)[..4].try_into().unwrap())
}

#[test]
fn rows_arrive_and_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (_, table) = table(&folder, 0);
    let mut tables = Tables::default();
    tables.open(&table);
    let wanted = [7, 500, 501, 7, 999, 0];
    tables.ask(Lane::Prompt, &wanted);
    tables.ask(Lane::Decode, &[3, 500]);
    for (lane, wanted) in [(Lane::Decode, &[3, 500][..]), (Lane::Prompt, &wanted)] {
        let held = tables.rows(&table, lane, wanted).unwrap();
        for row in wanted {
            assert_eq!(first(&held, *row), *row as f32);
        }
    }
    let before = tables.stats();
    // rows 0 and 7, 500 and 501 lie near each other
    assert_eq!((before.rows, before.hits, before.reads), (7, 0, 5));
    // a window of which rows were withdrawn, and one that nobody announced
    tables.ask(Lane::Prompt, &wanted);
    assert_eq!(
        first(&tables.rows(&table, Lane::Prompt, &[501]).unwrap(), 501),
        501.0
    );
    assert_eq!(
        first(&tables.rows(&table, Lane::Prompt, &[8]).unwrap(), 8),
        8.0
    );
    let after = tables.stats();
    assert_eq!((after.hits, after.reads), (5, before.reads + 1));
}

#[test]
fn a_file_that_was_cut_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (_, table) = table(&folder, 4 * WIDTH * 10);
    let mut tables = Tables::default();
    tables.open(&table);
    assert_eq!(
        first(&tables.rows(&table, Lane::Decode, &[1]).unwrap(), 1),
        1.0
    );
    let error = tables.rows(&table, Lane::Decode, &[995]).err().unwrap();
    assert!(error.to_string().contains("table `t.weight`"), "{error}");
    // and the next window is served again
    assert_eq!(
        first(&tables.rows(&table, Lane::Decode, &[2]).unwrap(), 2),
        2.0
    );
}

#[test]
fn the_cache_stays_within_its_room() {
    let mut cache = RowCache::new(40, 4);
    for row in 0..100u64 {
        cache.put(row, &(row as u32).to_le_bytes());
        // row 0 is used again and again
        assert_eq!(cache.get(0), Some(&[0u8; 4][..]));
    }
    let there = (0..100).filter(|row| cache.get(*row).is_some()).count();
    assert_eq!(there, 10);
}

#[test]
fn near_rows_are_read_together() {
    let rows = |rows: &[u64]| Extent {
        rows: rows.to_vec(),
    };
    let together = Extent::together(&[1, 2, 40, 1000, 1001], 100);
    assert_eq!(together, [rows(&[1, 2, 40]), rows(&[1000, 1001])]);
    let long: Vec<u64> = (0..1000).collect();
    assert!(
        Extent::together(&long, 100)
            .iter()
            .all(|extent| extent.bytes(100) <= 64 << 10)
    );
}
