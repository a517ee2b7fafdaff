//! Loss per token, full and windowed.

use egui_plot::{AxisHints, HLine, HoverPosition, Legend, Line, Plot, PlotPoints, VLine};

use super::{Action, theme};
use crate::session::{Command, Session};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shown {
    #[default]
    Change,
    Loss,
}

/// The view's own state.
#[derive(Default)]
pub(super) struct LossView {
    shown: Shown,
}

/// Points of a curve; longer texts are averaged to so many.
const MOST_POINTS: usize = 2048;

impl LossView {
    pub fn show_ui(&mut self, ui: &mut egui::Ui, session: &Session, actions: &mut Vec<Action>) {
        ui.horizontal_wrapped(|ui| {
            ui.strong("loss per token");
            ui.selectable_value(&mut self.shown, Shown::Change, "change")
                .on_hover_text(
                    "windowed minus full, in nats: above 0 the windows make this token harder",
                );
            ui.selectable_value(&mut self.shown, Shown::Loss, "loss")
                .on_hover_text("-ln p(token | all before it), in nats, full and windowed");
        });
        let (Some(baseline), Some(windowed)) = (&session.baseline, &session.windowed) else {
            ui.centered_and_justified(|ui| {
                ui.colored_label(theme::weak(ui.visuals()), "computing the loss…");
            });
            return;
        };
        let (full, windowed) = (&baseline.run.token_loss, &windowed.run.token_loss);
        if full.is_empty() {
            ui.centered_and_justified(|ui| {
                ui.colored_label(
                    theme::weak(ui.visuals()),
                    "one token has nothing before it to be predicted from",
                );
            });
            return;
        }
        let visuals = ui.visuals();
        let mut lines = Vec::new();
        match self.shown {
            Shown::Change => {
                let change: Vec<f32> = windowed.iter().zip(full).map(|(w, f)| w - f).collect();
                lines.push(Line::new("change", curve(&change)).color(theme::bad(visuals)));
            }
            Shown::Loss => {
                lines.push(Line::new("full", curve(full)).color(theme::weak(visuals)));
                lines.push(Line::new("windowed", curve(windowed)).color(theme::accent(visuals)));
            }
        }
        let query = session.selection.query;
        let accent = theme::accent(visuals);
        let zero = theme::weak(visuals);
        let text = session.text.clone();
        let mut plot = Plot::new("loss per token")
            .height(ui.available_height())
            .allow_scroll(false)
            .y_axis_min_width(38.0)
            .grid_color(theme::grid(ui.visuals()))
            .custom_x_axes(vec![
                AxisHints::new_x()
                    .formatter(|mark, _| {
                        if mark.value < 0.0 {
                            String::new()
                        } else {
                            super::status_bar::grouped(mark.value as usize)
                        }
                    })
                    .label_spacing(egui::Rangef::new(26.0, 48.0)),
            ])
            .label_formatter(move |position| {
                let (HoverPosition::NearDataPoint { position, .. }
                | HoverPosition::Elsewhere { position }) = position;
                let token = position.x.round().max(0.0) as usize;
                Some(format!(
                    "token {token} “{}”\n{:+.3} nats",
                    text.label(token),
                    position.y
                ))
            });
        if self.shown == Shown::Loss {
            plot = plot.legend(Legend::default()).include_y(0.0);
        } else {
            plot = plot.include_y(0.05).include_y(-0.05);
        }
        let response = plot.show(ui, |plot| {
            plot.hline(
                HLine::new("zero", 0.0)
                    .color(zero)
                    .width(0.5)
                    .allow_hover(false),
            );
            for line in lines {
                plot.line(line.width(1.2));
            }
            if let Some(query) = query {
                let at = VLine::new("query", query as f64);
                plot.vline(at.color(accent).width(1.0).allow_hover(false));
            }
            plot.pointer_coordinate()
        });
        if response.response.clicked()
            && let Some(pointer) = response.inner
        {
            let token = pointer.x.round().max(0.0) as usize;
            actions.push(Action::Command(Command::SetQuery(Some(token))));
        }
    }
}

/// Loss number `i` is that of token `i + 1`.
fn curve(losses: &[f32]) -> PlotPoints<'static> {
    let step = losses.len().div_ceil(MOST_POINTS);
    losses
        .chunks(step)
        .enumerate()
        .map(|(index, part)| {
            let mean = part.iter().sum::<f32>() / part.len() as f32;
            let token = (index * step) as f64 + (part.len() as f64 + 1.0) / 2.0;
            [token, f64::from(mean)]
        })
        .collect()
}
