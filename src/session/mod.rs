//! The document: a model, a text, the windows, what is selected, and what the engine has found of them so far.
//!
//! Views read it and give back [`Command`]s; [`Session::apply`] is the only place where it changes.

mod command;
mod controller_file;
mod document;
mod map_files;
mod regime;
mod report;
mod source;
mod totals;
mod windows_file;

use std::{collections::BTreeSet, sync::Arc};

pub use command::Command;
pub use controller_file::read_controller;
pub use document::{Document, LongTexts, MAX_PASSAGES, Passage, SourceText, TextSettings};
pub use map_files::{PatternOptions, heat_map_csv, patterns_tsv, read_map};
pub use regime::RegimeState;
pub use report::{Analysis, Loss, Summary};
pub use source::{read_text, sample, text_sources, texts_of_path};
pub use totals::{Mean, TextNumbers, Totals};
pub use windows_file::WindowsFile;

use crate::{
    attention::{HeadId, SinkProfile, WindowMap, coverage_at},
    engine::{Baseline, Event, PassageResult, Windowed},
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
    /// What was found of each passage while others were shown.
    pub results: Vec<Option<Arc<PassageResult>>>,
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
            results: vec![None; document.passages.len()],
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
            Event::Passage(result) => {
                let is_it = |p: &Passage| Arc::ptr_eq(&p.tokens, &result.tokens);
                if let Some(index) = self.passages.iter().position(is_it) {
                    self.results[index] = Some(result.clone());
                }
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
