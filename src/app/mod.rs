//! The window: egui views over a [`Session`], and the engine behind it.
//!
//! A view reads the session and gives back actions; it changes nothing itself. The app applies them after all
//! views were drawn, and draws the same frame again where windows changed, so that a drag shows its coverage at once.

mod acr_view;
mod curves;
mod head_view;
mod hierarchy_view;
mod loader;
mod loss_view;
pub mod offscreen;
mod regime_panel;
mod scale;
mod status_bar;
mod text_view;
mod theme;
mod toasts;
mod top_bar;
mod window_map;

use std::{path::PathBuf, sync::Arc, time::Instant};

pub use scale::WindowScale;

use crate::{
    Result,
    aah::{AahConfig, Regime},
    engine::{
        Backend, Event, HeadMatrix, MatrixRequest, Progress, StepRequest, Wanted, Worker,
        gpu::GpuContext,
    },
    session::{Command, Session, TextSettings},
};
use acr_view::AcrView;
use head_view::HeadView;
use hierarchy_view::HierarchyView;
use loader::{Loader, Opened};
use loss_view::LossView;
use regime_panel::RegimePanel;
use text_view::TextView;
use toasts::Toasts;
use top_bar::TopBar;
use window_map::WindowMapView;

/// What a view asks for.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// A change of the document.
    Command(Command),
    /// Ask for a model folder and open it.
    ChooseModel,
    /// Ask for a model file and open it.
    ChooseModelFile,
    /// A model by its path or its name on the hub.
    OpenNamed(String),
    /// End the download.
    CancelDownload,
    /// Ask for text files and open them.
    ChooseText,
    /// Ask for a folder of texts and open it.
    ChooseTextFolder,
    /// Read the texts again under other settings.
    Settings(TextSettings),
    /// Ask where to save the windows.
    SaveWindows,
    /// The built-in model again.
    BuiltInModel,
    /// Open whatever lies here: a model, texts or a window map.
    Open(Vec<PathBuf>),
    /// A sample text, by its number.
    Sample(usize),
    /// The text, edited in place.
    Edited(String),
    /// A regime with its setting, or none; and how many steps it takes at once.
    Regime(Option<(Regime, Box<AahConfig>)>, usize),
    /// So many steps of the regime, on chunks of so many tokens if given.
    Steps(usize, Option<usize>),
}

/// What stands in the middle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MainView {
    /// The attention matrix of the selected head.
    #[default]
    Attention,
    /// The regime's groups of heads.
    Hierarchy,
    /// ACR, coverage and the histogram of windows.
    Acr,
}

/// What stands at the left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SideView {
    #[default]
    Heads,
    Regime,
}

/// How a program starts.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where attention runs.
    pub backend: Backend,
    /// The adapter that draws, in words.
    pub adapter: String,
    /// Whether that adapter is a software rasteriser.
    pub adapter_is_software: bool,
    /// Format of what is drawn on.
    pub target: wgpu::TextureFormat,
    /// How texts become passages.
    pub settings: TextSettings,
}

impl Options {
    /// For a render state of eframe's, with the backend chosen by `choose`.
    pub fn for_render_state(
        state: &egui_wgpu::RenderState,
        settings: TextSettings,
        choose: impl FnOnce(GpuContext) -> Backend,
    ) -> Self {
        let gpu = GpuContext {
            device: state.device.clone(),
            queue: state.queue.clone(),
            info: Arc::new(state.adapter.get_info()),
        };
        Self {
            adapter: crate::engine::gpu::describe(&gpu.info),
            adapter_is_software: gpu.is_software(),
            target: state.target_format,
            settings,
            backend: choose(gpu),
        }
    }
}

/// The matrix that the head view shows, and what it was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct MatrixState {
    /// What is wanted, and whether of the windowed run.
    pub wanted: Option<(MatrixRequest, bool)>,
    /// What is there.
    pub shown: Option<(Arc<HeadMatrix>, bool)>,
}

/// What the engine is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Activity {
    /// Nothing: all that is wanted is there.
    #[default]
    Idle,
    /// Something was asked for.
    Waiting,
    /// It is on its way.
    Running(Progress),
    /// It failed; a toast says why.
    Failed,
}

/// The application.
pub struct App {
    session: Session,
    options: Options,
    worker: Worker,
    loader: Loader,
    toasts: Toasts,
    top_bar: TopBar,
    activity: Activity,
    matrix: MatrixState,
    window_map: WindowMapView,
    head_view: HeadView,
    loss_view: LossView,
    text_view: TextView,
    hierarchy_view: HierarchyView,
    acr_view: AcrView,
    regime_panel: RegimePanel,
    main_view: MainView,
    side_view: SideView,
    /// The latest steps asked for.
    steps: Option<StepRequest>,
    /// What was last asked of the worker.
    asked: Option<Wanted>,
    step_number: u64,
    /// The window's title.
    title: String,
    /// CPU time of the latest frames' user interface, smoothed, in ms.
    frame_ms: f32,
    /// Frames drawn since the last change of what the engine has found.
    frames_since_event: usize,
}

