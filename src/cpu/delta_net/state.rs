//! The recurrent state of every slot and layer, and what of it can be taken back.

use super::{BLOCK_ROWS, CUT_ROWS, DeltaShape, TAPS, mark::Mark};
use crate::{
    cpu::{math::lanes::LANES, pool::Disjoint, zeroed::Zeroed},
    engine::executor::Slot,
};

/// Rows that may be pending: a block, and rows behind it, in whole vectors.
pub(super) const PENDING_ROWS: usize = BLOCK_ROWS + LANES;

/// Past inputs of the convolution that are kept, so that [`CUT_ROWS`] can go and the rest still suffices.
pub(super) const RING_ROWS: usize = TAPS - 1 + CUT_ROWS;

const _: () = assert!(CUT_ROWS <= LANES);

/// More rows were to be taken back than the last window had, or than are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} rows were to be taken back, at most {allowed} can be")]
pub struct CutTooDeep {
    /// Rows asked for.
    pub asked: usize,
    /// Rows that can be.
    pub allowed: usize,
}

/// States of all slots and layers.
#[derive(Debug)]
pub struct DeltaStates {
    shape: DeltaShape,
    layers: usize,
    /// `[slots, layers]`.
    marks: Vec<Mark>,
    /// `[slots, layers, key_heads, head_len] f32`.
    heads: Zeroed<f32>,
}

impl DeltaStates {
    /// States of `slots` slots at position 0, for `layers` delta-net layers of one shape. Memory is taken when a slot is first used.
    pub fn new(shape: DeltaShape, layers: usize, slots: usize) -> Self {
        let units = slots * layers;
        let heads = Zeroed::f32(units * shape.key_heads * HeadState::len(&shape));
        Self {
            shape,
            layers,
            marks: vec![Mark::default(); units],
            heads,
        }
    }

    /// Bytes of one slot's state in one layer.
    pub fn bytes(shape: &DeltaShape) -> usize {
        shape.key_heads * HeadState::len(shape) * size_of::<f32>()
    }

    /// What they were made for.
    pub fn shape(&self) -> DeltaShape {
        self.shape
    }

    /// Begins a slot anew, at position 0. Touches no state memory.
    pub fn reset(&mut self, slot: Slot) {
        self.of(slot).fill(Mark::default());
    }

    /// Rows that a slot's layer has seen: the position of its next row.
    pub fn position(&self, slot: Slot, layer: usize) -> usize {
        self.marks[self.unit(slot, layer)].end
    }

    /// Rows of a slot's layer that are not yet in `S`.
    pub fn pending(&self, slot: Slot, layer: usize) -> usize {
        let mark = self.marks[self.unit(slot, layer)];
        mark.pending()
    }

    /// Takes back a slot's last `rows` rows, in every layer. Together, cuts after one window may take at most [`CUT_ROWS`] rows and no
    /// more than the window had.
    ///
    /// **Errors**: more rows than that; then nothing has changed.
    pub fn cut(&mut self, slot: Slot, rows: usize) -> Result<(), CutTooDeep> {
        let marks = self.of(slot);
        let allowed = marks.iter().map(Mark::loose).min().unwrap_or(0);
        if rows > allowed {
            return Err(CutTooDeep {
                asked: rows,
                allowed,
            });
        }
        marks.iter_mut().for_each(|mark| mark.cut(rows));
        Ok(())
    }

    /// Moves a slot's mark past `rows` computed rows.
    pub(super) fn advance(&mut self, slot: Slot, layer: usize, rows: usize) {
        let unit = self.unit(slot, layer);
        self.marks[unit] = self.marks[unit].after(rows);
    }

    /// One layer's heads, for the tasks of a region.
    pub(super) fn heads(&mut self, layer: usize) -> LayerHeads<'_> {
        assert!(layer < self.layers, "layer {layer} of {}", self.layers);
        let Self {
            shape,
            layers,
            marks,
            heads,
        } = self;
        LayerHeads {
            shape,
            layers: *layers,
            layer,
            marks,
            heads: Disjoint::new(heads),
        }
    }

    fn unit(&self, slot: Slot, layer: usize) -> usize {
        assert!(layer < self.layers, "layer {layer} of {}", self.layers);
        slot.0 as usize * self.layers + layer
    }

    fn of(&mut self, slot: Slot) -> &mut [Mark] {
        &mut self.marks[slot.0 as usize * self.layers..][..self.layers]
    }
}

/// The states of one layer, shared by the tasks of a region.
#[derive(Debug)]
pub(super) struct LayerHeads<'s> {
    shape: &'s DeltaShape,
    layers: usize,
    layer: usize,
    marks: &'s [Mark],
    heads: Disjoint<'s, f32>,
}

impl LayerHeads<'_> {
    fn unit(&self, slot: Slot) -> usize {
        slot.0 as usize * self.layers + self.layer
    }

    /// How far the slot has come.
    pub(super) fn mark(&self, slot: Slot) -> Mark {
        self.marks[self.unit(slot)]
    }

    /// The memory of a [`HeadState`].
    ///
    /// # Safety
    /// No other thread uses the slot's head.
    #[allow(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub(super) unsafe fn head(&self, slot: Slot, key_head: usize) -> &mut [f32] {
        let number = self.unit(slot) * self.shape.key_heads + key_head;
        // SAFETY: the caller's promise.
        unsafe { self.heads.nth(number, HeadState::len(self.shape)) }
    }
}

