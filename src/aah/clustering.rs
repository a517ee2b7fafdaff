//! Grouping at a threshold (section 3): greedy, in item order, with a forced split and a merging of small groups.

use serde::{Deserialize, Serialize};

use super::features::{Feature, mean_of};

/// How alike two items are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Cosine of the angle between them.
    #[default]
    Cosine,
    /// The same after the mean over the items is taken off.
    CenteredCosine,
    /// Minus the Euclidean distance.
    L2,
    /// Cosine, less the relative difference of the lengths times a scale.
    CosineNormdiff,
}

/// How items are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterSettings {
    /// How alike items are.
    pub metric: Metric,
    /// Least similarity to join a group.
    pub threshold: f32,
    /// Groups smaller than this are merged.
    pub min_group_size: usize,
    /// Whether a single group is split in two.
    pub allow_forced_split: bool,
    /// Added to the similarity of items that were together before.
    pub churn_bonus: f32,
    /// Weight of the relative length difference in [`Metric::CosineNormdiff`].
    pub normdiff_scale: f32,
}

/// Where a grouping comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// There was only one item.
    #[default]
    SingleItem,
    /// The threshold gave it.
    Natural,
    /// All items were alike; the least alike pair was set apart.
    ForcedBipartition,
    /// All items were alike, and stay together.
    Collapsed,
}

impl Origin {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::SingleItem => "single item",
            Self::Natural => "natural",
            Self::ForcedBipartition => "forced split",
            Self::Collapsed => "collapsed",
        }
    }
}

/// A grouping, and how it came about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Clustering {
    /// Items of each group, in the order they joined.
    pub groups: Vec<Vec<usize>>,
    /// Where it comes from.
    pub origin: Origin,
    /// Groups before a forced split.
    pub groups_before_split: usize,
    /// Groups before merging.
    pub groups_before_merge: usize,
    /// Similarity of all pairs, `[n, n]`, before the churn bonus.
    pub similarity: Vec<f32>,
    /// Similarity of the pair that a forced split set apart.
    pub anchor_similarity: Option<f32>,
}

impl Clustering {
    /// Group of each of `n` items.
    pub fn group_of(&self, n: usize) -> Vec<usize> {
        group_of(&self.groups, n)
    }

    /// Mean, least and largest similarity of different items; 1 for a single item.
    pub fn similarity_range(&self) -> [f32; 3] {
        let n = self.similarity.len().isqrt();
        if n < 2 {
            return [1.0; 3];
        }
        let (mut sum, mut low, mut high) = (0.0f64, f32::INFINITY, f32::NEG_INFINITY);
        for (index, &s) in self.similarity.iter().enumerate() {
            if index / n != index % n {
                sum += f64::from(s);
                low = low.min(s);
                high = high.max(s);
            }
        }
        [(sum / (n * (n - 1)) as f64) as f32, low, high]
    }
}

/// Group of each of `n` items.
pub fn group_of(groups: &[Vec<usize>], n: usize) -> Vec<usize> {
    let mut of = vec![0; n];
    for (index, group) in groups.iter().enumerate() {
        for &item in group {
            if let Some(slot) = of.get_mut(item) {
                *slot = index;
            }
        }
    }
    of
}

const NORM_FLOOR: f32 = 1e-6;

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(x, y)| f64::from(*x) * f64::from(*y))
        .sum::<f64>() as f32
}

fn norm(a: &[f32]) -> f32 {
    dot(a, a).sqrt()
}

fn unit(a: &[f32]) -> Feature {
    let length = norm(a).max(NORM_FLOOR);
    a.iter().map(|x| x / length).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(x, y)| (x - y) * (x - y))
        .sum::<f32>()
        .sqrt()
}

/// What items are compared by.
struct Scores<'a> {
    settings: &'a ClusterSettings,
    /// As given.
    raw: &'a [Feature],
    /// Scaled to unit length, but for `L2`.
    scaled: Vec<Feature>,
}

impl<'a> Scores<'a> {
    fn new(raw: &'a [Feature], settings: &'a ClusterSettings) -> Self {
        let scaled = match settings.metric {
            Metric::L2 => raw.to_vec(),
            Metric::Cosine | Metric::CosineNormdiff => raw.iter().map(|f| unit(f)).collect(),
            Metric::CenteredCosine => {
                let center = mean_of(raw.iter());
                raw.iter()
                    .map(|f| {
                        let centered: Feature = f.iter().zip(&center).map(|(x, c)| x - c).collect();
                        unit(&centered)
                    })
                    .collect()
            }
        };
        Self {
            settings,
            raw,
            scaled,
        }
    }

    fn compare(&self, scaled: [&[f32]; 2], norms: [f32; 2]) -> f32 {
        match self.settings.metric {
            Metric::L2 => -distance(scaled[0], scaled[1]),
            Metric::Cosine | Metric::CenteredCosine => dot(scaled[0], scaled[1]),
            Metric::CosineNormdiff => {
                let [a, b] = norms;
                let difference = (a - b).abs() / a.max(b).max(NORM_FLOOR);
                dot(scaled[0], scaled[1]) - self.settings.normdiff_scale * difference
            }
        }
    }

    fn similarity(&self) -> Vec<f32> {
        let n = self.raw.len();
        let norms: Vec<f32> = self.raw.iter().map(|f| norm(f)).collect();
        let mut matrix = Vec::with_capacity(n * n);
        for i in 0..n {
            for j in 0..n {
                let pair = [&self.scaled[i][..], &self.scaled[j][..]];
                matrix.push(self.compare(pair, [norms[i], norms[j]]));
            }
        }
        matrix
    }

