//! Completions and man pages, generated from the command line's own description.

use std::path::Path;

use clap::CommandFactory;
use holdfast_core::{Error, Result};

use crate::cli::Cli;

pub fn completions(shell: clap_complete::Shell) -> Result<()> {
    clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut std::io::stdout());
    Ok(())
}

pub fn man(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|cause| {
        Error::configure(format!("the folder {} cannot be made", folder.display())).because(cause)
    })?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(|cause| {
        Error::configure(format!("the man pages cannot be written into {}", folder.display())).because(cause)
    })
}
