//! [`Loader`]: opens models and texts on threads of their own; what was there stays until the new one is whole.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    attention::WindowMap,
    contain::contained,
    model::{HubProgress, Model, SAMPLES, built_in},
    session::{
        Document, PatternOptions, Session, SourceText, TextSettings, WindowsFile, read_map,
        texts_of_path,
    },
};

/// What came of a wish.
pub(super) enum Opened {
    /// A model on a text, tokenised.
    Document(Box<Document>),
    /// A window map.
    Windows(WindowMap),
    /// The windows were saved here.
    Saved(PathBuf),
}

/// A result, or nothing where the user changed their mind.
type Outcome = Result<Option<Opened>>;

/// A model on its way from the hub.
#[derive(Clone)]
pub(super) struct Download {
    /// Its name.
    pub name: String,
    progress: Arc<Mutex<Option<HubProgress>>>,
    is_cancelled: Arc<AtomicBool>,
}

impl Download {
    /// How far it is; `None` before the first byte.
    pub fn progress(&self) -> Option<HubProgress> {
        let progress = self.progress.lock();
        progress.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends it; what has arrived stays for the next time.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }
}

pub(super) struct Loader {
    ctx: egui::Context,
    sender: Sender<(u64, Outcome)>,
    receiver: Receiver<(u64, Outcome)>,
    /// Numbers of what is being opened.
    running: Vec<u64>,
    started: u64,
    download: Option<(u64, Download)>,
}

impl Loader {
    pub fn new(ctx: egui::Context) -> Self {
        let (sender, receiver) = channel();
        Self {
            ctx,
            sender,
            receiver,
            running: Vec::new(),
            started: 0,
            download: None,
        }
    }

    /// Whether something is being opened.
    pub fn is_busy(&self) -> bool {
        !self.running.is_empty()
    }

    /// The model that is being fetched.
    pub fn download(&self) -> Option<&Download> {
        self.download.as_ref().map(|(_, download)| download)
    }

    /// Ends the download, at once for the user: a connection that hangs ends when it may.
    pub fn cancel_download(&mut self) {
        if let Some((number, download)) = self.download.take() {
            download.cancel();
            self.running.retain(|&n| n != number);
        }
    }

    /// What has come since the last call; failures in a sentence.
    pub fn results(&mut self) -> Vec<std::result::Result<Opened, String>> {
        let outcomes: Vec<(u64, Outcome)> = self.receiver.try_iter().collect();
        let mut results = Vec::new();
        for (number, outcome) in outcomes {
            let is_wanted = self.running.contains(&number);
            self.running.retain(|&n| n != number);
            if self.download.as_ref().is_some_and(|(n, _)| *n == number) {
                self.download = None;
            }
            match outcome {
                // What was cancelled while it came is not wanted any more.
                _ if !is_wanted => {}
                Err(Error::Cancelled) | Ok(None) => {}
                Ok(Some(opened)) => results.push(Ok(opened)),
                Err(error) => results.push(Err(error.to_string())),
            }
        }
        results
    }

    fn start(&mut self, work: impl FnOnce() -> Outcome + Send + 'static) -> u64 {
        let (sender, ctx) = (self.sender.clone(), self.ctx.clone());
        self.started += 1;
        let number = self.started;
        let spawned = std::thread::Builder::new()
            .name("loader".to_owned())
            .spawn(move || {
                // A file from a stranger may trip a library: that is a failure to open it, no more.
                let outcome = contained(work).unwrap_or_else(|_| {
                    Err(Error::Text(
                        "this file made the program stumble: it is damaged or of an unknown kind"
                            .to_owned(),
                    ))
                });
                // Nobody listens any more only while the program ends.
                let _ = sender.send((number, outcome));
                ctx.request_repaint();
            });
        match spawned {
            Ok(_) => self.running.push(number),
            Err(error) => tracing::error!("cannot start a thread: {error}"),
        }
        number
    }

    /// Opens whatever lies at these paths, on the session's model or text. Several are several texts.
    pub fn open(&mut self, paths: Vec<PathBuf>, session: &Session, settings: TextSettings) {
        let current = session.document.clone();
        self.start(move || open_any(&paths, &current, settings).map(Some));
    }

    /// Opens a model by its path or its name on the hub.
    pub fn model(&mut self, name: String, session: &Session, settings: TextSettings) {
        self.cancel_download();
        let current = session.document.clone();
        let download = Download {
            name: name.clone(),
            progress: Arc::default(),
            is_cancelled: Arc::default(),
        };
        let (its, ctx) = (download.clone(), self.ctx.clone());
        let number = self.start(move || {
            let model = Model::open_named(Path::new(name.trim()), &mut |p| {
                *its.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(p);
                ctx.request_repaint_after(Duration::from_millis(100));
                !its.is_cancelled.load(Ordering::Relaxed)
            })?;
            document(current.again(model, settings))
        });
        self.download = Some((number, download));
    }

    pub fn sample(&mut self, index: usize, session: &Session, settings: TextSettings) {
        if let Some(sample) = SAMPLES.get(index) {
            let source = SourceText {
                name: sample.name.to_owned(),
                text: sample.text.to_owned(),
            };
            self.texts(vec![source], session, settings);
        }
    }

    /// The session's model on these texts.
    pub fn texts(&mut self, texts: Vec<SourceText>, session: &Session, settings: TextSettings) {
        let model = session.model.clone();
        self.start(move || document(Document::of_texts(model, texts, settings)));
    }

    /// The text on show, edited.
    pub fn edited(&mut self, text: String, session: &Session, settings: TextSettings) {
        let mut sources = (*session.sources).clone();
        let passage = session.passages.get(session.current);
        if let Some(source) = passage.and_then(|p| sources.get_mut(p.source)) {
            if !source.name.ends_with(" (edited)") {
                source.name += " (edited)";
            }
            source.text = text;
        }
        self.texts(sources, session, settings);
    }

