//! Hierarchies of head groups (section 4).

use serde::{Deserialize, Serialize};

use super::{
    clustering::{ClusterSettings, Clustering, cluster},
    features::{Feature, mean_of},
};

/// What stands for a group on the next level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupFeatureMode {
    /// Mean of its children's features.
    #[default]
    Mean,
    /// Mean plus population standard deviation.
    MeanStd,
    /// Mean plus population variance.
    MeanVar,
    /// Mean plus its offset from the mean over all children of the level.
    MeanGlobalOffset,
}

/// One level: groups of the items below it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// Items of each group: heads on level 0, groups of the level below on the others.
    pub groups: Vec<Vec<usize>>,
    /// One feature a group.
    pub features: Vec<Feature>,
    /// How the grouping came about; `None` where it was given.
    pub clustering: Option<Clustering>,
}

/// Levels of groups, heads' groups first. Every item of a level is in exactly one group of the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hierarchy {
    /// Level 0 groups heads.
    pub levels: Vec<Level>,
}

/// How hierarchies are built.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HierarchySettings {
    /// For heads.
    pub heads: ClusterSettings,
    /// For groups of groups.
    pub upper: ClusterSettings,
    /// Most levels.
    pub max_depth: usize,
    /// What stands for a group.
    pub group_features: GroupFeatureMode,
}

/// Features of groups from those of their children.
pub fn features_of(
    groups: &[Vec<usize>],
    children: &[Feature],
    mode: GroupFeatureMode,
) -> Vec<Feature> {
    let global = mean_of(children.iter());
    groups
        .iter()
        .map(|group| {
            let members: Vec<&Feature> = group.iter().map(|&c| &children[c]).collect();
            let mean = mean_of(members.iter().copied());
            let spread = |power: fn(f32) -> f32| -> Feature {
                (0..mean.len())
                    .map(|i| {
                        let variance = members
                            .iter()
                            .map(|m| (m[i] - mean[i]).powi(2))
                            .sum::<f32>()
                            / members.len() as f32;
                        mean[i] + power(variance)
                    })
                    .collect()
            };
            match mode {
                GroupFeatureMode::Mean => mean,
                GroupFeatureMode::MeanStd => spread(f32::sqrt),
                GroupFeatureMode::MeanVar => spread(|v| v),
                GroupFeatureMode::MeanGlobalOffset => {
                    mean.iter().zip(&global).map(|(m, g)| m + (m - g)).collect()
                }
            }
        })
        .collect()
}

impl Hierarchy {
    /// Clusters heads afresh, and the levels above.
    pub fn build(
        heads: &[Feature],
        settings: &HierarchySettings,
        previous: Option<&[usize]>,
    ) -> Self {
        let clustering = cluster(heads, &settings.heads, previous);
        let features = features_of(&clustering.groups, heads, settings.group_features);
        let level = Level {
            groups: clustering.groups.clone(),
            features,
            clustering: Some(clustering),
        };
        Self::grow(level, settings)
    }

    /// Takes the groups of heads and their features as given, and clusters the levels above.
    pub fn above(
        groups: Vec<Vec<usize>>,
        features: Vec<Feature>,
        settings: &HierarchySettings,
    ) -> Self {
        let level = Level {
            groups,
            features,
            clustering: None,
        };
        Self::grow(level, settings)
    }

    fn grow(level: Level, settings: &HierarchySettings) -> Self {
        let mut levels = vec![level];
        while levels.len() < settings.max_depth {
            let Some(below) = levels.last().filter(|l| l.groups.len() > 1) else {
                break;
            };
            let clustering = cluster(&below.features, &settings.upper, None);
            if clustering.groups.len() <= 1 {
                break;
            }
            let features =
                features_of(&clustering.groups, &below.features, settings.group_features);
            levels.push(Level {
                groups: clustering.groups.clone(),
                features,
                clustering: Some(clustering),
            });
        }
        Self { levels }
    }

    /// Every upper level keeps the same groups, one child each.
    pub fn pass_through(groups: Vec<Vec<usize>>, features: Vec<Feature>, max_depth: usize) -> Self {
        let count = groups.len();
        let upper = Level {
            groups: (0..count).map(|g| vec![g]).collect(),
            features: features.clone(),
            clustering: None,
        };
        let mut levels = vec![Level {
            groups,
            features,
            clustering: None,
        }];
        levels.resize(max_depth.max(1), upper);
        Self { levels }
    }

    /// The same groups on every level with new features of the heads' groups.
    pub fn with_features(&self, features: Vec<Feature>, mode: GroupFeatureMode) -> Self {
        let mut next = self.clone();
        let mut below = features;
        for (index, level) in next.levels.iter_mut().enumerate() {
            level.features = if index == 0 {
                below.clone()
            } else {
                features_of(&level.groups, &below, mode)
            };
            below = level.features.clone();
        }
        next
    }

    /// Groups on each level.
    pub fn counts(&self) -> Vec<usize> {
        self.levels.iter().map(|l| l.groups.len()).collect()
    }

    /// Group of each of `n` heads.
    pub fn group_of_head(&self, n: usize) -> Vec<usize> {
        self.levels
            .first()
            .map_or_else(Vec::new, |l| super::clustering::group_of(&l.groups, n))
    }

    /// The group above group `group` of `level`; `None` at the top.
    pub fn parent(&self, level: usize, group: usize) -> Option<usize> {
        self.levels
            .get(level + 1)?
            .groups
            .iter()
            .position(|children| children.contains(&group))
    }

    /// Heads of each group of a level.
    pub fn heads_of(&self, level: usize) -> Vec<Vec<usize>> {
        let Some(own) = self.levels.get(level) else {
            return Vec::new();
        };
        if level == 0 {
            return own.groups.clone();
        }
        let below = self.heads_of(level - 1);
        own.groups
            .iter()
            .map(|children| {
                let mut heads: Vec<usize> = children
                    .iter()
                    .flat_map(|&c| below[c].iter().copied())
                    .collect();
                heads.sort_unstable();
                heads
            })
            .collect()
    }

    /// Heads of each group of a level, in the order in which the groups below hold them.
    pub fn heads_of_in_order(&self, level: usize) -> Vec<Vec<usize>> {
        let Some(own) = self.levels.get(level) else {
            return Vec::new();
        };
        if level == 0 {
            return own.groups.clone();
        }
        let below = self.heads_of_in_order(level - 1);
        own.groups
            .iter()
            .map(|children| {
                children
                    .iter()
                    .flat_map(|&c| below[c].iter().copied())
                    .collect()
            })
            .collect()
    }
}
