//! The top line: what is open, and the numbers of the whole map.

use super::{Action, Activity, theme};
use crate::{
    model::SAMPLES,
    session::{Command, Session, Summary},
};

pub(super) fn show_ui(
    ui: &mut egui::Ui,
    session: &Session,
    activity: Activity,
    is_opening: bool,
    actions: &mut Vec<Action>,
) {
    ui.add_space(2.0);
    ui.horizontal_wrapped(|ui| {
        ui.menu_button(format!("model: {}", session.model.name), |ui| {
            if ui.button("Open a model folder…").clicked() {
                actions.push(Action::ChooseModel);
            }
            if ui.button("Built-in model").clicked() {
                actions.push(Action::BuiltInModel);
            }
        });
        ui.menu_button(format!("text: {}", session.text_name), |ui| {
            if ui.button("Open a text…").clicked() {
                actions.push(Action::ChooseText);
            }
            ui.separator();
            for (index, sample) in SAMPLES.iter().enumerate() {
                if ui
                    .button(sample.name)
                    .on_hover_text(sample.teaches)
                    .clicked()
                {
                    actions.push(Action::Sample(index));
                }
            }
        });
        ui.menu_button("windows", |ui| {
            if ui.button("All full").clicked() {
                actions.push(Action::Command(Command::AllFull));
            }
            if ui.button("Open windows.json…").clicked() {
                actions.push(Action::ChooseText);
            }
            if ui.button("Save windows.json…").clicked() {
                actions.push(Action::SaveWindows);
            }
        });
        if is_opening {
            ui.spinner();
            ui.label("opening…");
        }
        ui.separator();
        numbers_ui(ui, &session.summary(), activity);
    });
    ui.add_space(2.0);
}

fn numbers_ui(ui: &mut egui::Ui, summary: &Summary, activity: Activity) {
    let number =
        |value: Option<f64>| value.map_or_else(|| "  –  ".to_owned(), |v| format!("{v:.4}"));
    let is_stale = !summary.is_current;
    field_ui(
        ui,
        "loss",
        &number(summary.loss_full),
        None,
        "mean of -ln p(token | all tokens before it), in nats, with full attention",
    );
    ui.label("→");
    let delta = summary
        .loss_windowed
        .zip(summary.loss_full)
        .map(|(w, f)| w - f);
    let color = delta.map(|d| {
        if is_stale {
            theme::weak(ui.visuals())
        } else if d > 5e-5 {
            theme::bad(ui.visuals())
        } else if d < -5e-5 {
            theme::good(ui.visuals())
        } else {
            ui.visuals().text_color()
        }
    });
    let shown = format!(
        "{} ({})",
        number(summary.loss_windowed),
        delta.map_or_else(|| "   –   ".to_owned(), |d| format!("{d:+.4}"))
    );
    field_ui(
        ui,
        "",
        &shown,
        color,
        "the same under the windows, and the difference; grey while a new one is computed",
    );
    // A mark that keeps its place, so that nothing jumps.
    let mark = if activity == Activity::Failed {
        "!"
    } else if is_stale {
        "⏳"
    } else {
        " "
    };
    let mark = ui.add_sized([14.0, 16.0], egui::Label::new(mark));
    mark.on_hover_text("computing the loss of the current windows");
    ui.separator();
    field_ui(
        ui,
        "perplexity",
        &format!(
            "{} → {}",
            summary
                .loss_full
                .map_or_else(|| "–".to_owned(), |l| format!("{:.2}", l.exp())),
            summary
                .loss_windowed
                .map_or_else(|| "–".to_owned(), |l| format!("{:.2}", l.exp())),
        ),
        None,
        "e to the loss: as unsure as a choice among so many tokens",
    );
    ui.separator();
    field_ui(
        ui,
        "ACR",
        &format!("{:.3}", summary.acr),
        None,
        "attention coverage ratio: sum of min(window, T) over heads / (heads × T). Positions, not mass; sinks do not count",
    );
    field_ui(
        ui,
        "causal ACR",
        &format!("{:.3}", summary.causal_acr),
        None,
        "(query, key) pairs inside the windows and sinks / T (T + 1) / 2 per head",
    );
    field_ui(
        ui,
        "EAR",
        &summary
            .ear
            .map_or_else(|| "  –  ".to_owned(), |v| format!("{v:.3}")),
        None,
        "executed attention ratio: pairs that the kernel really evaluated, block padding included / causal pairs",
    );
    ui.separator();
    field_ui(
        ui,
        "coverage",
        &summary
            .mass_coverage
            .map_or_else(|| "   – %".to_owned(), |v| format!("{:5.1} %", v * 100.0)),
        None,
        "mean over heads and queries of full attention's mass that the windows and sinks keep",
    );
}

fn field_ui(
    ui: &mut egui::Ui,
    name: &str,
    value: &str,
    color: Option<egui::Color32>,
    explanation: &str,
) {
    // One label, so that a line breaks between fields and never within one.
    let mut job = egui::text::LayoutJob::default();
    let size = egui::TextStyle::Body.resolve(ui.style()).size;
    let mut append = |text: &str, font, color| {
        job.append(text, 0.0, egui::TextFormat::simple(font, color));
    };
    if !name.is_empty() {
        let weak = theme::weak(ui.visuals());
        append(&format!("{name} "), egui::FontId::proportional(size), weak);
    }
    let color = color.unwrap_or(ui.visuals().text_color());
    append(value, egui::FontId::monospace(size), color);
    ui.add(egui::Label::new(job).extend())
        .on_hover_text(explanation);
}
