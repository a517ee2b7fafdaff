//! Properties of the control branch that hold whatever the features are; and its steps on the built-in model.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use headscope::{
    aah::{
        AahConfig, Controller, Regime,
        ablation::WindowAblation,
        clustering::{ClusterSettings, Metric, cluster},
        config::Grouping,
        controller::{ControllerWeights, choose},
        diagnostics::{collapsed, differs_from_parent, histogram, mean_margin},
        features::{FEATURES, HeadMoments},
        hierarchy::{GroupFeatureMode, Hierarchy},
        rng::Rng,
    },
    engine::{Backend, Decoder, Flow},
    model::built_in,
    session::{Command, Document, Session, TextSettings, sample},
};
use proptest::prelude::*;

fn metric() -> impl Strategy<Value = Metric> {
    prop_oneof![
        Just(Metric::Cosine),
        Just(Metric::CenteredCosine),
        Just(Metric::L2),
        Just(Metric::CosineNormdiff),
    ]
}

/// Up to 20 heads; half of them near copies of others, so that groups form.
fn heads() -> impl Strategy<Value = Vec<Vec<f32>>> {
    prop::collection::vec(prop::collection::vec(-3.0f32..3.0, FEATURES), 1..20).prop_map(|mut f| {
        for i in 1..f.len() {
            if i % 2 == 0 {
                f[i] = f[i / 2].iter().map(|v| v * 1.01).collect();
            }
        }
        f
    })
}

fn mode() -> impl Strategy<Value = GroupFeatureMode> {
    prop_oneof![
        Just(GroupFeatureMode::Mean),
        Just(GroupFeatureMode::MeanStd),
        Just(GroupFeatureMode::MeanVar),
        Just(GroupFeatureMode::MeanGlobalOffset),
    ]
}

fn is_partition(groups: &[Vec<usize>], n: usize) -> bool {
    let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
    all.sort_unstable();
    all == (0..n).collect::<Vec<_>>() && groups.iter().all(|g| !g.is_empty())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn clusters_partition_the_items(
        items in heads(),
        metric in metric(),
        threshold in -6.0f32..1.0,
        min_group_size in 1usize..6,
        allow_forced_split: bool,
    ) {
        let settings = ClusterSettings {
            metric, threshold, min_group_size, allow_forced_split, churn_bonus: 0.02, normdiff_scale: 16.0,
        };
        let got = cluster(&items, &settings, None);
        prop_assert!(is_partition(&got.groups, items.len()), "{:?}", got.groups);
        if allow_forced_split && items.len() > 1 {
            prop_assert!(got.groups.len() > 1 || got.groups_before_merge > 1);
        }
    }

    #[test]
    fn every_level_partitions_the_one_below_and_no_child_exceeds_its_parent(
        items in heads(),
        upper_metric in metric(),
        group_features in mode(),
        sim_threshold in -1.0f32..1.0,
        super_threshold in -3.0f32..1.0,
        seed: u64,
    ) {
        let config = AahConfig {
            upper_metric, group_features, sim_threshold, super_threshold,
            min_group_size: 2,
            ..AahConfig::default()
        };
        let hierarchy = Hierarchy::build(&items, &config.hierarchy_settings(), None);
        let mut below = items.len();
        for level in &hierarchy.levels {
            prop_assert!(is_partition(&level.groups, below), "{:?}", hierarchy.counts());
            prop_assert_eq!(level.features.len(), level.groups.len());
            below = level.groups.len();
        }
        for level in 0..hierarchy.levels.len() {
            prop_assert!(is_partition(&hierarchy.heads_of(level), items.len()));
        }
        let scoring = config.scoring_settings();
        let mut rng = Rng::new(seed);
        let weights = ControllerWeights::random(&scoring, config.shape, FEATURES, 4, &mut rng);
        let choice = choose(&hierarchy, &weights, &scoring);
        for level in 0..hierarchy.levels.len() {
            for (group, &own) in choice.bounded[level].iter().enumerate() {
                prop_assert!(own < 4);
                if let Some(parent) = hierarchy.parent(level, group) {
                    prop_assert!(own <= choice.bounded[level + 1][parent]);
                }
            }
        }
        prop_assert!(mean_margin(&choice).is_some_and(|m| m >= 0.0));
        prop_assert!(differs_from_parent(&hierarchy, &choice).is_none_or(|d| (0.0..=1.0).contains(&d)));
    }

    #[test]
    fn shuffling_keeps_the_histogram(indices in prop::collection::vec(0usize..4, 1..30), seed: u64, step in 0usize..99) {
        let count = |of: &[usize]| histogram(of.iter().map(|&i| i as u32));
        let mut shuffled = indices.clone();
        WindowAblation::ShufflePostSelect.apply(&mut shuffled, 4, seed, 1, step);
        prop_assert_eq!(count(&shuffled), count(&indices));
        let mut again = indices.clone();
        WindowAblation::ShufflePostSelect.apply(&mut again, 4, seed, 1, step);
        prop_assert_eq!(again, shuffled, "the same seed, layer and step give the same order");
    }
}

