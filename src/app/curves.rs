//! The selected heads in numbers: window, coverage against window, and the distance profile.

use egui::{Color32, RichText};
use egui_plot::{AxisHints, Bar, BarChart, HoverPosition, Line, Plot, PlotPoints, VLine};

use super::{Action, WindowScale, theme};
use crate::{
    attention::{DistanceProfile, HeadId, Window, coverage_at},
    session::{Command, Session},
};

/// More curves than this cannot be told apart.
const MOST_CURVES: usize = 6;

pub(super) fn show_ui(ui: &mut egui::Ui, session: &Session, actions: &mut Vec<Action>) {
    let heads = shown_heads(session);
    ui.horizontal_wrapped(|ui| {
        ui.strong(format!("head {}", session.selection.focus));
        // The others in their curves' colours.
        for (index, head) in heads.iter().enumerate().skip(1) {
            ui.colored_label(theme::categorical(index, ui.visuals()), head.to_string());
        }
        let left = session.selection.heads.len() - heads.len().min(session.selection.heads.len());
        if left > 0 {
            ui.colored_label(theme::weak(ui.visuals()), format!("and {left} more"));
        }
    });
    window_ui(ui, session, actions);
    let Some(baseline) = &session.baseline else {
        ui.centered_and_justified(|ui| {
            ui.colored_label(theme::weak(ui.visuals()), "measuring the heads…");
        });
        return;
    };
    let height = (ui.available_height() - 56.0).max(120.0) / 2.0;
    coverage_ui(ui, session, &baseline.profile, &heads, height, actions);
    profile_ui(ui, session, &baseline.profile, &heads, height);
}

fn shown_heads(session: &Session) -> Vec<HeadId> {
    let focus = session.selection.focus;
    let others = session
        .selection
        .heads
        .iter()
        .copied()
        .filter(|&h| h != focus);
    std::iter::once(focus)
        .chain(others)
        .take(MOST_CURVES)
        .collect()
}

fn selected(session: &Session) -> Vec<HeadId> {
    session.selection.heads.iter().copied().collect()
}

fn window_ui(ui: &mut egui::Ui, session: &Session, actions: &mut Vec<Action>) {
    let focus = session.selection.focus;
    let seq_len = session.seq_len();
    let window = session.windows.get(focus);
    ui.horizontal_wrapped(|ui| {
        let label = ui.label("window");
        let mut size = window.size(seq_len);
        let speed = (size as f64 / 40.0).max(0.2);
        let value = egui::DragValue::new(&mut size)
            .range(1..=seq_len)
            .speed(speed)
            .suffix(if window.is_full_at(seq_len) {
                " (full)"
            } else {
                " keys"
            });
        let response = ui.add(value).labelled_by(label.id).on_hover_text(
            "keys that a query sees, its own included; at the length of the text it is full",
        );
        if response.changed() {
            let window = if size >= seq_len {
                Some(Window::Full)
            } else {
                Window::last(size)
            };
            if let Some(window) = window {
                actions.push(Action::Command(Command::SetWindow {
                    heads: selected(session),
                    window,
                }));
            }
        }
        let weak = theme::weak(ui.visuals());
        let coverage = session.coverage(focus);
        ui.colored_label(weak, "coverage");
        ui.monospace(
            coverage.map_or_else(|| "  –  ".to_owned(), |c| format!("{:5.1} %", c * 100.0)),
        );
        if let Some(windowed) = &session.windowed {
            ui.colored_label(weak, "entropy");
            ui.monospace(format!("{:.2}", windowed.run.entropy_of(focus)))
                .on_hover_text("mean over queries of -Σ a ln a, in nats, under the windows");
        }
    });
}

fn grid_levels(input: egui_plot::GridInput) -> Vec<egui_plot::GridMark> {
    let (low, high) = input.bounds;
    (low.ceil().max(0.0) as i64..=high.floor().max(0.0) as i64)
        .map(|level| egui_plot::GridMark {
            value: level as f64,
            step_size: if level % 2 == 0 { 2.0 } else { 1.0 },
        })
        .collect()
}

/// An axis of levels, a label for each that has room.
fn level_axis<'a>(name: impl Fn(f64) -> String + 'a) -> AxisHints<'a> {
    AxisHints::new_x()
        .formatter(move |mark, _| name(mark.value))
        .label_spacing(egui::Rangef::new(14.0, 22.0))
}

fn name_level(level: f64, scale: WindowScale) -> String {
    if level < -0.01 || level > f64::from(scale.top()) + 0.01 || level.fract().abs() > 0.01 {
        return String::new();
    }
    match scale.window(level as f32, false) {
        Window::Full => "full".to_owned(),
        Window::Last(n) if n >= 1024 && n % 1024 == 0 => format!("{}k", n / 1024),
        Window::Last(n) => n.to_string(),
    }
}

