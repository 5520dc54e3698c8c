use std::{num::NonZeroUsize, path::Path};

use clap::{Args, Command, FromArgMatches};

use super::{file::FileSettings, written::*, *};

fn model(flags: &[&str], file: &str) -> Result<ModelSettings, SettingsError> {
    let file = FileSettings::parse(file, Path::new("t.toml"))?;
    let command = ModelWritten::augment_args(Command::new("t"));
    let matches = command
        .try_get_matches_from(["t"].iter().chain(flags))
        .expect("flags parse");
    ModelSettings::check(
        ModelWritten::from_arg_matches(&matches)
            .expect("flags fit")
            .or(file.run),
    )
}

#[test]
fn flag_wins_over_file_over_default() {
    let settings = model(
        &["--slots", "2"],
        "slots = 3\nthreads = 5\nmax-gap-ms = 70\nkv = \"q8_0\"\nmodel = \"x.gguf\"\nlisten = \"[::1]:1\"",
    )
    .unwrap();
    assert_eq!(settings.slots, 2);
    assert_eq!(settings.threads, NonZeroUsize::new(5));
    assert_eq!(settings.kv, Some(KvType::Q8_0));
    assert_eq!(settings.engine.gap_max, Some(Duration::from_millis(70)));
    assert_eq!(
        settings.engine.chunk_rows,
        EngineSettings::default().chunk_rows
    );
}

#[test]
fn wrong_settings_say_what_is_wrong() {
    let check = |flags: &[&str], file: &str, expected: &str| {
        let error = model(flags, file).expect_err(expected).to_string();
        assert!(error.contains(expected), "{file:?} {flags:?}: {error}");
    };
    check(&["--slots", "0"], "", "slots must be from 1 to 256, got 0");
    check(
        &[],
        "chunk-rows = 0",
        "chunk-rows must be from 1 to 4096, got 0",
    );
    check(
        &["--backend", "cuda"],
        "trace = \"x\"",
        "trace needs --backend cpu",
    );
    check(
        &["--max-gap-ms", "0"],
        "",
        "max-gap-ms must be from 1 to 60000, got 0",
    );
    check(&[], "chunk_rows = 1", "did you mean 'chunk-rows'?");
    check(&[], "thread = 1", "did you mean 'threads'?");
    check(
        &[],
        "completely-else = 1",
        "there is no setting 'completely-else'",
    );
    check(&[], "slots = \"four\"", "slots");
    check(&[], "slots = ", "t.toml");
    check(&[], "kv = \"q4_0\"", "q4_0");
}

/// The server's settings from the text of a file.
fn server(file: &str) -> Result<ServerSettings, SettingsError> {
    ServerSettings::check(FileSettings::parse(file, Path::new("t.toml"))?.server)
}

const HASH: &str = "2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90";

#[test]
fn keys_and_their_limits() {
    let file = format!(
        "key-streams = 2\nkey-tokens-per-minute = 500\n[[key]]\nname = \"alice\"\nsha256 = \"{}\"\nstreams = 4\nrequests-per-minute = 60\n[[key]]\nname = \"bob\"\nsha256 = \"{}\"",
        HASH.to_uppercase(),
        "00".repeat(32)
    );
    let settings = server(&file).unwrap();
    let [alice, bob] = &settings.keys[..] else {
        panic!("{:?}", settings.keys)
    };
    assert_eq!((&alice.name[..], &bob.name[..]), ("alice", "bob"));
    assert_eq!(
        (alice.sha256[0], alice.sha256[31], bob.sha256),
        (0x2b, 0x90, [0; 32])
    );
    let limits = |key: &keys::KeySettings| {
        let keys::KeyLimits {
            streams,
            requests_per_minute,
            tokens_per_minute,
        } = key.limits;
        [streams, requests_per_minute, tokens_per_minute].map(|limit| limit.map_or(0, |n| n.get()))
    };
    assert_eq!((limits(alice), limits(bob)), ([4, 60, 500], [2, 0, 500]));
    assert_eq!(server("").unwrap(), ServerSettings::default());
}

