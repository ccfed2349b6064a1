//! Fetches every server that the tests need and names what cannot be had: the first thing `cargo test-all` runs once
//! everything is built.

use std::process::ExitCode;

use holdfast_harness::{Major, Weed, postgres::debian_bin};

fn main() -> ExitCode {
    let mut whole = true;
    let mut say = |name: String, result: anyhow::Result<std::path::PathBuf>| match result {
        Ok(path) => println!("have {name} at {}", path.display()),
        Err(cause) => {
            whole = false;
            println!("{cause:#}");
        }
    };
    for major in Major::ALL {
        say(format!("Postgres {major}"), major.bin());
    }
    say("Debian's Postgres 15 with its tools".to_owned(), debian_bin());
    say("SeaweedFS".to_owned(), Weed::program());
    if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
