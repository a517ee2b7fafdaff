//! [`RegimeState`]: a regime that is at work on the document, and the hand edits on top of it.

use std::{collections::BTreeSet, sync::Arc};

use super::Session;
use crate::{
    aah::{AahConfig, Controller, Regime, diagnostics},
    attention::{HeadId, Window, WindowMap, coverage_at},
};

/// A regime, its controller, and what was edited by hand since its last step.
#[derive(Clone, Debug)]
pub struct RegimeState {
    /// Which.
    pub regime: Regime,
    /// Its controller.
    pub controller: Arc<Controller>,
    /// Heads whose windows were set by hand since.
    pub edited: BTreeSet<HeadId>,
    /// Heads whose windows the last step changed.
    pub moved: BTreeSet<HeadId>,
}

impl RegimeState {
    /// A regime that has not taken a step.
    pub fn new(regime: Regime, config: AahConfig, n_layers: usize, n_heads: usize) -> Self {
        Self {
            regime,
            controller: Arc::new(Controller::new(config, n_layers, n_heads)),
            edited: BTreeSet::new(),
            moved: BTreeSet::new(),
        }
    }

    /// The windows of the controller's last step, in a text of `seq_len` tokens.
    ///
    /// A step may have run on a shorter chunk, whose length bounds its windows: such a window is the candidate that it
    /// was cut from.
    pub fn map(&self, seq_len: usize, sinks: usize) -> WindowMap {
        let controller = &self.controller;
        let mut map =
            WindowMap::full(controller.layers.len(), controller.n_heads()).with_sinks(sinks);
        for (layer, outcome) in controller.outcomes.iter().enumerate() {
            for (head, &keys) in outcome.windows.iter().enumerate() {
                let candidates = &controller.config.windows;
                let keys = candidates
                    .iter()
                    .copied()
                    .find(|&c| c >= keys)
                    .unwrap_or(keys);
                map.set(
                    HeadId { layer, head },
                    Window::of_size(keys as usize, seq_len),
                );
            }
        }
        map
    }
}

impl AahConfig {
    /// A regime for looking at a model that is trained already: the paper's setting, but one step of warm-up, which fills
    /// the statistics, and a choice at every step. (The paper's 100 and 5 are for training.)
    pub fn for_inspection(regime: Regime, windows: Vec<u32>, seed: u64) -> Self {
        Self {
            warmup_steps: 1,
            control_interval: 1,
            seed,
            ..regime.config(windows)
        }
    }
}

impl Session {
    /// Where the windows' coverage lies between chance (0) and the best assignment (1); `None` until the baseline is there,
    /// or where all heads of each layer have the same window.
    pub fn routing_quality(&self) -> Option<f64> {
        let baseline = self.baseline.as_ref()?;
        let sinks = self.current_sinks();
        let layers: Vec<Vec<Vec<f32>>> = (0..self.windows.layers())
            .map(|layer| {
                let windows = self.windows.layer(layer);
                (0..windows.len())
                    .map(|head| {
                        let id = HeadId { layer, head };
                        windows
                            .iter()
                            .map(|&w| coverage_at(&baseline.profile, sinks, id, w))
                            .collect()
                    })
                    .collect()
            })
            .collect();
        diagnostics::routing_quality(&layers)
    }

    /// Heads at each window size, ascending.
    pub fn histogram(&self) -> Vec<(u32, usize)> {
        let seq_len = self.seq_len();
        diagnostics::histogram(self.windows.iter().map(|(_, w)| w.size(seq_len) as u32))
    }

    /// Group of a head on the lowest level, if a regime groups heads.
    pub fn group(&self, head: HeadId) -> Option<usize> {
        let control = self.regime.as_ref()?.controller.layers.get(head.layer)?;
        control.groups().get(head.head).copied()
    }
}
