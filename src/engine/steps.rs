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

use super::window::{Census, Parts};
use crate::record;

/// Lines that may wait for the writer: a second of very short windows.
const LINES_WAITING_MAX: usize = 1024;

/// What every line begins with.
const LINE_BEGINS: &[u8] = b"{\"window\":";

/// What is told about one window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) window: u64,
    pub(super) census: Census,
    pub(super) parts: Parts,
    pub(super) kv_pages: usize,
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
    ms: f64,
    ms_parts: LineParts,
    kv_pages: usize,
}

/// Milliseconds by part.
#[derive(Serialize)]
struct LineParts {
    schedule: f64,
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
            ms: ms(parts.total()),
            ms_parts: LineParts {
                schedule: ms(parts.schedule),
                compute: ms(parts.compute),
                sample: ms(parts.sample),
                emit: ms(parts.emit),
            },
            kv_pages: step.kv_pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("steps.jsonl");
        let log = StepLog::create(&path).unwrap();
        for window in [1, 2] {
            assert!(log.put(Step {
                window,
                census: Census {
                    slots: 3,
                    prompt_rows: 5,
                    decode_rows: 2,
                },
                parts: Parts {
                    schedule: Duration::from_micros(250),
                    compute: Duration::from_millis(7),
                    sample: Duration::from_micros(500),
                    emit: Duration::ZERO,
                },
                kv_pages: 9,
            }));
        }
        drop(log);
        let line = |window| {
            format!(
                r#"{{"window":{window},"kind":"mixed","rows":7,"slots":3,"prompt_rows":5,"decode_rows":2,"ms":7.75,"#
            ) + r#""ms_parts":{"schedule":0.25,"compute":7.0,"sample":0.5,"emit":0.0},"kv_pages":9}"#
        };
        let written = std::fs::read_to_string(&path).unwrap();
        assert_eq!(written.lines().collect::<Vec<_>>(), [line(1), line(2)]);
        drop(StepLog::create(&path).unwrap()); // an earlier log may be emptied
    }
}
