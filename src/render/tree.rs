//! [`TreePaint`]: paints discs and links with `shaders/draw/tree.wgsl`, all in one draw.

use egui::{Color32, Pos2, Rect};
use egui_wgpu::{CallbackResources, CallbackTrait, ScreenDescriptor};
use wgpu::util::DeviceExt as _;

/// One disc or link, as the shader's `Instance`. Positions are in points from the viewport's corner.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct TreeShape {
    from_to: [f32; 4],
    radius: [f32; 2],
    fill: [f32; 4],
    outline: [f32; 4],
}

const _: () = assert!(size_of::<TreeShape>() == 56);

fn rgba(color: Color32) -> [f32; 4] {
    color.to_srgba_unmultiplied().map(|c| f32::from(c) / 255.0)
}

impl TreeShape {
    /// A disc with an outline.
    pub fn disc(at: Pos2, radius: f32, fill: Color32, outline: (f32, Color32)) -> Self {
        Self {
            from_to: [at.x, at.y, at.x, at.y],
            radius: [radius, outline.0],
            fill: rgba(fill),
            outline: rgba(outline.1),
        }
    }

    /// A link with round ends.
    pub fn link(from: Pos2, to: Pos2, width: f32, color: Color32) -> Self {
        Self {
            from_to: [from.x, from.y, to.x, to.y],
            radius: [width / 2.0, 0.0],
            fill: rgba(color),
            outline: rgba(color),
        }
    }

    /// Moved by the corner of the rectangle it is drawn in.
    fn relative_to(mut self, corner: Pos2) -> Self {
        for (index, value) in self.from_to.iter_mut().enumerate() {
            *value -= if index % 2 == 0 { corner.x } else { corner.y };
        }
        self
    }
}

/// A paint callback for the shapes of one view.
#[derive(Clone, Debug)]
pub struct TreePaint {
    shapes: Vec<TreeShape>,
    size: [f32; 2],
    target: wgpu::TextureFormat,
}

impl TreePaint {
    /// Shapes in screen coordinates, drawn within `rect`, later ones over earlier ones.
    pub fn new(shapes: Vec<TreeShape>, rect: Rect, target: wgpu::TextureFormat) -> Self {
        Self {
            shapes: shapes
                .into_iter()
                .map(|s| s.relative_to(rect.min))
                .collect(),
            size: rect.size().into(),
            target,
        }
    }
}

/// The shader's `Params`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    size: [f32; 2],
    scale: f32,
    is_linear: u32,
}

struct Resources {
    pipeline: wgpu::RenderPipeline,
    params: wgpu::Buffer,
    bind_group: wgpu::BindGroup,
    instances: wgpu::Buffer,
    count: u32,
}

impl TreePaint {
    fn resources(&self, device: &wgpu::Device) -> Resources {
        let module =
            device.create_shader_module(wgpu::include_wgsl!("../../shaders/draw/tree.wgsl"));
        let layout = wgpu::VertexBufferLayout {
            array_stride: size_of::<TreeShape>() as u64,
            step_mode: wgpu::VertexStepMode::Instance,
            attributes: &wgpu::vertex_attr_array![
                0 => Float32x4, 1 => Float32x2, 2 => Float32x4, 3 => Float32x4
            ],
        };
        let pipeline = device.create_render_pipeline(&wgpu::RenderPipelineDescriptor {
            label: Some("tree"),
            layout: None,
            vertex: wgpu::VertexState {
                module: &module,
                entry_point: Some("vertex"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                buffers: &[Some(layout)],
            },
            primitive: wgpu::PrimitiveState {
                topology: wgpu::PrimitiveTopology::TriangleStrip,
                ..Default::default()
            },
            depth_stencil: None,
            multisample: wgpu::MultisampleState::default(),
            fragment: Some(wgpu::FragmentState {
                module: &module,
                entry_point: Some("fragment"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                targets: &[Some(wgpu::ColorTargetState {
                    format: self.target,
                    blend: Some(wgpu::BlendState::PREMULTIPLIED_ALPHA_BLENDING),
                    write_mask: wgpu::ColorWrites::ALL,
                })],
            }),
            multiview_mask: None,
            cache: None,
        });
        let params = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("tree params"),
            size: size_of::<Params>() as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let bind_group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("tree"),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry {
                binding: 0,
                resource: params.as_entire_binding(),
            }],
        });
        Resources {
            instances: instances(device, &[]),
            count: 0,
            pipeline,
            params,
            bind_group,
        }
    }
}

fn instances(device: &wgpu::Device, shapes: &[TreeShape]) -> wgpu::Buffer {
    // Never empty: a buffer of no bytes cannot be bound.
    let filler = [bytemuck::Zeroable::zeroed()];
    let shapes: &[TreeShape] = if shapes.is_empty() { &filler } else { shapes };
    device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
        label: Some("tree shapes"),
        contents: bytemuck::cast_slice(shapes),
        usage: wgpu::BufferUsages::VERTEX | wgpu::BufferUsages::COPY_DST,
    })
}

impl CallbackTrait for TreePaint {
    fn prepare(
        &self,
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        screen: &ScreenDescriptor,
        _encoder: &mut wgpu::CommandEncoder,
        all: &mut CallbackResources,
    ) -> Vec<wgpu::CommandBuffer> {
        let resources = all
            .entry::<Resources>()
            .or_insert_with(|| self.resources(device));
        let bytes: &[u8] = bytemuck::cast_slice(&self.shapes);
        if bytes.len() as u64 > resources.instances.size() {
            resources.instances = instances(device, &self.shapes);
        } else {
            queue.write_buffer(&resources.instances, 0, bytes);
        }
        resources.count = self.shapes.len() as u32;
        let params = Params {
            size: self.size,
            scale: screen.pixels_per_point,
            is_linear: u32::from(self.target.is_srgb()),
        };
        queue.write_buffer(&resources.params, 0, bytemuck::bytes_of(&params));
        Vec::new()
    }

    fn paint(
        &self,
        _info: egui::PaintCallbackInfo,
        pass: &mut wgpu::RenderPass<'static>,
        all: &CallbackResources,
    ) {
        if let Some(resources) = all.get::<Resources>().filter(|r| r.count > 0) {
            pass.set_pipeline(&resources.pipeline);
            pass.set_bind_group(0, &resources.bind_group, &[]);
            pass.set_vertex_buffer(0, resources.instances.slice(..));
            pass.draw(0..4, 0..resources.count);
        }
    }
}
