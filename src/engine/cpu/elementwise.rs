//! What a decoder does between its matrix products: norms, rotary positions, activations. All rows in parallel.

use rayon::prelude::*;

use super::simd::{LANES, Lane, dispatch, exp_lane, fused, tanh_lane};
use crate::model::{Activation, Norm, NormKind, RopeSpec};

/// Elements that are worth a task of their own.
const MIN_ELEMENTS: usize = 16 * 1024;

fn rows_per_task(width: usize) -> usize {
    MIN_ELEMENTS.div_ceil(width.max(1))
}

/// A norm of every row of `x` (`[n, width]`). The weights are as wide as a row, or as several, which they then go over
/// in turn: weights of each head's own.
pub fn norm(x: &[f32], kind: NormKind, norm: &Norm, width: usize, eps: f32) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    out.par_chunks_mut(width)
        .zip(x.par_chunks(width))
        .enumerate()
        .with_min_len(rows_per_task(width))
        .for_each(|(index, (out, row))| {
            let start = index * width % norm.weight.len();
            let weight = &norm.weight[start..start + width];
            match kind {
                NormKind::Rms => rms_norm_row(out, row, weight, eps),
                NormKind::Layer => layer_norm_row(out, row, weight, eps),
            }
            if let Some(bias) = &norm.bias {
                for (out, bias) in out.iter_mut().zip(&bias[start..start + width]) {
                    *out += bias;
                }
            }
        });
    out
}

/// `x / sqrt(mean(x²) + eps) * weight`.
fn rms_norm_row(out: &mut [f32], row: &[f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (sum_of_squares(row) / row.len() as f32 + eps).sqrt();
    for ((out, value), weight) in out.iter_mut().zip(row).zip(weight) {
        *out = value * scale * weight;
    }
}

/// `(x - mean) / sqrt(variance + eps) * weight`.
fn layer_norm_row(out: &mut [f32], row: &[f32], weight: &[f32], eps: f32) {
    let sum: f64 = row.iter().map(|&v| f64::from(v)).sum();
    let mean = (sum / row.len() as f64) as f32;
    for (out, value) in out.iter_mut().zip(row) {
        *out = value - mean;
    }
    let scale = 1.0 / (sum_of_squares(out) / row.len() as f32 + eps).sqrt();
    for (out, weight) in out.iter_mut().zip(weight) {
        *out *= scale * weight;
    }
}

/// In eight parts, which vectorises and rounds less than one running sum.
fn sum_of_squares(row: &[f32]) -> f32 {
    let mut parts = [0.0f32; 8];
    let (chunks, rest) = row.as_chunks::<8>();
    for chunk in chunks {
        for (part, value) in parts.iter_mut().zip(chunk) {
            *part += value * value;
        }
    }
    parts.iter().sum::<f32>() + rest.iter().map(|v| v * v).sum::<f32>()
}

/// `x += y`, elementwise.
pub fn add_assign(x: &mut [f32], y: &[f32]) {
    x.par_chunks_mut(MIN_ELEMENTS)
        .zip(y.par_chunks(MIN_ELEMENTS))
        .for_each(|(x, y)| {
            for (x, y) in x.iter_mut().zip(y) {
                *x += y;
            }
        });
}

/// `x *= factor`, elementwise.
pub fn scale(x: &mut [f32], factor: f32) {
    if factor != 1.0 {
        x.par_chunks_mut(MIN_ELEMENTS)
            .for_each(|x| x.iter_mut().for_each(|v| *v *= factor));
    }
}

/// Adds `bias` to every row of `x` (`[T, bias.len()]`).
pub fn add_bias(x: &mut [f32], bias: &[f32]) {
    x.par_chunks_mut(bias.len())
        .with_min_len(rows_per_task(bias.len()))
        .for_each(|row| {
            for (x, b) in row.iter_mut().zip(bias) {
                *x += b;
            }
        });
}

#[inline(always)]
fn silu_mul_lane<const FMA: bool>(gate: &mut Lane, up: &Lane) {
    let mut shifted = [0.0; LANES];
    for lane in 0..LANES {
        shifted[lane] = -gate[lane].abs();
    }
    let small = exp_lane::<FMA>(shifted);
    for lane in 0..LANES {
        // sigmoid(x) = 1 / (1 + e^-|x|) for x >= 0, and e^-|x| / (1 + e^-|x|) below.
        let top = if gate[lane] >= 0.0 { 1.0 } else { small[lane] };
        gate[lane] = gate[lane] * top / (1.0 + small[lane]) * up[lane];
    }
}

#[inline(always)]
fn silu_mul_body<const FMA: bool>(gate: &mut [f32], up: &[f32]) {
    let (gates, gate_rest) = gate.as_chunks_mut::<LANES>();
    let (ups, up_rest) = up.as_chunks::<LANES>();
    for (gate, up) in gates.iter_mut().zip(ups) {
        silu_mul_lane::<FMA>(gate, up);
    }
    let (mut pad, mut pad_up) = ([0.0; LANES], [0.0; LANES]);
    pad[..gate_rest.len()].copy_from_slice(gate_rest);
    pad_up[..up_rest.len()].copy_from_slice(up_rest);
    silu_mul_lane::<FMA>(&mut pad, &pad_up);
    gate_rest.copy_from_slice(&pad[..gate_rest.len()]);
}

dispatch!(silu_mul_part, silu_mul_body, (gate: &mut [f32], up: &[f32]));

#[inline(always)]
fn gelu_tanh_lane<const FMA: bool>(x: &mut Lane) {
    // x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³))).
    const SCALE: f32 = 0.797_884_6;
    let mut inner = [0.0; LANES];
    for lane in 0..LANES {
        inner[lane] = SCALE * (x[lane] + 0.044_715 * x[lane] * x[lane] * x[lane]);
    }
    let tanh = tanh_lane::<FMA>(&inner);
    for lane in 0..LANES {
        x[lane] = 0.5 * x[lane] * (1.0 + tanh[lane]);
    }
}

#[inline(always)]
fn gelu_tanh_body<const FMA: bool>(x: &mut [f32]) {
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        gelu_tanh_lane::<FMA>(chunk);
    }
    let mut pad = [0.0; LANES];
    pad[..rest.len()].copy_from_slice(rest);
    gelu_tanh_lane::<FMA>(&mut pad);
    rest.copy_from_slice(&pad[..rest.len()]);
}

