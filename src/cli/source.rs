//! Which model: a file, or the one that is part of the program.

use std::path::PathBuf;

use crate::gguf::{Gguf, GgufError};

/// Where a model comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// The program itself holds it.
    Bundled(&'static [u8]),
    /// A GGUF file, the first one of a split model.
    File(PathBuf),
}

impl Source {
    /// The file if one is named, else the bundled model.
    pub(super) fn new(file: Option<PathBuf>, bundled: &'static [u8]) -> Self {
        file.map_or(Self::Bundled(bundled), Self::File)
    }

    /// Opens it in place.
    ///
    /// **Errors**: what is wrong with the file.
    pub(super) fn open(&self) -> Result<Gguf, GgufError> {
        let file = match self {
            Self::Bundled(bytes) => Gguf::from_bytes(*bytes)?,
            Self::File(path) => Gguf::open(path)?,
        };
        file.check_is_model()?;
        Ok(file)
    }

    /// The model's id: the file's name without `.gguf` and without the number of a split file.
    pub(super) fn id(&self) -> String {
        let Self::File(path) = self else {
            return "tales".into();
        };
        let stem = path.file_stem().map_or_else(
            || "model".into(),
            |stem| stem.to_string_lossy().into_owned(),
        );
        match stem.rsplit_once("-of-") {
            Some((first, last)) if last.len() == 5 && last.bytes().all(|b| b.is_ascii_digit()) => {
                first.strip_suffix("-00001").unwrap_or(first).to_owned()
            }
            _ => stem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Source;

    #[test]
    fn ids_are_file_names() {
        let check = |path: &str, id: &str| assert_eq!(Source::File(path.into()).id(), id, "{path}");
        check("/models/Qwen3-30B-A3B-Q4_K_M.gguf", "Qwen3-30B-A3B-Q4_K_M");
        check("m-00001-of-00003.gguf", "m");
        check("a-of-b.gguf", "a-of-b");
        check("x", "x");
        check("..", "model");
    }
}
