//! From a GGUF file's metadata to a configuration.

use super::file::{GgufFile, Value};
use crate::{
    Result,
    model::{
        ModelSpec, NormKind, Positions, RopeScaling, RopeSpec,
        config::{Config, RopeParameters},
        mapping::Refuse,
    },
};

/// llama.cpp's names of architectures, and Hugging Face's.
const ARCHITECTURES: &[(&str, &str)] = &[
    ("command-r", "cohere"),
    ("cohere2", "cohere2"),
    ("ernie4_5", "ernie4_5"),
    ("gemma", "gemma"),
    ("gemma2", "gemma2"),
    ("gemma3", "gemma3_text"),
    ("glm4", "glm4"),
    ("gpt2", "gpt2"),
    ("gptj", "gptj"),
    ("gptneox", "gpt_neox"),
    ("granite", "granite"),
    ("llama", "llama"),
    ("nemotron", "nemotron"),
    ("olmo", "olmo"),
    ("olmo2", "olmo2"),
    ("phi2", "phi"),
    ("phi3", "phi3"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("seed_oss", "seed_oss"),
    ("smollm3", "smollm3"),
    ("stablelm", "stablelm"),
    ("starcoder", "gpt_bigcode"),
    ("starcoder2", "starcoder2"),
];

/// Architectures whose rotated dimensions lie as neighbours in GGUF files, whatever the original had.
const INTERLEAVED: &[&str] = &[
    "command-r",
    "cohere2",
    "ernie4_5",
    "glm4",
    "gptj",
    "granite",
    "llama",
    "olmo",
    "smollm3",
];

/// Parts of tensor names in a block, and outside.
const BLOCK_PARTS: &[&str] = &[
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "attn_q_norm",
    "attn_k_norm",
    "post_attention_norm",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "post_ffw_norm",
    // Frequencies that some files repeat in every block.
    "attn_rot_embd",
    "rope_freqs",
];
const OTHER_PARTS: &[&str] = &[
    "token_embd",
    "position_embd",
    "output_norm",
    "output",
    "rope_freqs",
    "rope_factors_long",
    "rope_factors_short",
];

/// The configuration that the metadata amounts to, under Hugging Face's keys.
pub(super) fn read(file: &GgufFile<'_>, refuse: Refuse<'_>) -> Result<Config> {
    let architecture = file
        .text("general.architecture")
        .ok_or_else(|| refuse("has no general.architecture".to_owned()))?;
    let model_type = ARCHITECTURES
        .iter()
        .find(|(name, _)| *name == architecture)
        // What has no mapping gets its refusal where all do.
        .map_or(architecture, |(_, model_type)| model_type);
    let key = |name: &str| format!("{architecture}.{name}");
    let unsigned = |name: &str| file.unsigned(&key(name)).map(|n| n as usize);
    let float = |name: &str| file.float(&key(name));
    let above_zero = |name: &str| float(name).filter(|v| *v > 0.0);
    let heads = unsigned("attention.head_count");
    let mut config = Config {
        model_type: Some(model_type.to_owned()),
        vocab_size: file
            .tensor("token_embd.weight")
            .and_then(|t| t.shape.first().copied()),
        hidden_size: unsigned("embedding_length"),
        num_hidden_layers: unsigned("block_count"),
        num_attention_heads: heads,
        num_key_value_heads: unsigned("attention.head_count_kv"),
        intermediate_size: unsigned("feed_forward_length"),
        max_position_embeddings: unsigned("context_length"),
        rms_norm_eps: float("attention.layer_norm_rms_epsilon")
            .or_else(|| float("attention.layer_norm_epsilon"))
            .map(|v| v as f32),
        attn_logit_softcapping: above_zero("attn_logit_softcapping").map(|v| v as f32),
        final_logit_softcapping: above_zero("final_logit_softcapping").map(|v| v as f32),
        use_parallel_residual: file.flag(&key("use_parallel_residual")),
        embedding_multiplier: above_zero("embedding_scale").map(|v| v as f32),
        residual_multiplier: above_zero("residual_scale").map(|v| v as f32),
        attention_multiplier: above_zero("attention.scale").map(|v| v as f32),
        clip_qkv: above_zero("attention.clamp_kqv").map(|v| v as f32),
        sliding_window: unsigned("attention.sliding_window").filter(|&n| n > 0),
        tie_word_embeddings: Some(file.tensor("output.weight").is_none()),
        // What the format fixes.
        multi_query: Some(true),
        ..Config::default()
    };
    let logit_scale = above_zero("logit_scale").map(|v| v as f32);
    config.logits_scaling = logit_scale;
    config.logit_scale = logit_scale;
    config.experts.num_experts = unsigned("expert_count");
    for name in [
        "attention.head_count",
        "attention.head_count_kv",
        "feed_forward_length",
    ] {
        if file.array(&key(name)).is_some() {
            return Err(refuse(format!(
                "{} differs from layer to layer, which is not supported",
                key(name)
            )));
        }
    }
    config.head_dim = unsigned("attention.key_length")
        .or_else(|| Some(config.hidden_size? / heads.filter(|&n| n > 0)?));
    if let (Some(keys), Some(values)) = (config.head_dim, unsigned("attention.value_length"))
        && keys != values
    {
        return Err(refuse(format!(
            "its keys are {keys} wide and its values {values}, which is not supported"
        )));
    }
    if architecture == "starcoder" {
        // One matrix holds queries, and one key and value for all.
        config.num_key_value_heads = None;
    }
    // The files do not say that the largest Gemmas scale their scores by the width per head, not by a head's.
    let is_large_gemma = matches!(
        (architecture, config.num_hidden_layers),
        ("gemma2", Some(46)) | ("gemma3", Some(62))
    );
    if let (true, Some(hidden), Some(heads)) = (is_large_gemma, config.hidden_size, heads)
        && heads > 0
    {
        config.query_pre_attn_scalar = Some((hidden / heads) as f32);
    }
    if architecture == "nemotron" {
        config.hidden_act = Some("relu2".to_owned());
    }
    windows(file, &key, &mut config, refuse)?;
    rotary(file, &key, &mut config, refuse)?;
    Ok(config)
}

/// Which layers have the model's own window.
fn windows(
    file: &GgufFile<'_>,
    key: &dyn Fn(&str) -> String,
    config: &mut Config,
    refuse: Refuse<'_>,
) -> Result<()> {
    let name = key("attention.sliding_window_pattern");
    if let Some(pattern) = file.array(&name) {
        let layers = config.num_hidden_layers.unwrap_or(0);
        if pattern.len() != layers {
            return Err(refuse(format!(
                "{name} has {} entries for {layers} layers",
                pattern.len()
            )));
        }
        let types = pattern.values().map(|v| match v {
            Value::Bool(false) | Value::Unsigned(0) => "full_attention",
            _ => "sliding_attention",
        });
        config.layer_types = Some(types.map(str::to_owned).collect());
    } else if let Some(every) = file.unsigned(&name) {
        config.sliding_window_pattern = Some(every as usize);
    }
    Ok(())
}

fn rotary(
    file: &GgufFile<'_>,
    key: &dyn Fn(&str) -> String,
    config: &mut Config,
    refuse: Refuse<'_>,
) -> Result<()> {
    let float = |name: &str| file.float(&key(name));
    config.rope_theta = float("rope.freq_base");
    config.rotary_dim = file
        .unsigned(&key("rope.dimension_count"))
        .map(|n| n as usize);
    config.rope_local_base_freq = match config.model_type.as_deref() {
        // Not always written.
        Some("gemma3_text") => Some(float("rope.freq_base_swa").unwrap_or(10_000.0)),
        _ => None,
    };
    let original = float("rope.scaling.original_context_length").filter(|v| *v > 0.0);
    let factor = float("rope.scaling.factor")
        .or_else(|| float("rope.scale_linear"))
        .filter(|v| *v > 0.0);
    let kind = match file.text(&key("rope.scaling.type")) {
        None | Some("none") => {
            if factor.is_some_and(|f| f != 1.0) {
                "linear"
            } else {
                "default"
            }
        }
        // The divisors, which are tensors, come later.
        Some("longrope") => "default",
        Some(kind @ ("linear" | "yarn")) => kind,
        Some(other) => {
            return Err(refuse(format!(
                "rotary scaling \"{other}\" is not supported; supported in GGUF: none, linear, yarn, longrope"
            )));
        }
    };
    config.rope_parameters = Some(RopeParameters {
        rope_type: Some(kind.to_owned()),
        factor,
        original_max_position_embeddings: original,
        attention_factor: float("rope.scaling.attn_factor")
            .filter(|_| kind == "yarn")
            .map(|f| {
                // Here it comes on top of the usual one.
                f * (0.1 * factor.unwrap_or(1.0).max(1.0).ln() + 1.0)
            }),
        beta_fast: float("rope.scaling.yarn_beta_fast"),
        beta_slow: float("rope.scaling.yarn_beta_slow"),
        ..RopeParameters::default()
    });
    Ok(())
}

/// What the tensors say of a spec.
pub(super) fn adjust(
    file: &GgufFile<'_>,
    mut spec: ModelSpec,
    refuse: Refuse<'_>,
) -> Result<ModelSpec> {
    let architecture = file.text("general.architecture").unwrap_or_default();
    let key = |name: &str| format!("{architecture}.{name}");
    let divisors = |name: &str, width: usize| -> Result<Option<Vec<f64>>> {
        file.tensor(name)
            .map(|tensor| {
                let values = file.small_values(tensor).ok_or_else(|| {
                    refuse(format!(
                        "the tensor {name} is not a short list of F32 numbers"
                    ))
                })?;
                if values.len() != width || !values.iter().all(|v| v.is_finite() && *v > 0.0) {
                    return Err(refuse(format!(
                        "the tensor {name} should be {width} numbers above 0"
                    )));
                }
                Ok(values)
            })
            .transpose()
    };
    if let Positions::Rotary(ropes) = &mut spec.positions {
        let width = |rope: &RopeSpec| rope.rotary_dim.div_ceil(2);
        for rope in ropes.iter_mut() {
            rope.interleaved = INTERLEAVED.contains(&architecture);
        }
        if let Some(rope) = ropes.first_mut() {
            let original = file
                .float(&key("rope.scaling.original_context_length"))
                .unwrap_or(spec.context as f64);
            if let Some(all) = divisors("rope_freqs.weight", width(rope))? {
                // Llama 3.1's change of frequencies, worked out.
                rope.scaling = RopeScaling::LongRope {
                    short: all.clone(),
                    long: all,
                    original_context: original,
                    amplitude: 1.0,
                };
            }
            let short = divisors("rope_factors_short.weight", width(rope))?;
            let long = divisors("rope_factors_long.weight", width(rope))?;
            if let Some((short, long)) = short.zip(long) {
                let amplitude = file
                    .float(&key("rope.scaling.attn_factor"))
                    .filter(|v| v.is_finite() && *v > 0.0)
                    .unwrap_or(1.0);
                rope.scaling = RopeScaling::LongRope {
                    short,
                    long,
                    original_context: original,
                    amplitude,
                };
            }
        }
    }
    // The file is clearer about its norms than its architecture's name.
    if file
        .float(&key("attention.layer_norm_rms_epsilon"))
        .is_some()
    {
        spec.norm = NormKind::Rms;
    }
    Ok(spec)
}

/// Refuses a file with tensors that would not be read: it is something else than its name says.
pub(super) fn check_tensors(
    file: &GgufFile<'_>,
    spec: &ModelSpec,
    refuse: Refuse<'_>,
) -> Result<()> {
    for tensor in &file.tensors {
        let name = tensor.name.as_str();
        let base = name
            .strip_suffix(".weight")
            .or_else(|| name.strip_suffix(".bias"))
            .unwrap_or(name);
        let known = match base
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'))
        {
            Some((layer, part)) => {
                layer
                    .parse()
                    .is_ok_and(|layer: usize| layer < spec.n_layers)
                    && BLOCK_PARTS.contains(&part)
            }
            None => OTHER_PARTS.contains(&base),
        };
        if !known {
            return Err(refuse(format!(
                "has the tensor {name}, which a {} does not have here: this kind of it is not supported",
                spec.architecture
            )));
        }
    }
    Ok(())
}
