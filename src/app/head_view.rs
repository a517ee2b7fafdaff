//! One head's attention matrix, drawn by a shader, with the window's band over it and its edge to drag.

use egui::{Align2, Color32, CursorIcon, FontId, Pos2, Rect, Sense, Stroke, pos2, vec2};

use super::{Action, MatrixState, WindowScale, theme, window_map::color_bar_ui};
use crate::{
    attention::{HeadId, Window},
    engine::{HeadMatrix, MatrixRequest, Pooling},
    render::{HeatmapPaint, HeatmapStyle, Normalisation, ViewRect},
    session::{Command, Session},
};

/// How near the window's edge a press takes hold of it, in points.
const GRAB: f32 = 8.0;
/// The closest zoom: points a token.
const MOST_POINTS_PER_TOKEN: f32 = 48.0;

/// Which part of the matrix plane is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Camera {
    /// Key and query in the middle, in tokens.
    center: Pos2,
    /// Tokens a point.
    tokens_per_point: f32,
}

/// The view's own state.
pub(super) struct HeadView {
    /// `None` shows the whole matrix.
    camera: Option<Camera>,
    log: bool,
    normalisation: Normalisation,
    without_first: bool,
    pooling: Pooling,
    /// The matrix of the windowed run instead of the full one.
    of_windowed: bool,
    is_dragging_edge: bool,
}

impl Default for HeadView {
    fn default() -> Self {
        Self {
            camera: None,
            log: true,
            normalisation: Normalisation::Row,
            without_first: true,
            pooling: Pooling::Max,
            of_windowed: false,
            is_dragging_edge: false,
        }
    }
}

/// From tokens to the screen and back.
#[derive(Clone, Copy)]
struct Mapping {
    rect: Rect,
    camera: Camera,
}

impl Mapping {
    fn screen(self, key: f32, query: f32) -> Pos2 {
        self.rect.center() + (pos2(key, query) - self.camera.center) / self.camera.tokens_per_point
    }

    fn tokens(self, screen: Pos2) -> Pos2 {
        self.camera.center + (screen - self.rect.center()) * self.camera.tokens_per_point
    }

    fn view(self) -> ViewRect {
        let corner = self.tokens(self.rect.min);
        ViewRect {
            key: corner.x,
            query: corner.y,
            keys: self.rect.width() * self.camera.tokens_per_point,
            queries: self.rect.height() * self.camera.tokens_per_point,
        }
    }

    /// The pair under a point, if there is one.
    fn pair(self, screen: Pos2, seq_len: usize) -> Option<(usize, usize)> {
        let at = self.tokens(screen);
        if at.x < 0.0 || at.y < 0.0 {
            return None;
        }
        let (query, key) = (at.y as usize, at.x as usize);
        (query < seq_len && key <= query).then_some((query, key))
    }
}

impl HeadView {
    /// Shows the whole matrix again.
    pub fn fit(&mut self) {
        self.camera = None;
    }

