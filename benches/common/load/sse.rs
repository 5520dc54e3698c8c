//! Server-sent events, taken apart as their bytes come. **Source**: the HTML standard, "Interpreting an event stream"; only `data` is kept.

use std::string::FromUtf8Error;

/// What has come so far of the next event.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The line that has not ended.
    line: Vec<u8>,
    /// The `data` lines of the event that has not ended, each with a line feed behind it.
    data: String,
    /// Whether the last byte was a carriage return: a line feed behind it ends nothing.
    returned: bool,
    /// Whether a line has ended: before that a byte order mark may stand.
    begun: bool,
}

impl Events {
    /// The data of the events that end in these bytes.
    ///
    /// **Errors**: a line is not UTF-8.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<Vec<String>, FromUtf8Error> {
        let mut ended = Vec::new();
        for &byte in bytes {
            let second_half = std::mem::take(&mut self.returned) && byte == b'\n';
            match byte {
                _ if second_half => {}
                b'\r' | b'\n' => {
                    self.returned = byte == b'\r';
                    ended.extend(self.end_line()?);
                }
                _ => self.line.push(byte),
            }
        }
        Ok(ended)
    }

    /// The event's data, if the line ends one.
    fn end_line(&mut self) -> Result<Option<String>, FromUtf8Error> {
        let line = String::from_utf8(std::mem::take(&mut self.line))?;
        let mark = if self.begun { "" } else { "\u{feff}" };
        self.begun = true;
        let line = line.strip_prefix(mark).unwrap_or(&line);
        if line.is_empty() {
            let mut data = std::mem::take(&mut self.data);
            return Ok(data.pop().map(|_| data));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        if field == "data" {
            self.data += value.strip_prefix(' ').unwrap_or(value);
            self.data.push('\n');
        }
        Ok(None)
    }
}
