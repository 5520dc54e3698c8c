//! The TOML settings file: a flat table whose keys are the flags' names.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use serde::Deserialize;

use super::{
    SettingsError,
    written::{ModelWritten, ServerWritten},
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
        let wrong = |source: toml::de::Error| SettingsError::Toml {
            path: path.into(),
            source: Box::new(source),
        };
        let table: toml::Table = toml::from_str(text).map_err(wrong)?;
        let names = names();
        if let Some(name) = table.keys().find(|key| !names.contains(key)) {
            return Err(SettingsError::UnknownName {
                path: path.into(),
                name: name.clone(),
                nearest: nearest(name, &names),
            });
        }
        Ok(Self {
            model: toml::from_str::<ModelKey>(text).map_err(wrong)?.model,
            run: toml::from_str(text).map_err(wrong)?,
            server: toml::from_str(text).map_err(wrong)?,
        })
    }
}

/// The names of all settings, from the flags themselves.
fn names() -> Vec<String> {
    let flags = ServerWritten::augment_args(ModelWritten::augment_args(Command::new("names")));
    let flags = flags
        .get_arguments()
        .filter_map(|flag| flag.get_long())
        .map(str::to_owned);
    flags.chain(["model".to_owned()]).collect()
}

/// The name most like `name`, unless none is.
fn nearest(name: &str, names: &[String]) -> Option<String> {
    const ALIKE: f64 = 0.75;
    let written = name.replace('_', "-");
    let alike = names
        .iter()
        .map(|known| (strsim::jaro_winkler(&written, known), known));
    alike
        .filter(|&(alike, _)| alike > ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known.clone())
}
