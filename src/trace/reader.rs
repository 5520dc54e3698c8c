//! Reading a trace, layer by layer. Trusts nothing in the file: a number that it does not bear out is an error, and memory grows with what is there, not with what is claimed.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use super::{
    AHEAD, Header, LANE_BIT, LAYER, PIECE_BYTES_MAX, SpanRows, WINDOW, WINDOW_AGAIN,
    error::{RecordError, TraceError},
    pack::{get_ids, get_varint, id_bits, packed_bytes},
};
use crate::engine::executor::Lane;

/// Rows of a span, slots, spans: far more than any server has.
const ROWS_MAX: u64 = 1 << 20;

/// What the rows of a window chose in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices<'a> {
    /// Which of the header's layers.
    pub layer: usize,
    /// The window's rows.
    pub spans: &'a [SpanRows],
    /// `[rows, used] u16`, by rank.
    pub ids: &'a [u16],
}

/// Whom a layer's router names before its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead<'a> {
    /// Which of the header's layers.
    pub layer: usize,
    /// How many layers before it the window was.
    pub distance: usize,
    /// `[rows, used] u16`, by rank.
    pub ids: &'a [u16],
}

/// What comes next in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told<'a> {
    /// What rows have chosen.
    Chosen(Choices<'a>),
    /// What they will probably choose.
    Ahead(Ahead<'a>),
}

/// How a trace ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Pieces that the writer had no time for, as far as the file tells.
    pub dropped: u32,
    /// Pieces that were read.
    pub pieces: u32,
    /// Windows that were read from their beginning.
    pub windows: u64,
    /// Whether the file breaks off: its end was never written.
    pub cut: bool,
}

/// A trace being read.
pub struct Reader<R> {
    header: Header,
    input: R,
    /// The piece's records, and how far they have been read.
    piece: Vec<u8>,
    at: usize,
    /// The least number that the next piece can have.
    next_number: u32,
    lanes: [Option<Vec<SpanRows>>; Lane::COUNT],
    ids: Vec<u16>,
    ending: Ending,
    ended: bool,
}

