//! From a configuration to a [`ModelSpec`] and to where the weights lie: what each architecture is.

use super::{
    Activation, LayerSpec, ModelSpec, NormKind, Positions,
    architectures::{Family, Layout, NormPlaces, QkNormLayout},
    config::Config,
    rotary::{RotaryDefaults, ropes},
};
use crate::{Error, Result, attention::Window};

/// Bounds that no real model reaches; beyond them a file is refused before memory is taken.
const MAX_LAYERS: usize = 1_000;
const MAX_WIDTH: usize = 1 << 20;

/// Makes an error of a sentence about the configuration.
pub(super) type Refuse<'a> = &'a dyn Fn(String) -> Error;

/// A spec, and how its weights lie in the file.
pub(super) struct Mapped {
    pub spec: ModelSpec,
    pub layout: Layout,
    /// The token for a beginning, where the configuration names one.
    pub bos: Option<u32>,
}

/// The architectures that are read, by their `model_type`.
pub(super) const SUPPORTED: &[&str] = &[
    "cohere",
    "cohere2",
    "ernie4_5",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm4",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "granite",
    "helium",
    "llama",
    "mistral",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "opt",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
];

/// Why some that people have are not.
fn why_not(architecture: &str) -> Option<&'static str> {
    Some(match architecture {
        "mixtral" | "qwen2_moe" | "qwen3_moe" | "olmoe" | "granitemoe" | "phimoe" | "gpt_oss"
        | "dbrx" | "jetmoe" | "glm4_moe" | "ernie4_5_moe" | "llama4" | "llama4_text" => {
            "its feed-forward layers are mixtures of experts"
        }
        "deepseek_v2" | "deepseek_v3" | "minicpm3" => {
            "it keeps keys and values as latent vectors (MLA)"
        }
        "mamba" | "mamba2" | "falcon_mamba" | "rwkv" | "recurrent_gemma" | "jamba" | "bamba"
        | "zamba" | "zamba2" | "nemotron_h" | "granitemoehybrid" | "lfm2" | "qwen3_next"
        | "falcon_h1" | "minimax" => "it has linear attention or state-space layers",
        "bloom" | "mpt" | "falcon" | "baichuan" => {
            "its positions are slopes on the scores (ALiBi), or it comes in forms that are"
        }
        "bert" | "roberta" | "distilbert" | "electra" | "deberta" | "deberta-v2" | "modernbert"
        | "nomic_bert" => "it is an encoder, whose heads look both ways",
        "t5" | "mt5" | "bart" | "mbart" | "pegasus" | "whisper" | "marian" => {
            "it is an encoder with a decoder"
        }
        "gemma3" | "llava" | "mllama" | "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" | "idefics3"
        | "smolvlm" | "mistral3" | "paligemma" => "it reads pictures too; use its text model alone",
        _ => return None,
    })
}

/// From a configuration to a spec.
pub(super) fn map(config: &Config, refuse: Refuse<'_>) -> Result<Mapped> {
    let architecture = config
        .model_type
        .clone()
        .ok_or_else(|| refuse("has no model_type".to_owned()))?;
    if !SUPPORTED.contains(&architecture.as_str()) {
        let why = why_not(&architecture).map_or_else(String::new, |why| format!(": {why}"));
        return Err(refuse(format!(
            "model_type \"{architecture}\" is not supported{why}; supported: {}",
            SUPPORTED.join(", ")
        )));
    }
    let experts = config.experts.count();
    if experts > 1 {
        return Err(refuse(format!(
            "has {experts} experts a layer: mixtures of experts are not supported"
        )));
    }
    if let Some(method) = &config.quantization_config {
        let method = method
            .get("quant_method")
            .and_then(serde_json::Value::as_str)
            .unwrap_or("some method");
        return Err(refuse(format!(
            "its weights are quantised by {method}, which is not read; take the original, or a GGUF file"
        )));
    }
    let layout = layout(&architecture, config, refuse)?;
    let spec = spec(config, architecture, &layout, refuse)?;
    let bos = config
        .bos_token_id
        .as_ref()
        .and_then(serde_json::Value::as_u64)
        .and_then(|id| u32::try_from(id).ok())
        .filter(|&id| (id as usize) < spec.vocab_size);
    Ok(Mapped { spec, layout, bos })
}

