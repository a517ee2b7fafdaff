//! Models by name, from a small server of this test's own on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use headscope::model::{HubName, HubSettings, Model, fetch};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the server saw of one request.
#[derive(Clone, Debug)]
struct Seen {
    path: String,
    /// First byte asked for.
    start: usize,
    token: Option<String>,
}

struct Hub {
    endpoint: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// How many answers about weights are cut short from now on.
    cuts: Arc<AtomicUsize>,
}

impl Hub {
    /// Serves `tiny/model`; `tiny/gated` wants a token, `tiny/broken` fails, others do not exist.
    fn start(files: HashMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (seen, cuts) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let hub = Self {
            endpoint,
            seen: Arc::clone(&seen),
            cuts: Arc::clone(&cuts),
        };
        let files = Arc::new(files);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (files, seen, cuts) = (files.clone(), Arc::clone(&seen), cuts.clone());
                std::thread::spawn(move || answer(stream, &files, &seen, &cuts));
            }
        });
        hub
    }

    fn settings(&self, cache: &Path) -> HubSettings {
        HubSettings {
            cache: cache.join("hub"),
            endpoint: Some(self.endpoint.clone()),
            token: None,
            offline: false,
        }
    }

    fn requests(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn answer(
    mut stream: TcpStream,
    files: &HashMap<String, Vec<u8>>,
    seen: &Mutex<Vec<Seen>>,
    cuts: &AtomicUsize,
) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(first)) = lines.next() else {
        return;
    };
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = HashMap::new();
    for line in lines.map_while(Result::ok).take_while(|l| !l.is_empty()) {
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    let range = headers.get("range").and_then(|r| r.strip_prefix("bytes="));
    let (start, end) = range.and_then(|r| r.split_once('-')).unwrap_or(("0", ""));
    let start: usize = start.parse().unwrap_or(0);
    let token = headers.get("authorization").cloned();
    seen.lock().unwrap().push(Seen {
        path: path.clone(),
        start,
        token: token.clone(),
    });
    let mut send = |status: &str, extra: &str, body: &[u8], length: usize| {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{extra}\r\n"
        );
        // A client that has gone away is no failure of the server's.
        let _ = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body));
    };
    let mut plain = |status: &str, body: &str| send(status, "", body.as_bytes(), body.len());
    if path.contains("tiny/gated") && token.as_deref() != Some("Bearer secret") {
        return plain("401 Unauthorized", "no");
    }
    if path.contains("tiny/broken") {
        return plain("503 Service Unavailable", "no");
    }
    let is_known = path.contains("tiny/model") || path.contains("tiny/gated");
    if !is_known || path.contains("/nowhere") {
        return plain("404 Not Found", "no");
    }
    if path.starts_with("/api/models/") {
        let siblings: Vec<String> = files
            .keys()
            .map(|f| format!("{{\"rfilename\": \"{f}\"}}"))
            .collect();
        let body = format!(
            "{{\"sha\": \"{COMMIT}\", \"siblings\": [{}]}}",
            siblings.join(",")
        );
        return plain("200 OK", &body);
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    let Some(body) = files.get(name) else {
        return plain("404 Not Found", "no");
    };
    if start >= body.len() {
        return plain("416 Range Not Satisfiable", "no");
    }
    let end = end
        .parse()
        .map_or(body.len(), |e: usize| (e + 1).min(body.len()));
    let part = &body[start..end];
    let extra = format!(
        "ETag: \"etag-{name}\"\r\nX-Repo-Commit: {COMMIT}\r\nContent-Range: bytes {start}-{}/{}\r\n",
        end - 1,
        body.len()
    );
    // The connection is dropped after half of what is left.
    let is_cut = name.ends_with(".safetensors")
        && part.len() > 1
        && cuts
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
            .is_ok();
    let sent = if is_cut {
        &part[..part.len() / 2]
    } else {
        part
    };
    send("206 Partial Content", &extra, sent, part.len());
}

fn golden() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models/llama")
}

fn tiny_model() -> HashMap<String, Vec<u8>> {
    let read = |path: &Path| std::fs::read(path).unwrap();
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/built-in-model");
    HashMap::from([
        (
            "config.json".to_owned(),
            read(&golden().join("config.json")),
        ),
        (
            "model.safetensors".to_owned(),
            read(&golden().join("model.safetensors")),
        ),
        (
            "tokenizer.json".to_owned(),
            read(&assets.join("tokenizer.json")),
        ),
    ])
}

fn name(text: &str) -> HubName {
    HubName::parse(text).unwrap()
}

