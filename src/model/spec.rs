//! [`ModelSpec`]: what a decoder is, in the terms that the forward pass needs.

use crate::attention::Window;

/// Sizes and choices of a decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The file's `model_type`.
    pub architecture: String,
    /// Number of tokens in the vocabulary, V.
    pub vocab_size: usize,
    /// Width of the residual stream, C.
    pub hidden: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// Query heads a layer, H.
    pub n_heads: usize,
    /// Key/value heads a layer; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of a head, D.
    pub head_dim: usize,
    /// Width of the feed-forward layer, F.
    pub ffn_hidden: usize,
    /// Tokens that the model was made for.
    pub context: usize,
    /// Which norm.
    pub norm: NormKind,
    /// Added to the mean square, or to the variance, inside a norm.
    pub norm_eps: f32,
    /// How positions enter.
    pub positions: Positions,
    /// What differs from layer to layer.
    pub layers: Vec<LayerSpec>,
    /// Factor of the token embedding.
    pub embedding_scale: f32,
    /// Bound of the attention scores, `cap * tanh(score / cap)`.
    pub attention_softcap: Option<f32>,
    /// Factor of what attention and feed-forward layer add to the residual stream.
    pub residual_scale: f32,
    /// Factor of the logits, before their bound.
    pub logit_scale: f32,
    /// Bound of the logits.
    pub logit_softcap: Option<f32>,
    /// Activation of the feed-forward layer.
    pub activation: Activation,
    /// Attention and feed-forward layer read the same residual stream, and are added together.
    pub parallel: bool,
    /// Factor of the attention scores.
    pub attention_scale: f32,
    /// The output projection is the token embedding.
    pub tied_head: bool,
}

impl ModelSpec {
    /// The most tokens that the model can take at all: learned positions end, turned ones do not.
    pub fn max_tokens(&self) -> Option<usize> {
        match self.positions {
            Positions::Learned { rows, .. } => Some(rows),
            Positions::Rotary(_) => None,
        }
    }
}

/// What differs from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// The model's own window: counts as "full", and bounds every other.
    pub reach: Window,
    /// Which of the rotary ways it turns in; `None` for not at all.
    pub rope: Option<usize>,
}

/// A norm before a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps) w`.
    Rms,
    /// `(x - mean) / sqrt(variance + eps) w + b`.
    Layer,
}

/// How positions enter a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Positions {
    /// Queries and keys are turned, in one of these ways.
    Rotary(Vec<RopeSpec>),
    /// A vector for each position is added to the embedding; position `t` has row `t + offset`.
    Learned {
        /// Rows before that of the first position.
        offset: usize,
        /// Positions that there are rows for.
        rows: usize,
    },
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Dimensions of a head that turn, the first ones; the others stay.
    pub rotary_dim: usize,
    /// Base of the wavelengths.
    pub theta: f64,
    /// How frequencies are changed for long texts.
    pub scaling: RopeScaling,
    /// Which dimensions turn together: `2i` with `2i + 1`, as GPT-J, Cohere and the llama family's GGUF files have it;
    /// otherwise `i` with `i + rotary_dim / 2`.
    pub interleaved: bool,
}

/// Changes of the rotary frequencies for texts longer than in training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
    Default,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// A larger base once a text is longer than the training's, NTK-aware.
    Dynamic {
        /// How much longer texts may be.
        factor: f64,
        /// Tokens of the original training.
        original_context: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, those between blended.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are low.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are high.
        high_freq_factor: f64,
        /// Tokens of the original training.
        original_context: f64,
    },
    /// YaRN (arXiv 2309.00071): frequencies that turn more than `beta_fast` times within the training's context are
    /// kept, those that turn less than `beta_slow` times divided by `factor`, with a ramp between.
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// Tokens of the original training.
        original_context: f64,
        /// Turns above which a frequency is kept.
        beta_fast: f64,
        /// Turns below which it is divided.
        beta_slow: f64,
        /// Whether the ends of the ramp are whole dimensions.
        truncate: bool,
        /// Factor of queries and keys.
        amplitude: f64,
    },
    /// Divisors of each frequency, one set for texts within the training's context and one beyond it.
    LongRope {
        /// Up to `original_context` tokens.
        short: Vec<f64>,
        /// Beyond.
        long: Vec<f64>,
        /// Tokens of the original training.
        original_context: f64,
        /// Factor of queries and keys.
        amplitude: f64,
    },
}

impl RopeSpec {
    /// Angle per position of each pair of dimensions for a text of `seq_len` tokens, `[rotary_dim / 2]`, rounded up: of
    /// an odd number one more dimension turns, as in the models' own code.
    pub fn frequencies(&self, seq_len: usize) -> Vec<f64> {
        let dim = self.rotary_dim as f64;
        let base = match self.scaling {
            RopeScaling::Dynamic {
                factor,
                original_context,
            } if seq_len as f64 > original_context => {
                let stretch = factor * seq_len as f64 / original_context - (factor - 1.0);
                self.theta * stretch.powf(dim / (dim - 2.0))
            }
            _ => self.theta,
        };
        (0..self.rotary_dim.div_ceil(2))
            .map(|i| {
                let frequency = base.powf(-(2.0 * i as f64) / dim);
                self.scaled(frequency, i, seq_len)
            })
            .collect()
    }

    /// Factor of queries and keys that turn.
    pub fn amplitude(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { amplitude, .. } | RopeScaling::LongRope { amplitude, .. } => {
                amplitude
            }
            _ => 1.0,
        }
    }

    fn scaled(&self, frequency: f64, index: usize, seq_len: usize) -> f64 {
        match &self.scaling {
            RopeScaling::Default | RopeScaling::Dynamic { .. } => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                let wavelength = std::f64::consts::TAU / frequency;
                if wavelength > original_context / low_freq_factor {
                    frequency / factor
                } else if wavelength < original_context / high_freq_factor {
                    frequency
                } else {
                    let smooth = (original_context / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                truncate,
                ..
            } => {
                // The dimension whose frequency turns so many times within the training's context.
                let dim = self.rotary_dim as f64;
                let dimension = |turns: f64| {
                    dim * (original_context / (turns * std::f64::consts::TAU)).ln()
                        / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (dimension(*beta_fast), dimension(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
                if low == high {
                    high += 0.001;
                }
                let divided = ((index as f64 - low) / (high - low)).clamp(0.0, 1.0);
                frequency / factor * divided + frequency * (1.0 - divided)
            }
            RopeScaling::LongRope {
                short,
                long,
                original_context,
                ..
            } => {
                let divisors = if seq_len as f64 > *original_context {
                    long
                } else {
                    short
                };
                frequency / divisors.get(index).copied().unwrap_or(1.0)
            }
        }
    }
}

/// Activation of the feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x Φ(x)`, exactly.
    Gelu,
    /// The same by a hyperbolic tangent.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    ReluSquared,
}
