//! Files that a run is recorded to.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read},
    path::Path,
};

/// Creates a file to record to, or empties an earlier record: one that begins with `begins`. Pipes and devices are taken as they are.
///
/// **Errors**: it cannot be written; or it holds something else, such as the model itself, which stays.
pub(crate) fn create(path: &Path, begins: &[u8]) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() > 0) {
        let mut first = Vec::new();
        File::open(path)?
            .take(begins.len() as u64)
            .read_to_end(&mut first)?;
        if first != begins {
            return Err(io::Error::new(
                ErrorKind::AlreadyExists,
                "it holds something else; name a new file, or remove this one",
            ));
        }
    }
    File::create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_records_are_emptied() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        create(&path, b"mark").expect("a new file");
        create(&path, b"mark").expect("an empty one");
        for (held, kept) in [("mark and more", false), ("mar", true), ("GGUF", true)] {
            fs::write(&path, held).expect("room");
            let refused =
                create(&path, b"mark").is_err_and(|e| e.kind() == ErrorKind::AlreadyExists);
            assert_eq!(refused, kept, "{held}");
            let left = fs::read_to_string(&path).expect("text");
            assert_eq!(left, if kept { held } else { "" });
        }
    }
}
