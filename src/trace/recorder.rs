//! Writing a trace while a backend computes.
//!
//! The engine's thread packs what it knows into pieces; a thread of its own writes them. Never makes the engine wait: a piece that finds the
//! channel full is dropped, and its number will be missing in the file.

use std::{
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::mpsc::{self, TryRecvError},
    thread::{self, JoinHandle},
};

use super::{
    AHEAD, Header, LANE_BIT, LAYER, MAGIC, PIECE_BYTES, SpanRows, WINDOW, WINDOW_AGAIN,
    pack::{id_bits, put_ids, put_varint},
};
use crate::{
    backend::Needs,
    engine::executor::Lane,
    model::window::{RowSpan, Rows},
    record,
};

/// Pieces that may wait for the writer: a second of very short windows, no more than 16 MiB or so.
const PIECES_WAITING_MAX: usize = 256;
/// **Units**: bytes. A piece's number and length.
const PIECE_HEAD: usize = 8;

/// The engine's end of a trace. Dropping it writes out what is left and closes the file.
pub struct Recorder {
    name: String,
    file: FileEnd,
    /// `[layers of the model]`: those that have experts.
    layers: Vec<Option<Layer>>,
    lanes: [LaneState; Lane::COUNT],
    /// `[slots]`: whether the slot's sequence is still reading its prompt.
    reading: Vec<bool>,
    /// The lane and layer that are being computed.
    at: Option<(Lane, Layer)>,
    last: usize,
    /// The lane of the layer that was told last.
    told: Option<Lane>,
    piece: Vec<u8>,
}

/// A layer with experts.
#[derive(Clone, Copy)]
struct Layer {
    /// Which of the header's.
    index: usize,
    bits: u32,
}

/// The window of a lane.
#[derive(Default)]
struct LaneState {
    spans: Vec<SpanRows>,
    /// Room for the next ones.
    next: Vec<SpanRows>,
    /// Whether a piece tells of it.
    told: bool,
    /// Whether this piece tells of it as it is now.
    told_here: bool,
}

impl Recorder {
    /// Creates the file, or empties an earlier trace, and starts its writer. `name` is the model's id.
    ///
    /// **Errors**: the file cannot be written, it holds something else, or there is no thread to be had.
    pub fn create(path: &Path, name: &str) -> io::Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            file: FileEnd::create(path)?,
            layers: Vec::new(),
            lanes: Default::default(),
            reading: Vec::new(),
            at: None,
            last: 0,
            told: None,
            piece: Vec::new(),
        })
    }

    /// Says which model it is. Called once, before the first window.
    pub fn describe(&mut self, needs: &Needs) {
        let header = Header::new(&self.name, needs);
        self.file.put_header(header.encode());
        for (index, layer) in header.layers.iter().enumerate() {
            self.layers.resize(layer.layer, None);
            self.layers.push(Some(Layer {
                index,
                bits: id_bits(layer.experts),
            }));
            self.last = index;
        }
        self.piece = vec![0; PIECE_HEAD];
        if header.layers.is_empty() {
            tracing::warn!("no layer of this model has experts: there is nothing to trace");
        }
    }

    /// A part of a layer of a lane's window comes next.
    pub fn enter(&mut self, lane: Lane, (layer, part): (usize, usize), rows: &Rows) {
        self.told = None;
        if self.piece.len() > PIECE_BYTES {
            self.close_piece();
        }
        if (layer, part) == (0, 0) {
            self.begin(lane, rows);
        } else {
            self.lanes[lane as usize].keep(rows.spans());
        }
        let layer = self.layers.get(layer).copied().flatten();
        self.at = layer.map(|layer| (lane, layer));
    }

    /// The part is through. What is chosen before another is entered belongs to no layer of a window: a prediction block's, for example.
    pub fn leave(&mut self) {
        (self.at, self.told) = (None, None);
    }

    /// The rows' choices in the layer that was entered, `[rows, used] u16` by rank.
    pub fn chosen(&mut self, ids: &[u16]) {
        let Some((lane, layer)) = self.at.take() else {
            return;
        };
        let lane_bit = if lane as usize == 0 { 0 } else { LANE_BIT };
        let window = &mut self.lanes[lane as usize];
        if !window.told_here {
            let kind = if window.told { WINDOW_AGAIN } else { WINDOW };
            self.piece.push(kind | lane_bit);
            put_varint(&mut self.piece, window.spans.len() as u64);
            for span in &window.spans {
                put_varint(&mut self.piece, span.slot.into());
                put_varint(
                    &mut self.piece,
                    2 * span.rows as u64 + u64::from(span.decode),
                );
            }
            (window.told, window.told_here) = (true, true);
        }
        self.piece.push(LAYER | lane_bit);
        put_varint(&mut self.piece, layer.index as u64);
        put_ids(&mut self.piece, ids, layer.bits);
        self.told = Some(lane);
        if layer.index == self.last {
            self.told = None;
            self.close_piece();
        }
    }

    /// Whom the router of the header's layer `index` names for the rows whose choices were told last, `distance` layers before: `[rows, used] u16` by rank.
    pub fn ahead(&mut self, index: usize, distance: usize, ids: &[u16]) {
        let known = self.layers.iter().flatten();
        let layer = known.into_iter().find(|layer| layer.index == index);
        let (Some(lane), Some(layer)) = (self.told, layer) else {
            return;
        };
        let lane_bit = if lane as usize == 0 { 0 } else { LANE_BIT };
        self.piece.push(AHEAD | lane_bit);
        put_varint(&mut self.piece, index as u64);
        put_varint(&mut self.piece, distance as u64);
        put_ids(&mut self.piece, ids, layer.bits);
    }

    /// A window of these rows begins. A sequence reads its prompt from position 0 to the first row whose logits are asked; what follows are its stream's own tokens.
    fn begin(&mut self, lane: Lane, rows: &Rows) {
        let window = &mut self.lanes[lane as usize];
        window.spans.clear();
        for span in rows.spans() {
            let slot = span.slot.0 as usize;
            if self.reading.len() <= slot {
                self.reading.resize(slot + 1, true);
            }
            let reading = &mut self.reading[slot];
            *reading |= span.first == 0;
            window.spans.push(SpanRows {
                slot: span.slot.0,
                rows: span.rows.len(),
                decode: !*reading,
            });
            let asked = rows.logits().binary_search(&(span.rows.end as u32 - 1));
            *reading &= asked.is_err();
        }
        (window.told, window.told_here) = (false, false);
    }

    fn close_piece(&mut self) {
        if self.piece.len() > PIECE_HEAD {
            let mut next = self.file.spare();
            next.clear();
            next.resize(PIECE_HEAD, 0);
            self.file.put(std::mem::replace(&mut self.piece, next));
        }
        for lane in &mut self.lanes {
            lane.told_here = false;
        }
    }
}

