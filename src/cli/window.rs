//! The window, or its picture where there is no display.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::RunArgs;

#[derive(Debug, Args)]
pub(super) struct WindowArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Draw the window offscreen after its first complete result, save it, and exit
    #[arg(long, value_name = "FILE.png")]
    screenshot: Option<PathBuf>,
}

pub(super) fn run(args: &WindowArgs) -> Result<()> {
    let _ = args;
    Ok(())
}
