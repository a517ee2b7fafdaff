//! Time of one attention layer against its windows: does the cost follow the window?
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use headscope::{
    attention::Window,
    engine::{
        attend::{Attended, AttentionShape, HeadJob, Qkv},
        cpu::attention::{attend, distance_masses},
    },
};

const SEQ_LEN: usize = 4096;
const HEADS: usize = 12;
const HEAD_DIM: usize = 64;

fn layer() -> Qkv {
    let numbers = |seed: u32| {
        let mut state = seed;
        let count = SEQ_LEN * HEADS * HEAD_DIM;
        Arc::new(
            (0..count)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 8) as f32 / (1 << 23) as f32 - 1.0
                })
                .collect::<Vec<f32>>(),
        )
    };
    Qkv {
        shape: AttentionShape {
            seq_len: SEQ_LEN,
            n_heads: HEADS,
            n_kv_heads: HEADS,
            head_dim: HEAD_DIM,
            scale: 0.125,
            softcap: None,
        },
        q: numbers(1),
        k: numbers(2),
        v: numbers(3),
    }
}

fn attention(c: &mut Criterion) {
    let qkv = layer();
    let mut group = c.benchmark_group("attention T=4096 12x64");
    group.sample_size(10);
    let mut attended = Attended::zeros(&qkv.shape);
    for window in [
        Window::Full,
        Window::Last(2048),
        Window::Last(1024),
        Window::Last(512),
    ] {
        let jobs: Vec<HeadJob> = (0..HEADS).map(|head| HeadJob::new(head, window)).collect();
        group.bench_function(BenchmarkId::from_parameter(window), |b| {
            b.iter(|| attend(&qkv, &jobs, 0, &mut attended));
        });
    }
    let full = vec![Window::Full; HEADS];
    group.bench_function("distance profile", |b| {
        b.iter(|| distance_masses(&qkv, &full, Window::Full, 0, &attended.lse, SEQ_LEN));
    });
    group.finish();
}

criterion_group!(benches, attention);
criterion_main!(benches);
