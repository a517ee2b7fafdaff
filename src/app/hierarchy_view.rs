//! The hierarchy view: every layer's tree at a glance, one in detail, and the similarities that it was grown from.
//!
//! Heads at the bottom, their groups above. A group's window can be dragged; the similarity threshold re-clusters while
//! it moves.

use egui::{Align2, Color32, FontId, Pos2, Rect, Sense, pos2, vec2};

use super::{Action, WindowScale, theme};
use crate::{
    aah::{AahConfig, LayerControl, hierarchy::Hierarchy},
    attention::HeadId,
    render::{TreePaint, TreeShape, colormap::ColorMap, colormap::text_on},
    session::{Command, RegimeState, Selection, Session},
};

/// Points of a drag for one doubling of a window.
const POINTS_PER_LEVEL: f32 = 18.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ColorBy {
    #[default]
    Window,
    Group,
}

/// A group being dragged.
#[derive(Clone, Copy, Debug)]
struct NodeDrag {
    level: usize,
    group: usize,
    start_level: f32,
    start_y: f32,
}

/// The view's own state.
#[derive(Default)]
pub(super) struct HierarchyView {
    color_by: ColorBy,
    drag: Option<NodeDrag>,
    /// The threshold while it is dragged.
    threshold: Option<f32>,
}

/// A head (`level` is `None`) or a group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Node {
    level: Option<usize>,
    index: usize,
    at: Pos2,
    radius: f32,
}

/// Where everything of one tree stands.
struct Layout {
    heads: Vec<Node>,
    /// `[level][group]`.
    groups: Vec<Vec<Node>>,
}

/// Heads at the bottom in the order of their groups; every group above the middle of its children.
fn layout(hierarchy: &Hierarchy, n_heads: usize, rect: Rect) -> Layout {
    let depth = hierarchy.levels.len();
    // From the top group down, so that no two links cross.
    let mut order: Vec<usize> = hierarchy
        .heads_of_in_order(depth.saturating_sub(1))
        .into_iter()
        .flatten()
        .collect();
    order.extend(
        (0..n_heads)
            .filter(|h| !order.contains(h))
            .collect::<Vec<_>>(),
    );
    let step = vec2(
        rect.width() / n_heads.max(1) as f32,
        rect.height() / (depth + 1) as f32,
    );
    let radius = |heads: usize| {
        let most = (step.y * 0.36).min(26.0);
        (step.x.min(step.y) * 0.22 * (heads as f32).sqrt()).clamp(2.0, most.max(2.0))
    };
    let y_of = |row: usize| rect.bottom() - (row as f32 + 0.5) * step.y;
    let mut heads = vec![
        Node {
            level: None,
            index: 0,
            at: rect.center(),
            radius: radius(1),
        };
        n_heads
    ];
    for (place, &head) in order.iter().enumerate().take(n_heads) {
        heads[head].index = head;
        heads[head].at = pos2(rect.left() + (place as f32 + 0.5) * step.x, y_of(0));
    }
    let mut groups: Vec<Vec<Node>> = Vec::with_capacity(depth);
    for (level, own) in hierarchy.levels.iter().enumerate() {
        let members = hierarchy.heads_of(level);
        let row = own
            .groups
            .iter()
            .enumerate()
            .map(|(index, children)| {
                let below: &[Node] = if level == 0 {
                    &heads
                } else {
                    &groups[level - 1]
                };
                let sum: f32 = children.iter().map(|&c| below[c].at.x).sum();
                Node {
                    level: Some(level),
                    index,
                    at: pos2(sum / children.len().max(1) as f32, y_of(level + 1)),
                    radius: radius(members[index].len()),
                }
            })
            .collect();
        groups.push(row);
    }
    Layout { heads, groups }
}

/// What colours and sizes a tree.
struct Look<'a> {
    session: &'a Session,
    state: &'a RegimeState,
    layer: usize,
    color_by: ColorBy,
    scale: WindowScale,
    link: Color32,
    outline: Color32,
    accent: Color32,
    visuals: &'a egui::Visuals,
}

