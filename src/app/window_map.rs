//! The window map: layers by heads, colour for window or coverage, a bar for size; drag a cell to change its window.

use std::collections::BTreeSet;

use egui::{Align2, Color32, FontId, Pos2, Rect, Sense, Stroke, StrokeKind, pos2, vec2};

use super::{Action, WindowScale, theme};
use crate::{
    attention::{HeadId, Window},
    render::colormap::{luminance, text_on},
    session::{Command, Selection, Session},
};

/// Pixels of a drag for one doubling of a window.
const POINTS_PER_LEVEL: f32 = 14.0;
const LABEL: f32 = 22.0;
const GAP: f32 = 2.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ColorBy {
    #[default]
    Window,
    Coverage,
}

/// A drag that changes windows.
#[derive(Clone, Debug)]
struct WindowDrag {
    heads: Vec<HeadId>,
    level: f32,
    start_y: f32,
}

/// The view's own state.
#[derive(Default)]
pub(super) struct WindowMapView {
    color_by: ColorBy,
    drag: Option<WindowDrag>,
    /// Where a selection box began.
    box_start: Option<Pos2>,
}

impl WindowMapView {
    pub fn show_ui(&mut self, ui: &mut egui::Ui, session: &Session, actions: &mut Vec<Action>) {
        ui.horizontal_wrapped(|ui| {
            ui.label("colour");
            ui.selectable_value(&mut self.color_by, ColorBy::Window, "window")
                .on_hover_text("colour: how many keys a head sees, on a log scale");
            ui.selectable_value(&mut self.color_by, ColorBy::Coverage, "coverage")
                .on_hover_text("colour: share of full attention's mass inside the window");
        });
        self.buttons_ui(ui, session, actions);
        // The legend and a line of help stand below the grid.
        let footer = 48.0;
        let grid_height = (ui.available_height() - footer).max(60.0);
        egui::ScrollArea::vertical()
            .id_salt("window map")
            .max_height(grid_height)
            .auto_shrink([false, true])
            .show(ui, |ui| self.grid_ui(ui, session, grid_height, actions));
        self.legend_ui(ui, session);
        ui.add(
            egui::Label::new(
                egui::RichText::new("drag a cell up or down; Shift: fine; Ctrl-drag: select")
                    .small()
                    .color(theme::weak(ui.visuals())),
            )
            .truncate(),
        );
    }

    fn buttons_ui(&self, ui: &mut egui::Ui, session: &Session, actions: &mut Vec<Action>) {
        ui.horizontal_wrapped(|ui| {
            let count = session.selection.heads.len();
            let reset = ui.button("reset selected").on_hover_text(format!(
                "full attention again for the {count} selected head{}",
                if count == 1 { "" } else { "s" }
            ));
            if reset.clicked() {
                actions.push(Action::Command(Command::SetWindow {
                    heads: session.selection.heads.iter().copied().collect(),
                    window: Window::Full,
                }));
            }
            if ui
                .button("all full")
                .on_hover_text("full attention for every head")
                .clicked()
            {
                actions.push(Action::Command(Command::AllFull));
            }
            let mut sinks = session.windows.sinks;
            let most = session.seq_len().min(256);
            let label = ui.label("sinks");
            let drag = ui
                .add(egui::DragValue::new(&mut sinks).range(0..=most).speed(0.1))
                .labelled_by(label.id)
                .on_hover_text("first keys that every head keeps beside its window");
            if drag.changed() {
                actions.push(Action::Command(Command::SetSinks(sinks)));
            }
        });
    }

