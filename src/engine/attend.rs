//! What an attention kernel is given and what it gives back: the same for the CPU and the GPU.

use std::sync::Arc;

use crate::attention::Window;

/// Sizes of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Tokens, T.
    pub seq_len: usize,
    /// Query heads, H.
    pub n_heads: usize,
    /// Key/value heads; `n_heads` is a multiple of it.
    pub n_kv_heads: usize,
    /// Width of a head, D.
    pub head_dim: usize,
    /// Factor of the scores, usually `1 / sqrt(D)`.
    pub scale: f32,
    /// Bound of the scores by `cap * tanh(score / cap)`, where a model has one.
    pub softcap: Option<f32>,
}

impl AttentionShape {
    /// The key/value head that query head `head` reads.
    pub fn kv_head(&self, head: usize) -> usize {
        head * self.n_kv_heads / self.n_heads
    }
}

/// Queries, keys and values of one layer, positions already applied.
#[derive(Clone, Debug)]
pub struct Qkv {
    /// Sizes of all three.
    pub shape: AttentionShape,
    /// `[T, H, D]`.
    pub q: Arc<Vec<f32>>,
    /// `[T, Hkv, D]`.
    pub k: Arc<Vec<f32>>,
    /// `[T, Hkv, D]`.
    pub v: Arc<Vec<f32>>,
}

/// One head to run, with the window that holds for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadJob {
    /// Query head within the layer.
    pub head: usize,
    /// Its window.
    pub window: Window,
    /// The model's own window, which bounds both the window and the sinks: full in most models.
    pub reach: Window,
}

impl HeadJob {
    /// A head of a layer without a window of its own.
    pub fn new(head: usize, window: Window) -> Self {
        Self {
            head,
            window,
            reach: Window::Full,
        }
    }
}

/// What attention gives for a layer. A kernel writes the heads it was asked for and leaves the others as they are.
#[derive(Clone, Debug)]
pub struct Attended {
    /// Outputs before the output projection, `[T, H, D]`.
    pub out: Vec<f32>,
    /// Natural logarithm of each query's softmax denominator, `[H, T]`.
    pub lse: Vec<f32>,
    /// Mean over queries of the entropy of the weights, in nats, `[H]`.
    pub entropy: Vec<f32>,
    /// (query, key) pairs that the kernel evaluated, padding included, `[H]`.
    pub executed_pairs: Vec<u64>,
}

impl Attended {
    /// Zeros of the right size.
    pub fn zeros(shape: &AttentionShape) -> Self {
        Self {
            out: vec![0.0; shape.seq_len * shape.n_heads * shape.head_dim],
            lse: vec![0.0; shape.n_heads * shape.seq_len],
            entropy: vec![0.0; shape.n_heads],
            executed_pairs: vec![0; shape.n_heads],
        }
    }
}

/// Something that runs windowed causal attention.
pub trait AttentionKernel: Send {
    /// Runs `jobs` with `sinks` first keys kept visible, writing their heads of `into`.
    ///
    /// # Errors
    /// When the device fails or cannot hold the layer.
    fn attend(
        &mut self,
        qkv: &Qkv,
        jobs: &[HeadJob],
        sinks: usize,
        into: &mut Attended,
    ) -> Result<(), crate::Error>;
}
