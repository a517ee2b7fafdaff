//! Models by their name on the Hugging Face hub: `owner/name`, `owner/name@revision`, or one file of it,
//! `owner/name/FILE.gguf`. Files go to the hub's ordinary cache, which other programs share, and are used from there
//! without asking the network again.

use std::{
    panic::resume_unwind,
    path::{Path, PathBuf},
    time::Duration,
};

use hf_hub::{
    Cache, Repo, RepoType,
    api::{
        Progress,
        sync::{Api, ApiBuilder, ApiError, ApiRepo},
    },
};

use crate::{Error, Result, contain::contained};

/// Attempts at one file that give up only when none of them brings a byte.
const ATTEMPTS: u32 = 5;

/// A model's name on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    /// `owner/name`.
    pub repo: String,
    /// A branch, tag or commit; `main` if there is none.
    pub revision: Option<String>,
    /// One GGUF file of it.
    pub file: Option<String>,
}

impl HubName {
    /// Reads a name; `None` for what cannot be one.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, revision) = match text.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (text, None),
        };
        let is_plain = |part: &str| {
            (1..=96).contains(&part.len())
                && part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
                && !part.contains("..")
        };
        let mut parts = name.splitn(3, '/');
        let (owner, model, file) = (parts.next()?, parts.next()?, parts.next());
        let is_file = |file: &str| {
            file.to_ascii_lowercase().ends_with(".gguf") && file.split('/').all(is_plain)
        };
        (is_plain(owner)
            && is_plain(model)
            && file.is_none_or(is_file)
            && revision.is_none_or(|r| r.split('/').all(is_plain)))
        .then(|| Self {
            repo: format!("{owner}/{model}"),
            revision: revision.map(str::to_owned),
            file: file.map(str::to_owned),
        })
    }

    fn repo(&self) -> Repo {
        match &self.revision {
            Some(revision) => {
                Repo::with_revision(self.repo.clone(), RepoType::Model, revision.clone())
            }
            None => Repo::model(self.repo.clone()),
        }
    }
}

impl std::fmt::Display for HubName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.repo)?;
        if let Some(file) = &self.file {
            write!(f, "/{file}")?;
        }
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        Ok(())
    }
}

/// Where the hub is, and how it knows the user.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// Where files are kept.
    pub cache: PathBuf,
    /// Another server than the hub itself.
    pub endpoint: Option<String>,
    /// What lets the user in to private and gated models.
    pub token: Option<String>,
    /// Use only what is there.
    pub offline: bool,
}

impl HubSettings {
    /// As the hub's other programs read them: `HF_HUB_CACHE` or `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN` or the file that
    /// `hf auth login` writes, and `HF_HUB_OFFLINE`.
    pub fn from_env() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
        let home = Cache::from_env();
        let cache = set("HF_HUB_CACHE").map_or_else(|| home.path().clone(), PathBuf::from);
        Self {
            cache,
            endpoint: set("HF_ENDPOINT").map(|e| e.trim_end_matches('/').to_owned()),
            token: set("HF_TOKEN")
                .map(|t| t.trim().to_owned())
                .or_else(|| home.token()),
            offline: set("HF_HUB_OFFLINE").is_some_and(|v| {
                matches!(v.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
            }),
        }
    }
}

/// How far a download is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubProgress {
    /// The file.
    pub file: String,
    /// Which file it is, of how many.
    pub number: (usize, usize),
    /// Bytes of it that are here.
    pub done_bytes: u64,
    /// Its bytes.
    pub total_bytes: u64,
}

/// Told of every piece that arrives; `false` ends the download, which can be resumed.
pub type OnProgress<'a> = &'a mut dyn FnMut(HubProgress) -> bool;

