//! [`Worker`]: a thread that owns the engine, so that the window never waits.
//!
//! The window says what it *wants* (a model, tokens, windows, a part of a matrix); the worker does what is missing.
//! The newest wish wins: a pass that is not wanted any more stops before its next layer.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use super::{
    Control, Decoder, Flow, HeadMatrix, MatrixRequest, Run, Trace,
    attend::AttentionKernel,
    cpu::{CpuAttention, attention::distance_masses},
    gpu::{GpuAttention, GpuContext},
    head_matrix,
};
use crate::{
    Error, Result,
    aah::Controller,
    attention::{DistanceProfile, SinkProfile, WindowMap},
    model::Model,
};

/// Where attention runs.
#[derive(Clone, Debug, Default)]
pub enum Backend {
    /// On the CPU.
    #[default]
    Cpu,
    /// On this graphics device.
    Gpu(GpuContext),
}

impl Backend {
    /// A kernel on this backend.
    pub fn kernel(&self) -> Box<dyn AttentionKernel> {
        match self {
            Self::Cpu => Box::new(CpuAttention),
            Self::Gpu(gpu) => Box::new(GpuAttention::new(gpu.clone())),
        }
    }

    /// "CPU" or "GPU".
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Gpu(_) => "GPU",
        }
    }
}

/// Everything that the window wants to see.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The model.
    pub model: Arc<Model>,
    /// The tokens; another `Arc` means another text.
    pub tokens: Arc<Vec<u32>>,
    /// The windows and sinks.
    pub windows: WindowMap,
    /// The part of a matrix that is on the screen, and whether of the windowed run.
    pub matrix: Option<(MatrixRequest, bool)>,
    /// Steps for the controller to take, once for each number.
    pub steps: Option<StepRequest>,
    /// Other passages to run under the same windows, when all else is done; another `Arc` means others.
    pub others: Arc<Vec<Arc<Vec<u32>>>>,
}

/// Steps of a controller on the current text.
#[derive(Clone, Debug)]
pub struct StepRequest {
    /// Another number, another request.
    pub number: u64,
    /// Where it starts from.
    pub controller: Arc<Controller>,
    /// How many steps.
    pub steps: usize,
    /// Tokens of a chunk: every step then runs on the next chunk of the text. `None` for the whole text each time.
    pub chunk: Option<usize>,
}

impl Wanted {
    fn same_text(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.model, &other.model) && Arc::ptr_eq(&self.tokens, &other.tokens)
    }
}

/// A run with full attention, and all that follows from it without another.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// The tokens it ran on.
    pub tokens: Arc<Vec<u32>>,
    /// What it measured.
    pub run: Run,
    /// How far back every head looks.
    pub profile: DistanceProfile,
}

/// A run under windows.
#[derive(Clone, Debug)]
pub struct Windowed {
    /// The tokens it ran on.
    pub tokens: Arc<Vec<u32>>,
    /// What it measured.
    pub run: Run,
}

/// What was found of a passage that is not on show.
#[derive(Clone, Debug)]
pub struct PassageResult {
    /// The tokens it ran on.
    pub tokens: Arc<Vec<u32>>,
    /// The run with full attention.
    pub full: Run,
    /// How far back every head looks.
    pub profile: DistanceProfile,
    /// What the sinks get, if there are any.
    pub sinks: Option<Arc<SinkProfile>>,
    /// The run under windows, once it is there.
    pub windowed: Option<Run>,
}

/// What the worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Other passages; layers are passages here.
    Passages,
    /// The run with full attention.
    Full,
    /// Distance profiles.
    Profile,
    /// The run under windows.
    Windowed,
    /// A controller's steps.
    Steps,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// In which stage.
    pub stage: Stage,
    /// Layers done.
    pub layer: usize,
    /// Layers in all.
    pub layers: usize,
}

