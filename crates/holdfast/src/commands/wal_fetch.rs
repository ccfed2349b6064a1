//! `wal-fetch`: Postgres's restore_command, and the prefetching process behind it.

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use holdfast_core::{Clock, Error, Result};
use holdfast_postgres::restore::{
    Patience, Session, serve,
    wal_fetch::{Fetched, exit_code, fetch},
};

use crate::{
    cli::WalFetch,
    config::LogFormat,
    logging,
    session::{Blob, FromSession},
};

pub async fn run(args: &WalFetch) -> Result<ExitCode> {
    logging::start(LogFormat::Text);
    let clock = Clock::system();
    // As restore_command gives it, it is relative to the data folder, where the server works.
    let own = absolute(&args.own)?;
    if args.serve {
        serve(&own, &FromSession, Patience::default(), clock).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let standby = Session::load(&own).is_ok_and(|session| session.standby);
    let outcome = ask(args, &own, &clock).await;
    if let Err(error) = &outcome {
        eprintln!("holdfast wal-fetch: {}", error.chain());
    }
    Ok(ExitCode::from(exit_code(&outcome, standby)))
}

async fn ask(args: &WalFetch, own: &Path, clock: &Clock) -> Result<Fetched> {
    let (Some(file), Some(path)) = (&args.file, &args.path) else {
        return Err(Error::configure("wal-fetch needs %f and %p, as restore_command gives them"));
    };
    let to = absolute(path)?;
    fetch(own, file, &to, &|| launch(own), clock).await
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|cause| Error::configure(format!("{} is no path", path.display())).because(cause))
}

/// Starts the prefetcher in a process group of its own, so that it outlives this process and is not hit by what
/// is meant for the server.
fn launch(own: &Path) -> Result<()> {
    let trouble = |cause: std::io::Error| Error::retry("the prefetcher cannot be started").because(cause);
    let session = Session::load(own)?;
    let blob = Blob::parse(&session.blob)?;
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(own.join("wal-fetch.log"))
        .map_err(trouble)?;
    let mut command = Command::new(std::env::current_exe().map_err(trouble)?);
    for (name, value) in blob.environment() {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    command
        .args(["wal-fetch", "--serve", "--own"])
        .arg(own)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0)
        .spawn()
        .map_err(trouble)?;
    Ok(())
}
