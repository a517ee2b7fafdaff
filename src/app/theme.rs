//! Colours and spacing, light and dark. One meaning, one colour, in every view.

use egui::{Color32, CornerRadius, Stroke, Style, Theme, Visuals};

use crate::render::colormap::ColorMap;

/// Window size, on a log2 scale.
pub const WINDOW_COLORS: ColorMap = ColorMap::Viridis;
/// Mass coverage.
pub const COVERAGE_COLORS: ColorMap = ColorMap::Cividis;
/// Attention weights, and loss.
pub const WEIGHT_COLORS: ColorMap = ColorMap::Magma;
/// Changes of loss.
pub const CHANGE_COLORS: ColorMap = ColorMap::Diverging;

/// Sets both themes; which of them is used follows the system until the user chooses.
pub fn install(ctx: &egui::Context) {
    let mut fonts = egui::FontDefinitions::default();
    // Hack has the arrows and symbols that the proportional face lacks.
    if let Some(family) = fonts.families.get_mut(&egui::FontFamily::Proportional) {
        family.push("Hack".into());
    }
    ctx.set_fonts(fonts);
    for theme in [Theme::Dark, Theme::Light] {
        ctx.style_mut_of(theme, |style| adjust(style, theme));
    }
}

fn adjust(style: &mut Style, theme: Theme) {
    let mut visuals = match theme {
        Theme::Dark => Visuals::dark(),
        Theme::Light => Visuals::light(),
    };
    match theme {
        Theme::Dark => {
            visuals.panel_fill = Color32::from_rgb(24, 26, 31);
            visuals.extreme_bg_color = Color32::from_rgb(15, 16, 20);
            visuals.faint_bg_color = Color32::from_rgb(32, 35, 41);
            visuals.override_text_color = Some(Color32::from_rgb(218, 221, 227));
            visuals.selection.bg_fill = Color32::from_rgb(38, 92, 140);
            visuals.selection.stroke = Stroke::new(1.0, Color32::from_rgb(214, 234, 255));
            visuals.widgets.noninteractive.bg_stroke =
                Stroke::new(1.0, Color32::from_rgb(50, 54, 62));
        }
        Theme::Light => {
            visuals.panel_fill = Color32::from_rgb(247, 247, 249);
            visuals.extreme_bg_color = Color32::WHITE;
            visuals.faint_bg_color = Color32::from_rgb(236, 237, 241);
            visuals.override_text_color = Some(Color32::from_rgb(34, 37, 43));
            visuals.selection.bg_fill = Color32::from_rgb(168, 208, 245);
            visuals.selection.stroke = Stroke::new(1.0, Color32::from_rgb(12, 60, 104));
            visuals.widgets.noninteractive.bg_stroke =
                Stroke::new(1.0, Color32::from_rgb(213, 215, 221));
        }
    }
    for widget in [
        &mut visuals.widgets.inactive,
        &mut visuals.widgets.hovered,
        &mut visuals.widgets.active,
        &mut visuals.widgets.open,
    ] {
        widget.corner_radius = CornerRadius::same(4);
    }
    style.visuals = visuals;
    style.spacing.item_spacing = egui::vec2(8.0, 4.0);
}

/// The selected head, and the query looked at.
pub fn accent(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode {
        Color32::from_rgb(86, 204, 242)
    } else {
        Color32::from_rgb(0, 98, 168)
    }
}

/// Something got worse, or went wrong.
pub fn bad(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode {
        Color32::from_rgb(255, 133, 115)
    } else {
        Color32::from_rgb(178, 24, 43)
    }
}

/// Something got better.
pub fn good(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode {
        Color32::from_rgb(125, 190, 240)
    } else {
        Color32::from_rgb(33, 102, 172)
    }
}

/// Less important text, still readable.
pub fn weak(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode {
        Color32::from_rgb(150, 156, 167)
    } else {
        Color32::from_rgb(95, 100, 110)
    }
}

/// Lines behind a plot: there, and no more.
pub fn grid(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode {
        Color32::from_gray(60)
    } else {
        Color32::from_gray(205)
    }
}

/// Colours of several heads in one plot, told apart by colour-blind eyes too.
pub fn categorical(index: usize, visuals: &Visuals) -> Color32 {
    const DARK: [Color32; 6] = [
        Color32::from_rgb(86, 204, 242),
        Color32::from_rgb(240, 178, 66),
        Color32::from_rgb(0, 180, 130),
        Color32::from_rgb(222, 142, 190),
        Color32::from_rgb(240, 228, 88),
        Color32::from_rgb(228, 110, 60),
    ];
    const LIGHT: [Color32; 6] = [
        Color32::from_rgb(0, 98, 168),
        Color32::from_rgb(190, 110, 0),
        Color32::from_rgb(0, 128, 92),
        Color32::from_rgb(170, 80, 132),
        Color32::from_rgb(120, 110, 0),
        Color32::from_rgb(186, 70, 10),
    ];
    let palette = if visuals.dark_mode { &DARK } else { &LIGHT };
    palette[index % palette.len()]
}
