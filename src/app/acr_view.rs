//! The ACR view: coverage in positions and in mass, layer by head, with margins, and the histogram of windows.

use egui::{Align2, FontId, Rect, Sense, pos2, vec2};
use egui_plot::{AxisHints, Bar, BarChart, Plot};

use super::{Action, theme, window_map::color_bar_ui};
use crate::{
    attention::HeadId,
    render::colormap::{ColorMap, text_on},
    session::{Command, Selection, Session},
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shown {
    #[default]
    Acr,
    Coverage,
    Difference,
}

/// The view's own state.
#[derive(Default)]
pub(super) struct AcrView {
    shown: Shown,
}

/// Mean of the known values.
fn mean(values: impl Iterator<Item = Option<f32>>) -> Option<f32> {
    let known: Vec<f32> = values.flatten().collect();
    (!known.is_empty()).then(|| known.iter().sum::<f32>() / known.len() as f32)
}

impl AcrView {
    pub fn show_ui(&mut self, ui: &mut egui::Ui, session: &Session, actions: &mut Vec<Action>) {
        ui.horizontal_wrapped(|ui| {
            ui.selectable_value(&mut self.shown, Shown::Acr, "ACR")
                .on_hover_text("min(window, T) / T: positions");
            ui.selectable_value(&mut self.shown, Shown::Coverage, "coverage")
                .on_hover_text("share of full attention's mass inside window and sinks");
            ui.selectable_value(&mut self.shown, Shown::Difference, "coverage - ACR")
                .on_hover_text("above 0: the window keeps more mass than its share of positions");
            let (map, low, high) = match self.shown {
                Shown::Acr => (theme::WINDOW_COLORS, "0", "1"),
                Shown::Coverage => (theme::COVERAGE_COLORS, "0", "1"),
                Shown::Difference => (ColorMap::Diverging, "-1", "+1"),
            };
            ui.small(low);
            color_bar_ui(ui, map, 100.0);
            ui.small(high);
        });
        let histogram_height = (ui.available_height() * 0.34).clamp(90.0, 220.0);
        let height = (ui.available_height() - histogram_height - 26.0).max(60.0);
        egui::ScrollArea::vertical()
            .id_salt("acr")
            .max_height(height)
            .auto_shrink([false, true])
            .show(ui, |ui| self.grid_ui(ui, session, height, actions));
        ui.colored_label(theme::weak(ui.visuals()), "heads at each window");
        histogram_ui(ui, session);
    }

    fn value(&self, session: &Session, head: HeadId) -> Option<f32> {
        let seq_len = session.seq_len();
        let acr = session.windows.get(head).size(seq_len) as f32 / seq_len as f32;
        match self.shown {
            Shown::Acr => Some(acr),
            Shown::Coverage => session.coverage(head),
            Shown::Difference => session.coverage(head).map(|c| c - acr),
        }
    }

    fn color(&self, value: Option<f32>, ui: &egui::Ui) -> egui::Color32 {
        value.map_or(ui.visuals().faint_bg_color, |v| match self.shown {
            Shown::Acr => theme::WINDOW_COLORS.color(v),
            Shown::Coverage => theme::COVERAGE_COLORS.color(v),
            Shown::Difference => ColorMap::Diverging.color(0.5 + v / 2.0),
        })
    }

    fn grid_ui(
        &self,
        ui: &mut egui::Ui,
        session: &Session,
        height: f32,
        actions: &mut Vec<Action>,
    ) {
        let (layers, heads) = (session.windows.layers(), session.windows.heads());
        let width = ui.available_width();
        // A label at the left, a margin at the right, a total below.
        let (label, margin) = (26.0, 58.0);
        let cell = vec2(
            ((width - label - margin) / heads as f32).max(8.0),
            (height / (layers + 1) as f32).clamp(9.0, 46.0),
        );
        let size = vec2(width, cell.y * (layers + 1) as f32);
        let (outer, response) = ui.allocate_exact_size(size, Sense::click());
        response.widget_info(|| {
            egui::WidgetInfo::labeled(egui::Role::Image, true, "ACR by layer and head")
        });
        let painter = ui.painter_at(outer);
        let corner = outer.min + vec2(label, 0.0);
        let paint = |rect: Rect, value: Option<f32>| {
            let fill = self.color(value, ui);
            let rect = rect.shrink(1.0);
            painter.rect_filled(rect, 2.0, fill);
            if rect.width() >= 30.0 && rect.height() >= 13.0 {
                let text = value.map_or_else(String::new, |v| format!("{v:.2}"));
                let font = FontId::monospace(10.0);
                painter.text(
                    rect.center(),
                    Align2::CENTER_CENTER,
                    text,
                    font,
                    text_on(fill),
                );
            }
        };
        let rect_of = |column: f32, row: f32, width: f32| {
            let at = corner + vec2(column * cell.x, row * cell.y);
            Rect::from_min_size(at, vec2(width, cell.y))
        };
        let weak = theme::weak(ui.visuals());
        for layer in 0..layers {
            let left = pos2(outer.min.x + 2.0, corner.y + (layer as f32 + 0.5) * cell.y);
            let font = FontId::proportional(11.0);
            painter.text(left, Align2::LEFT_CENTER, format!("L{layer}"), font, weak);
            let row = (0..heads).map(|head| self.value(session, HeadId { layer, head }));
            for (head, value) in row.clone().enumerate() {
                paint(rect_of(head as f32, layer as f32, cell.x), value);
            }
            paint(
                rect_of(heads as f32, layer as f32, margin).translate(vec2(6.0, 0.0)),
                mean(row),
            );
        }
        let all = mean(
            session
                .windows
                .iter()
                .map(|(head, _)| self.value(session, head)),
        );
        let total = rect_of(heads as f32, layers as f32, margin).translate(vec2(6.0, 0.0));
        paint(total, all);
        painter.text(
            pos2(total.left() - 6.0, total.center().y),
            Align2::RIGHT_CENTER,
            "mean of all",
            FontId::proportional(11.0),
            weak,
        );
        if let Some(pointer) = response.hover_pos() {
            let place = (pointer - corner) / cell;
            if place.x >= 0.0 && place.y >= 0.0 {
                let head = HeadId {
                    layer: place.y as usize,
                    head: place.x as usize,
                };
                if head.layer < layers && head.head < heads {
                    if response.clicked() {
                        actions.push(Action::Command(Command::Select(Selection::one(head))));
                    }
                    let coverage = session.coverage(head).map_or_else(
                        || "not yet known".to_owned(),
                        |c| format!("{:.1} %", c * 100.0),
                    );
                    let window = session.windows.get(head);
                    let acr = window.size(session.seq_len()) as f32 / session.seq_len() as f32;
                    response.on_hover_text_at_pointer(format!(
                        "{head}\nwindow {window}, ACR {acr:.3}\ncoverage {coverage}"
                    ));
                }
            }
        }
    }
}

fn histogram_ui(ui: &mut egui::Ui, session: &Session) {
    let bins = session.histogram();
    let total: usize = bins.iter().map(|(_, n)| n).sum();
    let scale = super::WindowScale::new(session.seq_len());
    let names: Vec<String> = bins
        .iter()
        .map(|(w, _)| {
            if *w as usize == session.seq_len() {
                "full".to_owned()
            } else {
                w.to_string()
            }
        })
        .collect();
    let bars: Vec<Bar> = bins
        .iter()
        .enumerate()
        .map(|(index, &(window, heads))| {
            let fraction = scale.level_of_size(window as usize) / scale.top().max(1.0);
            let share = heads as f64 / total.max(1) as f64 * 100.0;
            Bar::new(index as f64, share)
                .width(0.7)
                .fill(theme::WINDOW_COLORS.color(fraction))
                .stroke(egui::Stroke::NONE)
        })
        .collect();
    let labels = names.clone();
    let count = bins.len() as f64;
    Plot::new("histogram")
        .height(ui.available_height())
        .allow_zoom(false)
        .allow_drag(false)
        .allow_scroll(false)
        .allow_boxed_zoom(false)
        .include_y(0.0)
        .grid_color(theme::grid(ui.visuals()))
        .x_grid_spacer(move |_| {
            (0..labels.len())
                .map(|i| egui_plot::GridMark {
                    value: i as f64,
                    step_size: 1.0,
                })
                .collect()
        })
        .custom_x_axes(vec![
            AxisHints::new_x()
                .formatter(move |mark, _| {
                    names
                        .get(mark.value.round().max(0.0) as usize)
                        .cloned()
                        .unwrap_or_default()
                })
                .label_spacing(egui::Rangef::new(12.0, 20.0)),
        ])
        .y_axis_formatter(|mark, _| format!("{:.0} %", mark.value))
        .y_axis_min_width(38.0)
        .show(ui, |plot| {
            // Set at every frame: a plot would keep the bounds of its first one.
            plot.set_plot_bounds_x(-0.6..=count - 0.4);
            plot.set_auto_bounds([false, true]);
            plot.bar_chart(BarChart::new("heads", bars).allow_hover(false));
        });
}
