//! `headscope analyze`: one run, full and windowed, in numbers.

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use super::{RunArgs, emit};
use crate::{
    engine::{Backend, Event, Stage, StepRequest, Wanted, Worker, gpu::GpuContext},
    session::{Analysis, Command, Session, WindowsFile, heat_map_csv, patterns_tsv},
};

#[derive(Debug, Args)]
pub(super) struct AnalyzeArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Form of the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write the result to a file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Save the windows too: windows.json, heat-map .csv, or head-pattern .tsv, by the ending
    #[arg(long, value_name = "FILE")]
    save_windows: Option<PathBuf>,
    /// Include the loss of every token (JSON)
    #[arg(long)]
    tokens: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
    Csv,
}

pub(super) fn run(args: &AnalyzeArgs) -> Result<()> {
    let model = args.run.open_model()?;
    let mut session = args.run.session(model)?;
    if let Some(notice) = session.notice.as_ref().filter(|_| !args.run.quiet) {
        eprintln!("headscope: {notice}");
    }
    let backend = args.run.backend(GpuContext::headless)?;
    complete(&mut session, &backend, args.run.steps, args.run.quiet)?;
    if let Some(path) = &args.save_windows {
        save_windows(&session, path)?;
    }
    let analysis = Analysis::of(&session, &backend, args.tokens);
    let text = match args.format {
        Format::Text => analysis.to_text(),
        Format::Json => serde_json::to_string_pretty(&analysis)? + "\n",
        Format::Csv => analysis.to_csv(),
    };
    emit(&text, args.out.as_ref())
}

/// Runs all that a session wants, full and windowed, showing progress on a terminal.
pub(super) fn complete(
    session: &mut Session,
    backend: &Backend,
    steps: usize,
    quiet: bool,
) -> Result<()> {
    let show = !quiet && std::io::stderr().is_terminal();
    let worker = Worker::spawn(backend.clone(), || {})?;
    let mut wanted = Wanted {
        model: session.model.clone(),
        tokens: session.tokens.clone(),
        windows: session.windows.clone(),
        matrix: None,
        steps: session.regime.as_ref().map(|regime| StepRequest {
            number: 0,
            controller: regime.controller.clone(),
            steps,
            chunk: None,
        }),
        others: session.others.clone(),
    };
    worker.want(wanted.clone());
    while let Some(event) = worker.next_event() {
        session.take(&event);
        match event {
            Event::Progress(p) if show => {
                let stage = match p.stage {
                    Stage::Full => "full",
                    Stage::Profile => "profile",
                    Stage::Windowed => "windowed",
                    Stage::Steps => "controller",
                    Stage::Passages => "other passages",
                };
                let unit = if p.stage == Stage::Passages {
                    ""
                } else {
                    "layer "
                };
                eprint!("\r\x1b[K{stage}: {unit}{}/{}", p.layer, p.layers);
            }
            Event::Stepped(_, controller) => {
                session.apply(Command::TakeSteps(controller))?;
                wanted.windows = session.windows.clone();
                worker.want(wanted.clone());
            }
            Event::FellBack(message) => eprintln!("headscope: {message}; the CPU goes on"),
            Event::Failed(message) => bail!(message),
            // The windows that were chosen are run after the steps.
            Event::Idle if session.is_current() => break,
            _ => {}
        }
    }
    if show {
        eprint!("\r\x1b[K");
    }
    Ok(())
}

fn save_windows(session: &Session, path: &Path) -> Result<()> {
    let seq_len = session.seq_len();
    let ending = path.extension().map(|e| e.to_ascii_lowercase());
    let is = |wanted: &str| ending.as_ref().is_some_and(|e| e == wanted);
    let text = if is("csv") {
        let regime = session.regime.as_ref();
        let name = regime.map_or("by_hand".to_owned(), |r| r.regime.name().replace('-', "_"));
        let candidates = regime.map_or_else(
            || session.histogram().into_iter().map(|(w, _)| w).collect(),
            |r| r.controller.config.windows.clone(),
        );
        heat_map_csv(&session.windows, &name, &candidates, seq_len)
    } else if is("tsv") {
        patterns_tsv(&session.windows, session.model.spec.n_kv_heads, seq_len)
    } else {
        return Ok(WindowsFile::new(&session.windows, &session.model.name, seq_len).write(path)?);
    };
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
