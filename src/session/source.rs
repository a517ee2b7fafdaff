//! Where texts come from: a file, standard input, or a sample.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

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

/// A text from what the command line names: a file, `-` for standard input, or `sample:NAME`. Gives its name too.
///
/// # Errors
/// As [`read_text`] and [`sample`].
pub fn text_source(source: &str) -> Result<(String, String)> {
    if let Some(name) = source.strip_prefix("sample:") {
        let sample = sample(name)?;
        return Ok((sample.name.to_owned(), sample.text.to_owned()));
    }
    if source == "-" {
        let text = read_bounded(std::io::stdin(), Path::new("standard input"))?;
        return Ok(("standard input".to_owned(), text));
    }
    let path = PathBuf::from(source);
    let name = path
        .file_name()
        .map_or_else(|| source.to_owned(), |n| n.to_string_lossy().into_owned());
    Ok((name, read_text(&path)?))
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
