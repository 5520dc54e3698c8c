use std::{fs, io::Read, path::Path, thread};

use proptest::prelude::*;

use super::{
    Header,
    error::{RecordError, TraceError},
    pack::{get_ids, id_bits, packed_bytes, put_ids, put_varint},
    reader::{Ending, Reader, Told},
    recorder::Recorder,
};
use crate::{
    backend::{ExpertLayer, Needs},
    engine::executor::{Ask, Lane, Slot, Span},
    model::window::Rows,
};

/// Layers 1 and 3 have experts.
fn needs() -> Needs {
    let layer = |layer, experts, used, expert_bytes| ExpertLayer {
        layer,
        experts,
        used,
        expert_bytes,
    };
    Needs {
        expert_layers: vec![layer(1, 60, 3, 700), layer(3, 5, 2, 900)],
        common_bytes: 12_345,
        ..Needs::default()
    }
}

/// Rows of (slot, position, rows, whether the last one's logits are asked).
fn rows(spans: &[(u32, u32, usize, bool)]) -> Rows {
    let tokens = [0; 64];
    let spans: Vec<Span<'_>> = spans
        .iter()
        .map(|(slot, first, rows, asked)| Span {
            slot: Slot(*slot),
            first: *first,
            tokens: &tokens[..*rows],
            pages: &[],
            logits: usize::from(*asked),
            ask: Ask::Greedy,
            drafts: 0,
        })
        .collect();
    let mut rows = Rows::default();
    rows.fill(&spans);
    rows
}

/// What [`Reader`] gives, owned. What is said ahead has no spans, and a layer of 100 for each layer before.
type Seen = (usize, Vec<(u32, usize, bool)>, Vec<u16>);

fn seen(told: &Told<'_>) -> Seen {
    let choices = match told {
        Told::Chosen(choices) => choices,
        Told::Ahead(ahead) => {
            let ids = ahead.ids.to_vec();
            return (ahead.layer + 100 * ahead.distance, Vec::new(), ids);
        }
    };
    let spans = choices.spans.iter();
    (
        choices.layer,
        spans
            .map(|span| (span.slot, span.rows, span.decode))
            .collect(),
        choices.ids.to_vec(),
    )
}

fn read(bytes: impl Read) -> Result<(Vec<Seen>, Ending), TraceError> {
    let mut reader = Reader::new(bytes)?;
    let mut all = Vec::new();
    while let Some(told) = reader.next_told()? {
        all.push(seen(&told));
    }
    Ok((all, reader.ending()))
}

/// Ids that differ from call to call.
fn ids(count: usize, experts: u16, salt: usize) -> Vec<u16> {
    let id = |at: usize| ((at * 7 + salt * 13) % usize::from(experts)) as u16;
    (0..count).map(id).collect()
}

/// Takes a window through layers `from..4`; what a reader shall see.
fn layers(
    recorder: &mut Recorder,
    lane: Lane,
    window: &Rows,
    from: usize,
    spans: &[(u32, usize, bool)],
) -> Vec<Seen> {
    let mut expected = Vec::new();
    for layer in from..4 {
        recorder.enter(lane, (layer, 0), window);
        let choice = match layer {
            1 => (0, ids(3 * window.count(), 60, layer)),
            3 => (1, ids(2 * window.count(), 5, layer)),
            _ => continue,
        };
        recorder.chosen(&choice.1);
        expected.push((choice.0, spans.to_vec(), choice.1));
        if choice.0 == 0 && spans.iter().any(|(_, _, decode)| *decode) {
            let ahead = ids(2 * window.count(), 5, 8);
            recorder.ahead(1, 1, &ahead);
            expected.push((101, Vec::new(), ahead));
        }
    }
    expected
}

/// A prompt in two chunks beside a stream, a slot that leaves in the middle, and a slot that is used again.
fn small(path: &Path) -> Vec<Seen> {
    let mut recorder = Recorder::create(path, "m\u{f6}del").unwrap();
    recorder.describe(&needs());
    let recorder = &mut recorder;
    let chunk = rows(&[(0, 0, 5, false)]);
    let mut all = layers(recorder, Lane::Prompt, &chunk, 0, &[(0, 5, false)]);
    let chunk = rows(&[(0, 5, 4, true)]);
    all.extend(layers(recorder, Lane::Prompt, &chunk, 0, &[(0, 4, false)]));
    // a stream's token, and a prompt of one row
    let mixed = rows(&[(0, 9, 1, true), (2, 0, 1, true)]);
    all.extend(layers(
        recorder,
        Lane::Decode,
        &mixed,
        0,
        &[(0, 1, true), (2, 1, false)],
    ));
    // a chunk is left for a decode window, and slot 3 is gone afterwards
    let mut long = rows(&[(3, 0, 6, false), (1, 0, 7, false)]);
    recorder.enter(Lane::Prompt, (0, 0), &long);
    recorder.enter(Lane::Prompt, (1, 0), &long);
    let first = ids(3 * 13, 60, 1);
    recorder.chosen(&first);
    all.push((0, vec![(3, 6, false), (1, 7, false)], first));
    let streams = rows(&[(0, 10, 1, true), (2, 1, 1, true)]);
    all.extend(layers(
        recorder,
        Lane::Decode,
        &streams,
        0,
        &[(0, 1, true), (2, 1, true)],
    ));
    long.remove(Slot(3));
    all.extend(layers(recorder, Lane::Prompt, &long, 2, &[(1, 7, false)]));
    let again = rows(&[(0, 0, 1, true)]);
    all.extend(layers(recorder, Lane::Decode, &again, 0, &[(0, 1, false)]));
    all
}