impl App {
    /// The app on a session.
    ///
    /// # Errors
    /// When the engine's thread cannot be started.
    pub fn new(ctx: &egui::Context, session: Session, options: Options) -> Result<Self> {
        theme::install(ctx);
        let wake = ctx.clone();
        let worker = Worker::spawn(options.backend.clone(), move || wake.request_repaint())?;
        let mut toasts = Toasts::default();
        if let Some(notice) = &session.notice {
            toasts.note(notice.clone());
        }
        Ok(Self {
            loader: Loader::new(ctx.clone()),
            worker,
            toasts,
            top_bar: TopBar::default(),
            activity: Activity::Waiting,
            matrix: MatrixState::default(),
            window_map: WindowMapView::default(),
            head_view: HeadView::default(),
            loss_view: LossView::default(),
            text_view: TextView::default(),
            hierarchy_view: HierarchyView::default(),
            acr_view: AcrView::default(),
            regime_panel: RegimePanel::default(),
            main_view: MainView::default(),
            side_view: SideView::default(),
            steps: None,
            asked: None,
            step_number: 0,
            title: String::new(),
            frame_ms: 0.0,
            frames_since_event: 0,
            session,
            options,
        })
    }

    /// The document.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The messages on the screen, oldest first.
    pub fn messages(&self) -> Vec<String> {
        self.toasts.messages()
    }

    /// CPU time of a frame's user interface, smoothed, in milliseconds.
    pub fn frame_ms(&self) -> f32 {
        self.frame_ms
    }

    /// Whether everything wanted is there and was drawn.
    pub fn is_complete(&self) -> bool {
        matches!(self.activity, Activity::Idle | Activity::Failed)
            && !self.loader.is_busy()
            && self.frames_since_event >= 2
    }

    /// Opens whatever lies at `path`: a model, a text or a window map. The result comes in a later frame.
    pub fn open(&mut self, path: PathBuf) {
        self.loader
            .open(vec![path], &self.session, self.options.settings);
    }

    /// Draws one frame.
    pub fn frame_ui(&mut self, ui: &mut egui::Ui) {
        let started = Instant::now();
        self.take_events();
        let mut actions = self.dropped_files(ui.ctx());
        self.draw_ui(ui, &mut actions);
        let windows = self.session.windows.clone();
        for action in actions {
            self.act(action);
        }
        self.ask();
        if self.session.windows != windows {
            // The same frame again, with the new windows in every view.
            ui.ctx().request_discard("windows changed");
        }
        let ms = started.elapsed().as_secs_f32() * 1e3;
        self.frame_ms += (ms - self.frame_ms) * if self.frame_ms == 0.0 { 1.0 } else { 0.1 };
        self.frames_since_event += 1;
        self.name_window(ui.ctx());
        if matches!(self.activity, Activity::Idle) && self.frames_since_event <= 2 {
            // A paint callback added in a window's first frame is dropped: draw once more.
            ui.ctx().request_repaint();
        }
    }

    /// The title says what is open and what it loses: to be read in a task list too.
    fn name_window(&mut self, ctx: &egui::Context) {
        let summary = self.session.summary();
        let mut title = format!(
            "headscope: {}, {}",
            self.session.model.name, self.session.text_name
        );
        if let (Some(full), Some(windowed), true) =
            (summary.loss_full, summary.loss_windowed, summary.is_current)
        {
            title += &format!(", loss {full:.4} → {windowed:.4}");
        }
        if title != self.title {
            self.title.clone_from(&title);
            ctx.send_viewport_cmd(egui::ViewportCommand::Title(title));
        }
    }

