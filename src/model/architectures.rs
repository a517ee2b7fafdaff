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
    /// The same with a fused `qkv_proj`.
    Phi3,
    /// `h.N.attn.c_attn`, fused, and every weight transposed.
    Gpt2,
    /// GPT-2's names and no transposes; all heads may share one key and value.
    BigCode,
    /// `gpt_neox.layers.N.attention.query_key_value`, fused head by head.
    GptNeox,
    /// `model.decoder.layers.N`, with Llama-like projections.
    Opt,
    /// GPT-2's names, with separate projections that are not transposed.
    GptNeo,
    /// The same with other names, and one norm a block.
    GptJ,
    /// GGUF's names, the same for every architecture: `blk.N.attn_q`. What is there is read.
    Gguf,
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
    /// Bias on the logits.
    pub head_bias: bool,
    /// Norms of queries and keys.
    pub qk_norm: Option<QkNormLayout>,
    /// Where norms stand.
    pub norms: NormPlaces,
    /// Whether norms have weights; 1 otherwise.
    pub norm_weights: bool,
    /// Whether norms have biases.
    pub norm_bias: bool,
    /// Norms' weights are kept as their difference from 1.
    pub norms_plus_one: bool,
    /// Names of a plain feed-forward layer, up and down; gated otherwise.
    pub plain_mlp: Option<(&'static str, &'static str)>,
    /// Gate and up in one `gate_up_proj`.
    pub fused_gate: bool,
    /// Queries and keys lie for rotation of neighbouring dimensions, against the architecture's habit.
    pub is_interleaved: bool,
    /// Name of the attention's output.
    pub output: &'static str,
    /// Name of the norm before the output projection.
    pub final_norm: &'static str,
}

impl Layout {
    /// Llama's own.
    pub const LLAMA: Self = Self {
        family: Family::Llama,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        head_bias: false,
        qk_norm: None,
        norms: NormPlaces::Before,
        norm_weights: true,
        norm_bias: false,
        norms_plus_one: false,
        plain_mlp: None,
        fused_gate: false,
        is_interleaved: false,
        output: "o_proj",
        final_norm: "norm",
    };
}

/// Where the norms of a block stand, and what they are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormPlaces {
    /// Before attention and feed-forward layer.
    Before,
    /// After them.
    After,
    /// Before and after.
    Both,
    /// Before and after, under GLM's names.
    Glm,
    /// One, before both.
    Shared,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct QkNormLayout {
    pub kind: NormKind,
    /// Whether each head is normed alone, or all of a token together.
    pub by_head: bool,
    /// Whether heads have weights of their own.
    pub own_weights: bool,
    /// Whether those come as a tensor for each head, `NAME.norms.H.weight`.
    pub is_separate: bool,
    pub has_bias: bool,
    /// Of query and key.
    pub names: (&'static str, &'static str),
}

