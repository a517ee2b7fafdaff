//! Hugging Face folders: from `config.json` to a [`ModelSpec`] and the weights it asks for.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{
    Activation, LayerSpec, Model, ModelSpec, NormKind, Positions, RopeScaling, RopeSpec, Tokenizer,
    WeightStore,
    architectures::{self, Family, Layout, NormPlaces, QkNormWidth},
    weights::find_safetensors,
};
use crate::{Error, Result, attention::Window};

/// Bounds that no real model reaches; beyond them a file is refused before memory is taken.
const MAX_LAYERS: usize = 1_000;
const MAX_WIDTH: usize = 1 << 20;
const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// `config.json`: the keys that any supported architecture reads; other names of them are in [`OTHER_NAMES`], other keys
/// are ignored.
#[derive(Debug, Deserialize)]
struct Config {
    model_type: Option<String>,
    vocab_size: Option<usize>,
    hidden_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: Option<usize>,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f32>,
    hidden_act: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    rotary_pct: Option<f64>,
    rotary_emb_base: Option<f64>,
    /// transformers 5.
    rope_parameters: Option<RopeParameters>,
    /// transformers 4.
    rope_scaling: Option<RopeParameters>,
    attention_bias: Option<bool>,
    #[serde(default)]
    mlp_bias: bool,
    use_bias: Option<bool>,
    enable_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    use_parallel_residual: Option<bool>,
    do_layer_norm_before: Option<bool>,
    word_embed_proj_dim: Option<usize>,
    scale_attn_by_inverse_layer_idx: Option<bool>,
    scale_attn_weights: Option<bool>,
    sliding_window: Option<usize>,
    /// "sliding_attention" or "full_attention" for each layer.
    layer_types: Option<Vec<String>>,
    /// GPT-Neo: "global" or "local" for each layer.
    attention_layers: Option<Vec<String>>,
    /// Every so many layers one is full.
    sliding_window_pattern: Option<usize>,
    /// From this layer on windows slide.
    max_window_layers: Option<usize>,
    rope_local_base_freq: Option<f64>,
    query_pre_attn_scalar: Option<f32>,
    attn_logit_softcapping: Option<f32>,
    final_logit_softcapping: Option<f32>,
    use_sliding_window: Option<bool>,
    /// 1 for layers that turn, 0 for others.
    no_rope_layers: Option<Vec<u8>>,
}

#[derive(Debug, Deserialize)]
struct RopeParameters {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    /// Where kinds of layers differ.
    full_attention: Option<Box<RopeParameters>>,
    sliding_attention: Option<Box<RopeParameters>>,
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
        &["layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"],
    ),
    ("hidden_act", &["hidden_activation", "activation_function"]),
    ("sliding_window", &["window_size"]),
    ("sliding_window_pattern", &["_sliding_window_pattern"]),
];

