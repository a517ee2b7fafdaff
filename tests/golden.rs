//! Numbers from PyTorch and transformers, and the plain f64 reference: every case found in the golden folder.
//!
//! The folder is `tests/golden`, or `HEADSCOPE_GOLDEN_DIR`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod golden_support;

use std::{path::Path, sync::Arc};

use golden_support::{Tensors, close, golden_dir, kernels, read_json};
use headscope::{
    attention::{DistanceProfile, HeadId, Window, WindowMap, pairs::causal_pairs, reference},
    engine::{
        Decoder, Flow, MatrixRequest, Pooling,
        attend::{Attended, AttentionShape, HeadJob, Qkv},
        cpu::attention::distance_masses,
        head_matrix,
    },
    model::{Bos, Model, WeightStore},
};
use serde_json::Value;

/// From `[H, T, D]` to the engine's `[T, H, D]`.
fn by_token(x: &[f32], heads: usize, seq_len: usize, head_dim: usize) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    for h in 0..heads {
        for t in 0..seq_len {
            for d in 0..head_dim {
                out[(t * heads + h) * head_dim + d] = x[(h * seq_len + t) * head_dim + d];
            }
        }
    }
    out
}

fn usizes(value: &Value) -> Vec<usize> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_u64().unwrap() as usize)
        .collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap() as f32)
        .collect()
}

#[test]
fn windowed_attention_equals_the_golden_numbers() {
    let dir = golden_dir();
    let cases = read_json(&dir.join("windowed_attention.json"));
    let tensors = Tensors::open(&dir.join("windowed_attention.safetensors"));
    let mut count = 0;
    for case in cases["cases"].as_array().unwrap() {
        let id = case["case"].as_u64().unwrap();
        let (t, h, d) = (
            case["seq_len"].as_u64().unwrap() as usize,
            case["heads"].as_u64().unwrap() as usize,
            case["head_dim"].as_u64().unwrap() as usize,
        );
        let tensor = |name: &str| tensors.get(&format!("case{id}.{name}"));
        let windows: Vec<Window> = usizes(&case["windows"])
            .into_iter()
            .map(|w| Window::last(w).unwrap())
            .collect();
        let shape = AttentionShape {
            seq_len: t,
            n_heads: h,
            n_kv_heads: h,
            head_dim: d,
            scale: case["scale"].as_f64().unwrap() as f32,
            softcap: None,
        };
        let qkv = Qkv {
            shape,
            q: Arc::new(by_token(&tensor("q"), h, t, d)),
            k: Arc::new(by_token(&tensor("k"), h, t, d)),
            v: Arc::new(by_token(&tensor("v"), h, t, d)),
        };
        let jobs: Vec<HeadJob> = windows
            .iter()
            .enumerate()
            .map(|(head, &window)| HeadJob::new(head, window))
            .collect();

        for (name, kernel, tolerance) in &mut kernels() {
            let what = format!("case {id} on the {name}");
            let mut got = Attended::zeros(&shape);
            kernel.attend(&qkv, &jobs, 0, &mut got).unwrap();
            let want = by_token(&tensor("out"), h, t, d);
            close(&got.out, &want, *tolerance, &format!("{what}: output"));
            // The golden entropy has 1e-9 inside its logarithm, and is divided by max(1, ln T).
            let normalised: Vec<f32> = got
                .entropy
                .iter()
                .map(|e| e / (t as f32).ln().max(1.0))
                .collect();
            close(
                &normalised,
                &floats(&case["normalised_entropy"]),
                *tolerance,
                &what,
            );
        }

        // The profile is that of full attention; so is the mass that a window covers.
        let mut full = Attended::zeros(&shape);
        let full_jobs: Vec<HeadJob> = (0..h)
            .map(|head| HeadJob::new(head, Window::Full))
            .collect();
        kernels()[0]
            .1
            .attend(&qkv, &full_jobs, 0, &mut full)
            .unwrap();
        let masses = distance_masses(&qkv, &vec![Window::Full; h], Window::Full, 0, &full.lse, t);
        close(
            &masses,
            &tensor("distance_profile"),
            1e-5,
            &format!("case {id}: profile"),
        );
        let profile = DistanceProfile::from_layers(&[masses], h, t);
        let coverage: Vec<f32> = windows
            .iter()
            .enumerate()
            .map(|(head, &w)| profile.coverage(HeadId { layer: 0, head }, w))
            .collect();
        close(
            &coverage,
            &floats(&case["mass_coverage"]),
            1e-4,
            &format!("case {id}: coverage"),
        );
        count += 1;
    }
    assert!(count > 0, "no case found");
}