fn coverage_ui(
    ui: &mut egui::Ui,
    session: &Session,
    profile: &DistanceProfile,
    heads: &[HeadId],
    height: f32,
    actions: &mut Vec<Action>,
) {
    let scale = WindowScale::new(session.seq_len());
    let weak = theme::weak(ui.visuals());
    ui.label(RichText::new("coverage against window").color(weak).small())
        .on_hover_text("share of full attention's mass within the window: the prefix sum of the distance profile; dashed, where there are several passages: the mean over them and its spread, without sinks");
    let over_passages = mean_lines(ui, session, heads[0], scale);
    let lines: Vec<Line<'_>> = heads
        .iter()
        .enumerate()
        .map(|(index, &head)| {
            let steps = (scale.top() * 8.0) as usize;
            let points: PlotPoints<'_> = (0..=steps)
                .map(|step| {
                    let level = step as f32 / 8.0;
                    let window = scale.window(level, true);
                    let covered = coverage_at(profile, session.current_sinks(), head, window);
                    [f64::from(level), f64::from(covered) * 100.0]
                })
                .collect();
            Line::new(head.to_string(), points)
                .color(theme::categorical(index, ui.visuals()))
                .width(if index == 0 { 2.5 } else { 1.2 })
                .allow_hover(false)
        })
        .collect();
    let at = f64::from(scale.level(session.windows.get(session.selection.focus)));
    let accent = theme::accent(ui.visuals());
    let response = Plot::new("coverage")
        .height(height)
        .allow_zoom(false)
        .allow_drag(false)
        .allow_scroll(false)
        .allow_boxed_zoom(false)
        .allow_double_click_reset(false)
        .sense(egui::Sense::click_and_drag())
        .x_grid_spacer(grid_levels)
        .custom_x_axes(vec![level_axis(move |level| name_level(level, scale))])
        .grid_color(theme::grid(ui.visuals()))
        .y_axis_formatter(|mark, _| format!("{:.0} %", mark.value))
        .y_axis_min_width(38.0)
        .label_formatter(move |position| {
            let (HoverPosition::NearDataPoint { position, .. }
            | HoverPosition::Elsewhere { position }) = position;
            let window = scale.window(position.x as f32, false);
            Some(format!("window {window}\ndrag to set it"))
        })
        .show(ui, |plot| {
            // Set at every frame: a plot would keep the bounds of its first one, and another text has another top.
            plot.set_plot_bounds_x(-0.3..=f64::from(scale.top()) + 0.4);
            plot.set_plot_bounds_y(0.0..=104.0);
            for line in over_passages.into_iter().chain(lines) {
                plot.line(line);
            }
            plot.vline(
                VLine::new("window", at)
                    .color(accent)
                    .width(2.0)
                    .allow_hover(false),
            );
            plot.pointer_coordinate()
        });
    let fine = ui.input(|i| i.modifiers.shift);
    if (response.response.dragged() || response.response.clicked())
        && let Some(pointer) = response.inner
    {
        let window = scale.window(pointer.x as f32, fine);
        if selected(session)
            .iter()
            .any(|&h| session.windows.get(h) != window)
        {
            actions.push(Action::Command(Command::SetWindow {
                heads: selected(session),
                window,
            }));
        }
    }
    response
        .response
        .on_hover_cursor(egui::CursorIcon::ResizeHorizontal);
}

/// Of a head over all passages that have run: the mean, and its spread on both sides. None for a single passage.
fn mean_lines(
    ui: &egui::Ui,
    session: &Session,
    head: HeadId,
    scale: WindowScale,
) -> Vec<Line<'static>> {
    if session.passages.len() < 2 {
        return Vec::new();
    }
    let color = theme::weak(ui.visuals());
    let means: Vec<(f64, crate::session::Mean)> = (0..=(scale.top() * 2.0) as usize)
        .filter_map(|step| {
            let level = step as f32 / 2.0;
            let mean = session.mean_coverage(head, scale.window(level, true))?;
            Some((f64::from(level), mean))
        })
        .collect();
    [(0.0, 1.6), (-1.0, 0.8), (1.0, 0.8)]
        .into_iter()
        .map(|(side, width)| {
            let points: PlotPoints<'_> = means
                .iter()
                .map(|(level, m)| {
                    let covered = m.mean + side * m.spread.unwrap_or(0.0);
                    [*level, covered.clamp(0.0, 1.0) * 100.0]
                })
                .collect();
            Line::new("mean over passages", points)
                .color(color)
                .width(width)
                .style(egui_plot::LineStyle::dashed_loose())
                .allow_hover(false)
        })
        .collect()
}

