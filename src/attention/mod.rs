//! What a window is, what it costs, and what it covers: plain data and arithmetic.
//!
//! Knows nothing of models, engines, files or windows on a screen.

pub mod coverage;
pub mod pairs;
pub mod reference;
pub mod windows;

pub use coverage::{DistanceProfile, SinkProfile, coverage_at};
pub use windows::{HeadId, Window, WindowMap};
