//! Causal attention of a window's rows over the paged cache, with grouped KV heads.
//!
//! Knows rows, heads and pages; knows no sequence and no projection. A row's result depends on its position and the cache only:
//!
//! - A score is one chain over the channels, ascending; the query is scaled first.
//! - Pages are taken in ascending order with a running maximum, sum and weighted values (an online softmax). A page's 64 weights
//!   are summed by halves (32, 16, ..), its values added in one chain per channel, positions ascending.
//! - Every [`SEGMENT`] positions a fresh running state begins; finished segments are joined in ascending order.
//! - Where a row has a window, pages before it are left out; a sink joins the sum at the end.
//!
//! So neither the rows of a window, nor the chunks of a prompt, nor how segments are shared out among workers changes a bit.

mod online;
mod sweep;
mod task;

pub use task::AttentionScratch;

use super::{
    index::Selected,
    isa::Isa,
    kv::{KvCache, KvSpan},
    pool::{Disjoint, Pool},
};
use online::Online;
use sweep::Tile;
use task::{EXTRA, Rows, Task, group, rows_max, width};

/// Positions between two fresh starts.
pub const SEGMENT: usize = 1024;

/// The dimensions of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// KV heads; query head `h` reads KV head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Channels of a head, a multiple of 8.
    pub head_dim: usize,
    /// Factor on the scores, usually `head_dim^-0.5`.
    pub scale: f32,
    /// Positions that a row sees, its own included, if not all before it.
    pub window: Option<usize>,
}

/// Heads inside a window's rows: row `r`, head `h` begins at `r * row + h * head + offset`.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// The rows.
    pub data: &'a [f32],
    /// Elements from a row to the next.
    pub row: usize,
    /// Elements from a head to the next.
    pub head: usize,
    /// Elements before the first head.
    pub offset: usize,
}

impl<'a> HeadRows<'a> {
    /// Rows `[rows, heads * head_dim]`.
    pub fn packed(data: &'a [f32], heads: usize, head_dim: usize) -> Self {
        Self {
            data,
            row: heads * head_dim,
            head: head_dim,
            offset: 0,
        }
    }

    fn get(&self, row: usize, head: usize, len: usize) -> &'a [f32] {
        &self.data[row * self.row + head * self.head + self.offset..][..len]
    }
}

/// One layer's attention over a window.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// The layer's dimensions.
    pub shape: AttentionShape,
    /// The layer's number in the cache.
    pub layer: usize,
    /// The window's rows; their keys and values are in the cache already.
    pub spans: &'a [KvSpan<'a>],
    /// Queries, rotated already.
    pub query: HeadRows<'a>,
    /// What the result is multiplied by, through a sigmoid.
    pub gate: Option<HeadRows<'a>>,
    /// `[heads] f32`: a logit more in each head's softmax, one that stands for no position.
    pub sinks: Option<&'a [f32]>,
    /// What rows see, if that is less than everything before them.
    pub selected: Option<Selected<'a>>,
    /// The cache.
    pub cache: &'a KvCache,
}

