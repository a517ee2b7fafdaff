//! Features of heads and of groups of heads (section 2).

use serde::{Deserialize, Serialize};

/// Numbers of a head: mean |q|, std q, mean |k|, std k, mean |v|, std v, entropy, output norm, usage.
pub const FEATURES: usize = 9;

/// Names of the features, in order.
pub const FEATURE_NAMES: [&str; FEATURES] = [
    "mean |q|", "std q", "mean |k|", "std k", "mean |v|", "std v", "entropy", "norm", "usage",
];

/// A feature vector; wider ones occur where controllers are given more.
pub type Feature = Vec<f32>;

/// Sums from which the magnitude and the spread of one head's queries, keys or values follow; they add up over heads,
/// texts and chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    count: f64,
    sum: f64,
    sum_abs: f64,
    sum_squares: f64,
}

impl Moments {
    /// Takes one number in.
    pub fn add(&mut self, value: f32) {
        let value = f64::from(value);
        self.count += 1.0;
        self.sum += value;
        self.sum_abs += value.abs();
        self.sum_squares += value * value;
    }

    /// Takes others in.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.sum_abs += other.sum_abs;
        self.sum_squares += other.sum_squares;
    }

    /// Mean of absolute values.
    pub fn mean_abs(&self) -> f32 {
        (self.sum_abs / self.count.max(1.0)) as f32
    }

    /// Sample standard deviation (divisor N - 1).
    pub fn std(&self) -> f32 {
        if self.count < 2.0 {
            return 0.0;
        }
        let mean = self.sum / self.count;
        let centered = (self.sum_squares - self.count * mean * mean).max(0.0);
        (centered / (self.count - 1.0)).sqrt() as f32
    }
}

/// What one pass leaves of a head for the features: its queries, keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeadMoments {
    /// Of q, k and v, after positions.
    pub qkv: [Moments; 3],
}

/// What the previous pass left of a head: 0 at the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeadStatistics {
    /// Entropy of the weights over `max(1, ln T)`.
    pub entropy: f32,
    /// L2 norm of the output before the output projection.
    pub norm: f32,
    /// Mean weight on the last key.
    pub usage: f32,
}

/// Features of one head.
pub fn head_feature(moments: &HeadMoments, previous: &HeadStatistics) -> Feature {
    group_feature(
        std::slice::from_ref(moments),
        std::slice::from_ref(previous),
    )
}

/// Features of a group where the grouping is given: statistics over the union of its heads' numbers, and means of what
/// the previous pass left.
pub fn group_feature(moments: &[HeadMoments], previous: &[HeadStatistics]) -> Feature {
    let mut union = HeadMoments::default();
    for head in moments {
        for (all, part) in union.qkv.iter_mut().zip(&head.qkv) {
            all.merge(part);
        }
    }
    let mean = |of: fn(&HeadStatistics) -> f32| {
        previous.iter().map(of).sum::<f32>() / previous.len().max(1) as f32
    };
    let [q, k, v] = &union.qkv;
    vec![
        q.mean_abs(),
        q.std(),
        k.mean_abs(),
        k.std(),
        v.mean_abs(),
        v.std(),
        mean(|s| s.entropy),
        mean(|s| s.norm),
        mean(|s| s.usage),
    ]
}

/// Mean of vectors; empty for none.
pub fn mean_of<'a>(vectors: impl ExactSizeIterator<Item = &'a Feature>) -> Feature {
    // In blocks of four, as the reference's tensor library sums: near-ties then fall the same way.
    const BLOCK: usize = 4;
    let count = vectors.len();
    let (mut blocks, mut rest): (Feature, Feature) = (Vec::new(), Vec::new());
    for (index, vector) in vectors.enumerate() {
        if blocks.is_empty() {
            blocks = vec![0.0; vector.len()];
            rest = vec![0.0; vector.len()];
        }
        for (s, v) in rest.iter_mut().zip(vector) {
            *s += v;
        }
        if (index + 1).is_multiple_of(BLOCK) {
            for (b, r) in blocks.iter_mut().zip(&mut rest) {
                *b += std::mem::take(r);
            }
        }
    }
    blocks
        .iter()
        .zip(&rest)
        .map(|(b, r)| (r + b) / count as f32)
        .collect()
}
