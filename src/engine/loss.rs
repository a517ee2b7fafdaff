//! Loss without logits: log-sum-exp and the target's logit over tiles of the vocabulary, never `T x V` numbers.

use candle_core::Tensor;
use rayon::prelude::*;

use super::cpu::{
    elementwise::{row_max, soft_cap, sum_exp},
    product::{Mode, product},
};
use crate::Result;

/// Rows and vocabulary entries of one product: 1,024 x 4,096 numbers, 16 MiB.
const ROWS: usize = 1024;
const VOCABULARY: usize = 4096;

/// From the last hidden state to logits: `cap(scale (W h + b))`.
#[derive(Clone, Copy, Debug)]
pub struct LogitHead<'a> {
    /// `[V, C]`.
    pub weight: &'a Tensor,
    /// `[V]`.
    pub bias: Option<&'a [f32]>,
    /// Factor of the logits.
    pub scale: f32,
    /// Logits are bounded by `softcap * tanh(logit / softcap)`.
    pub softcap: Option<f32>,
}

impl LogitHead<'_> {
    /// From products to logits, for one row of the tokens `start..`.
    pub fn finish(&self, row: &mut [f32], start: usize) {
        if let Some(bias) = self.bias.and_then(|b| b.get(start..)) {
            for (logit, bias) in row.iter_mut().zip(bias) {
                *logit += bias;
            }
        }
        if self.scale != 1.0 {
            row.iter_mut().for_each(|logit| *logit *= self.scale);
        }
        if let Some(cap) = self.softcap {
            soft_cap(row, cap);
        }
    }

    fn is_plain(&self) -> bool {
        self.bias.is_none() && self.scale == 1.0 && self.softcap.is_none()
    }
}

/// Loss of predicting `targets[t]` from `hidden[t]`, in nats, `[targets.len()]`.
///
/// `hidden` is `[at least targets.len(), C]`, after the final norm.
pub fn token_loss(hidden: &[f32], head: &LogitHead<'_>, targets: &[u32]) -> Result<Vec<f32>> {
    let (vocab_size, width) = head.weight.dims2()?;
    let mut losses = Vec::with_capacity(targets.len());
    let mut tile = vec![0.0; ROWS.min(targets.len()) * VOCABULARY.min(vocab_size)];
    for (rows, targets) in hidden.chunks(ROWS * width).zip(targets.chunks(ROWS)) {
        let rows = &rows[..targets.len() * width];
        // Per row: largest logit, sum of e^(logit - largest), and the target's logit.
        let mut state = vec![(f32::NEG_INFINITY, 0.0f32, 0.0f32); targets.len()];
        let mut start = 0;
        while start < vocab_size {
            let count = VOCABULARY.min(vocab_size - start);
            let logits = &mut tile[..targets.len() * count];
            let weight = head.weight.narrow(0, start, count)?;
            product(rows, &weight, logits, Mode::Replace)?;
            state
                .par_iter_mut()
                .zip(logits.par_chunks_mut(count))
                .zip(targets)
                .with_min_len(8)
                .for_each(|(((max, sum, target_logit), row), &target)| {
                    if !head.is_plain() {
                        head.finish(row, start);
                    }
                    let new_max = max.max(row_max(row));
                    *sum = *sum * (*max - new_max).exp() + sum_exp(row, new_max);
                    *max = new_max;
                    if let Some(&logit) = (target as usize)
                        .checked_sub(start)
                        .and_then(|i| row.get(i))
                    {
                        *target_logit = logit;
                    }
                });
            start += count;
        }
        losses.extend(
            state
                .iter()
                .map(|(max, sum, target)| max + sum.ln() - target),
        );
    }
    Ok(losses)
}
