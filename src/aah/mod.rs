//! Asymmetric Attention Heads: the control branch that chooses a window for every head.
//!
//! Head features -> EMA -> hierarchy of head groups -> group scores -> windows from the top down. Knows nothing of
//! engines, egui, wgpu or files. All arithmetic is f32, as in the paper's reference; sections are those of the paper's
//! method: features (2), clustering (3), hierarchy (4), scoring and choice (5), regimes (6), diagnostics (7).

pub mod ablation;
pub mod clustering;
pub mod config;
pub mod control;
pub mod controller;
pub mod diagnostics;
pub mod features;
pub mod hierarchy;
pub mod network;
pub mod retrofit;
pub mod rng;

pub use config::{AahConfig, Regime};
pub use control::{Controller, LayerControl, LayerInput, LayerOutcome, Path};
