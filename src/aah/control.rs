//! The control branch over time (section 5): one [`LayerControl`] a layer, all of a model in a [`Controller`].

use serde::{Deserialize, Serialize};

use super::{
    ablation::WindowAblation,
    config::{AahConfig, Grouping},
    controller::{Choice, ControllerWeights, choose},
    features::{FEATURES, Feature, HeadMoments, HeadStatistics, group_feature, head_feature},
    hierarchy::Hierarchy,
    rng::Rng,
};
use crate::{Error, Result};

/// What a pass gave of one layer, before its windows are chosen.
#[derive(Clone, Debug, Default)]
pub struct LayerInput {
    /// Queries, keys and values of each head in this pass.
    pub moments: Vec<HeadMoments>,
    /// Statistics of each head from the previous pass: zeros at the first.
    pub previous: Vec<HeadStatistics>,
    /// Tokens, T.
    pub seq_len: usize,
}

/// How a layer came to its windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// Nothing is chosen or observed.
    #[default]
    FullAttention,
    /// Groups are built to be looked at; attention is full.
    GroupingOnly,
    /// Warm-up: attention is full.
    Warmup,
    /// Chosen anew.
    Update,
    /// Chosen before, and kept.
    Cached,
}

/// What a layer's control found at a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerOutcome {
    /// How.
    pub path: Path,
    /// Window of each head in keys, at most T.
    pub windows: Vec<u32>,
    /// Index of each head's window among the candidates, before ablation; empty where nothing was chosen.
    pub indices: Vec<usize>,
    /// Share of heads whose group changed; `None` where there was no group before.
    pub group_change_rate: Option<f32>,
    /// Mean change of the heads' chosen indices since the last step, before smoothing; `None` where there was none.
    pub resolution_delta: Option<f32>,
}

/// One layer's control branch: its weights, its memory, and what it last found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerControl {
    layer: usize,
    n_heads: usize,
    weights: ControllerWeights,
    /// Smoothed head features.
    pub ema: Option<Vec<Feature>>,
    /// The latest hierarchy.
    pub hierarchy: Option<Hierarchy>,
    /// The latest choice.
    pub choice: Option<Choice>,
    /// Groups of heads of the first pass.
    cached_groups: Option<Vec<Vec<usize>>>,
    /// Features of those groups during warm-up, and when they were measured.
    observed: Option<(usize, Vec<Feature>)>,
    frozen: Option<Hierarchy>,
    previous_groups: Option<Vec<usize>>,
    last_update: Option<usize>,
    /// Index of each head as last chosen.
    chosen: Option<Vec<usize>>,
    /// Smoothed indices.
    smoothed: Option<Vec<f32>>,
    last_indices: Option<Vec<usize>>,
}

impl LayerControl {
    /// A layer with these weights.
    pub fn new(layer: usize, n_heads: usize, weights: ControllerWeights) -> Self {
        Self {
            layer,
            n_heads,
            weights,
            ema: None,
            hierarchy: None,
            choice: None,
            cached_groups: None,
            observed: None,
            frozen: None,
            previous_groups: None,
            last_update: None,
            chosen: None,
            smoothed: None,
            last_indices: None,
        }
    }

    /// Group of each head; empty where heads are not grouped.
    pub fn groups(&self) -> Vec<usize> {
        self.hierarchy
            .as_ref()
            .map_or_else(Vec::new, |h| h.group_of_head(self.n_heads))
    }

    /// Takes one step.
    ///
    /// # Errors
    /// [`Error::Windows`] that names the layer and the head whose features are not finite, or says which sizes do not fit.
    pub fn step(
        &mut self,
        config: &AahConfig,
        step: usize,
        input: &LayerInput,
    ) -> Result<LayerOutcome> {
        self.check(config, input)?;
        let seq_len = input.seq_len as u32;
        let full = vec![seq_len; self.n_heads];
        let outcome = if !config.control {
            if !config.hierarchy {
                return Ok(LayerOutcome {
                    windows: full,
                    resolution_delta: Some(0.0),
                    ..LayerOutcome::default()
                });
            }
            let group_change_rate = self.observe(config, step, input);
            LayerOutcome {
                path: Path::GroupingOnly,
                windows: full,
                group_change_rate,
                ..LayerOutcome::default()
            }
        } else if step < config.warmup_steps {
            let group_change_rate = match config.grouping {
                Grouping::Off => None,
                _ => self.observe(config, step, input),
            };
            LayerOutcome {
                path: Path::Warmup,
                windows: self.ablated(config, step, seq_len, None),
                group_change_rate,
                ..LayerOutcome::default()
            }
        } else {
            self.controlled(config, step, input)
        };
        Ok(outcome)
    }