/// One key head's state with its value heads'.
#[derive(Debug)]
pub(super) struct HeadState<'s> {
    /// Past inputs of the convolution `[RING_ROWS, 2 key_dim + group * value_dim]`; position `p` in row `p mod RING_ROWS`.
    pub(super) ring: &'s mut [f32],
    /// Pending keys `[PENDING_ROWS / 16, key_dim, 16 rows]`.
    pub(super) keys: &'s mut [f32],
    /// The value heads' parts, one after the other.
    values: &'s mut [f32],
}

/// One value head's state.
#[derive(Debug)]
pub(super) struct ValueState<'s> {
    /// `S [key_dim, width]`.
    pub(super) s: &'s mut [f32],
    /// `u [PENDING_ROWS, width]`.
    pub(super) u: &'s mut [f32],
    /// `G [PENDING_ROWS]`.
    pub(super) g: &'s mut [f32],
}

impl<'s> HeadState<'s> {
    fn ring_len(shape: &DeltaShape) -> usize {
        RING_ROWS * (2 * shape.key_dim + shape.group() * shape.value_dim)
    }

    fn value_len(shape: &DeltaShape) -> usize {
        (shape.key_dim + PENDING_ROWS) * shape.width() + PENDING_ROWS
    }

    /// Numbers of a head, whole cache lines.
    fn len(shape: &DeltaShape) -> usize {
        let len = PENDING_ROWS * shape.key_dim
            + shape.group() * Self::value_len(shape)
            + Self::ring_len(shape);
        len.next_multiple_of(LANES)
    }

    /// The parts of a head's memory.
    pub(super) fn new(memory: &'s mut [f32], shape: &DeltaShape) -> Self {
        let (keys, memory) = memory.split_at_mut(PENDING_ROWS * shape.key_dim);
        let (values, memory) = memory.split_at_mut(shape.group() * Self::value_len(shape));
        Self {
            ring: &mut memory[..Self::ring_len(shape)],
            keys,
            values,
        }
    }

    /// The pending keys, and the `nth` value head's state.
    pub(super) fn value(&mut self, shape: &DeltaShape, nth: usize) -> (&[f32], ValueState<'_>) {
        let len = Self::value_len(shape);
        let (s, rest) = self.values[nth * len..][..len].split_at_mut(shape.key_dim * shape.width());
        let (u, g) = rest.split_at_mut(PENDING_ROWS * shape.width());
        (self.keys, ValueState { s, u, g })
    }

    /// Makes the rows behind the block the first of the next; they fill at most one vector.
    pub(super) fn move_up(&mut self, behind: usize, key_dim: usize) {
        if behind > 0 {
            let start = BLOCK_ROWS * key_dim;
            self.keys.copy_within(start..start + LANES * key_dim, 0);
        }
    }
}

impl ValueState<'_> {
    /// As [`HeadState::move_up`].
    pub(super) fn move_up(&mut self, behind: usize, width: usize) {
        self.u
            .copy_within(BLOCK_ROWS * width..(BLOCK_ROWS + behind) * width, 0);
        self.g.copy_within(BLOCK_ROWS..BLOCK_ROWS + behind, 0);
    }
}

#[cfg(test)]
impl DeltaStates {
    /// Fills the memory with what a former owner might have left.
    pub(super) fn spoil(&mut self) {
        self.heads.fill(3.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_bounded() {
        let shape = DeltaShape {
            key_heads: 1,
            value_heads: 1,
            key_dim: 8,
            value_dim: 8,
            head_map: super::super::HeadMap::Grouped,
        };
        let mut states = DeltaStates::new(shape, 2, 2);
        let slot = Slot(1);
        (0..2).for_each(|layer| states.advance(slot, layer, 5));
        assert_eq!(
            states.cut(slot, 6),
            Err(CutTooDeep {
                asked: 6,
                allowed: 5
            })
        );
        assert_eq!(states.cut(slot, 2), Ok(()));
        assert_eq!((states.position(slot, 1), states.pending(slot, 1)), (3, 3));
        assert_eq!(
            states.cut(slot, 4),
            Err(CutTooDeep {
                asked: 4,
                allowed: 3
            })
        );
        (0..2).for_each(|layer| states.advance(slot, layer, 100));
        assert_eq!(
            states.cut(slot, 9),
            Err(CutTooDeep {
                asked: 9,
                allowed: 8
            })
        );
        assert_eq!(
            (states.position(slot, 0), states.pending(slot, 0)),
            (103, 39)
        );
        states.reset(slot);
        assert_eq!((states.position(slot, 0), states.pending(slot, 0)), (0, 0));
        assert_eq!(
            states.cut(slot, 1),
            Err(CutTooDeep {
                asked: 1,
                allowed: 0
            })
        );
    }
}
