//! Messages that stay until they are dismissed.

use super::theme;

struct Toast {
    id: u64,
    text: String,
    is_error: bool,
}

/// The messages on the screen.
#[derive(Default)]
pub(super) struct Toasts {
    shown: Vec<Toast>,
    next: u64,
}

/// More than these would cover the window; the oldest go.
const MOST: usize = 5;

impl Toasts {
    /// Something went wrong.
    pub fn error(&mut self, text: String) {
        tracing::warn!("{text}");
        self.add(text, true);
    }

    /// Something worth knowing.
    pub fn note(&mut self, text: String) {
        tracing::info!("{text}");
        self.add(text, false);
    }

    fn add(&mut self, text: String, is_error: bool) {
        // The same message again moves to the end.
        self.shown.retain(|t| t.text != text);
        if self.shown.len() == MOST {
            self.shown.remove(0);
        }
        self.shown.push(Toast {
            id: self.next,
            text,
            is_error,
        });
        self.next += 1;
    }

    pub fn messages(&self) -> Vec<String> {
        self.shown.iter().map(|t| t.text.clone()).collect()
    }

    pub fn show_ui(&mut self, ctx: &egui::Context) {
        if self.shown.is_empty() {
            return;
        }
        let mut dismissed = None;
        egui::Area::new(egui::Id::unique("toasts"))
            .anchor(egui::Align2::RIGHT_BOTTOM, [-12.0, -36.0])
            .order(egui::Order::Foreground)
            .show(ctx, |ui| {
                for toast in &self.shown {
                    let visuals = ui.visuals();
                    let color = if toast.is_error {
                        theme::bad(visuals)
                    } else {
                        theme::accent(visuals)
                    };
                    egui::Frame::popup(ui.style())
                        .stroke(egui::Stroke::new(1.5, color))
                        .show(ui, |ui| {
                            ui.set_max_width(440.0);
                            ui.horizontal(|ui| {
                                let mark = if toast.is_error { "⚠" } else { "ℹ" };
                                ui.colored_label(color, mark);
                                ui.add(egui::Label::new(&toast.text).wrap());
                                if ui.button("dismiss").clicked() {
                                    dismissed = Some(toast.id);
                                }
                            });
                        });
                }
            });
        if let Some(id) = dismissed {
            self.shown.retain(|t| t.id != id);
        }
    }
}
