//! [`RegimeState`]: a regime that is at work on the document, and the hand edits on top of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

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
    /// Windows of groups that were set by hand since, by layer, level and group.
    pub groups: BTreeMap<(usize, usize, usize), Window>,
}

impl RegimeState {
    /// A regime that has not taken a step.
    pub fn new(regime: Regime, config: AahConfig, n_layers: usize, n_heads: usize) -> Self {
        Self {
            regime,
            controller: Arc::new(Controller::new(config, n_layers, n_heads)),
            edited: BTreeSet::new(),
            moved: BTreeSet::new(),
            groups: BTreeMap::new(),
        }
    }

    /// The window of a group: set by hand, else as the controller chose it; full where it chose none.
    pub fn group_window(&self, layer: usize, level: usize, group: usize) -> Window {
        if let Some(window) = self.groups.get(&(layer, level, group)) {
            return *window;
        }
        let chosen = || {
            let control = self.controller.layers.get(layer)?;
            let index = *control.choice.as_ref()?.bounded.get(level)?.get(group)?;
            Window::last(*self.controller.config.windows.get(index)? as usize)
        };
        chosen().unwrap_or(Window::Full)
    }

    /// Sets the window of a group, of all groups below it, and gives its heads and the window that holds for them: under
    /// the parent constraint at most the parent's.
    pub fn set_group_window(
        &mut self,
        layer: usize,
        level: usize,
        group: usize,
        window: Window,
    ) -> (Vec<HeadId>, Window) {
        let controller = self.controller.clone();
        let Some(hierarchy) = controller
            .layers
            .get(layer)
            .and_then(|c| c.hierarchy.as_ref())
        else {
            return (Vec::new(), window);
        };
        let mut window = window;
        if controller.config.parent_constraint
            && let Some(parent) = hierarchy.parent(level, group)
        {
            window = window.min(self.group_window(layer, level + 1, parent));
        }
        let mut members = vec![group];
        for below in (0..=level).rev() {
            for &member in &members {
                self.groups.insert((layer, below, member), window);
            }
            members = members
                .iter()
                .filter_map(|&m| hierarchy.levels.get(below)?.groups.get(m))
                .flatten()
                .copied()
                .collect();
        }
        let heads = members
            .into_iter()
            .map(|head| HeadId { layer, head })
            .collect();
        (heads, window)
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