impl Attention<'_> {
    /// Computes the window.
    ///
    /// **Shapes**: `out [window rows, heads * head_dim] f32`.
    ///
    /// **Panics** if shape and cache do not fit each other, or a slice is too short for the rows.
    pub fn run(&self, pool: &Pool, isa: Isa, scratch: &mut AttentionScratch, out: &mut [f32]) {
        let shape = &self.shape;
        let cached = self.cache.shape();
        assert!(shape.heads.is_multiple_of(shape.kv_heads), "{shape:?}");
        assert_eq!(
            (shape.kv_heads, shape.head_dim),
            (cached.kv_heads, cached.head_dim),
            "layer and cache"
        );
        assert!(
            Task::len(shape) <= scratch.task_len,
            "scratch made for smaller layers than {shape:?}"
        );
        let tiles = self.tiles().count() * shape.kv_heads;
        let segments = self.tiles().map(|rows| rows.segments()).max().unwrap_or(0);
        let lines: usize = self.tiles().map(|rows| rows.rows * shape.heads).sum();
        let shared = lines * segments * (width(shape) + EXTRA) <= scratch.partials.len();
        if segments > 1 && tiles < 2 * pool.workers() && shared {
            self.run_shared(pool, isa, scratch, out, segments);
        } else {
            self.run_whole(pool, isa, scratch, out);
        }
    }

    /// A task takes all segments of its rows.
    fn run_whole(&self, pool: &Pool, isa: Isa, scratch: &mut AttentionScratch, out: &mut [f32]) {
        let (memory, task_len) = (Disjoint::new(&mut scratch.tasks), scratch.task_len);
        let out = Disjoint::new(out);
        let tiles = self.tiles().count();
        pool.run(tiles * self.shape.kv_heads, |number, worker| {
            // long rows first, so that the last task to end is a short one
            let Some((_, rows, kv_head)) = self.nth(tiles * self.shape.kv_heads - 1 - number)
            else {
                return;
            };
            // SAFETY: a worker runs one task at a time.
            let mut task = Task::new(unsafe { memory.nth(worker, task_len) }, &self.shape);
            let tile = self.tile(isa, rows, kv_head, &mut task);
            let begin = tile.begin() / SEGMENT;
            for segment in begin..rows.segments() {
                if segment == begin {
                    tile.sweep(
                        isa,
                        self.cache.kind(),
                        segment,
                        task.query,
                        task.weights,
                        &mut task.whole,
                    );
                } else {
                    tile.sweep(
                        isa,
                        self.cache.kind(),
                        segment,
                        task.query,
                        task.weights,
                        &mut task.segment,
                    );
                    tile.each_line(segment, |line| task.whole.join(isa, line, &task.segment));
                }
            }
            tile.each_line(0, |line| {
                // SAFETY: a task's rows and heads belong to no other task.
                let out =
                    unsafe { out.nth(self.line_of(rows, kv_head, line), self.shape.head_dim) };
                self.finish(isa, rows, kv_head, line, &task.whole, out);
            });
        });
    }

    /// A task takes one segment of its rows; then each line's segments are joined.
    fn run_shared(
        &self,
        pool: &Pool,
        isa: Isa,
        scratch: &mut AttentionScratch,
        out: &mut [f32],
        segments: usize,
    ) {
        let (memory, task_len) = (Disjoint::new(&mut scratch.tasks), scratch.task_len);
        let out = Disjoint::new(out);
        let partial_len = width(&self.shape) + EXTRA;
        let partials = Disjoint::new(&mut scratch.partials);
        let tasks = self.tiles().count() * self.shape.kv_heads;
        let place =
            |before: usize, line: usize, segment: usize| (before + line) * segments + segment;
        pool.run(tasks * segments, |number, worker| {
            let Some((before, rows, kv_head)) = self.nth(number / segments) else {
                return;
            };
            let segment = number % segments;
            if segment >= rows.segments() || segment < rows.begin(&self.shape) / SEGMENT {
                return;
            }
            // SAFETY: a worker runs one task at a time.
            let mut task = Task::new(unsafe { memory.nth(worker, task_len) }, &self.shape);
            let tile = self.tile(isa, rows, kv_head, &mut task);
            tile.sweep(
                isa,
                self.cache.kind(),
                segment,
                task.query,
                task.weights,
                &mut task.segment,
            );
            tile.each_line(segment, |line| {
                // SAFETY: a line's segment has a place of its own.
                task.segment.save(line, unsafe {
                    partials.nth(place(before, line, segment), partial_len)
                });
            });
        });
        pool.run(tasks, |number, worker| {
            let Some((before, rows, kv_head)) = self.nth(number) else {
                return;
            };
            // SAFETY: a worker runs one task at a time.
            let mut task = Task::new(unsafe { memory.nth(worker, task_len) }, &self.shape);
            let tile = self.tile(isa, rows, kv_head, &mut task);
            let begin = tile.begin() / SEGMENT;
            for segment in begin..rows.segments() {
                let state = if segment == begin {
                    &mut task.whole
                } else {
                    &mut task.segment
                };
                tile.each_line(segment, |line| {
                    // SAFETY: written in the region before, now read by the line's one task.
                    state.load(line, unsafe {
                        partials.nth(place(before, line, segment), partial_len)
                    });
                });
                if segment > begin {
                    tile.each_line(segment, |line| task.whole.join(isa, line, &task.segment));
                }
            }
            tile.each_line(0, |line| {
                // SAFETY: a task's rows and heads belong to no other task.
                let out =
                    unsafe { out.nth(self.line_of(rows, kv_head, line), self.shape.head_dim) };
                self.finish(isa, rows, kv_head, line, &task.whole, out);
            });
        });
    }

    /// The window's rows in tasks, spans in order.
    fn tiles(&self) -> impl Iterator<Item = Rows<'_>> {
        let most = rows_max(&self.shape);
        self.spans.iter().flat_map(move |span| {
            (0..span.rows.div_ceil(most)).map(move |at| Rows {
                span: *span,
                from: at * most,
                rows: most.min(span.rows - at * most),
            })
        })
    }

    /// Task `number`: how many lines come before it, its rows and its KV head.
    fn nth(&self, number: usize) -> Option<(usize, Rows<'_>, usize)> {
        let (at, kv_head) = (number / self.shape.kv_heads, number % self.shape.kv_heads);
        let before: usize = self
            .tiles()
            .take(at)
            .map(|rows| rows.rows * self.shape.heads)
            .sum();
        let rows = self.tiles().nth(at)?;
        Some((
            before + kv_head * rows.rows * group(&self.shape),
            rows,
            kv_head,
        ))
    }

    /// Line `line` of a task, counted over the whole window as `row * heads + head`.
    fn line_of(&self, rows: Rows<'_>, kv_head: usize, line: usize) -> usize {
        let group = group(&self.shape);
        rows.window_row(line / group) * self.shape.heads + kv_head * group + line % group
    }

    /// Copies a task's queries, scaled.
    fn tile<'t>(
        &'t self,
        isa: Isa,
        rows: Rows<'t>,
        kv_head: usize,
        task: &mut Task<'_>,
    ) -> Tile<'t> {
        let (group, head_dim) = (group(&self.shape), self.shape.head_dim);
        for line in 0..rows.rows * group {
            let query = self.query.get(
                rows.window_row(line / group),
                kv_head * group + line % group,
                head_dim,
            );
            online::scaled(
                isa,
                query,
                self.shape.scale,
                &mut task.query[line * head_dim..][..head_dim],
            );
        }
        Tile {
            cache: self.cache,
            pages: rows.span.pages,
            layer: self.layer,
            kv_head,
            first: rows.first(),
            window: self.shape.window.unwrap_or(usize::MAX),
            selected: self.selected,
            window_row: rows.window_row(0),
            rows: rows.rows,
            group,
            head_dim,
        }
    }

    fn finish(
        &self,
        isa: Isa,
        rows: Rows<'_>,
        kv_head: usize,
        line: usize,
        state: &Online<'_>,
        out: &mut [f32],
    ) {
        let group = group(&self.shape);
        let sink = self
            .sinks
            .map(|sinks| sinks[kv_head * group + line % group]);
        state.finish(isa, line, sink, out);
        if let Some(gate) = &self.gate {
            let gate = gate.get(
                rows.window_row(line / group),
                kv_head * group + line % group,
                self.shape.head_dim,
            );
            super::math::mul_sigmoid(isa, gate, out);
        }
    }
}

#[cfg(test)]
mod tests;
