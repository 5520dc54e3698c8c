//! A device that is not there, is too small or fails: the program says so in a line, ends what it must, and never hangs.
//!
//! Each case is a process of its own on the stand-ins, which are told what shall fail; its model is the bundled one.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::Once,
};

use crate::{
    gpu,
    process::{Serving, serve, tidegate},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

/// Little of everything, so that stand-ins get through.
const SMALL: [&str; 6] = ["--slots", "1", "--ctx", "256", "--chunk-rows", "64"];

/// The folders that a case uses.
struct Stage {
    /// Where libraries are looked for; none but the system's where `None`.
    libraries: Option<PathBuf>,
    kernels: PathBuf,
}

impl Stage {
    /// The stand-ins with every kernel compiled; nothing where there are none.
    fn ready() -> Option<Self> {
        static WARM: Once = Once::new();
        let libraries = gpu::stand_ins()?;
        let stage = Self {
            kernels: gpu::stand_in_kernels(&libraries),
            libraries: Some(libraries),
        };
        // once, so that cases do not compile side by side
        WARM.call_once(|| {
            gpu::one_at_a_time(|| check(&mut stage.run("cuda"), 0, &[]));
        });
        Some(stage)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = tidegate(arguments);
        command.arg("--kernel-cache").arg(&self.kernels);
        match &self.libraries {
            Some(folder) => command.env("LD_LIBRARY_PATH", folder),
            None => command.env_remove("LD_LIBRARY_PATH"),
        };
        command
    }

    /// A short answer.
    fn run(&self, backend: &str) -> Command {
        self.run_in(backend, &SMALL)
    }

    fn run_in(&self, backend: &str, room: &[&str]) -> Command {
        let answer = ["run", "--backend", backend, "--temperature", "0"];
        let question = ["--max-tokens", "3", "What is 17 + 25?"];
        self.command(&[&answer[..], room, &question].concat())
    }

    fn serve(&self, fail: &str) -> Serving {
        let mut command = self.command(&serve(&[&["--backend", "cuda"], &SMALL[..]].concat()));
        command.env("CUDA_HOST_FAIL", fail);
        Serving::of(command)
    }
}

/// It ends with this code, and standard error says this. Returns both outputs.
fn check(command: &mut Command, code: i32, words: &[&str]) -> (String, String) {
    let output = command.output().expect("runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(code), "{command:?}: {out}{err}");
    for word in words {
        assert!(
            err.contains(word),
            "{command:?}: {word} is missing in: {err}"
        );
    }
    assert!(!err.contains("panicked"), "{command:?}: {err}");
    (out, err)
}

/// Lines of the log that tell of a backend.
fn told(err: &str) -> Vec<&str> {
    let told = |line: &&str| line.contains("CUDA") || line.contains("the CPU computes");
    err.lines().filter(told).collect()
}

/// With `--backend cuda` it ends with this code and says this; with `auto` the CPU answers, and says why in one line, or nothing if `silent`.
fn check_start(stage: &Stage, variables: &[(&str, &str)], code: i32, words: &[&str], silent: bool) {
    check(
        stage.run("cuda").envs(variables.iter().copied()),
        code,
        words,
    );
    let (out, err) = check(stage.run("auto").envs(variables.iter().copied()), 0, &[]);
    assert!(!out.trim().is_empty(), "{variables:?}: no answer");
    let told = told(&err);
    let why: Vec<_> = told
        .iter()
        .filter(|line| line.contains("the CPU computes"))
        .collect();
    assert_eq!(why.len(), usize::from(!silent), "{variables:?}: {err}");
    if silent {
        assert!(told.is_empty(), "{variables:?}: {err}");
    } else {
        assert!(why[0].contains(words[0]), "{variables:?}: {err}");
    }
}

#[test]
fn without_a_device_the_cpu_computes_and_says_nothing() {
    let Some(stage) = Stage::ready() else { return };
    check_start(
        &stage,
        &[("CUDA_HOST_DEVICES", "0")],
        2,
        &["there is no CUDA device 0: 0 found", "nvidia-smi -L"],
        true,
    );
    let nothing = Stage {
        libraries: None,
        ..stage
    };
    if !gpu::is_real() {
        let words = ["no CUDA driver: libcuda.so.1", "Install the NVIDIA driver"];
        check_start(&nothing, &[], 2, &words, true);
    }
}

#[test]
fn a_device_that_will_not_do_is_named() {
    let Some(stage) = Stage::ready() else { return };
    let old = "the CUDA driver is for CUDA 11.8, 12.0 or newer is needed";
    check_start(&stage, &[("CUDA_HOST_DRIVER", "11080")], 2, &[old], false);
    let small = "has compute capability 6.1, at least 7.5 is needed";
    check_start(&stage, &[("CUDA_HOST_CC", "61")], 2, &[small], false);
    let mut third = stage.run("cuda");
    check(
        third.args(["--device", "2"]),
        2,
        &["there is no CUDA device 2: 1 found"],
    );
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    let Some(stage) = Stage::ready() else { return };
    let words = [
        "20.0 MiB may be used",
        "the plan needs",
        "weights of 24.2 MiB",
    ];
    check_start(&stage, &[("CUDA_HOST_MEMORY_MIB", "340")], 2, &words, false);
    // what is advised fits
    for (room, advised) in [
        (
            ["--slots", "1", "--chunk-rows", "2048", "--ctx", "256"],
            "--chunk-rows",
        ),
        (
            ["--slots", "200", "--chunk-rows", "64", "--ctx", "256"],
            "--slots",
        ),
        (
            ["--slots", "2", "--chunk-rows", "64", "--ctx", "8192"],
            "--ctx",
        ),
    ] {
        let vram = [&["--vram", "36MiB"], &room[..]].concat();
        let (_, err) = check(
            &mut stage.run_in("cuda", &vram),
            2,
            &["36.0 MiB may be used"],
        );
        let (_, advice) = err.split_once(&format!("{advised} ")).expect("advice");
        let value = advice.split(' ').next().expect("a number");
        let at = vram.iter().position(|word| *word == advised).expect("set");
        let mut fitting = vram.clone();
        fitting[at + 1] = value;
        check(&mut stage.run_in("cuda", &fitting), 0, &[]);
    }
}

#[test]
fn a_refused_allocation_or_copy_at_the_start_is_said() {
    let Some(stage) = Stage::ready() else { return };
    for (fail, words) in [
        (
            "memalloc:2",
            ["allocating device memory failed", "OUT_OF_MEMORY"],
        ),
        (
            "hostalloc:1",
            ["allocating pinned memory failed", "OUT_OF_MEMORY"],
        ),
        ("h2d:3", ["uploading weights failed", "LAUNCH_FAILED"]),
        ("launch:2", ["launching a kernel failed", "LAUNCH_FAILED"]),
        ("kernel:1", ["failed", "ILLEGAL_ADDRESS"]),
        ("module:1+", ["loading a kernel failed", "OUT_OF_MEMORY"]),
    ] {
        check_start(&stage, &[("CUDA_HOST_FAIL", fail)], 2, &words, false);
    }
    // it is there, and breaks at the first token
    let words = ["the warm-up generation failed: CUDA: recording a window failed"];
    check_start(
        &stage,
        &[("CUDA_HOST_FAIL", "endcapture:1")],
        1,
        &words,
        false,
    );
}

/// A library path with the driver's stand-in but not the compiler's.
fn without_compiler(stage: &Stage, folder: &Path) -> PathBuf {
    let libraries = folder.join("libraries");
    fs::create_dir(&libraries).expect("a folder");
    let from = stage.libraries.as_ref().expect("stand-ins");
    let from = fs::canonicalize(from).expect("a folder");
    symlink(from.join("libcuda.so"), libraries.join("libcuda.so")).expect("a link");
    libraries
}

#[test]
fn without_a_compiler_only_kept_kernels_can_be_used() {
    let Some(stage) = Stage::ready() else { return };
    if gpu::is_real() {
        return; // there may be a compiler in the system's own folders
    }
    let folder = tempfile::tempdir().expect("a folder");
    let kept = Stage {
        libraries: Some(without_compiler(&stage, folder.path())),
        kernels: stage.kernels,
    };
    check(&mut kept.run("cuda"), 0, &[]);
    let empty = Stage {
        kernels: folder.path().join("kernels"),
        ..kept
    };
    let words = [
        "no CUDA compiler: libnvrtc.so cannot be loaded",
        "kernels are not in the cache yet",
    ];
    check_start(&empty, &[], 2, &words, false);
    check(&mut empty.run("cuda"), 2, &["nvidia-cuda-nvrtc"]);
}

/// Files of compiled kernels of this source.
fn kernels_of(folder: &Path, source: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let named = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.starts_with(&format!("{source}-")) && name.ends_with(".cubin")
    };
    paths.filter(named).collect()
}

#[test]
fn damaged_kernels_are_compiled_anew() {
    let Some(stage) = Stage::ready() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    for source in fs::read_dir(&stage.kernels).expect("a folder") {
        let source = source.expect("an entry").path();
        let name = source.file_name().expect("a name");
        if source.extension().is_some_and(|kind| kind == "cubin") {
            fs::copy(&source, folder.path().join(name)).expect("a copy");
        }
    }
    // torn, empty, and whole but nothing that this driver can load
    let alien = b"code for another driver".repeat(100);
    let alien = [&alien[..], &Sha256::digest(&alien)].concat();
    for (source, bytes) in [
        ("norm.cu", None),
        ("choose.cu", Some(&[][..])),
        ("swiglu.cu", Some(&alien)),
    ] {
        for path in kernels_of(folder.path(), source) {
            let whole = fs::read(&path).expect("a kernel");
            let damaged = bytes.unwrap_or(&whole[..whole.len() / 2]);
            fs::write(&path, damaged).expect("written");
        }
    }
    let copies = Stage {
        kernels: folder.path().to_owned(),
        libraries: stage.libraries,
    };
    check(
        &mut copies.run("cuda"),
        0,
        &["a kernel of the cache is compiled anew"],
    );
    let (_, err) = check(&mut copies.run("cuda"), 0, &[]);
    assert!(!err.contains("compil"), "kept after the first start: {err}");
}

/// Sends a request and looks at `/health` after it has ended; status and body of both, the answer's as text.
fn ask(server: &Serving, fields: Value) -> [(u16, String); 2] {
    let mut body = json!({"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": true});
    let members = body.as_object_mut().expect("an object");
    members.extend(fields.as_object().expect("an object").clone());
    let client = reqwest::Client::builder()
        .no_proxy()
        .build()
        .expect("a client");
    Runtime::new().expect("a runtime").block_on(async {
        let answer = client.post(format!("{}/v1/completions", server.url));
        let answer = answer
            .body(body.to_string())
            .send()
            .await
            .expect("an answer");
        let answer = (answer.status().as_u16(), answer.text().await.expect("text"));
        let health = client.get(format!("{}/health", server.url));
        let health = health.send().await.expect("an answer");
        let health = (health.status().as_u16(), health.text().await.expect("text"));
        [answer, health]
    })
}

/// The failure ends the request with an error, `/health` has the reason, a further request is refused, and the process ends with 1.
fn check_serving(fail: &str, fields: Value, why: &str) {
    let Some(stage) = Stage::ready() else { return };
    let server = stage.serve(fail);
    let streams = fields["stream"] == json!(true);
    let [(status, answer), (health, said)] = ask(&server, fields);
    assert_eq!(status, if streams { 200 } else { 503 }, "{fail}: {answer}");
    assert!(answer.contains("\"error\""), "{fail}: {answer}");
    assert_eq!(health, 503, "{fail}: {said}");
    assert!(
        said.contains("\"stopped\"") && said.contains(why),
        "{fail}: {said}"
    );
    let [(status, answer), _] = ask(&server, json!({}));
    assert!(status >= 500, "{fail}: {answer}");
    let (status, log) = server.terminate();
    assert_eq!(status.code(), Some(1), "{fail}: {log}");
    assert!(
        log.contains("the engine stopped") && log.contains(why),
        "{fail}: {log}"
    );
    assert!(!log.contains("panicked"), "{fail}: {log}");
}

#[test]
fn a_failed_launch_ends_answers_with_an_error() {
    // behind what is launched at the start
    let no_chains = json!({"drafts": false});
    check_serving("graph:40", no_chains, "launching a window failed");
}

#[test]
fn a_failed_kernel_ends_a_stream_with_an_error() {
    check_serving("kernel:1200", json!({"stream": true}), "ILLEGAL_ADDRESS");
}

#[test]
fn a_failed_copy_ends_answers_with_an_error() {
    let whole_rows = json!({"presence_penalty": 1.0});
    check_serving("d2hlarge:20", whole_rows, "fetching a row of logits failed");
}

/// The driver is gone for good, and nothing waits for it.
#[test]
fn a_lost_device_ends_answers_with_an_error() {
    check_serving(
        "sync:240+:999",
        json!({"stream": true}),
        "CUDA_ERROR_UNKNOWN", // whichever call was the first
    );
}
