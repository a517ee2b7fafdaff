//! [`DecoderWeights`]: a decoder's weights under the forward pass's own names, whatever the file calls them.

use candle_core::{Device, Tensor};

use super::{ModelSpec, NormKind, WeightStore};
use crate::Result;

/// A linear layer, `y = x W^T + b`.
#[derive(Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Vec<f32>>,
}

impl Linear {
    /// From a file's layer of this name, `[out, in]`.
    pub(super) fn load(
        store: &WeightStore,
        name: &str,
        (out, input): (usize, usize),
        has_bias: bool,
    ) -> Result<Self> {
        Ok(Self {
            weight: store.tensor(&format!("{name}.weight"), &[out, input])?,
            bias: has_bias
                .then(|| store.values(&format!("{name}.bias"), &[out]))
                .transpose()?,
        })
    }

    /// From numbers, `[out, in]` in row-major order.
    pub(super) fn new(weight: Vec<f32>, input: usize, bias: Option<Vec<f32>>) -> Result<Self> {
        let out = weight.len() / input.max(1);
        Ok(Self {
            weight: Tensor::from_vec(weight, (out, input), &Device::Cpu)?,
            bias,
        })
    }

    fn count(&self) -> usize {
        self.weight.elem_count() + self.bias.as_ref().map_or(0, Vec::len)
    }
}

/// The numbers of a norm.
#[derive(Clone, Debug)]
pub struct Norm {
    /// `[C]`.
    pub weight: Vec<f32>,
    /// `[C]`.
    pub bias: Option<Vec<f32>>,
}

impl Norm {
    pub(super) fn load(
        store: &WeightStore,
        name: &str,
        width: usize,
        has_bias: bool,
    ) -> Result<Self> {
        Ok(Self {
            weight: store.values(&format!("{name}.weight"), &[width])?,
            bias: has_bias
                .then(|| store.values(&format!("{name}.bias"), &[width]))
                .transpose()?,
        })
    }

    fn count(&self) -> usize {
        self.weight.len() + self.bias.as_ref().map_or(0, Vec::len)
    }
}

/// A norm of queries and keys.
#[derive(Debug)]
pub struct QkNorm {
    /// Which norm.
    pub kind: NormKind,
    /// Whether each head is normed alone, or all of a token together.
    pub by_head: bool,
    /// `[D]` for all heads alike, or `[H D]`.
    pub query: Norm,
    /// `[D]`, or `[Hkv D]`.
    pub key: Norm,
}

/// One block: attention and a feed-forward layer, each with norms before or after it.
#[derive(Debug)]
pub struct BlockWeights {
    /// Before attention.
    pub attention_norm: Option<Norm>,
    /// C -> H D.
    pub query: Linear,
    /// C -> Hkv D.
    pub key: Linear,
    /// C -> Hkv D.
    pub value: Linear,
    /// H D -> C.
    pub output: Linear,
    /// Of queries and keys, before they turn.
    pub qk_norm: Option<QkNorm>,
    /// Of what attention gives, before it is added.
    pub attention_post_norm: Option<Norm>,
    /// Before the feed-forward layer.
    pub mlp_norm: Option<Norm>,
    /// C -> F, through the activation; `None` for a plain layer.
    pub gate: Option<Linear>,
    /// C -> F; through the activation in a plain layer.
    pub up: Linear,
    /// F -> C.
    pub down: Linear,
    /// Of what the feed-forward layer gives, before it is added.
    pub mlp_post_norm: Option<Norm>,
}

/// All weights of a decoder.
#[derive(Debug)]
pub struct DecoderWeights {
    /// Token embedding, `[V, C]`.
    pub embedding: Tensor,
    /// Learned positions, `[rows, C]`.
    pub positions: Option<Vec<f32>>,
    /// The blocks, first to last.
    pub blocks: Vec<BlockWeights>,
    /// Before the output projection.
    pub final_norm: Norm,
    /// Output projection, `[V, C]`; the embedding itself where it is tied.
    pub head: Tensor,
    /// Added to the logits, `[V]`.
    pub head_bias: Option<Vec<f32>>,
    /// Number of parameters, tied ones counted once.
    pub parameters: u64,
}

impl DecoderWeights {
    /// Counts the parameters of a decoder that is complete.
    pub(super) fn counted(mut self, spec: &ModelSpec) -> Self {
        let blocks: usize = self
            .blocks
            .iter()
            .map(|b| {
                let linears = [&b.query, &b.key, &b.value, &b.output, &b.up, &b.down];
                let norms = [
                    &b.attention_norm,
                    &b.attention_post_norm,
                    &b.mlp_norm,
                    &b.mlp_post_norm,
                ];
                linears
                    .into_iter()
                    .chain(&b.gate)
                    .map(Linear::count)
                    .sum::<usize>()
                    + norms.into_iter().flatten().map(Norm::count).sum::<usize>()
                    + b.qk_norm
                        .as_ref()
                        .map_or(0, |n| n.query.count() + n.key.count())
            })
            .sum();
        let head = if spec.tied_head {
            0
        } else {
            self.head.elem_count()
        };
        let rest = self.embedding.elem_count()
            + self.positions.as_ref().map_or(0, Vec::len)
            + self.head_bias.as_ref().map_or(0, Vec::len)
            + self.final_norm.count();
        self.parameters = (rest + blocks + head) as u64;
        self
    }
}
