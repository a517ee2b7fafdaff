//! The document: a model, a text, the windows, what is selected, and what the engine has found of them so far.
//!
//! Views read it and give back [`Command`]s; [`Session::apply`] is the only place where it changes.

mod command;
mod controller_file;
mod map_files;
mod regime;
mod report;
mod source;
mod windows_file;

use std::{collections::BTreeSet, sync::Arc};

pub use command::Command;
pub use controller_file::read_controller;
pub use map_files::{PatternOptions, heat_map_csv, patterns_tsv, read_map};
pub use regime::RegimeState;
pub use report::{Analysis, Loss, Summary};
pub use source::{read_text, sample, text_source};
pub use windows_file::WindowsFile;

use crate::{
    Result,
    attention::{HeadId, SinkProfile, WindowMap, coverage_at},
    engine::{Baseline, Event, Windowed},
    model::{Bos, Model, TokenizedText},
};

/// Which heads and which query the user looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The head shown in detail.
    pub focus: HeadId,
    /// All selected heads, the focus among them.
    pub heads: BTreeSet<HeadId>,
    /// The token whose keys are looked at, if any.
    pub query: Option<usize>,
}

impl Selection {
    /// One head.
    pub fn one(head: HeadId) -> Self {
        Self {
            focus: head,
            heads: BTreeSet::from([head]),
            query: None,
        }
    }
}

/// A model and a text, tokenised: what takes time to open, and is opened away from the window's thread.
#[derive(Clone, Debug)]
pub struct Document {
    /// The model.
    pub model: Arc<Model>,
    /// What the text is called: a sample's or a file's name.
    pub text_name: String,
    /// The text and its tokens.
    pub text: Arc<TokenizedText>,
    /// The token ids; another `Arc` for another text.
    pub tokens: Arc<Vec<u32>>,
}

impl Document {
    /// Reads `text` with the model's tokenizer. At most `context` tokens are used, if given.
    ///
    /// # Errors
    /// When the tokenizer cannot read the text, or the text is empty.
    pub fn new(
        model: Arc<Model>,
        text_name: &str,
        text: &str,
        context: Option<usize>,
    ) -> Result<Self> {
        let mut tokenized = model
            .tokenizer
            .encode(text, model.spec.vocab_size, Bos::Auto)?;
        if let Some(context) = context {
            tokenized = tokenized.truncated(context);
        }
        if tokenized.is_empty() {
            return Err(crate::Error::Text(
                "the text is empty: type or open one with at least one token".to_owned(),
            ));
        }
        if let Some(most) = model.spec.max_tokens().filter(|&m| tokenized.len() > m) {
            return Err(crate::Error::Text(format!(
                "{text_name} has {} tokens, but {} has positions for {most} only: use a shorter text, or \
                 --context {most}",
                tokenized.len(),
                model.name
            )));
        }
        Ok(Self {
            model,
            text_name: text_name.to_owned(),
            tokens: Arc::new(tokenized.ids.clone()),
            text: Arc::new(tokenized),
        })
    }
}

/// The document, and all that is known of it.
#[derive(Clone, Debug)]
pub struct Session {
    /// The model and the text.
    pub document: Document,
    /// The windows and sinks.
    pub windows: WindowMap,
    /// What is selected.
    pub selection: Selection,
    /// The run with full attention, once it is there.
    pub baseline: Option<Arc<Baseline>>,
    /// The latest run under windows, perhaps of windows before the current ones.
    pub windowed: Option<Arc<Windowed>>,
    /// What the sinks get, once measured.
    pub sinks: Option<Arc<SinkProfile>>,
    /// The regime at work, if any.
    pub regime: Option<RegimeState>,
}

impl std::ops::Deref for Session {
    type Target = Document;

    fn deref(&self) -> &Document {
        &self.document
    }
}

impl Session {
    /// A document with every head full.
    pub fn new(document: Document) -> Self {
        let spec = &document.model.spec;
        // The middle of a model shows more of its character than its first layer.
        let focus = HeadId {
            layer: spec.n_layers / 2,
            head: 0,
        };
        Self {
            windows: WindowMap::full(spec.n_layers, spec.n_heads),
            selection: Selection::one(focus),
            baseline: None,
            windowed: None,
            sinks: None,
            regime: None,
            document,
        }
    }

    /// Tokens in use, T.
    pub fn seq_len(&self) -> usize {
        self.tokens.len()
    }

    /// Takes in what the engine found. Results of another text, come too late, are dropped.
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::Baseline(baseline) if Arc::ptr_eq(&baseline.tokens, &self.tokens) => {
                self.baseline = Some(baseline.clone());
            }
            Event::Windowed(windowed) if Arc::ptr_eq(&windowed.tokens, &self.tokens) => {
                self.windowed = Some(windowed.clone());
            }
            Event::Sinks(tokens, profile) if Arc::ptr_eq(tokens, &self.tokens) => {
                self.sinks = Some(profile.clone());
            }
            _ => {}
        }
    }

    /// What the sinks get, if it was measured for the current number of them.
    pub fn current_sinks(&self) -> Option<&SinkProfile> {
        self.sinks
            .as_deref()
            .filter(|s| s.sinks() == self.windows.sinks && self.windows.sinks > 0)
    }

    /// Whether the latest windowed run is of the current windows.
    pub fn is_current(&self) -> bool {
        self.windowed
            .as_ref()
            .is_some_and(|w| w.run.windows == self.windows)
    }

    /// Mass coverage of one head under its current window; `None` until the baseline is there.
    pub fn coverage(&self, head: HeadId) -> Option<f32> {
        let baseline = self.baseline.as_ref()?;
        Some(coverage_at(
            &baseline.profile,
            self.current_sinks(),
            head,
            self.windows.get(head),
        ))
    }

    /// The numbers of the whole map.
    pub fn summary(&self) -> Summary {
        Summary::of(self)
    }
}