fn small_file() -> (Vec<u8>, Vec<Seen>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    let expected = small(&path);
    (fs::read(&path).unwrap(), expected)
}

#[test]
fn what_is_recorded_is_read() {
    let (bytes, expected) = small_file();
    let header = Header::new("m\u{f6}del", &needs());
    assert_eq!(*Reader::new(&bytes[..]).unwrap().header(), header);
    assert_eq!(
        (header.experts_bytes(), header.token_bytes()),
        (46_500, 3_900)
    );
    let (got, ending) = read(&bytes[..]).unwrap();
    assert_eq!(got, expected);
    assert_eq!((ending.dropped, ending.cut, ending.windows), (0, false, 6));
}

#[test]
fn a_file_that_breaks_off_is_read_up_to_there() {
    let (bytes, expected) = small_file();
    let header = Header::new("m\u{f6}del", &needs()).encode().len();
    for end in 0..bytes.len() {
        match read(&bytes[..end]) {
            Ok((got, ending)) => {
                assert!(end >= header && ending.cut, "{end}");
                assert_eq!(got, expected[..got.len()], "{end}");
            }
            Err(TraceError::ShortHeader { .. }) => assert!(end < header, "{end}"),
            Err(error) => panic!("{end}: {error}"),
        }
    }
}

/// The bytes of every piece, heads included, the end included.
fn pieces(bytes: &[u8], header: usize) -> Vec<&[u8]> {
    let (mut pieces, mut at) = (Vec::new(), header);
    while at < bytes.len() {
        let length = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap());
        let end = at + 8 + length as usize;
        pieces.push(&bytes[at..end]);
        at = end;
    }
    pieces
}

#[test]
fn pieces_that_are_missing_are_counted_and_the_others_read() {
    let (bytes, expected) = small_file();
    let header = Header::new("m\u{f6}del", &needs()).encode().len();
    let pieces = pieces(&bytes, header);
    for missing in 0..pieces.len() - 1 {
        let mut rest = bytes[..header].to_vec();
        let kept = pieces.iter().enumerate().filter(|(at, _)| *at != missing);
        kept.for_each(|(_, piece)| rest.extend_from_slice(piece));
        let (got, ending) = read(&rest[..]).unwrap();
        assert_eq!((ending.dropped, ending.cut), (1, false), "{missing}");
        assert!(got.len() < expected.len());
        let mut from = expected.iter();
        assert!(got.iter().all(|seen| from.any(|expected| expected == seen)));
    }
}

#[test]
fn a_disk_that_is_too_slow_loses_pieces_and_never_the_engine() {
    const WINDOWS: u32 = 2000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name is a C string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    // held open for both, so that opening waits for nobody
    let pipe = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let mut recorder = Recorder::create(&path, "m").unwrap();
    recorder.describe(&needs());
    let window = rows(&[(0, 0, 64, false)]);
    for _ in 0..WINDOWS {
        layers(&mut recorder, Lane::Decode, &window, 0, &[]);
    }
    let (got, ending) = thread::scope(|scope| {
        let reader = scope.spawn(|| read(&pipe).unwrap());
        drop(recorder);
        reader.join().unwrap()
    });
    assert_eq!(ending.dropped + ending.pieces, WINDOWS);
    assert!(ending.dropped > 0 && !ending.cut, "{ending:?}");
    assert_eq!(got.len(), 2 * ending.pieces as usize);
}

#[test]
fn what_is_chosen_between_parts_belongs_to_no_window() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let mut recorder = Recorder::create(&path, "m").unwrap();
    recorder.describe(&needs());
    // the only chunk of a prompt: its first layer in two parts, and left inside the second before its experts are chosen
    let chunk = rows(&[(0, 0, 5, true)]);
    for place in [(0, 0), (0, 1), (1, 0)] {
        recorder.enter(Lane::Prompt, place, &chunk);
        recorder.leave();
    }
    // a prediction block chooses experts for a row
    recorder.chosen(&ids(3, 60, 9));
    let stream = rows(&[(1, 7, 1, true)]);
    recorder.enter(Lane::Decode, (0, 0), &stream);
    recorder.leave();
    recorder.chosen(&ids(3, 60, 9));
    recorder.enter(Lane::Prompt, (1, 1), &chunk);
    let choice = ids(3 * 5, 60, 1);
    recorder.chosen(&choice);
    recorder.leave();
    drop(recorder);
    let (got, ending) = read(fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(got, [(0, vec![(0, 5, false)], choice)]);
    assert!(!ending.cut);
}

