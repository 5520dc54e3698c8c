//! Where files are kept that can be made again.

use std::path::{Path, PathBuf};

/// A folder of ours below the user's cache directory, if there is one.
pub fn cache_directory(folder: &str) -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?;
    Some(base.join("tidegate").join(folder))
}
