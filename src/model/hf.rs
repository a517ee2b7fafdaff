//! Hugging Face folders: `config.json`, safetensors and `tokenizer.json`.

use std::path::{Path, PathBuf};

use super::{
    Model, Tokenizer, WeightStore, architectures, config,
    mapping::{Mapped, map},
    weights::find_safetensors,
};
use crate::{Error, Result};

/// Longest `config.json` that is read.
const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// Opens a folder.
pub(super) fn open(path: &Path) -> Result<Model> {
    open_with(path, |folder| {
        let file = folder.join("tokenizer.json");
        if !file.exists() {
            return Err(Error::Tokenizer {
                origin: folder.display().to_string(),
                message: "has no tokenizer.json; make one with transformers: \
                          AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
                    .to_owned(),
            });
        }
        Tokenizer::open(&file)
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
    } else if path
        .extension()
        .is_some_and(|e| e == "bin" || e == "pt" || e == "pth")
        && path.exists()
    {
        return Err(Error::Weights {
            origin: path.display().to_string(),
            message: "is a pickled file, which may run code and is not opened; convert it with transformers: \
                      model.save_pretrained(folder, safe_serialization=True)"
                .to_owned(),
        });
    } else if path.exists() {
        return Err(Error::Config {
            origin: path.display().to_string(),
            message: "is not a model: give a folder with config.json, model.safetensors and \
                      tokenizer.json, a GGUF file, or a name on the hub"
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
    let files = match path.extension() {
        // A file that was named is the one to read, whatever lies beside it; but for a shard, which is a part.
        Some(ending) if ending == "safetensors" => {
            let all = find_safetensors(&folder).unwrap_or_default();
            let is_shard = all.len() > 1 && all.iter().any(|f| f.file_name() == path.file_name());
            if is_shard { all } else { vec![path.to_owned()] }
        }
        _ => find_safetensors(&folder)?,
    };
    let store = WeightStore::open(&files)?;
    let tokenizer = tokenizer(&folder)?.with_known_bos(mapped.bos);
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
    let Mapped { spec, layout, .. } = mapped;
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
    let config =
        config::parse(text).map_err(|e| refuse(format!("is not a model configuration ({e})")))?;
    map(&config, &refuse)
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
                r#"{sizes}, "num_hidden_layers": 2, "rope_scaling": {{"type": "wave", "factor": 4}}"#
            )))
            .contains("\"wave\" is not supported")
        );
    }
}