/// Reads a configuration under the keys of [`Config`].
fn parse(text: &[u8]) -> serde_json::Result<Config> {
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

/// A spec, and how its weights lie in the file.
pub(super) struct Mapped {
    pub spec: ModelSpec,
    pub layout: Layout,
}

/// The architectures that are read, by their `model_type`.
const SUPPORTED: &str = "gemma2, gemma3_text, gpt2, gpt_neo, gpt_neox, llama, mistral, olmo2, opt, phi3, \
                         qwen2, qwen3, smollm3, starcoder2";

/// Opens a folder.
pub(super) fn open(path: &Path) -> Result<Model> {
    open_with(path, |folder| {
        Tokenizer::open(&folder.join("tokenizer.json"))
    })
}

/// Opens a folder that may lack a tokenizer.
pub(super) fn open_without_tokenizer(path: &Path) -> Result<Model> {
    open_with(path, |folder| {
        Ok(Tokenizer::none(&folder.display().to_string()))
    })
}

fn open_with(path: &Path, tokenizer: impl FnOnce(&Path) -> Result<Tokenizer>) -> Result<Model> {
    let folder: PathBuf = if path.is_dir() {
        path.to_owned()
    } else if path.extension().is_some_and(|e| e == "safetensors") || path.ends_with("config.json")
    {
        path.parent().unwrap_or(Path::new(".")).to_owned()
    } else if path.exists() {
        return Err(Error::Config {
            origin: path.display().to_string(),
            message: "is not a model: give a folder with config.json, model.safetensors and \
                      tokenizer.json"
                .to_owned(),
        });
    } else {
        return Err(Error::io("open", path, std::io::ErrorKind::NotFound.into()));
    };
    let config_path = folder.join("config.json");
    let size = std::fs::metadata(&config_path)
        .map_err(|e| Error::io("read", &config_path, e))?
        .len();
    let origin = config_path.display().to_string();
    if size > MAX_CONFIG_BYTES {
        return Err(Error::Config {
            origin,
            message: format!("is {size} bytes long, which no configuration is"),
        });
    }
    let config = std::fs::read(&config_path).map_err(|e| Error::io("read", &config_path, e))?;
    let mapped = map_config(&config, &origin)?;
    let store = WeightStore::open(&find_safetensors(&folder)?)?;
    let tokenizer = tokenizer(&folder)?;
    let name = folder
        .canonicalize()
        .ok()
        .and_then(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()))
        .unwrap_or_else(|| folder.display().to_string());
    assemble(name, mapped, &store, tokenizer)
}

/// Reads the weights that a spec asks for.
pub(super) fn assemble(
    name: String,
    mapped: Mapped,
    store: &WeightStore,
    tokenizer: Tokenizer,
) -> Result<Model> {
    let Mapped { spec, layout } = mapped;
    let weights = architectures::load(store, &spec, layout)?;
    Ok(Model {
        name,
        spec,
        weights,
        tokenizer,
    })
}

/// From the text of `config.json` to a spec.
pub(super) fn map_config(text: &[u8], origin: &str) -> Result<Mapped> {
    let refuse = |message: String| Error::Config {
        origin: origin.to_owned(),
        message,
    };
    let config: Config =
        parse(text).map_err(|e| refuse(format!("is not a model configuration ({e})")))?;
    let architecture = config
        .model_type
        .clone()
        .ok_or_else(|| refuse("has no model_type".to_owned()))?;
    let layout = layout(&architecture, &config, &refuse)?;
    let spec = spec(&config, architecture, layout.family, &refuse)?;
    Ok(Mapped { spec, layout })
}

/// How each architecture lays out its weights; what of it is not supported is named.
fn layout(architecture: &str, config: &Config, refuse: &dyn Fn(String) -> Error) -> Result<Layout> {
    let plain = Layout {
        family: Family::Llama,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        qk_norm: None,
        norms: NormPlaces::Before,
        norms_plus_one: false,
        plain_mlp: None,
    };
    let attention_bias = config.attention_bias.unwrap_or(false);
    let biased = Layout {
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        ..plain
    };
    let unsupported = |what: &str| {
        Err(refuse(format!(
            "{architecture} with {what} is not supported yet"
        )))
    };
    Ok(match architecture {
        "llama" | "smollm3" | "mistral" => Layout {
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            mlp_bias: config.mlp_bias,
            ..plain
        },
        "qwen2" => Layout {
            qkv_bias: true,
            ..plain
        },
        "qwen3" => Layout {
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            qk_norm: Some(QkNormWidth::Head),
            ..plain
        },
        "olmo2" => Layout {
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            qk_norm: Some(QkNormWidth::All),
            norms: NormPlaces::After,
            ..plain
        },
        "phi3" => Layout {
            family: Family::Phi3,
            ..plain
        },
        "starcoder2" => {
            let has_bias = config.use_bias.unwrap_or(true);
            Layout {
                qkv_bias: has_bias,
                output_bias: has_bias,
                mlp_bias: has_bias,
                plain_mlp: Some(("c_fc", "c_proj")),
                ..plain
            }
        }
        "gemma2" | "gemma3_text" => Layout {
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            qk_norm: (architecture == "gemma3_text").then_some(QkNormWidth::Head),
            norms: NormPlaces::Both,
            norms_plus_one: true,
            ..plain
        },
        "gpt_neo" => Layout {
            family: Family::GptNeo,
            ..plain
        },
        "gpt2" => {
            if config.scale_attn_by_inverse_layer_idx == Some(true) {
                return unsupported("scale_attn_by_inverse_layer_idx");
            }
            Layout {
                family: Family::Gpt2,
                ..biased
            }
        }
        "gpt_neox" => Layout {
            family: Family::GptNeox,
            qkv_bias: config.attention_bias.unwrap_or(true),
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
                ..biased
            }
        }
        other => {
            return Err(refuse(format!(
                "model_type \"{other}\" is not supported yet; supported: {SUPPORTED}"
            )));
        }
    })
}