/// What the worker tells the window.
#[derive(Clone, Debug)]
pub enum Event {
    /// It is on its way.
    Progress(Progress),
    /// The run with full attention is there.
    Baseline(Arc<Baseline>),
    /// The mass that sinks get was measured on the baseline of these tokens.
    Sinks(Arc<Vec<u32>>, Arc<SinkProfile>),
    /// The run under windows is there.
    Windowed(Arc<Windowed>),
    /// One of the other passages has run under the windows.
    Passage(Arc<PassageResult>),
    /// The steps of this number were taken.
    Stepped(u64, Arc<Controller>),
    /// A part of a matrix is there; whether of the windowed run.
    Matrix(Arc<HeadMatrix>, bool),
    /// The graphics device failed; the CPU goes on.
    FellBack(String),
    /// What was wanted cannot be had, in a sentence.
    Failed(String),
    /// All that was wanted is there.
    Idle,
}

#[derive(Default)]
struct Slot {
    wanted: Option<Wanted>,
    quit: bool,
}

#[derive(Default)]
struct Mailbox {
    slot: Mutex<Slot>,
    changed: Condvar,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Slot> {
        // A wish is replaced whole: a poisoned lock guards nothing half-done.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle to the thread; it ends when this is dropped.
pub struct Worker {
    mailbox: Arc<Mailbox>,
    events: Receiver<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread. `wake` is called after every event, from the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn spawn(backend: Backend, wake: impl Fn() + Send + 'static) -> Result<Self> {
        let mailbox = Arc::new(Mailbox::default());
        let (sender, events) = channel();
        let its_mailbox = mailbox.clone();
        let thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || {
                let mut state = State {
                    mailbox: its_mailbox,
                    sender,
                    wake: Box::new(wake),
                    kernel: backend.kernel(),
                    backend,
                    loaded: None,
                    passages: Vec::new(),
                };
                while let Some(wanted) = state.next() {
                    state.serve(wanted);
                }
            })
            .map_err(|e| Error::io("start", std::path::Path::new("the engine's thread"), e))?;
        Ok(Self {
            mailbox,
            events,
            thread: Some(thread),
        })
    }

    /// Says what is wanted from now on.
    pub fn want(&self, wanted: Wanted) {
        self.mailbox.lock().wanted = Some(wanted);
        self.mailbox.changed.notify_one();
    }

    /// What has happened since the last call. Never waits.
    pub fn events(&self) -> impl Iterator<Item = Event> + '_ {
        self.events.try_iter()
    }

    /// Waits for the next event; for use without a window.
    pub fn next_event(&self) -> Option<Event> {
        self.events.recv().ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.mailbox.lock().quit = true;
        self.mailbox.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // At most one layer long; a panic in it was reported already.
            let _ = thread.join();
        }
    }
}

/// What is known of the current text.
struct Loaded {
    wanted: Wanted,
    decoder: Decoder,
    baseline: Option<Trace>,
    windowed: Option<Trace>,
    /// Measured for this many sinks.
    sinks: usize,
    /// Number of the latest steps that were taken.
    stepped: Option<u64>,
    matrix: Option<(MatrixRequest, bool)>,
}

struct State {
    mailbox: Arc<Mailbox>,
    sender: Sender<Event>,
    wake: Box<dyn Fn() + Send>,
    backend: Backend,
    kernel: Box<dyn AttentionKernel>,
    loaded: Option<Loaded>,
    /// What is known of other passages of the model that is loaded.
    passages: Vec<Arc<PassageResult>>,
}

