//! Products of a few lines with a panel: the one inner loop of attention and of the delta net.
//!
//! `c[line, :] += sum over steps t of a[line, t] * b[t, :]`: for every element one chain of fused multiply-adds, steps ascending.
//! Tiles decide which elements are computed together, never the order within a chain, so the bits depend neither on the
//! number of lines nor on the instruction set.

use super::math::lanes::{LANES, Lanes, per_isa};
use std::ops::Range;

/// A matrix `b [steps, vectors * 16]` in some storage, read as f32 vector by vector.
pub(crate) trait Panel: Copy {
    /// Whether every vector below the two bounds lies inside the storage.
    fn holds(&self, steps: usize, vectors: usize) -> bool;

    /// Vector `vector` of step `step`.
    ///
    /// # Safety
    /// [`Panel::holds`] for bounds above `step` and `vector`.
    unsafe fn load<L: Lanes>(&self, step: usize, vector: usize) -> L;
}

/// A panel of f32. The strides are in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F32Panel<'a> {
    pub(crate) data: &'a [f32],
    /// From a step to the next.
    pub(crate) step: usize,
    /// From a vector to the next.
    pub(crate) vector: usize,
}

impl Panel for F32Panel<'_> {
    fn holds(&self, steps: usize, vectors: usize) -> bool {
        strides_hold(self.data.len(), (self.step, steps), (self.vector, vectors))
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(&self, step: usize, vector: usize) -> L {
        // SAFETY: inside the storage by the caller's promise.
        L::load(unsafe { chunk(self.data, step * self.step + vector * self.vector) })
    }
}

/// Whether vectors at `step * i + vector * j` fit into `len` elements, for all `i` and `j` below the counts.
pub(crate) fn strides_hold(
    len: usize,
    (step, steps): (usize, usize),
    (vector, vectors): (usize, usize),
) -> bool {
    steps == 0 || vectors == 0 || step * (steps - 1) + vector * (vectors - 1) + LANES <= len
}

/// [`LANES`] elements from `at` on.
///
/// # Safety
/// `at + LANES <= data.len()`.
#[inline(always)]
pub(crate) unsafe fn chunk<T>(data: &[T], at: usize) -> &[T; LANES] {
    debug_assert!(at + LANES <= data.len());
    // SAFETY: in bounds by the caller's promise; an array is aligned as its elements.
    unsafe { &*data.as_ptr().add(at).cast() }
}

/// A product to be computed.
#[derive(Clone, Debug)]
pub(crate) struct Product<'a, P> {
    /// `[lines, a_stride]`, of which the columns `steps` are used.
    pub(crate) a: &'a [f32],
    pub(crate) a_stride: usize,
    pub(crate) lines: usize,
    pub(crate) panel: P,
    pub(crate) steps: Range<usize>,
    /// Vectors of a line of `c`.
    pub(crate) vectors: usize,
}

per_isa! {
    /// [`Product::compute`], replacing `c`, as a function of its own: for callers that would repeat its many tiles.
    pub(crate) fn replace<'a>(product: &Product<'a, F32Panel<'a>>, c: &mut [f32], c_stride: usize) = replace_body;

    /// [`Product::compute`], adding to `c`, likewise.
    pub(crate) fn add<'a>(product: &Product<'a, F32Panel<'a>>, c: &mut [f32], c_stride: usize) = add_body;
}

#[inline(always)]
fn replace_body<L: Lanes>(product: &Product<'_, F32Panel<'_>>, c: &mut [f32], c_stride: usize) {
    product.compute::<L, true>(c, c_stride);
}

#[inline(always)]
fn add_body<L: Lanes>(product: &Product<'_, F32Panel<'_>>, c: &mut [f32], c_stride: usize) {
    product.compute::<L, false>(c, c_stride);
}

