//! One running (or stopped, or killed) server: its processes, its folder, and SQL on it.

use std::{
    fs,
    net::TcpListener,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage, error::SqlState};

use super::{Options, builds, template};
use crate::{User, folder, process, warden};

/// How to shut down: the three ways of `pg_ctl stop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Waits for clients to leave.
    Smart,
    /// Disconnects clients, writes a checkpoint, waits for replication to receive it.
    Fast,
    /// Leaves at once; the next start is a crash recovery.
    Immediate,
}

/// Ends with its owner: a drop kills the postmaster and all its children and removes the folder.
pub struct Server {
    pub(super) options: Options,
    bin: PathBuf,
    home: TempDir,
    data: PathBuf,
    port: u16,
    child: Option<Child>,
}

/// How long a start or a stop may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(90);

impl Server {
    /// Makes a new cluster and starts it; returns when it takes connections.
    pub async fn start(options: impl Into<Options>) -> Result<Self> {
        let mut server = Self::prepare(options.into()).await?;
        let (bin, shape, data) = (server.bin.clone(), server.options.shape, server.data.clone());
        tokio::task::spawn_blocking(move || template::new_cluster(&bin, shape, &data)).await??;
        server.configure()?;
        server.start_again().await?;
        Ok(server)
    }

    /// A server for a data folder that exists (a restored one, a clone): it is moved in, given to the servers'
    /// account and started with its own settings, except for port and socket. `options` gives the version only.
    pub async fn adopt(options: impl Into<Options>, data: &Path) -> Result<Self> {
        let mut server = Self::adopt_stopped(options, data).await?;
        server.start_again().await?;
        Ok(server)
    }

