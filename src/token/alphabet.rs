//! How byte-level vocabularies spell bytes: each as one printable character, so that a token is a readable string.
//!
//! The printable bytes of Latin-1 stand for themselves, the other 68 for U+0100 and on, in order. **Source**: GPT-2's `bytes_to_unicode`.

/// Bytes spelled by themselves.
fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The byte that a character of the alphabet spells.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xff => u8::try_from(code).ok().filter(|&byte| is_printable(byte)),
        // the 68 others: 0..=0x20, 0x7f..=0xa0, 0xad
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Appends the bytes that `spelling` stands for; `false`, with nothing appended, if it leaves the alphabet.
pub(super) fn unspell(spelling: &str, into: &mut Vec<u8>) -> bool {
    let start = into.len();
    for c in spelling.chars() {
        match byte_of(c) {
            Some(byte) => into.push(byte),
            None => {
                into.truncate(start);
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let mut bytes: Vec<u8> = ('\0'..'\u{200}').filter_map(byte_of).collect();
        assert_eq!(bytes.len(), 256);
        bytes.sort_unstable();
        assert!(bytes.iter().copied().eq(0..=255));
    }

    #[test]
    fn known_spellings() {
        fn check(spelling: &str, bytes: Option<&[u8]>) {
            let mut into = vec![7];
            assert_eq!(unspell(spelling, &mut into), bytes.is_some());
            assert_eq!(&into[1..], bytes.unwrap_or_default());
        }
        check("Ġthe", Some(b" the"));
        check("ĊĊ", Some(b"\n\n"));
        check("Ã©", Some("é".as_bytes()));
        check("ŃĢł", Some(&[0xad, 0x80, 0xa0]));
        check("<｜end｜>", None);
        check("a b", None);
    }
}