    fn grid_ui(
        &mut self,
        ui: &mut egui::Ui,
        session: &Session,
        height: f32,
        actions: &mut Vec<Action>,
    ) {
        let map = &session.windows;
        let (layers, heads) = (map.layers(), map.heads());
        let width = ui.available_width();
        let cell = vec2(
            ((width - LABEL) / heads as f32).max(8.0),
            ((height - LABEL) / layers as f32).clamp(16.0, 64.0),
        );
        let size = vec2(width, LABEL + cell.y * layers as f32);
        let (outer, background) = ui.allocate_exact_size(size, Sense::click_and_drag());
        let painter = ui.painter_at(outer);
        let grid = Rect::from_min_size(
            outer.min + vec2(LABEL, LABEL),
            vec2(cell.x * heads as f32, cell.y * layers as f32),
        );
        let cell_rect = |head: HeadId| {
            let corner = grid.min + vec2(head.head as f32 * cell.x, head.layer as f32 * cell.y);
            Rect::from_min_size(corner, cell).shrink(GAP / 2.0)
        };
        let cell_at = |at: Pos2| {
            let place = (at - grid.min) / cell;
            (place.x >= 0.0 && place.y >= 0.0)
                .then_some(HeadId {
                    layer: place.y as usize,
                    head: place.x as usize,
                })
                .filter(|id| id.layer < layers && id.head < heads)
        };
        self.labels_ui(ui, session, outer, grid, cell, actions);

        let scale = WindowScale::new(session.seq_len());
        let mut hovered = None;
        for (head, window) in map.iter() {
            let rect = cell_rect(head);
            if !ui.is_rect_visible(rect) {
                continue;
            }
            let response = ui.interact(
                rect,
                ui.scope_id().with(("cell", head)),
                Sense::click_and_drag(),
            );
            let coverage = session.coverage(head);
            let value = window.size(session.seq_len()) as f64;
            response
                .widget_info(|| egui::WidgetInfo::slider(true, value, format!("window of {head}")));
            let fill = match self.color_by {
                ColorBy::Window => theme::WINDOW_COLORS.color(scale.fraction(window)),
                ColorBy::Coverage => coverage.map_or(ui.visuals().faint_bg_color, |c| {
                    theme::COVERAGE_COLORS.color(c)
                }),
            };
            paint_cell(&painter, rect, fill, window, scale.fraction(window));
            if let Some(regime) = &session.regime {
                let mark = if regime.edited.contains(&head) {
                    Some(theme::bad(ui.visuals()))
                } else if regime.moved.contains(&head) {
                    Some(theme::accent(ui.visuals()))
                } else {
                    None
                };
                if let Some(color) = mark {
                    let at = rect.right_top() + vec2(-5.0, 5.0);
                    let edge = Stroke::new(1.0, ui.visuals().panel_fill);
                    painter.circle(at, 3.5, color, edge);
                }
            }
            if session.selection.heads.contains(&head) {
                let is_focus = head == session.selection.focus;
                let color = theme::accent(ui.visuals());
                let stroke = Stroke::new(if is_focus { 3.0 } else { 1.5 }, color);
                painter.rect_stroke(rect, 3.0, stroke, StrokeKind::Outside);
            } else if response.hovered() {
                let stroke = Stroke::new(1.0, ui.visuals().strong_text_color());
                painter.rect_stroke(rect, 3.0, stroke, StrokeKind::Outside);
            }
            self.respond(session, head, &response, &cell_at, scale, actions);
            if response.hovered() || response.dragged() {
                hovered = Some((head, window, coverage, response));
            }
        }
        if let Some((head, window, coverage, response)) = hovered {
            // While dragging the value goes with the pointer, not with the cell.
            let text = cell_text(session, head, window, coverage);
            if response.dragged() {
                response.show_tooltip_text(text);
            } else {
                response.on_hover_text(text);
            }
        }
        self.box_ui(ui, session, &background, &cell_rect, &painter, actions);
    }

    fn labels_ui(
        &self,
        ui: &egui::Ui,
        session: &Session,
        outer: Rect,
        grid: Rect,
        cell: egui::Vec2,
        actions: &mut Vec<Action>,
    ) {
        let map = &session.windows;
        let painter = ui.painter_at(outer);
        let font = FontId::proportional(11.0);
        let mut label = |rect: Rect, text: String, name: String, heads: Vec<HeadId>| {
            let response = ui.interact(rect, ui.scope_id().with(&name), Sense::click());
            response.widget_info(|| egui::WidgetInfo::labeled(egui::Role::Button, true, &name));
            let color = if response.hovered() {
                ui.visuals().strong_text_color()
            } else {
                theme::weak(ui.visuals())
            };
            painter.text(
                rect.center(),
                Align2::CENTER_CENTER,
                text,
                font.clone(),
                color,
            );
            if response.on_hover_text(&name).clicked()
                && let Some(&focus) = heads.first()
            {
                actions.push(Action::Command(Command::Select(Selection {
                    focus,
                    heads: heads.into_iter().collect(),
                    query: None,
                })));
            }
        };
        for head in 0..map.heads() {
            // Narrow columns: only every second or fourth number.
            let step = (16.0 / cell.x).ceil().max(1.0) as usize;
            let rect = Rect::from_min_size(
                pos2(grid.min.x + head as f32 * cell.x, outer.min.y),
                vec2(cell.x, LABEL),
            );
            let text = if head % step == 0 {
                head.to_string()
            } else {
                String::new()
            };
            let heads = (0..map.layers())
                .map(|layer| HeadId { layer, head })
                .collect();
            label(
                rect,
                text,
                format!("select head {head} of all layers"),
                heads,
            );
        }
        for layer in 0..map.layers() {
            let rect = Rect::from_min_size(
                pos2(outer.min.x, grid.min.y + layer as f32 * cell.y),
                vec2(LABEL, cell.y),
            );
            let heads = (0..map.heads())
                .map(|head| HeadId { layer, head })
                .collect();
            label(
                rect,
                format!("L{layer}"),
                format!("select all heads of layer {layer}"),
                heads,
            );
        }
    }