impl QkNormLayout {
    /// RMSNorm over each head, the same weights for all.
    pub const EACH_HEAD_ALIKE: Self = Self {
        kind: NormKind::Rms,
        by_head: true,
        own_weights: false,
        is_separate: false,
        has_bias: false,
        names: ("q_norm", "k_norm"),
    };
    /// RMSNorm over all heads of a token.
    pub const ALL_HEADS_TOGETHER: Self = Self {
        by_head: false,
        own_weights: true,
        ..Self::EACH_HEAD_ALIKE
    };
    /// LayerNorm over each head, with its own weights.
    pub const EACH_HEAD_ITS_OWN: Self = Self {
        kind: NormKind::Layer,
        by_head: true,
        own_weights: true,
        is_separate: true,
        has_bias: false,
        names: ("q_layernorm", "k_layernorm"),
    };
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
                final_norm: format!("{prefix}{}", layout.final_norm),
                head: "lm_head".to_owned(),
                layers: format!("{prefix}layers"),
            }
        }
        Family::Gpt2 | Family::BigCode | Family::GptNeo | Family::GptJ => {
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
        Family::Gguf => Names {
            embedding: "token_embd".to_owned(),
            positions: "position_embd".to_owned(),
            final_norm: "output_norm".to_owned(),
            head: "output".to_owned(),
            layers: "blk".to_owned(),
        },
    };
    let blocks = (0..spec.n_layers)
        .map(|layer| {
            let base = format!("{}.{layer}", names.layers);
            match layout.family {
                Family::Llama | Family::Phi3 => reader.llama_block(&base),
                Family::Gpt2 => reader.gpt2_block(&base),
                Family::GptNeox => reader.neox_block(&base),
                Family::Opt => reader.opt_block(&base),
                Family::GptNeo => reader.neo_block(&base),
                Family::GptJ => reader.gptj_block(&base),
                Family::BigCode => reader.bigcode_block(&base),
                Family::Gguf => reader.gguf_block(&base),
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
    let head_bias = match layout.family {
        Family::Gguf => store.contains("output.bias"),
        _ => layout.head_bias,
    }
    .then(|| store.values(&format!("{}.bias", names.head), &[spec.vocab_size]));
    let weights = DecoderWeights {
        embedding,
        positions,
        blocks,
        final_norm: reader.norm(&names.final_norm)?,
        head,
        head_bias: head_bias.transpose()?,
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

/// Weights and bias of some rows of a matrix.
type Rows = (Vec<f32>, Option<Vec<f32>>);

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
        let width = self.spec.hidden;
        if !self.layout.norm_weights {
            return Ok(Norm {
                weight: vec![1.0; width],
                bias: None,
            });
        }
        let has_bias = match self.layout.family {
            Family::Gguf => self.store.contains(&format!("{name}.bias")),
            _ => self.layout.norm_bias,
        };
        let mut norm = Norm::load(self.store, name, width, has_bias)?;
        self.add_one(&mut norm.weight);
        Ok(norm)
    }

    /// The norm of queries or keys, of `heads` heads.
    fn qk_norm(&self, name: &str, layout: QkNormLayout, heads: usize) -> Result<Norm> {
        let d = self.spec.head_dim;
        let mut norm = if layout.is_separate {
            let mut weight = Vec::with_capacity(heads * d);
            for head in 0..heads {
                weight.extend(
                    self.store
                        .values(&format!("{name}.norms.{head}.weight"), &[d])?,
                );
            }
            Norm { weight, bias: None }
        } else {
            let weight_name = format!("{name}.weight");
            let width = if layout.own_weights { heads * d } else { d };
            // Each head's own weights may come as a matrix.
            let is_matrix = self
                .store
                .shape(&weight_name)
                .is_some_and(|shape| shape == [heads, d]);
            let shape: &[usize] = if is_matrix { &[heads, d] } else { &[width] };
            Norm {
                weight: self.store.values(&weight_name, shape)?,
                bias: layout
                    .has_bias
                    .then(|| self.store.values(&format!("{name}.bias"), &[width]))
                    .transpose()?,
            }
        };
        self.add_one(&mut norm.weight);
        Ok(norm)
    }

    fn qk_norms(&self, base: &str, layout: QkNormLayout) -> Result<QkNorm> {
        let (query, key) = layout.names;
        Ok(QkNorm {
            kind: layout.kind,
            by_head: layout.by_head,
            query: self.qk_norm(&format!("{base}{query}"), layout, self.spec.n_heads)?,
            key: self.qk_norm(&format!("{base}{key}"), layout, self.spec.n_kv_heads)?,
        })
    }

    /// Rows of one matrix and its bias, cut into layers of these heights.
    fn split_rows<const N: usize>(
        &self,
        name: &str,
        heights: [usize; N],
        has_bias: bool,
    ) -> Result<[Rows; N]> {
        let c = self.spec.hidden;
        let rows = heights.iter().sum();
        let mut weights = self.store.values(&format!("{name}.weight"), &[rows, c])?;
        let mut bias = has_bias
            .then(|| self.store.values(&format!("{name}.bias"), &[rows]))
            .transpose()?;
        Ok(heights.map(|height| {
            let rest = weights.split_off(height * c);
            let rest_bias = bias.as_mut().map(|b| b.split_off(height));
            (
                std::mem::replace(&mut weights, rest),
                std::mem::replace(&mut bias, rest_bias),
            )
        }))
    }

    /// Query, key and value in one matrix, one after the other.
    fn fused_qkv(&self, name: &str, has_bias: bool) -> Result<[Linear; 3]> {
        let c = self.spec.hidden;
        let (q, kv) = self.widths();
        let [query, key, value] = self.split_rows(name, [q, kv, kv], has_bias)?;
        Ok([
            Linear::new(query.0, c, query.1)?,
            Linear::new(key.0, c, key.1)?,
            Linear::new(value.0, c, value.1)?,
        ])
    }

    /// Gate and up in one matrix.
    fn fused_gate(&self, name: &str, has_bias: bool) -> Result<[Linear; 2]> {
        let (c, f) = (self.spec.hidden, self.spec.ffn_hidden);
        let [gate, up] = self.split_rows(name, [f, f], has_bias)?;
        Ok([Linear::new(gate.0, c, gate.1)?, Linear::new(up.0, c, up.1)?])
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
        let norm = |part: &str| self.norm(&format!("{base}.{part}")).map(Some);
        let (attention_norm, attention_post_norm, mlp_norm, mlp_post_norm) = match layout.norms {
            NormPlaces::Before => (
                norm("input_layernorm")?,
                None,
                norm("post_attention_layernorm")?,
                None,
            ),
            NormPlaces::After => (
                None,
                norm("post_attention_layernorm")?,
                None,
                norm("post_feedforward_layernorm")?,
            ),
            NormPlaces::Both => (
                norm("input_layernorm")?,
                norm("post_attention_layernorm")?,
                norm("pre_feedforward_layernorm")?,
                norm("post_feedforward_layernorm")?,
            ),
            NormPlaces::Glm => (
                norm("input_layernorm")?,
                norm("post_self_attn_layernorm")?,
                norm("post_attention_layernorm")?,
                norm("post_mlp_layernorm")?,
            ),
            NormPlaces::Shared => {
                let shared = norm("input_layernorm")?;
                (shared.clone(), None, shared, None)
            }
        };
        let [query, key, value] = match layout.family {
            Family::Phi3 => {
                self.fused_qkv(&format!("{base}.self_attn.qkv_proj"), layout.qkv_bias)?
            }
            _ => [
                attention("q_proj", (q, c), layout.qkv_bias)?,
                attention("k_proj", (kv, c), layout.qkv_bias)?,
                attention("v_proj", (kv, c), layout.qkv_bias)?,
            ],
        };
        let qk_norm = layout
            .qk_norm
            .map(|qk_norm| self.qk_norms(&format!("{base}.self_attn."), qk_norm))
            .transpose()?;
        let (up_name, down_name) = layout.plain_mlp.unwrap_or(("up_proj", "down_proj"));
        let (gate, up) = if layout.fused_gate {
            let [gate, up] =
                self.fused_gate(&format!("{base}.mlp.gate_up_proj"), layout.mlp_bias)?;
            (Some(gate), up)
        } else if layout.plain_mlp.is_some() {
            (None, mlp(up_name, (f, c))?)
        } else {
            (Some(mlp("gate_proj", (f, c))?), mlp(up_name, (f, c))?)
        };
        Ok(BlockWeights {
            attention_norm,
            query,
            key,
            value,
            output: attention(layout.output, (c, q), layout.output_bias)?,
            qk_norm,
            attention_post_norm,
            mlp_norm,
            gate,
            up,
            down: mlp(down_name, (c, f))?,
            mlp_post_norm,
        })
    }

    /// Reads what a block of a GGUF file has: names are the same for every architecture.
    fn gguf_block(&self, base: &str) -> Result<BlockWeights> {
        let (c, f) = (self.spec.hidden, self.spec.ffn_hidden);
        let (q, kv) = self.widths();
        let has = |part: &str| self.store.contains(&format!("{base}.{part}"));
        let linear = |part: &str, shape| {
            let has_bias = has(&format!("{part}.bias"));
            Linear::load(self.store, &format!("{base}.{part}"), shape, has_bias)
        };
        let norm = |part: &str| {
            has(&format!("{part}.weight"))
                .then(|| self.norm(&format!("{base}.{part}")))
                .transpose()
        };
        let plain_norm = |width: usize| {
            (!self.layout.norm_weights).then(|| Norm {
                weight: vec![1.0; width],
                bias: None,
            })
        };
        let [query, key, value] = if has("attn_qkv.weight") {
            self.fused_qkv(&format!("{base}.attn_qkv"), has("attn_qkv.bias"))?
        } else {
            [
                linear("attn_q", (q, c))?,
                linear("attn_k", (kv, c))?,
                linear("attn_v", (kv, c))?,
            ]
        };
        let up_name = format!("{base}.ffn_up.weight");
        let is_fused = self
            .store
            .shape(&up_name)
            .is_some_and(|shape| shape == [2 * f, c]);
        let (gate, up) = if has("ffn_gate.weight") {
            (Some(linear("ffn_gate", (f, c))?), linear("ffn_up", (f, c))?)
        } else if is_fused {
            let [gate, up] = self.fused_gate(&format!("{base}.ffn_up"), has("ffn_up.bias"))?;
            (Some(gate), up)
        } else {
            (None, linear("ffn_up", (f, c))?)
        };
        let attention_norm = norm("attn_norm")?.or_else(|| plain_norm(c));
        let mlp_norm = norm("ffn_norm")?.or_else(|| plain_norm(c));
        let qk_norm = has("attn_q_norm.weight").then(|| {
            let shape = self.store.shape(&format!("{base}.attn_q_norm.weight"));
            let d = self.spec.head_dim;
            let layout = match shape.as_deref() {
                Some([width]) if *width == d => QkNormLayout::EACH_HEAD_ALIKE,
                Some([_]) => QkNormLayout::ALL_HEADS_TOGETHER,
                _ => QkNormLayout {
                    is_separate: false,
                    ..QkNormLayout::EACH_HEAD_ITS_OWN
                },
            };
            let layout = QkNormLayout {
                names: ("attn_q_norm", "attn_k_norm"),
                has_bias: has("attn_q_norm.bias"),
                kind: if layout.by_head && !layout.own_weights {
                    self.spec.norm
                } else {
                    layout.kind
                },
                ..layout
            };
            self.qk_norms(&format!("{base}."), layout)
        });
        Ok(BlockWeights {
            // In a parallel block without a norm of its own the feed-forward layer reads the same.
            mlp_norm: mlp_norm.or_else(|| attention_norm.clone().filter(|_| self.spec.parallel)),
            attention_norm,
            query,
            key,
            value,
            output: linear("attn_output", (c, q))?,
            qk_norm: qk_norm.transpose()?,
            attention_post_norm: norm("post_attention_norm")?,
            gate,
            up,
            down: linear("ffn_down", (c, f))?,
            mlp_post_norm: norm("post_ffw_norm")?,
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

    fn gptj_block(&self, base: &str) -> Result<BlockWeights> {
        let (c, f) = (self.spec.hidden, self.spec.ffn_hidden);
        let linear = |name: &str, shape, has_bias| {
            Linear::load(self.store, &format!("{base}.{name}"), shape, has_bias)
        };
        let norm = self.norm(&format!("{base}.ln_1"))?;
        Ok(BlockWeights {
            attention_norm: Some(norm.clone()),
            query: linear("attn.q_proj", (c, c), false)?,
            key: linear("attn.k_proj", (c, c), false)?,
            value: linear("attn.v_proj", (c, c), false)?,
            output: linear("attn.out_proj", (c, c), false)?,
            qk_norm: None,
            attention_post_norm: None,
            mlp_norm: Some(norm),
            gate: None,
            up: linear("mlp.fc_in", (f, c), true)?,
            down: linear("mlp.fc_out", (c, f), true)?,
            mlp_post_norm: None,
        })
    }

    fn bigcode_block(&self, base: &str) -> Result<BlockWeights> {
        let (c, f) = (self.spec.hidden, self.spec.ffn_hidden);
        let fused = format!("{base}.attn.c_attn");
        let [query, key, value] = if self.spec.n_kv_heads == 1 {
            self.fused_qkv(&fused, true)?
        } else {
            self.fused_by_head(&fused, true)?
        };
        let linear =
            |name: &str, shape| Linear::load(self.store, &format!("{base}.{name}"), shape, true);
        Ok(BlockWeights {
            attention_norm: Some(self.norm(&format!("{base}.ln_1"))?),
            query,
            key,
            value,
            output: linear("attn.c_proj", (c, c))?,
            qk_norm: None,
            attention_post_norm: None,
            mlp_norm: Some(self.norm(&format!("{base}.ln_2"))?),
            gate: None,
            up: linear("mlp.c_fc", (f, c))?,
            down: linear("mlp.c_proj", (c, f))?,
            mlp_post_norm: None,
        })
    }

    /// Query, key and value in one matrix, each head's rows together.
    fn fused_by_head(&self, name: &str, has_bias: bool) -> Result<[Linear; 3]> {
        let (c, d) = (self.spec.hidden, self.spec.head_dim);
        let fused = self.store.values(&format!("{name}.weight"), &[3 * c, c])?;
        let bias = has_bias
            .then(|| self.store.values(&format!("{name}.bias"), &[3 * c]))
            .transpose()?;
        let part = |index: usize| -> Result<Linear> {
            let take = |values: &[f32], width: usize| -> Vec<f32> {
                values
                    .chunks(3 * d * width)
                    .flat_map(|head| head[index * d * width..(index + 1) * d * width].to_vec())
                    .collect()
            };
            Linear::new(take(&fused, c), c, bias.as_ref().map(|b| take(b, 1)))
        };
        Ok([part(0)?, part(1)?, part(2)?])
    }

    fn neox_block(&self, base: &str) -> Result<BlockWeights> {
        let (c, f) = (self.spec.hidden, self.spec.ffn_hidden);
        let has_bias = self.layout.qkv_bias;
        let [query, key, value] =
            self.fused_by_head(&format!("{base}.attention.query_key_value"), has_bias)?;
        let linear = |name: &str, shape, has_bias| {
            Linear::load(self.store, &format!("{base}.{name}"), shape, has_bias)
        };
        Ok(BlockWeights {
            attention_norm: Some(self.norm(&format!("{base}.input_layernorm"))?),
            query,
            key,
            value,
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