#[test]
fn wrong_keys_say_what_is_wrong_and_show_no_key() {
    const SECRET: &str = "tg-secret";
    let check = |file: &str, expected: &str| {
        let error = server(file).expect_err(expected);
        let written = FileSettings::parse(file, Path::new("t.toml"));
        for shown in [error.to_string(), format!("{error:?} {written:?}")] {
            assert!(!shown.contains(SECRET), "{file:?}: {shown}");
        }
        let error = error.to_string();
        assert!(error.contains(expected), "{file:?}: {error}");
    };
    let table = |lines: &str| format!("[[key]]\n{lines}");
    let alice = |lines: &str| format!("[[key]]\nname = \"alice\"\n{lines}\n");
    let hash = format!("sha256 = \"{HASH}\"");
    check(&table(&hash), "[[key]] number 1 has no name");
    check(
        &table("name = \"al ice\""),
        "letters, digits and . _ @ + -, got 'al ice'",
    );
    check(&table("name = \"\""), "1 to 64");
    check(
        &table("name = \"tg-secret\""),
        "number 1: its name begins with tg-",
    );
    check(&alice(""), "key 'alice' has no sha256");
    check(
        &alice("sha256 = \"tg-secret\""),
        "must be 64 hexadecimal digits, got 9 characters",
    );
    check(
        &alice(&format!("sha256 = \"{SECRET}{}\"", "0".repeat(55))),
        "number 1 is none",
    );
    check(&alice("key = \"tg-secret\""), "there is no setting 'key'");
    check(&alice("sha256 = tg-secret"), "t.toml, line 3 ('sha256')");
    check("key = \"tg-secret\"", "[[key]]");
    check("[key]\nalice = \"tg-secret\"", "[[key]]");
    check(&alice("stream = 4"), "did you mean 'streams'?");
    check(
        &alice("requests_per_minute = 4"),
        "did you mean 'requests-per-minute'?",
    );
    check(&alice("slots = 4"), "move it above the first [[key]]");
    check("cors-origins = []", "did you mean 'cors-origin'?");
    let twice = alice(&hash).repeat(2);
    check(&twice, "two keys are named 'alice'");
    check(
        &twice.replacen("alice", "bob", 1),
        "'bob' and 'alice' have the same key",
    );
    check(
        &alice(&format!("{hash}\nstreams = 0")),
        "key 'alice': streams must be from 1 to 65536, got 0",
    );
    check(
        &alice(&format!("{hash}\ntokens-per-minute = 0")),
        "tokens-per-minute must be from 1",
    );
    check(
        &alice(&format!("{hash}\nrequests-per-minute = -1")),
        "line 4 ('requests-per-minute')",
    );
    check(
        "key-requests-per-minute = 0",
        "key-requests-per-minute must be from 1",
    );
    check(
        "max-requests = 0",
        "max-requests must be from 1 to 65536, got 0",
    );
    check(
        "receive-timeout-s = 0",
        "receive-timeout-s must be from 1 to 3600, got 0",
    );
}

#[test]
fn origins() {
    let check = |written: &str, expected: Result<cors::Cors, &str>| {
        let got = server(&format!("cors-origin = [{written}]"));
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got.cors, expected, "{written}"),
            (Err(got), Err(expected)) => {
                assert!(got.to_string().contains(expected), "{written}: {got}");
            }
            (got, expected) => panic!("{written}: {got:?} instead of {expected:?}"),
        }
    };
    let only = |origins: &[&str]| {
        Ok(cors::Cors::Only(
            origins.iter().map(|&o| o.into()).collect(),
        ))
    };
    check("", Ok(cors::Cors::Off));
    check("\"*\"", Ok(cors::Cors::Any));
    check(
        "\"http://a:1\", \"tauri://localhost\"",
        only(&["http://a:1", "tauri://localhost"]),
    );
    check(
        "\"http://A.example/x\"",
        Err("did you mean 'http://a.example'?"),
    );
    check(
        "\"localhost:3000\"",
        Err("did you mean 'http://localhost:3000'?"),
    );
    check("\"HTTPS://a\"", Err("did you mean 'https://a'?"));
    check("\"\"", Err("look like http://localhost:3000, got ''"));
    check("\"http://a b\"", Err("got 'http://a b'"));
}

#[test]
fn every_flag_has_its_environment_name() {
    let command = ServerWritten::augment_args(ModelWritten::augment_args(Command::new("t")));
    for flag in command.get_arguments() {
        let long = flag.get_long().expect("every setting is a long flag");
        let expected = format!("TIDEGATE_{}", long.replace('-', "_").to_uppercase());
        assert_eq!(
            flag.get_env().and_then(|env| env.to_str()),
            Some(expected.as_str())
        );
    }
}
