//! `headscope bench`: how fast a model runs here, as JSON, to be put beside others by `benches/peers/`.

use std::{path::PathBuf, sync::Arc, time::Instant};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use super::{EngineChoice, choose_backend, emit, open_model};
use crate::{
    attention::{
        HeadId, Window, WindowMap,
        pairs::{causal_pairs, map_causal_acr},
    },
    engine::{
        Decoder, Flow,
        attend::{Attended, AttentionShape, HeadJob, Qkv},
        distance_profile,
        gpu::GpuContext,
    },
    model::{Bos, SAMPLES, built_in},
};

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// Model: as for the window; the built-in model if left out
    model: Option<PathBuf>,
    /// Lengths of text, in tokens
    #[arg(long, value_name = "T,T,...", value_delimiter = ',', default_value = "512,2048", value_parser = clap::value_parser!(u32).range(2..))]
    tokens: Vec<u32>,
    /// Runs of each kind, after one that is not counted
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Time attention alone, on random numbers: heads x width, as in 12x64
    #[arg(long, value_name = "HxD", value_parser = parse_heads, conflicts_with = "model")]
    attention: Option<(usize, usize)>,
    /// Where attention runs
    #[arg(long, value_enum, default_value_t = EngineChoice::Auto)]
    engine: EngineChoice,
    /// Write the result to a file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    model: String,
    parameters: u64,
    engine: &'static str,
    threads: usize,
    open_ms: f64,
    runs: Vec<LengthReport>,
    /// The most memory that the process held, in KiB, where the system says.
    peak_rss_kib: Option<u64>,
}

#[derive(Serialize)]
struct LengthReport {
    tokens: usize,
    loss: Option<f64>,
    /// Whole passes with full attention, loss of every token included.
    full_ms: Vec<f64>,
    /// The same with the same window for every head.
    windowed_ms: Vec<f64>,
    window: usize,
    causal_acr: f64,
    /// Distance profiles of all heads, from a full pass.
    profile_ms: Vec<f64>,
}

/// Attention alone under one map.
#[derive(Serialize)]
struct AttentionReport {
    tokens: usize,
    heads: usize,
    head_dim: usize,
    /// "full", "window 512", or "mixed".
    map: String,
    causal_acr: f64,
    /// Executed pairs over causal pairs.
    ear: f64,
    ms: Vec<f64>,
}

fn parse_heads(text: &str) -> std::result::Result<(usize, usize), String> {
    let parsed = text
        .split_once('x')
        .and_then(|(h, d)| Some((h.parse().ok()?, d.parse().ok()?)));
    match parsed {
        Some((h @ 1..=256, d @ 1..=256)) => Ok((h, d)),
        _ => Err("give heads x width, each from 1 to 256, as in 12x64".to_owned()),
    }
}