fn moments(seed: u64) -> HeadMoments {
    let mut rng = Rng::new(seed);
    let mut moments = HeadMoments::default();
    for part in &mut moments.qkv {
        for _ in 0..50 {
            part.add(rng.unit() * (seed % 5 + 1) as f32 - 1.0);
        }
    }
    moments
}

#[test]
fn every_regime_steps_with_one_head_and_with_many() {
    for regime in Regime::ALL {
        assert_eq!(Regime::from_name(regime.name()), Some(regime));
        for n_heads in [1, 2, 7] {
            let config = AahConfig::for_inspection(regime, vec![8, 16, 32, 64], 5);
            let mut controller = Controller::new(config, 2, n_heads);
            for step in 0..6 {
                for layer in 0..2 {
                    let heads = (0..n_heads as u64).map(|h| moments(h * 7 + step)).collect();
                    let outcome = controller.choose_layer(layer, heads, 64).unwrap();
                    assert_eq!(outcome.windows.len(), n_heads, "{regime:?}");
                    assert!(outcome.windows.iter().all(|w| [8, 16, 32, 64].contains(w)));
                }
                controller.finish_step();
            }
            assert_eq!(controller.step, 6);
        }
    }
}

#[test]
fn the_state_survives_being_saved_and_the_same_seed_gives_the_same_windows() {
    let config = AahConfig::for_inspection(Regime::FullAdaptive, vec![4, 8, 16, 32], 11);
    let mut a = Controller::new(config.clone(), 1, 6);
    let mut b = Controller::new(config, 1, 6);
    for step in 0..8 {
        let heads: Vec<HeadMoments> = (0..6).map(|h| moments(h + 3 * step)).collect();
        let from_a = a.choose_layer(0, heads.clone(), 32).unwrap();
        a.finish_step();
        // b is written out and read back before every step.
        let text = serde_json::to_string(&b).unwrap();
        b = serde_json::from_str(&text).unwrap();
        let from_b = b.choose_layer(0, heads, 32).unwrap();
        b.finish_step();
        assert_eq!(from_a, from_b);
    }
    assert_eq!(a, b);
}

#[test]
fn features_that_are_no_numbers_are_named() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut controller = Controller::new(
            AahConfig::for_inspection(Regime::FullAdaptive, vec![4, 8], 0),
            3,
            4,
        );
        let mut heads: Vec<HeadMoments> = (0..4).map(moments).collect();
        heads[2].qkv[1].add(bad);
        let error = controller
            .choose_layer(1, heads, 8)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("L1 H2") && error.contains("mean |k|"),
            "{error}"
        );
        // The state is as it was: the next step works.
        assert!(
            controller
                .choose_layer(1, (0..4).map(moments).collect(), 8)
                .is_ok()
        );
    }
    let config = AahConfig {
        windows: vec![],
        ..AahConfig::default()
    };
    assert!(
        Controller::new(config, 1, 1)
            .choose_layer(0, vec![moments(1)], 8)
            .is_err()
    );
}

#[test]
fn collapse_is_flagged() {
    let mostly = |w: u32| {
        (0..100)
            .map(|i| if i == 0 { 16 } else { w })
            .collect::<Vec<u32>>()
    };
    assert_eq!(collapsed(&mostly(8), &[8, 16, 32]), (true, false));
    assert_eq!(collapsed(&mostly(32), &[8, 16, 32]), (false, true));
    assert_eq!(collapsed(&[8, 8, 32], &[8, 16, 32]), (false, false));
}