fn spec(
    config: &Config,
    architecture: String,
    family: Family,
    refuse: &dyn Fn(String) -> Error,
) -> Result<ModelSpec> {
    let bounded = |name: &str, value: Option<usize>, most: usize| match value {
        None => Err(refuse(format!("has no {name}"))),
        Some(n) if n == 0 || n > most => Err(refuse(format!(
            "{name} is {n}; it must be from 1 to {most}"
        ))),
        Some(n) => Ok(n),
    };
    let hidden = bounded("hidden_size", config.hidden_size, MAX_WIDTH)?;
    let n_heads = bounded("num_attention_heads", config.num_attention_heads, MAX_WIDTH)?;
    let n_kv_heads = bounded(
        "num_key_value_heads",
        config.num_key_value_heads.or(Some(n_heads)),
        n_heads,
    )?;
    let head_dim = bounded("head_dim", config.head_dim.or(Some(hidden / n_heads)), 1024)?;
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
    // The fused layouts split the residual stream evenly.
    let is_fused = matches!(
        family,
        Family::Gpt2 | Family::GptNeo | Family::GptNeox | Family::Opt
    );
    if is_fused && (n_heads * head_dim != hidden || n_kv_heads != n_heads) {
        return Err(refuse(format!(
            "{n_heads} heads of {head_dim} do not make up the hidden_size {hidden}"
        )));
    }
    let has_layer_norm = is_fused || architecture == "starcoder2";
    let positions = match family {
        Family::Gpt2 | Family::GptNeo | Family::Opt => Positions::Learned {
            // The rows of padding come first in OPT.
            offset: if family == Family::Opt { 2 } else { 0 },
            rows: context,
        },
        Family::Llama | Family::Phi3 | Family::GptNeox => {
            Positions::Rotary(ropes(config, head_dim, family, refuse)?)
        }
    };
    let layers = layers(config, &architecture, n_layers, &positions, refuse)?;
    let activation = activation(config.hidden_act.as_deref(), family, refuse)?;
    let is_gemma = matches!(architecture.as_str(), "gemma2" | "gemma3_text");
    let is_unscaled = family == Family::GptNeo
        || (family == Family::Gpt2 && config.scale_attn_weights == Some(false));
    let attention_scale = if is_unscaled {
        1.0
    } else {
        let scalar = config
            .query_pre_attn_scalar
            .filter(|s| is_gemma && *s > 0.0);
        1.0 / scalar.unwrap_or(head_dim as f32).sqrt()
    };
    let is_tied_by_default = is_gemma
        || matches!(family, Family::Gpt2 | Family::GptNeo | Family::Opt)
        || matches!(architecture.as_str(), "smollm3" | "starcoder2");
    Ok(ModelSpec {
        vocab_size: bounded("vocab_size", config.vocab_size, 1 << 24)?,
        hidden,
        n_layers,
        n_heads,
        n_kv_heads,
        head_dim,
        ffn_hidden: bounded(
            "intermediate_size",
            config
                .intermediate_size
                .or(matches!(family, Family::Gpt2 | Family::GptNeo).then_some(4 * hidden)),
            MAX_WIDTH,
        )?,
        context,
        norm: if has_layer_norm {
            NormKind::Layer
        } else {
            NormKind::Rms
        },
        norm_eps: config
            .rms_norm_eps
            .unwrap_or(if has_layer_norm { 1e-5 } else { 1e-6 }),
        positions,
        layers,
        embedding_scale: if is_gemma {
            (hidden as f32).sqrt()
        } else {
            1.0
        },
        attention_softcap: config.attn_logit_softcapping.filter(|_| is_gemma),
        logit_softcap: config.final_logit_softcapping.filter(|_| is_gemma),
        activation,
        parallel: family == Family::GptNeox && config.use_parallel_residual.unwrap_or(true),
        attention_scale,
        tied_head: config.tie_word_embeddings.unwrap_or(is_tied_by_default),
        architecture,
    })
}