/// Attention of one layer under full, uniform and mixed windows, taking turns.
fn attention(args: &BenchArgs, (n_heads, head_dim): (usize, usize)) -> Result<()> {
    let mut kernel = choose_backend(args.engine, GpuContext::headless)?.kernel();
    let mut reports = Vec::new();
    for &tokens in &args.tokens {
        let seq_len = tokens as usize;
        let numbers = |seed: u32| -> Arc<Vec<f32>> {
            // Any numbers of the usual size do: a fixed sequence of them, about ±1.7.
            let mut state = seed;
            let count = seq_len * n_heads * head_dim;
            Arc::new(
                (0..count)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (state >> 8) as f32 / (1 << 23) as f32 * 1.7 - 1.7
                    })
                    .collect(),
            )
        };
        let qkv = Qkv {
            shape: AttentionShape {
                seq_len,
                n_heads,
                n_kv_heads: n_heads,
                head_dim,
                scale: 1.0 / (head_dim as f32).sqrt(),
                softcap: None,
            },
            q: numbers(1),
            k: numbers(2),
            v: numbers(3),
        };
        let last = |keys: usize| Window::last(keys.max(1)).unwrap_or(Window::Full);
        let mut maps = vec![("full".to_owned(), vec![Window::Full; n_heads])];
        for part in [2, 4, 8, 16] {
            let keys = seq_len / part;
            maps.push((format!("window {keys}"), vec![last(keys); n_heads]));
        }
        let mixed = (0..n_heads).map(|h| match h % 4 {
            0 => Window::Full,
            1 => last(seq_len / 4),
            2 => last(seq_len / 16),
            _ => last(64),
        });
        maps.push(("mixed".to_owned(), mixed.collect()));
        let mut times = vec![Vec::new(); maps.len()];
        let mut ears = vec![0.0; maps.len()];
        let causal = causal_pairs(seq_len) as f64 * n_heads as f64;
        for repeat in 0..=args.repeats {
            for (index, (_, windows)) in maps.iter().enumerate() {
                let jobs: Vec<HeadJob> = windows
                    .iter()
                    .enumerate()
                    .map(|(head, &window)| HeadJob::new(head, window))
                    .collect();
                let mut attended = Attended::zeros(&qkv.shape);
                let started = Instant::now();
                kernel.attend(&qkv, &jobs, 0, &mut attended)?;
                let took = ms(started);
                if repeat > 0 {
                    times[index].push(took);
                }
                ears[index] = attended.executed_pairs.iter().sum::<u64>() as f64 / causal;
            }
        }
        for (((map, windows), ms), ear) in maps.into_iter().zip(times).zip(ears) {
            let mut of_map = WindowMap::full(1, n_heads);
            for (head, window) in windows.into_iter().enumerate() {
                of_map.set(HeadId { layer: 0, head }, window);
            }
            reports.push(AttentionReport {
                tokens: seq_len,
                heads: n_heads,
                head_dim,
                map,
                causal_acr: map_causal_acr(&of_map, seq_len),
                ear,
                ms,
            });
        }
    }
    emit(
        &(serde_json::to_string_pretty(&reports)? + "\n"),
        args.out.as_ref(),
    )
}

pub(super) fn run(args: &BenchArgs) -> Result<()> {
    if let Some(heads) = args.attention {
        return attention(args, heads);
    }
    let started = Instant::now();
    let model = match &args.model {
        Some(name) => open_model(name, true)?,
        None => built_in()?,
    };
    let open_ms = ms(started);
    let backend = choose_backend(args.engine, GpuContext::headless)?;
    let mut kernel = backend.kernel();
    let text = SAMPLES.last().map(|s| s.text).unwrap_or_default();
    let sample = model
        .tokenizer
        .encode(text, model.spec.vocab_size, Bos::Auto)?;
    let mut runs = Vec::new();
    for &count in &args.tokens {
        let count = count as usize;
        if let Some(most) = model.spec.max_tokens().filter(|&m| m < count) {
            bail!("{} has positions for {most} tokens only", model.name);
        }
        let ids: Vec<u32> = sample.ids.iter().copied().cycle().take(count).collect();
        let decoder = Decoder::new(model.clone(), Arc::new(ids))?;
        let window = (count / 8).max(1);
        let full = decoder.full_map();
        let narrow = WindowMap::uniform(
            model.spec.n_layers,
            model.spec.n_heads,
            Window::last(window).unwrap_or(Window::Full),
        );
        let mut report = LengthReport {
            tokens: count,
            loss: None,
            full_ms: Vec::new(),
            windowed_ms: Vec::new(),
            window,
            causal_acr: map_causal_acr(&narrow, count),
            profile_ms: Vec::new(),
        };
        for repeat in 0..=args.repeats {
            let go = &mut |_, _| Flow::Continue;
            let full_started = Instant::now();
            let (run, trace) = decoder.run(kernel.as_mut(), &full, &[], go)?;
            let full_ms = ms(full_started);
            report.loss = run.mean_loss();
            let profile_started = Instant::now();
            distance_profile(&trace, go)?;
            let profile_ms = ms(profile_started);
            drop(trace);
            let narrow_started = Instant::now();
            decoder.run(kernel.as_mut(), &narrow, &[], go)?;
            let narrow_ms = ms(narrow_started);
            if repeat > 0 {
                report.full_ms.push(full_ms);
                report.profile_ms.push(profile_ms);
                report.windowed_ms.push(narrow_ms);
            }
        }
        runs.push(report);
    }
    let report = Report {
        model: model.name.clone(),
        parameters: model.parameters(),
        engine: backend.name(),
        threads: rayon::current_num_threads(),
        open_ms,
        runs,
        peak_rss_kib: peak_rss_kib(),
    };
    emit(
        &(serde_json::to_string_pretty(&report)? + "\n"),
        args.out.as_ref(),
    )
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Linux tells; others do not.
fn peak_rss_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