/// Gets a model's files, from the cache where they are there. Gives the folder, or the GGUF file.
///
/// # Errors
/// One sentence: no such model, no leave to read it, no network, not a format that is read;
/// [`Error::Cancelled`] when `progress` says so. What has arrived stays, and is gone on with the next time.
pub fn fetch(name: &HubName, settings: &HubSettings, progress: OnProgress<'_>) -> Result<PathBuf> {
    if let Some(found) = cached(name, settings) {
        return Ok(found);
    }
    if settings.offline {
        return Err(Error::Hub(format!(
            "{name} is not in {} as a whole, and the network is not to be used (HF_HUB_OFFLINE)",
            settings.cache.display()
        )));
    }
    let api = api(settings).map_err(|e| explain(name, None, &e))?;
    let repo = api.repo(name.repo());
    let info = guarded(|| repo.info()).map_err(|failure| failure.explain(name, None))?;
    let files: Vec<&str> = info.siblings.iter().map(|s| s.rfilename.as_str()).collect();
    let wanted = wanted(name, &files)?;
    let mut download = Download {
        name,
        repo: &repo,
        api: &api,
        settings,
        progress,
    };
    let mut paths = download.all(&wanted)?;
    // Shards are known once their index is here.
    if wanted.iter().any(|w| w == INDEX) {
        let folder = paths
            .last()
            .and_then(|p| p.parent())
            .unwrap_or(Path::new("."))
            .to_owned();
        let shards = super::weights::find_safetensors(&folder)?;
        let names: Vec<String> = shards
            .iter()
            .filter_map(|p| Some(p.file_name()?.to_string_lossy().into_owned()))
            .collect();
        paths = download.all(&names)?;
    }
    cached(name, settings)
        .or_else(|| paths.pop())
        .ok_or_else(|| {
            Error::Hub(format!(
                "{name} changed on the hub while it was fetched: try again"
            ))
        })
}

const INDEX: &str = "model.safetensors.index.json";

/// The files to get, of those there are.
fn wanted(name: &HubName, files: &[&str]) -> Result<Vec<String>> {
    let has = |file: &str| files.contains(&file);
    let refuse = |message: String| Err(Error::Hub(format!("{name} {message}")));
    let ggufs: Vec<&str> = files
        .iter()
        .copied()
        .filter(|f| f.to_ascii_lowercase().ends_with(".gguf"))
        .collect();
    if let Some(file) = &name.file {
        if has(file) {
            return Ok(vec![file.clone()]);
        }
        return refuse(format!(
            "does not exist; its repository has: {}",
            list(&ggufs)
        ));
    }
    if has("config.json") && (has("model.safetensors") || has(INDEX)) {
        let mut wanted = vec!["config.json".to_owned()];
        if !has("tokenizer.json") {
            return refuse(
                "has no tokenizer.json: save its tokenizer with transformers, from AutoTokenizer"
                    .to_owned(),
            );
        }
        wanted.push("tokenizer.json".to_owned());
        // The weights last: what is wrong with the rest shows before the long wait.
        let weights = if has("model.safetensors") {
            "model.safetensors"
        } else {
            INDEX
        };
        wanted.push(weights.to_owned());
        return Ok(wanted);
    }
    if !ggufs.is_empty() {
        let first = ggufs.first().copied().unwrap_or_default();
        return refuse(format!(
            "holds GGUF files: name one, as {}/{first}; there are: {}",
            name.repo,
            list(&ggufs)
        ));
    }
    if files
        .iter()
        .any(|f| f.ends_with(".bin") || f.ends_with(".pt") || f.ends_with(".pth"))
    {
        return refuse(
            "has only pickled weights, which may run code and are not opened; convert them with transformers: \
             model.save_pretrained(folder, safe_serialization=True)"
                .to_owned(),
        );
    }
    refuse("is not a model that is read: it has no config.json with model.safetensors, and no GGUF file".to_owned())
}

fn list(files: &[&str]) -> String {
    const SHOWN: usize = 12;
    match files.len() {
        0 => "no GGUF file".to_owned(),
        n if n > SHOWN => format!("{} and {} more", files[..SHOWN].join(", "), n - SHOWN),
        _ => files.join(", "),
    }
}

/// The folder or file in the cache, where all of it is there.
fn cached(name: &HubName, settings: &HubSettings) -> Option<PathBuf> {
    let cache = Cache::new(settings.cache.clone()).repo(name.repo());
    let snapshot = |file: &str| -> Option<PathBuf> {
        cache.get(file).or_else(|| {
            // A commit has no reference of its own.
            let path = cache.pointer_path(name.revision.as_deref()?).join(file);
            path.exists().then_some(path)
        })
    };
    if let Some(file) = &name.file {
        return snapshot(file);
    }
    let folder = snapshot("config.json")?.parent()?.to_owned();
    let shards = super::weights::find_safetensors(&folder).ok()?;
    (folder.join("tokenizer.json").exists() && shards.iter().all(|s| s.exists())).then_some(folder)
}