    pub fn show_ui(
        &mut self,
        ui: &mut egui::Ui,
        session: &Session,
        matrix: &mut MatrixState,
        target: wgpu::TextureFormat,
        actions: &mut Vec<Action>,
    ) {
        let focus = session.selection.focus;
        self.controls_ui(ui, focus);
        let footer = 22.0;
        let size = vec2(
            ui.available_width(),
            (ui.available_height() - footer).max(40.0),
        );
        let (rect, response) = ui.allocate_exact_size(size, Sense::click_and_drag());
        response.widget_info(|| {
            egui::WidgetInfo::labeled(
                egui::Role::Image,
                true,
                format!("attention matrix of {focus}"),
            )
        });
        let seq_len = session.seq_len();
        let mapping = self.navigate(ui, rect, &response, seq_len);
        matrix.wanted = self.request(ui, mapping, focus, seq_len);

        let shown = matrix.shown.as_ref().filter(|(m, windowed)| {
            m.request.head == focus
                && *windowed == self.of_windowed
                && m.request.pooling == self.pooling
        });
        let visuals = ui.visuals();
        let paint = HeatmapPaint {
            matrix: shown.map(|(m, _)| m.clone()),
            view: mapping.view(),
            style: HeatmapStyle {
                log: self.log,
                normalisation: self.normalisation,
                without_first: self.without_first,
                colors: theme::WEIGHT_COLORS,
                empty: visuals.extreme_bg_color,
                veil: veil(visuals),
            },
            seq_len,
            window: session.windows.get(focus).size(seq_len),
            sinks: session.windows.sinks,
            target,
        };
        ui.painter()
            .add(egui_wgpu::Callback::new_paint_callback(rect, paint));
        self.edge_ui(ui, session, mapping, &response, actions);
        self.marks_ui(ui, session, mapping, &response);
        if shown.is_none() {
            ui.painter().text(
                rect.center(),
                Align2::CENTER_CENTER,
                "computing the matrix…",
                FontId::proportional(14.0),
                theme::weak(visuals),
            );
        }
        let shown = shown.map(|(m, _)| m.clone());
        self.footer_ui(ui, shown.as_deref());
        self.hover_ui(session, mapping, response, shown.as_deref(), actions);
    }

    fn controls_ui(&mut self, ui: &mut egui::Ui, focus: HeadId) {
        ui.horizontal_wrapped(|ui| {
            ui.strong(focus.to_string());
            ui.selectable_value(&mut self.of_windowed, false, "full")
                .on_hover_text("weights of full attention; what the window hides is veiled");
            ui.selectable_value(&mut self.of_windowed, true, "windowed")
                .on_hover_text("weights of the run under the windows");
            ui.separator();
            ui.selectable_value(&mut self.log, false, "linear");
            ui.selectable_value(&mut self.log, true, "log")
                .on_hover_text("four powers of ten from black to the top");
            ui.separator();
            ui.selectable_value(&mut self.normalisation, Normalisation::Row, "by row")
                .on_hover_text("the top of the scale is the largest weight of each query");
            ui.selectable_value(&mut self.normalisation, Normalisation::All, "over all")
                .on_hover_text("the top of the scale is the largest weight shown");
            ui.separator();
            ui.selectable_value(&mut self.pooling, Pooling::Max, "max")
                .on_hover_text("weights that share a pixel: the largest of them");
            ui.selectable_value(&mut self.pooling, Pooling::Mean, "mean")
                .on_hover_text("weights that share a pixel: their mean");
            ui.separator();
            ui.checkbox(&mut self.without_first, "without first key")
                .on_hover_text(
                    "most heads rest on the first key (an attention sink), which drowns all else",
                );
            if ui
                .button("fit")
                .on_hover_text("show the whole matrix (double-click)")
                .clicked()
            {
                self.fit();
            }
        });
    }

    /// Pans and zooms, and says what is shown now.
    fn navigate(
        &mut self,
        ui: &egui::Ui,
        rect: Rect,
        response: &egui::Response,
        seq_len: usize,
    ) -> Mapping {
        let whole = Camera {
            center: pos2(seq_len as f32 / 2.0, seq_len as f32 / 2.0),
            tokens_per_point: seq_len as f32 / (rect.width().min(rect.height()) - 12.0).max(10.0),
        };
        if response.double_clicked() {
            self.camera = None;
        }
        let mut camera = self.camera.unwrap_or(whole);
        if response.dragged() && !self.is_dragging_edge && !response.drag_started() {
            camera.center -= response.drag_delta() * camera.tokens_per_point;
            self.camera = Some(camera);
        }
        if let Some(pointer) = response.hover_pos() {
            let (scroll, zoom) = ui.input(|i| (i.smooth_scroll_delta().y, i.zoom_delta()));
            let factor = zoom * (scroll / 240.0).exp();
            if factor != 1.0 {
                let before = Mapping { rect, camera }.tokens(pointer);
                camera.tokens_per_point = (camera.tokens_per_point / factor).clamp(
                    1.0 / MOST_POINTS_PER_TOKEN,
                    whole.tokens_per_point.max(1.0 / MOST_POINTS_PER_TOKEN),
                );
                let after = Mapping { rect, camera }.tokens(pointer);
                camera.center += before - after;
                self.camera = Some(camera);
            }
        }
        // Some of the matrix always stays in sight.
        camera.center = camera
            .center
            .clamp(Pos2::ZERO, pos2(seq_len as f32, seq_len as f32));
        if self.camera.is_some() {
            self.camera =
                (camera.tokens_per_point < whole.tokens_per_point * 0.999).then_some(camera);
            if self.camera.is_none() {
                camera = whole;
            }
        }
        Mapping { rect, camera }
    }

