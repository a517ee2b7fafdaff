//! The control branch against the paper's reference: clustering, hierarchies, choices, whole modules over steps.

use std::sync::Arc;

use headscope::{
    aah::{
        AahConfig, LayerControl, LayerInput, Path as ControlPath,
        ablation::WindowAblation,
        clustering::{ClusterSettings, Metric, Origin, cluster},
        config::Grouping,
        controller::{ControllerWeights, InputMode, Pairwise, ScoringSettings, choose},
        features::{Feature, HeadMoments, HeadStatistics},
        hierarchy::{GroupFeatureMode, Hierarchy, HierarchySettings, Level},
        network::{Dense, Mlp},
        retrofit::{Retrofit, RetrofitSettings},
    },
    attention::Window,
    engine::attend::{Attended, AttentionKernel, AttentionShape, HeadJob, Qkv},
};
use serde_json::Value;

use super::{Tensors, close, golden_dir, kernels, read_json};

fn number(value: &Value) -> f32 {
    value.as_f64().unwrap() as f32
}

fn count(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn counts(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(count).collect()
}

fn rows<T>(value: &Value, of: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().unwrap().iter().map(of).collect()
}

fn features(value: &Value) -> Vec<Feature> {
    rows(value, |f| rows(f, number))
}

fn groups(value: &Value) -> Vec<Vec<usize>> {
    rows(value, counts)
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("{value}: {e}"))
}

/// Within 1e-4, relative beyond 1, as the golden README says of features and logits.
fn close_features(got: &[Feature], want: &[Feature], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (g, w) in got.iter().zip(want) {
        close(g, w, 1e-4, what);
    }
}

#[test]
fn clustering_equals_the_reference() {
    let file = read_json(&golden_dir().join("clustering.json"));
    let cases = file["cases"].as_array().unwrap();
    for (index, case) in cases.iter().enumerate() {
        let settings = ClusterSettings {
            metric: parse(&case["metric"]),
            threshold: number(&case["threshold"]),
            min_group_size: count(&case["min_group_size"]),
            allow_forced_split: case["allow_forced_bipartition"].as_bool().unwrap(),
            churn_bonus: number(&case["churn_penalty"]),
            normdiff_scale: number(&file["normdiff_scale"]),
        };
        let previous: Option<Vec<usize>> = parse(&case["previous_groups"]);
        let items = features(&case["features"]);
        let got = cluster(&items, &settings, previous.as_deref());
        let want = &case["expected"];
        let what = format!("case {index} ({}, {:?})", case["kind"], settings.metric);
        // The reference can lose members when a group merges into itself; the product never does.
        let wanted = groups(&want["groups"]);
        assert_eq!(
            wanted.iter().flatten().count(),
            items.len(),
            "{what}: the reference lost a member"
        );
        assert_eq!(got.groups, wanted, "{what}");
        assert_eq!(got.origin, parse::<Origin>(&want["origin"]), "{what}");
        let forced = got.origin == Origin::ForcedBipartition;
        assert_eq!(Some(forced), want["forced"].as_bool(), "{what}");
        assert_eq!(
            got.groups_before_split,
            count(&want["groups_before_force"]),
            "{what}"
        );
        assert_eq!(
            got.groups_before_merge,
            count(&want["groups_before_merge"]),
            "{what}"
        );
        let range = ["sim_mean", "sim_min", "sim_max"].map(|key| number(&want[key]));
        // Beyond 25 items the reference's distances go through |a|² + |b|² - 2ab, which loses half the digits near 0.
        let by_products = settings.metric == Metric::L2 && items.len() > 25;
        let tolerance = if by_products { 5e-3 } else { 1e-4 };
        close(&got.similarity_range(), &range, tolerance, &what);
        let anchor: Option<f32> = parse(&want["anchor_similarity"]);
        assert_eq!(got.anchor_similarity.is_some(), anchor.is_some(), "{what}");
        if let (Some(got), Some(want)) = (got.anchor_similarity, anchor) {
            close(&[got], &[want], tolerance, &what);
        }
    }
    assert!(!cases.is_empty());
}

