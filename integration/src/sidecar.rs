//! A running `holdfast run`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use holdfast_harness::process::{self, Guard};
use rustix::process::Signal;

use crate::{Metrics, metrics::page};

/// Killed with its owner.
pub struct Sidecar {
    guard: Guard,
    port: u16,
    log: PathBuf,
    started: usize,
}

impl Sidecar {
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let file = fs::File::options().create(true).append(true).open(log)?;
        let started = usize::try_from(file.metadata()?.len())?;
        command
            .env("HOLDFAST_PROCESS__LISTEN", format!("127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        Ok(Self { guard: Guard::spawn(&mut command)?, port, log: log.to_owned(), started })
    }

    pub fn pid(&self) -> u32 {
        self.guard.pid()
    }

    /// What this run has logged.
    pub fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.started..).unwrap_or_default()).into_owned()
    }

    pub async fn metrics(&self) -> Result<Metrics> {
        Metrics::read(self.port).await
    }

    pub fn metrics_port(&self) -> u16 {
        self.port
    }

    /// Waits until a metric satisfies `is`; fails when the process ends before.
    pub async fn until(&mut self, metric: &str, is: impl Fn(f64) -> bool, patience: Duration) -> Result<f64> {
        let deadline = Instant::now() + patience;
        loop {
            let now = match self.metrics().await {
                Ok(metrics) => metrics.get(metric),
                Err(_) => None,
            };
            if let Some(value) = now
                && is(value)
            {
                return Ok(value);
            }
            if let Some(status) = self.guard.ended()? {
                bail!("holdfast run ended with {status}:\n{}", process::tail(&self.log(), 30));
            }
            if Instant::now() > deadline {
                bail!("{metric} is {now:?} after {patience:?}:\n{}", process::tail(&self.log(), 30));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a base backup is finished and durable.
    pub async fn backed_up(&mut self, patience: Duration) -> Result<()> {
        self.until("holdfast_base_backup_age_seconds", |age| age >= 0.0, patience).await.map(drop)
    }

    /// Waits until source `main` is in a phase (`streaming`, `standby`, …); how long it took.
    pub async fn until_phase(&mut self, phase: &str, patience: Duration) -> Result<Duration> {
        let began = Instant::now();
        let name = format!("holdfast_phase{{source=\"main\",phase=\"{phase}\"}}");
        self.until(&name, |is| is == 1.0, patience).await?;
        Ok(began.elapsed())
    }

    /// Waits until its log holds `text`.
    pub async fn until_says(&mut self, text: &str, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        while !self.log().contains(text) {
            let ended = self.guard.ended()?;
            if ended.is_some() && self.log().contains(text) {
                break;
            }
            if ended.is_some() || Instant::now() > deadline {
                let log = process::tail(&self.log(), 30);
                bail!("holdfast run never said «{text}» ({ended:?}, {patience:?}):\n{log}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// What `/readyz` says: for each source its phase, and why.
    pub async fn ready(&self) -> Result<String> {
        page(self.port, "/readyz").await
    }

    pub fn signal(&self, signal: Signal) {
        self.guard.signal(signal);
    }

    /// SIGTERM, and its end: all that was received is durable then.
    pub async fn stop(mut self) -> Result<ExitStatus> {
        self.guard.signal(Signal::TERM);
        let ended = self.guard.wait(Duration::from_secs(30)).await;
        ended.with_context(|| process::tail(&self.log(), 30))
    }

    /// Waits until it ends by itself.
    pub async fn wait(&mut self, patience: Duration) -> Result<ExitStatus> {
        self.guard.wait(patience).await
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.guard.kill();
    }
}
