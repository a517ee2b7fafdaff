//! The small networks that score groups: linear, GELU, linear.

use serde::{Deserialize, Serialize};

use super::rng::Rng;

/// A linear layer, `y = W x + b`, weights `[out, in]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dense {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Dense {
    /// From weights `[out, in]` in row-major order and a bias `[out]`; `None` where the sizes do not fit.
    pub fn new(weight: Vec<f32>, bias: Vec<f32>) -> Option<Self> {
        let fits =
            !bias.is_empty() && !weight.is_empty() && weight.len().is_multiple_of(bias.len());
        fits.then_some(Self { weight, bias })
    }

    /// Uniform in ±1/sqrt(fan in).
    pub fn random(input: usize, output: usize, rng: &mut Rng) -> Self {
        let bound = 1.0 / (input as f32).sqrt();
        let mut draw = |n: usize| (0..n).map(|_| (rng.unit() * 2.0 - 1.0) * bound).collect();
        Self {
            weight: draw(input * output),
            bias: draw(output),
        }
    }

    /// Numbers that it takes.
    pub fn input(&self) -> usize {
        self.weight.len() / self.bias.len()
    }

    /// Numbers that it gives.
    pub fn output(&self) -> usize {
        self.bias.len()
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        self.weight
            .chunks_exact(self.input())
            .zip(&self.bias)
            .map(|(row, b)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() + b)
            .collect()
    }
}

/// Linear layers with a GELU between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mlp {
    layers: Vec<Dense>,
}

impl Mlp {
    /// From layers that fit each other; `None` where they do not.
    pub fn new(layers: Vec<Dense>) -> Option<Self> {
        let fits = !layers.is_empty() && layers.windows(2).all(|w| w[0].output() == w[1].input());
        fits.then_some(Self { layers })
    }

    /// Random layers of these widths, first the input, last the output.
    pub fn random(widths: &[usize], rng: &mut Rng) -> Self {
        Self {
            layers: widths
                .windows(2)
                .map(|w| Dense::random(w[0], w[1], rng))
                .collect(),
        }
    }

    /// Numbers that it takes.
    pub fn input(&self) -> usize {
        self.layers.first().map_or(0, Dense::input)
    }

    /// Numbers that it gives.
    pub fn output(&self) -> usize {
        self.layers.last().map_or(0, Dense::output)
    }

    /// Its output for `x`.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut x = x.to_vec();
        for (index, layer) in self.layers.iter().enumerate() {
            if index > 0 {
                for v in &mut x {
                    *v = gelu(*v);
                }
            }
            x = layer.apply(&x);
        }
        x
    }
}

/// The exact GELU, `x Φ(x)`.
pub fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

/// The error function in double precision: its series near 0, a continued fraction beyond.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 2.5 {
        // erf(x) = 2/sqrt(pi) e^(-x²) sum_n 2^n x^(2n+1) / (2n+1)!!
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term > 1e-17 * sum {
            n += 1.0;
            term *= 2.0 * a * a / (2.0 * n + 1.0);
            sum += term;
        }
        return (std::f64::consts::FRAC_2_SQRT_PI * (-a * a).exp() * sum).copysign(x);
    }
    if a > 6.5 {
        return 1f64.copysign(x);
    }
    // erfc(x) = e^(-x²) / sqrt(pi) / (x + (1/2)/(x + 1/(x + (3/2)/(x + …))))
    let mut fraction = a;
    for n in (1..=60).rev() {
        fraction = a + f64::from(n) * 0.5 / fraction;
    }
    let erfc = (-a * a).exp() * 0.5 * std::f64::consts::FRAC_2_SQRT_PI / fraction;
    (1.0 - erfc).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_equals_known_values() {
        for (x, want) in [
            (0.0, 0.0),
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (2.6, 0.999_763_965_583_470_7),
            (3.5, 0.999_999_256_901_627_7),
        ] {
            assert!((erf(x) - want).abs() < 1e-14, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!(erf(9.0), 1.0);
    }

    #[test]
    fn layers_that_do_not_fit_are_refused() {
        assert!(Dense::new(vec![1.0; 5], vec![0.0; 2]).is_none());
        let a = Dense::new(vec![1.0; 6], vec![0.0; 2]).unwrap();
        let b = Dense::new(vec![1.0; 3], vec![0.0; 1]).unwrap();
        assert!(Mlp::new(vec![a, b]).is_none());
    }
}