    fn check(&self, config: &AahConfig, input: &LayerInput) -> Result<()> {
        let layer = self.layer;
        if input.moments.len() != self.n_heads || input.previous.len() != self.n_heads {
            return Err(Error::Windows(format!(
                "layer {layer} has {} heads, but features of {} were given",
                self.n_heads,
                input.moments.len()
            )));
        }
        if config.windows.is_empty() || config.windows.contains(&0) {
            return Err(Error::Windows(
                "give at least one candidate window, each of at least 1 key".to_owned(),
            ));
        }
        for head in 0..self.n_heads {
            let feature = head_feature(&input.moments[head], &input.previous[head]);
            if let Some(index) = feature.iter().position(|f| !f.is_finite()) {
                return Err(Error::Windows(format!(
                    "the feature \"{}\" of L{layer} H{head} is {}: the model's numbers overflow on this text",
                    super::features::FEATURE_NAMES[index],
                    feature[index]
                )));
            }
        }
        Ok(())
    }

    fn head_features(&self, input: &LayerInput) -> Vec<Feature> {
        input
            .moments
            .iter()
            .zip(&input.previous)
            .map(|(m, p)| head_feature(m, p))
            .collect()
    }

    fn features_of_groups(&self, input: &LayerInput, groups: &[Vec<usize>]) -> Vec<Feature> {
        groups
            .iter()
            .map(|group| {
                let moments: Vec<HeadMoments> = group.iter().map(|&h| input.moments[h]).collect();
                let previous: Vec<HeadStatistics> =
                    group.iter().map(|&h| input.previous[h]).collect();
                group_feature(&moments, &previous)
            })
            .collect()
    }

    fn smooth(&mut self, alpha: f32, features: Vec<Feature>) -> Vec<Feature> {
        let next = match &self.ema {
            Some(ema) => ema
                .iter()
                .zip(&features)
                .map(|(e, x)| {
                    e.iter()
                        .zip(x)
                        .map(|(e, x)| alpha * e + (1.0 - alpha) * x)
                        .collect()
                })
                .collect(),
            None => features,
        };
        self.ema = Some(next.clone());
        next
    }

    /// Groups built to be looked at: the first pass clusters afresh, later ones keep its groups of heads.
    fn observe(&mut self, config: &AahConfig, step: usize, input: &LayerInput) -> Option<f32> {
        let settings = config.hierarchy_settings();
        match self.cached_groups.clone() {
            None => {
                let features = self.head_features(input);
                let smoothed = self.smooth(config.ema_alpha, features);
                let hierarchy = Hierarchy::build(&smoothed, &settings, None);
                self.cached_groups = hierarchy.levels.first().map(|l| l.groups.clone());
                self.take_hierarchy(hierarchy);
            }
            Some(groups) => {
                let is_fresh = self
                    .observed
                    .as_ref()
                    .is_some_and(|(at, _)| step - at < config.control_interval);
                if !is_fresh {
                    self.observed = Some((step, self.features_of_groups(input, &groups)));
                }
                let features = self
                    .observed
                    .as_ref()
                    .map_or_else(Vec::new, |(_, f)| f.clone());
                self.take_hierarchy(Hierarchy::above(groups, features, &settings));
            }
        }
        Some(0.0)
    }

    /// Makes a hierarchy the latest one; gives the share of heads whose group changed.
    fn take_hierarchy(&mut self, hierarchy: Hierarchy) -> Option<f32> {
        let groups = hierarchy.group_of_head(self.n_heads);
        self.hierarchy = Some(hierarchy);
        let before = self.previous_groups.replace(groups.clone())?;
        let changed = before.iter().zip(&groups).filter(|(a, b)| a != b).count();
        Some(changed as f32 / self.n_heads.max(1) as f32)
    }

    fn controlled(&mut self, config: &AahConfig, step: usize, input: &LayerInput) -> LayerOutcome {
        let is_due = self
            .last_update
            .is_none_or(|last| step - last >= config.control_interval.max(1));
        let mut group_change_rate = Some(0.0);
        let path = match &self.chosen {
            Some(_) if !is_due => Path::Cached,
            _ => {
                let (indices, rate) = self.update(config, input);
                self.chosen = Some(indices);
                self.last_update = Some(step);
                group_change_rate = rate;
                Path::Update
            }
        };
        let mut indices = self.chosen.clone().unwrap_or_default();
        let resolution_delta = self.last_indices.as_ref().map(|last| {
            let sum: usize = last.iter().zip(&indices).map(|(a, b)| a.abs_diff(*b)).sum();
            sum as f32 / indices.len().max(1) as f32
        });
        self.last_indices = Some(indices.clone());
        let most = config.windows.len() - 1;
        if config.resolution_ema > 0.0 {
            let a = config.resolution_ema;
            let smoothed: Vec<f32> = match &self.smoothed {
                Some(old) if old.len() == indices.len() => old
                    .iter()
                    .zip(&indices)
                    .map(|(m, &i)| a * m + (1.0 - a) * i as f32)
                    .collect(),
                _ => indices.iter().map(|&i| i as f32).collect(),
            };
            indices = smoothed.iter().map(|m| rounded(*m, most)).collect();
            self.smoothed = Some(smoothed);
        }
        if config.ramp_steps > 0 {
            let part = (step - config.warmup_steps + 1) as f32 / config.ramp_steps as f32;
            if part < 1.0 {
                let full = index_of_full(&config.windows, input.seq_len) as f32;
                for index in &mut indices {
                    *index = rounded(part * *index as f32 + (1.0 - part) * full, most);
                }
            }
        }
        let windows = self.ablated(config, step, input.seq_len as u32, Some(&indices));
        LayerOutcome {
            path,
            windows,
            indices,
            group_change_rate,
            resolution_delta,
        }
    }