/// Reproducible numbers of about unit size.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count)
        .map(|_| (next() + next() + next() - 1.5) * 2.0)
        .collect()
}

#[test]
fn kernels_equal_the_f64_reference() {
    // T, heads, kv heads, head_dim, sinks, softcap.
    let shapes = [
        (1, 1, 1, 4, 0, None),
        (1, 2, 1, 8, 3, None),
        (2, 1, 1, 4, 1, None),
        (5, 4, 2, 12, 2, None),
        (16, 2, 2, 16, 0, None),
        (17, 3, 1, 20, 4, Some(3.0)),
        (63, 2, 1, 64, 5, None),
        (65, 4, 4, 80, 0, None),
        (130, 2, 2, 128, 7, None),
        (257, 6, 3, 32, 4, Some(20.0)),
        (301, 2, 1, 7, 16, None),
    ];
    for (case, (t, h, kv, d, sinks, softcap)) in shapes.into_iter().enumerate() {
        let shape = AttentionShape {
            seq_len: t,
            n_heads: h,
            n_kv_heads: kv,
            head_dim: d,
            scale: 1.3 / (d as f32).sqrt(),
            softcap,
        };
        let seed = case as u64 * 10;
        let qkv = Qkv {
            shape,
            q: Arc::new(noise(seed + 1, t * h * d)),
            k: Arc::new(noise(seed + 2, t * kv * d)),
            v: Arc::new(noise(seed + 3, t * kv * d)),
        };
        let column = |x: &[f32], head: usize, heads: usize| -> Vec<f32> {
            (0..t)
                .flat_map(|i| x[(i * heads + head) * d..][..d].to_vec())
                .collect()
        };
        for w in [1, 2, 3, 15, 16, 17, t / 2 + 1, t, t + 9] {
            // Every head another window, the first of them w; in every second case the model's own window bounds them.
            let reach = if case % 2 == 0 {
                Window::Full
            } else {
                Window::last(t / 3 + 4).unwrap()
            };
            let jobs: Vec<HeadJob> = (0..h)
                .map(|head| HeadJob {
                    head,
                    window: Window::last((w + head * 5).max(1)).unwrap(),
                    reach,
                })
                .collect();
            let want: Vec<_> = jobs
                .iter()
                .map(|job| {
                    let kv_head = shape.kv_head(job.head);
                    let inputs = reference::ReferenceInputs {
                        q: &column(&qkv.q, job.head, h),
                        k: &column(&qkv.k, kv_head, kv),
                        v: &column(&qkv.v, kv_head, kv),
                        head_dim: d,
                        scale: f64::from(shape.scale),
                        softcap: softcap.map(f64::from),
                    };
                    reference::attend(inputs, job.window, job.reach, sinks)
                })
                .collect();
            for (name, kernel, tolerance) in &mut kernels() {
                let what = format!("T {t}, {h}/{kv} heads of {d}, w {w}, {sinks} sinks, {name}");
                let mut got = Attended::zeros(&shape);
                kernel.attend(&qkv, &jobs, sinks, &mut got).unwrap();
                for (head, want) in want.iter().enumerate() {
                    let cast = |x: &[f64]| x.iter().map(|&v| v as f32).collect::<Vec<f32>>();
                    close(
                        &column(&got.out, head, h),
                        &cast(&want.out),
                        *tolerance,
                        &what,
                    );
                    close(
                        &got.lse[head * t..(head + 1) * t],
                        &cast(&want.lse),
                        *tolerance,
                        &what,
                    );
                    let entropy = want.entropy().iter().sum::<f64>() / t as f64;
                    close(&[got.entropy[head]], &[entropy as f32], *tolerance, &what);
                    // What ran is at least what the window holds.
                    let pairs = want.weights.iter().filter(|&&a| a > 0.0).count() as u64;
                    assert!(
                        got.executed_pairs[head] >= pairs,
                        "{what}: {:?}",
                        got.executed_pairs
                    );
                }
            }
            // Masses by distance, windowed, and the part that goes to the sinks.
            let mut got = Attended::zeros(&shape);
            kernels()[0].1.attend(&qkv, &jobs, sinks, &mut got).unwrap();
            let windows: Vec<Window> = jobs.iter().map(|j| j.window).collect();
            let masses = distance_masses(&qkv, &windows, reach, sinks, &got.lse, t);
            let to_sinks = distance_masses(&qkv, &windows, reach, sinks, &got.lse, sinks);
            for (head, want) in want.iter().enumerate() {
                let mut all = want.distance_profile();
                close(
                    &masses[head * t..(head + 1) * t],
                    &all.iter().map(|&v| v as f32).collect::<Vec<_>>(),
                    1e-5,
                    "windowed profile",
                );
                all.fill(0.0);
                for i in 0..t {
                    for j in 0..=i.min(sinks.wrapping_sub(1)) {
                        if j < sinks {
                            all[i - j] += want.weights[i * t + j] / t as f64;
                        }
                    }
                }
                close(
                    &to_sinks[head * t..(head + 1) * t],
                    &all.iter().map(|&v| v as f32).collect::<Vec<_>>(),
                    1e-5,
                    "mass on sinks",
                );
            }
        }
    }
}

