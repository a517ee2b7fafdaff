//! The engine as a whole, on the built-in model: going on from an earlier run, coverage, and the ratios.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use headscope::{
    attention::{
        HeadId, Window, WindowMap, coverage_at,
        pairs::{map_acr, map_causal_acr},
    },
    engine::{
        Backend, Decoder, Flow, MatrixRequest, Pooling, Trace, distance_profile, gpu::GpuContext,
        head_matrix, sink_profile,
    },
    model::{Bos, Model, built_in},
    session::sample,
};
use proptest::prelude::*;

fn decoder(count: usize) -> Decoder {
    let model: Arc<Model> = built_in().unwrap();
    let text = sample("held-out book").unwrap().text;
    let tokens = model
        .tokenizer
        .encode(text, model.spec.vocab_size, Bos::Auto)
        .unwrap();
    Decoder::new(model, Arc::new(tokens.ids[..count].to_vec())).unwrap()
}

fn go() -> impl FnMut(usize, usize) -> Flow {
    |_, _| Flow::Continue
}

#[derive(Clone, Debug)]
enum Edit {
    Head(usize, usize, usize),
    Layer(usize, usize),
    Sinks(usize),
    AllFull,
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        4 => (0usize..6, 0usize..8, 1usize..90).prop_map(|(l, h, w)| Edit::Head(l, h, w)),
        1 => (0usize..6, 1usize..90).prop_map(|(l, w)| Edit::Layer(l, w)),
        1 => (0usize..6).prop_map(Edit::Sinks),
        1 => Just(Edit::AllFull),
    ];
    prop::collection::vec(edit, 1..6)
}

