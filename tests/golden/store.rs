//! Experts in memory of their own: the same bits for every capacity, from one token's experts to all of them, whatever reads them and whatever is read ahead; and a file that is cut ends the
//! request that needs it.

use std::{fs::OpenOptions, path::Path, sync::Arc, time::Duration};

use crate::{
    bare::Bare,
    families::every_family,
    load::{answers, requests, settings},
    reference::{assert_same, tales_file, tiny, tiny_file},
};
use tidegate::{
    backend::shape::KvType,
    cpu::{
        backend::{Cpu, CpuSettings},
        store::{SimulatedDevice, StoreError, StoreSettings},
    },
    engine::request::EngineError,
    gguf::Gguf,
    model::{family, start},
    residency::{link::LinkSpeed, tier::Counts},
};

/// A simulated device whose host takes so many microseconds an expert.
fn device(seed: u64, host_us: Option<u64>) -> SimulatedDevice {
    SimulatedDevice {
        link: LinkSpeed {
            bytes_s: 1e9,
            latency: Duration::from_micros(50),
            jitter: 1.0,
            failures_per_mille: 0,
        },
        seed,
        device_expert: Duration::from_micros(5),
        host_expert: host_us.map(Duration::from_micros),
    }
}

fn cpu() -> Cpu {
    Cpu::new(CpuSettings { threads: Some(2) })
}

fn kept(ram: u64) -> StoreSettings {
    StoreSettings {
        ram,
        lookahead: true,
        ..StoreSettings::default()
    }
}

/// What one token needs, and what leaves nobody out; nothing for a model without experts. **Units**: bytes.
fn bounds(path: &Path) -> Option<(u64, u64)> {
    let file = Arc::new(Gguf::open(path).expect("a model"));
    let mut backend = cpu().keeping(kept(0));
    let model = family::load(&file, &mut backend).expect("a model");
    match backend.slot_plan(model.needs(), 0) {
        Err(StoreError::TooSmall(refused)) => Some((refused.least, refused.all)),
        Ok(None) => None,
        other => panic!("{other:?}"),
    }
}

/// Logits of a tiny model at every position, with one slot's decoding in the end; and what was found.
fn logits(store: Option<StoreSettings>, file: &str, ids: &[u32]) -> (Vec<f32>, Option<Counts>) {
    let backend = match store {
        None => cpu(),
        Some(store) => cpu().keeping(store),
    };
    let mut bare = Bare::on(backend, &tiny_file(file), 2, ids.len(), KvType::F32);
    let half = ids.len() / 2;
    let mut logits = bare.rows(0, 0, &ids[..half]).to_vec();
    for at in half..ids.len() {
        logits.extend_from_slice(bare.rows(0, at, &ids[at..=at]));
    }
    (logits, bare.runner.backend().store_counts())
}

fn check(file: &str, golden_name: &str) {
    let ids = tiny(golden_name).ids;
    let (expected, _) = logits(None, file, &ids);
    let Some((least, all)) = bounds(&tiny_file(file)) else {
        let (same, counts) = logits(Some(kept(1)), file, &ids);
        assert_same(file, &same, &expected);
        return assert_eq!(counts, None, "there are no experts to keep");
    };
    for (seed, ram) in [least, least + (all - least) / 3, all - 1, all, u64::MAX]
        .into_iter()
        .enumerate()
    {
        for store in [
            kept(ram),
            StoreSettings {
                lookahead: false,
                threads_only: true,
                ..kept(ram)
            },
            StoreSettings {
                simulated: Some(device(seed as u64, None)),
                ..kept(ram)
            },
            StoreSettings {
                simulated: Some(device(seed as u64, Some(20 * (1 + seed as u64 % 3)))),
                ..kept(ram)
            },
        ] {
            let what = format!("{file}, {store:?}");
            let (same, counts) = logits(Some(store), file, &ids);
            assert_same(&what, &same, &expected);
            let counts = counts.expect("a store");
            assert!(counts.hits > 0 || ram == least, "{what}: {counts:?}");
            assert_eq!(counts.misses == 0, ram >= all, "{what}: {counts:?}");
        }
    }
}