fn profile_ui(
    ui: &mut egui::Ui,
    session: &Session,
    profile: &DistanceProfile,
    heads: &[HeadId],
    height: f32,
) {
    let weak = theme::weak(ui.visuals());
    ui.label(
        RichText::new("distance profile: mass by distance back")
            .color(weak)
            .small(),
    )
    .on_hover_text(
        "P(d) = mean over queries of the weight on the key d back, summed over each doubling of d",
    );
    let scale = WindowScale::new(session.seq_len());
    let window = scale.level(session.windows.get(session.selection.focus));
    let count = heads.len() as f64;
    let charts: Vec<BarChart> = heads
        .iter()
        .enumerate()
        .map(|(index, &head)| {
            let color = theme::categorical(index, ui.visuals());
            let bars = octaves(profile, head)
                .into_iter()
                .enumerate()
                .map(|(octave, mass)| {
                    let at = octave as f64 + (index as f64 - (count - 1.0) / 2.0) * 0.84 / count;
                    Bar::new(at, f64::from(mass) * 100.0)
                        .width(0.84 / count)
                        .fill(faded(color, octave as f32 > window + 1e-3))
                        .stroke(egui::Stroke::NONE)
                })
                .collect();
            BarChart::new(head.to_string(), bars).allow_hover(false)
        })
        .collect();
    Plot::new("profile")
        .height(height)
        .allow_zoom(false)
        .allow_drag(false)
        .allow_scroll(false)
        .allow_boxed_zoom(false)
        .include_y(0.0)
        .x_grid_spacer(grid_levels)
        .custom_x_axes(vec![level_axis(move |octave| octave_name(octave, scale))])
        .grid_color(theme::grid(ui.visuals()))
        .y_axis_formatter(|mark, _| format!("{:.0} %", mark.value))
        .y_axis_min_width(38.0)
        .label_formatter(move |position| {
            let (HoverPosition::NearDataPoint { position, .. }
            | HoverPosition::Elsewhere { position }) = position;
            Some(octave_range(position.x.round().max(0.0) as u32))
        })
        .show(ui, |plot| {
            plot.set_plot_bounds_x(-0.6..=f64::from(scale.top()) + 0.6);
            plot.set_auto_bounds([false, true]);
            for chart in charts {
                plot.bar_chart(chart);
            }
        });
}

/// Bars beyond the window stay, fainter.
fn faded(color: Color32, is_beyond: bool) -> Color32 {
    if is_beyond {
        color.gamma_multiply(0.3)
    } else {
        color
    }
}

/// Mass at distance 0, 1, 2-3, 4-7, …: octave `n > 0` holds the distances `2^(n-1) .. 2^n - 1`.
fn octaves(profile: &DistanceProfile, head: HeadId) -> Vec<f32> {
    let cumulative = profile.cumulative(head);
    let mut masses = Vec::new();
    let (mut end, mut before) = (1usize, 0.0);
    loop {
        let now = cumulative[end.min(cumulative.len()) - 1];
        masses.push(now - before);
        if end >= cumulative.len() {
            return masses;
        }
        before = now;
        end *= 2;
    }
}

fn octave_range(octave: u32) -> String {
    match octave {
        0 => "the query's own key".to_owned(),
        1 => "1 back".to_owned(),
        n => format!(
            "{} to {} back",
            1u64 << (n - 1).min(40),
            (1u64 << n.min(40)) - 1
        ),
    }
}

fn octave_name(at: f64, scale: WindowScale) -> String {
    if at < -0.01 || at > f64::from(scale.top()) + 0.01 || at.fract().abs() > 0.01 {
        return String::new();
    }
    match at.round() as u32 {
        0 => "0".to_owned(),
        n if n > 10 => format!("{}k", 1u64 << (n - 11)),
        n => (1u64 << (n - 1)).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octaves_hold_all_the_mass() {
        let mass: Vec<f32> = (0..11).map(|d| 1.0 / (d as f32 + 1.0)).collect();
        let total: f32 = mass.iter().sum();
        let profile = DistanceProfile::from_layers(std::slice::from_ref(&mass), 1, 11);
        let got = octaves(&profile, HeadId { layer: 0, head: 0 });
        assert_eq!(got.len(), 5);
        assert!((got.iter().sum::<f32>() - total).abs() < 1e-5);
        assert!((got[2] - (mass[2] + mass[3])).abs() < 1e-5);
    }
}
