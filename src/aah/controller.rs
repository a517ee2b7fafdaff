//! Scoring groups and choosing their windows, from the top level down (section 5).

use serde::{Deserialize, Serialize};

use super::{
    features::{Feature, mean_of},
    hierarchy::Hierarchy,
    network::Mlp,
    rng::Rng,
};

/// What the controller is told of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputMode {
    /// Its feature.
    Base,
    /// Feature, level, difference from the parent and from the level's mean, size.
    #[default]
    Enriched,
    /// Enriched, and the difference from its siblings' mean.
    Contrastive,
    /// Enriched, and its place among its siblings.
    PositionAware,
    /// Feature, difference from the siblings' mean and from the parent, level.
    RelativeSiblingMean,
}

impl InputMode {
    /// Numbers of an input for features of width `features`.
    pub fn width(self, features: usize) -> usize {
        let enriched = 3 * features + 2;
        match self {
            Self::Base => features,
            Self::Enriched => enriched,
            Self::Contrastive => enriched + features,
            Self::PositionAware => enriched + 3,
            Self::RelativeSiblingMean => 3 * features + 1,
        }
    }
}

/// How siblings are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairwise {
    /// Not at all.
    None,
    /// A second network's view of the difference from the siblings' mean is added.
    SiblingBias,
    /// Siblings are scored two by two by one network ("wide joint sibling scoring").
    #[default]
    JointSibling,
}

/// How groups are scored.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoringSettings {
    /// What the controller is told.
    pub input_mode: InputMode,
    /// How siblings are compared.
    pub pairwise: Pairwise,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// Factor of the sibling bias.
    pub pairwise_scale: f32,
    /// Whether a child's window may not exceed its parent's.
    pub parent_constraint: bool,
}

/// The networks of one layer's controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControllerWeights {
    /// Input to a logit a window.
    pub own: Mlp,
    /// Input to a bias of each logit; for [`Pairwise::SiblingBias`].
    pub sibling_bias: Option<Mlp>,
    /// Two siblings to the logits of both; for [`Pairwise::JointSibling`].
    pub joint: Option<Mlp>,
}

/// Sizes of a controller's networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerShape {
    /// Hidden width of the own network, at least 4.
    pub control_dim: usize,
    /// Hidden width of the joint network.
    pub joint_hidden: usize,
    /// Two hidden layers instead of one.
    pub deep: bool,
}

impl ControllerWeights {
    /// Random weights, the same for the same seed and layer.
    pub fn random(
        settings: &ScoringSettings,
        shape: ControllerShape,
        features: usize,
        n_windows: usize,
        rng: &mut Rng,
    ) -> Self {
        let input = settings.input_mode.width(features);
        let hidden = shape.control_dim.max(4);
        let widths: &[usize] = if shape.deep {
            &[input, hidden, hidden, n_windows]
        } else {
            &[input, hidden, n_windows]
        };
        let own = Mlp::random(widths, rng);
        Self {
            own,
            sibling_bias: (settings.pairwise == Pairwise::SiblingBias)
                .then(|| Mlp::random(&[input, hidden, n_windows], rng)),
            joint: (settings.pairwise == Pairwise::JointSibling)
                .then(|| Mlp::random(&[4 * input, shape.joint_hidden, 2 * n_windows], rng)),
        }
    }
}

/// What was chosen, level by level, heads' groups first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// What the controller was told of each group.
    pub inputs: Vec<Vec<Feature>>,
    /// Logits of each group, one a window.
    pub logits: Vec<Vec<Vec<f32>>>,
    /// Each group's own choice, as an index of the windows.
    pub raw: Vec<Vec<usize>>,
    /// After the parent's bound.
    pub bounded: Vec<Vec<usize>>,
}

/// Groups of a level by parent, in order; at the top all are siblings.
fn sibling_sets(hierarchy: &Hierarchy, level: usize) -> Vec<Vec<usize>> {
    match hierarchy.levels.get(level + 1) {
        Some(above) => above
            .groups
            .iter()
            .map(|children| {
                let mut set = children.clone();
                set.sort_unstable();
                set
            })
            .collect(),
        None => vec![(0..hierarchy.levels[level].groups.len()).collect()],
    }
}

