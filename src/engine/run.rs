//! What a run measured ([`Run`]), and what is kept of it to continue from ([`Trace`]).

use std::{sync::Arc, time::Duration};

use super::attend::{Attended, Qkv};
use crate::{
    aah::features::{HeadMoments, HeadStatistics, Moments},
    attention::{HeadId, Window, WindowMap, pairs::causal_pairs},
};

/// What one layer was given and what it found. All parts are shared with runs that continue from it.
#[derive(Clone, Debug)]
pub struct LayerTrace {
    /// The residual stream before the layer, `[T, C]`.
    pub input: Arc<Vec<f32>>,
    /// Queries, keys and values.
    pub qkv: Qkv,
    /// Outputs, log-sum-exps and statistics of its heads.
    pub attended: Arc<Attended>,
    /// The model's own window in this layer.
    pub reach: Window,
}

/// All layers of a run, and the windows it ran under.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The windows and sinks.
    pub windows: WindowMap,
    /// First to last.
    pub layers: Vec<LayerTrace>,
}

/// What one pass of the model measured.
#[derive(Clone, Debug)]
pub struct Run {
    /// The windows and sinks it ran under.
    pub windows: WindowMap,
    /// Tokens, T.
    pub seq_len: usize,
    /// Loss in nats of token `t + 1` given those before it, `[T - 1]`.
    pub token_loss: Vec<f32>,
    /// Mean over queries of the entropy of each head's weights, in nats, `[layers, heads]`.
    pub entropy: Vec<f32>,
    /// Mean over queries of the L2 norm of each head's output, before the output projection, `[layers, heads]`.
    pub output_norm: Vec<f32>,
    /// Pairs that the kernels evaluated, block padding included, over causal pairs: the EAR.
    pub ear: f64,
    /// First layer that was computed anew; the layers before it were taken from an earlier run.
    pub from_layer: usize,
    /// Time of this pass.
    pub elapsed: Duration,
}

impl Run {
    pub(super) fn measure(
        trace: &Trace,
        token_loss: Vec<f32>,
        from_layer: usize,
        elapsed: Duration,
    ) -> Self {
        let mut run = Self {
            windows: trace.windows.clone(),
            seq_len: trace.layers.first().map_or(0, |l| l.qkv.shape.seq_len),
            token_loss,
            entropy: Vec::new(),
            output_norm: Vec::new(),
            ear: 1.0,
            from_layer,
            elapsed,
        };
        let mut executed = 0u64;
        for layer in &trace.layers {
            let shape = &layer.qkv.shape;
            run.entropy.extend(&layer.attended.entropy);
            run.output_norm.extend(output_norms(
                &layer.attended.out,
                shape.n_heads,
                shape.head_dim,
            ));
            executed += layer.attended.executed_pairs.iter().sum::<u64>();
        }
        let heads = (trace.windows.layers() * trace.windows.heads()) as f64;
        let all = causal_pairs(run.seq_len) as f64 * heads;
        if all > 0.0 {
            run.ear = executed as f64 / all;
        }
        run
    }

    /// Mean loss in nats per token; `None` for a text of one token.
    pub fn mean_loss(&self) -> Option<f64> {
        mean(&self.token_loss)
    }

    /// Entropy of one head in nats.
    pub fn entropy_of(&self, head: HeadId) -> f32 {
        self.of(&self.entropy, head)
    }

    /// Mean output norm of one head.
    pub fn norm_of(&self, head: HeadId) -> f32 {
        self.of(&self.output_norm, head)
    }

    fn of(&self, values: &[f32], head: HeadId) -> f32 {
        values
            .get(head.layer * self.windows.heads() + head.head)
            .copied()
            .unwrap_or(f32::NAN)
    }
}

/// Mean of numbers, summed in f64; `None` of none.
pub fn mean(values: &[f32]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let sum: f64 = values.iter().map(|&v| f64::from(v)).sum();
    Some(sum / values.len() as f64)
}

/// Mean over queries of the L2 norm of each head's output, `[H]`.
fn output_norms(out: &[f32], n_heads: usize, head_dim: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; n_heads];
    for row in out.chunks(n_heads * head_dim) {
        for (sum, head) in sums.iter_mut().zip(row.chunks(head_dim)) {
            *sum += f64::from(head.iter().map(|v| v * v).sum::<f32>().sqrt());
        }
    }
    let queries = (out.len() / (n_heads * head_dim).max(1)).max(1) as f64;
    sums.into_iter().map(|sum| (sum / queries) as f32).collect()
}

/// What the control branch takes from a pass for its next step: entropy over `max(1, ln T)`, output norm, and the mean
/// weight on the last key, one a head.
pub fn head_statistics(qkv: &Qkv, attended: &Attended) -> Vec<HeadStatistics> {
    let shape = &qkv.shape;
    let (t, d) = (shape.seq_len, shape.head_dim);
    let norms = output_norms(&attended.out, shape.n_heads, d);
    let divisor = (t as f32).ln().max(1.0);
    (0..shape.n_heads)
        .map(|head| {
            // Under a causal mask only the last query sees the last key.
            let last = t.saturating_sub(1);
            let q = &qkv.q[(last * shape.n_heads + head) * d..][..d];
            let k = &qkv.k[(last * shape.n_kv_heads + shape.kv_head(head)) * d..][..d];
            let dot: f32 = q.iter().zip(k).map(|(a, b)| a * b).sum();
            let mut score = dot * shape.scale;
            if let Some(cap) = shape.softcap {
                score = cap * (score / cap).tanh();
            }
            let weight = (score - attended.lse[head * t + last]).exp();
            HeadStatistics {
                entropy: attended.entropy[head] / divisor,
                norm: norms[head],
                usage: weight / t as f32,
            }
        })
        .collect()
}

/// Magnitudes and spreads of each query head's queries, keys and values; shared keys count for every head that reads
/// them.
pub fn head_moments(qkv: &Qkv) -> Vec<HeadMoments> {
    use rayon::prelude::*;
    let shape = qkv.shape;
    let d = shape.head_dim;
    let of = |values: &[f32], heads: usize| -> Vec<Moments> {
        (0..heads)
            .into_par_iter()
            .map(|head| {
                let mut moments = Moments::default();
                for row in values.chunks(heads * d) {
                    for &value in &row[head * d..(head + 1) * d] {
                        moments.add(value);
                    }
                }
                moments
            })
            .collect()
    };
    let q = of(&qkv.q, shape.n_heads);
    let k = of(&qkv.k, shape.n_kv_heads);
    let v = of(&qkv.v, shape.n_kv_heads);
    (0..shape.n_heads)
        .map(|head| {
            let kv = shape.kv_head(head);
            HeadMoments {
                qkv: [q[head], k[kv], v[kv]],
            }
        })
        .collect()
}