impl Look<'_> {
    fn color(&self, hierarchy: &Hierarchy, node: &Node) -> Color32 {
        let first_head = match node.level {
            None => node.index,
            Some(level) => hierarchy
                .heads_of(level)
                .get(node.index)
                .and_then(|h| h.first().copied())
                .unwrap_or(0),
        };
        match self.color_by {
            ColorBy::Group => {
                let n = self.session.windows.heads();
                let group = hierarchy
                    .group_of_head(n)
                    .get(first_head)
                    .copied()
                    .unwrap_or(0);
                theme::categorical(group, self.visuals)
            }
            ColorBy::Window => {
                let window = match node.level {
                    None => self.session.windows.get(HeadId {
                        layer: self.layer,
                        head: node.index,
                    }),
                    Some(level) => self.state.group_window(self.layer, level, node.index),
                };
                theme::WINDOW_COLORS.color(self.scale.fraction(window))
            }
        }
    }

    fn shapes(
        &self,
        hierarchy: &Hierarchy,
        layout: &Layout,
        is_small: bool,
        out: &mut Vec<TreeShape>,
    ) {
        let width = if is_small { 0.8 } else { 1.5 };
        for (level, own) in hierarchy.levels.iter().enumerate() {
            for (group, children) in own.groups.iter().enumerate() {
                let from = layout.groups[level][group].at;
                for &child in children {
                    let below = if level == 0 {
                        &layout.heads[child]
                    } else {
                        &layout.groups[level - 1][child]
                    };
                    out.push(TreeShape::link(from, below.at, width, self.link));
                }
            }
        }
        for node in layout.groups.iter().flatten().chain(&layout.heads) {
            let is_edited = node.level.is_none()
                && self.state.edited.contains(&HeadId {
                    layer: self.layer,
                    head: node.index,
                });
            let is_focus = node.level.is_none()
                && self.session.selection.focus.layer == self.layer
                && self.session.selection.heads.contains(&HeadId {
                    layer: self.layer,
                    head: node.index,
                });
            let outline = if is_small {
                (0.0, self.outline)
            } else if is_focus {
                (3.0, self.accent)
            } else if is_edited {
                (2.5, theme::bad(self.visuals))
            } else {
                (1.0, self.outline)
            };
            let fill = self.color(hierarchy, node);
            out.push(TreeShape::disc(node.at, node.radius, fill, outline));
        }
    }
}

