//! Who will be wanted next: what the routers of the next layers make of this layer's input, how often they were right, and whether it pays to bring whom they name.
//!
//! Pure: it is told what was predicted and what was chosen, so what a replay says of it holds where it is used.

/// Layers that are looked ahead.
pub const DISTANCES: usize = 3;
/// What a new observation weighs.
const WEIGHT: f32 = 1.0 / 64.0;
/// What is believed of a prediction of which nothing is known yet.
const PRIOR: f32 = 0.5;
/// What a useless transfer costs of what a useful one saves: whoever is then waited for waits for half of it, on average.
const PRICE: f32 = 0.5;

/// How often predictions were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Choices that were predicted.
    pub right: u64,
    /// All choices.
    pub all: u64,
}

impl Hits {
    /// From 0 to 1; nothing if there are none.
    pub fn rate(&self) -> Option<f64> {
        (self.all > 0).then(|| self.right as f64 / self.all as f64)
    }
}

/// What is said of a layer.
#[derive(Clone, Debug, Default)]
struct Said {
    /// `[rows, used] u16`, by rank; empty if nothing is.
    ids: Vec<u16>,
}

/// Predictions and their record.
#[derive(Clone, Debug)]
pub struct Predictor {
    /// `[layers][distances]`
    said: Vec<[Said; DISTANCES]>,
    /// `[distances][ranks]`: how probably the expert of that rank is chosen.
    rates: [Vec<f32>; DISTANCES],
    hits: [Hits; DISTANCES],
    /// `[experts]`: how probably one is not wanted; 1 between calls.
    unlikely: Vec<f32>,
    named: Vec<u16>,
}

impl Predictor {
    /// For so many layers with experts.
    pub fn new(layers: usize) -> Self {
        Self {
            said: vec![Default::default(); layers],
            rates: Default::default(),
            hits: Default::default(),
            unlikely: Vec::new(),
            named: Vec::new(),
        }
    }

    /// Takes note of what is predicted for a layer, `distance` layers before it. **Shapes**: `ids [rows, used] u16`, by rank.
    ///
    /// **Panics** if `distance` is 0 or more than [`DISTANCES`].
    pub fn say(&mut self, layer: usize, distance: usize, ids: &[u16]) {
        let said = &mut self.said[layer][distance - 1].ids;
        said.clear();
        said.extend_from_slice(ids);
    }

    /// Compares with what a layer's rows have chosen, each `used` experts; what was predicted is forgotten. Rows that have left since make it incomparable.
    pub fn chosen(&mut self, layer: usize, ids: &[u16], used: usize) {
        for distance in 0..DISTANCES {
            let said = &mut self.said[layer][distance].ids;
            if said.len() == ids.len() {
                let rates = &mut self.rates[distance];
                rates.resize(used.max(rates.len()), PRIOR);
                for (said, chosen) in said.chunks_exact(used).zip(ids.chunks_exact(used)) {
                    for (expert, rate) in said.iter().zip(rates.iter_mut()) {
                        let right = chosen.contains(expert);
                        self.hits[distance].right += u64::from(right);
                        *rate += WEIGHT * (f32::from(u8::from(right)) - *rate);
                    }
                    self.hits[distance].all += used as u64;
                }
            }
            said.clear();
        }
    }

    /// Of what is predicted for a layer from this distance, those whom it pays to bring: likeliest first. **Shapes**: `[rows, used]` as said.
    pub fn worth(&mut self, layer: usize, distance: usize, used: usize) -> &[u16] {
        let said = &self.said[layer][distance - 1].ids;
        let rates = &mut self.rates[distance - 1];
        rates.resize(used.max(rates.len()), PRIOR);
        self.named.clear();
        for row in said.chunks_exact(used) {
            for (expert, rate) in row.iter().zip(rates.iter()) {
                let at = usize::from(*expert);
                if self.unlikely.len() <= at {
                    self.unlikely.resize(at + 1, 1.0);
                }
                if self.unlikely[at] == 1.0 {
                    self.named.push(*expert);
                }
                // never quite certain, so that a name is known to be taken
                self.unlikely[at] *= (1.0 - rate).clamp(1e-6, 0.999_999);
            }
        }
        let unlikely = &mut self.unlikely;
        self.named.sort_by(|a, b| {
            let [a, b] = [a, b].map(|expert| unlikely[usize::from(*expert)]);
            a.total_cmp(&b)
        });
        let pays = |expert: &u16| {
            let wrong = unlikely[usize::from(*expert)];
            1.0 - wrong > PRICE * wrong
        };
        let paying = self.named.iter().take_while(|expert| pays(expert)).count();
        for expert in &self.named {
            unlikely[usize::from(*expert)] = 1.0;
        }
        &self.named[..paying]
    }

    /// `[distances]`: how often predictions were right, one layer ahead first.
    pub fn hits(&self) -> [Hits; DISTANCES] {
        self.hits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_kept_by_distance() {
        let mut predictor = Predictor::new(3);
        predictor.say(1, 1, &[1, 2, 3, 4]);
        predictor.say(2, 2, &[1, 2, 3, 4]);
        predictor.chosen(1, &[2, 1, 4, 9], 2);
        predictor.chosen(2, &[2, 9], 2); // a row has left
        predictor.chosen(2, &[2, 1, 4, 3], 2); // nothing was said of it since
        let [one, two, _] = predictor.hits();
        assert_eq!((one.right, one.all), (3, 4));
        assert_eq!(two, Hits::default());
        assert_eq!(two.rate(), None);
    }

    #[test]
    fn only_what_pays_is_brought() {
        let mut predictor = Predictor::new(1);
        // the first rank is always right, the second never
        for _ in 0..500 {
            predictor.say(0, 1, &[5, 6]);
            predictor.chosen(0, &[5, 7], 2);
        }
        predictor.say(0, 1, &[1, 2]);
        assert_eq!(predictor.worth(0, 1, 2), [1]);
        // whom many rows name, each with little reason, comes after whom one is sure of
        predictor.say(0, 1, &[1, 2, 3, 2]);
        assert_eq!(predictor.worth(0, 1, 2), [1, 3]);
        // nothing is known of distance 2 yet: one in two is worth it
        predictor.say(0, 2, &[8, 9]);
        assert_eq!(predictor.worth(0, 2, 2), [8, 9]);
    }
}
