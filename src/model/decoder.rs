//! [`DecoderWeights`]: a decoder's weights under the forward pass's own names, whatever the file calls them.

use candle_core::Tensor;

use super::{ModelSpec, WeightStore};
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
}

/// One block: attention, then a gated feed-forward layer, each behind an RMSNorm.
#[derive(Debug)]
pub struct BlockWeights {
    /// `[C]`.
    pub attention_norm: Vec<f32>,
    /// C -> H D.
    pub query: Linear,
    /// C -> Hkv D.
    pub key: Linear,
    /// C -> Hkv D.
    pub value: Linear,
    /// H D -> C.
    pub output: Linear,
    /// `[C]`.
    pub mlp_norm: Vec<f32>,
    /// C -> F, through the activation.
    pub gate: Linear,
    /// C -> F.
    pub up: Linear,
    /// F -> C.
    pub down: Linear,
}

/// All weights of a decoder.
#[derive(Debug)]
pub struct DecoderWeights {
    /// Token embedding, `[V, C]`.
    pub embedding: Tensor,
    /// The blocks, first to last.
    pub blocks: Vec<BlockWeights>,
    /// `[C]`.
    pub final_norm: Vec<f32>,
    /// Output projection, `[V, C]`; the embedding itself where it is tied.
    pub head: Tensor,
    /// Number of parameters, tied ones counted once.
    pub parameters: u64,
}

/// Which linear layers have a bias.
#[derive(Clone, Copy, Debug, Default)]
pub struct Biases {
    /// On query, key, value and output.
    pub attention: bool,
    /// On gate, up and down.
    pub mlp: bool,
}

impl DecoderWeights {
    /// Reads weights that are named the way Llama's are.
    ///
    /// # Errors
    /// Names the first tensor that is missing or has the wrong shape.
    pub fn load_llama(store: &WeightStore, spec: &ModelSpec, biases: Biases) -> Result<Self> {
        let (c, f) = (spec.hidden, spec.ffn_hidden);
        let q = spec.n_heads * spec.head_dim;
        let kv = spec.n_kv_heads * spec.head_dim;
        // Some files leave the prefix out.
        let prefix = if store.contains("embed_tokens.weight") {
            ""
        } else {
            "model."
        };
        let blocks = (0..spec.n_layers)
            .map(|layer| {
                let name = |part: &str| format!("{prefix}layers.{layer}.{part}");
                let attention = |part: &str, shape| {
                    Linear::load(
                        store,
                        &name(&format!("self_attn.{part}")),
                        shape,
                        biases.attention,
                    )
                };
                let mlp = |part: &str, shape| {
                    Linear::load(store, &name(&format!("mlp.{part}")), shape, biases.mlp)
                };
                let norm = |part: &str| store.values(&name(&format!("{part}.weight")), &[c]);
                Ok(BlockWeights {
                    attention_norm: norm("input_layernorm")?,
                    query: attention("q_proj", (q, c))?,
                    key: attention("k_proj", (kv, c))?,
                    value: attention("v_proj", (kv, c))?,
                    output: attention("o_proj", (c, q))?,
                    mlp_norm: norm("post_attention_layernorm")?,
                    gate: mlp("gate_proj", (f, c))?,
                    up: mlp("up_proj", (f, c))?,
                    down: mlp("down_proj", (c, f))?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let embedding = store.tensor(
            &format!("{prefix}embed_tokens.weight"),
            &[spec.vocab_size, c],
        )?;
        let head = if spec.tied_head {
            embedding.clone()
        } else {
            store.tensor("lm_head.weight", &[spec.vocab_size, c])?
        };
        let mut weights = Self {
            embedding,
            blocks,
            final_norm: store.values(&format!("{prefix}norm.weight"), &[c])?,
            head,
            parameters: 0,
        };
        weights.parameters = weights.count(spec.tied_head);
        Ok(weights)
    }

    fn count(&self, tied_head: bool) -> u64 {
        let linear = |l: &Linear| l.weight.elem_count() + l.bias.as_ref().map_or(0, Vec::len);
        let blocks: usize = self
            .blocks
            .iter()
            .map(|b| {
                let linears = [
                    &b.query, &b.key, &b.value, &b.output, &b.gate, &b.up, &b.down,
                ];
                linears.into_iter().map(linear).sum::<usize>()
                    + b.attention_norm.len()
                    + b.mlp_norm.len()
            })
            .sum();
        let head = if tied_head { 0 } else { self.head.elem_count() };
        (self.embedding.elem_count() + blocks + self.final_norm.len() + head) as u64
    }
}
