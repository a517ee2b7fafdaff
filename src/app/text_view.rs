//! The text, tokens coloured by loss or by its change; hover for numbers, click for the query, edit in place.

use std::sync::Arc;

use egui::{Color32, FontId, Galley, Sense, Stroke, StrokeKind, TextFormat, text::LayoutJob, vec2};

use super::{Action, theme, window_map::color_bar_ui};
use crate::{
    model::{TokenizedText, visible},
    render::colormap::text_on,
    session::{Command, Session},
};

/// Nats at which the colour of a change is full.
const FULL_CHANGE: f32 = 2.0;
/// Nats at which the colour of a loss is full.
const FULL_LOSS: f32 = 10.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ColorBy {
    #[default]
    Change,
    Loss,
    Nothing,
}

/// What the laid-out text depends on.
#[derive(Clone, PartialEq)]
struct Key {
    text: usize,
    baseline: usize,
    windowed: usize,
    color_by: ColorBy,
    shows_spaces: bool,
    is_dark: bool,
    width: u32,
    pixels_per_point: u32,
}

struct Laid {
    key: Key,
    galley: Arc<Galley>,
    /// First character of each cluster in the galley.
    starts: Vec<usize>,
}

/// The view's own state.
#[derive(Default)]
pub(super) struct TextView {
    color_by: ColorBy,
    shows_spaces: bool,
    laid: Option<Laid>,
    /// The text being edited.
    draft: Option<String>,
}

/// Which passage is shown, and the way to the others.
fn passages_ui(ui: &mut egui::Ui, session: &Session, actions: &mut Vec<Action>) {
    let (current, count) = (session.current, session.passages.len());
    let mut show = |index: usize| actions.push(Action::Command(Command::ShowPassage(index)));
    let before = ui.add_enabled(current > 0, egui::Button::new("⏴"));
    if before.on_hover_text("the passage before").clicked() {
        show(current - 1);
    }
    let list = egui::ComboBox::from_id_salt("passages")
        .selected_text(format!(
            "{} ({} of {count})",
            session.text_name,
            current + 1
        ))
        .width(180.0)
        .show_ui(ui, |ui| {
            for (index, passage) in session.passages.iter().enumerate() {
                if ui
                    .selectable_label(index == current, &passage.name)
                    .clicked()
                {
                    show(index);
                }
            }
        });
    list.response
        .widget_info(|| egui::WidgetInfo::labeled(egui::Role::ComboBox, true, "passage"));
    let after = ui.add_enabled(current + 1 < count, egui::Button::new("⏵"));
    if after.on_hover_text("the passage after").clicked() {
        show(current + 1);
    }
}

impl TextView {
    /// Leaves the editor.
    pub fn stop_editing(&mut self) {
        self.draft = None;
    }

    pub fn show_ui(&mut self, ui: &mut egui::Ui, session: &Session, actions: &mut Vec<Action>) {
        ui.horizontal_wrapped(|ui| {
            ui.strong("text");
            if session.passages.len() > 1 {
                passages_ui(ui, session, actions);
            }
            if self.draft.is_some() {
                self.editor_buttons_ui(ui, session, actions);
                return;
            }
            ui.selectable_value(&mut self.color_by, ColorBy::Change, "loss change")
                .on_hover_text("red: the windows make this token harder; blue: easier");
            ui.selectable_value(&mut self.color_by, ColorBy::Loss, "loss")
                .on_hover_text("loss under the windows");
            ui.selectable_value(&mut self.color_by, ColorBy::Nothing, "plain");
            ui.checkbox(&mut self.shows_spaces, "spaces")
                .on_hover_text("show spaces, tabs and line breaks");
            if ui.button("edit").clicked() {
                self.draft = session.source().map(|s| s.text.clone());
            }
            self.legend_ui(ui);
        });
        if let Some(draft) = &mut self.draft {
            egui::ScrollArea::vertical()
                .id_salt("editor")
                .show(ui, |ui| {
                    let editor = egui::TextEdit::multiline(draft).desired_width(f32::INFINITY);
                    ui.add_sized(ui.available_size(), editor).widget_info(|| {
                        egui::WidgetInfo::labeled(
                            egui::Role::MultilineTextInput,
                            true,
                            "text to analyse",
                        )
                    });
                });
            return;
        }
        egui::ScrollArea::vertical()
            .id_salt("text")
            .auto_shrink([false, false])
            .show(ui, |ui| self.tokens_ui(ui, session, actions));
    }

