//! The top line: what is open, and the numbers of the whole map.

use super::{Action, Activity, theme};
use crate::{
    model::{Bos, SAMPLES},
    session::{Command, LongTexts, Mean, Session, Summary},
};

/// The bar's own state.
#[derive(Default)]
pub(super) struct TopBar {
    /// A model's name, while it is typed.
    name: String,
}

impl TopBar {
    pub fn show_ui(
        &mut self,
        ui: &mut egui::Ui,
        session: &Session,
        activity: Activity,
        actions: &mut Vec<Action>,
    ) {
        ui.add_space(2.0);
        ui.horizontal_wrapped(|ui| {
            menu_ui(ui, format!("model: {}", session.model.name), |ui| {
                self.model_menu_ui(ui, actions);
            });
            menu_ui(ui, format!("text: {}", session.title()), |ui| {
                text_menu_ui(ui, session, actions);
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
            ui.separator();
            numbers_ui(ui, &session.summary(), activity);
            if session.passages.len() > 1 {
                ui.separator();
                totals_ui(ui, session);
            }
        });
        ui.add_space(2.0);
    }

    fn model_menu_ui(&mut self, ui: &mut egui::Ui, actions: &mut Vec<Action>) {
        let mut item = |title: &str, action| item_ui(ui, title, "", action, actions);
        item("Open a model folder…", Action::ChooseModel);
        item("Open a GGUF or safetensors file…", Action::ChooseModelFile);
        item("Built-in model", Action::BuiltInModel);
        ui.separator();
        let label = ui.label("From the Hugging Face hub:");
        ui.horizontal(|ui| {
            let field = egui::TextEdit::singleline(&mut self.name)
                .hint_text("owner/name, or owner/name@revision")
                .desired_width(230.0);
            let response = ui.add(field).labelled_by(label.id);
            let entered = response.lost_focus() && ui.input(|i| i.key_pressed(egui::Key::Enter));
            let name = self.name.trim();
            let open = ui.add_enabled(!name.is_empty(), egui::Button::new("Open"));
            if (open.clicked() || entered) && !name.is_empty() {
                actions.push(Action::OpenNamed(name.to_owned()));
                ui.close();
            }
        });
        let weak = theme::weak(ui.visuals());
        ui.colored_label(
            weak,
            "Kept in the hub's own cache, for use without a network.",
        );
    }
}

/// A menu with fields in it: a click within it does not close it, but [`item_ui`] does.
fn menu_ui(ui: &mut egui::Ui, title: String, content: impl FnOnce(&mut egui::Ui)) {
    let stays = egui::containers::menu::MenuConfig::new()
        .close_behavior(egui::PopupCloseBehavior::CloseOnClickOutside);
    egui::containers::menu::MenuButton::new(title)
        .config(stays)
        .ui(ui, content);
}

/// An entry that does something and closes its menu.
fn item_ui(
    ui: &mut egui::Ui,
    title: &str,
    explanation: &str,
    action: Action,
    actions: &mut Vec<Action>,
) {
    let mut response = ui.button(title);
    if !explanation.is_empty() {
        response = response.on_hover_text(explanation);
    }
    if response.clicked() {
        actions.push(action);
        ui.close();
    }
}

fn text_menu_ui(ui: &mut egui::Ui, session: &Session, actions: &mut Vec<Action>) {
    item_ui(ui, "Open texts…", "", Action::ChooseText, actions);
    item_ui(
        ui,
        "Open a folder of texts…",
        "all its .txt and .md files, analysed together",
        Action::ChooseTextFolder,
        actions,
    );
    ui.separator();
    for (index, sample) in SAMPLES.iter().enumerate() {
        item_ui(
            ui,
            sample.name,
            sample.teaches,
            Action::Sample(index),
            actions,
        );
    }
    ui.separator();
    let mut settings = session.settings;
    ui.label("Texts longer than the model was made for");
    ui.horizontal(|ui| {
        for (value, name, explanation) in [
            (
                LongTexts::Whole,
                "whole",
                "run whole where the model's positions go on, else cut",
            ),
            (LongTexts::Cut, "cut", "only their beginning"),
            (
                LongTexts::Blocks,
                "in blocks",
                "each from its own beginning; loss and coverage are means over them",
            ),
        ] {
            ui.selectable_value(&mut settings.long, value, name)
                .on_hover_text(explanation);
        }
    });
    ui.horizontal(|ui| {
        let mut is_bounded = settings.context.is_some();
        ui.checkbox(&mut is_bounded, "at most")
            .on_hover_text("of a text, or of each block");
        let mut tokens = settings.context.unwrap_or(session.model.spec.context);
        let value = egui::DragValue::new(&mut tokens)
            .range(2..=1_000_000)
            .suffix(" tokens")
            .update_while_editing(false);
        ui.add_enabled(is_bounded, value);
        settings.context = is_bounded.then_some(tokens);
    });
    ui.label("Token for a beginning");
    ui.horizontal(|ui| {
        for (value, name, explanation) in [
            (
                Bos::Auto,
                "as the tokenizer does",
                "at the start of every text and block",
            ),
            (Bos::On, "always", "where the model has one"),
            (Bos::Off, "never", "the text alone"),
        ] {
            ui.selectable_value(&mut settings.bos, value, name)
                .on_hover_text(explanation);
        }
    });
    // A value that is being dragged is read when it is let go.
    if settings != session.settings && !ui.input(|i| i.pointer.any_down()) {
        actions.push(Action::Settings(settings));
    }
}

/// Means over all passages.
fn totals_ui(ui: &mut egui::Ui, session: &Session) {
    let totals = session.totals();
    let (done, count) = totals.done;
    let unit = if session.sources.len() > 1 {
        "texts"
    } else {
        "blocks"
    };
    let units = match session.sources.len() {
        1 => count,
        n => n,
    };
    let number = |v: Option<f64>| v.map_or_else(|| "  –  ".to_owned(), |v| format!("{v:.4}"));
    let spread = |mean: Option<Mean>, scale: f64, digits: usize| {
        let spread = mean.and_then(|m| m.spread);
        spread.map_or_else(String::new, |s| format!(" ± {:.digits$}", s * scale))
    };
    let delta = totals
        .spread_delta
        .map_or_else(|| "–".to_owned(), |m| format!("{:+.4}", m.mean));
    field_ui(
        ui,
        &format!("all {units} {unit}:"),
        &format!(
            "{} → {} ({delta}{})",
            number(totals.loss_full),
            number(totals.loss_windowed),
            spread(totals.spread_delta, 1.0, 4)
        ),
        None,
        &format!(
            "mean loss over all tokens, full and windowed; in brackets the mean change over {unit}, ± its standard \
             deviation from one to another"
        ),
    );
    field_ui(
        ui,
        "coverage",
        &format!(
            "{}{}",
            totals
                .mass_coverage
                .map_or_else(|| "– %".to_owned(), |v| format!("{:.1} %", v * 100.0)),
            spread(totals.spread_coverage, 100.0, 1)
        ),
        None,
        "mean over all queries, ± its standard deviation",
    );
    if done < count {
        let weak = theme::weak(ui.visuals());
        ui.colored_label(weak, format!("{done} of {count} run"));
    }
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
    // Until the current windows have run, an estimate stands there, marked as one.
    let (loss, sign) = match summary.loss_estimate {
        Some(estimate) => (Some(estimate), "≈"),
        None => (summary.loss_windowed, " "),
    };
    let delta = loss.zip(summary.loss_full).map(|(w, f)| w - f);
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
        "{sign}{} ({})",
        number(loss),
        delta.map_or_else(|| "   –   ".to_owned(), |d| format!("{d:+.4}"))
    );
    field_ui(
        ui,
        "",
        &shown,
        color,
        "the same under the windows, and the difference; grey while a new one is computed, with ≈ an estimate by the \
         slope of loss against coverage so far",
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