    /// As [`Server::adopt`], without the start.
    pub async fn adopt_stopped(options: impl Into<Options>, data: &Path) -> Result<Self> {
        let mut server = Self::prepare(options.into()).await?;
        server.data = data.to_owned();
        let data = data.to_owned();
        tokio::task::spawn_blocking(move || {
            User::give_all(&data)?;
            fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).map_err(anyhow::Error::from)
        })
        .await??;
        Ok(server)
    }

    pub(super) async fn prepare(options: Options) -> Result<Self> {
        let (major, debian) = (options.major, options.debian);
        let bin =
            tokio::task::spawn_blocking(move || if debian { builds::debian_bin() } else { major.bin() })
                .await??;
        let parent = options.home.clone().unwrap_or_else(|| PathBuf::from("/tmp"));
        let home = tempfile::Builder::new().prefix("hf-").tempdir_in(&parent);
        let home = home.with_context(|| format!("no folder could be made in {}", parent.display()))?;
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755))?;
        User::give(home.path())?;
        let data = home.path().join("data");
        Ok(Self { options, bin, home, data, port: free_port()?, child: None })
    }

    /// Writes the wanted settings into the (stopped) cluster.
    pub(super) fn configure(&self) -> Result<()> {
        let mut text = fs::read_to_string(self.data.join("postgresql.conf"))?;
        for (name, value) in &self.options.settings {
            text.push_str(&format!("{name} = '{}'\n", value.replace('\'', "''")));
        }
        if let Some((certificate, key)) = &self.options.tls {
            text.push_str("ssl = on\n");
            self.write("server.crt", certificate)?;
            self.write("server.key", key)?;
        }
        self.write("postgresql.conf", &text)?;
        if let Some(lines) = &self.options.access {
            self.write("pg_hba.conf", lines)?;
        }
        Ok(())
    }

    /// Writes a file of the data folder, as the server's own (mode 0600).
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.data.join(name);
        fs::write(&path, text).with_context(|| format!("{} could not be written", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        User::give(&path)
    }

    /// Starts the stopped (or killed) server and waits until it takes connections.
    pub async fn start_again(&mut self) -> Result<()> {
        for last in [false, false, true] {
            self.launch()?;
            match self.ready().await {
                Ok(()) => return Ok(()),
                // Somebody took the port between our look and the server's.
                Err(_) if !last && self.log().contains("could not bind IPv4 address") => {
                    self.port = free_port()?
                }
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }

    /// Starts the processes and does not wait for anything.
    pub fn launch(&mut self) -> Result<()> {
        if self.is_running() {
            bail!("the server of {} runs already", self.data.display());
        }
        let log = fs::File::options().create(true).append(true).open(self.log_path())?;
        let mut command = Command::new(self.bin.join("postgres"));
        command
            .arg("-D")
            .arg(&self.data)
            .args(["-c", "listen_addresses=127.0.0.1", "-c", &format!("port={}", self.port)])
            .args(["-c", &format!("unix_socket_directories={}", self.home.path().display())])
            .current_dir(self.home.path())
            .env_remove("PGDATA")
            // Ctrl-C is for the owner, which ends its servers itself.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        User::drop_root(&mut command)?;
        let child = command.spawn().with_context(|| format!("{} does not start", self.bin.display()))?;
        warden::watch(child.id());
        self.child = Some(child);
        Ok(())
    }

    /// Waits until the server takes connections (a standby: read-only ones).
    pub async fn ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let cause = match self.client().await {
                Ok(_) => return Ok(()),
                Err(cause) => cause,
            };
            let code = cause.downcast_ref::<tokio_postgres::Error>().and_then(|error| error.code());
            if code.is_some_and(|code| {
                *code != SqlState::CANNOT_CONNECT_NOW && *code != SqlState::UNDEFINED_FILE
            }) {
                // It answers: who may come in is the test's business.
                return Ok(());
            }
            if let Some(status) = self.exited()? {
                bail!(
                    "Postgres {} ended with {status} while starting:\n{}",
                    self.options.major,
                    self.log_tail()
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "Postgres {} takes no connections ({cause:#}):\n{}",
                    self.options.major,
                    self.log_tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The exit status, once the server has ended by itself.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let status = child.try_wait()?;
        if status.is_some() {
            warden::forget(child.id());
            self.child = None;
        }
        Ok(status)
    }

    /// Waits until the server ends by itself.
    pub async fn wait_exit(&mut self, patience: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if self.child.is_none() {
                bail!("the server was not running");
            }
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("the server did not end within {patience:?}:\n{}", self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.is_some() && matches!(self.exited(), Ok(None))
    }

    /// The postmaster's process number.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Asks the server to shut down, without waiting.
    pub fn ask_stop(&self, how: Stop) {
        let signal = match how {
            Stop::Smart => Signal::TERM,
            Stop::Fast => Signal::INT,
            Stop::Immediate => Signal::QUIT,
        };
        if let Some(pid) = self.pid() {
            process::signal(pid, signal);
        }
    }

    /// Shuts the server down and waits for it.
    pub async fn stop(&mut self, how: Stop) -> Result<()> {
        self.ask_stop(how);
        self.wait_exit(PATIENCE).await.map(drop)
    }

    /// SIGKILL for the postmaster and all its children at once.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            process::kill_family(child.id());
            child.wait().ok();
            warden::forget(child.id());
        }
    }

    /// Stops all processes of the server where they are (SIGSTOP): it holds its connections and answers nobody.
    pub fn pause(&self) {
        self.each_process(Signal::STOP);
    }

    pub fn resume(&self) {
        self.each_process(Signal::CONT);
    }

    fn each_process(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            process::signal(pid, signal);
            for child in process::children(pid) {
                process::signal(child, signal);
            }
        }
    }

    /// Copies the data folder as it is at one moment, as a snapshot of a file system would; a running server is
    /// paused meanwhile.
    pub async fn clone_folder(&self, to: &Path) -> Result<()> {
        self.pause();
        let (from, to) = (self.data.clone(), to.to_owned());
        let copied = tokio::task::spawn_blocking(move || {
            folder::copy_folder(&from, &to, &|path| path == Path::new("postmaster.pid"))
        })
        .await;
        self.resume();
        copied?
    }

    /// A new folder that the server may write to (a tablespace, say), beside its data.
    pub fn new_folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.home.path().join(name);
        folder::make_private(&path)?;
        Ok(path)
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The folder of the unix socket: the server's own temporary folder, reachable by all.
    pub fn socket_folder(&self) -> &Path {
        self.home.path()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Where the server programs are.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// Connection string by the unix socket.
    pub fn dsn(&self) -> String {
        let folder = self.home.path().display();
        format!("host={folder} port={} user=postgres dbname=postgres", self.port)
    }

    /// Connection string by TCP.
    pub fn tcp_dsn(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port)
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("log")
    }

    /// All that the server has logged.
    pub fn log(&self) -> String {
        fs::read(self.log_path())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    pub fn log_tail(&self) -> String {
        process::tail(&self.log(), 25)
    }

    /// A connection of one's own; it ends when the client is dropped.
    pub async fn client(&self) -> Result<Client> {
        self.client_of(&self.dsn()).await
    }

    /// A connection by another string (another user or database).
    pub async fn client_of(&self, dsn: &str) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
        tokio::spawn(async move {
            connection.await.ok();
        });
        Ok(client)
    }

    /// Runs statements by the simple protocol; the rows of all of them, as text.
    pub async fn sql(&self, text: &str) -> Result<Vec<Vec<Option<String>>>> {
        let client = self.client().await?;
        let messages = client.simple_query(text).await.with_context(|| format!("«{text}» failed"))?;
        Ok(rows(&messages))
    }

    /// The first value of the first row.
    pub async fn value(&self, text: &str) -> Result<String> {
        let rows = self.sql(text).await?;
        let first = rows.into_iter().next().and_then(|row| row.into_iter().next()).flatten();
        first.with_context(|| format!("«{text}» gave no value"))
    }

    /// Waits until a query's first value is `t`.
    pub async fn wait_for(&self, query: &str, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        while self.value(query).await? != "t" {
            if Instant::now() > deadline {
                bail!("«{query}» did not come true within {patience:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Promotes a standby and waits until it writes.
    pub async fn promote(&self) -> Result<()> {
        if self.value("select pg_promote(true, 60)").await? != "t" {
            bail!("the standby was not promoted:\n{}", self.log_tail());
        }
        Ok(())
    }

    /// End of WAL, written (a primary) or replayed (a standby), as `X/Y`.
    pub async fn lsn(&self) -> Result<String> {
        self.value(
            "select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end",
        )
        .await
    }

    pub async fn system_identifier(&self) -> Result<u64> {
        Ok(self.value("select system_identifier from pg_control_system()").await?.parse()?)
    }

    /// Timeline by the control file: it follows a promotion at its first checkpoint only.
    pub async fn timeline(&self) -> Result<u32> {
        Ok(self.value("select timeline_id from pg_control_checkpoint()").await?.parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn rows(messages: &[SimpleQueryMessage]) -> Vec<Vec<Option<String>>> {
    messages
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
            }
            _ => None,
        })
        .collect()
}

/// A port of 127.0.0.1 that nobody listens on now.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
