//! `headscope bench`: how fast a model runs here, as JSON, to be put beside others by `benches/peers/`.

use std::{path::PathBuf, sync::Arc, time::Instant};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use super::{EngineChoice, choose_backend, emit, open_model};
use crate::{
    attention::{Window, WindowMap, pairs::map_causal_acr},
    engine::{Decoder, Flow, distance_profile, gpu::GpuContext},
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

pub(super) fn run(args: &BenchArgs) -> Result<()> {
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