/// A header and one piece of these records.
fn one_piece(records: &[u8]) -> Vec<u8> {
    let mut bytes = Header::new("m", &needs()).encode();
    bytes.extend_from_slice(&0_u32.to_le_bytes());
    bytes.extend_from_slice(&(records.len() as u32).to_le_bytes());
    bytes.extend_from_slice(records);
    bytes
}

#[test]
fn wrong_records_say_what_is_wrong() {
    let check = |records: &[u8], expected: RecordError| match read(&one_piece(records)[..]) {
        Err(TraceError::Record { piece: 0, reason }) => assert_eq!(reason, expected),
        other => panic!("{records:?}: {other:?}"),
    };
    let range = |what, got, low, high| RecordError::OutOfRange {
        what,
        got,
        low,
        high,
    };
    check(&[9], RecordError::Kind { got: 9 });
    check(&[3, 0], RecordError::NoWindow { lane: 0 });
    check(&[1, 1, 0, 2, 0x83, 0], RecordError::NoWindow { lane: 1 });
    check(&[1, 0x80], RecordError::Varint);
    check(&[1, 0], range("the number of spans", 0, 1, 1 << 20));
    check(&[1, 1, 0, 1], range("a span's rows", 1, 2, (2 << 20) + 1));
    check(&[1, 1, 0, 2, 3, 2], range("a layer's index", 2, 0, 1));
    check(
        &[1, 1, 0, 2, 3, 0, 1],
        RecordError::Short { needed: 3, left: 1 },
    );
    check(&[1, 1, 0, 2, 3, 0, 63, 0, 0], range("an expert", 63, 0, 59));
    check(&[4, 0, 1], RecordError::NoWindow { lane: 0 });
    check(&[1, 1, 0, 2, 4, 1, 0], range("a distance", 0, 1, 1));
    check(&[1, 1, 0, 2, 4, 1, 1, 7], range("an expert", 7, 0, 4));
    // a million rows are claimed, and nothing is there
    let mut records = vec![1, 1, 0];
    put_varint(&mut records, 2 << 20);
    records.extend_from_slice(&[3, 0]);
    check(
        &records,
        RecordError::Short {
            needed: (3 << 20) * 6 / 8,
            left: 0,
        },
    );
}

#[test]
fn wrong_files_say_what_is_wrong() {
    let header = Header::new("m", &needs()).encode();
    let check = |bytes: &[u8], expected: &str| {
        let error = read(bytes).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    };
    let changed = |at: usize, to: &[u8]| {
        let mut bytes = header.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    };
    check(b"", "at the first bytes");
    check(b"GGUF\x03\0\0\0", "it is no routing trace");
    check(&changed(8, &[7]), "version 7, this program reads version 1");
    check(
        &changed(12, &[0xff, 0xff]),
        "length is 65535, it must be from 0 to 1024",
    );
    check(&changed(14, &[0xff]), "UTF-8");
    check(
        &changed(23, &[0, 0]),
        "layers is 0, it must be from 1 to 4096",
    );
    check(
        &changed(29, &[0xff; 4]),
        "experts is 4294967295, it must be from 1 to 65536",
    );
    check(
        &changed(33, &[61]),
        "experts used is 61, it must be from 1 to 60",
    );
    check(&changed(37, &[0; 8]), "bytes is 0, it must be from 1");
    check(&changed(45, &[1]), "layer 1 is listed after layer 1");
    let piece = |number: u32, length: u32| {
        [&header[..], &number.to_le_bytes(), &length.to_le_bytes()].concat()
    };
    check(
        &piece(0, u32::MAX),
        "length is 4294967295, it must be from 0 to 8388608",
    );
    let again = [one_piece(&[1, 1, 0, 2]), [0; 8].to_vec()].concat();
    check(&again, "piece 0 comes where piece 1");
}

proptest! {
    #[test]
    fn ids_take_few_bits_and_come_back(experts in 1_usize..=1 << 16, seeds in prop::collection::vec(any::<u16>(), 0..200)) {
        let ids: Vec<u16> = seeds.iter().map(|id| (usize::from(*id) % experts) as u16).collect();
        let (bits, mut packed, mut got) = (id_bits(experts), Vec::new(), vec![0; ids.len()]);
        put_ids(&mut packed, &ids, bits);
        prop_assert_eq!(Some(packed.len()), packed_bytes(ids.len(), bits));
        prop_assert!(bits == 1 || experts > 1 << (bits - 1));
        get_ids(&packed, &mut got, bits);
        prop_assert_eq!(got, ids);
    }

    #[test]
    fn no_damage_makes_a_reader_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), end in any::<prop::sample::Index>()) {
        let (mut bytes, _) = small_file();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(end.index(bytes.len()) + 1);
        if let Ok((all, _)) = read(&bytes[..]) {
            prop_assert!(all.iter().map(|(_, _, ids)| ids.len()).sum::<usize>() <= 8 * bytes.len());
        }
    }

    #[test]
    fn no_noise_makes_a_reader_panic(records in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&one_piece(&records)[..]);
        let _ = read(&records[..]);
    }
}
