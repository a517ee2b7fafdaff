//! The same window without a window: drawn into a picture on any adapter there is.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use egui_wgpu::ScreenDescriptor;
use image::RgbaImage;

use super::{App, MainView, Options};
use crate::{
    Error, Result,
    engine::{Backend, gpu::GpuContext},
    session::{Session, TextSettings},
};

/// Longest wait for the first complete result.
const PATIENCE: Duration = Duration::from_secs(600);
const FORMAT: wgpu::TextureFormat = wgpu::TextureFormat::Rgba8Unorm;

/// How the picture is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Picture {
    /// Size in points.
    pub size: [f32; 2],
    /// Pixels a point.
    pub scale: f32,
    /// Light or dark.
    pub theme: egui::Theme,
    /// What stands in the middle.
    pub view: MainView,
    /// First steps of the session's regime, if it has one.
    pub steps: usize,
}

impl Default for Picture {
    fn default() -> Self {
        Self {
            size: [1440.0, 900.0],
            scale: 1.0,
            theme: egui::Theme::Dark,
            view: MainView::Attention,
            steps: 3,
        }
    }
}

/// Runs the app on a session until everything wanted is there, and gives its picture and the session then.
///
/// # Errors
/// When no adapter is found, or the computation fails or takes too long.
pub fn draw(
    session: Session,
    gpu: &GpuContext,
    backend: Backend,
    settings: TextSettings,
    picture: Picture,
) -> Result<(RgbaImage, Session)> {
    let ctx = egui::Context::default();
    ctx.set_theme(picture.theme);
    // As the window does: one system face at a time, for characters that no built-in font has.
    ctx.add_font_provider(Arc::new(
        egui_system_font_provider::SystemFontProvider::new(),
    ));
    let wake = Arc::new((Mutex::new(false), Condvar::new()));
    let waker = wake.clone();
    ctx.set_request_repaint_callback(move |_| {
        *waker.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        waker.1.notify_one();
    });
    let options = Options {
        adapter: crate::engine::gpu::describe(&gpu.info),
        adapter_is_software: gpu.is_software(),
        target: FORMAT,
        settings,
        backend,
    };
    let mut app = App::new(&ctx, session, options)?;
    app.show(picture.view);
    app.start_regime(picture.steps);
    let mut renderer =
        egui_wgpu::Renderer::new(&gpu.device, FORMAT, egui_wgpu::RendererOptions::PREDICTABLE);
    let size = [
        (picture.size[0] * picture.scale).round().max(1.0) as u32,
        (picture.size[1] * picture.scale).round().max(1.0) as u32,
    ];
    let screen = ScreenDescriptor {
        size_in_pixels: size,
        pixels_per_point: picture.scale,
    };
    let started = Instant::now();
    loop {
        let mut input = egui::RawInput {
            screen_rect: Some(egui::Rect::from_min_size(
                egui::Pos2::ZERO,
                picture.size.into(),
            )),
            time: Some(started.elapsed().as_secs_f64()),
            ..Default::default()
        };
        if let Some(viewport) = input.viewports.get_mut(&input.viewport_id) {
            viewport.native_pixels_per_point = Some(picture.scale);
        }
        let mut output = ctx.run_ui(input, |ui| {
            egui::CentralPanel::no_frame().show(ui, |ui| app.frame_ui(ui));
        });
        for (id, images) in output.textures_delta.set.drain() {
            for image in images {
                renderer.update_texture(&gpu.device, &gpu.queue, id, &image);
            }
        }
        if app.is_complete() {
            let shapes = ctx.tessellate(std::mem::take(&mut output.shapes), picture.scale);
            let image = paint(gpu, &mut renderer, &shapes, &screen)?;
            return Ok((image, app.session));
        }
        for id in output.textures_delta.free.drain() {
            renderer.free_texture(&id);
        }
        if started.elapsed() > PATIENCE {
            return Err(Error::Text(format!(
                "no complete result after {} s: use fewer tokens (--context)",
                PATIENCE.as_secs()
            )));
        }
        let mut is_awake = wake.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_awake {
            is_awake = wake
                .1
                .wait_timeout(is_awake, Duration::from_millis(100))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        *is_awake = false;
    }
}

fn paint(
    gpu: &GpuContext,
    renderer: &mut egui_wgpu::Renderer,
    shapes: &[egui::ClippedPrimitive],
    screen: &ScreenDescriptor,
) -> Result<RgbaImage> {
    let [width, height] = screen.size_in_pixels;
    let most = gpu.device.limits().max_texture_dimension_2d;
    if width > most || height > most {
        return Err(Error::Gpu(format!(
            "a picture of {width} × {height} pixels is too large for this adapter, which takes {most}"
        )));
    }
    let texture = gpu.device.create_texture(&wgpu::TextureDescriptor {
        label: Some("picture"),
        size: wgpu::Extent3d {
            width,
            height,
            depth_or_array_layers: 1,
        },
        mip_level_count: 1,
        sample_count: 1,
        dimension: wgpu::TextureDimension::D2,
        format: FORMAT,
        usage: wgpu::TextureUsages::RENDER_ATTACHMENT | wgpu::TextureUsages::COPY_SRC,
        view_formats: &[],
    });
    let mut encoder = gpu
        .device
        .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let buffers = renderer.update_buffers(&gpu.device, &gpu.queue, &mut encoder, shapes, screen);
    {
        let view = texture.create_view(&wgpu::TextureViewDescriptor::default());
        let mut pass = encoder
            .begin_render_pass(&wgpu::RenderPassDescriptor {
                label: Some("picture"),
                color_attachments: &[Some(wgpu::RenderPassColorAttachment {
                    view: &view,
                    resolve_target: None,
                    ops: wgpu::Operations {
                        load: wgpu::LoadOp::Clear(wgpu::Color::BLACK),
                        store: wgpu::StoreOp::Store,
                    },
                    depth_slice: None,
                })],
                ..Default::default()
            })
            .forget_lifetime();
        renderer.render(&mut pass, shapes, screen);
    }
    // Rows of a copy are padded.
    let pitch = (width * 4).next_multiple_of(wgpu::COPY_BYTES_PER_ROW_ALIGNMENT);
    let staging = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("picture"),
        size: u64::from(pitch) * u64::from(height),
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    encoder.copy_texture_to_buffer(
        texture.as_image_copy(),
        wgpu::TexelCopyBufferInfo {
            buffer: &staging,
            layout: wgpu::TexelCopyBufferLayout {
                offset: 0,
                bytes_per_row: Some(pitch),
                rows_per_image: None,
            },
        },
        texture.size(),
    );
    gpu.queue
        .submit(buffers.into_iter().chain([encoder.finish()]));
    let bytes = crate::engine::gpu::read_mapped(&gpu.device, &staging)?;
    let mut pixels = Vec::with_capacity((width * height * 4) as usize);
    for row in bytes.chunks(pitch as usize) {
        pixels.extend_from_slice(&row[..(width * 4) as usize]);
    }
    RgbaImage::from_raw(width, height, pixels)
        .ok_or_else(|| Error::Gpu("the picture came back incomplete".to_owned()))
}