impl Reader<BufReader<File>> {
    /// Opens a file.
    ///
    /// **Errors**: as [`new`](Self::new).
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        Self::new(BufReader::new(File::open(path)?))
    }
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// **Errors**: it is no trace, or none that this version reads.
    pub fn new(mut input: R) -> Result<Self, TraceError> {
        Ok(Self {
            header: Header::decode(&mut input)?,
            input,
            piece: Vec::new(),
            at: 0,
            next_number: 0,
            lanes: Default::default(),
            ids: Vec::new(),
            ending: Ending::default(),
            ended: false,
        })
    }

    /// What the trace says about its model.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What has been read, and once nothing is left, how it ended.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// The next layer of a window, or what is said of one; nothing at the end, also where the file breaks off.
    ///
    /// **Errors**: reading failed, or a record is wrong.
    pub fn next_told(&mut self) -> Result<Option<Told<'_>>, TraceError> {
        loop {
            while self.at == self.piece.len() {
                if !self.next_piece()? {
                    return Ok(None);
                }
            }
            let (number, kind) = (self.next_number - 1, self.piece[self.at]);
            let wrong = |reason| TraceError::Record {
                piece: number,
                reason,
            };
            self.at += 1;
            let lane = usize::from(kind & LANE_BIT != 0);
            match kind & !LANE_BIT {
                kind @ (WINDOW | WINDOW_AGAIN) => {
                    self.window(lane).map_err(wrong)?;
                    self.ending.windows += u64::from(kind == WINDOW);
                }
                LAYER => {
                    let layer = self.layer(lane).map_err(wrong)?;
                    return Ok(Some(Told::Chosen(Choices {
                        layer,
                        spans: self.lanes[lane].as_deref().unwrap_or_default(),
                        ids: &self.ids,
                    })));
                }
                AHEAD => {
                    let (layer, distance) = self.ahead(lane).map_err(wrong)?;
                    return Ok(Some(Told::Ahead(Ahead {
                        layer,
                        distance,
                        ids: &self.ids,
                    })));
                }
                got => return Err(wrong(RecordError::Kind { got })),
            }
        }
    }

    /// Reads the next piece; false if there is none, or only a part of one.
    fn next_piece(&mut self) -> Result<bool, TraceError> {
        self.at = 0;
        self.piece.clear();
        if self.ended {
            return Ok(false);
        }
        let mut head = [0; 8];
        if !whole(&mut self.input, &mut head)? {
            return Ok(self.cut());
        }
        let [a, b, c, d, e, f, g, h] = head;
        let number = u32::from_le_bytes([a, b, c, d]);
        let length = u32::from_le_bytes([e, f, g, h]) as usize;
        if number < self.next_number {
            return Err(TraceError::PieceOrder {
                got: number,
                least: self.next_number,
            });
        }
        if length > PIECE_BYTES_MAX || number == u32::MAX {
            return Err(TraceError::OutOfRange {
                what: "a piece's length",
                got: length as u64,
                low: 0,
                high: PIECE_BYTES_MAX as u64,
            });
        }
        if length > 0 {
            // grows with what is there, whatever the length claims
            let read = (&mut self.input)
                .take(length as u64)
                .read_to_end(&mut self.piece)?;
            if read < length {
                self.piece.clear();
                return Ok(self.cut());
            }
        }
        self.ending.dropped += number - self.next_number;
        if length == 0 {
            self.ended = true;
            return Ok(false);
        }
        self.next_number = number + 1;
        self.ending.pieces += 1;
        // a piece tells of its windows itself
        self.lanes = Default::default();
        Ok(true)
    }

    fn cut(&mut self) -> bool {
        (self.ended, self.ending.cut) = (true, true);
        false
    }

    fn number(&mut self, what: &'static str, low: u64, high: u64) -> Result<u64, RecordError> {
        let mut rest = &self.piece[self.at..];
        let got = get_varint(&mut rest).ok_or(RecordError::Varint)?;
        self.at = self.piece.len() - rest.len();
        within(what, got, low, high)
    }

    fn window(&mut self, lane: usize) -> Result<(), RecordError> {
        let count = self.number("the number of spans", 1, ROWS_MAX)? as usize;
        let mut spans = Vec::new();
        for _ in 0..count {
            let slot = self.number("a slot", 0, ROWS_MAX)?;
            let rows = self.number("a span's rows", 2, 2 * ROWS_MAX + 1)?;
            spans.push(SpanRows {
                slot: slot as u32,
                rows: (rows / 2) as usize,
                decode: rows % 2 == 1,
            });
        }
        self.lanes[lane] = Some(spans);
        Ok(())
    }

    fn layer(&mut self, lane: usize) -> Result<usize, RecordError> {
        let last = self.header.layers.len() as u64 - 1;
        let index = self.number("a layer's index", 0, last)? as usize;
        self.ids(lane, index)?;
        Ok(index)
    }

    fn ahead(&mut self, lane: usize) -> Result<(usize, usize), RecordError> {
        let last = self.header.layers.len() as u64 - 1;
        let index = self.number("a layer's index", 0, last)? as usize;
        let distance = self.number("a distance", 1, last.max(1))? as usize;
        self.ids(lane, index)?;
        Ok((index, distance))
    }

    /// Reads the ids of a lane's rows, in the layer with this index.
    fn ids(&mut self, lane: usize, index: usize) -> Result<(), RecordError> {
        let layer = self.header.layers[index];
        let spans = self.lanes[lane].as_ref();
        let spans = spans.ok_or(RecordError::NoWindow { lane })?;
        let rows: usize = spans.iter().map(|span| span.rows).sum();
        let bits = id_bits(layer.experts);
        let left = self.piece.len() - self.at;
        let ids = rows.saturating_mul(layer.used);
        let needed = packed_bytes(ids, bits).unwrap_or(usize::MAX);
        if needed > left {
            return Err(RecordError::Short { needed, left });
        }
        self.ids.resize(ids, 0);
        get_ids(&self.piece[self.at..][..needed], &mut self.ids, bits);
        self.at += needed;
        let highest = u64::from(self.ids.iter().copied().max().unwrap_or(0));
        within("an expert", highest, 0, layer.experts as u64 - 1)?;
        Ok(())
    }
}

fn within(what: &'static str, got: u64, low: u64, high: u64) -> Result<u64, RecordError> {
    if (low..=high).contains(&got) {
        Ok(got)
    } else {
        Err(RecordError::OutOfRange {
            what,
            got,
            low,
            high,
        })
    }
}

/// Fills `bytes`; false if the input ends before.
fn whole(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