    /// The part of the matrix to compute: what is shown and a little around it, a pixel at least a token.
    fn request(
        &self,
        ui: &egui::Ui,
        mapping: Mapping,
        head: HeadId,
        seq_len: usize,
    ) -> Option<(MatrixRequest, bool)> {
        let tokens_per_pixel = mapping.camera.tokens_per_point / ui.pixels_per_point();
        let bin = (tokens_per_pixel.ceil().max(1.0) as usize).next_power_of_two();
        // Whole blocks: a small pan asks for nothing new.
        let block = (bin * 64) as f32;
        let range = |from: f32, count: f32| {
            let start = ((from / block).floor().max(0.0) * block) as usize;
            let end = (((from + count) / block).ceil().max(0.0) * block) as usize;
            start..end.min(seq_len)
        };
        let view = mapping.view();
        let request = MatrixRequest {
            head,
            queries: range(view.query, view.queries),
            keys: range(view.key, view.keys),
            bin,
            pooling: self.pooling,
        };
        let is_empty = request.queries.is_empty() || request.keys.is_empty();
        (!is_empty).then_some((request, self.of_windowed))
    }

    /// The window's edge, and its drag.
    fn edge_ui(
        &mut self,
        ui: &egui::Ui,
        session: &Session,
        mapping: Mapping,
        response: &egui::Response,
        actions: &mut Vec<Action>,
    ) {
        let focus = session.selection.focus;
        let seq_len = session.seq_len();
        let window = session.windows.get(focus).size(seq_len) as f32;
        let painter = ui.painter_at(mapping.rect);
        // The edge runs where key = query - window + 1; drawn through the corners of the cells.
        let from = mapping.screen(0.0, window);
        let to = mapping.screen(seq_len as f32 - window, seq_len as f32);
        let grip = grip(from, to, mapping.rect);
        let near = |at: Pos2| {
            distance_to_segment(at, from, to) < GRAB
                || grip.is_some_and(|g| g.distance(at) < 1.6 * GRAB)
        };
        let press = ui.input(|i| i.pointer.press_origin());
        if response.drag_started() {
            self.is_dragging_edge = press.is_some_and(near);
        }
        let is_hot = self.is_dragging_edge || response.hover_pos().is_some_and(near);
        let accent = theme::accent(ui.visuals());
        let stroke = Stroke::new(if is_hot { 2.5 } else { 1.5 }, accent);
        painter.line_segment([from, to], stroke);
        if let Some(grip) = grip {
            painter.circle(grip, 5.0, accent, Stroke::new(1.5, ui.visuals().panel_fill));
        }
        if is_hot {
            ui.ctx().set_cursor_icon(CursorIcon::ResizeNeSw);
        }
        if self.is_dragging_edge
            && response.dragged()
            && let Some(pointer) = ui.input(|i| i.pointer.latest_pos())
        {
            let at = mapping.tokens(pointer);
            let size = (at.y - at.x).round().max(1.0) as usize;
            let scale = WindowScale::new(seq_len);
            let window = if ui.input(|i| i.modifiers.shift) {
                Window::last(size)
                    .filter(|_| size < seq_len)
                    .unwrap_or(Window::Full)
            } else {
                scale.window(scale.level_of_size(size), false)
            };
            let heads: Vec<HeadId> = session.selection.heads.iter().copied().collect();
            if heads.iter().any(|&h| session.windows.get(h) != window) {
                actions.push(Action::Command(Command::SetWindow { heads, window }));
            }
        }
        if response.drag_stopped() {
            self.is_dragging_edge = false;
        }
    }

