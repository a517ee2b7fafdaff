//! [`AahConfig`] and the paper's regimes (section 6).

use serde::{Deserialize, Serialize};

use super::{
    ablation::WindowAblation,
    clustering::{ClusterSettings, Metric},
    controller::{ControllerShape, InputMode, Pairwise, ScoringSettings},
    hierarchy::{GroupFeatureMode, HierarchySettings},
};

/// How groups of heads are found, and kept over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    /// Every head is scored alone.
    Off,
    /// Clustered afresh at every update, from smoothed features.
    Adaptive,
    /// The groups of heads of the first pass; the levels above are clustered.
    CachedHeads,
    /// All levels of the first hierarchy after warm-up; only features are renewed.
    FrozenTopology,
    /// The groups of heads of the first pass, on every level.
    FrozenAfterWarmup,
    /// Random halves, on every level.
    FixedRandom,
    /// Even and odd heads, on every level.
    FixedDeterministic,
    /// These groups (one number a head), on every level.
    Given(Vec<usize>),
}

/// Everything that the control branch can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AahConfig {
    /// Whether windows are chosen at all; otherwise attention is full.
    pub control: bool,
    /// Whether groups are built, be it only to be looked at.
    pub hierarchy: bool,
    /// How groups are found.
    pub grouping: Grouping,
    /// Candidate windows, ascending, in keys.
    pub windows: Vec<u32>,
    /// Smoothing of head features: `ema <- a ema + (1 - a) x`.
    pub ema_alpha: f32,
    /// Least cosine for heads to share a group.
    pub sim_threshold: f32,
    /// Least similarity for groups to share a group.
    pub super_threshold: f32,
    /// Threshold of the upper levels for the metric `l2`, minus a distance.
    pub upper_l2_threshold: f32,
    /// Similarity of groups.
    pub upper_metric: Metric,
    /// Weight of length differences in `cosine_normdiff`.
    pub normdiff_scale: f32,
    /// Bonus for items that were together.
    pub churn_penalty: f32,
    /// Smaller groups are merged.
    pub min_group_size: usize,
    /// Most levels.
    pub max_depth: usize,
    /// What stands for a group.
    pub group_features: GroupFeatureMode,
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
    /// Sizes of the controller's networks.
    pub shape: ControllerShape,
    /// Steps between updates.
    pub control_interval: usize,
    /// Steps of full attention at the start.
    pub warmup_steps: usize,
    /// Steps from full attention to the chosen windows after warm-up.
    pub ramp_steps: usize,
    /// Smoothing of window indices; 0 for none.
    pub resolution_ema: f32,
    /// What replaces or shuffles the choice.
    pub ablation: WindowAblation,
    /// Seed of the controller, of random groups and of ablations.
    pub seed: u64,
}

impl Default for AahConfig {
    /// The paper's setting: full adaptive.
    fn default() -> Self {
        Self {
            control: true,
            hierarchy: true,
            grouping: Grouping::Adaptive,
            windows: vec![512, 1024, 2048, 4096],
            ema_alpha: 0.9,
            sim_threshold: 0.72,
            super_threshold: 0.76,
            upper_l2_threshold: -1.0,
            upper_metric: Metric::CosineNormdiff,
            normdiff_scale: 16.0,
            churn_penalty: 0.02,
            min_group_size: 3,
            max_depth: 4,
            group_features: GroupFeatureMode::Mean,
            input_mode: InputMode::Enriched,
            pairwise: Pairwise::JointSibling,
            logit_scale: 1.0,
            pairwise_scale: 1.0,
            parent_constraint: true,
            shape: ControllerShape {
                control_dim: 16,
                joint_hidden: 64,
                deep: false,
            },
            control_interval: 5,
            warmup_steps: 100,
            ramp_steps: 0,
            resolution_ema: 0.15,
            ablation: WindowAblation::None,
            seed: 0,
        }
    }
}

impl AahConfig {
    /// How hierarchies are built under this setting.
    pub fn hierarchy_settings(&self) -> HierarchySettings {
        let threshold = match self.upper_metric {
            Metric::L2 => self.upper_l2_threshold,
            _ => self.super_threshold,
        };
        HierarchySettings {
            heads: ClusterSettings {
                metric: Metric::Cosine,
                threshold: self.sim_threshold,
                min_group_size: self.min_group_size,
                allow_forced_split: true,
                churn_bonus: self.churn_penalty,
                normdiff_scale: self.normdiff_scale,
            },
            upper: ClusterSettings {
                metric: self.upper_metric,
                threshold,
                min_group_size: self.min_group_size,
                allow_forced_split: false,
                churn_bonus: 0.0,
                normdiff_scale: self.normdiff_scale,
            },
            max_depth: self.max_depth,
            group_features: self.group_features,
        }
    }

    /// How groups are scored under this setting.
    pub fn scoring_settings(&self) -> ScoringSettings {
        ScoringSettings {
            input_mode: self.input_mode,
            pairwise: self.pairwise,
            logit_scale: self.logit_scale,
            pairwise_scale: self.pairwise_scale,
            parent_constraint: self.parent_constraint,
        }
    }

    /// The paper's four windows in proportion to a text of `seq_len` tokens: an eighth, a quarter, a half, all.
    pub fn scaled_windows(seq_len: usize) -> Vec<u32> {
        let mut windows: Vec<u32> = [8, 4, 2, 1]
            .iter()
            .map(|part| seq_len.div_ceil(*part).max(1) as u32)
            .collect();
        windows.dedup();
        windows
    }
}

