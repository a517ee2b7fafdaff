//! Where each architecture keeps its weights: from a file's names and layouts to [`DecoderWeights`].

use super::{
    DecoderWeights, ModelSpec, NormKind, Positions, WeightStore,
    decoder::{BlockWeights, Linear, Norm, QkNorm},
};
use crate::Result;

/// How a family of files names and lays out its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Llama's names: `layers.N.self_attn.q_proj`, gated or plain feed-forward layers.
    Llama,
    /// The same with fused `qkv_proj` and `gate_up_proj`.
    Phi3,
    /// `h.N.attn.c_attn`, fused, and every weight transposed.
    Gpt2,
    /// `gpt_neox.layers.N.attention.query_key_value`, fused head by head.
    GptNeox,
    /// `model.decoder.layers.N`, with Llama-like projections.
    Opt,
    /// GPT-2's names, with separate projections that are not transposed.
    GptNeo,
}

/// What of a file's weights there is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub family: Family,
    /// Biases on query, key and value.
    pub qkv_bias: bool,
    /// Bias on the attention's output.
    pub output_bias: bool,
    /// Biases on the feed-forward layer.
    pub mlp_bias: bool,
    /// Norms of queries and keys: of each head, or of all together.
    pub qk_norm: Option<QkNormWidth>,
    /// Where norms stand.
    pub norms: NormPlaces,
    /// Norms' weights are kept as their difference from 1.
    pub norms_plus_one: bool,
    /// Names of a plain feed-forward layer, up and down; gated otherwise.
    pub plain_mlp: Option<(&'static str, &'static str)>,
}

/// Where the norms of a block stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormPlaces {
    /// Before attention and feed-forward layer.
    Before,
    /// After them.
    After,
    /// Before and after.
    Both,
}

/// What a norm of queries and keys goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QkNormWidth {
    Head,
    All,
}

/// Reads all weights.
pub(super) fn load(
    store: &WeightStore,
    spec: &ModelSpec,
    layout: Layout,
) -> Result<DecoderWeights> {
    let reader = Reader {
        store,
        spec,
        layout,
    };
    let c = spec.hidden;
    let names = match layout.family {
        Family::Llama | Family::Phi3 => {
            let prefix = reader.prefix("model.", "embed_tokens.weight");
            Names {
                embedding: format!("{prefix}embed_tokens"),
                positions: String::new(),
                final_norm: format!("{prefix}norm"),
                head: "lm_head".to_owned(),
                layers: format!("{prefix}layers"),
            }
        }
        Family::Gpt2 | Family::GptNeo => {
            let prefix = reader.prefix("transformer.", "wte.weight");
            Names {
                embedding: format!("{prefix}wte"),
                positions: format!("{prefix}wpe"),
                final_norm: format!("{prefix}ln_f"),
                head: "lm_head".to_owned(),
                layers: format!("{prefix}h"),
            }
        }
        Family::GptNeox => {
            let prefix = reader.prefix("gpt_neox.", "embed_in.weight");
            Names {
                embedding: format!("{prefix}embed_in"),
                positions: String::new(),
                final_norm: format!("{prefix}final_layer_norm"),
                head: "embed_out".to_owned(),
                layers: format!("{prefix}layers"),
            }
        }
        Family::Opt => {
            let prefix = reader.prefix("model.", "decoder.embed_tokens.weight");
            Names {
                embedding: format!("{prefix}decoder.embed_tokens"),
                positions: format!("{prefix}decoder.embed_positions"),
                final_norm: format!("{prefix}decoder.final_layer_norm"),
                head: "lm_head".to_owned(),
                layers: format!("{prefix}decoder.layers"),
            }
        }
    };
    let blocks = (0..spec.n_layers)
        .map(|layer| {
            let base = format!("{}.{layer}", names.layers);
            match layout.family {
                Family::Llama => reader.llama_block(&base),
                Family::Phi3 => reader.phi3_block(&base),
                Family::Gpt2 => reader.gpt2_block(&base),
                Family::GptNeox => reader.neox_block(&base),
                Family::Opt => reader.opt_block(&base),
                Family::GptNeo => reader.neo_block(&base),
            }
        })
        .collect::<Result<Vec<_>>>()?;
    let embedding = store.tensor(
        &format!("{}.weight", names.embedding),
        &[spec.vocab_size, c],
    )?;
    let head = if spec.tied_head {
        embedding.clone()
    } else {
        store.tensor(&format!("{}.weight", names.head), &[spec.vocab_size, c])?
    };
    let positions = match spec.positions {
        Positions::Learned { offset, rows } => {
            let name = format!("{}.weight", names.positions);
            Some(store.values(&name, &[rows + offset, c])?)
        }
        Positions::Rotary(_) => None,
    };
    let weights = DecoderWeights {
        embedding,
        positions,
        blocks,
        final_norm: reader.norm(&names.final_norm)?,
        head,
        parameters: 0,
    };
    Ok(weights.counted(spec))
}

