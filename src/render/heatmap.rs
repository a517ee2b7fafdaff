//! [`HeatmapPaint`]: paints a [`HeadMatrix`] with `shaders/draw/heatmap.wgsl`; [`heatmap_color`] is its CPU twin.

use std::sync::Arc;

use egui::Color32;
use egui_wgpu::{CallbackResources, CallbackTrait, ScreenDescriptor};
use wgpu::util::DeviceExt as _;

use super::colormap::ColorMap;
use crate::engine::HeadMatrix;

/// Powers of ten that the logarithmic scale shows.
const DECADES: f32 = 4.0;

/// What a weight is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Normalisation {
    /// The largest weight of its row: every query shows where it looks most.
    #[default]
    Row,
    /// The largest weight of the picture.
    All,
}

/// How weights become colours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeatmapStyle {
    /// A logarithmic scale over four powers of ten, or a linear one.
    pub log: bool,
    /// What is the top of the scale.
    pub normalisation: Normalisation,
    /// Leave out the first key, which in most models drowns all others.
    pub without_first: bool,
    /// The colours.
    pub colors: ColorMap,
    /// Where there is nothing.
    pub empty: Color32,
    /// Over what the window hides; its alpha counts.
    pub veil: Color32,
}

/// A part of the matrix plane, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ViewRect {
    /// First key, at the left.
    pub key: f32,
    /// First query, at the top.
    pub query: f32,
    /// Keys across.
    pub keys: f32,
    /// Queries down.
    pub queries: f32,
}

/// A paint callback for one heat map.
#[derive(Clone, Debug)]
pub struct HeatmapPaint {
    /// The weights, once they are there.
    pub matrix: Option<Arc<HeadMatrix>>,
    /// What the rectangle shows.
    pub view: ViewRect,
    /// How.
    pub style: HeatmapStyle,
    /// Tokens, T.
    pub seq_len: usize,
    /// Keys of the window.
    pub window: usize,
    /// Sinks.
    pub sinks: usize,
    /// The render target's format.
    pub target: wgpu::TextureFormat,
}

/// The colour of a pair: what the shader paints, in plain Rust.
pub fn heatmap_color(paint: &HeatmapPaint, query: usize, key: usize) -> Color32 {
    let style = &paint.style;
    if query >= paint.seq_len || key > query {
        return style.empty;
    }
    let mut color = style.empty;
    if let Some(matrix) = &paint.matrix
        && let Some(weight) = matrix.weight(query, key)
    {
        let without = usize::from(style.without_first);
        let row = (query - matrix.request.queries.start) / matrix.request.bin;
        let top = match style.normalisation {
            Normalisation::Row => matrix.row_max[row][without],
            Normalisation::All => matrix.max[without],
        };
        let share = if weight <= 0.0 || top <= 0.0 {
            0.0
        } else if style.log {
            1.0 + (weight / top).log10() / DECADES
        } else {
            weight / top
        };
        let level = (share.clamp(0.0, 1.0) * 255.0 + 0.5) as u8;
        color = style.colors.color(f32::from(level) / 255.0);
        if style.without_first && key < matrix.request.bin {
            color = mix(style.empty, Color32::from_gray(128), 0.35);
        }
    }
    if query - key >= paint.window && key >= paint.sinks {
        let [r, g, b, a] = style.veil.to_srgba_unmultiplied();
        color = mix(color, Color32::from_rgb(r, g, b), f32::from(a) / 255.0);
    }
    color
}

fn mix(a: Color32, b: Color32, part: f32) -> Color32 {
    a.lerp_to_gamma(b, part)
}

/// The shader's `Params`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    view: [f32; 4],
    image: [f32; 4],
    empty: [f32; 4],
    veil: [f32; 4],
    seq_len: f32,
    window: f32,
    sinks: f32,
    max: f32,
    decades: f32,
    flags: u32,
    padding: [u32; 2],
}

const _: () = assert!(size_of::<Params>() == 96);

/// What stays on the device between frames.
struct Resources {
    pipeline: wgpu::RenderPipeline,
    params: wgpu::Buffer,
    bind_group: wgpu::BindGroup,
    /// What the textures hold.
    matrix: Option<Arc<HeadMatrix>>,
    colors: ColorMap,
}

fn gamma(color: Color32) -> [f32; 4] {
    color.to_srgba_unmultiplied().map(|c| f32::from(c) / 255.0)
}

impl HeatmapPaint {
    fn params(&self) -> Params {
        let matrix = self.matrix.as_deref();
        let bin = matrix.map_or(1, |m| m.request.bin) as f32;
        let style = &self.style;
        let flag = |bit: u32, on: bool| if on { bit } else { 0 };
        Params {
            view: [
                self.view.key,
                self.view.query,
                self.view.keys,
                self.view.queries,
            ],
            image: matrix.map_or([0.0, 0.0, 1.0, 1.0], |m| {
                [
                    m.request.keys.start as f32,
                    m.request.queries.start as f32,
                    bin,
                    bin,
                ]
            }),
            empty: gamma(style.empty),
            veil: gamma(style.veil),
            seq_len: self.seq_len as f32,
            window: self.window as f32,
            sinks: self.sinks as f32,
            max: matrix.map_or(0.0, |m| m.max[usize::from(style.without_first)]),
            decades: if style.log { DECADES } else { 0.0 },
            flags: flag(1, style.normalisation == Normalisation::Row)
                | flag(2, style.without_first)
                | flag(4, self.target.is_srgb())
                | flag(8, matrix.is_some()),
            padding: [0; 2],
        }
    }

