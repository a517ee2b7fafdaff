//! Hugging Face folders: from `config.json` to a [`ModelSpec`] and the weights it asks for.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{
    Activation, Model, ModelSpec, RopeScaling, RopeSpec, Tokenizer, WeightStore,
    decoder::{Biases, DecoderWeights},
    weights::find_safetensors,
};
use crate::{Error, Result};

/// Bounds that no real model reaches; beyond them a file is refused before memory is taken.
const MAX_LAYERS: usize = 1_000;
const MAX_WIDTH: usize = 1 << 20;
const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// `config.json` as Llama-style models write it; other keys are ignored.
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
    /// transformers 5.
    rope_parameters: Option<RopeParameters>,
    /// transformers 4.
    rope_scaling: Option<RopeParameters>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
}

#[derive(Debug, Deserialize)]
struct RopeParameters {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

/// A spec, and which of its linear layers have biases.
pub(super) struct Mapped {
    pub spec: ModelSpec,
    pub biases: Biases,
}

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
    let Mapped { spec, biases } = mapped;
    let weights = DecoderWeights::load_llama(store, &spec, biases)?;
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
    let config: Config = serde_json::from_slice(text)
        .map_err(|e| refuse(format!("is not a model configuration ({e})")))?;
    let architecture = config
        .model_type
        .clone()
        .ok_or_else(|| refuse("has no model_type".to_owned()))?;
    match architecture.as_str() {
        "llama" => llama(config, architecture, &refuse),
        other => Err(refuse(format!(
            "model_type \"{other}\" is not supported yet; supported: llama"
        ))),
    }
}

fn llama(config: Config, architecture: String, refuse: &dyn Fn(String) -> Error) -> Result<Mapped> {
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
    if n_heads % n_kv_heads != 0 {
        return Err(refuse(format!(
            "num_attention_heads ({n_heads}) is not a multiple of num_key_value_heads ({n_kv_heads})"
        )));
    }
    if head_dim % 2 != 0 {
        return Err(refuse(format!(
            "head_dim is {head_dim}; rotary positions need an even one"
        )));
    }
    let activation = match config.hidden_act.as_deref() {
        None | Some("silu" | "swish") => Activation::Silu,
        Some(other) => {
            return Err(refuse(format!(
                "hidden_act \"{other}\" is not supported yet"
            )));
        }
    };
    let spec = ModelSpec {
        architecture,
        vocab_size: bounded("vocab_size", config.vocab_size, 1 << 24)?,
        hidden,
        n_layers: bounded("num_hidden_layers", config.num_hidden_layers, MAX_LAYERS)?,
        n_heads,
        n_kv_heads,
        head_dim,
        ffn_hidden: bounded("intermediate_size", config.intermediate_size, MAX_WIDTH)?,
        context: bounded(
            "max_position_embeddings",
            config.max_position_embeddings.or(Some(2048)),
            1 << 30,
        )?,
        norm_eps: config.rms_norm_eps.unwrap_or(1e-6),
        rope: rope(&config, refuse)?,
        activation,
        attention_scale: 1.0 / (head_dim as f32).sqrt(),
        tied_head: config.tie_word_embeddings,
    };
    let biases = Biases {
        attention: config.attention_bias,
        mlp: config.mlp_bias,
    };
    Ok(Mapped { spec, biases })
}

fn rope(config: &Config, refuse: &dyn Fn(String) -> Error) -> Result<RopeSpec> {
    let parameters = config
        .rope_parameters
        .as_ref()
        .or(config.rope_scaling.as_ref());
    let theta = parameters
        .and_then(|p| p.rope_theta)
        .or(config.rope_theta)
        .unwrap_or(10_000.0);
    let need = |name: &str, value: Option<f64>| match value {
        Some(v) if v.is_finite() && v > 0.0 => Ok(v),
        Some(v) => Err(refuse(format!(
            "the rotary {name} is {v}; it must be above 0"
        ))),
        None => Err(refuse(format!("the rotary scaling has no {name}"))),
    };
    need("theta", Some(theta))?;
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
    Ok(RopeSpec { theta, scaling })
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