/// How each architecture lays out its weights; what of it is not supported is named.
fn layout(architecture: &str, config: &Config, refuse: Refuse<'_>) -> Result<Layout> {
    let plain = Layout::LLAMA;
    let attention_bias = config.attention_bias.unwrap_or(false);
    let biased = Layout {
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        ..plain
    };
    let unsupported = |what: &str| {
        Err(refuse(format!(
            "{architecture} with {what} is not supported"
        )))
    };
    let llama_like = Layout {
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        mlp_bias: config.mlp_bias,
        ..plain
    };
    Ok(match architecture {
        "llama" | "smollm3" | "mistral" | "granite" => llama_like,
        // The output has no bias where queries, keys and values have one.
        "helium" | "glm4" => Layout {
            output_bias: false,
            mlp_bias: false,
            qkv_bias: config.attention_bias.unwrap_or(architecture == "glm4"),
            norms: if architecture == "glm4" {
                NormPlaces::Glm
            } else {
                NormPlaces::Before
            },
            fused_gate: architecture == "glm4",
            ..plain
        },
        "seed_oss" => Layout {
            qkv_bias: config.attention_bias.unwrap_or(true),
            output_bias: config.attention_out_bias.unwrap_or(false),
            ..llama_like
        },
        "ernie4_5" => {
            let has_bias = config.use_bias.unwrap_or(false);
            Layout {
                qkv_bias: has_bias,
                output_bias: has_bias,
                mlp_bias: has_bias,
                ..plain
            }
        }
        "nemotron" => Layout {
            norm_bias: true,
            norms_plus_one: true,
            plain_mlp: Some(("up_proj", "down_proj")),
            ..llama_like
        },
        "olmo" => {
            if config.clip_qkv.is_some() {
                return unsupported("clip_qkv");
            }
            Layout {
                norm_weights: false,
                mlp_bias: false,
                ..llama_like
            }
        }
        "gemma" => Layout {
            norms_plus_one: true,
            mlp_bias: false,
            ..llama_like
        },
        "qwen2" => Layout {
            qkv_bias: true,
            ..plain
        },
        "qwen3" => Layout {
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            qk_norm: Some(QkNormLayout::EACH_HEAD_ALIKE),
            ..plain
        },
        "olmo2" | "olmo3" => Layout {
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            qk_norm: Some(QkNormLayout::ALL_HEADS_TOGETHER),
            norms: NormPlaces::After,
            ..plain
        },
        "phi3" => Layout {
            family: Family::Phi3,
            fused_gate: true,
            ..plain
        },
        "starcoder2" => {
            let has_bias = config.use_bias.unwrap_or(true);
            Layout {
                qkv_bias: has_bias,
                output_bias: has_bias,
                mlp_bias: has_bias,
                norm_bias: true,
                plain_mlp: Some(("c_fc", "c_proj")),
                ..plain
            }
        }
        "stablelm" => Layout {
            qkv_bias: config.use_qkv_bias.unwrap_or(false),
            norm_bias: true,
            norms: if config.use_parallel_residual == Some(true) {
                NormPlaces::Shared
            } else {
                NormPlaces::Before
            },
            qk_norm: config
                .qk_layernorm
                .then_some(QkNormLayout::EACH_HEAD_ITS_OWN),
            ..plain
        },
        "phi" => Layout {
            norm_bias: true,
            norms: NormPlaces::Shared,
            plain_mlp: Some(("fc1", "fc2")),
            output: "dense",
            final_norm: "final_layernorm",
            head_bias: true,
            qk_norm: config.qk_layernorm.then_some(QkNormLayout {
                kind: NormKind::Layer,
                has_bias: true,
                names: ("q_layernorm", "k_layernorm"),
                ..QkNormLayout::EACH_HEAD_ALIKE
            }),
            ..biased
        },
        "cohere" | "cohere2" => Layout {
            norms: NormPlaces::Shared,
            mlp_bias: false,
            qk_norm: config.use_qk_norm.then_some(QkNormLayout {
                is_separate: false,
                names: ("q_norm", "k_norm"),
                ..QkNormLayout::EACH_HEAD_ITS_OWN
            }),
            ..llama_like
        },
        "gemma2" | "gemma3_text" => Layout {
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            qk_norm: (architecture == "gemma3_text").then_some(QkNormLayout::EACH_HEAD_ALIKE),
            norms: NormPlaces::Both,
            norms_plus_one: true,
            ..plain
        },
        "gpt_neo" => Layout {
            family: Family::GptNeo,
            norm_bias: true,
            ..plain
        },
        "gptj" => Layout {
            family: Family::GptJ,
            norm_bias: true,
            head_bias: true,
            ..plain
        },
        "gpt2" | "gpt_bigcode" => {
            if config.scale_attn_by_inverse_layer_idx == Some(true) {
                return unsupported("scale_attn_by_inverse_layer_idx");
            }
            Layout {
                family: if architecture == "gpt2" {
                    Family::Gpt2
                } else {
                    Family::BigCode
                },
                norm_bias: true,
                ..biased
            }
        }
        "gpt_neox" => Layout {
            family: Family::GptNeox,
            qkv_bias: config.attention_bias.unwrap_or(true),
            norm_bias: true,
            ..biased
        },
        "opt" => {
            if config.do_layer_norm_before == Some(false) {
                return unsupported("norms after attention");
            }
            if config
                .word_embed_proj_dim
                .is_some_and(|d| Some(d) != config.hidden_size)
            {
                return unsupported("a projected embedding");
            }
            Layout {
                family: Family::Opt,
                qkv_bias: config.enable_bias.unwrap_or(true),
                norm_bias: true,
                ..biased
            }
        }
        other => return Err(refuse(format!("model_type \"{other}\" has no mapping"))),
    })
}

