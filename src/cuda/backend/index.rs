//! Indexes: keys pooled by group, and, past a budget of positions, what each row sees.

use super::{
    Act, AttentionWeights, Cuda, CudaError, Grid, Ready, launch,
    layout::{SELECT_ROWS, SPLIT},
};

/// `SELECT_THREADS` of `kernels/index.cu`.
const SELECT_THREADS: usize = 512;

/// `struct Masks` of `kernels/attention.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Masks {
    of: u64,
    pages: u64,
}

impl Ready {
    /// Where a layer's pooled keys and its slots' rings of single keys begin.
    fn index_keys(&self, weights: &AttentionWeights<Cuda>) -> [u64; 2] {
        let pooled = self.kv.address() + self.index_at[weights.kv] as u64;
        [pooled, self.at(self.layout.index.rings[weights.kv])]
    }

    /// Takes in the rows' keys of the layer's index, if it has one, and where they have them prepares its queries.
    pub(super) fn prepare_index(
        &self,
        weights: &AttentionWeights<Cuda>,
        queries: bool,
    ) -> Result<(), CudaError> {
        let kernels = self.kernels.attention(&weights.shape);
        let (Some(index), Some(shape), Some([query_norm, key_norm])) =
            (&kernels.index, weights.shape.index, &weights.index_norm)
        else {
            return Ok(());
        };
        let now = self.now();
        let [pooled, ring] = self.index_keys(weights);
        let queries = if queries {
            self.act(Act::IndexQuery)
        } else {
            0
        };
        let keys = self.act(Act::IndexKey);
        let [query_norm, key_norm] = [query_norm, key_norm].map(|norm| self.weight(norm.at));
        let turns = self.turns.address() + 4 * kernels.turns as u64;
        let grid = Grid::new([now.rows, (shape.heads + 1).div_ceil(4), 1], 128);
        // SAFETY: the parameters of `index_prepare`; the rows' pages are the sequences' own, and every slot has a ring.
        unsafe {
            launch!(&self.queue, &index.prepare, grid;
                now.tables, queries, keys, query_norm, key_norm, turns, weights.shape.eps, pooled, ring, u32::from(now.few()))
        }?;
        if now.few() {
            return Ok(());
        }
        let grid = Grid::new([now.rows, 1, 1], 32);
        // SAFETY: the parameters of `index_keep`, likewise.
        unsafe { launch!(&self.queue, &index.keep, grid; now.tables, keys, ring) }
    }

    /// Chooses what the rows see, where some may see less than everything.
    pub(super) fn choose_seen(&self, weights: &AttentionWeights<Cuda>) -> Result<Masks, CudaError> {
        let layout = &self.layout.index;
        let everything = Masks {
            of: 0,
            pages: layout.pages as u64,
        };
        let kernels = self.kernels.attention(&weights.shape);
        let select = kernels.index.as_ref().and_then(|of| of.select.as_ref());
        let (Some(select), Some(shape)) = (select, weights.shape.index) else {
            return Ok(everything);
        };
        let now = self.now();
        // of the positions that launches are made for, so that recorded windows depend on nothing else
        let groups = (now.splits * SPLIT / shape.group).min(layout.groups);
        if groups <= shape.budget {
            return Ok(everything);
        }
        let [pooled, _] = self.index_keys(weights);
        let (queries, scores) = (self.act(Act::IndexQuery), self.at(layout.scores));
        let (stride, masks) = (layout.groups as u64, self.at(layout.masks));
        for first in (0..now.rows).step_by(SELECT_ROWS) {
            let rows = SELECT_ROWS.min(now.rows - first);
            let tiles = rows.div_ceil(select.tile_rows);
            let warps = select.score_threads / 32;
            let blocks = (4 * self.processors / tiles).clamp(1, groups.div_ceil(warps));
            let grid = Grid::new([blocks, tiles, 1], select.score_threads);
            // SAFETY: the parameters of `index_scores`; there is room for the scores of as many rows.
            unsafe {
                launch!(&self.queue, &select.scores, grid;
                    now.tables, first as u32, queries, pooled, scores, stride)
            }?;
            let grid = Grid::new([rows, 1, 1], SELECT_THREADS);
            // SAFETY: the parameters of `index_select`; there is a mask for every page of every row.
            unsafe {
                launch!(&self.queue, &select.select, grid;
                    now.tables, first as u32, scores, stride, masks, everything.pages)
            }?;
        }
        Ok(Masks {
            of: masks,
            ..everything
        })
    }
}
