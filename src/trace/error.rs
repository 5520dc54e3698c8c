//! What can be wrong with a trace.

use std::io;

/// Why a file cannot be read as a trace. One that merely breaks off after its header can.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Reading failed.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// Something else.
    #[error("it is no routing trace: it begins with {got:02x?}, a trace with {allowed:02x?}")]
    Magic {
        /// Its first bytes.
        got: [u8; 8],
        /// A trace's.
        allowed: [u8; 8],
    },
    /// Another form.
    #[error("it has version {got}, this program reads version {allowed}")]
    Version {
        /// The file's.
        got: u32,
        /// The one that can be read.
        allowed: u32,
    },
    /// It ends within its header.
    #[error("it ends within its header, at {what}")]
    ShortHeader {
        /// What was to be read.
        what: &'static str,
    },
    /// The name is no text.
    #[error("the model's name is not UTF-8")]
    Name,
    /// A number outside its range.
    #[error("{what} is {got}, it must be from {low} to {high}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// As written.
        got: u64,
        /// Smallest allowed value.
        low: u64,
        /// Largest allowed value.
        high: u64,
    },
    /// Layers are listed in ascending order.
    #[error("layer {got} is listed after layer {before}")]
    LayerOrder {
        /// The layer.
        got: u64,
        /// The one before it.
        before: u64,
    },
    /// Pieces come in the order of their numbers.
    #[error("piece {got} comes where piece {least} or a later one must")]
    PieceOrder {
        /// Its number.
        got: u32,
        /// The least it could be.
        least: u32,
    },
    /// A record is wrong.
    #[error("piece {piece}: {reason}")]
    Record {
        /// The piece's number.
        piece: u32,
        /// What is wrong.
        reason: RecordError,
    },
}

/// Why a record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// No such kind.
    #[error("a record of kind {got}, there are kinds 1 to 3")]
    Kind {
        /// As written.
        got: u8,
    },
    /// It goes on beyond the piece.
    #[error("a record needs {needed} bytes, the piece has {left} left")]
    Short {
        /// At least.
        needed: usize,
        /// What there is.
        left: usize,
    },
    /// A number of more than 63 bits, or one that the piece's end cuts.
    #[error("a number that does not end")]
    Varint,
    /// A number outside its range.
    #[error("{what} is {got}, it must be from {low} to {high}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// As written.
        got: u64,
        /// Smallest allowed value.
        low: u64,
        /// Largest allowed value.
        high: u64,
    },
    /// A layer of a window that nothing is known of.
    #[error("a layer of lane {lane}, which has no window")]
    NoWindow {
        /// Which lane.
        lane: usize,
    },
}