    fn is_loaded(&self, resources: &Resources) -> bool {
        let same = match (&self.matrix, &resources.matrix) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        same && self.style.colors == resources.colors
    }

    fn load(&self, device: &wgpu::Device, queue: &wgpu::Queue, resources: &mut Resources) {
        let (rows, columns, values, maxima) = match &self.matrix {
            Some(m) => (
                m.rows as u32,
                m.columns as u32,
                &m.values[..],
                &m.row_max[..],
            ),
            None => (1, 1, &[0.0][..], &[[0.0, 0.0]][..]),
        };
        resources.bind_group = bind(
            device,
            &resources.pipeline,
            &resources.params,
            [
                texture(
                    device,
                    queue,
                    wgpu::TextureFormat::R32Float,
                    [columns, rows],
                    bytemuck::cast_slice(values),
                ),
                texture(
                    device,
                    queue,
                    wgpu::TextureFormat::Rg32Float,
                    [1, rows],
                    bytemuck::cast_slice(maxima),
                ),
                texture(
                    device,
                    queue,
                    wgpu::TextureFormat::Rgba8Unorm,
                    [256, 1],
                    &self.style.colors.pixels(),
                ),
            ],
        );
        resources.matrix.clone_from(&self.matrix);
        resources.colors = self.style.colors;
    }

    fn resources(&self, device: &wgpu::Device, queue: &wgpu::Queue) -> Resources {
        let module =
            device.create_shader_module(wgpu::include_wgsl!("../../shaders/draw/heatmap.wgsl"));
        let pipeline = device.create_render_pipeline(&wgpu::RenderPipelineDescriptor {
            label: Some("heatmap"),
            layout: None,
            vertex: wgpu::VertexState {
                module: &module,
                entry_point: Some("vertex"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                buffers: &[],
            },
            primitive: wgpu::PrimitiveState::default(),
            depth_stencil: None,
            multisample: wgpu::MultisampleState::default(),
            fragment: Some(wgpu::FragmentState {
                module: &module,
                entry_point: Some("fragment"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                targets: &[Some(self.target.into())],
            }),
            multiview_mask: None,
            cache: None,
        });
        let params = device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
            label: Some("heatmap params"),
            contents: bytemuck::bytes_of(&self.params()),
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
        });
        let blank = |format, bytes: &[u8]| texture(device, queue, format, [1, 1], bytes);
        let bind_group = bind(
            device,
            &pipeline,
            &params,
            [
                blank(wgpu::TextureFormat::R32Float, &[0; 4]),
                blank(wgpu::TextureFormat::Rg32Float, &[0; 8]),
                blank(wgpu::TextureFormat::Rgba8Unorm, &[0; 4]),
            ],
        );
        let mut resources = Resources {
            pipeline,
            params,
            bind_group,
            matrix: None,
            colors: self.style.colors,
        };
        self.load(device, queue, &mut resources);
        resources
    }
}

fn texture(
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    format: wgpu::TextureFormat,
    [width, height]: [u32; 2],
    bytes: &[u8],
) -> wgpu::TextureView {
    device
        .create_texture_with_data(
            queue,
            &wgpu::TextureDescriptor {
                label: Some("heatmap"),
                size: wgpu::Extent3d {
                    width,
                    height,
                    depth_or_array_layers: 1,
                },
                mip_level_count: 1,
                sample_count: 1,
                dimension: wgpu::TextureDimension::D2,
                format,
                usage: wgpu::TextureUsages::TEXTURE_BINDING | wgpu::TextureUsages::COPY_DST,
                view_formats: &[],
            },
            wgpu::util::TextureDataOrder::LayerMajor,
            bytes,
        )
        .create_view(&wgpu::TextureViewDescriptor::default())
}

fn bind(
    device: &wgpu::Device,
    pipeline: &wgpu::RenderPipeline,
    params: &wgpu::Buffer,
    [weights, row_max, colors]: [wgpu::TextureView; 3],
) -> wgpu::BindGroup {
    let view = wgpu::BindingResource::TextureView;
    let entry = |binding, resource| wgpu::BindGroupEntry { binding, resource };
    device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some("heatmap"),
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[
            entry(0, params.as_entire_binding()),
            entry(1, view(&weights)),
            entry(2, view(&row_max)),
            entry(3, view(&colors)),
        ],
    })
}

impl CallbackTrait for HeatmapPaint {
    fn prepare(
        &self,
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        _screen: &ScreenDescriptor,
        _encoder: &mut wgpu::CommandEncoder,
        all: &mut CallbackResources,
    ) -> Vec<wgpu::CommandBuffer> {
        let resources = all
            .entry::<Resources>()
            .or_insert_with(|| self.resources(device, queue));
        if !self.is_loaded(resources) {
            self.load(device, queue, resources);
        }
        queue.write_buffer(&resources.params, 0, bytemuck::bytes_of(&self.params()));
        Vec::new()
    }

    fn paint(
        &self,
        _info: egui::PaintCallbackInfo,
        pass: &mut wgpu::RenderPass<'static>,
        all: &CallbackResources,
    ) {
        if let Some(resources) = all.get::<Resources>() {
            pass.set_pipeline(&resources.pipeline);
            pass.set_bind_group(0, &resources.bind_group, &[]);
            pass.draw(0..3, 0..1);
        }
    }
}