fn api(settings: &HubSettings) -> std::result::Result<Api, ApiError> {
    let mut builder = ApiBuilder::new()
        .with_cache_dir(settings.cache.clone())
        .with_token(settings.token.clone())
        .with_progress(false)
        // A retry within the library starts a resumed file again from its beginning, on top of what is there.
        .with_retries(0)
        .with_user_agent("headscope", env!("CARGO_PKG_VERSION"));
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    builder.build()
}

/// Why something of the hub's failed.
enum Failure {
    Api(ApiError),
    Cancelled,
    /// The library met an answer that it did not expect.
    Stumbled,
}

impl Failure {
    fn explain(&self, name: &HubName, file: Option<&str>) -> Error {
        match self {
            Self::Api(error) => explain(name, file, error),
            Self::Cancelled => Error::Cancelled,
            Self::Stumbled => Error::Hub(format!(
                "the server's answer about {name} is not that of a model hub: check HF_ENDPOINT"
            )),
        }
    }
}

/// Carried up through the library, which has no way to stop a download.
struct Stop;

/// Runs a call of the library, which may be ended by [`Stop`].
fn guarded<T>(
    call: impl FnOnce() -> std::result::Result<T, ApiError>,
) -> std::result::Result<T, Failure> {
    match contained(call) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Failure::Api(error)),
        Err(payload) if payload.is::<Stop>() => Err(Failure::Cancelled),
        Err(_) => Err(Failure::Stumbled),
    }
}

/// The status of the answer, where there was one.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(code) => Some(code),
            _ => None,
        },
        _ => None,
    }
}

fn explain(name: &HubName, file: Option<&str>, error: &ApiError) -> Error {
    let what = file.map_or_else(|| name.to_string(), |file| format!("{file} of {name}"));
    Error::Hub(match status(error) {
        Some(401 | 403) => format!(
            "{what} may not be read: it is private or gated, or does not exist; accept its terms on its page and log \
             in with `hf auth login`, or set HF_TOKEN"
        ),
        Some(404) => format!("{what} does not exist on the hub: check its name and revision"),
        Some(429) => {
            "the hub takes no more requests for now: wait some minutes, or log in".to_owned()
        }
        Some(code) if code >= 500 => {
            format!("the hub fails at the moment (it answered {code}): try {what} again later")
        }
        Some(code) => format!("the hub refused {what} (it answered {code})"),
        None => format!(
            "{what} could not be fetched ({error}): check the network; what has arrived is kept, and gone on with"
        ),
    })
}

struct Download<'a> {
    name: &'a HubName,
    repo: &'a ApiRepo,
    api: &'a Api,
    settings: &'a HubSettings,
    progress: OnProgress<'a>,
}