dispatch!(gelu_tanh_part, gelu_tanh_body, (x: &mut [f32]));

#[inline(always)]
fn soft_cap_body<const FMA: bool>(x: &mut [f32], cap: f32) {
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for value in chunk.iter_mut() {
            *value /= cap;
        }
        *chunk = tanh_lane::<FMA>(chunk);
        for value in chunk.iter_mut() {
            *value *= cap;
        }
    }
    let mut pad = [0.0; LANES];
    pad[..rest.len()].copy_from_slice(rest);
    for value in &mut pad {
        *value /= cap;
    }
    let pad = tanh_lane::<FMA>(&pad);
    for (value, tanh) in rest.iter_mut().zip(pad) {
        *value = tanh * cap;
    }
}

dispatch!(soft_cap_part, soft_cap_body, (x: &mut [f32], cap: f32));

/// `x = cap * tanh(x / cap)`, elementwise, on this thread.
pub fn soft_cap(x: &mut [f32], cap: f32) {
    soft_cap_part(x, cap);
}

/// `x Φ(x)`, the error function by the rational approximation 7.1.26 of Abramowitz and Stegun (error below 1.5e-7).
#[inline(always)]
fn gelu_lane<const FMA: bool>(x: &mut Lane) {
    let mut exponent = [0.0; LANES];
    for lane in 0..LANES {
        exponent[lane] = -0.5 * x[lane] * x[lane];
    }
    let gauss = exp_lane::<FMA>(exponent);
    for lane in 0..LANES {
        let z = x[lane].abs() * std::f32::consts::FRAC_1_SQRT_2;
        let t = 1.0 / fused::<FMA>(0.327_591_1, z, 1.0);
        let mut p = fused::<FMA>(t, 1.061_405_4, -1.453_152);
        p = fused::<FMA>(p, t, 1.421_413_8);
        p = fused::<FMA>(p, t, -0.284_496_72);
        p = fused::<FMA>(p, t, 0.254_829_6);
        // Twice the Gaussian's mass beyond |x|: small numbers stay exact where the function is small.
        let beyond = p * t * gauss[lane];
        let mass = if x[lane] < 0.0 { beyond } else { 2.0 - beyond };
        x[lane] *= 0.5 * mass;
    }
}