#[test]
fn hierarchies_equal_the_reference() {
    let file = read_json(&golden_dir().join("hierarchy.json"));
    let cases = file["cases"].as_array().unwrap();
    for (index, case) in cases.iter().enumerate() {
        let level = |metric, threshold, split| ClusterSettings {
            metric,
            threshold,
            min_group_size: count(&case["min_group_size"]),
            allow_forced_split: split,
            churn_bonus: 0.02,
            normdiff_scale: 16.0,
        };
        let settings = HierarchySettings {
            heads: level(Metric::Cosine, number(&case["sim_threshold"]), true),
            upper: level(
                parse(&case["upper_metric"]),
                number(&case["super_threshold"]),
                false,
            ),
            max_depth: count(&case["max_depth"]),
            group_features: parse(&case["group_feature_mode"]),
        };
        let got = Hierarchy::build(&features(&case["head_features"]), &settings, None);
        let want = case["expected"].as_array().unwrap();
        let what = format!("case {index} ({})", case["kind"]);
        assert_eq!(got.levels.len(), want.len(), "{what}");
        for (level, (got, want)) in got.levels.iter().zip(want).enumerate() {
            assert_eq!(got.groups, groups(&want["groups"]), "{what}, level {level}");
            close_features(
                &got.features,
                &features(&want["features"]),
                &format!("{what}, level {level}"),
            );
        }
    }
    assert!(!cases.is_empty());
}

/// Networks `PREFIX.mlp.0`, `.2`, …; `None` where there is none of that name.
fn network(tensors: &Tensors, prefix: &str) -> Option<Mlp> {
    let mut layers = Vec::new();
    for index in (0..).step_by(2) {
        let Some(weight) = tensors.find(&format!("{prefix}.{index}.weight")) else {
            break;
        };
        let bias = tensors.get(&format!("{prefix}.{index}.bias"));
        layers.push(Dense::new(weight, bias).unwrap());
    }
    Mlp::new(layers)
}

#[test]
fn window_choices_equal_the_reference() {
    let dir = golden_dir();
    let file = read_json(&dir.join("window_selection.json"));
    let tensors = Tensors::open(&dir.join("window_selection.safetensors"));
    let cases = file["cases"].as_array().unwrap();
    for case in cases {
        let id = count(&case["case"]);
        let name = |part: &str| format!("case{id}.{part}.mlp");
        let weights = ControllerWeights {
            own: network(&tensors, &name("controller")).unwrap(),
            sibling_bias: network(&tensors, &name("pairwise")),
            joint: network(&tensors, &name("joint")),
        };
        let settings = ScoringSettings {
            input_mode: parse::<InputMode>(&case["input_mode"]),
            pairwise: parse::<Pairwise>(&case["pairwise_mode"]),
            logit_scale: 1.0,
            pairwise_scale: 1.0,
            parent_constraint: case["parent_constraint"].as_bool().unwrap(),
        };
        let hierarchy = Hierarchy {
            levels: rows(&case["levels"], |level| Level {
                groups: groups(&level["groups"]),
                features: features(&level["features"]),
                clustering: None,
            }),
        };
        let got = choose(&hierarchy, &weights, &settings);
        let want = &case["expected"];
        let what = format!(
            "case {id} ({:?}, {:?})",
            settings.input_mode, settings.pairwise
        );
        for level in 0..hierarchy.levels.len() {
            let what = format!("{what}, level {level}");
            close_features(
                &got.inputs[level],
                &features(&want["controller_input"][level]),
                &format!("{what}: inputs"),
            );
            close_features(
                &got.logits[level],
                &features(&want["logits"][level]),
                &format!("{what}: logits"),
            );
            assert_eq!(got.raw[level], counts(&want["raw"][level]), "{what}: raw");
            assert_eq!(
                got.bounded[level],
                counts(&want["after_parent"][level]),
                "{what}: bounded"
            );
        }
    }
    assert!(!cases.is_empty());
}