    /// The same texts under other settings.
    pub fn again(&mut self, session: &Session, settings: TextSettings) {
        let current = session.document.clone();
        self.start(move || document(current.again(current.model.clone(), settings)));
    }

    pub fn built_in_model(&mut self, session: &Session, settings: TextSettings) {
        let current = session.document.clone();
        self.start(move || document(current.again(built_in()?, settings)));
    }

    pub fn choose_model_folder(&mut self, session: &Session, settings: TextSettings) {
        // Made here: some systems open dialogs only from the main thread. Waited for on another.
        let dialog = rfd::AsyncFileDialog::new()
            .set_title("Open a model folder")
            .pick_folder();
        self.chosen_folder(dialog, session, settings);
    }

    pub fn choose_text_folder(&mut self, session: &Session, settings: TextSettings) {
        let dialog = rfd::AsyncFileDialog::new()
            .set_title("Open a folder of texts")
            .pick_folder();
        self.chosen_folder(dialog, session, settings);
    }

    fn chosen_folder(
        &mut self,
        dialog: impl Future<Output = Option<rfd::FileHandle>> + Send + 'static,
        session: &Session,
        settings: TextSettings,
    ) {
        let current = session.document.clone();
        self.start(move || {
            chosen(dialog)?
                .map(|folder| open_any(&[folder.path().to_owned()], &current, settings))
                .transpose()
        });
    }

    pub fn choose_model_file(&mut self, session: &Session, settings: TextSettings) {
        let dialog = rfd::AsyncFileDialog::new()
            .set_title("Open a model file")
            .add_filter("models", &["gguf", "safetensors"])
            .pick_files();
        self.chosen_files(dialog, session, settings);
    }

    pub fn choose_text(&mut self, session: &Session, settings: TextSettings) {
        let dialog = rfd::AsyncFileDialog::new()
            .set_title("Open texts, or windows.json")
            .pick_files();
        self.chosen_files(dialog, session, settings);
    }

    fn chosen_files(
        &mut self,
        dialog: impl Future<Output = Option<Vec<rfd::FileHandle>>> + Send + 'static,
        session: &Session,
        settings: TextSettings,
    ) {
        let current = session.document.clone();
        self.start(move || {
            chosen(dialog)?
                .map(|files| {
                    let paths: Vec<PathBuf> = files.iter().map(|f| f.path().to_owned()).collect();
                    open_any(&paths, &current, settings)
                })
                .transpose()
        });
    }

    pub fn save_windows(&mut self, session: &Session) {
        let file = WindowsFile::new(&session.windows, &session.model.name, session.seq_len());
        let dialog = rfd::AsyncFileDialog::new()
            .set_title("Save the windows")
            .set_file_name("windows.json")
            .save_file();
        self.start(move || {
            let Some(target) = chosen(dialog)? else {
                return Ok(None);
            };
            let path = target.path().to_owned();
            file.write(&path)?;
            Ok(Some(Opened::Saved(path)))
        });
    }
}

/// Nobody cancels a dialog faster than this: one that is gone so soon never opened.
const FASTEST_CANCEL: Duration = Duration::from_millis(400);

/// Waits for a file dialog; `None` where the user changed their mind.
///
/// # Errors
/// When the system has no file dialog to show.
fn chosen<T>(dialog: impl Future<Output = Option<T>>) -> Result<Option<T>> {
    let started = Instant::now();
    let choice = pollster::block_on(dialog);
    if choice.is_none() && started.elapsed() < FASTEST_CANCEL {
        return Err(Error::Text(
            "no file dialog could be opened: install xdg-desktop-portal or zenity, or drop the file on this window"
                .to_owned(),
        ));
    }
    Ok(choice)
}

fn document(document: Result<Document>) -> Outcome {
    document.map(|d| Some(Opened::Document(Box::new(d))))
}

fn open_any(paths: &[PathBuf], current: &Document, settings: TextSettings) -> Result<Opened> {
    let opened = |document: Document| Opened::Document(Box::new(document));
    if let [path] = paths {
        let extension = path.extension().map(|e| e.to_ascii_lowercase());
        let is = |wanted: &str| extension.as_ref().is_some_and(|e| e == wanted);
        let is_model_folder = path.is_dir()
            && ["config.json", "model.safetensors", "pytorch_model.bin"]
                .iter()
                .any(|file| path.join(file).exists());
        let is_config = path.file_name().is_some_and(|n| n == "config.json");
        let is_pickled = is("bin") || is("pt") || is("pth");
        if is_model_folder || is_config || is_pickled || is("safetensors") || is("gguf") {
            return current.again(Model::open(path)?, settings).map(opened);
        }
        if is("json") || is("csv") || is("tsv") {
            let spec = &current.model.spec;
            let shape = (spec.n_layers, spec.n_heads);
            let map = read_map(path, shape, PatternOptions::default())?;
            return Ok(Opened::Windows(map));
        }
    }
    let mut texts = Vec::new();
    for path in paths {
        texts.extend(texts_of_path(path)?);
    }
    Document::of_texts(current.model.clone(), texts, settings).map(opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialog_that_never_opened_is_told_from_one_that_was_cancelled() {
        let error = chosen(std::future::ready(None::<()>))
            .unwrap_err()
            .to_string();
        assert!(error.contains("drop the file"), "{error}");
        let slow = async {
            std::thread::sleep(FASTEST_CANCEL + Duration::from_millis(20));
            None::<()>
        };
        assert!(chosen(slow).unwrap().is_none());
        assert_eq!(chosen(std::future::ready(Some(3))).unwrap(), Some(3));
    }
}
