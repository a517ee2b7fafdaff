//! `headscope analyze`: one run, full and windowed, in numbers.

use std::{io::IsTerminal as _, path::PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use super::{RunArgs, emit};
use crate::{
    engine::{Backend, Event, Stage, Wanted, Worker, gpu::GpuContext},
    session::{Analysis, Session},
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
    let backend = args.run.backend(GpuContext::headless)?;
    complete(&mut session, &backend, args.run.quiet)?;
    let analysis = Analysis::of(&session, &backend, args.tokens);
    let text = match args.format {
        Format::Text => analysis.to_text(),
        Format::Json => serde_json::to_string_pretty(&analysis)? + "\n",
        Format::Csv => analysis.to_csv(),
    };
    emit(&text, args.out.as_ref())
}

/// Runs all that a session wants, full and windowed, showing progress on a terminal.
pub(super) fn complete(session: &mut Session, backend: &Backend, quiet: bool) -> Result<()> {
    let show = !quiet && std::io::stderr().is_terminal();
    let worker = Worker::spawn(backend.clone(), || {})?;
    worker.want(Wanted {
        model: session.model.clone(),
        tokens: session.tokens.clone(),
        windows: session.windows.clone(),
        matrix: None,
    });
    while let Some(event) = worker.next_event() {
        session.take(&event);
        match event {
            Event::Progress(p) if show => {
                let stage = match p.stage {
                    Stage::Full => "full",
                    Stage::Profile => "profile",
                    Stage::Windowed => "windowed",
                };
                eprint!("\r\x1b[K{stage}: layer {}/{}", p.layer, p.layers);
            }
            Event::FellBack(message) => eprintln!("headscope: {message}; the CPU goes on"),
            Event::Failed(message) => bail!(message),
            Event::Idle => break,
            _ => {}
        }
    }
    if show {
        eprint!("\r\x1b[K");
    }
    Ok(())
}