/// `config` with `overrides` over it, as the reference names its settings.
fn config_of(config: &Value, overrides: &Value, fixed: &Value) -> AahConfig {
    let get = |key: &str| overrides.get(key).or_else(|| config.get(key));
    let flag = |key: &str, default| get(key).map_or(default, |v| v.as_bool().unwrap());
    let mut out = AahConfig {
        windows: rows(&config["windows"], |w| w.as_u64().unwrap() as u32),
        control: flag("apply_window_control", true),
        hierarchy: flag("build_hierarchy", true),
        ema_alpha: number(get("ema_alpha").unwrap()),
        sim_threshold: number(get("sim_threshold").unwrap()),
        super_threshold: number(get("super_threshold").unwrap()),
        upper_metric: parse(get("upper_cluster_metric").unwrap()),
        churn_penalty: number(get("churn_penalty").unwrap()),
        min_group_size: count(get("min_group_size").unwrap()),
        max_depth: count(get("max_depth").unwrap()),
        group_features: GroupFeatureMode::Mean,
        input_mode: parse(get("controller_input_mode").unwrap()),
        pairwise: parse(get("controller_pairwise_mode").unwrap()),
        parent_constraint: flag("parent_constraint", true),
        control_interval: count(get("control_interval").unwrap()),
        warmup_steps: count(get("warmup_steps").unwrap()),
        ramp_steps: get("post_warmup_ramp_steps").map_or(0, count),
        resolution_ema: number(get("resolution_ema_alpha").unwrap()),
        ..AahConfig::default()
    };
    let mode = get("hierarchy_ablation_mode").unwrap().as_str().unwrap();
    out.grouping = if !flag("grouping_enabled", true) {
        Grouping::Off
    } else if !fixed.is_null() {
        Grouping::Given(counts(fixed))
    } else if flag("reuse_group_hierarchy", false) {
        Grouping::CachedHeads
    } else {
        match mode {
            "adaptive" => Grouping::Adaptive,
            "freeze_learned_topology" => Grouping::FrozenTopology,
            "freeze_after_warmup" => Grouping::FrozenAfterWarmup,
            other => panic!("unknown grouping {other}"),
        }
    };
    if let Some("fixed_window") = get("window_ablation_mode").and_then(Value::as_str) {
        out.ablation =
            WindowAblation::FixedWindow(get("fixed_window").unwrap().as_u64().unwrap() as u32);
    }
    out
}

/// `x W^T`: `[rows, in]` by `[out, in]`.
fn linear(x: &[f32], weight: &[f32], width: usize) -> Vec<f32> {
    x.chunks(width)
        .flat_map(|row| {
            weight.chunks(width).map(move |w| {
                row.iter()
                    .zip(w)
                    .map(|(a, b)| f64::from(*a) * f64::from(*b))
                    .sum::<f64>() as f32
            })
        })
        .collect()
}

/// One attention module of the paper's GPT on a batch: projections, control, windowed attention.
struct Module {
    n_heads: usize,
    width: usize,
    qkv: Vec<f32>,
    proj: Vec<f32>,
    control: LayerControl,
    previous: Vec<HeadStatistics>,
}

impl Module {
    fn new(tensors: &Tensors, prefix: [&str; 4], layer: usize, n_heads: usize) -> Self {
        let [qkv, proj, controller, joint] = prefix;
        let proj = tensors.get(proj);
        let weights = ControllerWeights {
            own: network(tensors, controller).unwrap(),
            sibling_bias: None,
            joint: network(tensors, joint),
        };
        Self {
            n_heads,
            width: proj.len().isqrt(),
            qkv: tensors.get(qkv),
            proj,
            control: LayerControl::new(layer, n_heads, weights),
            previous: vec![HeadStatistics::default(); n_heads],
        }
    }

