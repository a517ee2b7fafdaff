//! The regime panel: choose a regime or control, set its parameters, take steps, and see what moved.

use std::sync::Arc;

use egui::RichText;

use super::{Action, theme};
use crate::{
    aah::{
        AahConfig, Regime,
        ablation::WindowAblation,
        clustering::Metric,
        controller::{InputMode, Pairwise},
        diagnostics,
        hierarchy::GroupFeatureMode,
    },
    attention::WindowMap,
    session::{RegimeState, Session},
};

/// Steps taken at once after a change: one to fill the statistics, one to choose.
const STEPS_AFTER_CHANGE: usize = 2;

/// Where the candidate windows come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Candidates {
    #[default]
    Scaled,
    Paper,
}

impl Candidates {
    fn windows(self, seq_len: usize) -> Vec<u32> {
        match self {
            Self::Scaled => AahConfig::scaled_windows(seq_len),
            Self::Paper => AahConfig::default().windows,
        }
    }
}

/// The view's own state.
pub(super) struct RegimePanel {
    candidates: Candidates,
    steps: usize,
    chunk: usize,
    quality: QualityCache,
}

/// The routing quality of the map it was last asked for: an assignment a layer is too much work for every frame.
#[derive(Default)]
struct QualityCache {
    key: Option<(WindowMap, usize, usize)>,
    quality: Option<f64>,
}

impl QualityCache {
    fn get(&mut self, session: &Session) -> Option<f64> {
        let baseline = session
            .baseline
            .as_ref()
            .map_or(0, |b| Arc::as_ptr(b) as usize);
        let sinks = session
            .sinks
            .as_ref()
            .map_or(0, |s| Arc::as_ptr(s) as usize);
        let is_known = self
            .key
            .as_ref()
            .is_some_and(|(map, b, s)| *map == session.windows && *b == baseline && *s == sinks);
        if !is_known {
            self.key = Some((session.windows.clone(), baseline, sinks));
            self.quality = session.routing_quality();
        }
        self.quality
    }
}

impl Default for RegimePanel {
    fn default() -> Self {
        Self {
            candidates: Candidates::default(),
            steps: 5,
            chunk: 256,
            quality: QualityCache::default(),
        }
    }
}

impl RegimePanel {
    pub fn show_ui(&mut self, ui: &mut egui::Ui, session: &Session, actions: &mut Vec<Action>) {
        let current = session.regime.as_ref();
        let mut chosen = current.map(|r| r.regime);
        let name = chosen.map_or("none: by hand", Regime::name);
        egui::ComboBox::from_label("regime")
            .selected_text(name)
            .width(190.0)
            .height(420.0)
            .show_ui(ui, |ui| {
                ui.selectable_value(&mut chosen, None, "none: by hand");
                for regime in Regime::ALL {
                    ui.selectable_value(&mut chosen, Some(regime), regime.name())
                        .on_hover_text(regime.explanation());
                }
            });
        let explanation = chosen.map_or("windows are set by hand", Regime::explanation);
        ui.add(egui::Label::new(weak(ui, explanation)).wrap());
        let before = self.candidates;
        ui.horizontal_wrapped(|ui| {
            ui.label("windows");
            ui.selectable_value(&mut self.candidates, Candidates::Scaled, "scaled")
                .on_hover_text("an eighth, a quarter, a half and all of the text");
            ui.selectable_value(&mut self.candidates, Candidates::Paper, "the paper's")
                .on_hover_text("512, 1,024, 2,048 and 4,096 keys, at most the text's length");
        });
        let windows = self.candidates.windows(session.seq_len());
        if chosen != current.map(|r| r.regime) {
            let regime = chosen.map(|r| {
                let seed = current.map_or(0, |c| c.controller.config.seed);
                (
                    r,
                    Box::new(AahConfig::for_inspection(r, windows.clone(), seed)),
                )
            });
            actions.push(Action::Regime(regime, STEPS_AFTER_CHANGE));
            return;
        }
        let Some(state) = current else { return };
        self.steps_ui(ui, session, actions);
        ui.separator();
        let mut config = state.controller.config.clone();
        if before != self.candidates {
            config.windows = windows;
        }
        egui::ScrollArea::vertical()
            .id_salt("regime parameters")
            .auto_shrink([false, false])
            .show(ui, |ui| parameters_ui(ui, &mut config));
        if config != state.controller.config {
            actions.push(Action::Regime(
                Some((state.regime, Box::new(config))),
                STEPS_AFTER_CHANGE,
            ));
        }
    }

