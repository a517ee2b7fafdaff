//! [`Loader`]: opens models and texts on threads of their own; what was there stays until the new one is whole.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use crate::{
    Result,
    attention::WindowMap,
    model::{Model, SAMPLES, built_in},
    session::{Document, PatternOptions, Session, WindowsFile, read_map, read_text},
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

pub(super) struct Loader {
    ctx: egui::Context,
    sender: Sender<Outcome>,
    receiver: Receiver<Outcome>,
    running: usize,
}

impl Loader {
    pub fn new(ctx: egui::Context) -> Self {
        let (sender, receiver) = channel();
        Self {
            ctx,
            sender,
            receiver,
            running: 0,
        }
    }

    /// Whether something is being opened.
    pub fn is_busy(&self) -> bool {
        self.running > 0
    }

    /// What has come since the last call; failures in a sentence.
    pub fn results(&mut self) -> Vec<std::result::Result<Opened, String>> {
        let outcomes: Vec<Outcome> = self.receiver.try_iter().collect();
        self.running = self.running.saturating_sub(outcomes.len());
        outcomes
            .into_iter()
            .filter_map(|outcome| match outcome {
                Ok(opened) => opened.map(Ok),
                Err(error) => Some(Err(error.to_string())),
            })
            .collect()
    }

    fn start(&mut self, work: impl FnOnce() -> Outcome + Send + 'static) {
        let (sender, ctx) = (self.sender.clone(), self.ctx.clone());
        let spawned = std::thread::Builder::new()
            .name("loader".to_owned())
            .spawn(move || {
                // A file from a stranger may trip a library: that is a failure to open it, no more.
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
                    .unwrap_or_else(|_| {
                        Err(crate::Error::Text(
                            "this file made the program stumble: it is damaged or of an unknown kind"
                                .to_owned(),
                        ))
                    });
                // Nobody listens any more only while the program ends.
                let _ = sender.send(outcome);
                ctx.request_repaint();
            });
        match spawned {
            Ok(_) => self.running += 1,
            Err(error) => tracing::error!("cannot start a thread: {error}"),
        }
    }

    /// Opens whatever lies at `path`, on the session's model or text.
    pub fn open(&mut self, path: PathBuf, session: &Session, context: Option<usize>) {
        let current = session.document.clone();
        self.start(move || open_any(&path, &current, context).map(Some));
    }

    pub fn sample(&mut self, index: usize, session: &Session, context: Option<usize>) {
        if let Some(sample) = SAMPLES.get(index) {
            self.text(
                sample.name.to_owned(),
                sample.text.to_owned(),
                session,
                context,
            );
        }
    }

    pub fn text(&mut self, name: String, text: String, session: &Session, context: Option<usize>) {
        let model = session.model.clone();
        self.start(move || document(model, &name, &text, context).map(Some));
    }

    pub fn built_in_model(&mut self, session: &Session, context: Option<usize>) {
        let current = session.document.clone();
        self.start(move || {
            document(built_in()?, &current.text_name, &current.text.text, context).map(Some)
        });
    }

    pub fn choose_model(&mut self, session: &Session, context: Option<usize>) {
        let current = session.document.clone();
        // Made here: some systems open dialogs only from the main thread. Waited for on another.
        let dialog = rfd::AsyncFileDialog::new()
            .set_title("Open a model folder")
            .pick_folder();
        self.start(move || {
            chosen(dialog)?
                .map(|folder| open_any(folder.path(), &current, context))
                .transpose()
        });
    }

    pub fn choose_text(&mut self, session: &Session, context: Option<usize>) {
        let current = session.document.clone();
        let dialog = rfd::AsyncFileDialog::new()
            .set_title("Open a text or windows.json")
            .pick_file();
        self.start(move || {
            chosen(dialog)?
                .map(|file| open_any(file.path(), &current, context))
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
        return Err(crate::Error::Text(
            "no file dialog could be opened: install xdg-desktop-portal or zenity, or drop the file on this window"
                .to_owned(),
        ));
    }
    Ok(choice)
}

fn document(model: Arc<Model>, name: &str, text: &str, context: Option<usize>) -> Result<Opened> {
    let document = Document::new(model, name, text, context)?;
    Ok(Opened::Document(Box::new(document)))
}

fn open_any(path: &Path, current: &Document, context: Option<usize>) -> Result<Opened> {
    let extension = path.extension().map(|e| e.to_ascii_lowercase());
    let is = |wanted: &str| extension.as_ref().is_some_and(|e| e == wanted);
    if path.is_dir() || is("safetensors") || path.file_name().is_some_and(|n| n == "config.json") {
        let model = Model::open(path)?;
        return document(model, &current.text_name, &current.text.text, context);
    }
    if is("json") || is("csv") || is("tsv") {
        let spec = &current.model.spec;
        let shape = (spec.n_layers, spec.n_heads);
        let map = read_map(path, shape, PatternOptions::default())?;
        return Ok(Opened::Windows(map));
    }
    let name = path
        .file_name()
        .map_or_else(|| "text".to_owned(), |n| n.to_string_lossy().into_owned());
    document(current.model.clone(), &name, &read_text(path)?, context)
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
