//! The real user interface, driven through accessibility labels, drawn on whatever adapter there is.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use egui::{Event, Modifiers, PointerButton, Pos2, vec2};
use egui_kittest::{
    Harness,
    kittest::{NodeT as _, Queryable},
};
use headscope::{
    app::{App, Options},
    attention::{HeadId, Window, WindowMap},
    engine::Backend,
    model::built_in,
    session::{Document, LongTexts, Session, TextSettings, sample},
};

const SIZE: egui::Vec2 = vec2(1280.0, 800.0);

fn session(text: &str) -> Session {
    Session::new(
        Document::new(
            built_in().unwrap(),
            "test text",
            text,
            TextSettings::default(),
        )
        .unwrap(),
    )
}

/// The app on a short text, its first results there.
fn start() -> Harness<'static, App> {
    start_on(
        session(&sample("a page of a novel").unwrap().text[..1200]),
        |b| b,
    )
}

fn start_on(
    session: Session,
    build: impl FnOnce(egui_kittest::HarnessBuilder<App>) -> egui_kittest::HarnessBuilder<App>,
) -> Harness<'static, App> {
    let builder = Harness::builder()
        .with_size(SIZE)
        .with_max_steps(400)
        .with_step_dt(1.0 / 60.0);
    let mut harness = build(builder.wgpu()).build_eframe(move |cc| {
        let state = cc.wgpu_render_state.as_ref().unwrap();
        let options = Options::for_render_state(state, TextSettings::default(), |_| Backend::Cpu);
        App::new(&cc.egui_ctx, session, options).unwrap()
    });
    settle(&mut harness);
    harness
}

