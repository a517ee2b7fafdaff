//! The GPU engine's parts, on wgpu. So far: windowed attention.