    /// A step on `x`, `[B, T, C]`; gives the output, what control found, and the statistics.
    fn step(
        &mut self,
        kernel: &mut dyn AttentionKernel,
        config: &AahConfig,
        step: usize,
        x: &[f32],
        batch: usize,
    ) -> (Vec<f32>, headscope::aah::LayerOutcome, Vec<HeadStatistics>) {
        let (c, n) = (self.width, self.n_heads);
        let d = c / n;
        let seq_len = x.len() / batch / c;
        let projected = linear(x, &self.qkv, c);
        let mut moments = vec![HeadMoments::default(); n];
        for row in projected.chunks(3 * c) {
            for (part, values) in row.chunks(c).enumerate() {
                for (head, values) in values.chunks(d).enumerate() {
                    for &v in values {
                        moments[head].qkv[part].add(v);
                    }
                }
            }
        }
        let input = LayerInput {
            moments,
            previous: self.previous.clone(),
            seq_len,
        };
        let outcome = self.control.step(config, step, &input).unwrap();
        let jobs: Vec<HeadJob> = outcome
            .windows
            .iter()
            .enumerate()
            .map(|(head, &w)| HeadJob::new(head, Window::last(w as usize).unwrap()))
            .collect();
        let mut heads_out = Vec::with_capacity(x.len());
        let mut statistics = vec![HeadStatistics::default(); n];
        for sample in projected.chunks(seq_len * 3 * c) {
            let part = |index: usize| {
                Arc::new(
                    sample
                        .chunks(3 * c)
                        .flat_map(|r| r[index * c..][..c].to_vec())
                        .collect::<Vec<f32>>(),
                )
            };
            let qkv = Qkv {
                shape: AttentionShape {
                    seq_len,
                    n_heads: n,
                    n_kv_heads: n,
                    head_dim: d,
                    scale: 1.0 / (d as f32).sqrt(),
                    softcap: None,
                },
                q: part(0),
                k: part(1),
                v: part(2),
            };
            let mut attended = Attended::zeros(&qkv.shape);
            kernel.attend(&qkv, &jobs, 0, &mut attended).unwrap();
            for (statistic, more) in statistics
                .iter_mut()
                .zip(headscope::engine::head_statistics(&qkv, &attended))
            {
                statistic.entropy += more.entropy / batch as f32;
                statistic.norm += more.norm / batch as f32;
                statistic.usage += more.usage / batch as f32;
            }
            heads_out.extend(attended.out);
        }
        // The reference keeps no statistics of full attention without control.
        if outcome.path != ControlPath::FullAttention {
            self.previous.clone_from(&statistics);
        }
        (linear(&heads_out, &self.proj, c), outcome, statistics)
    }
}

#[test]
fn attention_modules_equal_the_reference_over_steps() {
    let dir = golden_dir();
    let file = read_json(&dir.join("attention_regimes.json"));
    let tensors = Tensors::open(&dir.join("attention_regimes.safetensors"));
    let config = &file["config"];
    let n_heads = count(&config["n_head"]);
    for (kernel_name, kernel, tolerance) in &mut kernels() {
        for (name, regime) in file["regimes"].as_object().unwrap() {
            let settings = config_of(config, &regime["overrides"], &regime["fixed_head_to_group"]);
            // The projection's name sorts the weights: own and joint networks are shared by all regimes.
            let mut module = Module::new(
                &tensors,
                [
                    "weights.qkv.weight",
                    "weights.proj.weight",
                    "weights.controller.mlp",
                    "weights.joint_sibling_scorer.mlp",
                ],
                0,
                n_heads,
            );
            for (index, want) in regime["steps"].as_array().unwrap().iter().enumerate() {
                let step = count(&want["step"]);
                let what = format!("{name} on the {kernel_name}, step {step}");
                let x = tensors.get(&format!("input.step{index}"));
                let (out, outcome, statistics) =
                    module.step(kernel.as_mut(), &settings, step, &x, 2);
                let control = &module.control;

                let windows: Vec<u32> = outcome.windows.clone();
                assert_eq!(
                    windows,
                    rows(&want["lk"], |w| w.as_u64().unwrap() as u32),
                    "{what}: windows"
                );
                let acr = windows.iter().sum::<u32>() as f32
                    / (n_heads as f32 * number(&config["seq_len"]));
                close(
                    &[acr],
                    &[number(&want["acr"])],
                    1e-6,
                    &format!("{what}: ACR"),
                );
                let path = want["path"].as_str().unwrap();
                let expected_path = match path {
                    "full_attention_fastpath" => ControlPath::FullAttention,
                    "grouping_only_full_attention" => ControlPath::GroupingOnly,
                    "warmup_or_disabled_control" => ControlPath::Warmup,
                    p if p.ends_with("_cached") => ControlPath::Cached,
                    p if p.ends_with("_update") => ControlPath::Update,
                    p => panic!("unknown path {p}"),
                };
                assert_eq!(outcome.path, expected_path, "{what}");

                let wanted_groups = counts(&want["head_groups"]);
                if !wanted_groups.is_empty() {
                    assert_eq!(control.groups(), wanted_groups, "{what}: groups");
                    let hierarchy = control.hierarchy.as_ref().unwrap();
                    assert_eq!(
                        hierarchy.counts(),
                        counts(&want["group_counts_per_level"]),
                        "{what}"
                    );
                    for (level, members) in want["members"].as_array().unwrap().iter().enumerate() {
                        let mut wanted = groups(members);
                        wanted.iter_mut().for_each(|g| g.sort_unstable());
                        let mut got = hierarchy.heads_of(level);
                        got.iter_mut().for_each(|g| g.sort_unstable());
                        assert_eq!(got, wanted, "{what}: members of level {level}");
                    }
                }
                for (key, of) in [("raw", 0), ("after_parent", 1)] {
                    let wanted: Vec<Vec<usize>> = rows(&want[key], counts);
                    if !wanted.is_empty() {
                        let choice = control.choice.as_ref().unwrap();
                        let got = if of == 0 {
                            &choice.raw
                        } else {
                            &choice.bounded
                        };
                        // The reference lists the top level first.
                        let mut got = got.clone();
                        if got != wanted {
                            got.reverse();
                        }
                        assert_eq!(got, wanted, "{what}: {key}");
                    }
                }
                if !want["ema_features"].is_null() {
                    let ema = control.ema.clone().unwrap_or_default();
                    close_features(
                        &ema,
                        &features(&want["ema_features"]),
                        &format!("{what}: EMA"),
                    );
                }
                for (key, of) in [
                    ("group_change_rate", outcome.group_change_rate),
                    ("resolution_delta", outcome.resolution_delta),
                ] {
                    let wanted: Option<f32> = parse(&want[key]);
                    if let Some(wanted) = wanted {
                        let got = of.unwrap_or_else(|| panic!("{what}: no {key}"));
                        close(&[got], &[wanted], 1e-5, &format!("{what}: {key}"));
                    }
                }
                let all = |of: fn(&HeadStatistics) -> f32| {
                    statistics.iter().map(of).collect::<Vec<f32>>()
                };
                for (key, got) in [
                    ("head_entropy", all(|s| s.entropy)),
                    ("head_norms", all(|s| s.norm)),
                    ("head_usage", all(|s| s.usage)),
                ] {
                    let wanted = rows(&want[key], number);
                    if !wanted.is_empty() {
                        close(&got, &wanted, *tolerance, &format!("{what}: {key}"));
                    }
                }
                if let Some(wanted) = tensors.find(&format!("output.{name}.step{step}")) {
                    close(&out, &wanted, *tolerance, &format!("{what}: output"));
                }
            }
        }
    }
}

