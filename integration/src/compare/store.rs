//! The store in a process of its own: `s3s-fs` over a folder in memory, with TLS; a second address leads through the
//! proxy, which makes each request later. Lines on its stdin are orders, lines on its stdout answers.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result};
use holdfast_harness::{Certificates, Fault, Rule, S3Local, Store, Toxic};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A file system in memory, where there is one.
pub const MEMORY: &str = "/dev/shm";
/// The peer's bucket: the store walks a whole bucket for each listing, and neither should pay for the other's objects.
const PEER: &str = "peer";

/// The child's side: serves until its stdin ends.
pub fn serve(root: &Path) -> Result<()> {
    let certificates = Certificates::new()?;
    let direct = S3Local::start_tls_at(root, &certificates)?;
    let plain = S3Local::start_at(root)?;
    let away = Toxic::before_tls(plain.store(), &certificates)?;
    let mut out = std::io::stdout().lock();
    let hello = json!({ "direct": address(direct.store()), "away": address(away.store()) });
    writeln!(out, "{hello}")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let (order, value) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        match order {
            "delay" => away.set([Rule::new(Fault::Delay(Duration::from_millis(value.parse()?)))]),
            "packs" => {
                let slow = Fault::Delay(Duration::from_millis(value.parse()?));
                away.set([Rule::new(slow).path("/packs/")]);
            }
            "silent" => away.set([Rule::new(Fault::Silence)]),
            _ => {}
        }
        let passed = away.passed();
        writeln!(out, "{}", json!({ "requests": passed.requests, "puts": passed.puts, "up": passed.up }))?;
        out.flush()?;
    }
    Ok(())
}

fn address(store: &Store) -> Value {
    json!({
        "endpoint": store.endpoint, "region": store.region, "bucket": store.bucket,
        "access_key": store.access_key, "secret_key": store.secret_key, "authority": store.authority,
    })
}

fn read_address(value: &Value) -> Result<Store> {
    let text = |key: &str| {
        let text = value.get(key).and_then(Value::as_str);
        text.map(str::to_owned).with_context(|| format!("the store said no {key}"))
    };
    Ok(Store {
        endpoint: text("endpoint")?,
        region: text("region")?,
        bucket: text("bucket")?,
        access_key: text("access_key")?,
        secret_key: text("secret_key")?,
        authority: text("authority").ok(),
    })
}

/// Ended and removed with its owner.
pub struct StoreProcess {
    direct: Store,
    away: Store,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    child: Child,
    folder: TempDir,
}

/// What went through the proxy.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    pub requests: u64,
    pub puts: u64,
    pub up: u64,
}

impl StoreProcess {
    pub fn start() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("hf-store-").tempdir_in(MEMORY)?;
        std::fs::create_dir(folder.path().join(PEER))?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--serve-store")
            .arg(folder.path())
            .env("TMPDIR", MEMORY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the store does not start")?;
        let orders = child.stdin.take().context("no stdin")?;
        let mut answers = BufReader::new(child.stdout.take().context("no stdout")?);
        let hello = answer(&mut answers)?;
        let part = |key: &str| read_address(hello.get(key).unwrap_or(&Value::Null));
        Ok(Self { direct: part("direct")?, away: part("away")?, orders, answers, child, folder })
    }

    /// Straight to the store.
    pub fn direct(&self) -> Store {
        self.direct.clone()
    }

    /// The same for the peer.
    pub fn peer(&self) -> Store {
        Store { bucket: PEER.to_owned(), ..self.direct() }
    }

    /// Through the proxy.
    pub fn away(&self) -> Store {
        self.away.clone()
    }

    fn order(&mut self, text: &str) -> Result<Passed> {
        writeln!(self.orders, "{text}")?;
        self.orders.flush()?;
        let said = answer(&mut self.answers)?;
        let number = |key: &str| said.get(key).and_then(Value::as_u64).unwrap_or(0);
        Ok(Passed { requests: number("requests"), puts: number("puts"), up: number("up") })
    }

    /// Each request through the proxy takes so much longer.
    pub fn delay(&mut self, delay: Duration) -> Result<()> {
        self.order(&format!("delay {}", delay.as_millis())).map(drop)
    }

    /// Requests for packs through the proxy take so much longer, all else is at once.
    pub fn slow_packs(&mut self, delay: Duration) -> Result<()> {
        self.order(&format!("packs {}", delay.as_millis())).map(drop)
    }

    /// The proxy takes requests and never answers.
    pub fn silent(&mut self) -> Result<()> {
        self.order("silent").map(drop)
    }

    pub fn passed(&mut self) -> Result<Passed> {
        self.order("passed")
    }

    /// Forgets all objects, which lie in memory.
    pub fn empty(&self) -> Result<()> {
        for bucket in [&self.direct.bucket, PEER] {
            for entry in std::fs::read_dir(self.folder.path().join(bucket))? {
                let path = entry?.path();
                if path.is_dir() {
                    std::fs::remove_dir_all(&path)?;
                } else {
                    std::fs::remove_file(&path)?;
                }
            }
        }
        Ok(())
    }
}

fn answer(answers: &mut BufReader<ChildStdout>) -> Result<Value> {
    let mut line = String::new();
    answers.read_line(&mut line)?;
    serde_json::from_str(&line).with_context(|| format!("the store said «{line}»"))
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