    /// Chooses anew: the index of every head, and the share of heads whose group changed.
    fn update(&mut self, config: &AahConfig, input: &LayerInput) -> (Vec<usize>, Option<f32>) {
        let settings = config.hierarchy_settings();
        let n = self.n_heads;
        let mut rate = Some(0.0);
        let hierarchy = match &config.grouping {
            Grouping::Off => {
                let features = self.head_features(input);
                let hierarchy =
                    Hierarchy::pass_through((0..n).map(|h| vec![h]).collect(), features, 1);
                let choice = choose(&hierarchy, &self.weights, &config.scoring_settings());
                let indices = choice.bounded[0].clone();
                self.hierarchy = Some(hierarchy);
                self.choice = Some(choice);
                return (indices, None);
            }
            Grouping::FrozenTopology if self.frozen.is_some() => {
                let frozen = self.frozen.clone().unwrap_or_default();
                let groups = frozen
                    .levels
                    .first()
                    .map_or_else(Vec::new, |l| l.groups.clone());
                let features = self.features_of_groups(input, &groups);
                frozen.with_features(features, config.group_features)
            }
            Grouping::Adaptive | Grouping::FrozenTopology => {
                let features = self.head_features(input);
                let smoothed = self.smooth(config.ema_alpha, features);
                let hierarchy =
                    Hierarchy::build(&smoothed, &settings, self.previous_groups.as_deref());
                if config.grouping == Grouping::FrozenTopology {
                    self.frozen = Some(hierarchy.clone());
                }
                rate = None;
                hierarchy
            }
            Grouping::CachedHeads | Grouping::FrozenAfterWarmup => {
                let groups = match self.cached_groups.clone() {
                    Some(groups) => groups,
                    None => {
                        // No warm-up: the first update takes the place of the first pass.
                        let features = self.head_features(input);
                        let smoothed = self.smooth(config.ema_alpha, features);
                        let first = Hierarchy::build(&smoothed, &settings, None);
                        let groups = first
                            .levels
                            .first()
                            .map_or_else(Vec::new, |l| l.groups.clone());
                        self.cached_groups = Some(groups.clone());
                        groups
                    }
                };
                let features = self.features_of_groups(input, &groups);
                if config.grouping == Grouping::CachedHeads {
                    Hierarchy::above(groups, features, &settings)
                } else {
                    Hierarchy::pass_through(groups, features, config.max_depth)
                }
            }
            Grouping::FixedRandom => {
                let mut heads: Vec<usize> = (0..n).collect();
                Rng::of(&[config.seed, self.layer as u64, 0x6772_6F75]).shuffle(&mut heads);
                let mut of = vec![0; n];
                for &head in &heads[n / 2..] {
                    of[head] = 1;
                }
                self.fixed(config, input, &of)
            }
            Grouping::FixedDeterministic => {
                let of: Vec<usize> = (0..n).map(|h| h % 2).collect();
                self.fixed(config, input, &of)
            }
            Grouping::Given(of) => self.fixed(config, input, &of.clone()),
        };
        let choice = choose(&hierarchy, &self.weights, &config.scoring_settings());
        let groups = hierarchy.group_of_head(n);
        let chosen = choice.bounded.first().cloned().unwrap_or_default();
        let indices = groups
            .iter()
            .map(|&g| chosen.get(g).copied().unwrap_or(0))
            .collect();
        let changed = self.take_hierarchy(hierarchy);
        self.choice = Some(choice);
        (indices, rate.or(changed))
    }

    fn fixed(&self, config: &AahConfig, input: &LayerInput, of: &[usize]) -> Hierarchy {
        let count = of.iter().max().map_or(1, |m| m + 1);
        let mut groups = vec![Vec::new(); count];
        for head in 0..self.n_heads {
            groups[of.get(head).copied().unwrap_or(0)].push(head);
        }
        groups.retain(|g| !g.is_empty());
        let features = self.features_of_groups(input, &groups);
        Hierarchy::pass_through(groups, features, config.max_depth)
    }

