//! The step log: one JSON line a window, written by a thread of its own.
//!
//! Never makes the engine wait: a line that finds the channel full is dropped and counted.

use std::{
    io::{self, BufWriter, Write},
    path::Path,
    sync::mpsc::{self, TryRecvError},
    thread::{self, JoinHandle},
    time::Duration,
};

use serde::Serialize;

use super::window::{Census, Parts, SlotStep};
use crate::record;

/// Lines that may wait for the writer: a second of very short windows.
const LINES_WAITING_MAX: usize = 1024;

/// What every line begins with.
const LINE_BEGINS: &[u8] = b"{\"window\":";

/// What is told about one window.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) window: u64,
    pub(super) census: Census,
    pub(super) parts: Parts,
    pub(super) kv_pages: usize,
    pub(super) by_slot: Box<[SlotStep]>,
}

/// The engine's end of the log. Dropping it writes out what is left and closes the file.
pub(super) struct StepLog {
    lines: Option<mpsc::SyncSender<Step>>,
    writer: Option<JoinHandle<()>>,
}

impl StepLog {
    /// Creates the file, or empties an earlier log, and starts its writer.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = BufWriter::new(record::create(path, LINE_BEGINS)?);
        let (sender, receiver) = mpsc::sync_channel(LINES_WAITING_MAX);
        let path = path.to_owned();
        let writer = thread::Builder::new()
            .name("step-log".into())
            .spawn(move || {
                if let Err(error) = write(file, &receiver) {
                    tracing::warn!(path = %path.display(), %error, "the step log ends here");
                }
            })?;
        Ok(Self {
            lines: Some(sender),
            writer: Some(writer),
        })
    }

    /// Hands over a line; false if it had to be dropped.
    pub(super) fn put(&self, step: Step) -> bool {
        self.lines
            .as_ref()
            .is_some_and(|lines| lines.try_send(step).is_ok())
    }
}

impl Drop for StepLog {
    fn drop(&mut self) {
        self.lines = None; // ends the writer's loop
        if let Some(writer) = self.writer.take() {
            let _ = writer.join(); // a panic in it has been reported by the panic hook
        }
    }
}

/// Writes lines until the engine is gone, flushing whenever there is nothing to do.
fn write(mut file: impl Write, lines: &mpsc::Receiver<Step>) -> io::Result<()> {
    loop {
        let step = match lines.try_recv() {
            Ok(step) => step,
            Err(TryRecvError::Disconnected) => return file.flush(),
            Err(TryRecvError::Empty) => {
                file.flush()?;
                match lines.recv() {
                    Ok(step) => step,
                    Err(mpsc::RecvError) => return Ok(()),
                }
            }
        };
        serde_json::to_writer(&mut file, &Line::from(step))?;
        file.write_all(b"\n")?;
    }
}

/// The line as written.
#[derive(Serialize)]
struct Line {
    window: u64,
    kind: &'static str,
    rows: usize,
    slots: usize,
    prompt_rows: usize,
    decode_rows: usize,
    drafts: usize,
    accepted: usize,
    ms: f64,
    ms_parts: LineParts,
    kv_pages: usize,
    by_slot: Vec<LineSlot>,
}

/// What the window held of one slot.
#[derive(Serialize)]
struct LineSlot {
    slot: usize,
    rows: usize,
    drafts: usize,
    accepted: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
}

/// Milliseconds by part.
#[derive(Serialize)]
struct LineParts {
    schedule: f64,
    draft: f64,
    compute: f64,
    sample: f64,
    emit: f64,
}

impl From<Step> for Line {
    fn from(step: Step) -> Self {
        let ms = |duration: Duration| duration.as_micros() as f64 / 1000.0;
        let parts = step.parts;
        Self {
            window: step.window,
            kind: step.census.kind().name(),
            rows: step.census.rows(),
            slots: step.census.slots,
            prompt_rows: step.census.prompt_rows,
            decode_rows: step.census.decode_rows,
            drafts: step.census.drafts,
            accepted: step.census.accepted,
            ms: ms(parts.total()),
            ms_parts: LineParts {
                schedule: ms(parts.schedule),
                draft: ms(parts.draft),
                compute: ms(parts.compute),
                sample: ms(parts.sample),
                emit: ms(parts.emit),
            },
            kv_pages: step.kv_pages,
            by_slot: step.by_slot.iter().map(LineSlot::from).collect(),
        }
    }
}

impl From<&SlotStep> for LineSlot {
    fn from(step: &SlotStep) -> Self {
        let verified = step.verified;
        Self {
            slot: step.slot.0 as usize,
            rows: step.rows,
            drafts: verified.map_or(0, |of| of.drafts),
            accepted: verified.map_or(0, |of| of.accepted),
            source: verified
                .filter(|of| of.drafts > 0)
                .map(|of| of.source.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{active::Verified, drafts::Source, executor::Slot};

    #[test]
    fn a_window_is_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("steps.jsonl");
        let log = StepLog::create(&path).unwrap();
        for window in [1, 2] {
            assert!(
                log.put(Step {
                    window,
                    census: Census {
                        slots: 3,
                        prompt_rows: 5,
                        decode_rows: 2,
                        drafts: 1,
                        accepted: 1,
                    },
                    parts: Parts {
                        schedule: Duration::from_micros(250),
                        draft: Duration::from_micros(125),
                        compute: Duration::from_millis(7),
                        sample: Duration::from_micros(500),
                        emit: Duration::ZERO,
                    },
                    kv_pages: 9,
                    by_slot: [(0, 5, None), (2, 2, Some(1))]
                        .map(|(slot, rows, accepted)| SlotStep {
                            slot: Slot(slot),
                            rows,
                            verified: accepted.map(|accepted| Verified {
                                source: Source::Prediction,
                                drafts: 1,
                                accepted,
                            }),
                        })
                        .into(),
                })
            );
        }
        drop(log);
        let line = |window| {
            format!(
                r#"{{"window":{window},"kind":"mixed","rows":7,"slots":3,"prompt_rows":5,"decode_rows":2,"drafts":1,"accepted":1,"ms":7.875,"#
            ) + r#""ms_parts":{"schedule":0.25,"draft":0.125,"compute":7.0,"sample":0.5,"emit":0.0},"kv_pages":9,"#
                + r#""by_slot":[{"slot":0,"rows":5,"drafts":0,"accepted":0},{"slot":2,"rows":2,"drafts":1,"accepted":1,"source":"prediction"}]}"#
        };
        let written = std::fs::read_to_string(&path).unwrap();
        assert_eq!(written.lines().collect::<Vec<_>>(), [line(1), line(2)]);
        drop(StepLog::create(&path).unwrap()); // an earlier log may be emptied
    }
}
