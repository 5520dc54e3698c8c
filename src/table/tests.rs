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

fn first(held: &Held<'_>, row: u64) -> Option<f32> {
    let bytes = held.get(row)?;
    Some(f32::from_le_bytes(bytes[..4].try_into().unwrap()))
}

/// These rows of a window are those of the file.
fn check(tables: &mut Tables, lane: Lane, wanted: &[u64]) {
    let held = tables.rows(lane, wanted);
    for row in wanted {
        assert_eq!(first(&held, *row), Some(*row as f32));
    }
    assert!(held.why().is_none());
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
    check(&mut tables, Lane::Decode, &[3, 500]);
    check(&mut tables, Lane::Prompt, &wanted);
    let before = tables.stats().clone();
    // rows 0 and 7, 500 and 501 lie near each other; row 500 is read once for both windows
    assert_eq!((before.rows, before.reads), (7, 4));
    // a window of which rows were withdrawn, and one that nobody announced
    tables.ask(Lane::Prompt, &wanted);
    check(&mut tables, Lane::Prompt, &[501]);
    check(&mut tables, Lane::Prompt, &[8]);
    let after = tables.stats().clone();
    assert_eq!(
        (after.hits - before.hits, after.reads),
        (5, before.reads + 1)
    );
}

#[test]
fn what_was_read_ahead_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let (_, table) = table(&folder, 0);
    let mut tables = Tables::default();
    tables.open(&table);
    let rows: Vec<u64> = (0..900).step_by(3).collect();
    tables.ahead(&rows);
    tables.ahead(&rows[100..]);
    let reads = tables.stats().reads;
    assert_eq!(tables.stats().ahead, 300);
    // what is under way is not read again, whether it has come or not
    check(&mut tables, Lane::Prompt, &rows);
    check(&mut tables, Lane::Decode, &rows);
    assert_eq!((tables.stats().reads, tables.stats().rows), (reads, 600));
}

#[test]
fn what_a_window_waits_for_is_read_first() {
    let folder = tempfile::tempdir().unwrap();
    let (_, table) = table(&folder, 0);
    // no threads, so that the queue stays as it is
    let shared = readers::Shared::default();
    let extents = |rows: &[u64]| Extent::together(rows, table.row_bytes());
    shared.put(extents(&[0, 100, 200]), false);
    shared.put(extents(&[300]), true);
    shared.hurry(|row| row == 100);
    let order: Vec<u64> = (0..4).map(|_| shared.next().unwrap().0.rows[0]).collect();
    assert_eq!(order, [300, 100, 0, 200]);
}

/// Rows that are gone are lost to their window, with the reason, and others are not.
#[test]
fn a_file_that_was_cut_loses_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (path, table) = table(&folder, 4 * WIDTH * 10);
    let mut tables = Tables::default();
    tables.open(&table);
    check(&mut tables, Lane::Decode, &[1]);
    tables.ahead(&[996]);
    // 988 is read together with one that is gone
    let held = tables.rows(Lane::Decode, &[500, 995, 988, 1]);
    let rows = [500, 995, 988, 1].map(|row| first(&held, row));
    assert_eq!(rows, [Some(500.0), None, Some(988.0), Some(1.0)]);
    let why = held.why().unwrap().to_string();
    assert!(why.contains("table `t.weight`"), "{why}");
    // the next window is served again, and what comes back is there again
    check(&mut tables, Lane::Decode, &[2]);
    let mut bytes = std::fs::read(&path).unwrap();
    for row in 990..ROWS {
        bytes.extend([row as f32; WIDTH].iter().flat_map(|x| x.to_le_bytes()));
    }
    std::fs::write(&path, bytes).unwrap();
    check(&mut tables, Lane::Decode, &[995, 996]);
}

/// A disk that does not answer is an error, not a wait without end, and what comes later is there for the next window.
#[test]
fn rows_that_do_not_come_in_time_are_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (_, table) = table(&folder, 0);
    let mut tables = Tables {
        patience: Duration::from_millis(20),
        ..Tables::default()
    };
    tables.open(&table);
    let (readers, disk) = Readers::none();
    tables.open.as_mut().unwrap().readers = readers;
    tables.ahead(&[1]);
    let begun = Instant::now();
    for lane in [Lane::Prompt, Lane::Decode] {
        let held = tables.rows(lane, &[1, 500]);
        assert_eq!([1, 500].map(|row| first(&held, row)), [None, None]);
        let why = held.why().unwrap().to_string();
        let expected = "table `t.weight`: 2 rows have not come after 0s; is the disk alive?";
        assert_eq!(why, expected);
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "it waited twice");
    for row in [1u64, 500] {
        let sent = disk.send(Read {
            extent: Extent { rows: vec![row] },
            urgent: true,
            offset: row * 4 * WIDTH as u64,
            bytes: Ok([row as f32; WIDTH]
                .iter()
                .flat_map(|x| x.to_le_bytes())
                .collect()),
        });
        assert!(sent.is_ok());
    }
    tables.ask(Lane::Decode, &[1, 500]);
    check(&mut tables, Lane::Decode, &[1, 500]);
}

#[test]
fn the_cache_stays_within_its_room() {
    let mut cache = RowCache::new(10 * (4 + cache::BESIDE_BYTES), 4);
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
