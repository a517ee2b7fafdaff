//! The GPU engine's parts, on wgpu. So far: the device, and windowed attention.

mod attention;
mod device;

pub use attention::GpuAttention;
pub use device::{GpuContext, describe, is_software};
