//! Standard output, where a reader may stop reading (`| head`) without that being a failure.

use std::io::{self, Write};

use super::failure::Failure;

/// Writes at once; false if nobody reads it any more.
pub(super) fn written(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(source) => Err(Failure::Io {
            what: "cannot write to standard output",
            source,
        }),
    }
}