    /// The row of the query looked at, the pair under the pointer, and the tokens at the border.
    fn marks_ui(
        &self,
        ui: &egui::Ui,
        session: &Session,
        mapping: Mapping,
        response: &egui::Response,
    ) {
        let painter = ui.painter_at(mapping.rect);
        let visuals = ui.visuals();
        if let Some(query) = session.selection.query {
            let color = theme::accent(visuals);
            let top = mapping.screen(0.0, query as f32);
            let bottom = mapping.screen(query as f32 + 1.0, query as f32 + 1.0);
            let row = Rect::from_min_max(top, pos2(bottom.x, bottom.y.max(top.y + 2.0)));
            painter.rect_stroke(row, 0.0, Stroke::new(1.0, color), egui::StrokeKind::Outside);
        }
        if let Some(pointer) = response.hover_pos()
            && mapping.pair(pointer, session.seq_len()).is_some()
        {
            let stroke = Stroke::new(0.5, theme::weak(visuals));
            painter.hline(mapping.rect.x_range(), pointer.y, stroke);
            painter.vline(pointer.x, mapping.rect.y_range(), stroke);
        }
        // Axes: the upper right half is empty, and holds their names.
        let font = FontId::proportional(11.0);
        let weak = theme::weak(visuals);
        let corner = mapping.rect.right_top() + vec2(-8.0, 5.0);
        let axes = painter.layout_no_wrap("keys →\nqueries ↓".to_owned(), font.clone(), weak);
        let place = Align2::RIGHT_TOP.anchor_size(corner, axes.size());
        // Zoomed in, the matrix lies here too.
        painter.rect_filled(
            place.expand(3.0),
            3.0,
            visuals.extreme_bg_color.gamma_multiply(0.85),
        );
        painter.galley(place.min, axes, weak);
        let last = session.seq_len() as f32;
        let end = mapping.screen(last, last);
        if mapping.rect.expand(1.0).contains(end) {
            let text = super::status_bar::grouped(session.seq_len());
            painter.text(end + vec2(4.0, -2.0), Align2::LEFT_BOTTOM, text, font, weak);
        }
    }

    fn footer_ui(&self, ui: &mut egui::Ui, matrix: Option<&HeadMatrix>) {
        ui.horizontal(|ui| {
            let top = matrix.map_or(1.0, |m| m.max[usize::from(self.without_first)]);
            let (low, high) = match (self.log, self.normalisation) {
                (true, Normalisation::Row) => ("10⁻⁴".to_owned(), "row's largest".to_owned()),
                (false, Normalisation::Row) => ("0".to_owned(), "row's largest".to_owned()),
                (true, Normalisation::All) => (format!("{:.0e}", top * 1e-4), format!("{top:.3}")),
                (false, Normalisation::All) => ("0".to_owned(), format!("{top:.3}")),
            };
            ui.small(low);
            color_bar_ui(ui, theme::WEIGHT_COLORS, 120.0);
            ui.small(high);
            if let Some(matrix) = matrix
                && matrix.request.bin > 1
            {
                let text = format!("1 pixel = {0} × {0} tokens", matrix.request.bin);
                ui.small(egui::RichText::new(text).color(theme::weak(ui.visuals())));
            }
        });
    }

