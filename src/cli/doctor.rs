//! `headscope doctor`: what this machine offers, what would be used, and whether the kernels are right here.

use std::{sync::Arc, time::Instant};

use anyhow::{Result, bail};

use super::{EngineChoice, choose_backend};
use crate::{
    attention::{Window, reference},
    engine::{
        Backend,
        attend::{Attended, AttentionShape, HeadJob, Qkv},
        gpu::{GpuContext, describe, is_software},
    },
};

pub(super) fn run() -> Result<()> {
    println!("headscope {}", env!("CARGO_PKG_VERSION"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("CPU: {cores} cores, {}", vector_instructions());

    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    if adapters.is_empty() {
        println!(
            "graphics: no adapter; the window cannot be drawn. Install a Vulkan driver (on Debian or Ubuntu: \
             mesa-vulkan-drivers)"
        );
    }
    for adapter in &adapters {
        let info = adapter.get_info();
        let limits = adapter.limits();
        println!(
            "graphics: {}, driver {} {}, largest binding {} MiB{}",
            describe(&info),
            info.driver,
            info.driver_info,
            limits.max_storage_buffer_binding_size >> 20,
            if is_software(&info) {
                ": software, right but slow"
            } else {
                ""
            }
        );
    }
    let chosen = choose_backend(EngineChoice::Auto, GpuContext::headless)?;
    println!("engine: attention would run on the {}", chosen.name());

    let mut failed = false;
    let mut test = |name: &str, backend: &Backend| {
        for (seq_len, head_dim, sinks) in [(1, 8, 0), (65, 32, 4), (257, 64, 0), (300, 128, 2)] {
            let started = Instant::now();
            let result = self_test(backend, seq_len, head_dim, sinks);
            let ms = started.elapsed().as_secs_f64() * 1e3;
            let what =
                format!("{name}: attention, {seq_len} tokens, width {head_dim}, {sinks} sinks");
            match result {
                Ok(error) if error < 5e-4 => {
                    println!("{what}: right, largest error {error:.1e}, {ms:.0} ms");
                }
                Ok(error) => {
                    failed = true;
                    println!("{what}: WRONG by {error:.1e}");
                }
                Err(error) => {
                    failed = true;
                    println!("{what}: FAILED: {error}");
                }
            }
        }
    };
    test("CPU", &Backend::Cpu);
    match GpuContext::headless() {
        Ok(gpu) => test("GPU", &Backend::Gpu(gpu)),
        Err(error) => println!("GPU: not tested: {error}"),
    }
    if failed {
        bail!(
            "a kernel is wrong on this machine: use the other engine (--engine), and report this output"
        );
    }
    Ok(())
}

fn vector_instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
        {
            "AVX2 and FMA"
        } else {
            "no AVX2: attention is slower"
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        std::env::consts::ARCH
    }
}

/// Largest difference from the f64 reference, over two heads of different windows.
fn self_test(
    backend: &Backend,
    seq_len: usize,
    head_dim: usize,
    sinks: usize,
) -> crate::Result<f64> {
    const HEADS: usize = 2;
    let numbers = |seed: u32| {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 22) as f32 - 2.0
        };
        Arc::new(
            (0..seq_len * HEADS * head_dim)
                .map(next)
                .collect::<Vec<f32>>(),
        )
    };
    let shape = AttentionShape {
        seq_len,
        n_heads: HEADS,
        n_kv_heads: HEADS,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        softcap: None,
    };
    let qkv = Qkv {
        shape,
        q: numbers(1),
        k: numbers(2),
        v: numbers(3),
    };
    let windows = [Window::Last(9), Window::Full];
    let jobs: Vec<HeadJob> = windows
        .iter()
        .enumerate()
        .map(|(head, &window)| HeadJob::new(head, window))
        .collect();
    let mut got = Attended::zeros(&shape);
    backend.kernel().attend(&qkv, &jobs, sinks, &mut got)?;
    let column = |x: &[f32], head: usize| -> Vec<f32> {
        x.chunks(HEADS * head_dim)
            .flat_map(|row| row[head * head_dim..(head + 1) * head_dim].to_vec())
            .collect()
    };
    let mut error = 0.0f64;
    for (head, window) in windows.into_iter().enumerate() {
        let inputs = reference::ReferenceInputs {
            q: &column(&qkv.q, head),
            k: &column(&qkv.k, head),
            v: &column(&qkv.v, head),
            head_dim,
            scale: f64::from(shape.scale),
            softcap: None,
        };
        let want = reference::attend(inputs, window, Window::Full, sinks);
        for (got, want) in column(&got.out, head).iter().zip(&want.out) {
            let difference = (f64::from(*got) - want).abs();
            // Not a number is the largest error there is.
            error = if difference.is_nan() {
                f64::INFINITY
            } else {
                error.max(difference)
            };
        }
    }
    Ok(error)
}