/// Names outside the blocks.
struct Names {
    embedding: String,
    positions: String,
    final_norm: String,
    head: String,
    layers: String,
}

struct Reader<'a> {
    store: &'a WeightStore,
    spec: &'a ModelSpec,
    layout: Layout,
}

impl Reader<'_> {
    /// Some files leave the prefix out.
    fn prefix(&self, prefix: &'static str, first: &str) -> &'static str {
        if self.store.contains(first) {
            ""
        } else {
            prefix
        }
    }

    fn norm(&self, name: &str) -> Result<Norm> {
        let has_bias = self.spec.norm == NormKind::Layer;
        let mut norm = Norm::load(self.store, name, self.spec.hidden, has_bias)?;
        self.add_one(&mut norm.weight);
        Ok(norm)
    }

    fn add_one(&self, weights: &mut [f32]) {
        if self.layout.norms_plus_one {
            weights.iter_mut().for_each(|w| *w += 1.0);
        }
    }

    /// Widths of query and of key and value.
    fn widths(&self) -> (usize, usize) {
        let d = self.spec.head_dim;
        (self.spec.n_heads * d, self.spec.n_kv_heads * d)
    }

    fn llama_block(&self, base: &str) -> Result<BlockWeights> {
        let (c, f) = (self.spec.hidden, self.spec.ffn_hidden);
        let (q, kv) = self.widths();
        let layout = &self.layout;
        let attention = |part: &str, shape, has_bias| {
            Linear::load(
                self.store,
                &format!("{base}.self_attn.{part}"),
                shape,
                has_bias,
            )
        };
        let mlp = |part: &str, shape| {
            Linear::load(
                self.store,
                &format!("{base}.mlp.{part}"),
                shape,
                layout.mlp_bias,
            )
        };
        let norm = |part: &str| self.norm(&format!("{base}.{part}"));
        let qk_norm = layout.qk_norm.map(|width| {
            let width_of = |all: usize| match width {
                QkNormWidth::Head => self.spec.head_dim,
                QkNormWidth::All => all,
            };
            let values = |part: &str, width: usize| {
                let name = format!("{base}.self_attn.{part}.weight");
                let mut weights = self.store.values(&name, &[width])?;
                self.add_one(&mut weights);
                Ok::<_, crate::Error>(weights)
            };
            Ok::<_, crate::Error>(QkNorm {
                query: values("q_norm", width_of(q))?,
                key: values("k_norm", width_of(kv))?,
            })
        });
        let (up, down) = layout.plain_mlp.unwrap_or(("up_proj", "down_proj"));
        let is_gated = layout.plain_mlp.is_none();
        let (before, after) = match layout.norms {
            NormPlaces::Before => (
                Some((norm("input_layernorm")?, norm("post_attention_layernorm")?)),
                None,
            ),
            NormPlaces::After => (
                None,
                Some((
                    norm("post_attention_layernorm")?,
                    norm("post_feedforward_layernorm")?,
                )),
            ),
            NormPlaces::Both => (
                Some((norm("input_layernorm")?, norm("pre_feedforward_layernorm")?)),
                Some((
                    norm("post_attention_layernorm")?,
                    norm("post_feedforward_layernorm")?,
                )),
            ),
        };
        let (attention_norm, mlp_norm) = before.unzip();
        let (attention_post_norm, mlp_post_norm) = after.unzip();
        Ok(BlockWeights {
            attention_norm,
            query: attention("q_proj", (q, c), layout.qkv_bias)?,
            key: attention("k_proj", (kv, c), layout.qkv_bias)?,
            value: attention("v_proj", (kv, c), layout.qkv_bias)?,
            output: attention("o_proj", (c, q), layout.output_bias)?,
            qk_norm: qk_norm.transpose()?,
            attention_post_norm,
            mlp_norm,
            gate: is_gated.then(|| mlp("gate_proj", (f, c))).transpose()?,
            up: mlp(up, (f, c))?,
            down: mlp(down, (c, f))?,
            mlp_post_norm,
        })
    }

    fn phi3_block(&self, base: &str) -> Result<BlockWeights> {
        let (c, f) = (self.spec.hidden, self.spec.ffn_hidden);
        let (q, kv) = self.widths();
        let name = format!("{base}.self_attn.qkv_proj.weight");
        let mut query = self.store.values(&name, &[q + 2 * kv, c])?;
        let value = query.split_off((q + kv) * c);
        let key = query.split_off(q * c);
        let name = format!("{base}.mlp.gate_up_proj.weight");
        let mut gate = self.store.values(&name, &[2 * f, c])?;
        let up = gate.split_off(f * c);
        let output = format!("{base}.self_attn.o_proj");
        let down = format!("{base}.mlp.down_proj");
        Ok(BlockWeights {
            attention_norm: Some(self.norm(&format!("{base}.input_layernorm"))?),
            query: Linear::new(query, c, None)?,
            key: Linear::new(key, c, None)?,
            value: Linear::new(value, c, None)?,
            output: Linear::load(self.store, &output, (c, q), false)?,
            qk_norm: None,
            attention_post_norm: None,
            mlp_norm: Some(self.norm(&format!("{base}.post_attention_layernorm"))?),
            gate: Some(Linear::new(gate, c, None)?),
            up: Linear::new(up, c, None)?,
            down: Linear::load(self.store, &down, (c, f), false)?,
            mlp_post_norm: None,
        })
    }

    /// A transposed layer, `[in, out]` in the file.
    fn conv1d(&self, name: &str, input: usize, out: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        let stored = self
            .store
            .values(&format!("{name}.weight"), &[input, out])?;
        let mut weight = vec![0.0; stored.len()];
        for (i, row) in stored.chunks(out).enumerate() {
            for (o, &value) in row.iter().enumerate() {
                weight[o * input + i] = value;
            }
        }
        Ok((weight, self.store.values(&format!("{name}.bias"), &[out])?))
    }

    fn gpt2_block(&self, base: &str) -> Result<BlockWeights> {
        let (c, f) = (self.spec.hidden, self.spec.ffn_hidden);
        let (mut query, mut query_bias) = self.conv1d(&format!("{base}.attn.c_attn"), c, 3 * c)?;
        let (value, value_bias) = (query.split_off(2 * c * c), query_bias.split_off(2 * c));
        let (key, key_bias) = (query.split_off(c * c), query_bias.split_off(c));
        let linear = |name: &str, input, out| -> Result<Linear> {
            let (weight, bias) = self.conv1d(&format!("{base}.{name}"), input, out)?;
            Linear::new(weight, input, Some(bias))
        };
        Ok(BlockWeights {
            attention_norm: Some(self.norm(&format!("{base}.ln_1"))?),
            query: Linear::new(query, c, Some(query_bias))?,
            key: Linear::new(key, c, Some(key_bias))?,
            value: Linear::new(value, c, Some(value_bias))?,
            output: linear("attn.c_proj", c, c)?,
            qk_norm: None,
            attention_post_norm: None,
            mlp_norm: Some(self.norm(&format!("{base}.ln_2"))?),
            gate: None,
            up: linear("mlp.c_fc", c, f)?,
            down: linear("mlp.c_proj", f, c)?,
            mlp_post_norm: None,
        })
    }

    fn neo_block(&self, base: &str) -> Result<BlockWeights> {
        let (c, f) = (self.spec.hidden, self.spec.ffn_hidden);
        let linear = |name: &str, shape, has_bias| {
            Linear::load(self.store, &format!("{base}.{name}"), shape, has_bias)
        };
        Ok(BlockWeights {
            attention_norm: Some(self.norm(&format!("{base}.ln_1"))?),
            query: linear("attn.attention.q_proj", (c, c), false)?,
            key: linear("attn.attention.k_proj", (c, c), false)?,
            value: linear("attn.attention.v_proj", (c, c), false)?,
            output: linear("attn.attention.out_proj", (c, c), true)?,
            qk_norm: None,
            attention_post_norm: None,
            mlp_norm: Some(self.norm(&format!("{base}.ln_2"))?),
            gate: None,
            up: linear("mlp.c_fc", (f, c), true)?,
            down: linear("mlp.c_proj", (c, f), true)?,
            mlp_post_norm: None,
        })
    }

    fn neox_block(&self, base: &str) -> Result<BlockWeights> {
        let (c, f, d) = (self.spec.hidden, self.spec.ffn_hidden, self.spec.head_dim);
        let name = format!("{base}.attention.query_key_value");
        let fused = self.store.values(&format!("{name}.weight"), &[3 * c, c])?;
        let has_bias = self.layout.qkv_bias;
        let bias = has_bias
            .then(|| self.store.values(&format!("{name}.bias"), &[3 * c]))
            .transpose()?;
        // Each head's query, key and value rows lie together.
        let part = |index: usize| -> Result<Linear> {
            let take = |values: &[f32], width: usize| -> Vec<f32> {
                values
                    .chunks(3 * d * width)
                    .flat_map(|head| head[index * d * width..(index + 1) * d * width].to_vec())
                    .collect()
            };
            Linear::new(take(&fused, c), c, bias.as_ref().map(|b| take(b, 1)))
        };
        let linear = |name: &str, shape, has_bias| {
            Linear::load(self.store, &format!("{base}.{name}"), shape, has_bias)
        };
        Ok(BlockWeights {
            attention_norm: Some(self.norm(&format!("{base}.input_layernorm"))?),
            query: part(0)?,
            key: part(1)?,
            value: part(2)?,
            output: linear("attention.dense", (c, c), has_bias)?,
            qk_norm: None,
            attention_post_norm: None,
            mlp_norm: Some(self.norm(&format!("{base}.post_attention_layernorm"))?),
            gate: None,
            up: linear("mlp.dense_h_to_4h", (f, c), true)?,
            down: linear("mlp.dense_4h_to_h", (c, f), true)?,
            mlp_post_norm: None,
        })
    }

    fn opt_block(&self, base: &str) -> Result<BlockWeights> {
        let (c, f) = (self.spec.hidden, self.spec.ffn_hidden);
        let has_bias = self.layout.qkv_bias;
        let linear = |name: &str, shape| {
            Linear::load(self.store, &format!("{base}.{name}"), shape, has_bias)
        };
        Ok(BlockWeights {
            attention_norm: Some(self.norm(&format!("{base}.self_attn_layer_norm"))?),
            query: linear("self_attn.q_proj", (c, c))?,
            key: linear("self_attn.k_proj", (c, c))?,
            value: linear("self_attn.v_proj", (c, c))?,
            output: linear("self_attn.out_proj", (c, c))?,
            qk_norm: None,
            attention_post_norm: None,
            mlp_norm: Some(self.norm(&format!("{base}.final_layer_norm"))?),
            gate: None,
            up: linear("fc1", (f, c))?,
            down: linear("fc2", (c, f))?,
            mlp_post_norm: None,
        })
    }
}