    /// Item by item: join the best group that is near enough, or found a new one.
    fn greedy(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut centroids: Vec<(Feature, f32)> = Vec::new();
        for item in 0..self.raw.len() {
            let own_norm = norm(&self.raw[item]);
            let mut best: Option<(usize, f32)> = None;
            for (group, (centroid, centroid_norm)) in centroids.iter().enumerate() {
                let s = self.compare([&self.scaled[item], centroid], [own_norm, *centroid_norm]);
                // The first among equals.
                if best.is_none_or(|(_, most)| s > most) {
                    best = Some((group, s));
                }
            }
            match best {
                Some((group, s)) if s >= self.settings.threshold => {
                    groups[group].push(item);
                    centroids[group] = self.centroid(&groups[group]);
                }
                _ => {
                    groups.push(vec![item]);
                    centroids.push(self.centroid(&[item]));
                }
            }
        }
        groups
    }

    /// A group's direction, and the length of its mean raw feature.
    fn centroid(&self, members: &[usize]) -> (Feature, f32) {
        let mean = self.mean(members);
        let centroid = match self.settings.metric {
            Metric::L2 => mean,
            _ => unit(&mean),
        };
        let raw = mean_of(
            members
                .iter()
                .map(|&m| &self.raw[m])
                .collect::<Vec<_>>()
                .into_iter(),
        );
        (centroid, norm(&raw))
    }

    fn mean(&self, members: &[usize]) -> Feature {
        mean_of(
            members
                .iter()
                .map(|&m| &self.scaled[m])
                .collect::<Vec<_>>()
                .into_iter(),
        )
    }

    /// Splits all items between the two that are least alike.
    fn forced_split(&self, similarity: &[f32]) -> (Vec<Vec<usize>>, [usize; 2]) {
        let n = self.raw.len();
        let mut anchors = [0, 1];
        let mut least = f32::INFINITY;
        for i in 0..n {
            for j in 0..n {
                if i != j && similarity[i * n + j] < least {
                    least = similarity[i * n + j];
                    anchors = [i, j];
                }
            }
        }
        let [a, b] = anchors;
        let mut groups = vec![vec![a], vec![b]];
        for item in (0..n).filter(|item| !anchors.contains(item)) {
            let to_a = dot(&self.scaled[item], &self.scaled[a]);
            let to_b = dot(&self.scaled[item], &self.scaled[b]);
            let group = if (to_a - to_b).abs() <= 1e-8 {
                usize::from(groups[1].len() < groups[0].len())
            } else {
                usize::from(to_b > to_a)
            };
            groups[group].push(item);
        }
        (groups, anchors)
    }

    /// Moves the members of groups that are too small to the group most like theirs.
    fn merge_small(&self, groups: &mut Vec<Vec<usize>>) {
        let least = self.settings.min_group_size;
        let small: Vec<usize> = (0..groups.len())
            .filter(|&g| groups[g].len() < least)
            .collect();
        let mut means: Vec<Feature> = groups.iter().map(|g| self.mean(g)).collect();
        for group in small {
            if groups[group].len() >= least {
                continue;
            }
            let mut best: Option<(usize, f32)> = None;
            for other in (0..groups.len()).filter(|&other| other != group) {
                let s = dot(&means[group], &means[other]);
                if best.is_none_or(|(_, most)| s > most) {
                    best = Some((other, s));
                }
            }
            let Some((target, s)) = best else { continue };
            let left = groups.iter().filter(|g| !g.is_empty()).count();
            if s < self.settings.threshold || left <= 2 {
                continue;
            }
            let members = std::mem::take(&mut groups[group]);
            groups[target].extend(members);
            means[target] = self.mean(&groups[target]);
        }
        groups.retain(|g| !g.is_empty());
    }
}

/// Groups items; every item is in exactly one group. `previous` is the group of each item before, if there was one.
pub fn cluster(
    items: &[Feature],
    settings: &ClusterSettings,
    previous: Option<&[usize]>,
) -> Clustering {
    let n = items.len();
    if n <= 1 {
        return Clustering {
            groups: (0..n).map(|i| vec![i]).collect(),
            origin: Origin::SingleItem,
            groups_before_split: n,
            groups_before_merge: n,
            similarity: vec![1.0; n],
            anchor_similarity: None,
        };
    }
    let scores = Scores::new(items, settings);
    let similarity = scores.similarity();
    let mut groups = scores.greedy();
    let groups_before_split = groups.len();
    let mut anchor_similarity = None;
    let mut origin = Origin::Natural;
    if groups.len() == 1 {
        origin = Origin::Collapsed;
        if settings.allow_forced_split {
            let mut with_bonus = similarity.clone();
            if settings.metric == Metric::Cosine
                && let Some(previous) = previous.filter(|p| p.len() == n)
            {
                for i in 0..n {
                    for j in 0..n {
                        if previous[i] == previous[j] {
                            let s = &mut with_bonus[i * n + j];
                            *s = (*s + settings.churn_bonus).min(1.0);
                        }
                    }
                }
            }
            let (split, [a, b]) = scores.forced_split(&with_bonus);
            groups = split;
            origin = Origin::ForcedBipartition;
            anchor_similarity = Some(with_bonus[a * n + b]);
        }
    }
    let groups_before_merge = groups.len();
    if settings.min_group_size > 1 && groups.len() > 1 && origin != Origin::ForcedBipartition {
        scores.merge_small(&mut groups);
    }
    Clustering {
        groups,
        origin,
        groups_before_split,
        groups_before_merge,
        similarity,
        anchor_similarity,
    }
}
