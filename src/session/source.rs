//! Where texts come from: a file, standard input, or a sample.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use super::SourceText;
use crate::{
    Error, Result,
    model::{SAMPLES, Sample},
};

/// Longest text that is read: far more tokens than a run can take.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// The sample of this name.
///
/// # Errors
/// Lists the names there are.
pub fn sample(name: &str) -> Result<&'static Sample> {
    SAMPLES.iter().find(|s| s.name == name).ok_or_else(|| {
        let names: Vec<&str> = SAMPLES.iter().map(|s| s.name).collect();
        Error::Text(format!(
            "there is no sample text \"{name}\"; there are: {}",
            names.join(", ")
        ))
    })
}

/// A text file, as UTF-8; bytes that are none become U+FFFD.
///
/// # Errors
/// When it cannot be read or is too large.
pub fn read_text(path: &Path) -> Result<String> {
    let file = std::fs::File::open(path).map_err(|e| Error::io("open", path, e))?;
    read_bounded(file, path)
}

/// Most texts that are taken from a folder.
const MAX_TEXTS: usize = 256;

/// The texts of a path: one of a file; of a folder those that end in `.txt`, `.md` or `.text`, by name.
///
/// # Errors
/// As [`read_text`]; when a folder has no text.
pub fn texts_of_path(path: &Path) -> Result<Vec<SourceText>> {
    let read = |path: &Path| -> Result<SourceText> {
        let name = path.file_name().map_or_else(
            || path.display().to_string(),
            |n| n.to_string_lossy().into_owned(),
        );
        Ok(SourceText {
            name,
            text: read_text(path)?,
        })
    };
    if !path.is_dir() {
        return Ok(vec![read(path)?]);
    }
    let entries = std::fs::read_dir(path).map_err(|e| Error::io("read", path, e))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| {
            let ending = file.extension().map(|e| e.to_ascii_lowercase());
            file.is_file() && ending.is_some_and(|e| e == "txt" || e == "md" || e == "text")
        })
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(Error::Text(format!(
            "{} has no text (.txt, .md or .text), and no config.json of a model",
            path.display()
        )));
    }
    if files.len() > MAX_TEXTS {
        return Err(Error::Text(format!(
            "{} has {} texts; at most {MAX_TEXTS} are analysed together: choose some",
            path.display(),
            files.len()
        )));
    }
    files.iter().map(|file| read(file)).collect()
}

/// Texts from what the command line names: a file, a folder, `-` for standard input, or `sample:NAME`.
///
/// # Errors
/// As [`texts_of_path`] and [`sample`].
pub fn text_sources(source: &str) -> Result<Vec<SourceText>> {
    let one = |name: &str, text: String| {
        vec![SourceText {
            name: name.to_owned(),
            text,
        }]
    };
    if let Some(name) = source.strip_prefix("sample:") {
        let sample = sample(name)?;
        return Ok(one(sample.name, sample.text.to_owned()));
    }
    if source == "-" {
        let text = read_bounded(std::io::stdin(), Path::new("standard input"))?;
        return Ok(one("standard input", text));
    }
    texts_of_path(Path::new(source))
}

fn read_bounded(from: impl std::io::Read, path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    from.take(MAX_TEXT_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io("read", path, e))?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(Error::Text(format!(
            "{} is longer than {} MiB: cut it to the part you want to look at",
            path.display(),
            MAX_TEXT_BYTES >> 20
        )));
    }
    let text = String::from_utf8_lossy(&bytes);
    // A byte-order mark is no part of the text.
    Ok(text.strip_prefix('\u{FEFF}').unwrap_or(&text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_shown_as_such_and_a_mark_in_front_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.txt");
        std::fs::write(&path, b"\xEF\xBB\xBFa \xFF\xFE b \xE6\x95").unwrap();
        assert_eq!(read_text(&path).unwrap(), "a \u{FFFD}\u{FFFD} b \u{FFFD}");
    }

    #[test]
    fn a_folder_gives_its_texts_by_name_and_an_empty_one_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let error = texts_of_path(folder.path()).unwrap_err().to_string();
        assert!(error.contains("has no text"), "{error}");
        for name in ["b.txt", "a.MD", "picture.png"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let texts = texts_of_path(folder.path()).unwrap();
        let names: Vec<&str> = texts.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a.MD", "b.txt"]);
    }
}