    fn draw_ui(&mut self, ui: &mut egui::Ui, actions: &mut Vec<Action>) {
        let session = &self.session;
        egui::Panel::top("top bar").show(ui, |ui| {
            self.top_bar.show_ui(ui, session, self.activity, actions);
        });
        egui::Panel::bottom("status bar").show(ui, |ui| {
            let (activity, loader) = (self.activity, &self.loader);
            let (options, frame_ms) = (&self.options, self.frame_ms);
            status_bar::show_ui(ui, session, options, activity, loader, frame_ms, actions);
        });
        let height = ui.available_height();
        egui::Panel::bottom("text and loss")
            .resizable(true)
            .default_size((height * 0.30).clamp(130.0, 320.0))
            .size_range(90.0..=(height * 0.7).max(91.0))
            .show(ui, |ui| {
                let width = ui.available_width();
                egui::Panel::right("loss")
                    .resizable(true)
                    .default_size((width * 0.38).clamp(220.0, 620.0))
                    .size_range(160.0..=(width * 0.7).max(161.0))
                    .show(ui, |ui| self.loss_view.show_ui(ui, session, actions));
                egui::CentralPanel::default()
                    .show(ui, |ui| self.text_view.show_ui(ui, session, actions));
            });
        let width = ui.available_width();
        egui::Panel::left("heads")
            .resizable(true)
            .default_size((width * 0.27).clamp(220.0, 460.0))
            .size_range(150.0..=(width * 0.5).max(151.0))
            .show(ui, |ui| {
                ui.horizontal(|ui| {
                    ui.selectable_value(&mut self.side_view, SideView::Heads, "heads");
                    ui.selectable_value(&mut self.side_view, SideView::Regime, "regime")
                        .on_hover_text("let a regime of the paper choose the windows");
                });
                match self.side_view {
                    SideView::Heads => self.window_map.show_ui(ui, session, actions),
                    SideView::Regime => self.regime_panel.show_ui(ui, session, actions),
                }
            });
        egui::Panel::right("head")
            .resizable(true)
            .default_size((width * 0.26).clamp(220.0, 420.0))
            .size_range(180.0..=(width * 0.45).max(181.0))
            .show(ui, |ui| curves::show_ui(ui, session, actions));
        egui::CentralPanel::default().show(ui, |ui| {
            ui.horizontal(|ui| {
                let view = &mut self.main_view;
                ui.selectable_value(view, MainView::Attention, "attention");
                ui.selectable_value(view, MainView::Hierarchy, "hierarchy")
                    .on_hover_text("groups of heads that the regime found");
                ui.selectable_value(view, MainView::Acr, "ACR")
                    .on_hover_text("coverage in positions and mass, and the histogram of windows");
            });
            let target = self.options.target;
            match self.main_view {
                MainView::Attention => {
                    self.head_view
                        .show_ui(ui, session, &mut self.matrix, target, actions);
                }
                MainView::Hierarchy => {
                    self.hierarchy_view.show_ui(ui, session, target, actions);
                }
                MainView::Acr => self.acr_view.show_ui(ui, session, actions),
            }
        });
        self.toasts.show_ui(ui.ctx());
        if !ui.ctx().input(|i| i.raw.hovered_files.is_empty()) {
            drop_hint_ui(ui);
        }
    }

    fn dropped_files(&self, ctx: &egui::Context) -> Vec<Action> {
        // Files dropped together belong together.
        let paths: Vec<PathBuf> = ctx.input(|i| {
            let files = i.raw.dropped_files.iter();
            files.map(|file| file.path().to_owned()).collect()
        });
        if paths.is_empty() {
            Vec::new()
        } else {
            vec![Action::Open(paths)]
        }
    }

    fn act(&mut self, action: Action) {
        let settings = self.options.settings;
        match action {
            Action::Command(command) => {
                if let Err(error) = self.session.apply(command) {
                    self.toasts.error(error.to_string());
                }
            }
            Action::ChooseModel => self.loader.choose_model_folder(&self.session, settings),
            Action::ChooseModelFile => self.loader.choose_model_file(&self.session, settings),
            Action::ChooseTextFolder => self.loader.choose_text_folder(&self.session, settings),
            Action::OpenNamed(name) => self.loader.model(name, &self.session, settings),
            Action::CancelDownload => {
                self.loader.cancel_download();
                self.toasts.note(
                    "the download is stopped; what has arrived is kept, and gone on with"
                        .to_owned(),
                );
            }
            Action::Settings(settings) => self.loader.again(&self.session, settings),
            Action::ChooseText => self.loader.choose_text(&self.session, settings),
            Action::SaveWindows => self.loader.save_windows(&self.session),
            Action::BuiltInModel => self.loader.built_in_model(&self.session, settings),
            Action::Open(paths) => self.loader.open(paths, &self.session, settings),
            Action::Sample(index) => self.loader.sample(index, &self.session, settings),
            Action::Regime(regime, steps) => {
                let is_some = regime.is_some();
                if let Err(error) = self.session.apply(Command::SetRegime(regime)) {
                    self.toasts.error(error.to_string());
                }
                self.steps = None;
                if is_some {
                    self.step(steps, None);
                }
            }
            Action::Steps(steps, chunk) => self.step(steps, chunk),
            Action::Edited(text) => self.loader.edited(text, &self.session, settings),
        }
    }