/// Frames until everything wanted is there.
fn settle(harness: &mut Harness<'_, App>) {
    let started = Instant::now();
    loop {
        harness.step();
        if harness.state().is_complete() {
            return;
        }
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "the engine does not come to rest"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn press(harness: &mut Harness<'_, App>, at: Pos2, pressed: bool, modifiers: Modifiers) {
    harness.event(Event::PointerButton {
        pos: at,
        button: PointerButton::Primary,
        pressed,
        modifiers,
    });
    harness.step();
}

/// A drag with the left button, in steps as a hand makes them; the button stays down.
fn drag(harness: &mut Harness<'_, App>, from: Pos2, by: egui::Vec2) {
    harness.event(Event::PointerMoved(from));
    harness.step();
    press(harness, from, true, Modifiers::NONE);
    for part in 1..=5 {
        harness.event(Event::PointerMoved(from + by * part as f32 / 5.0));
        harness.step();
    }
}

fn center(harness: &Harness<'_, App>, label: &str) -> Pos2 {
    harness.get_by_label(label).rect().center()
}

const L1H2: HeadId = HeadId { layer: 1, head: 2 };

#[test]
fn dragging_a_cell_changes_coverage_at_once_and_then_the_loss() {
    let mut harness = start();
    let before = harness.state().session().summary();
    assert_eq!(before.acr, 1.0);
    assert!((before.mass_coverage.unwrap() - 1.0).abs() < 1e-4);
    assert_eq!(before.loss_full, before.loss_windowed);

    let from = center(&harness, "window of L1 H2");
    drag(&mut harness, from, vec2(0.0, 90.0));
    // The button is still down: coverage is there, in this very frame.
    let during = harness.state().session();
    let window = during.windows.get(L1H2);
    assert!(
        matches!(window, Window::Last(n) if n.is_power_of_two() && n < 64),
        "{window}"
    );
    assert!(during.coverage(L1H2).unwrap() < 0.99);
    assert!(during.summary().acr < 1.0);
    assert_eq!(during.selection.focus, L1H2);

    let end = from + vec2(0.0, 90.0);
    press(&mut harness, end, false, Modifiers::NONE);
    settle(&mut harness);
    let after = harness.state().session().summary();
    assert!(after.is_current);
    assert_ne!(after.loss_windowed, before.loss_windowed);
    // Only the layers from the changed one on ran again.
    assert_eq!(
        harness
            .state()
            .session()
            .windowed
            .as_ref()
            .unwrap()
            .run
            .from_layer,
        1
    );
    // The value is told to screen readers too.
    let value = harness
        .get_by_label("window of L1 H2")
        .accesskit_node()
        .numeric_value();
    assert_eq!(
        value,
        Some(window.size(harness.state().session().seq_len()) as f64)
    );
}

#[test]
fn resetting_gives_exactly_the_full_run_again() {
    let mut harness = start();
    let full = harness.state().session().summary();
    let from = center(&harness, "window of L1 H2");
    drag(&mut harness, from, vec2(0.0, 120.0));
    press(
        &mut harness,
        from + vec2(0.0, 120.0),
        false,
        Modifiers::NONE,
    );
    settle(&mut harness);
    assert_ne!(
        harness.state().session().summary().loss_windowed,
        full.loss_full
    );

    harness.get_by_label("reset selected").click();
    harness.step();
    settle(&mut harness);
    let session = harness.state().session();
    assert_eq!(session.windows, WindowMap::full(6, 8));
    assert_eq!(session.summary(), full);
}

#[test]
fn shift_makes_a_drag_fine() {
    let mut harness = start();
    let from = center(&harness, "window of L0 H0");
    drag(&mut harness, from, vec2(0.0, 60.0));
    harness.event(Event::ModifiersChanged(Modifiers::SHIFT));
    harness.event(Event::PointerMoved(from + vec2(0.0, 67.0)));
    harness.step();
    let window = harness
        .state()
        .session()
        .windows
        .get(HeadId { layer: 0, head: 0 });
    assert!(
        matches!(window, Window::Last(n) if !n.is_power_of_two()),
        "{window}"
    );
}

#[test]
fn several_heads_are_selected_and_set_together() {
    let mut harness = start();
    harness.get_by_label("select all heads of layer 2").click();
    harness.step();
    harness.step();
    assert_eq!(harness.state().session().selection.heads.len(), 8);
    let from = center(&harness, "window of L2 H5");
    drag(&mut harness, from, vec2(0.0, 100.0));
    let session = harness.state().session();
    let windows: Vec<Window> = session.windows.layer(2).to_vec();
    assert!(
        windows
            .iter()
            .all(|w| *w == windows[0] && *w != Window::Full),
        "{windows:?}"
    );
    assert!(session.windows.layer(1).iter().all(|w| *w == Window::Full));
    press(
        &mut harness,
        from + vec2(0.0, 100.0),
        false,
        Modifiers::NONE,
    );

    // A box from the free corner over the first two cells of the first two layers.
    let corner = harness.get_by_label("window of L0 H0").rect().left_top() - vec2(10.0, 10.0);
    let end = center(&harness, "window of L1 H1");
    drag(&mut harness, corner, end - corner);
    press(&mut harness, end, false, Modifiers::NONE);
    harness.step();
    assert_eq!(harness.state().session().selection.heads.len(), 4);

    harness.get_by_label("all full").click();
    settle(&mut harness);
    assert_eq!(harness.state().session().summary().acr, 1.0);
}

#[test]
fn the_window_edge_in_the_matrix_can_be_dragged() {
    let mut harness = start();
    let view = harness.get_by_label("attention matrix of L3 H0").rect();
    // A full window's edge is the lower left corner of the matrix, which stands in the middle of the view.
    let side = view.width().min(view.height()) - 12.0;
    let corner = view.center() + vec2(-side / 2.0, side / 2.0);
    drag(
        &mut harness,
        corner + vec2(0.0, -3.0),
        vec2(side / 2.0, 0.0),
    );
    let focus = harness.state().session().selection.focus;
    let window = harness.state().session().windows.get(focus);
    let seq_len = harness.state().session().seq_len();
    let size = window.size(seq_len);
    assert!(
        size < seq_len * 3 / 4 && size > seq_len / 4,
        "{window} of {seq_len}"
    );
}

#[test]
fn a_click_in_the_text_and_in_the_matrix_sets_the_query() {
    let mut harness = start();
    let text = harness.get_by_label("tokens of the text").rect();
    let at = text.left_top() + vec2(60.0, 10.0);
    harness.event(Event::PointerMoved(at));
    harness.step();
    press(&mut harness, at, true, Modifiers::NONE);
    press(&mut harness, at, false, Modifiers::NONE);
    harness.step();
    let first = harness.state().session().selection.query;
    assert!(first.is_some_and(|q| q < 20), "{first:?}");

    // In the middle of the matrix lies the query in the middle of the text.
    let view = harness.get_by_label("attention matrix of L3 H0").rect();
    let at = view.center() + vec2(-20.0, 0.0);
    harness.event(Event::PointerMoved(at));
    harness.step();
    press(&mut harness, at, true, Modifiers::NONE);
    press(&mut harness, at, false, Modifiers::NONE);
    harness.step();
    let query = harness.state().session().selection.query.unwrap();
    let middle = harness.state().session().seq_len() / 2;
    assert!(query.abs_diff(middle) <= 2, "{query}, not about {middle}");
}

#[test]
fn a_broken_model_is_refused_in_a_sentence_and_the_old_one_stays() {
    let mut harness = start();
    let before = harness.state().session().summary();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models/llama");
    let config = std::fs::read(golden.join("config.json")).unwrap();
    let weights = std::fs::read(golden.join("model.safetensors")).unwrap();
    type Prepare<'a> = Box<dyn Fn() + 'a>;
    let broken: [(&str, Prepare<'_>); 5] = [
        (
            "is not a model configuration",
            Box::new(|| write("config.json", b"{ not json")),
        ),
        (
            "has no model.safetensors",
            Box::new(|| write("config.json", &config)),
        ),
        (
            "is cut short",
            Box::new(|| write("model.safetensors", &weights[..100])),
        ),
        (
            "is not a valid safetensors file",
            Box::new(|| {
                write("model.safetensors", &weights[..weights.len() - 4]);
            }),
        ),
        (
            "tokenizer.json",
            Box::new(|| write("model.safetensors", &weights)),
        ),
    ];
    for (expected, prepare) in broken {
        prepare();
        harness.state_mut().open(folder.path().to_owned());
        settle(&mut harness);
        let messages = harness.state().messages();
        assert!(
            messages.last().is_some_and(|m| m.contains(expected)),
            "{expected}: {messages:?}"
        );
        let session = harness.state().session();
        assert_eq!(session.model.name, "built-in");
        assert_eq!(session.summary(), before, "what was there stays");
    }
    // They stay until they are dismissed.
    let count = harness.state().messages().len();
    harness.get_all_by_label("dismiss").next().unwrap().click();
    harness.step();
    harness.step();
    assert_eq!(harness.state().messages().len(), count - 1);
}

/// A file let go over the window.
#[derive(Debug)]
struct Dropped(std::path::PathBuf);

impl egui::DroppedFile for Dropped {
    fn path(&self) -> &Path {
        &self.0
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        std::fs::read(&self.0).map_err(|e| e.to_string())
    }
}

#[test]
fn texts_are_opened_dropped_and_edited() {
    let mut harness = start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("note.txt");
    std::fs::write(&path, "A short note, dropped on the window.").unwrap();
    harness
        .input_mut()
        .dropped_files
        .push(std::sync::Arc::new(Dropped(path)));
    harness.step();
    settle(&mut harness);
    assert_eq!(harness.state().session().text_name, "note.txt");
    assert!(
        harness
            .state()
            .session()
            .summary()
            .loss_full
            .unwrap()
            .is_finite()
    );

    // An empty text is refused, and the note stays.
    let empty = folder.path().join("empty.txt");
    std::fs::write(&empty, "").unwrap();
    harness.state_mut().open(empty);
    settle(&mut harness);
    assert!(
        harness
            .state()
            .messages()
            .last()
            .unwrap()
            .contains("the text is empty")
    );
    assert_eq!(harness.state().session().text_name, "note.txt");

    harness.get_by_label("edit").click();
    harness.step();
    harness.step();
    harness.get_by_label("text to analyse").focus();
    harness.step();
    harness.get_by_label("text to analyse").type_text("Well. ");
    harness.step();
    harness.get_by_label("apply").click();
    harness.step();
    settle(&mut harness);
    assert_eq!(harness.state().session().text_name, "note.txt (edited)");
    assert!(harness.state().session().text.text.contains("Well. "));
}

#[test]
fn one_token_and_many_scripts_are_shown() {
    let mut harness = start_on(session("a"), |b| b);
    assert_eq!(harness.state().session().seq_len(), 1);
    assert_eq!(harness.state().session().summary().loss_full, None);
    harness.render().unwrap();
    let text = sample("many scripts").unwrap().text;
    let harness = start_on(session(text), |b| b.allow_missing_glyphs());
    assert_eq!(harness.state().session().text.text, text);
}

#[test]
fn every_size_and_theme_is_drawn() {
    for (size, theme) in [
        (vec2(1000.0, 640.0), egui::Theme::Light),
        (vec2(640.0, 420.0), egui::Theme::Dark),
        (vec2(2560.0, 1440.0), egui::Theme::Dark),
    ] {
        let short = session("The same window at another size.");
        let mut harness = start_on(short, |b| b.with_size(size).with_theme(theme));
        let image = harness.render().unwrap();
        assert_eq!(
            (image.width(), image.height()),
            (size.x as u32, size.y as u32)
        );
    }
}

/// Opens the combo box of this label and picks an entry.
fn choose(harness: &mut Harness<'_, App>, label: &str, entry: &str) {
    harness
        .get_by_role_and_label(egui::accesskit::Role::ComboBox, label)
        .click();
    harness.step();
    harness.step();
    harness.get_by_label(entry).click();
    harness.step();
    harness.step();
}

#[test]
fn a_regime_chooses_windows_and_its_groups_can_be_dragged() {
    let mut harness = start();
    harness.get_by_label("regime").click();
    harness.step();
    harness.step();
    choose(&mut harness, "regime", "full-adaptive");
    settle(&mut harness);
    let session = harness.state().session();
    let regime = session.regime.as_ref().unwrap();
    assert_eq!(regime.regime.name(), "full-adaptive");
    assert_eq!(regime.controller.step, 2);
    assert!(!regime.moved.is_empty());
    let summary = session.summary();
    assert!(summary.acr < 1.0 && summary.is_current);
    assert_ne!(summary.loss_windowed, summary.loss_full);

    harness.get_by_label("step").click();
    harness.step();
    settle(&mut harness);
    assert_eq!(
        harness
            .state()
            .session()
            .regime
            .as_ref()
            .unwrap()
            .controller
            .step,
        3
    );

    // A parameter applies at once.
    let constraint = "a child's window at most its parent's";
    harness.get_by_label(constraint).scroll_to_me();
    for _ in 0..20 {
        harness.step();
    }
    harness.get_by_label(constraint).click();
    harness.step();
    settle(&mut harness);
    let config = &harness
        .state()
        .session()
        .regime
        .as_ref()
        .unwrap()
        .controller
        .config;
    assert!(!config.parent_constraint);

    harness.get_by_label("hierarchy").click();
    harness.step();
    harness.step();
    harness.render().unwrap();
    let view = harness.get_by_label("hierarchy of layer 3").rect();
    let before = harness.state().session().windows.layer(3).to_vec();
    // Somewhere in the upper row of the tree there is a group: drag what is found there down.
    let mut found = false;
    for part in 1..30 {
        let at = egui::pos2(
            view.left() + view.width() * 0.6 * part as f32 / 30.0,
            view.top() + view.height() * 0.38,
        );
        drag(&mut harness, at, vec2(0.0, 60.0));
        press(&mut harness, at + vec2(0.0, 60.0), false, Modifiers::NONE);
        if !harness
            .state()
            .session()
            .regime
            .as_ref()
            .unwrap()
            .edited
            .is_empty()
        {
            found = true;
            break;
        }
    }
    assert!(found, "no group could be dragged");
    assert_ne!(harness.state().session().windows.layer(3).to_vec(), before);
    settle(&mut harness);
    assert!(harness.state().session().is_current());

    // The threshold re-clusters while it moves, and is the regime's when it is let go.
    let slider = harness
        .get_by_role_and_label(egui::accesskit::Role::Slider, "similarity threshold")
        .rect();
    let groups = |harness: &Harness<'_, App>| {
        let session = harness.state().session();
        let control = &session.regime.as_ref().unwrap().controller.layers[3];
        control.hierarchy.as_ref().unwrap().counts()[0]
    };
    let few = groups(&harness);
    let from = egui::pos2(slider.left() + slider.width() * 0.86, slider.center().y);
    let end = egui::pos2(slider.right() - 1.0, slider.center().y);
    drag(&mut harness, from, end - from);
    assert_eq!(groups(&harness), few, "not before it is let go");
    press(&mut harness, end, false, Modifiers::NONE);
    settle(&mut harness);
    let config = &harness
        .state()
        .session()
        .regime
        .as_ref()
        .unwrap()
        .controller
        .config;
    assert!(config.sim_threshold > 0.9, "{}", config.sim_threshold);
    assert!(groups(&harness) > few);

    harness.get_by_label("ACR").click();
    harness.step();
    harness.step();
    harness.render().unwrap();
    assert!(harness.query_by_label("ACR by layer and head").is_some());

    choose(&mut harness, "regime", "none: by hand");
    assert!(harness.state().session().regime.is_none());
}

#[test]
fn maps_of_another_shape_are_refused_with_both_shapes() {
    let mut harness = start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("map.csv");
    std::fs::write(
        &path,
        "layer_id,head_id,final_window_size\n0,0,16\n0,1,16\n",
    )
    .unwrap();
    harness.state_mut().open(path.clone());
    settle(&mut harness);
    let messages = harness.state().messages();
    let last = messages.last().unwrap();
    assert!(
        last.contains("1 layers of 2 heads") && last.contains("6 of 8"),
        "{last}"
    );
    assert_eq!(harness.state().session().summary().acr, 1.0);

    // One that fits becomes the map.
    let mut csv = String::from("layer_id,head_id,final_window_size\n");
    for layer in 0..6 {
        for head in 0..8 {
            csv += &format!("{layer},{head},{}\n", 8 << (head % 3));
        }
    }
    std::fs::write(&path, csv).unwrap();
    harness.state_mut().open(path);
    settle(&mut harness);
    let windows = &harness.state().session().windows;
    assert_eq!(windows.get(HeadId { layer: 5, head: 2 }), Window::Last(32));
}

#[test]
fn a_regime_follows_the_text_chunk_by_chunk() {
    let long = sample("a page of a novel").unwrap().text;
    let mut harness = start_on(session(long), |b| b);
    let seq_len = harness.state().session().seq_len();
    harness.get_by_label("regime").click();
    harness.step();
    harness.step();
    choose(&mut harness, "regime", "full-adaptive");
    settle(&mut harness);
    harness.get_by_label("follow the text").click();
    harness.step();
    settle(&mut harness);
    let session = harness.state().session();
    let regime = session.regime.as_ref().unwrap();
    // Two steps at the choice of the regime, then one on each whole chunk of 256 tokens.
    assert_eq!(regime.controller.step, 2 + seq_len / 256);
    // A step saw 256 tokens only, so none of its windows is longer; the map has the candidates they stand for.
    assert!(
        regime
            .controller
            .outcomes
            .iter()
            .flat_map(|o| &o.windows)
            .all(|&w| w <= 256)
    );
    let candidates = &regime.controller.config.windows;
    for (head, window) in session.windows.iter() {
        let size = window.size(seq_len) as u32;
        assert!(
            candidates.contains(&size),
            "{head}: {size} is none of {candidates:?}"
        );
    }
    assert!(session.is_current());
}

#[test]
fn texts_dropped_together_are_analysed_together() {
    let mut harness = start();
    let folder = tempfile::tempdir().unwrap();
    let novel = sample("a page of a novel").unwrap().text;
    for (name, text) in [("one.txt", &novel[..600]), ("two.md", &novel[600..1500])] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let file = std::sync::Arc::new(Dropped(path));
        harness.input_mut().dropped_files.push(file);
    }
    harness.step();
    settle(&mut harness);
    let session = harness.state().session();
    assert_eq!(session.title(), "2 texts");
    let totals = session.totals();
    assert_eq!(totals.done, (2, 2));
    // The mean over all tokens lies between the texts' own.
    let losses: Vec<f64> = totals.texts.iter().map(|t| t.loss_full.unwrap()).collect();
    let all = totals.loss_full.unwrap();
    assert!(losses[0].min(losses[1]) <= all && all <= losses[0].max(losses[1]));
    let predicted = |i: usize| (session.passages[i].tokens.len() - 1) as f64;
    let want =
        (losses[0] * predicted(0) + losses[1] * predicted(1)) / (predicted(0) + predicted(1));
    assert!((all - want).abs() < 1e-9);

    // The other text comes on show, and the totals stay what they were.
    harness.get_by_label("⏵").click();
    harness.step();
    settle(&mut harness);
    let session = harness.state().session();
    assert_eq!((session.text_name.as_str(), session.current), ("two.md", 1));
    assert!((session.totals().loss_full.unwrap() - all).abs() < 1e-6);

    // A window changes both texts' loss.
    let cell = center(&harness, "window of L1 H2");
    drag(&mut harness, cell, vec2(0.0, 80.0));
    press(&mut harness, cell + vec2(0.0, 80.0), false, Modifiers::NONE);
    settle(&mut harness);
    let totals = harness.state().session().totals();
    assert_eq!(totals.done, (2, 2));
    assert!(totals.texts.iter().all(|t| t.loss_windowed != t.loss_full));
    assert!(totals.spread_delta.unwrap().spread.is_some());
}

#[test]
fn a_long_text_runs_in_blocks_where_the_menu_says_so() {
    let mut harness = start();
    harness.get_by_label("text: test text").click();
    harness.step();
    harness.step();
    harness.get_by_label("at most").click();
    harness.step();
    settle(&mut harness);
    harness.get_by_label("in blocks").click();
    harness.step();
    settle(&mut harness);
    // The text is shorter than the model was made for: still one passage.
    let session = harness.state().session();
    assert_eq!(session.settings.long, LongTexts::Blocks);
    assert_eq!(session.settings.context, Some(session.model.spec.context));
    assert_eq!(session.passages.len(), 1);

    let settings = TextSettings {
        context: Some(64),
        long: LongTexts::Blocks,
        ..TextSettings::default()
    };
    let text = &sample("a page of a novel").unwrap().text[..1200];
    let document = Document::new(built_in().unwrap(), "blocks", text, settings).unwrap();
    let mut harness = start_on(Session::new(document), |b| b);
    let session = harness.state().session();
    assert!(session.passages.len() > 3);
    assert_eq!(session.totals().done.0, session.passages.len());
    let message = harness.state().messages().join(" ");
    assert!(message.contains("blocks of 64"), "{message}");
    harness.step();
}

#[test]
fn a_name_that_is_not_on_the_hub_is_refused_in_a_sentence() {
    let mut harness = start();
    let model = harness.state().session().model.name.clone();
    harness.get_by_label_contains("model: ").click();
    harness.step();
    harness.step();
    harness.get_by_label("From the Hugging Face hub:").focus();
    harness
        .get_by_label("From the Hugging Face hub:")
        .type_text("no such/name");
    harness.step();
    harness.step();
    harness.get_by_label("Open").click();
    harness.step();
    settle(&mut harness);
    let message = harness.state().messages().last().unwrap().clone();
    assert!(message.contains("no such/name"), "{message}");
    assert_eq!(harness.state().session().model.name, model);
}

#[test]
fn while_a_drag_goes_on_the_loss_is_estimated_by_its_slope() {
    let mut harness = start();
    let from = center(&harness, "window of L1 H2");
    drag(&mut harness, from, vec2(0.0, 60.0));
    press(&mut harness, from + vec2(0.0, 60.0), false, Modifiers::NONE);
    settle(&mut harness);
    let first = harness.state().session().summary();
    assert_eq!(first.loss_estimate, None);
    let (full, windowed) = (first.loss_full.unwrap(), first.loss_windowed.unwrap());
    let lost = 1.0 - first.mass_coverage.unwrap();
    assert!(lost > 1e-3, "{lost}");

    // Another head: before the run is there, the line through full attention and the last run tells.
    let from = center(&harness, "window of L0 H1");
    drag(&mut harness, from, vec2(0.0, 60.0));
    let during = harness.state().session().summary();
    if !during.is_current {
        let lost_now = 1.0 - during.mass_coverage.unwrap();
        let want = full + (windowed - full) * lost_now / lost;
        assert!((during.loss_estimate.unwrap() - want).abs() < 1e-6);
    }
    press(&mut harness, from + vec2(0.0, 60.0), false, Modifiers::NONE);
    settle(&mut harness);
    let after = harness.state().session().summary();
    assert!(after.is_current && after.loss_estimate.is_none());
}