#[test]
fn blocks_outside_the_windows_are_not_visited() {
    let shape = AttentionShape {
        seq_len: 2048,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 16,
        scale: 0.25,
        softcap: None,
    };
    let qkv = Qkv {
        shape,
        q: Arc::new(noise(1, 2048 * 2 * 16)),
        k: Arc::new(noise(2, 2048 * 16)),
        v: Arc::new(noise(3, 2048 * 16)),
    };
    let jobs = [
        HeadJob::new(0, Window::Last(256)),
        HeadJob::new(1, Window::Full),
    ];
    for (name, kernel, _) in &mut kernels() {
        let mut got = Attended::zeros(&shape);
        kernel.attend(&qkv, &jobs, 0, &mut got).unwrap();
        let all = causal_pairs(2048) as f64;
        let ear = |head: usize| got.executed_pairs[head] as f64 / all;
        let causal_acr =
            headscope::attention::pairs::window_pairs(Window::Last(256), 0, 2048) as f64 / all;
        assert!(
            (1.0..1.07).contains(&ear(1)),
            "{name}: full head {}",
            ear(1)
        );
        assert!(
            ear(0) >= causal_acr && ear(0) < causal_acr * 1.4,
            "{name}: {} for {causal_acr}",
            ear(0)
        );
    }
}

fn map_of(value: &Value) -> WindowMap {
    let rows: Vec<Vec<Window>> = serde_json::from_value(value.clone()).unwrap();
    let mut map = WindowMap::full(rows.len(), rows[0].len());
    for (layer, row) in rows.iter().enumerate() {
        for (head, &window) in row.iter().enumerate() {
            map.set(HeadId { layer, head }, window);
        }
    }
    map
}

