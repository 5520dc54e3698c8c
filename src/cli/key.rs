//! `tidegate key`.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::{KeyArgs, failure::Failure, output::written};
use crate::settings::keys::{KEY_PREFIX, check_name};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate key alice                       show the key and what to paste
  tidegate key alice 2>> tidegate.toml     show the key, append the rest
  tidegate serve --config tidegate.toml --listen 0.0.0.0:8080";

/// **Units**: bytes. 192 bits cannot be guessed, and no hash is slow enough to matter.
const KEY_BYTES: usize = 24;

pub(super) fn key(args: &KeyArgs) -> Result<(), Failure> {
    check_name(&args.name, 1)?;
    let mut random = [0; KEY_BYTES];
    getrandom::fill(&mut random).map_err(|source| Failure::Random { source })?;
    let key = format!("{KEY_PREFIX}{}", hex(&random));
    written(&format!("{key}\n"))?;
    // All of it is TOML, so that it can be appended as it is.
    eprintln!(
        "# for the settings file; the key itself is kept nowhere\n[[key]]\nname = \"{}\"\nsha256 = \"{}\"\n# streams = 4\n# requests-per-minute = 60\n# tokens-per-minute = 100000",
        args.name,
        hex(&Sha256::digest(&key)),
    );
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a String takes everything
        text
    })
}