    fn editor_buttons_ui(
        &mut self,
        ui: &mut egui::Ui,
        session: &Session,
        actions: &mut Vec<Action>,
    ) {
        let apply = ui
            .button("apply")
            .on_hover_text("run the model on the edited text (Ctrl-Enter)");
        let shortcut = ui.input_mut(|i| i.consume_key(egui::Modifiers::COMMAND, egui::Key::Enter));
        if apply.clicked() || shortcut {
            match &self.draft {
                Some(draft) if session.source().is_some_and(|s| s.text != *draft) => {
                    actions.push(Action::Edited(draft.clone()));
                }
                _ => self.draft = None,
            }
        }
        if ui.button("cancel").clicked() {
            self.draft = None;
        }
    }

    fn legend_ui(&self, ui: &mut egui::Ui) {
        let (map, low, high) = match self.color_by {
            ColorBy::Change => (theme::CHANGE_COLORS, "-2", "+2 nats"),
            ColorBy::Loss => (theme::WEIGHT_COLORS, "0", "10 nats"),
            ColorBy::Nothing => return,
        };
        ui.small(low);
        color_bar_ui(ui, map, 60.0);
        ui.small(high);
    }

    fn tokens_ui(&mut self, ui: &mut egui::Ui, session: &Session, actions: &mut Vec<Action>) {
        let key = Key {
            text: Arc::as_ptr(&session.text) as usize,
            baseline: session
                .baseline
                .as_ref()
                .map_or(0, |b| Arc::as_ptr(b) as usize),
            windowed: session
                .windowed
                .as_ref()
                .map_or(0, |w| Arc::as_ptr(w) as usize),
            color_by: self.color_by,
            shows_spaces: self.shows_spaces,
            is_dark: ui.visuals().dark_mode,
            width: ui.available_width() as u32,
            pixels_per_point: (ui.pixels_per_point() * 100.0) as u32,
        };
        if self.laid.as_ref().is_none_or(|laid| laid.key != key) {
            let (job, starts) = self.layout(ui, session);
            let galley = ui.painter().layout_job(job);
            self.laid = Some(Laid {
                key,
                galley,
                starts,
            });
        }
        let Some(laid) = &self.laid else { return };
        let size = vec2(ui.available_width(), laid.galley.size().y);
        let (rect, response) = ui.allocate_exact_size(size, Sense::click());
        response.widget_info(|| {
            egui::WidgetInfo::labeled(egui::Role::Label, true, "tokens of the text")
        });
        ui.painter()
            .galley(rect.min, laid.galley.clone(), ui.visuals().text_color());
        if let Some(query) = session.selection.query {
            self.outline_ui(ui, rect, session.text.cluster_of(query), 2.0);
        }
        let hovered = response.hover_pos().and_then(|pos| {
            let cursor = laid.galley.cursor_from_pos(pos - rect.min);
            let cluster = laid
                .starts
                .partition_point(|&s| s <= cursor.index.0)
                .checked_sub(1)?;
            // A cursor stands between characters: take the piece that really lies under the pointer.
            (cluster.saturating_sub(1)..=(cluster + 1).min(laid.starts.len() - 1)).find(|&c| {
                self.cluster_rects(c)
                    .iter()
                    .any(|r| r.translate(rect.min.to_vec2()).contains(pos))
            })
        });
        if let Some(cluster) = hovered {
            self.outline_ui(ui, rect, cluster, 1.0);
            let tokens = session.text.clusters()[cluster].tokens.clone();
            if response.clicked() {
                let query = Some(tokens.end - 1);
                actions.push(Action::Command(Command::SetQuery(query)));
            }
            response.on_hover_text_at_pointer(numbers(session, tokens));
        }
    }

    /// Where a cluster stands, line by line, relative to the galley.
    fn cluster_rects(&self, cluster: usize) -> Vec<egui::Rect> {
        let Some(laid) = &self.laid else {
            return Vec::new();
        };
        let Some(&start) = laid.starts.get(cluster) else {
            return Vec::new();
        };
        let end = laid.starts.get(cluster + 1).copied().unwrap_or(usize::MAX);
        let mut rects = Vec::new();
        let mut index = 0;
        for row in &laid.galley.rows {
            let glyphs = &row.row.glyphs;
            let (first, last) = (start.max(index), end.min(index + glyphs.len()));
            if first < last {
                let left = glyphs[first - index].pos.x;
                let right = glyphs[last - 1 - index].max_x();
                rects.push(egui::Rect::from_min_max(
                    row.pos + vec2(left, 0.0),
                    row.pos + vec2(right, row.row.size.y),
                ));
            }
            index += glyphs.len() + usize::from(row.ends_with_newline);
            if index > end {
                break;
            }
        }
        rects
    }

