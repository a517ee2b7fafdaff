//! What replaces or shuffles the chosen windows: the controls of section 6.

use serde::{Deserialize, Serialize};

use super::rng::Rng;

/// A window ablation, applied last and also during warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowAblation {
    /// None.
    #[default]
    None,
    /// All heads this many keys.
    FixedWindow(u32),
    /// A random order of the chosen windows among the layer's heads: the histogram stays.
    ShufflePostSelect,
    /// Every head any of the windows.
    RandomUniform,
}

impl WindowAblation {
    /// Changes the indices of a layer's heads; for [`Self::FixedWindow`] see the caller, which knows the windows.
    pub fn apply(
        self,
        indices: &mut [usize],
        n_windows: usize,
        seed: u64,
        layer: usize,
        step: usize,
    ) {
        let mut rng = Rng::of(&[seed, layer as u64, step as u64]);
        match self {
            Self::None | Self::FixedWindow(_) => {}
            Self::ShufflePostSelect => rng.shuffle(indices),
            Self::RandomUniform => indices.fill_with(|| rng.below(n_windows)),
        }
    }
}
