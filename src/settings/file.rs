//! The TOML settings file: a flat table whose keys are the flags' names, and a `[[key]]` table for every API key.
//!
//! What is wrong is told by line and name, never by the line itself: it may hold an API key in the wrong place.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use serde::Deserialize;

use super::{
    SettingsError,
    written::{KeyWritten, ModelWritten, ServerWritten},
};

/// What a settings file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSettings {
    /// The model file (`model`).
    pub model: Option<PathBuf>,
    /// How a model is loaded and run.
    pub run: ModelWritten,
    /// How the HTTP side behaves.
    pub server: ServerWritten,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ModelKey {
    model: Option<PathBuf>,
}

impl FileSettings {
    /// Reads `path`; without one nothing is set.
    ///
    /// **Errors**: [`SettingsError`] for a file that cannot be read, is not TOML, holds a wrong type or an unknown name.
    pub fn read(path: Option<&Path>) -> Result<Self, SettingsError> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let text = std::fs::read_to_string(path).map_err(|source| SettingsError::Read {
            path: path.into(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// Reads the text of the file at `path`.
    ///
    /// **Errors**: as [`read`](Self::read).
    pub fn parse(text: &str, path: &Path) -> Result<Self, SettingsError> {
        let wrong = |error| toml_error(&error, text, path);
        let table: toml::Table = toml::from_str(text).map_err(wrong)?;
        let names = names();
        check_names(&table, &names, path)?;
        check_keys(&table, &names, path)?;
        Ok(Self {
            model: toml::from_str::<ModelKey>(text).map_err(wrong)?.model,
            run: toml::from_str(text).map_err(wrong)?,
            server: toml::from_str(text).map_err(wrong)?,
        })
    }
}

fn toml_error(error: &toml::de::Error, text: &str, path: &Path) -> SettingsError {
    let at = error.span().map_or(0, |span| span.start);
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let name = text.lines().nth(line - 1).and_then(|line| {
        let (name, _) = line.split_once('=')?;
        Some(name.trim().to_owned())
    });
    SettingsError::Toml {
        path: path.into(),
        line,
        name,
        reason: error.message().to_owned(),
    }
}

fn check_names<N: AsRef<str>>(
    table: &toml::Table,
    names: &[N],
    path: &Path,
) -> Result<(), SettingsError> {
    let known = |key: &str| names.iter().any(|name| name.as_ref() == key);
    match table.keys().find(|key| !known(key)) {
        None => Ok(()),
        Some(name) => Err(SettingsError::UnknownName {
            path: path.into(),
            name: name.clone(),
            nearest: nearest(name, names),
        }),
    }
}

/// `key` is tables, and these hold nothing else than they may.
fn check_keys(table: &toml::Table, names: &[String], path: &Path) -> Result<(), SettingsError> {
    let no_tables = || SettingsError::KeyTables { path: path.into() };
    let Some(keys) = table.get("key") else {
        return Ok(());
    };
    for key in keys.as_array().ok_or_else(no_tables)? {
        let key = key.as_table().ok_or_else(no_tables)?;
        // In TOML a line belongs to the table above it, which is easily forgotten when lines are appended.
        let own = |name: &str| KeyWritten::NAMES.contains(&name);
        let of_server = |name: &&String| name.as_str() != "key" && names.contains(name);
        if let Some(name) = key.keys().find(|name| !own(name) && of_server(name)) {
            return Err(SettingsError::BelowKey {
                path: path.into(),
                name: name.clone(),
            });
        }
        check_names(key, &KeyWritten::NAMES, path)?;
    }
    Ok(())
}

/// The names of all settings, from the flags themselves.
fn names() -> Vec<String> {
    let flags = ServerWritten::augment_args(ModelWritten::augment_args(Command::new("names")));
    let flags = flags
        .get_arguments()
        .filter_map(|flag| flag.get_long())
        .map(str::to_owned);
    flags
        .chain(["model".to_owned(), "key".to_owned()])
        .collect()
}

/// The name most like `name`, unless none is.
fn nearest<N: AsRef<str>>(name: &str, names: &[N]) -> Option<String> {
    const ALIKE: f64 = 0.75;
    let written = name.replace('_', "-");
    let alike = names.iter().map(AsRef::as_ref);
    let alike = alike.map(|known| (strsim::jaro_winkler(&written, known), known));
    alike
        .filter(|&(alike, _)| alike > ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known.to_owned())
}
