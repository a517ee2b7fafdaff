//! Windowed causal attention in WGSL: host side of `shaders/compute/windowed_attention.wgsl`.

use std::collections::HashMap;

use wgpu::util::DeviceExt as _;

use super::GpuContext;
use crate::{
    Error, Result,
    engine::attend::{Attended, AttentionKernel, AttentionShape, HeadJob, Qkv},
};

/// Queries of a work item.
const BLOCK_Q: usize = 32;
/// Keys of a tile.
const BLOCK_K: usize = 16;
/// Widest head that fits a workgroup's memory (two tiles) on every WebGPU device, 16 KiB.
const MAX_HEAD_DIM: usize = 128;
/// Work of one submission: short enough that a frame waits at most some tens of milliseconds on a slow GPU.
const SLICE_FLOPS: u64 = 8_000_000_000;

/// The shader's `Params`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    seq_len: u32,
    n_heads: u32,
    n_kv_heads: u32,
    sinks: u32,
    scale: f32,
    softcap: f32,
    first_item: u32,
    padding: u32,
}

/// The shader's `Item`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Item {
    head: u32,
    kv_head: u32,
    first_query: u32,
    window: u32,
    reach: u32,
    padding: [u32; 3],
}

const _: () = assert!(size_of::<Params>() == 32 && size_of::<Item>() == 32);

/// The GPU attention kernel.
pub struct GpuAttention {
    gpu: GpuContext,
    /// One for each width of a head.
    pipelines: HashMap<usize, wgpu::ComputePipeline>,
}

impl GpuAttention {
    /// A kernel on this device.
    pub fn new(gpu: GpuContext) -> Self {
        Self {
            gpu,
            pipelines: HashMap::new(),
        }
    }

    fn pipeline(&mut self, head_dim: usize) -> &wgpu::ComputePipeline {
        let device = &self.gpu.device;
        self.pipelines.entry(head_dim).or_insert_with(|| {
            let source = shader_source(head_dim);
            let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some("windowed_attention"),
                source: wgpu::ShaderSource::Wgsl(source.into()),
            });
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some("windowed_attention"),
                layout: None,
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: None,
            })
        })
    }

    fn check(&self, shape: &AttentionShape) -> Result<()> {
        if shape.head_dim > MAX_HEAD_DIM {
            return Err(Error::Gpu(format!(
                "heads of width {} do not fit the GPU kernel, which takes up to {MAX_HEAD_DIM}; use \
                 --engine cpu",
                shape.head_dim
            )));
        }
        let bytes = (shape.seq_len * shape.n_heads * shape.head_dim * 4) as u64;
        let most = self.gpu.device.limits().max_storage_buffer_binding_size;
        if bytes > most {
            return Err(Error::Gpu(format!(
                "this text needs {} MiB in one buffer, the graphics adapter takes {}; use --engine cpu or \
                 fewer tokens",
                bytes >> 20,
                most >> 20
            )));
        }
        Ok(())
    }
}

/// The shader for heads of width `head_dim`; its head says what is written in.
fn shader_source(head_dim: usize) -> String {
    let mut source = String::new();
    for line in include_str!("../../../shaders/compute/windowed_attention.wgsl").lines() {
        if let Some((indent, statement)) = line.split_once("//each ") {
            for group in 0..head_dim.div_ceil(4) {
                source += indent;
                source += &statement.replace("{i}", &group.to_string());
                source.push('\n');
            }
        } else {
            source += line;
            source.push('\n');
        }
    }
    source
        .replace("HEAD_DIM_VALUE", &format!("{head_dim}u"))
        .replace("BLOCK_Q_VALUE", &format!("{BLOCK_Q}u"))
        .replace("BLOCK_K_VALUE", &format!("{BLOCK_K}u"))
}

