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
