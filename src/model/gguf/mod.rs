//! GGUF files, as llama.cpp and its kin write them: weights, configuration and tokenizer in one.

mod config;
mod file;
mod pre_tokenizers;
mod tokenizer;

use std::path::Path;

pub(super) use file::GgufFile;

use super::{
    Model, Tokenizer, WeightStore, architectures,
    architectures::{Family, Layout},
    mapping::{Mapped, map},
};
use crate::{Error, Result};

/// Opens a GGUF file.
pub(super) fn open(path: &Path) -> Result<Model> {
    open_with(path, tokenizer::read)
}

/// Opens a GGUF file that may lack a tokenizer.
pub(super) fn open_without_tokenizer(path: &Path) -> Result<Model> {
    open_with(path, |_, origin| Ok(Tokenizer::none(origin)))
}

fn open_with(
    path: &Path,
    tokenizer: impl FnOnce(&GgufFile<'_>, &str) -> Result<Tokenizer>,
) -> Result<Model> {
    let store = WeightStore::open_gguf(path)?;
    let (origin, bytes) = store.first_file();
    let file = GgufFile::parse(origin, bytes)?;
    let refuse = |message: String| Error::Config {
        origin: origin.to_owned(),
        message,
    };
    if file.tensors.is_empty() {
        return Err(refuse(
            "has a vocabulary only, and no weights: `headscope tokens` can use it".to_owned(),
        ));
    }
    if let Some(parts) = file.unsigned("split.count").filter(|&n| n > 1) {
        return Err(refuse(format!(
            "is one of {parts} parts of a model; join them with llama-gguf-split --merge"
        )));
    }
    let config = config::read(&file, &refuse)?;
    let Mapped { spec, layout, .. } = map(&config, &refuse)?;
    let layout = Layout {
        family: Family::Gguf,
        // Norms of the Gemma kind are written with the 1 added.
        norms_plus_one: false,
        ..layout
    };
    let spec = config::adjust(&file, spec, &refuse)?;
    config::check_tensors(&file, &spec, &refuse)?;
    let weights = architectures::load(&store, &spec, layout)?;
    let tokenizer = tokenizer(&file, origin)?;
    let name = path
        .file_stem()
        .map_or_else(|| origin.to_owned(), |n| n.to_string_lossy().into_owned());
    Ok(Model {
        name,
        spec,
        weights,
        tokenizer,
    })
}

/// The tokenizer of a GGUF file, which need not hold anything else.
pub(super) fn open_tokenizer(path: &Path) -> Result<(Tokenizer, usize)> {
    let store = WeightStore::open_gguf(path)?;
    let (origin, bytes) = store.first_file();
    let file = GgufFile::parse(origin, bytes)?;
    let size = file
        .array("tokenizer.ggml.tokens")
        .map_or(0, |tokens| tokens.len());
    Ok((tokenizer::read(&file, origin)?, size))
}