#[inline(always)]
fn gelu_body<const FMA: bool>(x: &mut [f32]) {
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        gelu_lane::<FMA>(chunk);
    }
    let mut pad = [0.0; LANES];
    pad[..rest.len()].copy_from_slice(rest);
    gelu_lane::<FMA>(&mut pad);
    rest.copy_from_slice(&pad[..rest.len()]);
}

dispatch!(gelu_part, gelu_body, (x: &mut [f32]));

/// `x = activation(x)`, elementwise.
pub fn activate(x: &mut [f32], activation: Activation) {
    let all: fn(&mut [f32]) = match activation {
        Activation::Silu => |x| {
            let ones = vec![1.0; x.len()];
            silu_mul_part(x, &ones);
        },
        Activation::Gelu => gelu_part,
        Activation::GeluTanh => gelu_tanh_part,
        Activation::Relu => |x| x.iter_mut().for_each(|v| *v = v.max(0.0)),
        Activation::ReluSquared => |x| {
            x.iter_mut().for_each(|v| {
                let positive = v.max(0.0);
                *v = positive * positive;
            });
        },
    };
    x.par_chunks_mut(MIN_ELEMENTS).for_each(all);
}

/// `gate = activation(gate) * up`, elementwise.
pub fn gate_mul(gate: &mut [f32], up: &[f32], activation: Activation) {
    if activation == Activation::Silu {
        return silu_mul(gate, up);
    }
    activate(gate, activation);
    gate.par_chunks_mut(MIN_ELEMENTS)
        .zip(up.par_chunks(MIN_ELEMENTS))
        .for_each(|(gate, up)| {
            for (gate, up) in gate.iter_mut().zip(up) {
                *gate *= up;
            }
        });
}

/// `gate = silu(gate) * up`, elementwise.
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    gate.par_chunks_mut(MIN_ELEMENTS)
        .zip(up.par_chunks(MIN_ELEMENTS))
        .for_each(|(gate, up)| silu_mul_part(gate, up));
}

#[inline(always)]
fn sum_exp_lane<const FMA: bool>(values: &Lane, max: f32, parts: &mut Lane) {
    let mut shifted = [0.0; LANES];
    for lane in 0..LANES {
        shifted[lane] = values[lane] - max;
    }
    let exps = exp_lane::<FMA>(shifted);
    for lane in 0..LANES {
        parts[lane] += exps[lane];
    }
}

#[inline(always)]
fn sum_exp_body<const FMA: bool>(row: &[f32], max: f32, sum: &mut f32) {
    let mut parts = [0.0; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        sum_exp_lane::<FMA>(chunk, max, &mut parts);
    }
    let mut pad = [f32::NEG_INFINITY; LANES];
    pad[..rest.len()].copy_from_slice(rest);
    sum_exp_lane::<FMA>(&pad, max, &mut parts);
    *sum = parts.iter().sum();
}

dispatch!(sum_exp_into, sum_exp_body, (row: &[f32], max: f32, sum: &mut f32));

/// `sum_i e^(row_i - max)`, with `max` at least the largest of the row.
pub fn sum_exp(row: &[f32], max: f32) -> f32 {
    let mut sum = 0.0;
    sum_exp_into(row, max, &mut sum);
    sum
}

/// The largest of a row.
pub fn row_max(row: &[f32]) -> f32 {
    let mut parts = [f32::NEG_INFINITY; 8];
    let (chunks, rest) = row.as_chunks::<8>();
    for chunk in chunks {
        for (part, value) in parts.iter_mut().zip(chunk) {
            *part = part.max(*value);
        }
    }
    parts
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max)
}