impl HierarchyView {
    pub fn show_ui(
        &mut self,
        ui: &mut egui::Ui,
        session: &Session,
        target: wgpu::TextureFormat,
        actions: &mut Vec<Action>,
    ) {
        let Some(state) = &session.regime else {
            return hint_ui(ui, "choose a regime at the left to see how it groups heads");
        };
        let layer = session.selection.focus.layer;
        let Some(control) = state
            .controller
            .layers
            .get(layer)
            .filter(|c| c.hierarchy.is_some())
        else {
            return hint_ui(
                ui,
                "this regime does not group heads, or has not taken a step",
            );
        };
        ui.horizontal_wrapped(|ui| {
            ui.strong(format!("layer {layer}"));
            ui.selectable_value(&mut self.color_by, ColorBy::Window, "window");
            ui.selectable_value(&mut self.color_by, ColorBy::Group, "group");
            ui.colored_label(
                theme::weak(ui.visuals()),
                "drag a group up or down; greedy grouping in head order",
            )
            .on_hover_text(
                "heads join the most similar group so far, in order: there is no second look",
            );
        });
        // While the threshold moves, its tree is grown afresh from the same features.
        let preview = self.threshold.and_then(|threshold| {
            let mut config = state.controller.config.clone();
            config.sim_threshold = threshold;
            let ema = control.ema.as_ref()?;
            Some(Hierarchy::build(ema, &config.hierarchy_settings(), None))
        });
        let (area, response) = ui.allocate_exact_size(
            (ui.available_size() - vec2(0.0, 30.0)).max(vec2(120.0, 120.0)),
            Sense::click_and_drag(),
        );
        response.widget_info(|| {
            egui::WidgetInfo::labeled(
                egui::Role::Image,
                true,
                format!("hierarchy of layer {layer}"),
            )
        });
        let glance = Rect::from_min_size(area.min, vec2(area.width(), area.height() * 0.30));
        let below = Rect::from_min_max(pos2(area.left(), glance.bottom() + 6.0), area.max);
        let side = (below.width() * 0.36).min(below.height());
        let tree = Rect::from_min_max(below.min, pos2(below.right() - side - 12.0, below.bottom()));
        let matrix = Rect::from_min_max(pos2(below.right() - side, below.top() + 16.0), below.max);

        let visuals = ui.visuals().clone();
        ui.painter()
            .rect_filled(area, 4.0, visuals.extreme_bg_color);
        let look = |layer: usize| Look {
            session,
            state,
            layer,
            color_by: self.color_by,
            scale: WindowScale::new(session.seq_len()),
            link: theme::weak(&visuals).gamma_multiply(0.7),
            outline: visuals.panel_fill,
            accent: theme::accent(&visuals),
            visuals: &visuals,
        };
        let mut shapes = Vec::new();
        let tiles = tiles(state.controller.layers.len(), glance);
        let n_heads = session.windows.heads();
        for (index, tile) in tiles.iter().enumerate() {
            if let Some(hierarchy) = &state.controller.layers[index].hierarchy {
                let layout = layout(hierarchy, n_heads, tile.shrink2(vec2(4.0, 8.0)));
                look(index).shapes(hierarchy, &layout, true, &mut shapes);
            }
        }
        let hierarchy = preview.as_ref().or(control.hierarchy.as_ref());
        let Some(hierarchy) = hierarchy else { return };
        let detail = layout(hierarchy, n_heads, tree.shrink2(vec2(8.0, 2.0)));
        look(layer).shapes(hierarchy, &detail, false, &mut shapes);
        let paint = TreePaint::new(shapes, area, target);
        ui.painter()
            .add(egui_wgpu::Callback::new_paint_callback(area, paint));

        self.labels_ui(ui, session, state, &tiles, layer, hierarchy, &detail);
        matrix_ui(
            ui,
            control,
            hierarchy,
            &state.controller.config,
            self.threshold,
            matrix,
        );
        self.respond(
            ui, session, state, &response, &tiles, hierarchy, &detail, actions,
        );
        self.threshold_ui(ui, state, actions);
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one drawing, its parts side by side"
    )]
    fn labels_ui(
        &self,
        ui: &egui::Ui,
        session: &Session,
        state: &RegimeState,
        tiles: &[Rect],
        layer: usize,
        hierarchy: &Hierarchy,
        detail: &Layout,
    ) {
        let painter = ui.painter();
        let weak = theme::weak(ui.visuals());
        for (index, tile) in tiles.iter().enumerate() {
            let color = if index == layer {
                theme::accent(ui.visuals())
            } else {
                weak
            };
            let font = FontId::proportional(9.5);
            painter.text(
                tile.left_top() + vec2(3.0, 1.0),
                Align2::LEFT_TOP,
                format!("L{index}"),
                font,
                color,
            );
            if index == layer {
                let stroke = egui::Stroke::new(1.5, color);
                painter.rect_stroke(tile.shrink(1.0), 3.0, stroke, egui::StrokeKind::Inside);
            }
        }
        for node in detail.heads.iter().chain(detail.groups.iter().flatten()) {
            let text = match node.level {
                None => node.index.to_string(),
                Some(level) => state.group_window(layer, level, node.index).to_string(),
            };
            let look_fill = match (self.color_by, node.level) {
                (ColorBy::Window, None) => theme::WINDOW_COLORS.color(
                    WindowScale::new(session.seq_len()).fraction(session.windows.get(HeadId {
                        layer,
                        head: node.index,
                    })),
                ),
                (ColorBy::Window, Some(level)) => theme::WINDOW_COLORS.color(
                    WindowScale::new(session.seq_len())
                        .fraction(state.group_window(layer, level, node.index)),
                ),
                (ColorBy::Group, _) => {
                    let first = node.level.map_or(node.index, |l| {
                        hierarchy.heads_of(l)[node.index]
                            .first()
                            .copied()
                            .unwrap_or(0)
                    });
                    let n = session.windows.heads();
                    theme::categorical(
                        hierarchy.group_of_head(n).get(first).copied().unwrap_or(0),
                        ui.visuals(),
                    )
                }
            };
            // The font's digits are a little over half as wide as they are high.
            if node.radius * 2.0 >= 6.0 * text.len() as f32 + 2.0 {
                let font = FontId::proportional(10.5);
                painter.text(
                    node.at,
                    Align2::CENTER_CENTER,
                    text,
                    font,
                    text_on(look_fill),
                );
            }
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "what was drawn, and what was done to it"
    )]
    fn respond(
        &mut self,
        ui: &egui::Ui,
        session: &Session,
        state: &RegimeState,
        response: &egui::Response,
        tiles: &[Rect],
        hierarchy: &Hierarchy,
        detail: &Layout,
        actions: &mut Vec<Action>,
    ) {
        let layer = session.selection.focus.layer;
        let nodes = || detail.heads.iter().chain(detail.groups.iter().flatten());
        let at = |pos: Pos2| {
            nodes()
                .filter(|n| n.at.distance(pos) <= n.radius + 4.0)
                .min_by(|a, b| a.at.distance(pos).total_cmp(&b.at.distance(pos)))
                .copied()
        };
        let scale = WindowScale::new(session.seq_len());
        if response.clicked()
            && let Some(pos) = response.interact_pointer_pos()
        {
            if let Some(node) = at(pos) {
                let heads: Vec<usize> = match node.level {
                    None => vec![node.index],
                    Some(level) => hierarchy.heads_of(level)[node.index].clone(),
                };
                let ids: Vec<HeadId> = heads.iter().map(|&head| HeadId { layer, head }).collect();
                if let Some(&focus) = ids.first() {
                    actions.push(Action::Command(Command::Select(Selection {
                        focus,
                        heads: ids.into_iter().collect(),
                        query: None,
                    })));
                }
            } else if let Some(index) = tiles.iter().position(|t| t.contains(pos)) {
                let focus = HeadId {
                    layer: index,
                    head: session.selection.focus.head,
                };
                actions.push(Action::Command(Command::Select(Selection::one(focus))));
            }
        }
        if response.drag_started()
            && let Some(origin) = ui.input(|i| i.pointer.press_origin())
            && let Some(node) = at(origin)
            && let Some(level) = node.level
        {
            self.drag = Some(NodeDrag {
                level,
                group: node.index,
                start_level: scale.level(state.group_window(layer, level, node.index)),
                start_y: origin.y,
            });
        }
        if let (Some(drag), Some(pos)) = (self.drag, ui.input(|i| i.pointer.latest_pos()))
            && response.dragged()
        {
            let to = drag.start_level - (pos.y - drag.start_y) / POINTS_PER_LEVEL;
            let window = scale.window(to, ui.input(|i| i.modifiers.shift));
            if state.group_window(layer, drag.level, drag.group) != window {
                actions.push(Action::Command(Command::SetGroupWindow {
                    layer,
                    level: drag.level,
                    group: drag.group,
                    window,
                }));
            }
        }
        if response.drag_stopped() {
            self.drag = None;
        }
        // While a group is dragged its numbers are shown, wherever the pointer is.
        let shown = match self.drag {
            Some(drag) => detail
                .groups
                .get(drag.level)
                .and_then(|row| row.get(drag.group))
                .copied(),
            None => response.hover_pos().and_then(at),
        };
        if let Some(node) = shown {
            let text = node_text(session, state, hierarchy, layer, &node);
            if response.dragged() {
                response.show_tooltip_text(text);
            } else {
                response.clone().on_hover_text_at_pointer(text);
            }
        }
    }

    fn threshold_ui(&mut self, ui: &mut egui::Ui, state: &RegimeState, actions: &mut Vec<Action>) {
        ui.horizontal(|ui| {
            let config = &state.controller.config;
            let mut value = self.threshold.unwrap_or(config.sim_threshold);
            ui.spacing_mut().slider_width = (ui.available_width() - 220.0).clamp(80.0, 360.0);
            let slider = egui::Slider::new(&mut value, -1.0..=1.0)
                .text("similarity threshold")
                .max_decimals(3);
            let response = ui
                .add(slider)
                .on_hover_text("least cosine for heads to share a group; the paper: 0.72");
            if response.dragged() {
                self.threshold = Some(value);
            }
            if response.drag_stopped() || (response.changed() && !response.dragged()) {
                self.threshold = None;
                if value != config.sim_threshold {
                    let config = AahConfig {
                        sim_threshold: value,
                        ..config.clone()
                    };
                    actions.push(Action::Regime(Some((state.regime, Box::new(config))), 2));
                }
            }
        });
    }
}