impl<P: Panel> Product<'_, P> {
    /// Adds to `c [lines, c_stride]`, or replaces it if `FRESH`.
    ///
    /// **Panics** if a line of `a` or `c`, or the panel, is too short.
    #[inline(always)]
    pub(crate) fn compute<L: Lanes, const FRESH: bool>(&self, c: &mut [f32], c_stride: usize) {
        if self.lines == 0 || self.vectors == 0 {
            return;
        }
        assert!(
            self.panel.holds(self.steps.end, self.vectors),
            "panel too short"
        );
        assert!(
            self.a_stride * (self.lines - 1) + self.steps.end <= self.a.len(),
            "lines too short"
        );
        assert!(
            c_stride * (self.lines - 1) + self.vectors * LANES <= c.len(),
            "result too short"
        );
        if L::WIDE {
            let line = self.strips::<L, FRESH, 8, 2>(c, c_stride, 0);
            let line = self.strips::<L, FRESH, 4, 4>(c, c_stride, line);
            let line = self.strips::<L, FRESH, 2, 8>(c, c_stride, line);
            self.strips::<L, FRESH, 1, 8>(c, c_stride, line);
        } else {
            let line = self.strips::<L, FRESH, 4, 1>(c, c_stride, 0);
            let line = self.strips::<L, FRESH, 2, 2>(c, c_stride, line);
            self.strips::<L, FRESH, 1, 4>(c, c_stride, line);
        }
    }

    /// Lines from `first` on, `R` at a time; gives the first line that is left. A strip of `V` vectors of the panel stays in
    /// the cache while all lines pass.
    #[inline(always)]
    fn strips<L: Lanes, const FRESH: bool, const R: usize, const V: usize>(
        &self,
        c: &mut [f32],
        c_stride: usize,
        first: usize,
    ) -> usize {
        let tiles = (self.lines - first) / R;
        let lines = (0..tiles).map(|tile| first + tile * R);
        let mut vector = 0;
        while tiles > 0 && vector < self.vectors {
            let left = self.vectors - vector;
            for line in lines.clone() {
                // SAFETY: `compute` checked lines and vectors; `line + R` and the strip's end do not exceed them.
                unsafe {
                    match left {
                        left if left >= V => self.tile::<L, FRESH, R, V>(c, c_stride, line, vector),
                        left if left >= 4 && V > 4 => {
                            self.tile::<L, FRESH, R, 4>(c, c_stride, line, vector)
                        }
                        left if left >= 2 && V > 2 => {
                            self.tile::<L, FRESH, R, 2>(c, c_stride, line, vector)
                        }
                        _ => self.tile::<L, FRESH, R, 1>(c, c_stride, line, vector),
                    }
                }
            }
            vector += match left {
                left if left >= V => V,
                left if left >= 4 && V > 4 => 4,
                left if left >= 2 && V > 2 => 2,
                _ => 1,
            };
        }
        first + tiles * R
    }

    /// `R` lines by `V` vectors in registers.
    ///
    /// # Safety
    /// What [`Product::compute`] checks, for lines below `line + R` and vectors below `vector + V`.
    #[inline(always)]
    unsafe fn tile<L: Lanes, const FRESH: bool, const R: usize, const V: usize>(
        &self,
        c: &mut [f32],
        c_stride: usize,
        line: usize,
        vector: usize,
    ) {
        let at = |r: usize, v: usize| (line + r) * c_stride + (vector + v) * LANES;
        let mut sums = [[L::splat(0.0); V]; R];
        if !FRESH {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: a line of `c` has the vector.
                    *sum = L::load(unsafe { chunk(c, at(r, v)) });
                }
            }
        }
        for step in self.steps.clone() {
            let mut b = [L::splat(0.0); V];
            for (v, b) in b.iter_mut().enumerate() {
                // SAFETY: the panel holds the step and the vector.
                *b = unsafe { self.panel.load(step, vector + v) };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the line has the step.
                let a =
                    L::splat(unsafe { *self.a.get_unchecked((line + r) * self.a_stride + step) });
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = a.mul_add(b, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: a line of `c` has the vector.
                sum.store(unsafe { &mut *c.as_mut_ptr().add(at(r, v)).cast() });
            }
        }
    }
}