    /// Windows in keys, after ablation; `None` for warm-up, whose windows are full.
    fn ablated(
        &self,
        config: &AahConfig,
        step: usize,
        seq_len: u32,
        indices: Option<&[usize]>,
    ) -> Vec<u32> {
        if let WindowAblation::FixedWindow(keys) = config.ablation {
            return vec![keys.min(seq_len).max(1); self.n_heads];
        }
        let full = index_of_full(&config.windows, seq_len as usize);
        let of_warmup = vec![full; self.n_heads];
        let mut chosen = indices.map_or(of_warmup, <[usize]>::to_vec);
        let n_windows = config.windows.len();
        config
            .ablation
            .apply(&mut chosen, n_windows, config.seed, self.layer, step);
        let is_full = indices.is_none() && config.ablation != WindowAblation::RandomUniform;
        chosen
            .iter()
            .map(|&i| {
                if is_full {
                    seq_len
                } else {
                    config.windows[i.min(n_windows - 1)].min(seq_len)
                }
            })
            .collect()
    }
}

/// The first window that holds the whole text, else the largest.
fn index_of_full(windows: &[u32], seq_len: usize) -> usize {
    windows
        .iter()
        .position(|&w| w as usize >= seq_len)
        .unwrap_or(windows.len() - 1)
}

/// Rounded half to even, within the candidates.
fn rounded(value: f32, most: usize) -> usize {
    (value.round_ties_even().max(0.0) as usize).min(most)
}

/// The control branches of a whole model, stepped together.
///
/// The same seed and the same inputs give the same windows on every platform; the state can be saved and read back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Controller {
    /// The setting.
    pub config: AahConfig,
    /// One a layer.
    pub layers: Vec<LayerControl>,
    /// Steps taken.
    pub step: usize,
    /// What the latest step found, one a layer.
    pub outcomes: Vec<LayerOutcome>,
    /// What the latest pass left of each head, one list a layer.
    pub statistics: Vec<Vec<HeadStatistics>>,
}

impl Controller {
    /// With random weights from the setting's seed.
    pub fn new(config: AahConfig, n_layers: usize, n_heads: usize) -> Self {
        let layers = (0..n_layers)
            .map(|layer| {
                let mut rng = Rng::of(&[config.seed, layer as u64]);
                let weights = ControllerWeights::random(
                    &config.scoring_settings(),
                    config.shape,
                    FEATURES,
                    config.windows.len(),
                    &mut rng,
                );
                LayerControl::new(layer, n_heads, weights)
            })
            .collect();
        Self {
            config,
            layers,
            step: 0,
            outcomes: vec![LayerOutcome::default(); n_layers],
            statistics: vec![vec![HeadStatistics::default(); n_heads]; n_layers],
        }
    }

    /// Chooses the windows of layer `layer` in the current step, from its heads' numbers and `seq_len` tokens.
    ///
    /// # Errors
    /// As [`LayerControl::step`]; and where there is no such layer.
    pub fn choose_layer(
        &mut self,
        layer: usize,
        moments: Vec<HeadMoments>,
        seq_len: usize,
    ) -> Result<LayerOutcome> {
        let count = self.layers.len();
        let (Some(control), Some(previous)) =
            (self.layers.get_mut(layer), self.statistics.get(layer))
        else {
            return Err(Error::Windows(format!(
                "the controller has {count} layers, not {}",
                layer + 1
            )));
        };
        let input = LayerInput {
            moments,
            previous: previous.clone(),
            seq_len,
        };
        let outcome = control.step(&self.config, self.step, &input)?;
        self.outcomes[layer] = outcome.clone();
        Ok(outcome)
    }

    /// Takes in what the layer's attention left, for the next step.
    pub fn observe_layer(&mut self, layer: usize, statistics: Vec<HeadStatistics>) {
        // Full attention without control leaves none, as in the reference.
        let is_observed = self
            .outcomes
            .get(layer)
            .is_some_and(|o| o.path != Path::FullAttention);
        if let Some(slot) = self.statistics.get_mut(layer).filter(|_| is_observed) {
            *slot = statistics;
        }
    }

    /// Gives a layer other weights; what it has found so far is forgotten.
    pub fn set_weights(&mut self, layer: usize, weights: ControllerWeights) {
        let n_heads = self.n_heads();
        if let Some(control) = self.layers.get_mut(layer) {
            *control = LayerControl::new(layer, n_heads, weights);
        }
    }

    /// Ends a step in which every layer was stepped.
    pub fn finish_step(&mut self) {
        self.step += 1;
    }

    /// Number of query heads a layer.
    pub fn n_heads(&self) -> usize {
        self.statistics.first().map_or(0, Vec::len)
    }
}