    /// Asks for steps of the regime from where it is.
    fn step(&mut self, steps: usize, chunk: Option<usize>) {
        if let Some(regime) = &self.session.regime {
            self.step_number += 1;
            self.steps = Some(StepRequest {
                number: self.step_number,
                controller: regime.controller.clone(),
                steps,
                chunk,
            });
        }
    }

    /// Chooses what stands in the middle.
    pub fn show(&mut self, view: MainView) {
        self.main_view = view;
    }

    /// Takes the first steps of the session's regime, if it has one that has not taken any.
    pub fn start_regime(&mut self, steps: usize) {
        if self
            .session
            .regime
            .as_ref()
            .is_some_and(|r| r.controller.step == 0)
        {
            self.step(steps, None);
            self.side_view = SideView::Regime;
        }
    }

    fn take_events(&mut self) {
        let events: Vec<Event> = self.worker.events().collect();
        for event in events {
            self.frames_since_event = 0;
            self.session.take(&event);
            match event {
                Event::Progress(progress) => self.activity = Activity::Running(progress),
                Event::Matrix(matrix, windowed) => self.matrix.shown = Some((matrix, windowed)),
                Event::FellBack(message) => {
                    self.options.backend = Backend::Cpu;
                    self.toasts.error(format!("{message}; the CPU goes on"));
                }
                Event::Failed(message) => {
                    self.activity = Activity::Failed;
                    self.toasts.error(message);
                }
                Event::Idle => self.activity = Activity::Idle,
                Event::Baseline(_) | Event::Passage(_) | Event::Windowed(_) | Event::Sinks(..) => {}
                Event::Stepped(number, controller) => {
                    // Of a regime that was chosen since, or of none, nothing is taken.
                    if self.steps.as_ref().is_some_and(|s| s.number == number)
                        && let Err(error) = self.session.apply(Command::TakeSteps(controller))
                    {
                        self.toasts.error(error.to_string());
                    }
                }
            }
        }
        for opened in self.loader.results() {
            self.frames_since_event = 0;
            match opened {
                Ok(Opened::Document(document)) => {
                    let document = *document;
                    if let Err(error) = self.session.apply(Command::SetDocument(document)) {
                        self.toasts.error(error.to_string());
                    }
                    self.matrix = MatrixState::default();
                    self.head_view.fit();
                    self.text_view.stop_editing();
                    self.options.settings = self.session.settings;
                    if let Some(notice) = &self.session.notice {
                        self.toasts.note(notice.clone());
                    }
                }
                Ok(Opened::Windows(map)) => {
                    if let Err(error) = self.session.apply(Command::SetMap(map)) {
                        self.toasts.error(error.to_string());
                    }
                }
                Ok(Opened::Saved(path)) => {
                    self.toasts
                        .note(format!("windows saved to {}", path.display()));
                }
                Err(message) => self.toasts.error(message),
            }
        }
    }

    /// Tells the worker what is wanted now, where that has changed.
    fn ask(&mut self) {
        let wanted = Wanted {
            model: self.session.model.clone(),
            tokens: self.session.tokens.clone(),
            windows: self.session.windows.clone(),
            matrix: self.matrix.wanted.clone(),
            steps: self.steps.clone(),
            others: self.session.others.clone(),
        };
        let same = self.asked.as_ref().is_some_and(|asked| {
            Arc::ptr_eq(&asked.model, &wanted.model)
                && Arc::ptr_eq(&asked.tokens, &wanted.tokens)
                && asked.windows == wanted.windows
                && asked.matrix == wanted.matrix
                && Arc::ptr_eq(&asked.others, &wanted.others)
                && asked.steps.as_ref().map(|s| s.number) == wanted.steps.as_ref().map(|s| s.number)
        });
        if !same {
            self.asked = Some(wanted.clone());
            self.activity = Activity::Waiting;
            self.worker.want(wanted);
        }
    }
}

fn drop_hint_ui(ui: &egui::Ui) {
    let painter = ui.ctx().layer_painter(egui::LayerId::new(
        egui::Order::Foreground,
        egui::Id::unique("drop hint"),
    ));
    let rect = ui.ctx().content_rect();
    painter.rect_filled(rect, 0.0, egui::Color32::from_black_alpha(180));
    painter.text(
        rect.center(),
        egui::Align2::CENTER_CENTER,
        "drop a model folder, a text or a windows.json",
        egui::FontId::proportional(24.0),
        egui::Color32::WHITE,
    );
}

impl eframe::App for App {
    fn ui(&mut self, ui: &mut egui::Ui, _frame: &mut eframe::Frame) {
        self.frame_ui(ui);
    }
}