/// The norm of an architecture.
fn norm_kind(architecture: &str) -> NormKind {
    match architecture {
        "gpt2" | "gpt_bigcode" | "gpt_neo" | "gpt_neox" | "gptj" | "opt" | "starcoder2"
        | "stablelm" | "phi" | "cohere" | "cohere2" | "olmo" | "nemotron" => NormKind::Layer,
        _ => NormKind::Rms,
    }
}

fn spec(
    config: &Config,
    architecture: String,
    layout: &Layout,
    refuse: Refuse<'_>,
) -> Result<ModelSpec> {
    let bounded = |name: &str, value: Option<usize>, most: usize| match value {
        None => Err(refuse(format!("has no {name}"))),
        Some(n) if n == 0 || n > most => Err(refuse(format!(
            "{name} is {n}; it must be from 1 to {most}"
        ))),
        Some(n) => Ok(n),
    };
    let family = layout.family;
    let name = architecture.as_str();
    let hidden = bounded("hidden_size", config.hidden_size, MAX_WIDTH)?;
    let n_heads = bounded("num_attention_heads", config.num_attention_heads, MAX_WIDTH)?;
    let kv_heads = match name {
        "gpt_bigcode" if config.multi_query.unwrap_or(true) => Some(1),
        _ => config.num_key_value_heads,
    };
    let n_kv_heads = bounded("num_key_value_heads", kv_heads.or(Some(n_heads)), n_heads)?;
    let default_head_dim = match name {
        "gemma" | "gemma2" | "gemma3_text" => 256,
        "glm4" | "helium" | "seed_oss" => 128,
        _ => hidden / n_heads,
    };
    let head_dim = bounded("head_dim", config.head_dim.or(Some(default_head_dim)), 1024)?;
    if !n_heads.is_multiple_of(n_kv_heads) {
        return Err(refuse(format!(
            "num_attention_heads ({n_heads}) is not a multiple of num_key_value_heads ({n_kv_heads})"
        )));
    }
    let n_layers = bounded("num_hidden_layers", config.num_hidden_layers, MAX_LAYERS)?;
    let context = bounded(
        "max_position_embeddings",
        config.max_position_embeddings.or(Some(2048)),
        1 << 30,
    )?;
    // These layouts split the residual stream evenly.
    let is_even = matches!(
        family,
        Family::Gpt2
            | Family::BigCode
            | Family::GptNeo
            | Family::GptNeox
            | Family::GptJ
            | Family::Opt
    );
    if is_even && (n_heads * head_dim != hidden || (n_kv_heads != n_heads && n_kv_heads != 1)) {
        return Err(refuse(format!(
            "{n_heads} heads of {head_dim} do not make up the hidden_size {hidden}"
        )));
    }
    let positions = match family {
        Family::Gpt2 | Family::BigCode | Family::GptNeo | Family::Opt => Positions::Learned {
            // The rows of padding come first in OPT.
            offset: if family == Family::Opt { 2 } else { 0 },
            rows: context,
        },
        Family::Llama | Family::Phi3 | Family::GptNeox | Family::GptJ | Family::Gguf => {
            let defaults = RotaryDefaults {
                share: match name {
                    "gpt_neox" | "stablelm" => 0.25,
                    "phi" | "nemotron" | "glm4" => 0.5,
                    _ => 1.0,
                },
                interleaved: layout.is_interleaved
                    || matches!(
                        name,
                        "gptj" | "cohere" | "cohere2" | "glm4" | "helium" | "ernie4_5"
                    ),
                scales_full_only: name == "olmo3",
            };
            Positions::Rotary(ropes(config, head_dim, context, defaults, refuse)?)
        }
    };
    let layers = layers(config, name, n_layers, &positions, refuse)?;
    let activation = activation(config.hidden_act.as_deref(), name, refuse)?;
    let norm = norm_kind(name);
    let is_capped = matches!(name, "gemma2" | "gemma3_text");
    let logit_scale = match name {
        "granite" => 1.0 / config.logits_scaling.unwrap_or(1.0),
        "cohere" | "cohere2" => config.logit_scale.unwrap_or(0.0625),
        _ => 1.0,
    };
    let is_granite = name == "granite";
    let factor = |value: Option<f32>| value.filter(|_| is_granite).unwrap_or(1.0);
    let embedding_scale = match name {
        "gemma" | "gemma2" | "gemma3_text" => (hidden as f32).sqrt(),
        _ => factor(config.embedding_multiplier),
    };
    let residual_scale = factor(config.residual_multiplier);
    let attention_scale = attention_scale(config, name, head_dim);
    for (what, value) in [
        ("logit scale", logit_scale),
        ("embedding_multiplier", embedding_scale),
        ("residual_multiplier", residual_scale),
        ("attention scale", attention_scale),
    ] {
        if !value.is_finite() {
            return Err(refuse(format!("its {what} is {value}, not a number")));
        }
    }
    let is_tied_by_default = matches!(
        name,
        "gpt2"
            | "gpt_bigcode"
            | "gpt_neo"
            | "opt"
            | "smollm3"
            | "starcoder2"
            | "cohere"
            | "cohere2"
            | "ernie4_5"
            | "gemma"
            | "gemma2"
            | "gemma3_text"
    );
    Ok(ModelSpec {
        vocab_size: bounded("vocab_size", config.vocab_size, 1 << 24)?,
        hidden,
        n_layers,
        n_heads,
        n_kv_heads,
        head_dim,
        ffn_hidden: bounded(
            "intermediate_size",
            config.intermediate_size.or(matches!(
                family,
                Family::Gpt2 | Family::BigCode | Family::GptNeo | Family::GptJ
            )
            .then_some(4 * hidden)),
            MAX_WIDTH,
        )?,
        context,
        norm,
        norm_eps: match name {
            // Not in the configuration.
            "olmo" => 1e-5,
            _ => config.rms_norm_eps.unwrap_or(match norm {
                NormKind::Layer => 1e-5,
                NormKind::Rms => 1e-6,
            }),
        },
        positions,
        layers,
        embedding_scale,
        attention_softcap: config.attn_logit_softcapping.filter(|_| is_capped),
        residual_scale,
        logit_scale,
        logit_softcap: config.final_logit_softcapping.filter(|_| is_capped),
        activation,
        parallel: match name {
            "gpt_neox" => config.use_parallel_residual.unwrap_or(true),
            "stablelm" => config.use_parallel_residual == Some(true),
            "phi" | "gptj" | "cohere" | "cohere2" => true,
            _ => false,
        },
        attention_scale,
        tied_head: config.tie_word_embeddings.unwrap_or(is_tied_by_default),
        architecture,
    })
}