every_family!(check);

#[test]
fn too_little_for_a_token_is_refused_with_what_would_do() {
    let (least, _) = bounds(&tales_file()).expect("experts");
    let file = Arc::new(Gguf::open(tales_file()).expect("a model"));
    let begin = |ram| {
        let backend = move || cpu().keeping(kept(ram));
        start::start(file.clone(), backend, &settings(64, Some(2), 2))
    };
    let Err(refused) = begin(least - 1) else {
        panic!("{} bytes are enough", least - 1)
    };
    let refused = refused.to_string();
    assert!(
        refused.contains(&format!("at least {least} bytes")),
        "{refused}"
    );
    assert!(begin(least).is_ok());
}

#[test]
fn eight_at_once_get_what_each_gets_alone_from_few_slots() {
    let (least, all) = bounds(&tales_file()).expect("experts");
    let file = Arc::new(Gguf::open(tales_file()).expect("a model"));
    let run = |store: Option<StoreSettings>| {
        let backend = move || match store {
            None => cpu(),
            Some(store) => cpu().keeping(store),
        };
        let started = start::start(file.clone(), backend, &settings(64, Some(2), 8));
        answers(started.expect("an engine"), &requests(24))
    };
    let [expected, _] = run(None);
    for ram in [least, (least + all) / 2] {
        let [alone, together] = run(Some(kept(ram)));
        assert_eq!(alone, expected, "{ram} bytes");
        assert_eq!(together, expected, "{ram} bytes, together");
    }
}

/// Dividing misses over link and host takes a simulated device no longer than the better of the two alone, whichever that is.
#[test]
fn misses_are_divided_to_advantage() {
    let (least, all) = bounds(&tales_file()).expect("experts");
    let time = |host_us: Option<u64>, link_bytes_s: f64| {
        let device = device(1, host_us);
        let link = LinkSpeed {
            bytes_s: link_bytes_s,
            latency: Duration::from_micros(5),
            ..device.link
        };
        let store = StoreSettings {
            lookahead: false,
            simulated: Some(SimulatedDevice { link, ..device }),
            ..kept((2 * least + all) / 3)
        };
        let mut bare = Bare::on(cpu().keeping(store), &tales_file(), 1, 128, KvType::F16);
        for at in 0..120u32 {
            bare.rows(0, at as usize, &[3 + (at * 131) % 8000]);
        }
        let backend = bare.runner.backend_mut();
        let counts = backend.store_counts().expect("a store");
        let host_alone = 5e-6 * counts.hits as f64 + 60e-6 * counts.misses as f64;
        let time = backend.simulated_time().expect("a device");
        (time.as_secs_f64(), host_alone)
    };
    // an expert has some 30 kB: 30 us over the fast link, 300 us over the slow one
    for link_bytes_s in [1e9, 1e8] {
        let (link_alone, _) = time(None, link_bytes_s);
        let (both, host_alone) = time(Some(60), link_bytes_s);
        assert!(
            both < 1.03 * link_alone,
            "{both} s, over the link {link_alone} s"
        );
        assert!(
            both < 1.03 * host_alone,
            "{both} s, on the host {host_alone} s"
        );
    }
}

#[test]
fn a_profile_is_kept_and_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("profile.json");
    let (least, all) = bounds(&tales_file()).expect("experts");
    let run = || {
        let store = StoreSettings {
            profile: Some(path.clone()),
            lookahead: false,
            ..kept((least + all) / 2)
        };
        let mut bare = Bare::on(cpu().keeping(store), &tales_file(), 1, 64, KvType::F16);
        for at in 0..24u32 {
            bare.rows(0, at as usize, &[3 + (at * 131) % 8000]);
        }
        bare.runner
            .backend()
            .store_counts()
            .expect("a store")
            .misses
    };
    let cold = run();
    assert!(path.exists());
    let warm = run();
    assert!(2 * warm < cold, "{warm} misses after {cold}");
}