    fn hover_ui(
        &self,
        session: &Session,
        mapping: Mapping,
        response: egui::Response,
        matrix: Option<&HeadMatrix>,
        actions: &mut Vec<Action>,
    ) {
        let Some(pointer) = response.hover_pos() else {
            return;
        };
        if self.is_dragging_edge {
            let window = session.windows.get(session.selection.focus);
            let coverage = session.coverage(session.selection.focus);
            let covered =
                coverage.map_or_else(String::new, |c| format!("\ncoverage {:.1} %", c * 100.0));
            response.show_tooltip_text(format!("window {window}{covered}"));
            return;
        }
        let Some((query, key)) = mapping.pair(pointer, session.seq_len()) else {
            return;
        };
        if response.clicked() {
            actions.push(Action::Command(Command::SetQuery(Some(query))));
        }
        let focus = session.selection.focus;
        let is_visible = query - key < session.windows.get(focus).size(session.seq_len())
            || key < session.windows.sinks;
        let bin = matrix.map_or(1, |m| m.request.bin);
        let weight = matrix.and_then(|m| m.weight(query, key)).map_or_else(
            || "not yet known".to_owned(),
            |w| match (bin, self.pooling) {
                (1, _) => format!("{w:.5}"),
                (_, Pooling::Max) => format!("{w:.5} at most around here"),
                (_, Pooling::Mean) => format!("{w:.2e} on average around here"),
            },
        );
        let text = format!(
            "query {query} “{}”\nkey {key} “{}”, {} back\nweight {weight}{}",
            session.text.label(query),
            session.text.label(key),
            query - key,
            if is_visible {
                ""
            } else {
                "\noutside the window"
            }
        );
        response.on_hover_text_at_pointer(text);
    }
}

/// Laid over what the window hides.
fn veil(visuals: &egui::Visuals) -> Color32 {
    if visuals.dark_mode {
        Color32::from_rgba_unmultiplied(70, 76, 88, 190)
    } else {
        Color32::from_rgba_unmultiplied(214, 217, 224, 200)
    }
}

/// A handle in the middle of what is to be seen of the edge.
fn grip(from: Pos2, to: Pos2, rect: Rect) -> Option<Pos2> {
    let inner = rect.shrink(6.0);
    // The edge is a diagonal: clip it by its parameter.
    let length = to.x - from.x;
    if length < 1.0 {
        let near = pos2(
            from.x.clamp(inner.left(), inner.right()),
            from.y.clamp(inner.top(), inner.bottom()),
        );
        return (near.distance(from) < 12.0).then_some(near);
    }
    let low = (inner.left() - from.x).max(inner.top() - from.y).max(0.0);
    let high = (inner.right() - from.x)
        .min(inner.bottom() - from.y)
        .min(length);
    (low <= high).then(|| from + vec2(1.0, 1.0) * ((low + high) / 2.0))
}

fn distance_to_segment(at: Pos2, from: Pos2, to: Pos2) -> f32 {
    let along = to - from;
    let part = if along.length_sq() > 0.0 {
        ((at - from).dot(along) / along.length_sq()).clamp(0.0, 1.0)
    } else {
        0.0
    };
    at.distance(from + along * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grip_lies_on_the_visible_edge() {
        let rect = Rect::from_min_size(Pos2::ZERO, vec2(100.0, 100.0));
        let grip_of = |a, b| grip(a, b, rect);
        let middle = grip_of(pos2(0.0, 20.0), pos2(80.0, 100.0)).unwrap();
        assert!((middle.y - middle.x - 20.0).abs() < 1e-3 && rect.contains(middle));
        assert_eq!(grip_of(pos2(300.0, 320.0), pos2(380.0, 400.0)), None);
        // A full window's edge is a point in the corner.
        let corner = grip_of(pos2(0.0, 100.0), pos2(0.0, 100.0)).unwrap();
        assert!(rect.contains(corner));
    }

    #[test]
    fn mapping_goes_both_ways() {
        let mapping = Mapping {
            rect: Rect::from_min_size(pos2(10.0, 20.0), vec2(200.0, 100.0)),
            camera: Camera {
                center: pos2(50.0, 60.0),
                tokens_per_point: 0.25,
            },
        };
        let there = mapping.screen(55.5, 63.25);
        let back = mapping.tokens(there);
        assert!((back - pos2(55.5, 63.25)).length() < 1e-3);
        assert_eq!(
            mapping.pair(mapping.screen(60.5, 50.5), 1000),
            None,
            "keys after the query are not pairs"
        );
        assert_eq!(mapping.pair(mapping.screen(3.5, 60.5), 1000), Some((60, 3)));
        assert_eq!(mapping.pair(mapping.screen(3.5, 60.5), 60), None);
    }
}
