//! Files from strangers: none may cost a panic, more than a moment, or memory that they do not have themselves.
//!
//! Chosen cases first; then files that were good, changed at random from a seed, for `HEADSCOPE_FUZZ_SECONDS` (5 if it is
//! not set; CI takes a minute).

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use headscope::{
    model::{Bos, Model},
    session::{PatternOptions, read_controller, read_map},
};

/// Counts what is allocated.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
/// Tests that measure memory take turns.
static TURN: Mutex<()> = Mutex::new(());

// SAFETY: all of it is the system's allocator; only sizes are added up beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = IN_USE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: passed on as it came.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on as it came.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What one file may take besides 40 times its own size.
const MOST_BYTES: usize = 64 << 20;
/// How long it may take. A second is what it should; a busy machine gets more.
const MOST_TIME: Duration = Duration::from_secs(4);

/// Runs `open` and holds it to time and memory; gives what it refused with.
fn within_bounds<T>(
    what: &str,
    size: usize,
    open: impl FnOnce() -> headscope::Result<T>,
) -> Option<String> {
    let before = IN_USE.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let started = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(open));
    let took = started.elapsed();
    let most = MOST.load(Ordering::Relaxed).saturating_sub(before);
    assert!(took < MOST_TIME, "{what}: took {took:?}");
    assert!(
        most < MOST_BYTES + 40 * size,
        "{what}: took {most} bytes for {size}"
    );
    match outcome {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => {
            let message = error.to_string();
            assert!(!message.is_empty(), "{what}");
            Some(message)
        }
        Err(_) => panic!("{what}: panicked"),
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/models")
        .join(name)
}

/// A small GGUF file, put together by hand.
#[derive(Default)]
struct Gguf {
    keys: Vec<u8>,
    key_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

impl Gguf {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    fn key(mut self, name: &str, kind: u32, value: &[u8]) -> Self {
        Self::text(&mut self.keys, name);
        self.keys.extend(kind.to_le_bytes());
        self.keys.extend(value);
        self.key_count += 1;
        self
    }

    fn string(self, name: &str, value: &str) -> Self {
        let mut bytes = Vec::new();
        Self::text(&mut bytes, value);
        self.key(name, 8, &bytes)
    }

    fn number(self, name: &str, value: u32) -> Self {
        self.key(name, 4, &value.to_le_bytes())
    }

    fn strings(self, name: &str, values: &[&str]) -> Self {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        for value in values {
            Self::text(&mut bytes, value);
        }
        self.key(name, 9, &bytes)
    }

    fn floats(self, name: &str, values: &[f32]) -> Self {
        let mut bytes = 6u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
        self.key(name, 9, &bytes)
    }

    fn tensor(mut self, name: &str, shape: &[u64], kind: u32, offset: u64, data: &[u8]) -> Self {
        Self::text(&mut self.tensors, name);
        self.tensors.extend((shape.len() as u32).to_le_bytes());
        shape
            .iter()
            .for_each(|n| self.tensors.extend(n.to_le_bytes()));
        self.tensors.extend(kind.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self.tensor_count += 1;
        self.data.extend(data);
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        self
    }

    fn bytes(self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.key_count.to_le_bytes());
        out.extend(self.keys);
        out.extend(self.tensors);
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(self.data);
        out
    }
}

/// A vocabulary with scores, and one with merges.
fn vocabularies() -> [Vec<u8>; 2] {
    let pieces = ["<unk>", "<s>", "▁", "a", "b", "ab", "▁ab", "<0x41>"];
    let sentence_piece = Gguf::default()
        .string("general.architecture", "llama")
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &pieces)
        .floats(
            "tokenizer.ggml.scores",
            &[0.0, 0.0, -3.0, -3.0, -3.0, -1.0, -2.0, 0.0],
        )
        .number("tokenizer.ggml.bos_token_id", 1)
        .bytes();
    let byte_level = Gguf::default()
        .string("general.architecture", "gpt2")
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &["a", "b", "Ġ", "ab", "Ġab"])
        .strings("tokenizer.ggml.merges", &["a b", "Ġ ab"])
        .bytes();
    [sentence_piece, byte_level]
}