#[test]
fn the_papers_gpt_has_the_reference_losses_and_windows() {
    let dir = golden_dir();
    let file = read_json(&dir.join("gpt_loss.json"));
    let tensors = Tensors::open(&dir.join("gpt_loss.safetensors"));
    let config = &file["config"];
    let (n_layer, n_heads, c) = (
        count(&config["n_layer"]),
        count(&config["n_head"]),
        count(&config["n_embd"]),
    );
    let settings = config_of(config, &Value::Null, &Value::Null);
    let tokens = tensors.integers("tokens");
    let batch = 2;
    let seq_len = tokens.len() / batch - 1;
    let vocab = count(&config["vocab_size"]);
    let wte = tensors.get("wte.weight");
    let wpe = tensors.get("wpe.weight");
    let norm = |x: &[f32], name: &str| -> Vec<f32> {
        let (weight, bias) = (
            tensors.get(&format!("{name}.weight")),
            tensors.get(&format!("{name}.bias")),
        );
        x.chunks(c)
            .flat_map(|row| {
                let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / c as f64;
                let var = row
                    .iter()
                    .map(|&v| (f64::from(v) - mean).powi(2))
                    .sum::<f64>()
                    / c as f64;
                let scale = 1.0 / (var + 1e-5).sqrt();
                row.iter()
                    .zip(weight.iter().zip(&bias))
                    .map(|(&v, (&w, &b))| ((f64::from(v) - mean) * scale) as f32 * w + b)
                    .collect::<Vec<f32>>()
            })
            .collect()
    };
    let affine = |x: &[f32], name: &str, width: usize| -> Vec<f32> {
        let bias = tensors.get(&format!("{name}.bias"));
        let mut y = linear(x, &tensors.get(&format!("{name}.weight")), width);
        for (i, v) in y.iter_mut().enumerate() {
            *v += bias[i % bias.len()];
        }
        y
    };
    let mut modules: Vec<Module> = (0..n_layer)
        .map(|layer| {
            let name = |part: &str| format!("blocks.{layer}.attn.{part}");
            Module::new(
                &tensors,
                [
                    &name("qkv.weight"),
                    &name("proj.weight"),
                    &name("controller.mlp"),
                    &name("joint_sibling_scorer.mlp"),
                ],
                layer,
                n_heads,
            )
        })
        .collect();
    let kernel = &mut kernels().remove(0).1;
    let steps = file["steps"].as_array().unwrap();
    for (index, want) in steps.iter().enumerate() {
        let step = count(&want["step"]);
        let mut x = Vec::with_capacity(batch * seq_len * c);
        for sample in tokens.chunks(seq_len + 1) {
            for (t, &token) in sample[..seq_len].iter().enumerate() {
                x.extend((0..c).map(|i| wte[token as usize * c + i] + wpe[t * c + i]));
            }
        }
        for (layer, module) in modules.iter_mut().enumerate() {
            let name = |part: &str| format!("blocks.{layer}.{part}");
            let normed = norm(&x, &name("ln1"));
            let (out, outcome, _) = module.step(kernel.as_mut(), &settings, step, &normed, batch);
            let wanted = rows(&want["lk"][layer], |w| w.as_u64().unwrap() as u32);
            assert_eq!(outcome.windows, wanted, "step {step}, layer {layer}");
            for (x, out) in x.iter_mut().zip(out) {
                *x += out;
            }
            let mut hidden = affine(&norm(&x, &name("ln2")), &name("mlp.fc1"), c);
            for v in &mut hidden {
                *v = headscope::aah::network::gelu(*v);
            }
            let width = count(&config["n_ff"]);
            for (x, out) in x.iter_mut().zip(affine(&hidden, &name("mlp.fc2"), width)) {
                *x += out;
            }
        }
        let logits = linear(&norm(&x, "ln_f"), &wte, c);
        let mut loss = 0.0f64;
        for (b, sample) in tokens.chunks(seq_len + 1).enumerate() {
            for t in 0..seq_len {
                let row = &logits[(b * seq_len + t) * vocab..][..vocab];
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f64 = row.iter().map(|&l| f64::from(l - max).exp()).sum();
                loss += f64::from(max) + sum.ln() - f64::from(row[sample[t + 1] as usize]);
            }
        }
        let loss = (loss / (batch * seq_len) as f64) as f32;
        close(
            &[loss],
            &[number(&want["loss"])],
            1e-4,
            &format!("loss of step {step}"),
        );
        if index + 1 == steps.len() {
            close(
                &logits,
                &tensors.get("expected.logits.last"),
                1e-4,
                "logits of the last step",
            );
        }
    }
}