    fn respond(
        &mut self,
        session: &Session,
        head: HeadId,
        response: &egui::Response,
        cell_at: &dyn Fn(Pos2) -> Option<HeadId>,
        scale: WindowScale,
        actions: &mut Vec<Action>,
    ) {
        let modifiers = response.ctx.input(|i| i.modifiers);
        if response.clicked() {
            actions.push(Action::Command(Command::Select(clicked(
                &session.selection,
                head,
                modifiers,
            ))));
        }
        if response.drag_started() {
            let origin = response.ctx.input(|i| i.pointer.press_origin());
            if modifiers.command {
                self.box_start = origin;
            } else if let Some(origin) = origin {
                // Where a press and a move share a frame, the response is that of the cell moved to.
                let head = cell_at(origin).unwrap_or(head);
                let heads: Vec<HeadId> = if session.selection.heads.contains(&head) {
                    session.selection.heads.iter().copied().collect()
                } else {
                    actions.push(Action::Command(Command::Select(Selection::one(head))));
                    vec![head]
                };
                self.drag = Some(WindowDrag {
                    heads,
                    level: scale.level(session.windows.get(head)),
                    start_y: origin.y,
                });
            }
        }
        if response.dragged()
            && let Some(drag) = &self.drag
            && let Some(at) = response.ctx.input(|i| i.pointer.latest_pos())
        {
            let level = drag.level - (at.y - drag.start_y) / POINTS_PER_LEVEL;
            let window = scale.window(level, modifiers.shift);
            if drag.heads.iter().any(|&h| session.windows.get(h) != window) {
                actions.push(Action::Command(Command::SetWindow {
                    heads: drag.heads.clone(),
                    window,
                }));
            }
        }
        if response.drag_stopped() {
            self.drag = None;
        }
    }

    /// The box that a Ctrl-drag, or a drag from the margin, draws.
    fn box_ui(
        &mut self,
        ui: &egui::Ui,
        session: &Session,
        background: &egui::Response,
        cell_rect: &dyn Fn(HeadId) -> Rect,
        painter: &egui::Painter,
        actions: &mut Vec<Action>,
    ) {
        if background.drag_started() {
            self.box_start = ui.input(|i| i.pointer.press_origin());
        }
        let (Some(start), Some(now)) = (self.box_start, ui.input(|i| i.pointer.latest_pos()))
        else {
            return;
        };
        let area = Rect::from_two_pos(start, now);
        let color = theme::accent(ui.visuals());
        painter.rect(
            area,
            0.0,
            color.gamma_multiply(0.15),
            Stroke::new(1.0, color),
            StrokeKind::Inside,
        );
        let heads: BTreeSet<HeadId> = session
            .windows
            .iter()
            .map(|(head, _)| head)
            .filter(|&head| cell_rect(head).intersects(area))
            .collect();
        if !ui.input(|i| i.pointer.primary_down()) {
            self.box_start = None;
        }
        if let Some(&first) = heads.first()
            && heads != session.selection.heads
        {
            actions.push(Action::Command(Command::Select(Selection {
                focus: first,
                heads,
                query: None,
            })));
        }
    }

    fn legend_ui(&self, ui: &mut egui::Ui, session: &Session) {
        let (map, low, high) = match self.color_by {
            ColorBy::Window => (
                theme::WINDOW_COLORS,
                "1 key".to_owned(),
                format!("full ({})", super::status_bar::grouped(session.seq_len())),
            ),
            ColorBy::Coverage => (theme::COVERAGE_COLORS, "0 %".to_owned(), "100 %".to_owned()),
        };
        ui.horizontal(|ui| {
            ui.small(low);
            color_bar_ui(ui, map, (ui.available_width() - 80.0).clamp(40.0, 220.0));
            ui.small(high);
        });
    }
}

