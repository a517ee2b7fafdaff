//! End to end: the real program in a real window under Xvfb, driven by a real mouse.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    process::{Child, Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// One process at a time: the window's frames must not wait for other tests' engines.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_headscope");

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A virtual screen of its own.
struct Screen {
    _server: Running,
    display: String,
}

impl Screen {
    fn start() -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        // The server picks a free number and writes it to the pipe.
        let server = Command::new("Xvfb")
            .args([
                "-displayfd",
                "1",
                "-screen",
                "0",
                "1600x1000x24",
                "-nolisten",
                "tcp",
            ])
            .stdout(writer)
            .stderr(Stdio::null())
            .spawn()
            .expect("Xvfb is needed for this test: ./x test installs it, or apt-get install xvfb");
        let server = Running(server);
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(reader), &mut line).unwrap();
        Self {
            _server: server,
            display: format!(":{}", line.trim()),
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("DISPLAY", &self.display)
            .env_remove("WAYLAND_DISPLAY");
        command
    }

    fn xdotool(&self, arguments: &[&str]) -> String {
        let output = self.command("xdotool").args(arguments).output().expect(
            "xdotool is needed for this test: ./x test installs it, or apt-get install xdotool",
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Waits until the window's title satisfies `is`, and gives it.
    fn wait_for_title(&self, window: &str, is: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let title = self.xdotool(&["getwindowname", window]);
            if is(&title) {
                return title;
            }
            assert!(
                started.elapsed() < Duration::from_secs(90),
                "the title stays \"{title}\""
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The losses in a title such as "headscope: built-in, text, loss 4.0826 → 4.0861".
fn losses(title: &str) -> Option<(f64, f64)> {
    let (full, windowed) = title.rsplit_once("loss ")?.1.split_once(" → ")?;
    Some((full.parse().ok()?, windowed.parse().ok()?))
}

#[test]
fn a_mouse_drag_in_the_real_window_changes_the_reported_loss() {
    let _turn = turn();
    let screen = Screen::start();
    let program = screen
        .command(PROGRAM)
        .args(["--size", "1440x900", "--theme", "dark"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _program = Running(program);
    let started = Instant::now();
    let window = loop {
        let found = screen.xdotool(&["search", "--name", "^headscope"]);
        if let Some(id) = found.lines().last() {
            break id.to_owned();
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "no window appears"
        );
        std::thread::sleep(Duration::from_millis(50));
    };
    let title = screen.wait_for_title(&window, |t| losses(t).is_some());
    let (full, windowed) = losses(&title).unwrap();
    assert_eq!(full, windowed, "every head starts full: {title}");

    // The grid of heads stands at the left, from 120 points down: take a cell of an upper layer.
    let position = screen.xdotool(&["getwindowgeometry", "--shell", &window]);
    let coordinate = |name: &str| -> i32 {
        let line = position.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_once('=').unwrap().1.parse().unwrap()
    };
    let (x, y) = (coordinate("X=") + 140, coordinate("Y=") + 205);
    let at = |dy: i32| [x.to_string(), (y + dy).to_string()];
    let [left, top] = at(0);
    screen.xdotool(&["mousemove", &left, &top]);
    std::thread::sleep(Duration::from_millis(200));
    screen.xdotool(&["mousedown", "1"]);
    for step in 1..=8 {
        let [left, top] = at(step * 14);
        screen.xdotool(&["mousemove", &left, &top]);
        std::thread::sleep(Duration::from_millis(40));
    }
    // The loss follows while the button is still down.
    let title = screen.wait_for_title(&window, |t| losses(t).is_some_and(|(f, w)| f != w));
    screen.xdotool(&["mouseup", "1"]);
    let (still_full, dragged) = losses(&title).unwrap();
    assert_eq!(still_full, full);
    assert!(
        (dragged - full).abs() > 1e-4 && dragged.is_finite(),
        "{title}"
    );
}

fn run(arguments: &[&str], folder: &std::path::Path) -> Output {
    Command::new(PROGRAM)
        .args(arguments)
        .current_dir(folder)
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY")
        .output()
        .unwrap()
}

#[test]
fn without_a_display_the_window_is_drawn_to_a_file() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let output = run(&["--context", "100"], folder.path());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(text.contains("There is no display"), "{text}");
    assert!(text.contains("loss       full "), "{text}");
    let image = image::open(folder.path().join("headscope.png"))
        .unwrap()
        .to_rgb8();
    assert_eq!(image.dimensions(), (1440, 900));
    // Not blank: the matrix alone has hundreds of colours.
    let colors: std::collections::HashSet<_> = image.pixels().collect();
    assert!(colors.len() > 300, "{} colours", colors.len());

    let arguments = [
        "--screenshot",
        "small.png",
        "--size",
        "800x600",
        "--theme",
        "light",
        "--context",
        "50",
    ];
    assert!(run(&arguments, folder.path()).status.success());
    let image = image::open(folder.path().join("small.png")).unwrap();
    assert_eq!((image.width(), image.height()), (800, 600));
}

#[test]
fn analyze_prints_the_fields_of_the_design() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        "analyze",
        "--text",
        "sample:held-out book",
        "--context",
        "200",
        "--window",
        "32",
        "--sinks",
        "2",
        "--format",
        "json",
        "--tokens",
    ];
    let output = run(&arguments, folder.path());
    assert!(output.status.success(), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for path in [
        "/model/name",
        "/model/architecture",
        "/model/layers",
        "/model/heads",
        "/model/kv_heads",
        "/model/head_dim",
        "/model/parameters",
        "/model/context",
        "/text/tokens",
        "/text/bytes",
        "/engine/kind",
        "/engine/adapter",
        "/windows/regime",
        "/windows/sinks",
        "/windows/map",
        "/loss/full",
        "/loss/windowed",
        "/loss/delta",
        "/loss/perplexity_full",
        "/loss/perplexity_windowed",
        "/loss/bits_per_byte_full",
        "/loss/bits_per_byte_windowed",
        "/acr",
        "/causal_acr",
        "/ear",
        "/flops_ratio",
        "/mass_coverage",
        "/routing_quality",
        "/layers/5/acr",
        "/layers/5/groups_per_level",
        "/layers/5/heads/7/window",
        "/layers/5/heads/7/group",
        "/layers/5/heads/7/coverage",
        "/layers/5/heads/7/entropy",
        "/layers/5/heads/7/norm",
        "/token_loss/full/198",
        "/token_loss/windowed/198",
        "/timings_ms/full",
    ] {
        assert!(json.pointer(path).is_some(), "{path} is missing");
    }
    assert_eq!(json["text"]["tokens"], 200);
    assert_eq!(json["windows"]["map"][0][0], 32);
    assert!((json["acr"].as_f64().unwrap() - 0.16).abs() < 1e-12);
    let mean = |key: &str| {
        let losses = json["token_loss"][key].as_array().unwrap();
        losses.iter().map(|l| l.as_f64().unwrap()).sum::<f64>() / losses.len() as f64
    };
    assert!((mean("full") - json["loss"]["full"].as_f64().unwrap()).abs() < 1e-5);
    assert!((mean("windowed") - json["loss"]["windowed"].as_f64().unwrap()).abs() < 1e-5);
    let csv = run(
        &["analyze", "--context", "20", "--format", "csv"],
        folder.path(),
    );
    assert_eq!(
        String::from_utf8(csv.stdout).unwrap().lines().count(),
        1 + 6 * 8
    );
}

#[test]
fn regimes_choose_windows_and_maps_go_through_every_format() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let analyze = |more: &[&str]| -> serde_json::Value {
        let mut arguments = vec![
            "analyze",
            "--context",
            "160",
            "--format",
            "json",
            "--engine",
            "cpu",
        ];
        arguments.extend(more);
        let output = run(&arguments, folder.path());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let chosen = analyze(&[
        "--regime",
        "full-adaptive",
        "--steps",
        "3",
        "--controller-seed",
        "4",
        "--save-windows",
        "map.json",
    ]);
    assert_eq!(chosen["windows"]["regime"], "full-adaptive");
    assert!(chosen["acr"].as_f64().unwrap() < 1.0);
    assert!(
        chosen["layers"][2]["groups_per_level"]
            .as_array()
            .unwrap()
            .len()
            > 1
    );
    assert!(chosen["layers"][2]["heads"][7]["group"].is_u64());
    let bins = chosen["histogram"].as_array().unwrap();
    assert_eq!(
        bins.iter()
            .map(|b| b["heads"].as_u64().unwrap())
            .sum::<u64>(),
        48
    );
    // The same seed again gives the same windows; another one others.
    let again = analyze(&[
        "--regime",
        "full-adaptive",
        "--steps",
        "3",
        "--controller-seed",
        "4",
    ]);
    assert_eq!(again["windows"]["map"], chosen["windows"]["map"]);
    assert_eq!(again["loss"], chosen["loss"]);
    let other = analyze(&[
        "--regime",
        "full-adaptive",
        "--steps",
        "3",
        "--controller-seed",
        "5",
    ]);
    assert_ne!(other["windows"]["map"], chosen["windows"]["map"]);

    // Saved and read back, the map gives the same loss, as JSON and as the paper's CSV.
    let read = analyze(&["--windows", "map.json", "--save-windows", "map.csv"]);
    assert_eq!(read["loss"], chosen["loss"]);
    let csv = analyze(&["--windows", "map.csv"]);
    assert_eq!(csv["loss"], chosen["loss"]);
    // Head patterns keep only what is full.
    let half = "1\t0\t1\t0\t1\t0\t1\t0\n".repeat(6);
    std::fs::write(folder.path().join("heads.tsv"), half).unwrap();
    let patterns = analyze(&["--windows", "heads.tsv", "--sinks", "2", "--recent", "16"]);
    assert_eq!(patterns["windows"]["map"][3][0], serde_json::Value::Null);
    assert_eq!(patterns["windows"]["map"][3][1], 16);
    assert_eq!(patterns["windows"]["sinks"], 2);

    for (arguments, message) in [
        (
            &["analyze", "--regime", "nothing"][..],
            "there is no regime \"nothing\"",
        ),
        (&["analyze", "--windows", "heads.tsv"][..], "give --sinks"),
        (
            &[
                "analyze",
                "--regime",
                "full-adaptive",
                "--controller",
                "map.json",
            ][..],
            "not a safetensors file",
        ),
    ] {
        let output = run(arguments, folder.path());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && error.contains(message),
            "{error}"
        );
    }
}

#[test]
fn failures_are_one_message_and_the_right_exit_code() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    for (arguments, code, message) in [
        (
            &["analyze", "no-such-folder"][..],
            1,
            "cannot open no-such-folder",
        ),
        (
            &["analyze", "--text", "sample:nothing"][..],
            1,
            "there is no sample text \"nothing\"",
        ),
        (
            &["analyze", "--text", "missing.txt"][..],
            1,
            "cannot open missing.txt",
        ),
        (
            &["analyze", "--windows", "missing.json"][..],
            1,
            "cannot read missing.json",
        ),
        (&["analyze", "--window", "0"][..], 2, "0 is not in 1.."),
        (&["--size", "1x1"][..], 2, "at least 320x240"),
        (
            &["frobnicate", "--no-such-flag"][..],
            2,
            "unexpected argument",
        ),
    ] {
        let output = run(arguments, folder.path());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(message), "{arguments:?}: {error}");
        assert!(!error.contains("panicked"), "{error}");
        if code == 1 {
            assert_eq!(
                error
                    .lines()
                    .filter(|l| l.starts_with("headscope: "))
                    .count(),
                1,
                "{error}"
            );
        }
    }
}

#[test]
fn doctor_finds_the_kernels_right() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let output = run(&["doctor"], folder.path());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("GPU: attention, 300 tokens") && text.contains(": right"),
        "{text}"
    );
}