impl State {
    /// Waits for the next wish; `None` at the end.
    fn next(&self) -> Option<Wanted> {
        let mut slot = self.mailbox.lock();
        loop {
            if slot.quit {
                return None;
            }
            if let Some(wanted) = slot.wanted.take() {
                return Some(wanted);
            }
            slot = self
                .mailbox
                .changed
                .wait(slot)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn send(&self, event: Event) {
        // Nobody listens any more only while the program ends.
        let _ = self.sender.send(event);
        (self.wake)();
    }

    fn serve(&mut self, wanted: Wanted) {
        let before = self.loaded.take();
        let is_same_model = |old: &Loaded| Arc::ptr_eq(&old.wanted.model, &wanted.model);
        if !before.as_ref().is_some_and(is_same_model) {
            self.passages.clear();
        }
        let mut loaded = match before {
            Some(mut loaded) if loaded.wanted.same_text(&wanted) => {
                loaded.wanted = wanted;
                loaded
            }
            _ => match Decoder::new(wanted.model.clone(), wanted.tokens.clone()) {
                Ok(decoder) => Loaded {
                    wanted,
                    decoder,
                    baseline: None,
                    windowed: None,
                    sinks: 0,
                    stepped: None,
                    matrix: None,
                },
                Err(error) => return self.send(Event::Failed(error.to_string())),
            },
        };
        let result = loop {
            let result = catch_unwind(AssertUnwindSafe(|| self.advance(&mut loaded)));
            match result {
                Ok(Err(Error::Gpu(message))) if matches!(self.backend, Backend::Gpu(_)) => {
                    self.backend = Backend::Cpu;
                    self.kernel = self.backend.kernel();
                    self.send(Event::FellBack(message));
                }
                other => break other,
            }
        };
        match result {
            Ok(Ok(())) => self.send(Event::Idle),
            Ok(Err(Error::Cancelled)) => {}
            Ok(Err(error)) => self.send(Event::Failed(error.to_string())),
            Err(_) => {
                tracing::error!("the engine panicked");
                // What it had may be half-done.
                return self.send(Event::Failed(
                    "the engine met a fault of its own and gave up this run; please report it"
                        .to_owned(),
                ));
            }
        }
        self.loaded = Some(loaded);
    }

    /// Does what is missing, most urgent first.
    fn advance(&mut self, loaded: &mut Loaded) -> Result<()> {
        if loaded.baseline.is_none() {
            let full = loaded.decoder.full_map();
            let (run, trace) = self.run(loaded, Stage::Full, &full, &[])?;
            let profile = self.profile(loaded, &trace)?;
            loaded.baseline = Some(trace);
            self.send(Event::Baseline(Arc::new(Baseline {
                tokens: loaded.wanted.tokens.clone(),
                run,
                profile,
            })));
        }
        let Some(baseline) = &loaded.baseline else {
            return Ok(());
        };
        let sinks = loaded.wanted.windows.sinks;
        if sinks != loaded.sinks {
            loaded.sinks = sinks;
            let seq_len = loaded.wanted.tokens.len();
            let profile = sink_profile(baseline, sinks, seq_len);
            self.send(Event::Sinks(
                loaded.wanted.tokens.clone(),
                Arc::new(profile),
            ));
        }
        self.serve_matrix(loaded, false);
        if let Some(request) = loaded.wanted.steps.clone()
            && loaded.stepped != Some(request.number)
        {
            let controller = self.take_steps(loaded, &request)?;
            loaded.stepped = Some(request.number);
            // The windows that follow are asked for by whoever takes the controller.
            self.send(Event::Stepped(request.number, Arc::new(controller)));
        }

        let is_current = |trace: &Trace| trace.windows == loaded.wanted.windows;
        if !loaded.windowed.as_ref().is_some_and(is_current) {
            let known: Vec<&Trace> = loaded.baseline.iter().chain(&loaded.windowed).collect();
            let windows = loaded.wanted.windows.clone();
            let (run, trace) = self.run(loaded, Stage::Windowed, &windows, &known)?;
            loaded.windowed = Some(trace);
            // The matrix on the screen was of the windows before.
            if loaded
                .matrix
                .as_ref()
                .is_some_and(|(_, windowed)| *windowed)
            {
                loaded.matrix = None;
            }
            self.send(Event::Windowed(Arc::new(Windowed {
                tokens: loaded.wanted.tokens.clone(),
                run,
            })));
        }
        self.serve_matrix(loaded, true);
        self.serve_passages(loaded)
    }

    /// Runs the other passages, full and under the windows. Their traces are not kept: a change of windows runs them
    /// whole again, in the background.
    fn serve_passages(&mut self, loaded: &Loaded) -> Result<()> {
        let others = loaded.wanted.others.clone();
        let windows = loaded.wanted.windows.clone();
        self.passages
            .retain(|known| others.iter().any(|t| Arc::ptr_eq(t, &known.tokens)));
        let is_full = windows
            .first_difference(&loaded.decoder.full_map().with_sinks(windows.sinks))
            .is_none();
        for (number, tokens) in others.iter().enumerate() {
            let known = self
                .passages
                .iter()
                .position(|known| Arc::ptr_eq(&known.tokens, tokens));
            let is_current = |result: &PassageResult| {
                result
                    .windowed
                    .as_ref()
                    .is_some_and(|run| run.windows == windows)
            };
            if known.is_some_and(|index| is_current(&self.passages[index])) {
                continue;
            }
            self.send(Event::Progress(Progress {
                stage: Stage::Passages,
                layer: number,
                layers: others.len(),
            }));
            let mailbox = self.mailbox.clone();
            let mut control = |_, _| {
                let slot = mailbox.lock();
                let obsolete = slot.wanted.as_ref().is_some_and(|newer| {
                    !newer.same_text(&loaded.wanted)
                        || newer.windows != windows
                        || newer.matrix != loaded.wanted.matrix
                        || newer.steps.as_ref().map(|s| s.number)
                            != loaded.wanted.steps.as_ref().map(|s| s.number)
                        || !Arc::ptr_eq(&newer.others, &others)
                });
                if slot.quit || obsolete {
                    Flow::Stop
                } else {
                    Flow::Continue
                }
            };
            let decoder = Decoder::new(loaded.wanted.model.clone(), tokens.clone())?;
            let kernel = self.kernel.as_mut();
            let fits = |result: &PassageResult| {
                windows.sinks == 0
                    || result
                        .sinks
                        .as_ref()
                        .is_some_and(|s| s.sinks() == windows.sinks)
            };
            let mut result = match known.map(|index| &self.passages[index]) {
                Some(result) if fits(result) => (**result).clone(),
                _ => {
                    let full = decoder.full_map();
                    let (run, trace) = decoder.run(kernel, &full, &[], &mut control)?;
                    let profile = distance_profile(&trace, &mut control)?;
                    let sinks = (windows.sinks > 0)
                        .then(|| Arc::new(sink_profile(&trace, windows.sinks, tokens.len())));
                    PassageResult {
                        tokens: tokens.clone(),
                        full: run,
                        profile,
                        sinks,
                        windowed: None,
                    }
                }
            };
            result.windowed = Some(if is_full {
                result.full.clone()
            } else {
                decoder.run(kernel, &windows, &[], &mut control)?.0
            });
            let result = Arc::new(result);
            match known {
                Some(index) => self.passages[index] = result.clone(),
                None => self.passages.push(result.clone()),
            }
            self.send(Event::Passage(result));
        }
        Ok(())
    }

    fn take_steps(&mut self, loaded: &Loaded, request: &StepRequest) -> Result<Controller> {
        let sinks = loaded.wanted.windows.sinks;
        let mailbox = self.mailbox.clone();
        let mut controller = (*request.controller).clone();
        let tokens = loaded.decoder.tokens();
        for done in 0..request.steps {
            let progress = Progress {
                stage: Stage::Steps,
                layer: done,
                layers: request.steps,
            };
            self.send(Event::Progress(progress));
            let mut control = |_, _| {
                let slot = mailbox.lock();
                let obsolete = slot.wanted.as_ref().is_some_and(|newer| {
                    !newer.same_text(&loaded.wanted)
                        || newer.steps.as_ref().map(|s| s.number) != Some(request.number)
                });
                if slot.quit || obsolete {
                    Flow::Stop
                } else {
                    Flow::Continue
                }
            };
            let kernel = self.kernel.as_mut();
            let next = match request.chunk.filter(|&c| c < tokens.len()) {
                None => {
                    loaded
                        .decoder
                        .step(kernel, &controller, sinks, &mut control)?
                        .0
                }
                Some(chunk) => {
                    let chunk = chunk.max(2);
                    let count = (tokens.len() / chunk).max(1);
                    let start = controller.step % count * chunk;
                    let part = tokens[start..(start + chunk).min(tokens.len())].to_vec();
                    let decoder = Decoder::new(loaded.wanted.model.clone(), Arc::new(part))?;
                    decoder.step(kernel, &controller, sinks, &mut control)?.0
                }
            };
            controller = next;
        }
        Ok(controller)
    }

    fn serve_matrix(&self, loaded: &mut Loaded, windowed: bool) {
        let trace = if windowed {
            &loaded.windowed
        } else {
            &loaded.baseline
        };
        let Some(wanted) = loaded
            .wanted
            .matrix
            .as_ref()
            .filter(|(_, w)| *w == windowed)
        else {
            return;
        };
        if loaded.matrix.as_ref() == Some(wanted) {
            return;
        }
        if let Some(matrix) = trace.as_ref().and_then(|t| head_matrix(t, &wanted.0)) {
            loaded.matrix = Some(wanted.clone());
            self.send(Event::Matrix(Arc::new(matrix), windowed));
        }
    }

    fn run(
        &mut self,
        loaded: &Loaded,
        stage: Stage,
        windows: &WindowMap,
        known: &[&Trace],
    ) -> Result<(Run, Trace)> {
        let mailbox = self.mailbox.clone();
        let sender = self.sender.clone();
        let wake = &self.wake;
        let mut control = |layer, layers| {
            let slot = mailbox.lock();
            let obsolete = slot.wanted.as_ref().is_some_and(|newer| {
                !newer.same_text(&loaded.wanted)
                    || (stage == Stage::Windowed && newer.windows != *windows)
            });
            if slot.quit || obsolete {
                return Flow::Stop;
            }
            drop(slot);
            let progress = Progress {
                stage,
                layer,
                layers,
            };
            let _ = sender.send(Event::Progress(progress));
            wake();
            Flow::Continue
        };
        loaded
            .decoder
            .run(self.kernel.as_mut(), windows, known, &mut control)
    }

    fn profile(&self, loaded: &Loaded, trace: &Trace) -> Result<DistanceProfile> {
        distance_profile(trace, &mut |layer, layers| {
            let slot = self.mailbox.lock();
            let newer = slot.wanted.as_ref();
            if slot.quit || newer.is_some_and(|newer| !newer.same_text(&loaded.wanted)) {
                return Flow::Stop;
            }
            drop(slot);
            self.send(Event::Progress(Progress {
                stage: Stage::Profile,
                layer,
                layers,
            }));
            Flow::Continue
        })
    }
}

/// The distance profile of a run with full attention.
///
/// # Errors
/// [`Error::Cancelled`] when `control` says stop.
pub fn distance_profile(full: &Trace, control: Control<'_>) -> Result<DistanceProfile> {
    let seq_len = full.layers.first().map_or(0, |l| l.qkv.shape.seq_len);
    let mut masses = Vec::with_capacity(full.layers.len());
    for (layer, kept) in full.layers.iter().enumerate() {
        if control(layer, full.layers.len()) == Flow::Stop {
            return Err(Error::Cancelled);
        }
        let windows = full.windows.layer(layer);
        masses.push(distance_masses(
            &kept.qkv,
            windows,
            kept.reach,
            0,
            &kept.attended.lse,
            seq_len,
        ));
    }
    Ok(DistanceProfile::from_layers(
        &masses,
        full.windows.heads(),
        seq_len,
    ))
}

/// The mass that the first `sinks` keys get in a run with full attention.
pub fn sink_profile(full: &Trace, sinks: usize, seq_len: usize) -> SinkProfile {
    let masses: Vec<Vec<f32>> = full
        .layers
        .iter()
        .enumerate()
        .map(|(layer, kept)| {
            let windows = full.windows.layer(layer);
            distance_masses(&kept.qkv, windows, kept.reach, 0, &kept.attended.lse, sinks)
        })
        .collect();
    SinkProfile::from_layers(&masses, sinks, full.windows.heads(), seq_len)
}
