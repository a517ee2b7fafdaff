//! Tokenizers out of GGUF files alone, against the ids that were published with them.
//!
//! A folder of vocabularies has, for `NAME.gguf`, the strings in `NAME.gguf.inp` and the ids in `NAME.gguf.out`. Folders
//! come from `HEADSCOPE_VOCAB_DIRS` (separated by `:`), which `.ci/run` sets to what it fetched.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};

use headscope::model::{Bos, Model};

/// Between two strings.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

fn folders() -> Vec<PathBuf> {
    let given = std::env::var_os("HEADSCOPE_VOCAB_DIRS").unwrap_or_default();
    std::env::split_paths(&given)
        .filter(|folder| folder.is_dir())
        .collect()
}

/// What became of one file.
enum Outcome {
    /// So many strings gave the published ids.
    Same(usize),
    /// There is nothing to compare, or the file is of a kind that is not read.
    Skipped(String),
}

/// Compares with the vocabulary at `path` the strings and ids beside `strings_at`.
fn check(path: &Path, strings_at: &Path) -> Outcome {
    let beside = |ending: &str| {
        let name = strings_at
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        std::fs::read_to_string(strings_at.with_file_name(name + ending)).ok()
    };
    let (Some(inputs), Some(outputs)) = (beside(".inp"), beside(".out")) else {
        return Outcome::Skipped("no strings or no ids beside it".to_owned());
    };
    let (tokenizer, vocab_size) = match Model::open_tokenizer(path, &mut |_| true) {
        Ok(opened) => opened,
        Err(error) => return Outcome::Skipped(error.to_string()),
    };
    let mut strings: Vec<&str> = inputs.split(SEPARATOR).collect();
    // The last string ends with the file's last separator, too.
    if strings.last().is_some_and(|s| s.trim().is_empty()) {
        strings.pop();
    }
    let expected: Vec<Vec<u32>> = outputs
        .lines()
        .map(|line| {
            line.split_whitespace()
                .map(|id| id.parse().unwrap())
                .collect()
        })
        .collect();
    assert_eq!(strings.len(), expected.len(), "{}", path.display());
    for (string, want) in strings.iter().zip(&expected) {
        let got = tokenizer.encode(string, vocab_size, Bos::Off).unwrap();
        assert_eq!(&got.ids, want, "{}: {string:?}", path.display());
    }
    // Every text is covered by its tokens, whatever script it is in.
    for text in SCRIPTS.iter().chain(&strings) {
        let tokens = tokenizer.encode(text, vocab_size, Bos::Off).unwrap();
        let clusters = tokens.clusters().iter();
        let joined: String = clusters
            .filter(|c| !c.bytes.is_empty())
            .map(|c| tokens.cluster_text(c))
            .collect();
        assert_eq!(&joined, text, "{}", path.display());
    }
    Outcome::Same(strings.len())
}

const SCRIPTS: [&str; 6] = [
    "let mut x = vec![0; 16];\n\t// tab\r\n",
    "数学は楽しい。한국어 中文",
    "👩‍👩‍👧 🏳️‍🌈 👍🏽",
    "e\u{301}a\u{308}\u{323} and \u{301} alone",
    "שלום עולם, مرحبا",
    "no UTF-8: \u{FFFD}",
];

/// A vocabulary of the same name in another folder, for one that was damaged on its way.
fn namesake(path: &Path, folders: &[PathBuf]) -> Option<PathBuf> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    folders
        .iter()
        .map(|folder| folder.join(format!("ggml-vocab-{name}")))
        .find(|other| other.exists())
}

#[test]
#[ignore = "needs published vocabularies: set HEADSCOPE_VOCAB_DIRS to their folders"]
fn published_ids() {
    let folders = folders();
    let mut compared = 0;
    for folder in &folders {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "gguf"))
            .collect();
        paths.sort();
        for path in paths {
            let mut outcome = check(&path, &path);
            let mut used = path.clone();
            if let (Outcome::Skipped(why), Some(whole)) = (&outcome, namesake(&path, &folders)) {
                println!("{why}; its strings go with {}", whole.display());
                outcome = check(&whole, &path);
                used = whole;
            }
            match outcome {
                Outcome::Same(strings) => {
                    println!(
                        "same ids: {strings} strings of {} with {}",
                        path.display(),
                        used.display()
                    );
                    compared += 1;
                }
                Outcome::Skipped(why) => println!("skipped: {}: {why}", path.display()),
            }
        }
    }
    assert!(
        compared > 0,
        "no vocabulary with strings and ids in {folders:?}"
    );
}
