//! The bottom line: model, text, engine, what is running, and the time of a frame.

use super::{Activity, Options, theme};
use crate::{
    engine::{Backend, Stage},
    session::Session,
};

/// A number with its thousands set apart.
pub(super) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

pub(super) fn show_ui(
    ui: &mut egui::Ui,
    session: &Session,
    options: &Options,
    activity: Activity,
    frame_ms: f32,
) {
    ui.horizontal(|ui| {
        let spec = &session.model.spec;
        ui.label(format!("{} tokens", grouped(session.seq_len())));
        ui.separator();
        let shape = format!(
            "{} layers × {} heads of {}",
            spec.n_layers, spec.n_heads, spec.head_dim
        );
        ui.label(shape).on_hover_text(format!(
            "{}, {} key/value heads a layer, {:.2} M parameters, made for {} tokens",
            spec.architecture,
            spec.n_kv_heads,
            session.model.parameters() as f64 / 1e6,
            grouped(spec.context)
        ));
        ui.separator();
        let engine = match &options.backend {
            Backend::Cpu => "engine: CPU",
            Backend::Gpu(_) => "engine: GPU attention",
        };
        ui.label(engine).on_hover_text(
            "where attention runs; products run on the CPU. Choose with --engine cpu or --engine gpu",
        );
        let drawn = if options.adapter_is_software {
            format!("drawn in software by {}", options.adapter)
        } else {
            format!("drawn by {}", options.adapter)
        };
        let short = if options.adapter_is_software {
            "drawn in software"
        } else {
            "drawn by GPU"
        };
        ui.colored_label(theme::weak(ui.visuals()), short).on_hover_text(drawn);
        ui.separator();
        activity_ui(ui, activity);
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            ui.colored_label(theme::weak(ui.visuals()), format!("{frame_ms:4.1} ms"))
                .on_hover_text("CPU time of a frame, smoothed");
            egui::global_theme_preference_buttons(ui);
        });
    });
}

fn activity_ui(ui: &mut egui::Ui, activity: Activity) {
    match activity {
        Activity::Idle => {
            ui.label("ready");
        }
        Activity::Waiting => {
            ui.label("starting…");
        }
        Activity::Failed => {
            let color = theme::bad(ui.visuals());
            ui.colored_label(color, "failed");
        }
        Activity::Running(progress) => {
            let what = match progress.stage {
                Stage::Full => "full attention",
                Stage::Profile => "distance profiles",
                Stage::Windowed => "windowed",
                Stage::Steps => "controller",
                Stage::Passages => "other passages",
            };
            let done = progress.layer as f32 / progress.layers.max(1) as f32;
            ui.add(
                egui::ProgressBar::new(done)
                    .desired_width(160.0)
                    .text(format!("{what}: {}/{}", progress.layer, progress.layers)),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ] {
            assert_eq!(super::grouped(n), text);
        }
    }
}