fn check_model(path: &Path, folder: &Path, model: Arc<Model>) {
    let name = path.display().to_string();
    let tensors = Tensors::open(&folder.join("expected.safetensors"));
    let expected = read_json(&folder.join("expected.json"));
    let tokens: Vec<u32> = tensors
        .integers("tokens")
        .iter()
        .map(|&t| t as u32)
        .collect();
    let t = tokens.len();
    let spec = model.spec.clone();
    let decoder = Decoder::new(model, Arc::new(tokens)).unwrap();
    let go = &mut |_, _| Flow::Continue;
    for (kernel_name, kernel, tolerance) in &mut kernels() {
        let what = |part: &str| format!("{name} on the {kernel_name}: {part}");
        let (run, trace) = decoder
            .run(kernel.as_mut(), &decoder.full_map(), &[], go)
            .unwrap();
        close(
            &run.token_loss,
            &tensors.get("token_nll"),
            *tolerance,
            &what("loss"),
        );
        close(
            &decoder.logits(&trace).unwrap(),
            &tensors.get("logits"),
            *tolerance,
            &what("logits"),
        );
        let loss = expected["loss"].as_f64().unwrap() as f32;
        close(
            &[run.mean_loss().unwrap() as f32],
            &[loss],
            *tolerance,
            &what("mean loss"),
        );

        for (layer, key) in [
            (0, "attention_first_layer"),
            (spec.n_layers - 1, "attention_last_layer"),
        ] {
            let want = tensors.get(key);
            for head in 0..spec.n_heads {
                let request = MatrixRequest {
                    head: HeadId { layer, head },
                    queries: 0..t,
                    keys: 0..t,
                    bin: 1,
                    pooling: Pooling::Max,
                };
                let got = head_matrix(&trace, &request).unwrap();
                close(
                    &got.values,
                    &want[head * t * t..(head + 1) * t * t],
                    *tolerance,
                    &what(key),
                );
            }
        }
        let profile: Vec<f32> = trace
            .layers
            .iter()
            .flat_map(|l| {
                let full = vec![Window::Full; spec.n_heads];
                distance_masses(&l.qkv, &full, l.reach, 0, &l.attended.lse, t)
            })
            .collect();
        close(
            &profile,
            &tensors.get("distance_profile"),
            *tolerance,
            &what("distance profile"),
        );

        if let Some(windowed) = expected.get("windowed") {
            let map = map_of(&windowed["windows"]);
            for (sinks, key) in [(0, "windowed_token_nll"), (2, "windowed_2_sinks_token_nll")] {
                let map = map.clone().with_sinks(sinks);
                let (run, _) = decoder.run(kernel.as_mut(), &map, &[&trace], go).unwrap();
                close(&run.token_loss, &tensors.get(key), *tolerance, &what(key));
            }
        }
    }
}

#[test]
fn models_equal_transformers() {
    let dir = golden_dir().join("models");
    let mut folders: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.sort();
    let mut checked = 0;
    for folder in folders {
        // The same model may lie there in both forms.
        let forms = [
            ("config.json", folder.clone()),
            ("model.gguf", folder.join("model.gguf")),
        ];
        for (file, path) in forms {
            if folder.join(file).exists() {
                let model = Model::open_without_tokenizer(&path).unwrap_or_else(|e| panic!("{e}"));
                check_model(&path, &folder, model);
                checked += 1;
            }
        }
    }
    assert!(checked > 0, "no model in {}", dir.display());
}