/// Factor of the attention scores.
fn attention_scale(config: &Config, architecture: &str, head_dim: usize) -> f32 {
    let usual = 1.0 / (head_dim as f32).sqrt();
    match architecture {
        "gpt_neo" => 1.0,
        "gpt2" | "gpt_bigcode" if config.scale_attn_weights == Some(false) => 1.0,
        "granite" => config.attention_multiplier.unwrap_or(1.0),
        "gemma2" | "gemma3_text" => config
            .query_pre_attn_scalar
            .filter(|s| *s > 0.0)
            .map_or(usual, |s| 1.0 / s.sqrt()),
        _ => usual,
    }
}

fn activation(name: Option<&str>, architecture: &str, refuse: Refuse<'_>) -> Result<Activation> {
    Ok(match name {
        // Gemma's first files say "gelu" and mean the other.
        Some("gelu") if architecture == "gemma" => Activation::GeluTanh,
        None => match architecture {
            "gpt2" | "gpt_bigcode" | "gpt_neo" | "gptj" | "phi" | "starcoder2" | "gemma"
            | "gemma2" | "gemma3_text" => Activation::GeluTanh,
            "gpt_neox" => Activation::Gelu,
            "opt" => Activation::Relu,
            "nemotron" => Activation::ReluSquared,
            _ => Activation::Silu,
        },
        Some("silu" | "swish") => Activation::Silu,
        Some("gelu") => Activation::Gelu,
        Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Activation::GeluTanh,
        Some("relu") => Activation::Relu,
        Some("relu2") => Activation::ReluSquared,
        Some(other) => {
            return Err(refuse(format!(
                "the activation \"{other}\" is not supported; supported: silu, gelu, gelu_new, \
                 gelu_pytorch_tanh, relu, relu2"
            )));
        }
    })
}

