//! Drawing with wgpu inside the window: colour maps, the attention heat map, and hierarchy trees.

pub mod colormap;
mod heatmap;
mod tree;

pub use heatmap::{HeatmapPaint, HeatmapStyle, Normalisation, ViewRect, heatmap_color};
pub use tree::{TreePaint, TreeShape};
