//! The controller for pretrained models (end of section 6): adjacent groups, a bound between neighbours.

use serde::{Deserialize, Serialize};

use super::{
    features::{Feature, HeadMoments, mean_of},
    network::Mlp,
};

/// Numbers of a head: mean |q|, std q, mean |k|, std k, mean |v|, std v, place in the layer, layer / 100.
pub const RETROFIT_FEATURES: usize = 8;

/// How a retrofit controller works.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RetrofitSettings {
    /// Whether adjacent heads are grouped; neighbouring groups then differ by at most one index.
    pub grouped: bool,
    /// Heads of a group.
    pub group_size: usize,
    /// Smoothing of the features.
    pub ema_alpha: f32,
    /// Share of the new index in the smoothed one.
    pub resolution_ema: f32,
    /// Steps between choices.
    pub control_interval: usize,
}

/// One layer's retrofit controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retrofit {
    layer: usize,
    settings: RetrofitSettings,
    network: Mlp,
    /// Smoothed head features.
    pub features: Vec<Feature>,
    /// Index of each head as scored.
    pub raw: Vec<usize>,
    /// After the neighbours' bound.
    pub bounded: Vec<usize>,
    /// Index of each head after smoothing.
    pub chosen: Vec<usize>,
    smoothed: Vec<f32>,
}

impl Retrofit {
    /// A controller for a layer.
    pub fn new(layer: usize, settings: RetrofitSettings, network: Mlp) -> Self {
        Self {
            layer,
            settings,
            network,
            features: Vec::new(),
            raw: Vec::new(),
            bounded: Vec::new(),
            chosen: Vec::new(),
            smoothed: Vec::new(),
        }
    }

    /// Takes one step; between choices nothing moves. `heads` are each query head's numbers (key/value heads repeated for the query heads that share them).
    pub fn step(&mut self, step: usize, heads: &[HeadMoments]) {
        let n = heads.len();
        let is_due = step.is_multiple_of(self.settings.control_interval.max(1));
        if !is_due && self.chosen.len() == n {
            return;
        }
        let fresh: Vec<Feature> = heads
            .iter()
            .enumerate()
            .map(|(head, m)| {
                let [q, k, v] = &m.qkv;
                let place = head as f32 / n.saturating_sub(1).max(1) as f32;
                let depth = self.layer as f32 / 100.0;
                vec![
                    q.mean_abs(),
                    q.std(),
                    k.mean_abs(),
                    k.std(),
                    v.mean_abs(),
                    v.std(),
                    place,
                    depth,
                ]
            })
            .collect();
        let a = self.settings.ema_alpha;
        self.features = if self.features.len() == n {
            self.features
                .iter()
                .zip(&fresh)
                .map(|(e, x)| {
                    e.iter()
                        .zip(x)
                        .map(|(e, x)| a * e + (1.0 - a) * x)
                        .collect()
                })
                .collect()
        } else {
            fresh
        };
        self.choose(n);
    }

    fn choose(&mut self, n: usize) {
        let size = if self.settings.grouped {
            self.settings.group_size.max(1)
        } else {
            1
        };
        let heads: Vec<usize> = (0..n).collect();
        self.raw = vec![0; n];
        self.bounded = vec![0; n];
        let mut before: Option<usize> = None;
        for group in heads.chunks(size) {
            let members: Vec<&Feature> = group.iter().map(|&h| &self.features[h]).collect();
            let logits = self.network.apply(&mean_of(members.into_iter()));
            let mut index = 0;
            for (i, logit) in logits.iter().enumerate() {
                if *logit > logits[index] {
                    index = i;
                }
            }
            let mut bounded = index;
            if self.settings.grouped
                && let Some(before) = before
            {
                bounded = index.clamp(before.saturating_sub(1), before + 1);
            }
            before = Some(bounded);
            for &head in group {
                self.raw[head] = index;
                self.bounded[head] = bounded;
            }
        }
        let a = self.settings.resolution_ema;
        let most = self.network.output().saturating_sub(1);
        self.smoothed.resize(n, 0.0);
        self.chosen = self
            .smoothed
            .iter_mut()
            .zip(&self.bounded)
            .map(|(m, &index)| {
                *m = (1.0 - a) * *m + a * index as f32;
                (m.round_ties_even().max(0.0) as usize).min(most)
            })
            .collect();
    }
}
