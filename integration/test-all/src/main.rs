//! `cargo test-all`: format, lints, every test of the workspace on real servers, and the demo; then a table of the
//! steps and a plain list of what this machine does not have. The exit code is 0 only when every step held.

#![allow(clippy::disallowed_methods, reason = "a command line tool that lives in real time")]

mod report;
mod step;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use report::Report;
use step::Step;

/// A step that prints nothing for so long hangs.
const SILENCE: Duration = Duration::from_secs(15 * 60);

fn main() -> ExitCode {
    let Some(built) = std::env::current_exe().ok().and_then(|path| path.parent().map(PathBuf::from)) else {
        eprintln!("test-all: the folder of the built programs is not known");
        return ExitCode::FAILURE;
    };
    let quick = std::env::args().any(|argument| argument == "--quick");
    let mut report = Report::default();
    report.add(Step::cargo("format", &["fmt", "--all", "--check"]).needs_component("rustfmt").run());
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    report.add(Step::cargo("lints", &clippy).needs_component("clippy").run());
    // Programs and tests in one call, so that both are built with one set of features.
    let build = report.add(Step::cargo("build", &["build", "--workspace", "--bins", "--tests"]).run());
    if build && !quick {
        // What the tests need is fetched once, before them, and named when it cannot be had.
        report.add(Step::program("servers", &built.join("fetch"), &[]).run());
        let holdfast = built.join("holdfast");
        let tests = ["test", "--workspace", "--no-fail-fast"];
        report.add_tests(Step::cargo("tests", &tests).env("HOLDFAST_BIN", &holdfast).run());
        report.add(Step::program("demo", &built.join("demo"), &[]).env("HOLDFAST_BIN", &holdfast).run());
    }
    report.print();
    if report.held() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
