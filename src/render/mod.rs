//! Drawing with wgpu inside the window: colour maps and the attention heat map.

pub mod colormap;
mod heatmap;

pub use heatmap::{HeatmapPaint, HeatmapStyle, Normalisation, ViewRect, heatmap_color};
