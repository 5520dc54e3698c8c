//! The `tidegate` program: see `tidegate --help`.

use std::process::ExitCode;

/// Bytes at the alignment that a mapped file has, as far as tensors care.
#[repr(C, align(64))]
struct Aligned<B: ?Sized>(B);

/// The model that is used when no file is named. The system maps it with the program, and reads only what is touched.
static BUNDLED: &Aligned<[u8]> = &Aligned(*include_bytes!("../fixtures/tales/tales.gguf"));

fn main() -> ExitCode {
    tidegate::cli::main(&BUNDLED.0)
}