    fn outline_ui(&self, ui: &egui::Ui, rect: egui::Rect, cluster: usize, width: f32) {
        let stroke = Stroke::new(width, theme::accent(ui.visuals()));
        for part in self.cluster_rects(cluster) {
            let part = part.translate(rect.min.to_vec2());
            ui.painter()
                .rect_stroke(part, 2.0, stroke, StrokeKind::Outside);
        }
    }

    fn layout(&self, ui: &egui::Ui, session: &Session) -> (LayoutJob, Vec<usize>) {
        let text = &session.text;
        let mut job = LayoutJob::default();
        job.wrap.max_width = ui.available_width();
        let mut starts = Vec::with_capacity(text.clusters().len());
        let mut characters = 0;
        let font = FontId::proportional(14.0);
        let plain = ui.visuals().text_color();
        let panel = ui.visuals().panel_fill;
        for cluster in text.clusters() {
            starts.push(characters);
            let is_special = cluster.bytes.is_empty();
            let piece = text.cluster_text(cluster);
            let shown = if is_special {
                format!("‹{piece}›")
            } else if self.shows_spaces {
                // A visible line break still breaks the line.
                visible(piece).replace('⏎', "⏎\n")
            } else {
                piece.to_owned()
            };
            let background = self.background(session, cluster.tokens.clone(), panel);
            let color = background.map_or(plain, text_on);
            job.append(
                &shown,
                0.0,
                TextFormat {
                    font_id: font.clone(),
                    color,
                    background: background.unwrap_or(Color32::TRANSPARENT),
                    line_height: Some(20.0),
                    ..Default::default()
                },
            );
            characters += shown.chars().count();
        }
        (job, starts)
    }

    /// The colour behind some tokens; `None` where there is nothing to show.
    fn background(
        &self,
        session: &Session,
        tokens: std::ops::Range<usize>,
        panel: Color32,
    ) -> Option<Color32> {
        let windowed = losses(&session.windowed.as_ref()?.run.token_loss, tokens.clone())?;
        match self.color_by {
            ColorBy::Nothing => None,
            ColorBy::Loss => {
                let part = (windowed / FULL_LOSS).clamp(0.0, 1.0);
                Some(panel.lerp_to_gamma(theme::WEIGHT_COLORS.color(part), 0.85))
            }
            ColorBy::Change => {
                let full = losses(&session.baseline.as_ref()?.run.token_loss, tokens)?;
                let part = ((windowed - full) / FULL_CHANGE).clamp(-1.0, 1.0);
                if part.abs() < 0.01 {
                    return None;
                }
                let end = theme::CHANGE_COLORS.color(if part > 0.0 { 0.95 } else { 0.05 });
                // Small changes are to be seen too.
                Some(panel.lerp_to_gamma(end, part.abs().powf(0.7)))
            }
        }
    }
}

/// Summed loss of some tokens; the first of a text has none.
fn losses(of: &[f32], tokens: std::ops::Range<usize>) -> Option<f32> {
    let known: Vec<f32> = tokens
        .filter_map(|t| of.get(t.checked_sub(1)?).copied())
        .collect();
    (!known.is_empty()).then(|| known.iter().sum())
}

/// The tooltip of some tokens that share a piece of text.
fn numbers(session: &Session, tokens: std::ops::Range<usize>) -> String {
    let text: &TokenizedText = &session.text;
    let mut lines = Vec::new();
    for token in tokens {
        lines.push(format!(
            "token {token} “{}” (id {})",
            text.label(token),
            text.ids[token]
        ));
        let of = |losses: Option<&Vec<f32>>| losses?.get(token.checked_sub(1)?).copied();
        let full = of(session.baseline.as_ref().map(|b| &b.run.token_loss));
        let windowed = of(session.windowed.as_ref().map(|w| &w.run.token_loss));
        lines.push(match (full, windowed) {
            (Some(full), Some(windowed)) => format!(
                "loss {full:.3} full, {windowed:.3} windowed ({:+.3}); p = {:.4}",
                windowed - full,
                (-windowed).exp()
            ),
            (Some(full), None) => format!("loss {full:.3} full"),
            _ if token == 0 => "the first token is not predicted".to_owned(),
            _ => "loss not yet known".to_owned(),
        });
    }
    lines.join("\n")
}