fn activation(
    name: Option<&str>,
    family: Family,
    refuse: &dyn Fn(String) -> Error,
) -> Result<Activation> {
    Ok(match name {
        None => match family {
            Family::Gpt2 | Family::GptNeo => Activation::GeluTanh,
            Family::GptNeox => Activation::Gelu,
            Family::Opt => Activation::Relu,
            Family::Llama | Family::Phi3 => Activation::Silu,
        },
        Some("silu" | "swish") => Activation::Silu,
        Some("gelu") => Activation::Gelu,
        Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Activation::GeluTanh,
        Some("relu") => Activation::Relu,
        Some(other) => {
            return Err(refuse(format!(
                "the activation \"{other}\" is not supported yet"
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
    refuse: &dyn Fn(String) -> Error,
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
        types.iter().map(|t| t == "sliding_attention").collect()
    } else if let Some(kinds) = &config.attention_layers {
        check("attention_layers", kinds.len())?;
        kinds.iter().map(|k| k == "local").collect()
    } else {
        let pattern = config.sliding_window_pattern.unwrap_or(6).max(1);
        let first = config.max_window_layers.unwrap_or(0);
        (0..n_layers)
            .map(|layer| match architecture {
                "gemma2" => layer % 2 == 0,
                "gemma3_text" => (layer + 1) % pattern != 0,
                "gpt_neo" => layer % 2 == 1,
                "qwen2" | "qwen3" => config.use_sliding_window == Some(true) && layer >= first,
                "mistral" | "phi3" | "starcoder2" => true,
                _ => false,
            })
            .collect()
    };
    let default_window = (architecture == "gpt_neo").then_some(256);
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
            let turns = config.no_rope_layers.as_ref().is_none_or(|l| l[layer] != 0);
            LayerSpec {
                reach: if slides { window } else { Window::Full },
                // The second way, where there is one, is that of layers that slide.
                rope: (ways > 0 && turns).then_some(usize::from(slides && ways > 1)),
            }
        })
        .collect())
}

/// The rotary ways of a model: one, or one for full and one for sliding layers.
fn ropes(
    config: &Config,
    head_dim: usize,
    family: Family,
    refuse: &dyn Fn(String) -> Error,
) -> Result<Vec<RopeSpec>> {
    let parameters = config.rope_parameters.as_ref();
    let by_kind = parameters.and_then(|p| {
        p.full_attention
            .as_deref()
            .zip(p.sliding_attention.as_deref())
    });
    if let Some((full, sliding)) = by_kind {
        return [full, sliding]
            .into_iter()
            .map(|p| rope(config, Some(p), head_dim, family, refuse))
            .collect();
    }
    let parameters = parameters.or(config.rope_scaling.as_ref());
    let mut ropes = vec![rope(config, parameters, head_dim, family, refuse)?];
    if let Some(theta) = config.rope_local_base_freq {
        ropes.push(RopeSpec {
            theta,
            scaling: RopeScaling::Default,
            ..ropes[0].clone()
        });
    }
    Ok(ropes)
}

fn rope(
    config: &Config,
    parameters: Option<&RopeParameters>,
    head_dim: usize,
    family: Family,
    refuse: &dyn Fn(String) -> Error,
) -> Result<RopeSpec> {
    let theta = parameters
        .and_then(|p| p.rope_theta)
        .or(config.rope_theta)
        .or(config.rotary_emb_base)
        .unwrap_or(10_000.0);
    let need = |name: &str, value: Option<f64>| match value {
        Some(v) if v.is_finite() && v > 0.0 => Ok(v),
        Some(v) => Err(refuse(format!(
            "the rotary {name} is {v}; it must be above 0"
        ))),
        None => Err(refuse(format!("the rotary scaling has no {name}"))),
    };
    need("theta", Some(theta))?;
    let share = parameters
        .and_then(|p| p.partial_rotary_factor)
        .or(config.partial_rotary_factor)
        .or(config.rotary_pct)
        .unwrap_or(if family == Family::GptNeox { 0.25 } else { 1.0 });
    if !(0.0..=1.0).contains(&share) {
        return Err(refuse(format!(
            "the rotary share of a head is {share}; it must be from 0 to 1"
        )));
    }
    let rotary_dim = (head_dim as f64 * share) as usize;
    if rotary_dim.next_multiple_of(2) > head_dim {
        return Err(refuse(format!(
            "rotary positions turn pairs of dimensions, but a head has {head_dim}"
        )));
    }
    let kind = parameters.and_then(|p| p.rope_type.as_deref());
    let scaling = match (kind, parameters) {
        (None | Some("default"), _) | (_, None) => RopeScaling::Default,
        (Some("linear"), Some(p)) => RopeScaling::Linear {
            factor: need("factor", p.factor)?,
        },
        (Some("llama3"), Some(p)) => RopeScaling::Llama3 {
            factor: need("factor", p.factor)?,
            low_freq_factor: need("low_freq_factor", p.low_freq_factor)?,
            high_freq_factor: need("high_freq_factor", p.high_freq_factor)?,
            original_context: need(
                "original_max_position_embeddings",
                p.original_max_position_embeddings,
            )?,
        },
        (Some(other), _) => {
            return Err(refuse(format!(
                "rotary scaling \"{other}\" is not supported yet"
            )));
        }
    };
    Ok(RopeSpec {
        rotary_dim,
        theta,
        scaling,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(config: &str) -> String {
        match map_config(config.as_bytes(), "config.json") {
            Ok(_) => panic!("{config} was accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn refusals_name_what_is_wrong() {
        assert!(message("{").contains("not a model configuration"));
        assert!(message("{}").contains("no model_type"));
        assert!(message(r#"{"model_type": "mamba"}"#).contains("\"mamba\" is not supported"));
        let llama = |rest: &str| format!(r#"{{"model_type": "llama", {rest}}}"#);
        assert!(message(&llama(r#""hidden_size": 0"#)).contains("hidden_size is 0"));
        let sizes = r#""hidden_size": 64, "num_attention_heads": 4, "vocab_size": 10, "intermediate_size": 8"#;
        assert!(
            message(&llama(&format!(
                r#"{sizes}, "num_hidden_layers": 1000000000000"#
            )))
            .contains("num_hidden_layers is 1000000000000")
        );
        assert!(
            message(&llama(&format!(
                r#"{sizes}, "num_hidden_layers": 2, "num_key_value_heads": 3"#
            )))
            .contains("not a multiple")
        );
        assert!(
            message(&llama(&format!(
                r#"{sizes}, "num_hidden_layers": 2, "rope_scaling": {{"type": "yarn", "factor": 4}}"#
            )))
            .contains("\"yarn\" is not supported")
        );
    }
}
