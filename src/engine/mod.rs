//! Engines: what runs a model on a text under a [`crate::attention::WindowMap`], and what it measured.
//!
//! [`Decoder`] is the forward pass, driven by the [`crate::model::ModelSpec`]; an [`attend::AttentionKernel`] runs
//! the attention in it, on the CPU ([`cpu`]) or on the GPU ([`gpu`]). [`Worker`] owns all of it on a thread of its own.

pub mod attend;
pub mod cpu;
mod decoder;
pub mod gpu;
mod loss;
mod matrix;
mod run;
mod worker;

pub use decoder::{Control, Decoder, Flow};
pub use matrix::{HeadMatrix, MatrixRequest, Pooling, head_matrix};
pub use run::{LayerTrace, Run, Trace, head_moments, head_statistics};
pub use worker::{
    Backend, Baseline, Event, PassageResult, Progress, Stage, StepRequest, Wanted, Windowed,
    Worker, distance_profile, sink_profile,
};
