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

/// Number of strings that were compared, or why none could be.
fn check(path: &Path) -> Result<usize, String> {
    let beside = |ending: &str| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        std::fs::read_to_string(path.with_file_name(name + ending)).ok()
    };
    let (Some(inputs), Some(outputs)) = (beside(".inp"), beside(".out")) else {
        return Err("no strings or no ids beside it".to_owned());
    };
    let (tokenizer, vocab_size) = Model::open_tokenizer(path).map_err(|e| e.to_string())?;
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
    Ok(strings.len())
}

#[test]
fn published_ids() {
    let mut compared = Vec::new();
    let mut skipped = Vec::new();
    for folder in folders() {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
            .unwrap()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "gguf"))
            .collect();
        paths.sort();
        for path in paths {
            match check(&path) {
                Ok(strings) => compared.push(format!("{}: {strings} strings", path.display())),
                Err(why) => skipped.push(format!("{}: {why}", path.display())),
            }
        }
    }
    for line in &compared {
        println!("same ids: {line}");
    }
    for line in &skipped {
        println!("skipped: {line}");
    }
    if compared.is_empty() {
        println!("skipped: no vocabularies in HEADSCOPE_VOCAB_DIRS");
    }
}
