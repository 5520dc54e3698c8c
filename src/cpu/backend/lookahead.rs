//! The routers of the next layers applied to this layer's input: who will probably be wanted.
//!
//! The residual changes little from layer to layer, so a router has an opinion on what comes before its own layer. It costs a product with the router's matrix, and nothing depends on it
//! but what is read ahead.

use super::{Cpu, Matrix, experts::router};
use crate::{
    backend::{Act, RouteWeights},
    cpu::store::Store,
    residency::predict::DISTANCES,
};

/// The routers, and room for what they say.
#[derive(Default)]
pub(super) struct Lookahead {
    /// `[layers with experts]`
    routers: Vec<(Matrix, RouteWeights<Cpu>)>,
    /// `[rows, used] u16`
    ids: Vec<u16>,
    /// `[rows, used] f32`
    weights: Vec<f32>,
}

impl Lookahead {
    /// Takes note of a layer's router. Layers come in their order.
    pub(super) fn add(&mut self, layer: usize, matrix: Matrix, weights: RouteWeights<Cpu>) {
        debug_assert_eq!(layer, self.routers.len());
        self.routers.push((matrix, weights));
    }
}

impl Cpu {
    /// Tells `say` whom the routers of the next layers would choose for the window's rows: layer, distance, and `ids [rows, used]`.
    fn predict(
        &mut self,
        rows: usize,
        layer: usize,
        mut say: impl FnMut(usize, usize, &[u16], usize),
    ) {
        let mut ahead = std::mem::take(&mut self.lookahead);
        for distance in 1..=DISTANCES {
            let Some((matrix, weights)) = ahead.routers.get(layer + distance) else {
                break;
            };
            self.products(rows, Act::Normed, &[(matrix, Act::Router)]);
            let shape = weights.shape;
            let places = rows * shape.used;
            ahead.ids.resize(places, 0);
            ahead.weights.resize(places, 0.0);
            let logits = self.acts.rows_mut(Act::Router, rows, shape.experts);
            router(weights).run(
                &self.pool,
                self.isa,
                logits,
                &mut ahead.ids,
                &mut ahead.weights,
            );
            say(layer + distance, distance, &ahead.ids, shape.used);
        }
        self.lookahead = ahead;
    }

    /// Where streams wait: has those read ahead whom the next layers will probably want, and records who they are.
    pub(super) fn look_ahead(&mut self, rows: usize, layer: usize, store: Option<&mut Store>) {
        let mut store = store.filter(|store| store.looks_ahead());
        let mut trace = self.trace.take();
        if (store.is_some() || trace.is_some()) && self.decoding.contains(&true) {
            self.predict(rows, layer, |layer, distance, ids, used| {
                if let Some(store) = &mut store {
                    store.look_ahead(layer, distance, ids, used);
                }
                if let Some(trace) = &mut trace {
                    trace.ahead(layer, distance, ids);
                }
            });
        }
        self.trace = trace;
    }
}
