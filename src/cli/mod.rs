//! The command line: one file a subcommand; without one, the window.

mod analyze;
mod bench;
mod doctor;
mod tokens;
mod window;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    aah::{AahConfig, Regime},
    attention::{Window, WindowMap},
    engine::{Backend, gpu::GpuContext},
    model::{Bos, HubProgress, Model, SAMPLES, built_in},
    session::{
        Command, Document, LongTexts, PatternOptions, Session, SourceText, TextSettings,
        read_controller, read_map, text_sources,
    },
};

/// See, and reshape, how far back every attention head of a language model looks.
///
/// Without a subcommand the window opens. MODEL is a Hugging Face folder (config.json, safetensors, tokenizer.json), a
/// GGUF file, or a name on the Hugging Face hub; without one, the built-in model is used. Without a display the window is drawn to headscope.png instead.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Subcommands>,
    #[command(flatten)]
    window: window::WindowArgs,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// One run, full and windowed, as text, JSON or CSV
    Analyze(Box<analyze::AnalyzeArgs>),
    /// How fast a model runs here, as JSON
    Bench(bench::BenchArgs),
    /// How the model's tokenizer cuts a text: ids, pieces and bytes
    Tokens(tokens::TokensArgs),
    /// Graphics adapters, limits, kernel self-tests, and what would be used
    Doctor,
}

/// What to run, and how: shared by the window and the subcommands.
#[derive(Clone, Debug, Args)]
struct RunArgs {
    /// Model: a folder, a .gguf or .safetensors file, or a name on the Hugging Face hub (owner/name, owner/name@revision,
    /// owner/name/FILE.gguf); the built-in model if left out
    model: Option<PathBuf>,
    /// Text: a file, a folder of texts, "-" for standard input, or "sample:NAME"; several are analysed together
    #[arg(long, value_name = "FILE|FOLDER|-|sample:NAME")]
    text: Vec<String>,
    /// What becomes of a text longer than the model was made for: whole where its positions go on, cut, or in blocks
    #[arg(long, value_enum, default_value_t = LongChoice::Whole)]
    long: LongChoice,
    /// Whether texts and blocks begin with the token for a beginning; auto: as the model's tokenizer does
    #[arg(long, value_enum, default_value_t = BosChoice::Auto)]
    bos: BosChoice,
    /// Use at most this many tokens of a text, or of a block
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Windows of all heads: windows.json, the paper's heat-map CSV, or DuoAttention's head patterns (TSV)
    #[arg(long, value_name = "FILE", conflicts_with = "window")]
    windows: Option<PathBuf>,
    /// The same window for every head, in keys including the query's own
    #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// Windows chosen by a regime of the paper, e.g. full-adaptive; see the README
    #[arg(long, value_name = "NAME", value_parser = parse_regime, conflicts_with_all = ["window", "windows"])]
    regime: Option<Regime>,
    /// Steps that the regime's controller takes
    #[arg(long, value_name = "K", default_value_t = 3)]
    steps: usize,
    /// Seed of the regime's controller
    #[arg(long, value_name = "N", default_value_t = 0)]
    controller_seed: u64,
    /// Weights of the regime's controller from a safetensors file, instead of from the seed
    #[arg(long, value_name = "FILE", requires = "regime")]
    controller: Option<PathBuf>,
    /// Candidate windows of the regime, ascending; if left out an eighth, a quarter, a half and all of the text
    #[arg(long, value_name = "W,W,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    candidates: Vec<u32>,
    /// Head patterns: heads with at least this score stay full
    #[arg(long, value_name = "SCORE", conflicts_with = "sparsity")]
    threshold: Option<f32>,
    /// Head patterns: this share of heads keeps only sinks and recent keys
    #[arg(long, value_name = "SHARE")]
    sparsity: Option<f32>,
    /// Head patterns: recent keys kept; else the config.json beside the file says
    #[arg(long, value_name = "KEYS")]
    recent: Option<usize>,
    /// First keys that every head keeps beside its window
    #[arg(long, value_name = "S")]
    sinks: Option<usize>,
    /// Where attention runs; auto: the GPU where it is real hardware
    #[arg(long, value_enum, default_value_t = EngineChoice::Auto)]
    engine: EngineChoice,
    /// Say nothing but the result
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LongChoice {
    Whole,
    Cut,
    Blocks,
}

impl From<LongChoice> for LongTexts {
    fn from(choice: LongChoice) -> Self {
        match choice {
            LongChoice::Whole => Self::Whole,
            LongChoice::Cut => Self::Cut,
            LongChoice::Blocks => Self::Blocks,
        }
    }
}

/// Whether a text begins with the token for a beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BosChoice {
    Auto,
    On,
    Off,
}

