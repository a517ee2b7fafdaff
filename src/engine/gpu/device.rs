//! [`GpuContext`]: the device that computes, the same that draws where there is a window.

use std::sync::Arc;

use crate::{Error, Result};

/// A graphics device and its queue; cheap to clone.
#[derive(Clone, Debug)]
pub struct GpuContext {
    /// The device.
    pub device: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
    /// What it is.
    pub info: Arc<wgpu::AdapterInfo>,
}

impl GpuContext {
    /// A device without a window: real hardware first, else a software rasteriser.
    ///
    /// # Errors
    /// Says what to install when there is no adapter at all.
    pub fn headless() -> Result<Self> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let adapter = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        }))
        .map_err(|e| {
            Error::Gpu(format!(
                "no graphics adapter was found ({e}); install a Vulkan driver (on Debian or Ubuntu: \
                 mesa-vulkan-drivers)"
            ))
        })?;
        let info = adapter.get_info();
        let (device, queue) = pollster::block_on(
            adapter.request_device(&device_descriptor(&adapter)),
        )
        .map_err(|e| Error::Gpu(format!("the graphics adapter {} failed: {e}", info.name)))?;
        Ok(Self {
            device,
            queue,
            info: Arc::new(info),
        })
    }

    /// Whether this is a software rasteriser: right, but no faster than the CPU.
    pub fn is_software(&self) -> bool {
        is_software(&self.info)
    }
}

/// Whether an adapter is a software rasteriser.
pub fn is_software(info: &wgpu::AdapterInfo) -> bool {
    info.device_type == wgpu::DeviceType::Cpu
}

/// An adapter in words: name, kind and interface.
pub fn describe(info: &wgpu::AdapterInfo) -> String {
    let kind = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => "discrete GPU",
        wgpu::DeviceType::IntegratedGpu => "integrated GPU",
        wgpu::DeviceType::VirtualGpu => "virtual GPU",
        wgpu::DeviceType::Cpu => "software",
        wgpu::DeviceType::Other => "other",
    };
    format!("{} ({kind}, {})", info.name, info.backend)
}

/// What to ask of an adapter: its own limits, since WebGPU's defaults are too small for long texts.
pub fn device_descriptor(adapter: &wgpu::Adapter) -> wgpu::DeviceDescriptor<'static> {
    wgpu::DeviceDescriptor {
        label: Some("headscope"),
        required_limits: adapter.limits(),
        ..Default::default()
    }
}
