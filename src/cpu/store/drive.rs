//! What the drive gives: the measure that misses are held against.

use std::{
    fs::File,
    os::unix::fs::MetadataExt,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{layout::ALIGN, piece::direct};
use crate::gguf::{Gguf, Held};

/// Reads under way at once.
const READERS: u64 = 8;
/// **Units**: bytes. One read: about an expert's matrix.
const READ: usize = 512 << 10;
/// Some drives give more for the first second.
const MEASURED: Duration = Duration::from_secs(2);

/// Bytes a second that direct reads of the model's file get, wherever in it; nothing if it is in memory, is mostly holes, which no drive holds, or cannot be
/// read directly.
pub fn drive_speed(model: &Gguf) -> Option<f64> {
    let Held::File(open) = model.held(0) else {
        return None;
    };
    let file = direct(open)?;
    let about = open.metadata().ok()?;
    if about.blocks() * 512 < about.len() / 2 {
        return None;
    }
    let places = (model.raw(0).len() / READ) as u64;
    if places < READERS {
        return None;
    }
    let read = AtomicU64::new(0);
    let begun = Instant::now();
    thread::scope(|scope| {
        for reader in 0..READERS {
            let (file, read) = (&file, &read);
            scope.spawn(move || keep_reading(file, reader, places, begun, read));
        }
    });
    let read = read.into_inner();
    (read > 0).then(|| read as f64 / begun.elapsed().as_secs_f64())
}

/// Reads here and there until it is time.
fn keep_reading(file: &File, reader: u64, places: u64, begun: Instant, read: &AtomicU64) {
    let mut room = vec![0; READ + ALIGN as usize];
    let start = room.as_ptr().align_offset(ALIGN as usize);
    let room = &mut room[start..start + READ];
    let mut at = reader * (places / READERS);
    while begun.elapsed() < MEASURED {
        // a step that has no divisor in common with most numbers visits all places
        at = (at + 10_007) % places;
        let offset = at * READ as u64;
        match std::os::unix::fs::FileExt::read_at(file, room, offset) {
            Ok(count) if count > 0 => {
                read.fetch_add(count as u64, Ordering::Relaxed);
            }
            _ => return,
        }
    }
}