/// The model's own window of each layer, and how it turns.
fn layers(
    config: &Config,
    architecture: &str,
    n_layers: usize,
    positions: &Positions,
    refuse: Refuse<'_>,
) -> Result<Vec<LayerSpec>> {
    let ways = match positions {
        Positions::Rotary(ropes) => ropes.len(),
        Positions::Learned { .. } => 0,
    };
    let check = |name: &str, len: usize| {
        if len == n_layers {
            Ok(())
        } else {
            Err(refuse(format!(
                "{name} has {len} entries for {n_layers} layers"
            )))
        }
    };
    let slides: Vec<bool> = if let Some(types) = &config.layer_types {
        check("layer_types", types.len())?;
        if let Some(other) = types
            .iter()
            .find(|t| !matches!(t.as_str(), "sliding_attention" | "full_attention"))
        {
            return Err(refuse(format!(
                "layers of the type \"{other}\" are not supported"
            )));
        }
        types.iter().map(|t| t == "sliding_attention").collect()
    } else if let Some(kinds) = &config.attention_layers {
        check("attention_layers", kinds.len())?;
        kinds.iter().map(|k| k == "local").collect()
    } else {
        let every = |default: usize| config.sliding_window_pattern.unwrap_or(default).max(1);
        let first = config.max_window_layers.unwrap_or(0);
        (0..n_layers)
            .map(|layer| match architecture {
                "gemma2" => layer % 2 == 0,
                "gemma3_text" => (layer + 1) % every(6) != 0,
                "cohere2" | "olmo3" => (layer + 1) % every(4) != 0,
                "gpt_neo" => layer % 2 == 1,
                "qwen2" | "qwen3" => config.use_sliding_window == Some(true) && layer >= first,
                "mistral" | "phi3" | "starcoder2" => true,
                _ => false,
            })
            .collect()
    };
    let default_window = match architecture {
        "gpt_neo" => Some(256),
        "cohere2" | "gemma2" | "gemma3_text" | "olmo3" => Some(4096),
        _ => None,
    };
    let window = match config.sliding_window.or(default_window) {
        None => Window::Full,
        Some(keys) => Window::last(keys)
            .ok_or_else(|| refuse("sliding_window is 0; it must be at least 1".to_owned()))?,
    };
    if let Some(turns) = &config.no_rope_layers {
        check("no_rope_layers", turns.len())?;
    }
    Ok(slides
        .into_iter()
        .enumerate()
        .map(|(layer, slides)| {
            let turns = match &config.no_rope_layers {
                Some(turns) => turns[layer] != 0,
                // Layers that see everything have no positions there.
                None => architecture != "cohere2" || slides,
            };
            LayerSpec {
                reach: if slides { window } else { Window::Full },
                // The second way, where there is one, is that of layers that slide.
                rope: (ways > 0 && turns).then_some(usize::from(slides && ways > 1)),
            }
        })
        .collect())
}
