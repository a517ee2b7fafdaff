//! Models: what a decoder is ([`ModelSpec`]), where its weights and its tokenizer come from.
//!
//! An architecture is a *mapping* from a file's configuration and tensor names to the spec and the weights; the
//! forward pass in [`crate::engine`] is one for all.

mod architectures;
mod config;
mod decoder;
mod embedded;
mod gguf;
mod hf;
mod hub;
mod mapping;
mod rotary;
mod sentence_piece;
mod spec;
mod tokenizer;
mod weights;

use std::{path::Path, sync::Arc};

pub use decoder::{BlockWeights, DecoderWeights, Linear, Norm, QkNorm};
pub use embedded::{SAMPLES, Sample, built_in};
pub use hub::{HubName, HubProgress, HubSettings, OnProgress, fetch};
pub use spec::{Activation, LayerSpec, ModelSpec, NormKind, Positions, RopeScaling, RopeSpec};
pub use tokenizer::{Bos, Cluster, TokenizedText, Tokenizer, visible};
pub use weights::WeightStore;

use crate::Result;

/// A model that is ready to run: spec, weights and tokenizer.
#[derive(Debug)]
pub struct Model {
    /// What people call it: the folder's name, or "built-in".
    pub name: String,
    /// What the decoder is.
    pub spec: ModelSpec,
    /// Its weights, in f32.
    pub weights: DecoderWeights,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
}

impl Model {
    /// Opens a Hugging Face folder (`config.json`, safetensors in one file or in shards with an index, and
    /// `tokenizer.json`), one of its files, or a GGUF file.
    ///
    /// # Errors
    /// One sentence that says which file lacks what.
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        if is_gguf(path) {
            return gguf::open(path).map(Arc::new);
        }
        hf::open(path).map(Arc::new)
    }

    /// Opens what a user names: a path, or a model on the hub (`owner/name`), which is fetched where it is not there.
    ///
    /// # Errors
    /// As [`Self::open`] and [`fetch`].
    pub fn open_named(name: &Path, progress: OnProgress<'_>) -> Result<Arc<Self>> {
        let Some(hub_name) = hub_name(name) else {
            return Self::open(name);
        };
        let path = fetch(&hub_name, &HubSettings::from_env(), progress)?;
        let mut model = Self::open(&path)?;
        if let Some(model) = Arc::get_mut(&mut model) {
            // The folder in the cache is named by a commit.
            model.name = hub_name.to_string();
        }
        Ok(model)
    }

    /// As [`Self::open`] for a model that has no tokenizer; texts cannot be read then, only given as tokens.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_without_tokenizer(path: &Path) -> Result<Arc<Self>> {
        if is_gguf(path) {
            return gguf::open_without_tokenizer(path).map(Arc::new);
        }
        hf::open_without_tokenizer(path).map(Arc::new)
    }

    /// The tokenizer alone, and the size of its vocabulary: of a model by path or name, of a `tokenizer.json`, or of a
    /// GGUF file that need not have weights.
    ///
    /// # Errors
    /// As [`Self::open_named`].
    pub fn open_tokenizer(name: &Path, progress: OnProgress<'_>) -> Result<(Tokenizer, usize)> {
        let path = match hub_name(name) {
            Some(hub_name) => fetch(&hub_name, &HubSettings::from_env(), progress)?,
            None => name.to_owned(),
        };
        if is_gguf(&path) {
            return gguf::open_tokenizer(&path);
        }
        let file = if path.is_dir() {
            path.join("tokenizer.json")
        } else if path.extension().is_some_and(|e| e == "safetensors") {
            path.with_file_name("tokenizer.json")
        } else {
            path
        };
        Ok((Tokenizer::open(&file)?, usize::MAX))
    }

    /// Number of parameters, tied ones counted once.
    pub fn parameters(&self) -> u64 {
        self.weights.parameters
    }
}

/// The name on the hub that a user means, where there is no such path.
pub fn hub_name(name: &Path) -> Option<HubName> {
    if name.exists() {
        return None;
    }
    HubName::parse(name.to_str()?)
}

/// Whether a file is GGUF: by its name, or by how it begins.
fn is_gguf(path: &Path) -> bool {
    use std::io::Read as _;
    let is_named = path
        .extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    let mut magic = [0; 4];
    path.is_file()
        && (is_named
            || std::fs::File::open(path)
                .and_then(|mut file| file.read_exact(&mut magic))
                .is_ok_and(|()| &magic == b"GGUF"))
}
