//! One step: a process whose output is shown as it comes and read along.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use crate::SILENCE;

pub struct Step {
    name: &'static str,
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
    component: Option<&'static str>,
}

/// A line of output and when it came, counted from the start of the step.
pub struct Line {
    pub at: Duration,
    pub text: String,
}

pub struct Outcome {
    pub name: &'static str,
    pub held: bool,
    pub took: Duration,
    pub lines: Vec<Line>,
    /// Why it did not hold, when its output does not say so.
    pub why: Option<String>,
}

impl Step {
    pub fn cargo(name: &'static str, arguments: &[&str]) -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Self::of(name, cargo, arguments)
    }

    pub fn program(name: &'static str, program: &Path, arguments: &[&str]) -> Self {
        Self::of(name, program.into(), arguments)
    }

    fn of(name: &'static str, program: OsString, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(Into::into).collect();
        Self { name, program, arguments, environment: Vec::new(), component: None }
    }

    pub fn env(mut self, name: &'static str, value: &Path) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// A part of the Rust toolchain that minimal installations lack.
    pub fn needs_component(mut self, component: &'static str) -> Self {
        self.component = Some(component);
        self
    }

    pub fn run(self) -> Outcome {
        println!("\n=== {} ===", self.name);
        if let Some(component) = self.component
            && let Err(why) = install(component)
        {
            return Outcome {
                name: self.name,
                held: false,
                took: Duration::ZERO,
                lines: Vec::new(),
                why: Some(why),
            };
        }
        let start = Instant::now();
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.environment).stdin(Stdio::null());
        let mut lines = Vec::new();
        let result = follow(command, start, &mut lines);
        let why = result.err();
        Outcome { name: self.name, held: why.is_none(), took: start.elapsed(), lines, why }
    }
}

/// Runs a command in a process group of its own, and ends the group when it falls silent.
fn follow(mut command: Command, start: Instant, lines: &mut Vec<Line>) -> Result<(), String> {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn();
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = child.map_err(|cause| format!("{name} could not be started: {cause}"))?;
    let (sender, receiver) = sync_channel(1024);
    if let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) {
        read_along(out, sender.clone());
        read_along(err, sender);
    }
    loop {
        match receiver.recv_timeout(SILENCE) {
            Ok(text) => {
                println!("{text}");
                lines.push(Line { at: start.elapsed(), text });
            }
            Err(RecvTimeoutError::Timeout) => {
                Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status().ok();
                child.wait().ok();
                return Err(format!(
                    "it printed nothing for {} minutes and was ended",
                    SILENCE.as_secs() / 60
                ));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("it ended with {status}")),
        Err(cause) => Err(format!("its end is not known: {cause}")),
    }
}

fn read_along(stream: impl Read + Send + 'static, lines: SyncSender<String>) {
    thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        // Bytes, not strings: one line that is no UTF-8 must not end the reading.
        while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
            if lines.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
}

fn install(component: &str) -> Result<(), String> {
    let short = if component == "rustfmt" { "fmt" } else { component };
    let quiet = |command: &mut Command| {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    };
    let there = || quiet(Command::new("cargo").args([short, "--version"]));
    if there() || quiet(Command::new("rustup").args(["component", "add", component])) && there() {
        return Ok(());
    }
    Err(format!("missing: {component}. To mend it: run `rustup component add {component}`"))
}