#[test]
fn a_model_comes_with_progress_and_stays_for_use_without_the_network() {
    let hub = Hub::start(tiny_model());
    let cache = tempfile::tempdir().unwrap();
    let settings = hub.settings(cache.path());
    let mut last = None;
    let mut files = Vec::new();
    let folder = fetch(&name("tiny/model"), &settings, &mut |p| {
        assert!(p.done_bytes <= p.total_bytes && p.number.1 == 3);
        files.push(p.file.clone());
        last = Some(p);
        true
    })
    .unwrap();
    files.dedup();
    assert_eq!(
        files,
        ["config.json", "tokenizer.json", "model.safetensors"]
    );
    let last = last.unwrap();
    assert_eq!(last.done_bytes, last.total_bytes);
    let model = Model::open(&folder).unwrap();
    assert_eq!(model.spec.n_layers, 2);
    assert!(folder.ends_with(format!("models--tiny--model/snapshots/{COMMIT}")));

    let before = hub.requests().len();
    let offline = HubSettings {
        offline: true,
        ..settings
    };
    let go = &mut |_| true;
    assert_eq!(fetch(&name("tiny/model"), &offline, go).unwrap(), folder);
    let by_commit = name(&format!("tiny/model@{COMMIT}"));
    assert_eq!(fetch(&by_commit, &offline, go).unwrap(), folder);
    let error = fetch(&name("tiny/other"), &offline, go)
        .unwrap_err()
        .to_string();
    assert!(error.contains("tiny/other is not in"), "{error}");
    assert_eq!(hub.requests().len(), before);
}

#[test]
fn dropped_connections_are_gone_on_with() {
    let hub = Hub::start(tiny_model());
    let cache = tempfile::tempdir().unwrap();
    hub.cuts.store(3, Ordering::SeqCst);
    let folder = fetch(
        &name("tiny/model@v1"),
        &hub.settings(cache.path()),
        &mut |_| true,
    )
    .unwrap();
    assert_eq!(
        std::fs::read(folder.join("model.safetensors")).unwrap(),
        tiny_model()["model.safetensors"]
    );
    let starts: Vec<usize> = hub
        .requests()
        .iter()
        .filter(|r| r.path.ends_with("resolve/v1/model.safetensors"))
        .map(|r| r.start)
        .filter(|&start| start > 0)
        .collect();
    assert_eq!(starts.len(), 3, "{starts:?}");
    assert!(starts.is_sorted());
}

#[test]
fn a_cancelled_download_goes_on_where_it_stopped() {
    let hub = Hub::start(tiny_model());
    let cache = tempfile::tempdir().unwrap();
    let settings = hub.settings(cache.path());
    let outcome = fetch(&name("tiny/model"), &settings, &mut |p| {
        p.file != "model.safetensors" || p.done_bytes < 20_000
    });
    assert!(
        matches!(outcome, Err(headscope::Error::Cancelled)),
        "{outcome:?}"
    );
    let folder = fetch(&name("tiny/model"), &settings, &mut |_| true).unwrap();
    assert_eq!(
        std::fs::read(folder.join("model.safetensors")).unwrap(),
        tiny_model()["model.safetensors"]
    );
    assert!(
        hub.requests()
            .iter()
            .any(|r| r.path.ends_with("model.safetensors") && r.start > 0)
    );
}

#[test]
fn shards_follow_their_index() {
    let mut files = tiny_model();
    let whole = files.remove("model.safetensors").unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let mut names: Vec<&str> = tensors.names();
    names.sort_unstable();
    let mut map = HashMap::new();
    for (part, names) in names.chunks(names.len().div_ceil(2)).enumerate() {
        let shard = format!("model-{part}.safetensors");
        let views = names.iter().map(|n| (*n, tensors.tensor(n).unwrap()));
        files.insert(shard.clone(), safetensors::serialize(views, None).unwrap());
        map.extend(names.iter().map(|n| (n.to_string(), shard.clone())));
    }
    let index = serde_json::json!({ "weight_map": map }).to_string();
    files.insert(
        "model.safetensors.index.json".to_owned(),
        index.into_bytes(),
    );
    let hub = Hub::start(files);
    let cache = tempfile::tempdir().unwrap();
    let folder = fetch(
        &name("tiny/model"),
        &hub.settings(cache.path()),
        &mut |_| true,
    )
    .unwrap();
    assert_eq!(Model::open(&folder).unwrap().spec.hidden, 48);
}

#[test]
fn refusals_say_what_to_do() {
    let hub = Hub::start(tiny_model());
    let cache = tempfile::tempdir().unwrap();
    let settings = hub.settings(cache.path());
    let message = |text: &str| {
        fetch(&name(text), &settings, &mut |_| true)
            .unwrap_err()
            .to_string()
    };
    let gated = message("tiny/gated");
    assert!(
        gated.contains("HF_TOKEN") && gated.contains("tiny/gated"),
        "{gated}"
    );
    let missing = message("tiny/missing");
    assert!(missing.contains("does not exist on the hub"), "{missing}");
    let revision = message("tiny/model@nowhere");
    assert!(
        revision.contains("tiny/model@nowhere does not exist"),
        "{revision}"
    );
    let broken = message("tiny/broken");
    assert!(broken.contains("503"), "{broken}");
    // With the token the gate is open.
    let with_token = HubSettings {
        token: Some("secret".to_owned()),
        ..settings.clone()
    };
    fetch(&name("tiny/gated"), &with_token, &mut |_| true).unwrap();
    assert!(
        hub.requests()
            .iter()
            .any(|r| r.token.as_deref() == Some("Bearer secret"))
    );
    let nobody = HubSettings {
        endpoint: Some("http://127.0.0.1:9".to_owned()),
        ..settings
    };
    let error = fetch(&name("tiny/model"), &nobody, &mut |_| true)
        .unwrap_err()
        .to_string();
    assert!(error.contains("check the network"), "{error}");
}