/// Pairs that the kernel must evaluate for one head: what it reports is held against this.
fn expected_pairs(window: usize, reach: usize, sinks: usize, seq_len: usize) -> u64 {
    (0..seq_len)
        .step_by(BLOCK_Q)
        .map(|first| {
            let high = (first + BLOCK_Q).min(seq_len);
            let low = (first + 1).saturating_sub(window) / BLOCK_K * BLOCK_K;
            let sink_end = sinks.next_multiple_of(BLOCK_K).min(low);
            let sink_low = ((first + 1).saturating_sub(reach) / BLOCK_K * BLOCK_K).min(sink_end);
            let keys = (high - low).next_multiple_of(BLOCK_K) + sink_end - sink_low;
            (keys * (high - first)) as u64
        })
        .sum()
}

/// Work items, longest first, in slices of bounded work.
fn slices(jobs: &[HeadJob], shape: &AttentionShape) -> (Vec<Item>, Vec<std::ops::Range<usize>>) {
    let seq_len = shape.seq_len;
    let mut items: Vec<(u64, Item)> = Vec::new();
    for job in jobs {
        let reach = job.reach.size(seq_len);
        let window = job.window.size(seq_len).min(reach);
        for first_query in (0..seq_len).step_by(BLOCK_Q) {
            let keys = (first_query + BLOCK_Q).min(window + BLOCK_Q) as u64;
            let item = Item {
                head: job.head as u32,
                kv_head: shape.kv_head(job.head) as u32,
                first_query: first_query as u32,
                window: window as u32,
                reach: reach as u32,
                padding: [0; 3],
            };
            items.push((keys, item));
        }
    }
    items.sort_by_key(|(keys, _)| std::cmp::Reverse(*keys));
    let mut slices = Vec::new();
    let (mut start, mut work) = (0, 0u64);
    for (index, (keys, _)) in items.iter().enumerate() {
        work += keys * (4 * BLOCK_Q * shape.head_dim) as u64;
        // 65,535 workgroups are the most of one dispatch.
        if work >= SLICE_FLOPS || index - start >= 60_000 {
            slices.push(start..index + 1);
            (start, work) = (index + 1, 0);
        }
    }
    if start < items.len() {
        slices.push(start..items.len());
    }
    (items.into_iter().map(|(_, item)| item).collect(), slices)
}

