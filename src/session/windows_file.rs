//! `windows.json`: a window map on disk.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    attention::{HeadId, Window, WindowMap},
};

const FORMAT: &str = "headscope-windows";
const VERSION: u32 = 1;

/// A window map with what is needed to judge whether it fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowsFile {
    format: String,
    version: u32,
    /// Name of the model it was made for.
    #[serde(default)]
    pub model: Option<String>,
    layers: usize,
    heads: usize,
    /// Tokens of the text it was made on.
    #[serde(default)]
    pub context: Option<usize>,
    #[serde(default)]
    sinks: usize,
    /// `[layers][heads]`, `null` for full.
    windows: Vec<Vec<Window>>,
    /// Anything.
    #[serde(default)]
    pub note: Option<String>,
}

impl WindowsFile {
    /// Around a map.
    pub fn new(map: &WindowMap, model: &str, context: usize) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            model: Some(model.to_owned()),
            layers: map.layers(),
            heads: map.heads(),
            context: Some(context),
            sinks: map.sinks,
            windows: (0..map.layers()).map(|l| map.layer(l).to_vec()).collect(),
            note: None,
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it is missing, too large, or not a map.
    pub fn read(path: &Path) -> Result<Self> {
        let text = super::map_files::read(path)?;
        Self::parse(text.as_bytes()).map_err(|message| {
            Error::Windows(format!("{} is not a window map: {message}", path.display()))
        })
    }

    /// Writes a file, whole or not at all.
    ///
    /// # Errors
    /// When the place cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = |e: std::io::Error| Error::io("write", path, e);
        let text = serde_json::to_vec(self).map_err(|e| failed(e.into()))?;
        let draft = path.with_extension("json.part");
        std::fs::write(&draft, text).map_err(failed)?;
        std::fs::rename(&draft, path).map_err(failed)
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let file: Self = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if file.format != FORMAT {
            return Err(format!(
                "its format is \"{}\", not \"{FORMAT}\"",
                file.format
            ));
        }
        if file.version > VERSION {
            return Err(format!(
                "its version is {}, this program reads up to {VERSION}; update headscope",
                file.version
            ));
        }
        if file.windows.len() != file.layers || file.windows.iter().any(|r| r.len() != file.heads) {
            return Err(format!(
                "it says {} layers of {} heads, but its rows do not have that shape",
                file.layers, file.heads
            ));
        }
        Ok(file)
    }

    /// The map in it.
    pub fn map(&self) -> WindowMap {
        let mut map = WindowMap::full(self.layers, self.heads).with_sinks(self.sinks);
        for (layer, row) in self.windows.iter().enumerate() {
            for (head, &window) in row.iter().enumerate() {
                map.set(HeadId { layer, head }, window);
            }
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut map = WindowMap::full(2, 3).with_sinks(4);
        map.set(HeadId { layer: 1, head: 0 }, Window::Last(17));
        let text = serde_json::to_vec(&WindowsFile::new(&map, "m", 100)).unwrap();
        assert_eq!(WindowsFile::parse(&text).unwrap().map(), map);
    }

    #[test]
    fn nonsense_is_refused() {
        let parse = |text: &str| WindowsFile::parse(text.as_bytes()).unwrap_err();
        let file =
            |rest: &str| format!(r#"{{"format": "headscope-windows", "version": 1, {rest}}}"#);
        assert!(parse("[]").contains("expected") || parse("[]").contains("invalid"));
        assert!(parse(&file(r#""layers": 2, "heads": 1, "windows": [[1]]"#)).contains("shape"));
        assert!(parse(&file(r#""layers": 1, "heads": 1, "windows": [[0]]"#)).contains("0 keys"));
        assert!(
            parse(r#"{"format": "x", "version": 1, "layers": 0, "heads": 0, "windows": []}"#)
                .contains("format")
        );
    }
}
