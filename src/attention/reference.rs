//! Windowed causal attention in plain f64: slow, obvious, and what every kernel is tested against.

use super::Window;

/// What the reference computes for one head.
#[derive(Clone, Debug)]
pub struct ReferenceHead {
    /// Output, `[T, D]`.
    pub out: Vec<f64>,
    /// Weights, `[T, T]`, zero outside the window.
    pub weights: Vec<f64>,
    /// Natural logarithm of the softmax denominator of each query, `[T]`.
    pub lse: Vec<f64>,
}

/// One head's inputs.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceInputs<'a> {
    /// Queries, `[T, D]`.
    pub q: &'a [f32],
    /// Keys, `[T, D]`.
    pub k: &'a [f32],
    /// Values, `[T, D]`.
    pub v: &'a [f32],
    /// Width of the head, D.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f64,
    /// Bound of the scores, if any.
    pub softcap: Option<f64>,
}

/// Attention of one head with a causal local window and sinks.
///
/// Query `t` sees key `j <= t` if `t - j < window` or `j < sinks`, and in any case only if `t - j < reach` (the model's
/// own window). Scores are `q · k * scale`, bounded by `softcap * tanh(score / softcap)` where a cap is given.
pub fn attend(
    inputs: ReferenceInputs<'_>,
    window: Window,
    reach: Window,
    sinks: usize,
) -> ReferenceHead {
    let ReferenceInputs {
        q,
        k,
        v,
        head_dim,
        scale,
        softcap,
    } = inputs;
    let seq_len = q.len() / head_dim;
    let (w, reach) = (window.size(seq_len), reach.size(seq_len));
    let mut head = ReferenceHead {
        out: vec![0.0; seq_len * head_dim],
        weights: vec![0.0; seq_len * seq_len],
        lse: vec![0.0; seq_len],
    };
    let row = |x: &'_ [f32], t: usize| -> Vec<f64> {
        x[t * head_dim..(t + 1) * head_dim]
            .iter()
            .map(|&value| f64::from(value))
            .collect()
    };
    for t in 0..seq_len {
        let query = row(q, t);
        let visible: Vec<usize> = (0..=t)
            .filter(|&j| t - j < reach && (t - j < w || j < sinks))
            .collect();
        let scores: Vec<f64> = visible
            .iter()
            .map(|&j| {
                let key = row(k, j);
                let dot: f64 = query.iter().zip(&key).map(|(a, b)| a * b).sum();
                let score = dot * scale;
                softcap.map_or(score, |cap| cap * (score / cap).tanh())
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        head.lse[t] = max + sum.ln();
        for (&j, score) in visible.iter().zip(&scores) {
            let weight = (score - max).exp() / sum;
            head.weights[t * seq_len + j] = weight;
            for (d, value) in row(v, j).into_iter().enumerate() {
                head.out[t * head_dim + d] += weight * value;
            }
        }
    }
    head
}

impl ReferenceHead {
    /// Number of queries, T.
    pub fn seq_len(&self) -> usize {
        self.lse.len()
    }

    /// Entropy of each query's weights in nats, `[T]`.
    pub fn entropy(&self) -> Vec<f64> {
        self.weights
            .chunks(self.seq_len().max(1))
            .map(|row| {
                -row.iter()
                    .filter(|&&a| a > 0.0)
                    .map(|a| a * a.ln())
                    .sum::<f64>()
            })
            .collect()
    }

    /// Distance profile `P(d) = (1/T) sum_t a[t, t - d]`, `[T]`.
    pub fn distance_profile(&self) -> Vec<f64> {
        let seq_len = self.seq_len();
        let mut profile = vec![0.0; seq_len];
        for t in 0..seq_len {
            for j in 0..=t {
                profile[t - j] += self.weights[t * seq_len + j] / seq_len as f64;
            }
        }
        profile
    }
}