    fn steps_ui(&mut self, ui: &mut egui::Ui, session: &Session, actions: &mut Vec<Action>) {
        let Some(state) = &session.regime else { return };
        ui.horizontal_wrapped(|ui| {
            if ui
                .button("step")
                .on_hover_text("run the model once and choose again")
                .clicked()
            {
                actions.push(Action::Steps(1, None));
            }
            ui.add(
                egui::DragValue::new(&mut self.steps)
                    .range(1..=500)
                    .prefix("k = "),
            );
            if ui.button("k steps").clicked() {
                actions.push(Action::Steps(self.steps, None));
            }
            if ui
                .button("restart")
                .on_hover_text("the same regime from its first step")
                .clicked()
            {
                let config = Box::new(state.controller.config.clone());
                actions.push(Action::Regime(
                    Some((state.regime, config)),
                    STEPS_AFTER_CHANGE,
                ));
            }
        });
        ui.horizontal_wrapped(|ui| {
            let most = session.seq_len().max(3);
            let count = (session.seq_len() / self.chunk.max(2)).max(1);
            let follow = ui.button("follow the text").on_hover_text(format!(
                "one step on each of {count} chunks of the text, in order"
            ));
            if follow.clicked() {
                actions.push(Action::Steps(count, Some(self.chunk)));
            }
            ui.add(
                egui::DragValue::new(&mut self.chunk)
                    .range(2..=most)
                    .prefix("chunks of "),
            );
        });
        let controller = &state.controller;
        let path = controller
            .outcomes
            .first()
            .map_or("not yet stepped", |o| match o.path {
                crate::aah::Path::FullAttention => "full attention",
                crate::aah::Path::GroupingOnly => "grouping only",
                crate::aah::Path::Warmup => "warm-up: full attention",
                crate::aah::Path::Update => "chosen anew",
                crate::aah::Path::Cached => "kept",
            });
        ui.label(format!("step {}: {path}", controller.step));
        ui.label(format!(
            "{} heads moved, {} edited by hand",
            state.moved.len(),
            state.edited.len()
        ));
        diagnostics_ui(ui, session, state);
        let quality = self
            .quality
            .get(session)
            .map_or_else(|| "–".to_owned(), |q| format!("{q:+.3}"));
        ui.label(format!("routing quality {quality}")).on_hover_text(
            "coverage of this map between the mean over random orders of the same windows in each layer (0) and the \
             best order (1)",
        );
    }
}

/// How sure the controller was, and how much it moved.
fn diagnostics_ui(ui: &mut egui::Ui, session: &Session, state: &RegimeState) {
    let controller = &state.controller;
    let mean = |values: Vec<f32>| {
        (!values.is_empty()).then(|| values.iter().sum::<f32>() / values.len() as f32)
    };
    let shown = |value: Option<f32>| value.map_or_else(|| "–".to_owned(), |v| format!("{v:.3}"));
    let churn = mean(
        controller
            .outcomes
            .iter()
            .filter_map(|o| o.group_change_rate)
            .collect(),
    );
    let margins = controller.layers.iter().filter_map(|l| l.choice.as_ref());
    let margin = mean(margins.filter_map(diagnostics::mean_margin).collect());
    ui.label(format!("group change {}, margin {}", shown(churn), shown(margin))).on_hover_text(
        "share of heads whose group changed in the last step; mean distance of the best logit from the second",
    );
    let (mut small, mut large) = (0, 0);
    for outcome in &controller.outcomes {
        let candidates: Vec<u32> = controller
            .config
            .windows
            .iter()
            .map(|w| (*w).min(session.seq_len() as u32))
            .collect();
        let (at_small, at_large) = diagnostics::collapsed(&outcome.windows, &candidates);
        small += usize::from(at_small);
        large += usize::from(at_large);
    }
    if small + large > 0 {
        ui.colored_label(
            theme::bad(ui.visuals()),
            format!("collapsed: {small} layers at the smallest window, {large} at the largest"),
        )
        .on_hover_text("at least 98 % of the layer's heads have the same extreme window");
    }
}