fn hint_ui(ui: &mut egui::Ui, text: &str) {
    ui.centered_and_justified(|ui| {
        ui.colored_label(theme::weak(ui.visuals()), text);
    });
}

/// Tiles for all layers, as large as fit.
fn tiles(count: usize, rect: Rect) -> Vec<Rect> {
    let count = count.max(1);
    let side = |columns: usize| {
        let rows = count.div_ceil(columns);
        (rect.width() / columns as f32 / 1.5).min(rect.height() / rows as f32)
    };
    let empty = |columns: usize| count.div_ceil(columns) * columns - count;
    // The largest tiles; of equal ones those that leave the fewest places empty.
    let columns = (1..=count)
        .max_by(|&a, &b| side(a).total_cmp(&side(b)).then(empty(b).cmp(&empty(a))))
        .unwrap_or(1);
    let rows = count.div_ceil(columns);
    let size = vec2(rect.width() / columns as f32, rect.height() / rows as f32);
    (0..count)
        .map(|i| {
            let corner =
                rect.min + vec2((i % columns) as f32 * size.x, (i / columns) as f32 * size.y);
            Rect::from_min_size(corner, size)
        })
        .collect()
}

/// Why a group is what it is.
fn node_text(
    session: &Session,
    state: &RegimeState,
    hierarchy: &Hierarchy,
    layer: usize,
    node: &Node,
) -> String {
    let Some(level) = node.level else {
        let head = HeadId {
            layer,
            head: node.index,
        };
        let coverage = session
            .coverage(head)
            .map_or_else(String::new, |c| format!(", coverage {:.1} %", c * 100.0));
        let edited = if state.edited.contains(&head) {
            "\nset by hand"
        } else {
            ""
        };
        return format!(
            "{head}\nwindow {}{coverage}{edited}",
            session.windows.get(head)
        );
    };
    let heads = &hierarchy.heads_of(level)[node.index];
    let mut text = format!(
        "level {level}, group {}: {} heads {heads:?}",
        node.index,
        heads.len()
    );
    let config = &state.controller.config;
    match hierarchy.levels[level].clustering.as_ref() {
        Some(clustering) => {
            let [mean, low, high] = clustering.similarity_range();
            let settings = config.hierarchy_settings();
            let threshold = if level == 0 {
                settings.heads.threshold
            } else {
                settings.upper.threshold
            };
            text += &format!(
                "\n{} grouping at threshold {threshold:.3}; similarities {low:.3} to {high:.3}, mean {mean:.3}",
                clustering.origin.name()
            );
            if let Some(anchor) = clustering.anchor_similarity {
                text += &format!("\nthe pair set apart has similarity {anchor:.3}");
            }
        }
        None => text += "\nthis grouping was given, not clustered",
    }
    let control = &state.controller.layers[layer];
    let of = |choices: &[Vec<usize>]| {
        let index = choices.get(level)?.get(node.index)?;
        config.windows.get(*index).copied()
    };
    if let Some(choice) = &control.choice
        && let (Some(own), Some(bounded)) = (of(&choice.raw), of(&choice.bounded))
    {
        text += &format!("\nown choice {own}");
        if bounded != own {
            text += &format!(", bounded by its parent to {bounded}");
        }
    }
    text + &format!(
        "\nwindow now {}",
        state.group_window(layer, level, node.index)
    )
}

