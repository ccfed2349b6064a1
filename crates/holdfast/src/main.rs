//! The binary: settings, commands, metrics and the wiring of sources, pipeline and sink. The path of a batch
//! is on one page in docs/architecture.md.

mod bounds;
mod cli;
mod commands;
mod config;
mod control;
mod holding;
mod keys;
mod logging;
mod memory;
mod metrics;
mod output;
mod reading;
mod session;
mod sources;
mod state;
mod status_page;
mod store;
mod supervision;
mod watchdog;

use std::process::ExitCode;

use clap::Parser;
use holdfast_core::Act;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let wal_fetch = matches!(cli.command, cli::Command::WalFetch(_));
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("holdfast: {}", error.chain());
            // An unknown trouble must never look to Postgres like the end of the archive (issue E1).
            if wal_fetch { ExitCode::from(126) } else { exit_code(error.act()) }
        }
    }
}

/// As documented in the help text.
fn exit_code(act: Act) -> ExitCode {
    ExitCode::from(match act {
        Act::Bug => 1,
        Act::Configure => 2,
        Act::Unreachable => 3,
        Act::Fenced | Act::LostLineage => 4,
        Act::Corrupt => 5,
        Act::Retry | Act::SlowDown => 6,
    })
}
