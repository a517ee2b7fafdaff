//! [`Command`]: every change of the document, the same for mouse, keyboard and command line.

use std::sync::Arc;

use super::{Document, RegimeState, Selection, Session};
use crate::{
    Error, Result,
    aah::{AahConfig, Controller, Regime},
    attention::{HeadId, Window, WindowMap},
};

/// A change of the document.
#[derive(Clone, Debug)]
pub enum Command {
    /// The same window for some heads.
    SetWindow {
        /// Which.
        heads: Vec<HeadId>,
        /// Their window.
        window: Window,
    },
    /// A window for a group of the regime's hierarchy and all heads in it, at most its parent's where that holds.
    SetGroupWindow {
        /// Layer.
        layer: usize,
        /// Level, heads' groups first.
        level: usize,
        /// Group of that level.
        group: usize,
        /// The window wanted.
        window: Window,
    },
    /// All heads full; sinks stay.
    AllFull,
    /// All windows and sinks at once.
    SetMap(WindowMap),
    /// A regime with its setting, before its first step; or none. Windows stay as they are.
    SetRegime(Option<(Regime, Box<AahConfig>)>),
    /// The regime's controller has taken steps: its windows become the map.
    TakeSteps(Arc<Controller>),
    /// How many first keys every head keeps.
    SetSinks(usize),
    /// What is selected.
    Select(Selection),
    /// The token whose keys are looked at.
    SetQuery(Option<usize>),
    /// Another passage of the document.
    ShowPassage(usize),
    /// Another model or text. Windows stay where the model does, and start full with a new one; sinks stay.
    SetDocument(Document),
}

impl Session {
    /// Makes a change, or leaves everything as it was and says why.
    ///
    /// # Errors
    /// When a map does not fit the model.
    pub fn apply(&mut self, command: Command) -> Result<()> {
        match command {
            Command::SetWindow { heads, window } => {
                for head in heads {
                    self.windows.set(head, window);
                    if let Some(regime) = &mut self.regime {
                        regime.edited.insert(head);
                    }
                }
            }
            Command::SetGroupWindow {
                layer,
                level,
                group,
                window,
            } => {
                if let Some(regime) = &mut self.regime {
                    let (heads, window) = regime.set_group_window(layer, level, group, window);
                    for head in heads {
                        self.windows.set(head, window);
                        regime.edited.insert(head);
                    }
                }
            }
            Command::AllFull => {
                let spec = &self.model.spec;
                self.windows =
                    WindowMap::full(spec.n_layers, spec.n_heads).with_sinks(self.windows.sinks);
            }
            Command::SetMap(map) => {
                let spec = &self.model.spec;
                if (map.layers(), map.heads()) != (spec.n_layers, spec.n_heads) {
                    return Err(Error::Windows(format!(
                        "the window map is for {} layers of {} heads, but this model has {} of {}",
                        map.layers(),
                        map.heads(),
                        spec.n_layers,
                        spec.n_heads
                    )));
                }
                self.windows = map;
            }
            Command::SetRegime(regime) => {
                let spec = &self.model.spec;
                let shape = (spec.n_layers, spec.n_heads);
                self.regime = regime
                    .map(|(regime, config)| RegimeState::new(regime, *config, shape.0, shape.1));
            }
            Command::TakeSteps(controller) => {
                let (seq_len, sinks) = (self.seq_len(), self.windows.sinks);
                if let Some(regime) = &mut self.regime {
                    regime.controller = controller;
                    regime.edited.clear();
                    regime.groups.clear();
                    let map = regime.map(seq_len, sinks);
                    let old = &self.windows;
                    regime.moved = map
                        .iter()
                        .filter(|(h, w)| old.get(*h).size(seq_len) != w.size(seq_len))
                        .map(|(head, _)| head)
                        .collect();
                    self.windows = map;
                }
            }
            Command::SetSinks(sinks) => self.windows.sinks = sinks,
            Command::Select(selection) => {
                let query = self.selection.query;
                self.selection = Selection { query, ..selection };
            }
            Command::SetQuery(query) => {
                self.selection.query = query.filter(|&q| q < self.seq_len());
            }
            Command::ShowPassage(index) => {
                if index != self.current && index < self.passages.len() {
                    self.keep_current();
                    self.document.show(index);
                    (self.baseline, self.windowed, self.sinks) = (None, None, None);
                    self.selection.query = None;
                }
            }
            Command::SetDocument(document) => {
                let mut next = Self::new(document);
                if Arc::ptr_eq(&next.model, &self.model) {
                    next.windows = self.windows.clone();
                    next.regime = self.regime.take();
                    next.selection = Selection {
                        query: None,
                        ..self.selection.clone()
                    };
                } else {
                    next.windows.sinks = self.windows.sinks;
                }
                *self = next;
            }
        }
        Ok(())
    }
}