impl Download<'_> {
    fn all(&mut self, files: &[String]) -> Result<Vec<PathBuf>> {
        let count = files.len();
        files
            .iter()
            .enumerate()
            .map(|(index, file)| self.file(file, (index + 1, count)))
            .collect()
    }

    /// One file, over again while that brings more of it.
    fn file(&mut self, file: &str, number: (usize, usize)) -> Result<PathBuf> {
        let cache = Cache::new(self.settings.cache.clone()).repo(self.name.repo());
        if let Some(path) = cache.get(file) {
            return Ok(path);
        }
        let (mut failures, mut most) = (0, 0);
        loop {
            let mut state = State {
                now: HubProgress {
                    file: file.to_owned(),
                    number,
                    done_bytes: 0,
                    total_bytes: 0,
                },
                report: &mut *self.progress,
            };
            let outcome = guarded(|| self.repo.download_with_progress(file, Forward(&mut state)));
            let (done, total) = (state.now.done_bytes, state.now.total_bytes);
            let failure = match outcome {
                Ok(path) => {
                    let length = std::fs::metadata(&path).map_or(0, |m| m.len());
                    if length == total {
                        return Ok(path);
                    }
                    // A connection may end early and look like an end.
                    self.discard(file, &path);
                    Failure::Api(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into())
                }
                Err(failure) => failure,
            };
            let is_final = match &failure {
                Failure::Api(error) => match status(error) {
                    // More is here than there should be: begin again.
                    Some(416) => {
                        self.discard_part(file);
                        false
                    }
                    Some(code) => code < 500,
                    None => {
                        if matches!(error, ApiError::InvalidResume) {
                            self.discard_part(file);
                        }
                        false
                    }
                },
                Failure::Cancelled | Failure::Stumbled => true,
            };
            if is_final {
                return Err(failure.explain(self.name, Some(file)));
            }
            // Attempts that bring something are not counted.
            failures = if done > most { 1 } else { failures + 1 };
            most = most.max(done);
            if failures >= ATTEMPTS {
                return Err(failure.explain(self.name, Some(file)));
            }
            tracing::debug!("{file}: attempt {failures} failed at byte {done}");
            std::thread::sleep(Duration::from_millis(50 << (2 * failures)));
        }
    }

    /// Removes a file of the wrong length, and what it points to.
    fn discard(&self, file: &str, path: &Path) {
        if let Ok(blob) = path.canonicalize() {
            // What is not there need not go.
            let _ = std::fs::remove_file(blob);
        }
        let _ = std::fs::remove_file(path);
        self.discard_part(file);
    }

    /// Removes what has arrived of a file.
    fn discard_part(&self, file: &str) {
        let Ok(metadata) = guarded(|| self.api.metadata(&self.repo.url(file))) else {
            return;
        };
        let cache = Cache::new(self.settings.cache.clone()).repo(self.name.repo());
        let part = cache.blob_path(metadata.etag()).with_extension("part");
        let _ = std::fs::remove_file(part);
    }
}

struct State<'a> {
    now: HubProgress,
    report: OnProgress<'a>,
}

/// Passes the library's news on.
struct Forward<'a, 'b>(&'a mut State<'b>);

impl Progress for Forward<'_, '_> {
    fn init(&mut self, size: usize, _filename: &str) {
        self.0.now.total_bytes = size as u64;
        self.0.now.done_bytes = 0;
    }

    fn update(&mut self, size: usize) {
        self.0.now.done_bytes += size as u64;
        if !(self.0.report)(self.0.now.clone()) {
            resume_unwind(Box::new(Stop));
        }
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_paths() {
        let parse = |text: &str| HubName::parse(text).map(|n| n.to_string());
        for name in [
            "Qwen/Qwen3-0.6B",
            "Qwen/Qwen3-0.6B@main",
            "Qwen/Qwen3-0.6B@refs/pr/5",
            "ggml-org/models/tiny/stories.Q4_0.gguf",
            "a/b/c.gguf@v1.0",
        ] {
            assert_eq!(parse(name).as_deref(), Some(name));
        }
        for other in [
            "gpt2",
            "./a/b",
            "/a/b",
            "a/../b",
            "../b",
            "a/b/c",
            "a/b/",
            "a//b",
            "a b/c",
            "a/b@",
            "a/b@../x",
            "a/b/../c.gguf",
            "C:\\models\\x",
            "",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn what_to_fetch_is_chosen_or_refused_in_a_sentence() {
        let name = HubName::parse("o/m").unwrap();
        let chosen = wanted(
            &name,
            &[
                "config.json",
                "tokenizer.json",
                "model.safetensors",
                "x.bin",
            ],
        );
        assert_eq!(
            chosen.unwrap(),
            ["config.json", "tokenizer.json", "model.safetensors"]
        );
        let refusal = |files: &[&str]| wanted(&name, files).unwrap_err().to_string();
        assert!(refusal(&["config.json", "pytorch_model.bin"]).contains("pickled"));
        assert!(refusal(&["q4.gguf", "q8.gguf"]).contains("o/m/q4.gguf"));
        assert!(refusal(&["config.json", "model.safetensors"]).contains("no tokenizer.json"));
        assert!(refusal(&["README.md"]).contains("not a model"));
        let file = HubName::parse("o/m/q4.gguf").unwrap();
        assert_eq!(wanted(&file, &["q4.gguf"]).unwrap(), ["q4.gguf"]);
        let error = wanted(&file, &["q8.gguf"]).unwrap_err().to_string();
        assert!(error.contains("does not exist") && error.contains("q8.gguf"));
    }
}