#[test]
fn chosen_gguf_files_are_refused_with_the_reason() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    let refusal = |what: &str, bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        within_bounds(what, bytes.len(), || Model::open_without_tokenizer(&path))
            .unwrap_or_else(|| panic!("{what} was opened"))
    };
    let good = std::fs::read(golden("llama").join("model.gguf")).unwrap();
    let check = |what: &str, bytes: &[u8], expected: &str| {
        let message = refusal(what, bytes);
        assert!(message.contains(expected), "{what}: {message}");
    };
    check("nothing", b"", "x.gguf");
    check(
        "another kind of file",
        b"PK\x03\x04 and so on",
        "is not a GGUF file",
    );
    check(
        "version 1",
        b"GGUF\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        "version 1",
    );
    check(
        "big-endian",
        b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        "big-endian",
    );
    let mut many = b"GGUF\x03\0\0\0".to_vec();
    many.extend(u64::MAX.to_le_bytes());
    many.extend(u64::MAX.to_le_bytes());
    check("2^64 tensors", &many, "cut short");
    for length in [30, 200, 1000, good.len() - 40] {
        check("a part of a file", &good[..length], "cut short");
    }
    let text = String::from_utf8_lossy(&good).into_owned();
    check("a file saved as text", text.as_bytes(), "was saved as text");
    let nested = Gguf::default()
        .key("x", 9, &[9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
        .bytes();
    check("arrays in arrays", &nested, "arrays within arrays");
    let zero = Gguf::default().number("general.alignment", 0).bytes();
    check("an alignment of 0", &zero, "aligned to 0");
    let base = || Gguf::default().string("general.architecture", "llama");
    let data = [0u8; 64];
    let overlap = base()
        .tensor("a", &[16], 0, 0, &data)
        .tensor("b", &[16], 0, 32, &data)
        .bytes();
    check("overlapping tensors", &overlap, "lie on each other");
    let beyond = base().tensor("a", &[1 << 40], 0, 0, &data).bytes();
    check("a tensor beyond the file", &beyond, "cut short");
    let wrap = base().tensor("a", &[1 << 62, 8], 0, 0, &data).bytes();
    check("a size that wraps", &wrap, "larger than any memory");
    let odd = base().tensor("a", &[17], 2, 0, &data).bytes();
    check("rows of half a block", &odd, "no whole blocks");
    let layers = base()
        .number("llama.embedding_length", 8)
        .number("llama.attention.head_count", 2)
        .number("llama.block_count", u32::MAX)
        .tensor("token_embd.weight", &[8, 2], 0, 0, &data)
        .bytes();
    check(
        "four billion layers",
        &layers,
        "num_hidden_layers is 4294967295",
    );
    let experts = base()
        .number("llama.expert_count", 8)
        .tensor("token_embd.weight", &[8, 2], 0, 0, &data)
        .bytes();
    check("a mixture of experts", &experts, "8 experts");
    let other = Gguf::default()
        .string("general.architecture", "mamba")
        .tensor("token_embd.weight", &[8, 2], 0, 0, &data)
        .bytes();
    check("another architecture", &other, "state-space");
    check("a vocabulary alone", &vocabularies()[0], "vocabulary only");

    // Numbers that are none, in the middle of a good file.
    let mut damaged = good.clone();
    let at = (damaged.len() - 400).next_multiple_of(4);
    damaged[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    check("a number that is none", &damaged, "not finite");
}

#[test]
fn chosen_folders_are_refused_with_the_reason() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let config = std::fs::read_to_string(golden("llama").join("config.json")).unwrap();
    let weights = std::fs::read(golden("llama").join("model.safetensors")).unwrap();
    let check = |what: &str, config: &str, weights: &[u8], expected: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
        let size = config.len() + weights.len();
        let message = within_bounds(what, size, || Model::open_without_tokenizer(folder.path()))
            .unwrap_or_else(|| panic!("{what} was opened"));
        assert!(message.contains(expected), "{what}: {message}");
    };
    let with = |key: &str, value: &str| {
        let mut all: serde_json::Value = serde_json::from_str(&config).unwrap();
        all[key] = serde_json::from_str(value).unwrap();
        all.to_string()
    };
    let layers = with("num_hidden_layers", "1000000000000");
    check(
        "10^12 layers",
        &layers,
        &weights,
        "num_hidden_layers is 1000000000000",
    );
    let wide = with("intermediate_size", "1048576");
    check(
        "layers that are not that wide",
        &wide,
        &weights,
        "the configuration asks for",
    );
    let deep = format!("{{\"x\": {}", "[".repeat(200_000));
    check(
        "JSON without an end",
        &deep,
        &weights,
        "not a model configuration",
    );
    check(
        "an unknown type",
        &with("model_type", "\"mixtral\""),
        &weights,
        "mixtures of experts",
    );
    check(
        "experts",
        &with("num_local_experts", "8"),
        &weights,
        "8 experts",
    );
    let yarn = with("rope_parameters", r#"{"rope_type": "yarn", "factor": -1}"#);
    check("a factor below 0", &yarn, &weights, "must be above 0");

    let header = |length: u64, rest: &[u8]| [&length.to_le_bytes(), rest].concat();
    check(
        "a header of 4 GiB",
        &config,
        &header(4 << 30, b"{}"),
        "cut short",
    );
    check(
        "a header of 2^64",
        &config,
        &header(u64::MAX, b"{}"),
        "cut short",
    );
    check(
        "half a file",
        &config,
        &weights[..weights.len() / 2],
        "not a valid safetensors",
    );
    let json = br#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}"#;
    let overlap = [&header(json.len() as u64, json), &[0u8; 12][..]].concat();
    check(
        "overlapping tensors",
        &config,
        &overlap,
        "not a valid safetensors",
    );
    let mut damaged = weights.clone();
    let at = damaged.len() - 400;
    damaged[at..at + 200].fill(0xFF);
    check("numbers that are none", &config, &damaged, "not finite");
}

/// The same numbers from the same seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// A good file, changed in one to four places; most of them in its first part, where the structure is.
fn mutate(good: &[u8], random: &mut Random) -> Vec<u8> {
    const NUMBERS: [&str; 8] = [
        "0",
        "-1",
        "1e308",
        "18446744073709551615",
        "null",
        "[]",
        "{}",
        "\"x\"",
    ];
    let mut bytes = good.to_vec();
    for _ in 0..=random.below(4) {
        let reach = if random.below(4) == 0 {
            bytes.len()
        } else {
            bytes.len().min(4096)
        };
        let at = random
            .below(reach.max(1))
            .min(bytes.len().saturating_sub(1));
        let rest = bytes.len() - at;
        match random.below(8) {
            0 if rest > 0 => bytes[at] ^= 1 << random.below(8),
            1 if rest > 0 => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => {
                let count = random.below(64).min(rest);
                bytes.drain(at..at + count);
            }
            4 => {
                let count = random.below(256).min(rest);
                let copy = bytes[at..at + count].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            5 if rest >= 8 => {
                let value = [
                    0,
                    1,
                    u64::MAX,
                    1 << 31,
                    1 << 32,
                    1 << 40,
                    1 << 62,
                    0x7FF8 << 48,
                ];
                let value: u64 = value[random.below(value.len())];
                let width = [1, 2, 4, 8][random.below(4)];
                bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            }
            6 => {
                // A number of a text file.
                let digits = bytes[at..].iter().position(u8::is_ascii_digit);
                if let Some(start) = digits.map(|d| at + d) {
                    let count = bytes[start..]
                        .iter()
                        .take_while(|b| b.is_ascii_digit())
                        .count();
                    let number = NUMBERS[random.below(NUMBERS.len())];
                    bytes.splice(start..start + count, number.bytes());
                }
            }
            _ => {
                let noise: Vec<u8> = (0..random.below(32)).map(|_| random.next() as u8).collect();
                bytes.splice(at..at, noise);
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

#[test]
fn mutated_files_are_opened_or_refused() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let seconds = std::env::var("HEADSCOPE_FUZZ_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(5);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let read = |path: PathBuf| std::fs::read(path).unwrap();
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/built-in-model");
    let tokenizer = small_tokenizer(&read(assets.join("tokenizer.json")));
    let windows = br#"{"format": "headscope-windows", "version": 1, "model": "m", "layers": 2, "heads": 2, "context": 64, "sinks": 1, "windows": [[1, null], [3, 64]], "note": "n"}"#;
    let heat_map = b"layer_id,head_id,final_window_size\n0,0,16\n0,1,32\n1,0,64\n1,1,16\n";
    let patterns = b"0.1\t0.9\n0.5\t1.0\n";
    let weights = read(golden("llama").join("model.safetensors"));
    let config = read(golden("llama").join("config.json"));
    std::fs::create_dir(at("m")).unwrap();
    let in_folder = |config: &[u8], weights: &[u8]| {
        std::fs::write(at("m/config.json"), config).unwrap();
        std::fs::write(at("m/model.safetensors"), weights).unwrap();
    };
    let controller = || {
        let config = headscope::aah::AahConfig::for_inspection(
            headscope::aah::Regime::FullAdaptive,
            vec![8, 16],
            0,
        );
        headscope::aah::Controller::new(config, 2, 4)
    };

    type Open<'a> = Box<dyn Fn(&[u8]) -> headscope::Result<()> + 'a>;
    let tokenize = |path: &Path| -> headscope::Result<()> {
        let (tokenizer, size) = Model::open_tokenizer(path, &mut |_| true)?;
        tokenizer
            .encode("ab <s> ab\u{301} 数 1234\n", size, Bos::On)
            .map(|_| ())
    };
    let map = |name: &str, bytes: &[u8]| -> headscope::Result<()> {
        std::fs::write(at(name), bytes).unwrap();
        let options = PatternOptions {
            sinks: Some(1),
            recent: Some(4),
            ..PatternOptions::default()
        };
        read_map(&at(name), (2, 2), options).map(|_| ())
    };
    let mut targets: Vec<(&str, Vec<u8>, Open<'_>)> = vec![
        (
            "config.json",
            config.clone(),
            Box::new(|bytes| {
                in_folder(bytes, &weights);
                Model::open_without_tokenizer(&at("m")).map(|_| ())
            }),
        ),
        (
            "model.safetensors",
            weights.clone(),
            Box::new(|bytes| {
                in_folder(&config, bytes);
                Model::open_without_tokenizer(&at("m")).map(|_| ())
            }),
        ),
        (
            "tokenizer.json",
            tokenizer,
            Box::new(|bytes| {
                std::fs::write(at("tokenizer.json"), bytes).unwrap();
                tokenize(&at("tokenizer.json"))
            }),
        ),
        (
            "windows.json",
            windows.to_vec(),
            Box::new(|bytes| map("w.json", bytes)),
        ),
        (
            "heat map",
            heat_map.to_vec(),
            Box::new(|bytes| map("w.csv", bytes)),
        ),
        (
            "head patterns",
            patterns.to_vec(),
            Box::new(|bytes| map("w.tsv", bytes)),
        ),
        (
            "controller",
            weights.clone(),
            Box::new(|bytes| {
                std::fs::write(at("c.safetensors"), bytes).unwrap();
                read_controller(&at("c.safetensors"), controller()).map(|_| ())
            }),
        ),
    ];
    for name in ["llama", "gemma2", "phi3_longrope_long", "gpt2"] {
        let bytes = read(golden(name).join("model.gguf"));
        let open: Open<'_> = Box::new(|bytes| {
            std::fs::write(at("m.gguf"), bytes).unwrap();
            Model::open_without_tokenizer(&at("m.gguf")).map(|_| ())
        });
        targets.push(("model.gguf", bytes, open));
    }
    for bytes in vocabularies() {
        let open: Open<'_> = Box::new(|bytes| {
            std::fs::write(at("v.gguf"), bytes).unwrap();
            tokenize(&at("v.gguf"))
        });
        targets.push(("vocabulary.gguf", bytes, open));
    }

    // The good files are good, but for the one that is no controller.
    for (name, good, open) in &targets {
        let refused = within_bounds(name, good.len(), || open(good));
        assert!(
            refused.is_none() || *name == "controller",
            "{name}: {refused:?}"
        );
    }
    let started = Instant::now();
    let (mut opened, mut refused) = (0u32, 0u32);
    let mut seed = 0u64;
    while started.elapsed() < Duration::from_secs(seconds) {
        let (name, good, open) = &targets[seed as usize % targets.len()];
        let bytes = mutate(good, &mut Random(seed));
        let what = format!("{name} of seed {seed}");
        match within_bounds(&what, bytes.len(), || open(&bytes)) {
            None => opened += 1,
            Some(_) => refused += 1,
        }
        seed += 1;
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > 0 && refused > 0);
}

/// The built-in tokenizer with its first 300 tokens, so that changes hit its structure.
fn small_tokenizer(json: &[u8]) -> Vec<u8> {
    let mut all: serde_json::Value = serde_json::from_slice(json).unwrap();
    let vocabulary = all["model"]["vocab"].as_object().unwrap().clone();
    let kept: serde_json::Map<_, _> = vocabulary
        .into_iter()
        .filter(|(_, id)| id.as_u64().unwrap() < 300)
        .collect();
    let merges: Vec<serde_json::Value> = all["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|merge| {
            let parts: Vec<&str> = match merge {
                serde_json::Value::String(text) => text.split(' ').collect(),
                pair => pair
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|p| p.as_str().unwrap())
                    .collect(),
            };
            kept.contains_key(&parts.concat()) && parts.iter().all(|p| kept.contains_key(*p))
        })
        .cloned()
        .collect();
    all["model"]["vocab"] = kept.into();
    all["model"]["merges"] = merges.into();
    serde_json::to_vec(&all).unwrap()
}