fn minus(a: &[f32], b: &[f32]) -> Feature {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// The difference of `group` from the mean of its siblings, itself left out; 0 for an only child.
fn from_siblings(of: &[Feature], set: &[usize], group: usize) -> Feature {
    let others: Vec<&Feature> = set
        .iter()
        .filter(|&&g| g != group)
        .map(|&g| &of[g])
        .collect();
    if others.is_empty() {
        return vec![0.0; of[group].len()];
    }
    minus(&of[group], &mean_of(others.into_iter()))
}

/// Controller inputs of all groups of a level.
pub fn inputs(hierarchy: &Hierarchy, level: usize, mode: InputMode) -> Vec<Feature> {
    let own = &hierarchy.levels[level];
    let depth = hierarchy.levels.len();
    let level_part = level as f32 / depth.saturating_sub(1).max(1) as f32;
    let level_mean = mean_of(own.features.iter());
    let children: usize = own.groups.iter().map(Vec::len).sum();
    let sets = sibling_sets(hierarchy, level);
    let mut place = vec![(0usize, 0usize); own.groups.len()];
    for (set_index, set) in sets.iter().enumerate() {
        for (position, &group) in set.iter().enumerate() {
            place[group] = (set_index, position);
        }
    }
    own.features
        .iter()
        .enumerate()
        .map(|(group, f)| {
            let to_parent = match hierarchy.parent(level, group) {
                Some(parent) => minus(f, &hierarchy.levels[level + 1].features[parent]),
                None => vec![0.0; f.len()],
            };
            let (set_index, position) = place[group];
            let set = &sets[set_index];
            let to_siblings = || from_siblings(&own.features, set, group);
            let mut input = f.clone();
            match mode {
                InputMode::Base => return input,
                InputMode::RelativeSiblingMean => {
                    input.extend(to_siblings());
                    input.extend(to_parent);
                    input.push(level_part);
                    return input;
                }
                InputMode::Enriched | InputMode::Contrastive | InputMode::PositionAware => {}
            }
            input.push(level_part);
            input.extend(to_parent);
            input.extend(minus(f, &level_mean));
            input.push(own.groups[group].len() as f32 / children.max(1) as f32);
            match mode {
                InputMode::Contrastive => input.extend(to_siblings()),
                InputMode::PositionAware => {
                    let last = set.len().saturating_sub(1).max(1) as f32;
                    let is_first = position == 0;
                    input.push(position as f32 / last);
                    input.push(f32::from(u8::from(is_first)));
                    input.push(f32::from(u8::from(!is_first)));
                }
                _ => {}
            }
            input
        })
        .collect()
}

/// Logits of all groups of a level, given what the controller is told of them.
fn logits(
    hierarchy: &Hierarchy,
    level: usize,
    inputs: &[Feature],
    weights: &ControllerWeights,
    settings: &ScoringSettings,
) -> Vec<Vec<f32>> {
    let mut logits: Vec<Vec<f32>> = inputs.iter().map(|x| weights.own.apply(x)).collect();
    for set in sibling_sets(hierarchy, level) {
        match settings.pairwise {
            Pairwise::None => {}
            Pairwise::SiblingBias => {
                if let Some(network) = &weights.sibling_bias {
                    for &group in &set {
                        let bias = network.apply(&from_siblings(inputs, &set, group));
                        for (logit, bias) in logits[group].iter_mut().zip(bias) {
                            *logit += settings.pairwise_scale * bias;
                        }
                    }
                }
            }
            Pairwise::JointSibling => {
                if let Some(network) = &weights.joint {
                    for pair in set.chunks_exact(2) {
                        let (a, b) = (&inputs[pair[0]], &inputs[pair[1]]);
                        let mut both = a.clone();
                        both.extend_from_slice(b);
                        both.extend(minus(a, b));
                        both.extend(minus(b, a));
                        let out = network.apply(&both);
                        let (first, second) = out.split_at(out.len() / 2);
                        logits[pair[0]] = first.to_vec();
                        logits[pair[1]] = second.to_vec();
                    }
                }
            }
        }
    }
    for logit in logits.iter_mut().flatten() {
        *logit *= settings.logit_scale;
    }
    logits
}

/// The first of the largest.
fn argmax(values: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best
}

/// Scores all groups and chooses, from the top down.
pub fn choose(
    hierarchy: &Hierarchy,
    weights: &ControllerWeights,
    settings: &ScoringSettings,
) -> Choice {
    let depth = hierarchy.levels.len();
    let mut choice = Choice {
        inputs: vec![Vec::new(); depth],
        logits: vec![Vec::new(); depth],
        raw: vec![Vec::new(); depth],
        bounded: vec![Vec::new(); depth],
    };
    for level in (0..depth).rev() {
        let inputs = inputs(hierarchy, level, settings.input_mode);
        let logits = logits(hierarchy, level, &inputs, weights, settings);
        let raw: Vec<usize> = logits.iter().map(|l| argmax(l)).collect();
        let bounded = raw
            .iter()
            .enumerate()
            .map(|(group, &own)| match hierarchy.parent(level, group) {
                Some(parent) if settings.parent_constraint => {
                    own.min(choice.bounded[level + 1][parent])
                }
                _ => own,
            })
            .collect();
        choice.inputs[level] = inputs;
        choice.logits[level] = logits;
        choice.raw[level] = raw;
        choice.bounded[level] = bounded;
    }
    choice
}