fn apply(map: &mut WindowMap, edit: &Edit) {
    match *edit {
        Edit::Head(layer, head, w) => {
            map.set(HeadId { layer, head }, Window::last(w).unwrap());
        }
        Edit::Layer(layer, w) => {
            for head in 0..map.heads() {
                map.set(HeadId { layer, head }, Window::last(w).unwrap());
            }
        }
        Edit::Sinks(sinks) => map.sinks = sinks,
        Edit::AllFull => *map = WindowMap::full(6, 8).with_sinks(map.sinks),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bit for bit: what is shown after any sequence of edits is what a fresh start would show.
    #[test]
    fn going_on_from_earlier_runs_equals_a_fresh_run(edits in edits()) {
        let decoder = decoder(75);
        let mut kernel = Backend::Cpu.kernel();
        let mut run = |map: &WindowMap, known: &[&Trace]| {
            decoder.run(kernel.as_mut(), map, known, &mut go()).unwrap()
        };
        let full = decoder.full_map();
        let (_, baseline) = run(&full, &[]);
        let mut latest = baseline.clone();
        let mut map = full;
        for edit in &edits {
            apply(&mut map, edit);
            let (went_on, trace) = run(&map, &[&baseline, &latest]);
            let (fresh, fresh_trace) = run(&map, &[]);
            prop_assert_eq!(&went_on.token_loss, &fresh.token_loss);
            prop_assert_eq!(&went_on.entropy, &fresh.entropy);
            prop_assert_eq!(&went_on.output_norm, &fresh.output_norm);
            prop_assert_eq!(went_on.ear, fresh.ear);
            for (a, b) in trace.layers.iter().zip(&fresh_trace.layers) {
                prop_assert_eq!(&a.attended.out, &b.attended.out);
                prop_assert_eq!(&a.attended.lse, &b.attended.lse);
            }
            latest = trace;
        }
    }
}

#[test]
fn only_what_changed_runs_again() {
    let decoder = decoder(60);
    let mut kernel = Backend::Cpu.kernel();
    let full = decoder.full_map();
    let (run, baseline) = decoder.run(kernel.as_mut(), &full, &[], &mut go()).unwrap();
    assert_eq!(run.from_layer, 0);
    let mut map = full.clone();
    map.set(HeadId { layer: 4, head: 3 }, Window::Last(7));
    let (run, trace) = decoder
        .run(kernel.as_mut(), &map, &[&baseline], &mut go())
        .unwrap();
    assert_eq!(run.from_layer, 4);
    // What lies before is shared, not copied.
    assert!(Arc::ptr_eq(
        &trace.layers[3].attended,
        &baseline.layers[3].attended
    ));
    assert!(Arc::ptr_eq(
        &trace.layers[4].qkv.q,
        &baseline.layers[4].qkv.q
    ));
    // In the first changed layer the other heads are as they were; in the next all may differ.
    let (a, b) = (&trace.layers[4].attended, &baseline.layers[4].attended);
    let seq_len = 60;
    for head in 0..8 {
        let same = a.lse[head * seq_len..(head + 1) * seq_len]
            == b.lse[head * seq_len..(head + 1) * seq_len];
        assert_eq!(same, head != 3, "head {head}");
    }
    // A stop between layers gives up at once.
    let mut seen = 0;
    let stopped = decoder.run(kernel.as_mut(), &full, &[], &mut |_, _| {
        seen += 1;
        if seen == 3 {
            Flow::Stop
        } else {
            Flow::Continue
        }
    });
    assert!(matches!(stopped, Err(headscope::Error::Cancelled)));
    assert_eq!(seen, 3);
}

#[test]
fn coverage_equals_the_sum_over_the_matrix() {
    const T: usize = 70;
    let decoder = decoder(T);
    let mut kernel = Backend::Cpu.kernel();
    let (_, trace) = decoder
        .run(kernel.as_mut(), &decoder.full_map(), &[], &mut go())
        .unwrap();
    let profile = distance_profile(&trace, &mut go()).unwrap();
    for (layer, head) in [(0, 0), (2, 5), (5, 7)] {
        let id = HeadId { layer, head };
        let request = MatrixRequest {
            head: id,
            queries: 0..T,
            keys: 0..T,
            bin: 1,
            pooling: Pooling::Max,
        };
        let matrix = head_matrix(&trace, &request).unwrap();
        for sinks in [0, 1, 5] {
            let sink_profile = sink_profile(&trace, sinks, T);
            for w in [1, 2, 9, 64, T, T + 5] {
                let mut mass = 0.0f64;
                for query in 0..T {
                    for key in 0..=query {
                        if query - key < w || key < sinks {
                            mass += f64::from(matrix.values[query * T + key]);
                        }
                    }
                }
                let want = (mass / T as f64) as f32;
                let got = coverage_at(&profile, Some(&sink_profile), id, Window::last(w).unwrap());
                assert!(
                    (got - want).abs() < 1e-4,
                    "{id}, w {w}, {sinks} sinks: {got}, not {want}"
                );
            }
        }
    }
}

#[test]
fn pooled_matrices_agree_with_the_whole_one() {
    const T: usize = 101;
    let decoder = decoder(T);
    let mut kernel = Backend::Cpu.kernel();
    let map = WindowMap::uniform(6, 8, Window::Last(30)).with_sinks(3);
    let (_, trace) = decoder.run(kernel.as_mut(), &map, &[], &mut go()).unwrap();
    let request = |queries, keys, bin, pooling| MatrixRequest {
        head: HeadId { layer: 3, head: 1 },
        queries,
        keys,
        bin,
        pooling,
    };
    let whole = head_matrix(&trace, &request(0..T, 0..T, 1, Pooling::Max)).unwrap();
    for row in whole.values.chunks(T) {
        assert!(
            (row.iter().sum::<f32>() - 1.0).abs() < 1e-4,
            "every query's weights sum to 1"
        );
    }
    for (queries, keys) in [(0..T, 0..T), (32..96, 0..64), (64..101, 32..101)] {
        for bin in [1, 2, 8, 32] {
            for pooling in [Pooling::Max, Pooling::Mean] {
                let part = head_matrix(
                    &trace,
                    &request(queries.clone(), keys.clone(), bin, pooling),
                )
                .unwrap();
                for row in 0..part.rows {
                    for column in 0..part.columns {
                        let (mut max, mut sum) = (0.0f32, 0.0f32);
                        for query in queries.start + row * bin..queries.start + (row + 1) * bin {
                            for key in keys.start + column * bin..keys.start + (column + 1) * bin {
                                if query < queries.end && key < keys.end {
                                    let weight = whole.values[query * T + key];
                                    max = max.max(weight);
                                    sum += weight;
                                }
                            }
                        }
                        let want = match pooling {
                            Pooling::Max => max,
                            Pooling::Mean => sum / (bin * bin) as f32,
                        };
                        let got = part.values[row * part.columns + column];
                        assert!(
                            (got - want).abs() < 1e-5,
                            "{queries:?} {keys:?} bin {bin} {pooling:?} [{row}, {column}]: {got}, not {want}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn ratios_of_a_full_map_are_one_and_the_executed_ratio_follows_the_windows() {
    let decoder = decoder(900);
    let mut kernel = Backend::Cpu.kernel();
    let full = decoder.full_map();
    assert_eq!(map_acr(&full, 900), 1.0);
    let (run, _) = decoder.run(kernel.as_mut(), &full, &[], &mut go()).unwrap();
    assert!((1.0..1.03).contains(&run.ear), "{}", run.ear);
    let map = WindowMap::uniform(6, 8, Window::Last(128));
    let (run, _) = decoder.run(kernel.as_mut(), &map, &[], &mut go()).unwrap();
    let causal = map_causal_acr(&map, 900);
    assert!(
        run.ear >= causal && run.ear < causal * 1.15,
        "{} for {causal}",
        run.ear
    );
}

#[test]
fn both_engines_agree_on_the_whole_model() {
    let decoder = decoder(120);
    let gpu = Backend::Gpu(GpuContext::headless().unwrap());
    let map = WindowMap::uniform(6, 8, Window::Last(40)).with_sinks(2);
    let on = |backend: &Backend| {
        decoder
            .run(backend.kernel().as_mut(), &map, &[], &mut go())
            .unwrap()
            .0
    };
    let (cpu, gpu) = (on(&Backend::Cpu), on(&gpu));
    for (a, b) in cpu.token_loss.iter().zip(&gpu.token_loss) {
        assert!((a - b).abs() < 5e-4, "{a} and {b}");
    }
}

#[test]
fn maps_and_texts_that_do_not_fit_are_refused() {
    let decoder = decoder(10);
    let map = WindowMap::full(5, 8);
    let error = decoder
        .run(Backend::Cpu.kernel().as_mut(), &map, &[], &mut go())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the window map is for 5 layers of 8 heads, but this model has 6 of 8"
    );
    let model = built_in().unwrap();
    let Err(error) = Decoder::new(model.clone(), Arc::new(Vec::new())) else {
        panic!()
    };
    assert!(error.to_string().contains("the text is empty"));
    let Err(error) = Decoder::new(model, Arc::new(vec![4096])) else {
        panic!()
    };
    assert!(error.to_string().contains("4096"));
}