/// Cosines and sines of rotary positions.
#[derive(Debug, Default)]
pub struct RopeTable {
    half: usize,
    /// Width of a head, of which the first `2 half` dimensions turn.
    head_dim: usize,
    /// Whether neighbours turn together, instead of the two halves.
    interleaved: bool,
    /// `[T, half]`.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// For positions `0..seq_len` and heads of width `head_dim`.
    pub fn new(spec: &RopeSpec, head_dim: usize, seq_len: usize) -> Self {
        let frequencies = spec.frequencies(seq_len);
        let amplitude = spec.amplitude() as f32;
        let mut table = Self {
            half: frequencies.len(),
            head_dim,
            interleaved: spec.interleaved,
            cos: Vec::with_capacity(seq_len * frequencies.len()),
            sin: Vec::with_capacity(seq_len * frequencies.len()),
        };
        for t in 0..seq_len {
            for frequency in &frequencies {
                // Frequencies in f32, as the models' own code keeps them: it shows at large positions.
                let angle = t as f32 * (*frequency as f32);
                table.cos.push(angle.cos() * amplitude);
                table.sin.push(angle.sin() * amplitude);
            }
        }
        table
    }

    /// Turns every head of `x` (`[T, n_heads, D]`) by its position.
    pub fn apply(&self, x: &mut [f32], n_heads: usize) {
        let half = self.half;
        if half == 0 {
            return;
        }
        let width = n_heads * self.head_dim;
        x.par_chunks_mut(width)
            .enumerate()
            .with_min_len(rows_per_task(width))
            .for_each(|(t, row)| {
                let cos = &self.cos[t * half..(t + 1) * half];
                let sin = &self.sin[t * half..(t + 1) * half];
                for head in row.chunks_exact_mut(self.head_dim) {
                    let turning = &mut head[..2 * half];
                    if self.interleaved {
                        for (i, pair) in turning.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                            let [a, b] = *pair;
                            *pair = [a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]];
                        }
                        continue;
                    }
                    let (low, high) = turning.split_at_mut(half);
                    for i in 0..half {
                        let (a, b) = (low[i], high[i]);
                        low[i] = a * cos[i] - b * sin[i];
                        high[i] = b * cos[i] + a * sin[i];
                    }
                }
            });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silu_equals_its_formula() {
        let x: Vec<f32> = (-40..41).map(|i| i as f32 * 0.5).collect();
        let up: Vec<f32> = x.iter().map(|v| v * 0.1 + 1.0).collect();
        let mut got = x.clone();
        silu_mul(&mut got, &up);
        for ((got, x), up) in got.iter().zip(&x).zip(&up) {
            let x = f64::from(*x);
            let want = x / (1.0 + (-x).exp()) * f64::from(*up);
            assert!(
                (f64::from(*got) - want).abs() < 1e-6 * want.abs().max(1.0),
                "{x}"
            );
        }
    }

    #[test]
    fn tanh_based_functions_equal_their_formulas() {
        let x: Vec<f32> = (-400..401).map(|i| i as f32 * 0.025).collect();
        let (mut gelu, mut capped, mut exact) = (x.clone(), x.clone(), x.clone());
        activate(&mut gelu, Activation::GeluTanh);
        activate(&mut exact, Activation::Gelu);
        soft_cap(&mut capped, 3.0);
        for (((got, capped), exact), x) in gelu.iter().zip(&capped).zip(&exact).zip(&x) {
            let want = crate::aah::network::gelu(*x);
            assert!((exact - want).abs() < 1e-6 * want.abs().max(1.0), "{x}");
            let x = f64::from(*x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            let want = 0.5 * x * (1.0 + inner.tanh());
            assert!(
                (f64::from(*got) - want).abs() < 1e-6 * want.abs().max(1.0),
                "{x}"
            );
            let want = 3.0 * (x / 3.0).tanh();
            assert!(
                (f64::from(*capped) - want).abs() < 1e-6 * want.abs().max(1e-3),
                "{x}"
            );
        }
    }

    #[test]
    fn weights_of_each_head_go_round() {
        let weights = Norm {
            weight: vec![1.0, 1.0, 2.0, 2.0],
            bias: None,
        };
        let got = norm(&[3.0, 4.0, 3.0, 4.0], NormKind::Rms, &weights, 2, 0.0);
        let scale = 1.0 / 12.5f32.sqrt();
        for (got, want) in got.iter().zip([3.0, 4.0, 6.0, 8.0]) {
            assert!((got - want * scale).abs() < 1e-6);
        }
    }

    #[test]
    fn sum_exp_equals_its_formula() {
        let row: Vec<f32> = (0..37).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let max = row_max(&row);
        let want: f64 = row.iter().map(|v| f64::from(v - max).exp()).sum();
        assert!((f64::from(sum_exp(&row, max)) - want).abs() < 1e-5 * want);
    }
}