/// Similarities of all heads, in the order of their groups; the threshold is the neutral colour.
fn matrix_ui(
    ui: &egui::Ui,
    control: &LayerControl,
    hierarchy: &Hierarchy,
    config: &AahConfig,
    threshold: Option<f32>,
    rect: Rect,
) {
    let painter = ui.painter();
    let weak = theme::weak(ui.visuals());
    let title = rect.left_top() - vec2(0.0, 14.0);
    painter.text(
        title,
        Align2::LEFT_TOP,
        "similarity, in group order",
        FontId::proportional(11.0),
        weak,
    );
    let Some(ema) = &control.ema else {
        painter.text(
            rect.center(),
            Align2::CENTER_CENTER,
            "no features: groups are given",
            FontId::proportional(12.0),
            weak,
        );
        return;
    };
    let n = ema.len();
    let settings = config.hierarchy_settings();
    let clustering = crate::aah::clustering::cluster(ema, &settings.heads, None);
    let threshold = threshold.unwrap_or(config.sim_threshold);
    let order: Vec<usize> = hierarchy
        .levels
        .first()
        .map_or_else(Vec::new, |l| l.groups.iter().flatten().copied().collect());
    let side = rect.width().min(rect.height()) / n.max(1) as f32;
    let color = |s: f32| {
        // Above the threshold warm, below it cold; full colour at similarity 1, and as far below.
        let reach = (1.0 - threshold).max(0.02);
        ColorMap::Diverging.color(0.5 + (s - threshold) / reach / 2.0)
    };
    for (row, &a) in order.iter().enumerate() {
        for (column, &b) in order.iter().enumerate() {
            let at = rect.min + vec2(column as f32 * side, row as f32 * side);
            let cell = Rect::from_min_size(at, vec2(side, side)).shrink(if side > 6.0 {
                0.5
            } else {
                0.0
            });
            painter.rect_filled(cell, 0.0, color(clustering.similarity[a * n + b]));
        }
    }
    let mut start = 0;
    for group in hierarchy.levels.first().map_or(&[][..], |l| &l.groups) {
        let at = rect.min + vec2(start as f32 * side, start as f32 * side);
        let size = group.len() as f32 * side;
        let outline = egui::Stroke::new(1.5, theme::accent(ui.visuals()));
        let block = Rect::from_min_size(at, vec2(size, size));
        painter.rect_stroke(block, 0.0, outline, egui::StrokeKind::Inside);
        start += group.len();
    }
    if let Some(pointer) = ui
        .input(|i| i.pointer.hover_pos())
        .filter(|p| rect.contains(*p))
    {
        let place = (pointer - rect.min) / side;
        let at = |v: f32| order.get(v as usize).copied();
        if let (Some(a), Some(b)) = (at(place.y), at(place.x)) {
            let text = format!("heads {a} and {b}: {:.4}", clustering.similarity[a * n + b]);
            let place = rect.left_bottom() + vec2(0.0, -2.0);
            let font = FontId::proportional(12.0);
            let galley = painter.layout_no_wrap(text, font, ui.visuals().text_color());
            let area = Align2::LEFT_BOTTOM.anchor_size(place, galley.size());
            painter.rect_filled(area.expand(3.0), 3.0, ui.visuals().panel_fill);
            painter.galley(area.min, galley, ui.visuals().text_color());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_keep_heads_apart_and_groups_above_their_children() {
        let features: Vec<Vec<f32>> = (0..12)
            .map(|i| vec![(i % 3) as f32 + 1.0, (i % 4) as f32, 1.0])
            .collect();
        let settings = AahConfig::default().hierarchy_settings();
        let hierarchy = Hierarchy::build(&features, &settings, None);
        let rect = Rect::from_min_size(pos2(10.0, 10.0), vec2(600.0, 300.0));
        let layout = layout(&hierarchy, 12, rect);
        let mut xs: Vec<f32> = layout.heads.iter().map(|h| h.at.x).collect();
        xs.sort_by(f32::total_cmp);
        assert!(xs.windows(2).all(|w| w[1] - w[0] > 40.0), "{xs:?}");
        for node in layout.groups.iter().flatten().chain(&layout.heads) {
            assert!(rect.contains(node.at), "{node:?}");
        }
        for (level, row) in layout.groups.iter().enumerate() {
            for node in row {
                assert!(node.at.y < layout.heads[0].at.y - level as f32);
            }
        }
    }

    #[test]
    fn tiles_hold_every_layer() {
        for count in [1, 3, 6, 30] {
            let rect = Rect::from_min_size(Pos2::ZERO, vec2(640.0, 160.0));
            let tiles = tiles(count, rect);
            assert_eq!(tiles.len(), count);
            assert!(tiles.iter().all(|t| rect.expand(0.1).contains_rect(*t)));
        }
    }
}
