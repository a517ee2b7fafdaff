//! The window, or its picture where there is no display.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use super::{RunArgs, choose_backend};
use crate::{
    app::{
        App, MainView, Options,
        offscreen::{self, Picture},
    },
    engine::{
        Backend,
        gpu::{GpuContext, device_descriptor},
    },
    session::{Analysis, Session},
};

#[derive(Debug, Args)]
pub(super) struct WindowArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Draw the window offscreen after its first complete result, save it, and exit
    #[arg(long, value_name = "FILE.png")]
    screenshot: Option<PathBuf>,
    /// Size of the window, in points
    #[arg(long, value_name = "WxH", default_value = "1440x900", value_parser = parse_size)]
    size: (u16, u16),
    /// Pixels a point of the picture
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    scale: f32,
    /// What stands in the middle
    #[arg(long, value_enum, default_value_t = ViewChoice::Attention)]
    view: ViewChoice,
    /// Light or dark; the window follows the system if left out
    #[arg(long, value_enum)]
    theme: Option<ThemeChoice>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ViewChoice {
    Attention,
    Hierarchy,
    Acr,
}

impl From<ViewChoice> for MainView {
    fn from(choice: ViewChoice) -> Self {
        match choice {
            ViewChoice::Attention => Self::Attention,
            ViewChoice::Hierarchy => Self::Hierarchy,
            ViewChoice::Acr => Self::Acr,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ThemeChoice {
    Light,
    Dark,
}

fn parse_size(text: &str) -> std::result::Result<(u16, u16), String> {
    let parsed = text
        .split_once('x')
        .and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    match parsed {
        Some((w @ 320.., h @ 240..)) => Ok((w, h)),
        _ => Err("give width x height, at least 320x240, as in 1440x900".to_owned()),
    }
}

pub(super) fn run(args: &WindowArgs) -> Result<()> {
    if !(0.25..=8.0).contains(&args.scale) {
        bail!("--scale is {}; it must be from 0.25 to 8", args.scale);
    }
    let session = args.run.session(args.run.open_model()?)?;
    match &args.screenshot {
        Some(path) => screenshot(args, session, path).map(|_| ()),
        None if has_display() => open_window(args, session),
        None => {
            let path = Path::new("headscope.png");
            let (session, backend) = screenshot(args, session, path)?;
            print!("{}", Analysis::of(&session, &backend, false).to_text());
            println!(
                "There is no display: the window was drawn to {} instead.",
                path.display()
            );
            Ok(())
        }
    }
}

/// Whether a window could be shown. Elsewhere than on Unix desktops there always is a display.
fn has_display() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    !cfg!(any(target_os = "linux", target_os = "freebsd"))
        || is_set("DISPLAY")
        || is_set("WAYLAND_DISPLAY")
}

fn screenshot(args: &WindowArgs, session: Session, path: &Path) -> Result<(Session, Backend)> {
    let gpu = GpuContext::headless()?;
    let backend = choose_backend(args.run.engine, || Ok(gpu.clone()))?;
    let picture = Picture {
        size: [f32::from(args.size.0), f32::from(args.size.1)],
        scale: args.scale,
        theme: match args.theme {
            Some(ThemeChoice::Light) => egui::Theme::Light,
            _ => egui::Theme::Dark,
        },
        view: args.view.into(),
        steps: args.run.steps,
    };
    let settings = args.run.text_settings();
    let (image, session) = offscreen::draw(session, &gpu, backend.clone(), settings, picture)?;
    image
        .save_with_format(path, image::ImageFormat::Png)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok((session, backend))
}

fn open_window(args: &WindowArgs, session: Session) -> Result<()> {
    let mut setup = egui_wgpu::WgpuSetupCreateNew::without_display_handle();
    setup.device_descriptor = std::sync::Arc::new(device_descriptor);
    let size = [f32::from(args.size.0), f32::from(args.size.1)];
    let options = eframe::NativeOptions {
        viewport: egui::ViewportBuilder::default()
            .with_title("headscope")
            .with_app_id("headscope")
            .with_inner_size(size)
            .with_min_inner_size([640.0, 420.0]),
        wgpu_options: egui_wgpu::WgpuConfiguration {
            wgpu_setup: setup.into(),
            ..Default::default()
        }
        // A drag is felt: one frame in flight, not two.
        .with_surface_config(egui_wgpu::SurfaceConfig::LOW_LATENCY),
        ..Default::default()
    };
    let choice = args.run.engine;
    let theme = args.theme;
    let (view, steps) = (args.view, args.run.steps);
    let settings = args.run.text_settings();
    eframe::run_native(
        "headscope",
        options,
        Box::new(move |cc| {
            let state = cc
                .wgpu_render_state
                .as_ref()
                .ok_or("the window has no graphics device")?;
            let mut backend = Ok(Backend::Cpu);
            let options = Options::for_render_state(state, settings, |gpu| {
                backend = choose_backend(choice, || Ok(gpu));
                backend.as_ref().map_or(Backend::Cpu, Clone::clone)
            });
            backend?;
            match theme {
                Some(ThemeChoice::Light) => cc.egui_ctx.set_theme(egui::Theme::Light),
                Some(ThemeChoice::Dark) => cc.egui_ctx.set_theme(egui::Theme::Dark),
                None => {}
            }
            let mut app = App::new(&cc.egui_ctx, session, options)?;
            app.show(view.into());
            app.start_regime(steps);
            Ok(Box::new(app))
        }),
    )
    .map_err(|e| {
        anyhow::anyhow!(
            "the window could not be opened: {e}; `headscope doctor` shows the graphics adapters, \
             `headscope --screenshot FILE.png` works without a display"
        )
    })
}