/// The golden Llama in another type, in two shards with an index, its losses compared.
#[test]
fn half_precision_and_shards_are_read() {
    use safetensors::{Dtype, SafeTensors, tensor::TensorView};
    use std::collections::HashMap;
    let golden = golden_dir().join("models/llama");
    if !golden.exists() {
        println!("skipped: no models/llama in the golden folder");
        return;
    }
    let bytes = std::fs::read(golden.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let expected = Tensors::open(&golden.join("expected.safetensors"));
    let tokens: Vec<u32> = expected
        .integers("tokens")
        .iter()
        .map(|&t| t as u32)
        .collect();
    type Narrow = fn(f32) -> [u8; 2];
    let narrow: [(Dtype, Narrow, f32); 2] = [
        (Dtype::F16, |v| half::f16::from_f32(v).to_le_bytes(), 3e-2),
        (Dtype::BF16, |v| half::bf16::from_f32(v).to_le_bytes(), 2e-1),
    ];
    for (dtype, narrow, tolerance) in narrow {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(
            golden.join("config.json"),
            folder.path().join("config.json"),
        )
        .unwrap();
        let mut names: Vec<&str> = tensors.names();
        names.sort_unstable();
        let mut weight_map = HashMap::new();
        for (part, names) in names.chunks(names.len().div_ceil(2)).enumerate() {
            let shard = format!("model-{part}.safetensors");
            let data: Vec<(String, Vec<usize>, Vec<u8>)> = names
                .iter()
                .map(|&name| {
                    let view = tensors.tensor(name).unwrap();
                    let values = view.data().as_chunks::<4>().0.iter();
                    let narrow = values
                        .flat_map(|&b| narrow(f32::from_le_bytes(b)))
                        .collect();
                    weight_map.insert(name.to_owned(), shard.clone());
                    (name.to_owned(), view.shape().to_vec(), narrow)
                })
                .collect();
            let views = data.iter().map(|(name, shape, data)| {
                (
                    name.clone(),
                    TensorView::new(dtype, shape.clone(), data).unwrap(),
                )
            });
            safetensors::serialize_to_file(views, None, &folder.path().join(&shard)).unwrap();
        }
        let index = serde_json::json!({ "metadata": {}, "weight_map": weight_map });
        std::fs::write(
            folder.path().join("model.safetensors.index.json"),
            index.to_string(),
        )
        .unwrap();
        let model = Model::open_without_tokenizer(folder.path()).unwrap();
        let decoder = Decoder::new(model, Arc::new(tokens.clone())).unwrap();
        let go = &mut |_, _| Flow::Continue;
        let kernel = &mut kernels()[0].1;
        let (run, _) = decoder
            .run(kernel.as_mut(), &decoder.full_map(), &[], go)
            .unwrap();
        close(
            &run.token_loss,
            &expected.get("token_nll"),
            tolerance,
            &format!("{dtype:?}"),
        );

        // A shard that is named but not there, or elsewhere, is refused by name.
        let broken = index
            .to_string()
            .replace("model-1.safetensors", "../model-1.safetensors");
        std::fs::write(folder.path().join("model.safetensors.index.json"), broken).unwrap();
        let error = Model::open_without_tokenizer(folder.path())
            .unwrap_err()
            .to_string();
        assert!(error.contains("outside its folder"), "{error}");
    }
}

/// Files leave the prefix of their names out, and are named in any way: the losses stay what they are.
#[test]
fn names_without_prefixes_and_files_by_any_name_are_read() {
    use safetensors::SafeTensors;
    let mut checked = 0;
    for (case, prefix) in [
        ("llama", "model."),
        ("gpt2", "transformer."),
        ("gpt_neox", "gpt_neox."),
        ("gptj", "transformer."),
        ("opt", "model."),
        ("phi", "model."),
    ] {
        let golden = golden_dir().join("models").join(case);
        if !golden.exists() {
            println!("skipped: no models/{case} in the golden folder");
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(
            golden.join("config.json"),
            folder.path().join("config.json"),
        )
        .unwrap();
        let bytes = std::fs::read(golden.join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let names: Vec<String> = tensors.names().iter().map(|n| (*n).to_owned()).collect();
        assert!(
            names.iter().any(|n| n.starts_with(prefix)),
            "{case}: {names:?}"
        );
        let views = names.iter().map(|name| {
            let short = name.strip_prefix(prefix).unwrap_or(name).to_owned();
            (short, tensors.tensor(name).unwrap())
        });
        let file = folder.path().join("of any name.safetensors");
        safetensors::serialize_to_file(views, None, &file).unwrap();
        let expected = Tensors::open(&golden.join("expected.safetensors"));
        let tokens: Vec<u32> = expected
            .integers("tokens")
            .iter()
            .map(|&t| t as u32)
            .collect();
        let model = Model::open_without_tokenizer(&file).unwrap();
        let decoder = Decoder::new(model, Arc::new(tokens)).unwrap();
        let go = &mut |_, _| Flow::Continue;
        let kernel = &mut kernels()[0].1;
        let (run, _) = decoder
            .run(kernel.as_mut(), &decoder.full_map(), &[], go)
            .unwrap();
        close(&run.token_loss, &expected.get("token_nll"), 1e-4, case);
        checked += 1;
    }
    println!("{checked} models without prefixes");
}

/// Every type of GGUF's that is read, against the numbers that its own Python package decodes.
#[test]
fn gguf_blocks_are_decoded() {
    let dir = golden_dir();
    if !dir.join("gguf_blocks.gguf").exists() {
        println!("skipped: no gguf_blocks.gguf in the golden folder");
        return;
    }
    let store = WeightStore::open_gguf(&dir.join("gguf_blocks.gguf")).unwrap();
    let expected = Tensors::open(&dir.join("gguf_blocks.safetensors"));
    let mut names: Vec<String> = store.names().map(str::to_owned).collect();
    names.sort();
    assert!(names.len() >= 13, "{names:?}");
    for name in names {
        let got = store.values(&name, &[3, 512]).unwrap();
        close(&got, &expected.get(&name), 1e-6, &name);
    }
}

/// SmolLM2-135M from its GGUF file: token ids, and loss token by token, full and under windows.
#[test]
#[ignore = "needs SmolLM2's GGUF file: set HEADSCOPE_SMOLLM2 to it"]
fn smollm2_equals_transformers() {
    let path = std::env::var_os("HEADSCOPE_SMOLLM2").expect("HEADSCOPE_SMOLLM2 names the file");
    let expected = read_json(&golden_dir().join("smollm2/expected.json"));
    let numbers = |value: &Value| -> Vec<f64> {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_f64().unwrap())
            .collect()
    };
    let model = Model::open(Path::new(&path)).unwrap();
    let vocab_size = model.spec.vocab_size;
    let text = expected["text"].as_str().unwrap();
    let ids: Vec<u32> = numbers(&expected["token_ids"])
        .iter()
        .map(|&id| id as u32)
        .collect();
    let tokens = model.tokenizer.encode(text, vocab_size, Bos::Auto).unwrap();
    assert_eq!(tokens.ids[..ids.len()], ids);

    let t = ids.len();
    let (layers, heads) = (model.spec.n_layers, model.spec.n_heads);
    let decoder = Decoder::new(model, Arc::new(ids)).unwrap();
    let mut windows = decoder.full_map();
    for layer in 0..layers {
        for head in 0..heads {
            let keys = [16, 64, 128, 512][(3 * layer + head) % 4];
            windows.set(HeadId { layer, head }, Window::last(keys).unwrap());
        }
    }
    let maps = [
        ("loss_full", decoder.full_map()),
        ("loss_windowed", windows.clone()),
        ("loss_windowed_4_sinks", windows.with_sinks(4)),
    ];
    for (kernel_name, kernel, tolerance) in &mut kernels() {
        for (key, map) in &maps {
            let go = &mut |_, _| Flow::Continue;
            let (run, trace) = decoder.run(kernel.as_mut(), map, &[], go).unwrap();
            let loss = run.mean_loss().unwrap();
            println!("{kernel_name}: {key} {loss:.6}");
            let want = expected[*key].as_f64().unwrap();
            assert!(
                (loss - want).abs() < f64::from(*tolerance),
                "{key}: {loss}, not {want}"
            );
            if *key != "loss_full" {
                continue;
            }
            let want: Vec<f32> = numbers(&expected["token_nll"])
                .iter()
                .map(|&v| v as f32)
                .collect();
            close(&run.token_loss, &want, *tolerance, "loss of each token");
            let distances: Vec<usize> = numbers(&expected["distances"])
                .iter()
                .map(|&d| d as usize)
                .collect();
            let mut got = Vec::new();
            for layer in &trace.layers {
                let full = vec![Window::Full; heads];
                let masses =
                    distance_masses(&layer.qkv, &full, layer.reach, 0, &layer.attended.lse, t);
                for head in 0..heads {
                    got.extend(distances.iter().map(|d| masses[head * t + d]));
                }
            }
            let want: Vec<f32> = expected["distance_profile"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|layer| layer.as_array().unwrap())
                .flat_map(numbers)
                .map(|v| v as f32)
                .collect();
            close(&got, &want, *tolerance, "distance profile");
        }
    }
}