impl LaneState {
    /// Lets go of the spans whose rows have left the window.
    fn keep(&mut self, rows: &[RowSpan]) {
        if rows.len() == self.spans.len() {
            return;
        }
        self.next.clear();
        let still = |span: &&SpanRows| rows.iter().any(|row| row.slot.0 == span.slot);
        self.next.extend(self.spans.iter().filter(still));
        std::mem::swap(&mut self.spans, &mut self.next);
        self.told_here = false;
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.close_piece();
    }
}

/// The writer's channel: numbered pieces there, used buffers back.
struct FileEnd {
    path: PathBuf,
    number: u32,
    dropped: u32,
    described: bool,
    pieces: Option<mpsc::SyncSender<Vec<u8>>>,
    spares: mpsc::Receiver<Vec<u8>>,
    writer: Option<JoinHandle<()>>,
}

impl FileEnd {
    fn create(path: &Path) -> io::Result<Self> {
        let file = BufWriter::new(record::create(path, &MAGIC)?);
        let (pieces, receiver) = mpsc::sync_channel(PIECES_WAITING_MAX);
        let (give_back, spares) = mpsc::sync_channel(PIECES_WAITING_MAX);
        let path = path.to_owned();
        let shown = path.clone();
        let writer = thread::Builder::new().name("trace".into()).spawn(move || {
            if let Err(error) = write(file, &receiver, &give_back) {
                tracing::warn!(path = %shown.display(), %error, "the trace ends here");
            }
        })?;
        Ok(Self {
            path,
            number: 0,
            dropped: 0,
            described: false,
            pieces: Some(pieces),
            spares,
            writer: Some(writer),
        })
    }

    /// A buffer that has been written, or a new one.
    fn spare(&self) -> Vec<u8> {
        self.spares.try_recv().unwrap_or_default()
    }

    fn put_header(&mut self, header: Vec<u8>) {
        self.described = self.send(header);
    }

    /// Numbers a piece and hands it over, or drops it.
    fn put(&mut self, mut piece: Vec<u8>) {
        let length = (piece.len() - PIECE_HEAD) as u32;
        piece[..4].copy_from_slice(&self.number.to_le_bytes());
        piece[4..PIECE_HEAD].copy_from_slice(&length.to_le_bytes());
        self.number = self.number.saturating_add(1);
        if !self.send(piece) {
            self.dropped += 1;
        }
    }

    fn send(&self, bytes: Vec<u8>) -> bool {
        let pieces = self.pieces.as_ref();
        pieces.is_some_and(|pieces| pieces.try_send(bytes).is_ok())
    }
}

impl Drop for FileEnd {
    fn drop(&mut self) {
        if let Some(pieces) = self.pieces.take().filter(|_| self.described) {
            // nothing is computed any more, so this may wait; an error has been reported by the writer
            let _ = pieces.send([self.number.to_le_bytes(), [0; 4]].concat());
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.join(); // a panic in it has been reported by the panic hook
        }
        if self.dropped > 0 {
            tracing::warn!(
                path = %self.path.display(),
                dropped = self.dropped,
                of = self.number,
                "the trace has gaps: the disk was slower than the engine"
            );
        }
    }
}

/// Writes pieces until the recorder is gone, flushing whenever there is nothing to do.
fn write(
    mut file: impl Write,
    pieces: &mpsc::Receiver<Vec<u8>>,
    give_back: &mpsc::SyncSender<Vec<u8>>,
) -> io::Result<()> {
    loop {
        let piece = match pieces.try_recv() {
            Ok(piece) => piece,
            Err(TryRecvError::Disconnected) => return file.flush(),
            Err(TryRecvError::Empty) => {
                file.flush()?;
                match pieces.recv() {
                    Ok(piece) => piece,
                    Err(mpsc::RecvError) => return Ok(()),
                }
            }
        };
        file.write_all(&piece)?;
        let _ = give_back.try_send(piece); // one that nobody waits for is freed
    }
}