fn weak(ui: &egui::Ui, text: &str) -> RichText {
    RichText::new(text).color(theme::weak(ui.visuals())).small()
}

fn parameters_ui(ui: &mut egui::Ui, config: &mut AahConfig) {
    let paper = AahConfig::default();
    let slider = |ui: &mut egui::Ui, value: &mut f32, range, name: &str, paper: f32, text: &str| {
        ui.add(egui::Slider::new(value, range).text(name).max_decimals(3))
            .on_hover_text(format!("{text}\nthe paper: {paper}"));
    };
    let count =
        |ui: &mut egui::Ui, value: &mut usize, range, name: &str, paper: usize, text: &str| {
            ui.horizontal(|ui| {
                let label = ui.label(name);
                ui.add(egui::DragValue::new(value).range(range).speed(0.1))
                    .labelled_by(label.id)
                    .on_hover_text(format!("{text}\nthe paper: {paper}"));
            });
        };
    ui.strong("groups");
    slider(
        ui,
        &mut config.sim_threshold,
        -1.0..=1.0,
        "similarity",
        paper.sim_threshold,
        "least cosine for heads to share a group",
    );
    slider(
        ui,
        &mut config.super_threshold,
        -4.0..=1.0,
        "upper similarity",
        paper.super_threshold,
        "least similarity for groups to share a group",
    );
    choice_ui(
        ui,
        [
            "upper metric",
            "how alike groups are, on the levels above the first
the paper: cosine less the relative length difference",
        ],
        &mut config.upper_metric,
        &[
            (Metric::Cosine, "cosine"),
            (Metric::CenteredCosine, "centered cosine"),
            (Metric::L2, "l2"),
            (Metric::CosineNormdiff, "cosine, length difference"),
        ],
    );
    if config.upper_metric == Metric::CosineNormdiff {
        slider(
            ui,
            &mut config.normdiff_scale,
            0.0..=64.0,
            "length weight",
            paper.normdiff_scale,
            "weight of the relative length difference",
        );
    }
    if config.upper_metric == Metric::L2 {
        slider(
            ui,
            &mut config.upper_l2_threshold,
            -10.0..=0.0,
            "upper l2",
            paper.upper_l2_threshold,
            "minus the largest distance within a group",
        );
    }
    slider(
        ui,
        &mut config.ema_alpha,
        0.0..=0.999,
        "feature smoothing",
        paper.ema_alpha,
        "share of the old feature in the new one",
    );
    slider(
        ui,
        &mut config.churn_penalty,
        0.0..=0.5,
        "churn bonus",
        paper.churn_penalty,
        "added to the similarity of heads that were together before a forced split",
    );
    count(
        ui,
        &mut config.min_group_size,
        1..=32,
        "least group",
        paper.min_group_size,
        "smaller groups are merged",
    );
    count(
        ui,
        &mut config.max_depth,
        1..=8,
        "most levels",
        paper.max_depth,
        "levels of groups, heads' groups included",
    );
    choice_ui(
        ui,
        [
            "group feature",
            "what stands for a group on the next level
the paper: the mean of its children",
        ],
        &mut config.group_features,
        &[
            (GroupFeatureMode::Mean, "mean"),
            (GroupFeatureMode::MeanStd, "mean + deviation"),
            (GroupFeatureMode::MeanVar, "mean + variance"),
            (GroupFeatureMode::MeanGlobalOffset, "mean + global offset"),
        ],
    );
    ui.add_space(4.0);
    ui.strong("choice");
    choice_ui(
        ui,
        [
            "input",
            "what the controller is told of a group
the paper: enriched (level, parent, mean of the level, size)",
        ],
        &mut config.input_mode,
        &[
            (InputMode::Base, "base"),
            (InputMode::Enriched, "enriched"),
            (InputMode::Contrastive, "contrastive"),
            (InputMode::PositionAware, "position aware"),
            (InputMode::RelativeSiblingMean, "relative to siblings"),
        ],
    );
    choice_ui(
        ui,
        [
            "siblings",
            "how siblings are compared before they choose
the paper: joint scoring, two by two",
        ],
        &mut config.pairwise,
        &[
            (Pairwise::None, "scored alone"),
            (Pairwise::SiblingBias, "sibling bias"),
            (Pairwise::JointSibling, "joint scoring"),
        ],
    );
    if config.pairwise == Pairwise::SiblingBias {
        slider(
            ui,
            &mut config.pairwise_scale,
            0.0..=4.0,
            "bias weight",
            paper.pairwise_scale,
            "factor of what the sibling network adds",
        );
    }
    ui.checkbox(
        &mut config.parent_constraint,
        "a child's window at most its parent's",
    )
    .on_hover_text("bounds every choice from the top level down\nthe paper: on");
    slider(
        ui,
        &mut config.logit_scale,
        0.01..=10.0,
        "logit scale",
        paper.logit_scale,
        "factor of the scores",
    );
    count(
        ui,
        &mut config.shape.control_dim,
        4..=256,
        "controller width",
        paper.shape.control_dim,
        "hidden width of the scorer",
    );
    count(
        ui,
        &mut config.shape.joint_hidden,
        4..=512,
        "joint width",
        paper.shape.joint_hidden,
        "hidden width of the sibling scorer",
    );
    ui.checkbox(&mut config.shape.deep, "two hidden layers")
        .on_hover_text("of the scorer\nthe paper: one");
    let mut seed = config.seed as usize;
    count(
        ui,
        &mut seed,
        0..=usize::MAX,
        "seed",
        0,
        "of the controller's weights, random groups and ablations",
    );
    config.seed = seed as u64;
    ui.add_space(4.0);
    ui.strong("over time");
    count(
        ui,
        &mut config.warmup_steps,
        0..=1000,
        "warm-up steps",
        paper.warmup_steps,
        "steps of full attention at the start; here 1, which fills the statistics",
    );
    count(
        ui,
        &mut config.control_interval,
        1..=1000,
        "choice every",
        paper.control_interval,
        "steps between choices; here 1",
    );
    count(
        ui,
        &mut config.ramp_steps,
        0..=1000,
        "ramp steps",
        paper.ramp_steps,
        "from full attention to the chosen windows",
    );
    slider(
        ui,
        &mut config.resolution_ema,
        0.0..=0.99,
        "window smoothing",
        paper.resolution_ema,
        "share of the old index in the new one; 0 for none",
    );
    ui.add_space(4.0);
    ui.strong("ablation");
    let fixed = match config.ablation {
        WindowAblation::FixedWindow(keys) => keys,
        _ => config.windows.get(1).copied().unwrap_or(1),
    };
    choice_ui(
        ui,
        [
            "windows",
            "what replaces or shuffles the choice
the paper's controls: all the same, shuffled, random",
        ],
        &mut config.ablation,
        &[
            (WindowAblation::None, "as chosen"),
            (WindowAblation::FixedWindow(fixed), "all the same"),
            (WindowAblation::ShufflePostSelect, "shuffled"),
            (WindowAblation::RandomUniform, "random"),
        ],
    );
    if let WindowAblation::FixedWindow(keys) = &mut config.ablation {
        ui.add(
            egui::DragValue::new(keys)
                .range(1..=1_000_000)
                .suffix(" keys"),
        );
    }
}

fn choice_ui<T: Copy + PartialEq>(
    ui: &mut egui::Ui,
    [name, text]: [&str; 2],
    value: &mut T,
    options: &[(T, &str)],
) {
    let shown = options
        .iter()
        .find(|(v, _)| v == value)
        .map_or("", |(_, name)| name);
    egui::ComboBox::from_label(name)
        .selected_text(shown)
        .show_ui(ui, |ui| {
            for (option, name) in options {
                ui.selectable_value(value, *option, *name);
            }
        })
        .response
        .on_hover_text(text);
}