impl From<BosChoice> for Bos {
    fn from(choice: BosChoice) -> Self {
        match choice {
            BosChoice::Auto => Self::Auto,
            BosChoice::On => Self::On,
            BosChoice::Off => Self::Off,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineChoice {
    Auto,
    Cpu,
    Gpu,
}

impl RunArgs {
    fn open_model(&self) -> Result<Arc<Model>> {
        Ok(match &self.model {
            Some(name) => open_model(name, self.quiet)?,
            None => built_in()?,
        })
    }

    /// How texts become passages.
    fn text_settings(&self) -> TextSettings {
        TextSettings {
            context: self.context.map(|c| c as usize),
            long: self.long.into(),
            bos: self.bos.into(),
        }
    }

    fn session(&self, model: Arc<Model>) -> Result<Session> {
        let mut texts = Vec::new();
        for source in &self.text {
            texts.extend(text_sources(source)?);
        }
        if texts.is_empty() {
            texts.push(SourceText {
                name: SAMPLES[0].name.to_owned(),
                text: SAMPLES[0].text.to_owned(),
            });
        }
        let document = Document::of_texts(model, texts, self.text_settings())?;
        let mut session = Session::new(document);
        let mut map = match (&self.windows, self.window) {
            (Some(path), _) => {
                let spec = &session.model.spec;
                let options = PatternOptions {
                    threshold: self.threshold,
                    sparsity: self.sparsity,
                    sinks: self.sinks,
                    recent: self.recent,
                };
                read_map(path, (spec.n_layers, spec.n_heads), options)?
            }
            (None, Some(n)) => {
                let spec = &session.model.spec;
                WindowMap::uniform(spec.n_layers, spec.n_heads, Window::Last(n))
            }
            (None, None) => session.windows.clone(),
        };
        if let Some(sinks) = self.sinks {
            map.sinks = sinks;
        }
        session.apply(Command::SetMap(map))?;
        if let Some(regime) = self.regime {
            let mut windows = self.candidates.clone();
            if windows.is_empty() {
                windows = AahConfig::scaled_windows(session.seq_len());
            }
            windows.sort_unstable();
            windows.dedup();
            let config = AahConfig::for_inspection(regime, windows, self.controller_seed);
            session.apply(Command::SetRegime(Some((regime, Box::new(config)))))?;
            if let (Some(path), Some(state)) = (&self.controller, &mut session.regime) {
                let controller = read_controller(path, (*state.controller).clone())?;
                state.controller = Arc::new(controller);
            }
        }
        Ok(session)
    }

    /// The backend asked for; `gpu` makes or lends the device.
    fn backend(&self, gpu: impl FnOnce() -> crate::Result<GpuContext>) -> Result<Backend> {
        choose_backend(self.engine, gpu)
    }
}

/// Opens a model by path or by its name on the hub.
fn open_model(name: &std::path::Path, quiet: bool) -> Result<Arc<Model>> {
    Ok(Model::open_named(name, &mut show_progress(quiet))?)
}

/// Shows a download's progress on a terminal.
fn show_progress(quiet: bool) -> impl FnMut(HubProgress) -> bool {
    use std::io::IsTerminal as _;
    let shows = !quiet && std::io::stderr().is_terminal();
    move |p| {
        if shows {
            let (number, count) = p.number;
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let end = if p.done_bytes >= p.total_bytes {
                "\n"
            } else {
                ""
            };
            eprint!(
                "\r\x1b[K{} ({number} of {count}): {:.1} of {:.1} MiB{end}",
                p.file,
                mib(p.done_bytes),
                mib(p.total_bytes)
            );
        }
        true
    }
}

fn parse_regime(name: &str) -> std::result::Result<Regime, String> {
    Regime::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Regime::ALL.iter().map(|r| r.name()).collect();
        format!(
            "there is no regime \"{name}\"; there are: {}",
            names.join(", ")
        )
    })
}

/// `auto` takes the GPU where it is real hardware; a software rasteriser is slower than the CPU's own kernels.
fn choose_backend(
    choice: EngineChoice,
    gpu: impl FnOnce() -> crate::Result<GpuContext>,
) -> Result<Backend> {
    match choice {
        EngineChoice::Cpu => Ok(Backend::Cpu),
        EngineChoice::Gpu => Ok(Backend::Gpu(gpu()?)),
        EngineChoice::Auto => Ok(match gpu() {
            Ok(gpu) if !gpu.is_software() => Backend::Gpu(gpu),
            Ok(_) => Backend::Cpu,
            Err(error) => {
                tracing::debug!("no GPU: {error}");
                Backend::Cpu
            }
        }),
    }
}

/// Writes a result where it was asked to go.
fn emit(text: &str, out: Option<&PathBuf>) -> Result<()> {
    use std::io::Write as _;
    match out {
        Some(path) => {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        }
        None => {
            let mut stdout = std::io::stdout().lock();
            match stdout.write_all(text.as_bytes()) {
                // The reader has seen enough.
                Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
                other => other.context("cannot write to standard output"),
            }
        }
    }
}

/// Runs the program: exit code 0, 1 with one message on stderr, or 2 for wrong arguments.
pub fn main() -> ExitCode {
    crate::contain::quieten();
    let filter = tracing_subscriber::EnvFilter::try_from_env("HEADSCOPE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("headscope=info,error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .init();
    let cli = Cli::parse();
    let result = match cli.command {
        None => window::run(&cli.window),
        Some(Subcommands::Analyze(args)) => analyze::run(&args),
        Some(Subcommands::Bench(args)) => bench::run(&args),
        Some(Subcommands::Tokens(args)) => tokens::run(&args),
        Some(Subcommands::Doctor) => doctor::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("headscope: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
