//! Where the `holdfast` program is: what `test-all` built, else what cargo builds now.

use std::{path::PathBuf, process::Command, sync::OnceLock};

use anyhow::{Context, Result, bail};
use holdfast_harness::process;

/// The program to test. `HOLDFAST_BIN` names it; otherwise cargo builds it, in the profile that we were built in.
pub fn program() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    if let Some(path) = std::env::var_os("HOLDFAST_BIN") {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("HOLDFAST_BIN names {}, which is not there", path.display());
        }
        return Ok(path);
    }
    BUILT.get_or_init(|| build().map_err(|cause| format!("{cause:#}"))).clone().map_err(anyhow::Error::msg)
}

fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "holdfast", "--manifest-path"]);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    process::run(&mut command).context("holdfast could not be built")?;
    let own = std::env::current_exe()?;
    // Tests lie in `deps` below the folder of the programs.
    own.ancestors()
        .map(|folder| folder.join("holdfast"))
        .find(|path| path.is_file())
        .context("holdfast was built, but not into a folder above this program")
}
