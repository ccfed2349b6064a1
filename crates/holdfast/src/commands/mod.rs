//! One file a command.

mod base_backup;
mod check;
mod generate;
mod hold;
mod init;
mod keygen;
mod list;
mod plan;
mod restore;
mod run;
mod source;
mod status;
mod verify;
mod wal_fetch;

use std::{future::Future, process::ExitCode};

use holdfast_core::{Error, Result};

use crate::{
    cli::{Cli, Command},
    config::Config,
    logging,
};

/// Carries the command out; the exit code when there is no error.
pub fn run(cli: Cli) -> Result<ExitCode> {
    let json = cli.json;
    let config = || -> Result<Config> {
        let config = Config::read(&cli.config)?;
        logging::start(config.process.log);
        Ok(config)
    };
    let done = |()| ExitCode::SUCCESS;
    match &cli.command {
        Command::Keygen(args) => keygen::run(args, json).map(done),
        Command::Init(args) => block(init::run(args, &config()?, json)).map(done),
        Command::Source(args) => block(source::run(args, &config()?, json)).map(done),
        Command::Run(args) => block(run::run(args, config()?)),
        Command::Backfill(args) => block(run::backfill(args, config()?)),
        Command::Restore(args) => block(restore::run(args, &config()?, json)).map(done),
        Command::Status(args) => block(status::run(args, &config()?, json)),
        Command::List(args) => block(list::run(args, &config()?, json)).map(done),
        Command::Check(args) => block(check::run(args, &config()?, json)),
        Command::Verify(args) => block(verify::run(args, &config()?, json)),
        Command::BaseBackup(args) => block(base_backup::run(args, &config()?)).map(done),
        Command::WalFetch(args) => block(wal_fetch::run(args)),
        Command::Hold(args) => block(hold::run(args, &config()?, json)).map(done),
        Command::Plan(args) => plan::run(args, &config()?, json).map(done),
        Command::Completions { shell } => generate::completions(*shell).map(done),
        Command::Man { folder } => generate::man(folder).map(done),
    }
}

/// Threads follow the cgroup: `available_parallelism` reads its quota.
fn block<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("holdfast")
        .enable_all()
        .build()
        .map_err(|cause| Error::retry("the process could not start its threads").because(cause))?;
    let answer = runtime.block_on(work);
    // What still runs is somebody else's connection; it must not keep a command from ending.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    answer
}