#[test]
fn steps_on_the_built_in_model_give_the_same_windows_on_both_engines() {
    let model = built_in().unwrap();
    let text = sample("held-out book").unwrap().text;
    let tokens = model
        .tokenizer
        .encode(text, model.spec.vocab_size, headscope::model::Bos::Auto)
        .unwrap();
    let decoder = Decoder::new(model, Arc::new(tokens.ids[..96].to_vec())).unwrap();
    let config = AahConfig::for_inspection(Regime::FullAdaptive, AahConfig::scaled_windows(96), 3);
    let gpu = Backend::Gpu(headscope::engine::gpu::GpuContext::headless().unwrap());
    let mut results = Vec::new();
    for backend in [Backend::Cpu, gpu] {
        let mut kernel = backend.kernel();
        let mut controller = Controller::new(config.clone(), 6, 8);
        for _ in 0..3 {
            let (next, run, trace) = decoder
                .step(kernel.as_mut(), &controller, 1, &mut |_, _| Flow::Continue)
                .unwrap();
            // A step's run is an ordinary run under its windows.
            let (again, _) = decoder
                .run(kernel.as_mut(), &trace.windows, &[], &mut |_, _| {
                    Flow::Continue
                })
                .unwrap();
            assert_eq!(again.token_loss, run.token_loss);
            controller = next;
        }
        let windows: Vec<Vec<u32>> = controller
            .outcomes
            .iter()
            .map(|o| o.windows.clone())
            .collect();
        assert!(windows.iter().flatten().any(|&w| w < 96));
        results.push(windows);
    }
    assert_eq!(results[0], results[1]);
}

#[test]
fn hand_edits_stand_on_top_of_a_regime() {
    let model = built_in().unwrap();
    let document = Document::new(
        model.clone(),
        "t",
        &"Well, well. ".repeat(12),
        TextSettings::default(),
    )
    .unwrap();
    let seq_len = document.tokens.len();
    let mut session = Session::new(document);
    let config =
        AahConfig::for_inspection(Regime::FullAdaptive, AahConfig::scaled_windows(seq_len), 1);
    session
        .apply(Command::SetRegime(Some((
            Regime::FullAdaptive,
            Box::new(config),
        ))))
        .unwrap();
    let decoder = Decoder::new(model, session.tokens.clone()).unwrap();
    let mut controller = (*session.regime.as_ref().unwrap().controller).clone();
    let mut kernel = Backend::Cpu.kernel();
    for _ in 0..2 {
        controller = decoder
            .step(kernel.as_mut(), &controller, 0, &mut |_, _| Flow::Continue)
            .unwrap()
            .0;
    }
    session
        .apply(Command::TakeSteps(Arc::new(controller.clone())))
        .unwrap();
    assert!(session.summary().acr < 1.0);
    let chosen = session.windows.clone();
    assert!(session.regime.as_ref().unwrap().edited.is_empty());

    // A group at the top takes all below it along; a child does not rise above its parent.
    let hierarchy = controller.layers[2].hierarchy.clone().unwrap();
    let top = hierarchy.levels.len() - 1;
    assert!(top > 0);
    let set = |level, group, keys| Command::SetGroupWindow {
        layer: 2,
        level,
        group,
        window: headscope::attention::Window::Last(keys),
    };
    session.apply(set(top, 0, 3)).unwrap();
    let heads = hierarchy.heads_of(top)[0].clone();
    for &head in &heads {
        let id = headscope::attention::HeadId { layer: 2, head };
        assert_eq!(session.windows.get(id).to_string(), "3");
        assert!(session.regime.as_ref().unwrap().edited.contains(&id));
    }
    session
        .apply(set(0, hierarchy.group_of_head(8)[heads[0]], 9))
        .unwrap();
    let id = headscope::attention::HeadId {
        layer: 2,
        head: heads[0],
    };
    assert_eq!(
        session.windows.get(id).to_string(),
        "3",
        "the parent is at 3"
    );
    for layer in [0, 1, 3, 4, 5] {
        assert_eq!(session.windows.layer(layer), chosen.layer(layer));
    }
    // The next steps take the windows back.
    session
        .apply(Command::TakeSteps(Arc::new(controller)))
        .unwrap();
    assert_eq!(session.windows, chosen);
    assert!(session.regime.as_ref().unwrap().edited.is_empty());
}

#[test]
fn given_groups_are_kept() {
    let config = AahConfig {
        grouping: Grouping::Given(vec![1, 0, 1, 2]),
        warmup_steps: 0,
        ..AahConfig::for_inspection(Regime::FixedDeterministic, vec![4, 8, 16], 0)
    };
    let mut controller = Controller::new(config, 1, 4);
    controller
        .choose_layer(0, (0..4).map(moments).collect(), 16)
        .unwrap();
    assert_eq!(controller.layers[0].groups(), [1, 0, 1, 2]);
    assert_eq!(
        controller.layers[0].hierarchy.as_ref().unwrap().counts(),
        [3, 3, 3, 3]
    );
}
