//! Finds stop strings in a text that comes in parts. Pure.

/// How much of a text is certain to come before any stop string, in bytes from the text's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No stop string so far; the text up to here is no part of one.
    Nothing(usize),
    /// A stop string starts here.
    Match(usize),
}

impl Found {
    /// Bytes of text before any stop string.
    pub fn certain(self) -> usize {
        match self {
            Self::Nothing(at) | Self::Match(at) => at,
        }
    }

    /// Whether a stop string was found.
    pub fn is_match(self) -> bool {
        matches!(self, Self::Match(_))
    }
}

/// Finds the stop string that is complete first (of those that end at the same byte, the longest), however the text is split.
///
/// **Source**: Knuth, Morris, Pratt 1977, one automaton a stop string.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Prefixes>,
    /// Bytes seen.
    seen: usize,
}

/// A stop string and how much of it the text ends with.
#[derive(Clone, Debug)]
struct Prefixes {
    stop: Vec<u8>,
    /// `[i]`: length of the longest proper prefix of the stop string that its first `i + 1` bytes end with.
    borders: Vec<usize>,
    matched: usize,
}

impl StopMatcher {
    /// For these stop strings; empty ones never match.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty());
        Self {
            stops: stops.map(|stop| Prefixes::new(stop.as_bytes())).collect(),
            seen: 0,
        }
    }

    /// Adds text, up to the first match in it.
    pub fn push(&mut self, text: &str) -> Found {
        for byte in text.bytes() {
            self.seen += 1;
            let complete = self
                .stops
                .iter_mut()
                .filter_map(|stop| stop.push(byte))
                .max();
            if let Some(length) = complete {
                return Found::Match(self.seen - length);
            }
        }
        let held = self
            .stops
            .iter()
            .map(|stop| stop.matched)
            .max()
            .unwrap_or(0);
        Found::Nothing(self.seen - held)
    }

    /// Length of the text so far, bytes.
    pub fn end(&self) -> usize {
        self.seen
    }
}

impl Prefixes {
    fn new(stop: &[u8]) -> Self {
        let mut this = Self {
            stop: stop.to_vec(),
            borders: vec![0],
            matched: 0,
        };
        for &byte in &stop[1..] {
            this.advance(byte);
            this.borders.push(this.matched);
        }
        this.matched = 0;
        this
    }

    fn advance(&mut self, byte: u8) {
        while self.matched > 0 && self.stop[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        if self.stop[self.matched] == byte {
            self.matched += 1;
        }
    }

    /// The stop string's length, if the text now ends with it.
    fn push(&mut self, byte: u8) -> Option<usize> {
        if self.matched == self.stop.len() {
            self.matched = self.borders[self.matched - 1];
        }
        self.advance(byte);
        (self.matched == self.stop.len()).then_some(self.matched)
    }
}
