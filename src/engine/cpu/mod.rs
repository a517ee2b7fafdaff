//! The CPU engine's own parts: attention, and the vector routines beneath it.

pub mod attention;
pub mod elementwise;
pub mod product;
mod simd;

pub use attention::CpuAttention;