impl AttentionKernel for GpuAttention {
    fn attend(
        &mut self,
        qkv: &Qkv,
        jobs: &[HeadJob],
        sinks: usize,
        into: &mut Attended,
    ) -> Result<()> {
        let shape = qkv.shape;
        if jobs.is_empty() || shape.seq_len == 0 {
            return Ok(());
        }
        self.check(&shape)?;
        let pipeline = self.pipeline(shape.head_dim).clone();
        let device = &self.gpu.device;
        let errors = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let storage = |label, contents: &[u8], usage| {
            device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
                label: Some(label),
                contents,
                usage: wgpu::BufferUsages::STORAGE | usage,
            })
        };
        let input = |label, values: &[f32]| {
            storage(
                label,
                bytemuck::cast_slice(values),
                wgpu::BufferUsages::empty(),
            )
        };
        let output = |label, bytes: usize| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size: bytes as u64,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            })
        };
        let (items, slices) = slices(jobs, &shape);
        let buffers = [
            storage(
                "items",
                bytemuck::cast_slice(&items),
                wgpu::BufferUsages::empty(),
            ),
            input("q", &qkv.q),
            input("k", &qkv.k),
            input("v", &qkv.v),
            output("out", into.out.len() * 4),
            output("rows", into.lse.len() * 8),
            output("executed", shape.n_heads * 4),
        ];
        for (index, slice) in slices.iter().enumerate() {
            let params = Params {
                seq_len: shape.seq_len as u32,
                n_heads: shape.n_heads as u32,
                n_kv_heads: shape.n_kv_heads as u32,
                sinks: sinks.min(shape.seq_len) as u32,
                scale: shape.scale,
                softcap: shape.softcap.unwrap_or(0.0),
                first_item: slice.start as u32,
                padding: 0,
            };
            let params = device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
                label: Some("params"),
                contents: bytemuck::bytes_of(&params),
                usage: wgpu::BufferUsages::UNIFORM,
            });
            let entries: Vec<wgpu::BindGroupEntry<'_>> = std::iter::once(&params)
                .chain(&buffers)
                .enumerate()
                .map(|(binding, buffer)| wgpu::BindGroupEntry {
                    binding: binding as u32,
                    resource: buffer.as_entire_binding(),
                })
                .collect();
            let bind_group = device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &pipeline.get_bind_group_layout(0),
                entries: &entries,
            });
            let mut encoder =
                device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                pass.set_pipeline(&pipeline);
                pass.set_bind_group(0, &bind_group, &[]);
                pass.dispatch_workgroups(slice.len() as u32, 1, 1);
            }
            self.gpu.queue.submit([encoder.finish()]);
            // One slice at a time, so that frames come between them.
            if index + 1 < slices.len() {
                wait(device)?;
            }
        }
        if let Some(error) = pollster::block_on(errors.pop()) {
            return Err(Error::Gpu(format!(
                "the graphics device ran out of memory: {error}"
            )));
        }

        let [.., out, rows, executed] = &buffers;
        let out: Vec<f32> = self.read(out)?;
        let rows: Vec<[f32; 2]> = self.read(rows)?;
        let executed: Vec<u32> = self.read(executed)?;
        let (seq_len, width) = (shape.seq_len, shape.head_dim);
        for job in jobs {
            let head = job.head;
            for t in 0..seq_len {
                let at = (t * shape.n_heads + head) * width;
                into.out[at..at + width].copy_from_slice(&out[at..at + width]);
            }
            let mut entropy = 0.0f64;
            for (t, row) in rows[head * seq_len..(head + 1) * seq_len]
                .iter()
                .enumerate()
            {
                into.lse[head * seq_len + t] = row[0];
                entropy += f64::from(row[1]);
            }
            into.entropy[head] = (entropy / seq_len as f64) as f32;
            let pairs = u64::from(executed[head]);
            // Some drivers end long loops early, and say nothing.
            let reach = job.reach.size(seq_len);
            let window = job.window.size(seq_len).min(reach);
            if pairs != expected_pairs(window, reach, sinks, seq_len) {
                return Err(Error::Gpu(
                    "the graphics driver stopped a computation half-way; use --engine cpu"
                        .to_owned(),
                ));
            }
            into.executed_pairs[head] = pairs;
        }
        Ok(())
    }
}

impl GpuAttention {
    /// Copies a buffer to memory. Waits for the device.
    fn read<T: bytemuck::Pod>(&self, buffer: &wgpu::Buffer) -> Result<Vec<T>> {
        let device = &self.gpu.device;
        let staging = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("read"),
            size: buffer.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
        self.gpu.queue.submit([encoder.finish()]);
        let bytes = read_mapped(device, &staging)?;
        // Byte-wise: a mapping need not be aligned for T.
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }
}

/// The bytes of a buffer that can be mapped. Waits for the device.
///
/// # Errors
/// When the device is lost.
pub fn read_mapped(device: &wgpu::Device, staging: &wgpu::Buffer) -> Result<Vec<u8>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    staging.map_async(wgpu::MapMode::Read, .., move |result| {
        // The receiver waits below; it is gone only if waiting failed.
        let _ = sender.send(result);
    });
    wait(device)?;
    let lost = || Error::Gpu("the graphics device was lost; use --engine cpu".to_owned());
    receiver.recv().map_err(|_| lost())?.map_err(|_| lost())?;
    let view = staging.get_mapped_range(..).map_err(|_| lost())?;
    Ok(view.to_vec())
}

fn wait(device: &wgpu::Device) -> Result<()> {
    device
        .poll(wgpu::PollType::wait_indefinitely())
        .map(|_| ())
        .map_err(|e| Error::Gpu(format!("the graphics device failed: {e}; use --engine cpu")))
}