/// The paper's regimes and controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Regime {
    /// Every head the whole past.
    FullAttention,
    /// Every head scored alone.
    GroupingOff,
    /// Groups clustered afresh at every update.
    FullAdaptive,
    /// One level of groups, frozen at the first update.
    ShallowFreeze,
    /// Groups of heads cached, upper levels clustered.
    DeepPracticalReuse,
    /// Full attention; groups only observed.
    ControlOff,
    /// Random halves.
    FixedRandomGrouping,
    /// Even and odd heads.
    FixedDeterministic,
    /// The first groups on every level.
    FreezeAfterWarmup,
    /// Full adaptive without comparing siblings.
    IndependentScoring,
    /// Full adaptive without smoothing.
    NoFeatureEma,
    /// Full adaptive without the parent's bound.
    NoParentConstraint,
    /// The same window for all: the second smallest.
    FixedWindow,
    /// Any window for any head.
    RandomUniform,
    /// Full adaptive, then shuffled among heads.
    ShuffledAdaptive,
    /// Shallow freeze, then shuffled among heads.
    ShuffledShallow,
}

impl Regime {
    /// All, in the paper's order.
    pub const ALL: [Self; 16] = [
        Self::FullAttention,
        Self::GroupingOff,
        Self::FullAdaptive,
        Self::ShallowFreeze,
        Self::DeepPracticalReuse,
        Self::ControlOff,
        Self::FixedRandomGrouping,
        Self::FixedDeterministic,
        Self::FreezeAfterWarmup,
        Self::IndependentScoring,
        Self::NoFeatureEma,
        Self::NoParentConstraint,
        Self::FixedWindow,
        Self::RandomUniform,
        Self::ShuffledAdaptive,
        Self::ShuffledShallow,
    ];

    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::FullAttention => "full-attention",
            Self::GroupingOff => "grouping-off",
            Self::FullAdaptive => "full-adaptive",
            Self::ShallowFreeze => "shallow-freeze",
            Self::DeepPracticalReuse => "deep-practical-reuse",
            Self::ControlOff => "control-off",
            Self::FixedRandomGrouping => "fixed-random-grouping",
            Self::FixedDeterministic => "fixed-deterministic",
            Self::FreezeAfterWarmup => "freeze-after-warmup",
            Self::IndependentScoring => "independent-scoring",
            Self::NoFeatureEma => "no-feature-ema",
            Self::NoParentConstraint => "no-parent-constraint",
            Self::FixedWindow => "fixed-window",
            Self::RandomUniform => "random-uniform",
            Self::ShuffledAdaptive => "shuffled-adaptive",
            Self::ShuffledShallow => "shuffled-shallow",
        }
    }

    /// What it does, in one line.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::FullAttention => "every head sees the whole past; nothing is chosen",
            Self::GroupingOff => "every head is scored alone, from its own features",
            Self::FullAdaptive => "heads are grouped afresh at every update, up to four levels",
            Self::ShallowFreeze => {
                "one level of groups, frozen at the first update; only features are renewed"
            }
            Self::DeepPracticalReuse => {
                "groups of heads are kept from the first pass, the levels above are clustered"
            }
            Self::ControlOff => "full attention; groups are built only to be looked at",
            Self::FixedRandomGrouping => "heads in two random halves, the same on every level",
            Self::FixedDeterministic => "even and odd heads, the same on every level",
            Self::FreezeAfterWarmup => "the first grouping of heads, the same on every level",
            Self::IndependentScoring => "full adaptive, but siblings are not compared",
            Self::NoFeatureEma => "full adaptive, but features are not smoothed over steps",
            Self::NoParentConstraint => {
                "full adaptive, but a child's window may exceed its parent's"
            }
            Self::FixedWindow => "a control: every head the second smallest window",
            Self::RandomUniform => "a control: every head any of the windows, by chance",
            Self::ShuffledAdaptive => {
                "a control: full adaptive's windows, shuffled among the layer's heads"
            }
            Self::ShuffledShallow => {
                "a control: shallow freeze's windows, shuffled among the layer's heads"
            }
        }
    }

    /// The regime of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.name() == name)
    }

    /// The paper's setting of this regime, with these candidate windows.
    pub fn config(self, windows: Vec<u32>) -> AahConfig {
        let second = windows.get(1).or(windows.first()).copied().unwrap_or(1);
        let mut config = AahConfig {
            windows,
            ..AahConfig::default()
        };
        let shallow = |config: &mut AahConfig| {
            config.grouping = Grouping::FrozenTopology;
            config.max_depth = 1;
        };
        match self {
            Self::FullAdaptive => {}
            Self::FullAttention => {
                config.control = false;
                config.hierarchy = false;
            }
            Self::ControlOff => config.control = false,
            Self::GroupingOff => {
                config.grouping = Grouping::Off;
                config.hierarchy = false;
                config.pairwise = Pairwise::None;
                config.max_depth = 1;
            }
            Self::ShallowFreeze => shallow(&mut config),
            Self::DeepPracticalReuse => config.grouping = Grouping::CachedHeads,
            Self::FixedRandomGrouping => config.grouping = Grouping::FixedRandom,
            Self::FixedDeterministic => config.grouping = Grouping::FixedDeterministic,
            Self::FreezeAfterWarmup => config.grouping = Grouping::FrozenAfterWarmup,
            Self::IndependentScoring => config.pairwise = Pairwise::None,
            Self::NoFeatureEma => config.ema_alpha = 0.0,
            Self::NoParentConstraint => config.parent_constraint = false,
            Self::FixedWindow => config.ablation = WindowAblation::FixedWindow(second),
            Self::RandomUniform => config.ablation = WindowAblation::RandomUniform,
            Self::ShuffledAdaptive => config.ablation = WindowAblation::ShufflePostSelect,
            Self::ShuffledShallow => {
                shallow(&mut config);
                config.ablation = WindowAblation::ShufflePostSelect;
            }
        }
        config
    }
}