#[test]
fn failures_end_their_request_only() {
    let (least, all) = bounds(&tales_file()).expect("experts");
    let store = StoreSettings {
        simulated: Some(SimulatedDevice {
            link: LinkSpeed {
                failures_per_mille: 1,
                ..device(5, None).link
            },
            ..device(5, None)
        }),
        ..kept((least + all) / 2)
    };
    let file = Arc::new(Gguf::open(tales_file()).expect("a model"));
    let expected = {
        let backend = cpu;
        let started = start::start(file.clone(), backend, &settings(64, Some(2), 4));
        answers(started.expect("an engine"), &requests(12))
    };
    let backend = move || cpu().keeping(store);
    let started = start::start(file, backend, &settings(64, Some(2), 4));
    let (handle, stopper) = started.expect("an engine");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let (mut failed, mut right) = (0, 0);
    for _ in 0..4 {
        // all at once: whoever fails leaves the others in his window alone
        let asked = requests(12).into_iter();
        let answers = asked.map(|request| crate::load::try_answer(&handle, request));
        let answers = runtime.block_on(futures::future::join_all(answers));
        for (answer, expected) in answers.into_iter().zip(&expected[0]) {
            match answer {
                Ok(tokens) => {
                    assert_eq!(tokens, *expected);
                    right += 1;
                }
                Err(error) => {
                    let unreadable = matches!(error, EngineError::Unreadable { .. });
                    assert!(unreadable, "{error}");
                    failed += 1;
                }
            }
        }
    }
    assert!(
        failed > 0 && right > 0,
        "{failed} failed, {right} were right"
    );
    drop(handle);
    stopper.stop(Duration::from_secs(10)).expect("it ends");
}

/// The bundled model with the matrices of one layer's experts behind everything else, and where they begin.
fn with_experts_last() -> (Vec<u8>, u64) {
    let mut bytes = std::fs::read(tales_file()).expect("the file");
    let file = Gguf::open(tales_file()).expect("a model");
    let tensor = file.tensor("blk.7.ffn_down_exps.weight").expect("experts");
    let start = bytes.len().next_multiple_of(4096);
    bytes.resize(start, 0);
    bytes.extend_from_within(tensor.offset..tensor.offset + tensor.bytes);
    // name, number of dimensions, dimensions, type, offset
    let name = tensor.name.as_bytes();
    let entry = bytes.windows(name.len()).position(|at| at == name);
    let at = entry.expect("its entry") + name.len() + 4 + 8 * tensor.dims.trimmed().len() + 4;
    let offset = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let moved = offset + (start - tensor.offset) as u64;
    bytes[at..at + 8].copy_from_slice(&moved.to_le_bytes());
    (bytes, start as u64)
}

/// A file that becomes shorter while it is served: requests end with an error that says so, and when it is whole again they are answered again.
#[test]
fn a_file_that_is_cut_ends_requests_and_not_the_process() {
    let (least, _) = bounds(&tales_file()).expect("experts");
    let (bytes, cut) = with_experts_last();
    let folder = tempfile::tempdir().expect("a folder");
    for threads_only in [false, true] {
        let path = folder.path().join("cut.gguf");
        std::fs::write(&path, &bytes).expect("room");
        let file = Arc::new(Gguf::open(&path).expect("a model"));
        let store = StoreSettings {
            threads_only,
            ..kept(least)
        };
        let backend = move || cpu().keeping(store);
        let started = start::start(file, backend, &settings(64, Some(2), 2));
        let (handle, stopper) = started.expect("an engine");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let ask = || {
            let request = requests(20).swap_remove(1);
            runtime.block_on(crate::load::try_answer(&handle, request))
        };
        let before = ask().expect("an answer");
        let open = OpenOptions::new().write(true).open(&path).expect("open");
        open.set_len(cut).expect("cut");
        let error = ask().expect_err("some of its experts are gone").to_string();
        assert!(error.contains("the file ends there"), "{error}");
        std::os::unix::fs::FileExt::write_all_at(&open, &bytes[cut as usize..], cut)
            .expect("whole again");
        assert_eq!(ask().expect("an answer"), before);
        drop(handle);
        stopper.stop(Duration::from_secs(10)).expect("it ends");
    }
}
