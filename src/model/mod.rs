//! Models: what a decoder is ([`ModelSpec`]), where its weights and its tokenizer come from.
//!
//! An architecture is a *mapping* from a file's configuration and tensor names to the spec and the weights; the
//! forward pass in [`crate::engine`] is one for all.

mod architectures;
mod decoder;
mod embedded;
mod hf;
mod spec;
mod tokenizer;
mod weights;

use std::{path::Path, sync::Arc};

pub use decoder::{BlockWeights, DecoderWeights, Linear, Norm, QkNorm};
pub use embedded::{SAMPLES, Sample, built_in};
pub use spec::{Activation, LayerSpec, ModelSpec, NormKind, Positions, RopeScaling, RopeSpec};
pub use tokenizer::{Cluster, TokenizedText, Tokenizer, visible};
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
    /// Opens a Hugging Face folder: `config.json`, safetensors (one file, or shards with an index) and
    /// `tokenizer.json`.
    ///
    /// # Errors
    /// One sentence that says which file lacks what.
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        hf::open(path).map(Arc::new)
    }

    /// As [`Self::open`] for a folder that has no tokenizer; texts cannot be read then, only given as tokens.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_without_tokenizer(path: &Path) -> Result<Arc<Self>> {
        hf::open_without_tokenizer(path).map(Arc::new)
    }

    /// Number of parameters, tied ones counted once.
    pub fn parameters(&self) -> u64 {
        self.weights.parameters
    }
}
