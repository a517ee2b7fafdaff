//! The GPU engine's parts, on wgpu. So far: the device, and windowed attention.

mod attention;
mod device;

pub use attention::{GpuAttention, read_mapped};
pub use device::{GpuContext, describe, device_descriptor, is_software};
