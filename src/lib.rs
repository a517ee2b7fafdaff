//! headscope: see, and reshape, how far back every attention head of a language model looks.
//!
//! The way of the data:
//!
//! ```text
//! model + text --> tokens --> engine(tokens, WindowMap) --> Run --> metrics --> views
//!                                   ^                                |
//!                                   +------ WindowMap <--- edits <---+
//! ```
//!
//! Rooms, and who may use whom: [`app`] -> [`session`] -> [`engine`] -> {[`attention`], [`model`]}. See
//! `ARCHITECTURE.md`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod aah;
pub mod app;
pub mod attention;
pub mod cli;
mod contain;
pub mod engine;
mod error;
pub mod model;
pub mod render;
pub mod session;

pub use error::{Error, Result};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
