//! Which experts a run has used most, kept for the next one.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::backend::ExpertLayer;

/// What is asked of a profile: that it is of this model.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Profile {
    /// `[layers]`: experts, used by a row, bytes of one.
    layers: Vec<(usize, usize, u64)>,
}

/// The file.
#[derive(Deserialize, Serialize)]
struct Kept {
    model: Profile,
    /// Layer, expert, rank; the most used first.
    experts: Vec<(usize, u16, f64)>,
}

impl Profile {
    /// Of a model with these layers.
    pub fn of(layers: &[ExpertLayer]) -> Self {
        let shape = |layer: &ExpertLayer| (layer.experts, layer.used, layer.expert_bytes);
        Self {
            layers: layers.iter().map(shape).collect(),
        }
    }

    /// What an earlier run has written, the most used first; nothing if there is none, or one of another model, or something else.
    pub fn read(&self, path: &Path) -> Vec<(usize, u16, f64)> {
        let read = fs::read(path).map_err(|error| error.to_string());
        let kept: Result<Kept, String> =
            read.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()));
        match kept {
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "no profile of experts");
                Vec::new()
            }
            Ok(kept) if kept.model != *self => {
                tracing::info!(path = %path.display(), "the profile of experts is another model's");
                Vec::new()
            }
            Ok(mut kept) => {
                let layers = &self.layers;
                kept.experts.retain(|(layer, expert, _)| {
                    layers
                        .get(*layer)
                        .is_some_and(|(experts, _, _)| usize::from(*expert) < *experts)
                });
                kept.experts
            }
        }
    }

    /// Keeps what this run has used, if it has used anything. A file that is there is replaced as a whole.
    ///
    /// **Errors**: what the system says.
    pub fn write(&self, path: &Path, ranked: &[(usize, u16, f64)]) -> io::Result<()> {
        if ranked.is_empty() {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let finite = ranked.iter().filter(|(_, _, rank)| rank.is_finite());
        let kept = Kept {
            model: self.clone(),
            experts: finite.copied().collect(),
        };
        let new = path.with_extension(format!("{}.new", std::process::id()));
        fs::write(&new, serde_json::to_vec(&kept)?)?;
        fs::rename(&new, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_of_its_model() {
        let layer = |experts| ExpertLayer {
            layer: 0,
            experts,
            used: 2,
            expert_bytes: 10,
        };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("below/profile.json");
        let own = Profile::of(&[layer(4), layer(4)]);
        assert_eq!(own.read(&path), []);
        own.write(&path, &[]).expect("nothing to write");
        assert!(!path.exists());
        let ranked = [(1, 3, 2.5), (0, 0, -1.0), (0, 9, -2.0), (7, 0, -3.0)];
        own.write(&path, &ranked).expect("room");
        assert_eq!(
            own.read(&path),
            ranked[..2],
            "others are none of its experts"
        );
        assert_eq!(Profile::of(&[layer(4), layer(5)]).read(&path), []);
        fs::write(&path, "{").expect("room");
        assert_eq!(own.read(&path), []);
    }
}