#[test]
fn the_retrofit_controller_equals_the_reference() {
    let dir = golden_dir();
    let file = read_json(&dir.join("retrofit.json"));
    let tensors = Tensors::open(&dir.join("retrofit.safetensors"));
    for case in file["cases"].as_array().unwrap() {
        let id = count(&case["case"]);
        let settings = RetrofitSettings {
            grouped: case["regime"] != "grouping_off",
            group_size: count(&case["min_group_size"]),
            ema_alpha: number(&case["ema_alpha"]),
            resolution_ema: number(&case["resolution_ema_alpha"]),
            control_interval: count(&case["control_interval"]),
        };
        let net = network(&tensors, &format!("case{id}.net")).unwrap();
        let mut retrofit = Retrofit::new(count(&case["layer_id"]), settings, net);
        for want in case["steps"].as_array().unwrap() {
            let step = count(&want["step"]);
            let n_heads = want["raw"].as_array().unwrap().len();
            let mut heads = vec![HeadMoments::default(); n_heads];
            for (part, name) in ["q", "k", "v"].into_iter().enumerate() {
                let values = tensors.get(&format!("case{id}.step{step}.{name}"));
                let each = values.len() / n_heads;
                for (head, values) in values.chunks(each).enumerate() {
                    values.iter().for_each(|&v| heads[head].qkv[part].add(v));
                }
            }
            retrofit.step(step, &heads);
            let what = format!("case {id} ({}), step {step}", case["regime"]);
            close_features(&retrofit.features, &features(&want["features"]), &what);
            assert_eq!(retrofit.raw, counts(&want["raw"]), "{what}: raw");
            assert_eq!(retrofit.chosen, counts(&want["final"]), "{what}: final");
        }
    }
}
