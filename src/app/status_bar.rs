//! The bottom line: model, text, engine, what is running, and the time of a frame.

use super::{Action, Activity, Options, loader::Loader, theme};
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
    loader: &Loader,
    frame_ms: f32,
    actions: &mut Vec<Action>,
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
        opening_ui(ui, loader, actions);
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

/// What is being opened, or fetched.
fn opening_ui(ui: &mut egui::Ui, loader: &Loader, actions: &mut Vec<Action>) {
    let progress = loader.download().and_then(|d| Some((d, d.progress()?)));
    if let Some((download, progress)) = progress {
        let done = progress.done_bytes as f32 / progress.total_bytes.max(1) as f32;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (number, count) = progress.number;
        let bar = egui::ProgressBar::new(done)
            .desired_width(220.0)
            .text(format!(
                "{number} of {count}: {:.1} of {:.1} MiB",
                mib(progress.done_bytes),
                mib(progress.total_bytes)
            ));
        ui.separator();
        ui.add(bar)
            .on_hover_text(format!("{} of {}", progress.file, download.name));
        if ui
            .button("stop")
            .on_hover_text("what has arrived is kept, and gone on with the next time")
            .clicked()
        {
            actions.push(Action::CancelDownload);
        }
    } else if loader.is_busy() {
        ui.separator();
        ui.spinner();
        ui.label("opening…");
        if let Some(download) = loader.download()
            && ui.button("stop").clicked()
        {
            tracing::debug!("{} is not wanted any more", download.name);
            actions.push(Action::CancelDownload);
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
