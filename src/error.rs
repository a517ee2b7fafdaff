//! The library's one error type: each message says what failed, where, and what to do about it.

use std::path::{Path, PathBuf};

/// Everything that can go wrong in the library.
///
/// Messages are sentences for the person who uses the program; [`Error::Cancelled`] is never shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb: "read", "write".
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A model's configuration is missing, malformed, or asks for what is not supported.
    #[error("{origin}: {message}")]
    Config {
        /// The file, or "built-in model".
        origin: String,
        /// What is wrong, and what to do.
        message: String,
    },
    /// A model's weights are missing, malformed, or do not fit the configuration.
    #[error("{origin}: {message}")]
    Weights {
        /// The file, or "built-in model".
        origin: String,
        /// What is wrong, and what to do.
        message: String,
    },
    /// A tokenizer cannot be used.
    #[error("{origin}: {message}")]
    Tokenizer {
        /// The file, or "built-in model".
        origin: String,
        /// What is wrong, and what to do.
        message: String,
    },
    /// A model could not be fetched from the hub.
    #[error("{0}")]
    Hub(String),
    /// A text cannot be analysed.
    #[error("{0}")]
    Text(String),
    /// A window map cannot be used.
    #[error("{0}")]
    Windows(String),
    /// The graphics device failed, or there is none.
    #[error("{0}")]
    Gpu(String),
    /// A tensor operation failed.
    #[error("the computation failed: {0}")]
    Compute(#[from] candle_core::Error),
    /// A newer request made this one obsolete.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// An [`Error::Io`].
    pub fn io(doing: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io {
            doing,
            path: path.to_owned(),
            source,
        }
    }
}

/// The library's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
