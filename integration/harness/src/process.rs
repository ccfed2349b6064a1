//! Processes: run one to its end, signal one, find its children. All by number, never by name.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::warden;

/// Runs `command` to its end and gives its standard output; a failure carries the end of what it said.
pub fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("{name} could not be started"))?;
    if !output.status.success() {
        bail!("{name} ended with {}: {}", output.status, said(&output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn said(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    tail(&text, 20)
}

/// The last `lines` lines.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
}

/// Is a program of this name on the PATH?
pub fn on_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// Sends a signal to one process; a process that is gone is no error.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        kill_process(pid, signal).ok();
    }
}

/// Parent and state of a process, from /proc. `None` when it is gone.
fn parent_and_state(pid: u32) -> Option<(u32, char)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets and may hold anything, brackets too.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

/// Is the process there, and not merely waiting to be reaped?
pub fn alive(pid: u32) -> bool {
    parent_and_state(pid).is_some_and(|(_, state)| state != 'Z')
}

/// Direct children of `pid`.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|child| parent_and_state(*child).is_some_and(|(parent, _)| parent == pid))
        .collect()
}

/// SIGKILL for a process and its children: it is stopped first, so that it can neither react nor have more of them.
pub fn kill_family(pid: u32) {
    signal(pid, Signal::STOP);
    let family = children(pid);
    for child in &family {
        signal(*child, Signal::KILL);
    }
    signal(pid, Signal::KILL);
    let deadline = Instant::now() + Duration::from_secs(10);
    while family.iter().any(|child| alive(*child)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// CPU time (user and system) of a process so far; its ended and waited-for children included.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().collect();
    let ticks: u64 = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Duration::from_millis(ticks * 10))
}

/// Largest resident memory of a process so far, in bytes.
pub fn peak_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// A path that the servers' account can run: `program` itself where all may reach it, else a copy in `folder`.
pub fn reachable(program: &Path, folder: &Path) -> Result<std::path::PathBuf> {
    let mut check = Command::new("test");
    check.arg("-x").arg(program);
    crate::User::drop_root(&mut check)?;
    if check.status().is_ok_and(|status| status.success()) {
        return Ok(program.to_owned());
    }
    let name = program.file_name().context("a program needs a name")?;
    let copy = folder.join(name);
    fs::copy(program, &copy).with_context(|| format!("{} could not be copied", program.display()))?;
    crate::User::give(&copy)?;
    Ok(copy)
}

/// A child in a process group of its own, killed with all that it left behind when its owner ends.
pub struct Guard {
    child: Child,
    over: bool,
}

impl Guard {
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let child = command.process_group(0).spawn();
        let child =
            child.with_context(|| format!("{} does not start", command.get_program().to_string_lossy()))?;
        warden::watch(child.id());
        Ok(Self { child, over: false })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, once it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() && !self.over {
            self.over = true;
            warden::forget(self.child.id());
        }
        Ok(status)
    }

    pub async fn wait(&mut self, patience: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("process {} did not end within {patience:?}", self.pid());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn signal(&self, sent: Signal) {
        if !self.over {
            signal(self.child.id(), sent);
        }
    }

    /// SIGKILL for it and its group.
    pub fn kill(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // Processes that it started may live on in its group after its own end.
            kill_process_group(group, Signal::KILL).ok();
        }
        self.child.wait().ok();
        if !self.over {
            self.over = true;
            warden::forget(self.child.id());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.kill();
    }
}
