//! [`Config`]: what a model's configuration says, whatever its architecture calls the keys.

use serde::Deserialize;

/// `config.json`: the keys that any supported architecture reads; other names of them are in [`OTHER_NAMES`], other keys
/// are ignored.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Config {
    pub model_type: Option<String>,
    pub vocab_size: Option<usize>,
    pub hidden_size: Option<usize>,
    pub num_hidden_layers: Option<usize>,
    pub num_attention_heads: Option<usize>,
    pub num_key_value_heads: Option<usize>,
    pub head_dim: Option<usize>,
    pub intermediate_size: Option<usize>,
    pub max_position_embeddings: Option<usize>,
    pub rms_norm_eps: Option<f32>,
    pub hidden_act: Option<String>,
    pub rope_theta: Option<f64>,
    pub partial_rotary_factor: Option<f64>,
    pub rotary_pct: Option<f64>,
    pub rotary_emb_base: Option<f64>,
    /// transformers 5.
    pub rope_parameters: Option<RopeParameters>,
    /// transformers 4.
    pub rope_scaling: Option<RopeParameters>,
    pub attention_bias: Option<bool>,
    #[serde(default)]
    pub mlp_bias: bool,
    pub use_bias: Option<bool>,
    pub enable_bias: Option<bool>,
    pub tie_word_embeddings: Option<bool>,
    pub use_parallel_residual: Option<bool>,
    pub do_layer_norm_before: Option<bool>,
    pub word_embed_proj_dim: Option<usize>,
    pub scale_attn_by_inverse_layer_idx: Option<bool>,
    pub scale_attn_weights: Option<bool>,
    pub sliding_window: Option<usize>,
    /// "sliding_attention" or "full_attention" for each layer.
    pub layer_types: Option<Vec<String>>,
    /// GPT-Neo: "global" or "local" for each layer.
    pub attention_layers: Option<Vec<String>>,
    /// Every so many layers one is full.
    pub sliding_window_pattern: Option<usize>,
    /// From this layer on windows slide.
    pub max_window_layers: Option<usize>,
    pub rope_local_base_freq: Option<f64>,
    pub query_pre_attn_scalar: Option<f32>,
    pub attn_logit_softcapping: Option<f32>,
    pub final_logit_softcapping: Option<f32>,
    pub use_sliding_window: Option<bool>,
    /// 1 for layers that turn, 0 for others.
    pub no_rope_layers: Option<Vec<u8>>,
    /// GPT-J: dimensions that turn.
    pub rotary_dim: Option<usize>,
    pub original_max_position_embeddings: Option<f64>,
    pub use_qkv_bias: Option<bool>,
    pub attention_out_bias: Option<bool>,
    #[serde(default)]
    pub qk_layernorm: bool,
    #[serde(default)]
    pub use_qk_norm: bool,
    /// OLMo: bound of queries, keys and values.
    pub clip_qkv: Option<f32>,
    pub multi_query: Option<bool>,
    pub embedding_multiplier: Option<f32>,
    pub attention_multiplier: Option<f32>,
    pub residual_multiplier: Option<f32>,
    pub logits_scaling: Option<f32>,
    pub logit_scale: Option<f32>,
    /// A number, or a list of them.
    pub bos_token_id: Option<serde_json::Value>,
    pub quantization_config: Option<serde_json::Value>,
    #[serde(flatten)]
    pub experts: Experts,
}

/// Keys that say how many experts there are, under the names they go by.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Experts {
    pub num_local_experts: Option<usize>,
    pub num_experts: Option<usize>,
    pub n_routed_experts: Option<usize>,
    pub moe_num_experts: Option<usize>,
}

impl Experts {
    /// The most experts that any key gives.
    pub fn count(&self) -> usize {
        [
            self.num_local_experts,
            self.num_experts,
            self.n_routed_experts,
            self.moe_num_experts,
        ]
        .into_iter()
        .flatten()
        .max()
        .unwrap_or(0)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct RopeParameters {
    #[serde(alias = "type")]
    pub rope_type: Option<String>,
    pub rope_theta: Option<f64>,
    pub partial_rotary_factor: Option<f64>,
    pub factor: Option<f64>,
    pub low_freq_factor: Option<f64>,
    pub high_freq_factor: Option<f64>,
    pub original_max_position_embeddings: Option<f64>,
    pub attention_factor: Option<f64>,
    pub beta_fast: Option<f64>,
    pub beta_slow: Option<f64>,
    pub mscale: Option<f64>,
    pub mscale_all_dim: Option<f64>,
    pub truncate: Option<bool>,
    pub short_factor: Option<Vec<f64>>,
    pub long_factor: Option<Vec<f64>>,
    /// Where kinds of layers differ.
    pub full_attention: Option<Box<RopeParameters>>,
    pub sliding_attention: Option<Box<RopeParameters>>,
}

/// What else architectures call a key. A file may have both: the architecture's own name then counts.
const OTHER_NAMES: &[(&str, &[&str])] = &[
    ("hidden_size", &["n_embd"]),
    ("num_hidden_layers", &["n_layer", "num_layers"]),
    ("num_attention_heads", &["n_head", "num_heads"]),
    ("intermediate_size", &["n_inner", "ffn_dim"]),
    ("max_position_embeddings", &["n_positions"]),
    (
        "rms_norm_eps",
        &[
            "layer_norm_epsilon",
            "layer_norm_eps",
            "norm_epsilon",
            "norm_eps",
        ],
    ),
    ("hidden_act", &["hidden_activation", "activation_function"]),
    ("sliding_window", &["window_size"]),
    ("sliding_window_pattern", &["_sliding_window_pattern"]),
];

/// Reads a configuration under the keys of [`Config`].
pub(super) fn parse(text: &[u8]) -> serde_json::Result<Config> {
    let mut keys: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(text)?;
    for (name, others) in OTHER_NAMES {
        let own = others
            .iter()
            .find_map(|other| keys.get(*other).filter(|v| !v.is_null()));
        if let Some(value) = own.cloned() {
            keys.insert((*name).to_owned(), value);
        }
    }
    serde_json::from_value(serde_json::Value::Object(keys))
}