/// A bar of a colour map from 0 to 1.
pub(super) fn color_bar_ui(ui: &mut egui::Ui, map: crate::render::colormap::ColorMap, width: f32) {
    let (rect, _) = ui.allocate_exact_size(vec2(width, 10.0), Sense::hover());
    let mut mesh = egui::Mesh::default();
    const STEPS: u32 = 32;
    for i in 0..=STEPS {
        let part = i as f32 / STEPS as f32;
        let x = egui::lerp(rect.x_range(), part);
        mesh.colored_vertex(pos2(x, rect.top()), map.color(part));
        mesh.colored_vertex(pos2(x, rect.bottom()), map.color(part));
        if i > 0 {
            let at = i * 2;
            mesh.add_triangle(at - 2, at - 1, at);
            mesh.add_triangle(at - 1, at, at + 1);
        }
    }
    ui.painter().add(mesh);
}

fn paint_cell(painter: &egui::Painter, rect: Rect, fill: Color32, window: Window, part: f32) {
    painter.rect_filled(rect, 3.0, fill);
    let ink = text_on(fill);
    // The bar: how long the window is, whatever the colour shows.
    let bar = Rect::from_min_max(
        pos2(rect.min.x + 2.0, rect.max.y - 5.0),
        rect.max - vec2(2.0, 2.0),
    );
    if bar.width() > 4.0 && rect.height() >= 14.0 {
        painter.rect_filled(
            bar,
            1.0,
            ink.gamma_multiply(if luminance(fill) > 0.30 { 0.25 } else { 0.3 }),
        );
        let filled = Rect::from_min_size(bar.min, vec2(bar.width() * part, bar.height()));
        painter.rect_filled(filled, 1.0, ink.gamma_multiply(0.85));
    }
    let size = if rect.height() >= 24.0 { 11.0 } else { 9.5 };
    let text = window.to_string();
    // The font's digits are a little over half as wide as they are high.
    if rect.width() >= size * 0.58 * text.len() as f32 + 2.0 && rect.height() >= 17.0 {
        let at = pos2(rect.center().x, rect.center().y - 2.0);
        painter.text(
            at,
            Align2::CENTER_CENTER,
            text,
            FontId::proportional(size),
            ink,
        );
    }
}

fn cell_text(session: &Session, head: HeadId, window: Window, coverage: Option<f32>) -> String {
    let keys = match window {
        Window::Full => format!("full: all {} keys", session.seq_len()),
        Window::Last(1) => "1 key: the query's own".to_owned(),
        Window::Last(n) => format!("{n} keys, the query's own included"),
    };
    let coverage = coverage.map_or_else(
        || "not yet known".to_owned(),
        |c| format!("{:.1} %", c * 100.0),
    );
    let mut text = format!("{head}\nwindow: {keys}\ncoverage: {coverage}");
    if let Some(regime) = &session.regime {
        if regime.edited.contains(&head) {
            text += "\nset by hand, on top of the regime";
        } else if regime.moved.contains(&head) {
            text += "\nmoved in the regime's last step";
        }
    }
    if let Some(windowed) = &session.windowed {
        text += &format!(
            "\nentropy: {:.2} nats\noutput norm: {:.3}",
            windowed.run.entropy_of(head),
            windowed.run.norm_of(head)
        );
    }
    text
}

/// What a click selects: one head; with Ctrl one more or less; with Shift the rectangle from the focus.
fn clicked(selection: &Selection, head: HeadId, modifiers: egui::Modifiers) -> Selection {
    let mut next = selection.clone();
    if modifiers.shift {
        let (a, b) = (selection.focus, head);
        for layer in a.layer.min(b.layer)..=a.layer.max(b.layer) {
            for head in a.head.min(b.head)..=a.head.max(b.head) {
                next.heads.insert(HeadId { layer, head });
            }
        }
    } else if modifiers.command {
        if !next.heads.remove(&head) {
            next.heads.insert(head);
            next.focus = head;
        } else if next.focus == head {
            match next.heads.first() {
                Some(&other) => next.focus = other,
                None => return Selection::one(head),
            }
        }
    } else {
        return Selection::one(head);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clicks_select() {
        let at = |layer, head| HeadId { layer, head };
        let start = Selection::one(at(1, 1));
        let plain = clicked(&start, at(2, 3), egui::Modifiers::NONE);
        assert_eq!(plain, Selection::one(at(2, 3)));
        let shift = clicked(&start, at(2, 3), egui::Modifiers::SHIFT);
        assert_eq!(shift.heads.len(), 6);
        assert_eq!(shift.focus, at(1, 1));
        let more = clicked(&start, at(2, 3), egui::Modifiers::COMMAND);
        assert_eq!((more.heads.len(), more.focus), (2, at(2, 3)));
        let less = clicked(&more, at(2, 3), egui::Modifiers::COMMAND);
        assert_eq!(less, start);
        let none = clicked(&start, at(1, 1), egui::Modifiers::COMMAND);
        assert_eq!(none, start, "something is always selected");
    }
}
