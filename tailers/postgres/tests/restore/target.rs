//! Restores into a folder and starts the result, with `wal-fetch` as Postgres runs it: this test program itself,
//! under the servers' account, told by its environment what to be.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use holdfast_core::{Clock, Error, Moment, Progress, Report, Restorer, View, Wish};
use holdfast_harness::{Options, Server, User, process};
use holdfast_postgres::restore::{
    Choice, OWN_FOLDER, OpenView, Owner, Patience, PostgresRestorer, Session, Target, command_word, serve,
    wal_fetch::{exit_code, fetch},
};

use super::source;

pub struct Quiet;

impl Progress for Quiet {
    fn total(&self, _: u64) {}
    fn done(&self, _: u64) {}
    fn say(&self, _: &str) {}
}

/// A place to restore to, and where its prefetcher finds the log.
pub struct Place {
    pub folder: tempfile::TempDir,
    pub target: Target,
    pub choice: Choice,
    pub follows: bool,
    dump: PathBuf,
}

impl Place {
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("hf-restore-").tempdir_in("/tmp")?;
        User::give(folder.path())?;
        let program = process::reachable(&std::env::current_exe()?, folder.path())?;
        let command = format!(
            "HF_WAL=%f HF_TO=\"%p\" {} --quiet --nocapture --exact wal_fetch_is_this_program >/dev/null",
            command_word(&program.to_string_lossy())
        );
        let mut target = Target::new(folder.path().join("data"), command);
        target.owner = User::servers()?.map(|user| Owner { uid: user.uid, gid: user.gid });
        let dump = folder.path().join("dump");
        Ok(Self { folder, target, choice: Choice::default(), follows: false, dump })
    }

    pub fn dump(&self) -> &Path {
        &self.dump
    }

    /// The store cannot be reached while this file exists.
    pub fn down(&self) -> PathBuf {
        self.dump.join("down")
    }

    pub fn restorer(&self) -> PostgresRestorer {
        let mut restorer = PostgresRestorer::new(self.target.clone(), self.choice);
        restorer.follows = self.follows;
        restorer
    }

    /// Resolves, plans and applies; leaves the session.
    pub async fn restore(&self, wish: &Wish, view: Arc<dyn View>) -> Result<(Moment, Report)> {
        let restorer = self.restorer();
        let moment = restorer.resolve(wish, &*view).await?;
        let plan = restorer.plan(&moment, &*view).await?;
        let report = plan.apply(Arc::clone(&view), Arc::new(Quiet)).await?;
        let blob = self.dump.display().to_string();
        Session::new(&moment, &self.target, self.follows, &*view, blob)?.save(&self.target)?;
        Ok((moment, report))
    }

    /// The server of the restored folder, not started.
    pub async fn server(&self, options: impl Into<Options>) -> Result<Server> {
        Server::adopt_stopped(options, &self.target.data).await
    }

    /// Starts it and waits until recovery has ended.
    pub async fn recovered(&self, options: impl Into<Options>) -> Result<Server> {
        let mut server = self.server(options).await?;
        server.start_again().await?;
        let done = server.wait_for("select not pg_is_in_recovery()", Duration::from_secs(60)).await;
        done.with_context(|| server.log_tail())?;
        Ok(server)
    }
}

/// Where the restored server's new timeline was forked: the end of what it replayed.
pub fn fork(data: &Path, timeline: u32) -> Result<(u32, holdfast_postgres::wal::Lsn)> {
    let content = std::fs::read(data.join(format!("pg_wal/{timeline:08X}.history")))?;
    let history = holdfast_postgres::wal::History::parse(timeline, &content)?;
    let last = history.ancestors.last().context("no ancestor")?;
    Ok((last.timeline, last.end))
}

struct Dump;

#[async_trait]
impl OpenView for Dump {
    async fn open(&self, session: &Session) -> holdfast_core::Result<Arc<dyn View>> {
        let folder = Path::new(&session.blob);
        if folder.join("down").exists() {
            return Err(Error::retry("the store does not answer"));
        }
        let view = source::load(folder).map_err(|cause| Error::corrupt(format!("{cause:#}")))?;
        Ok(Arc::new(Falling { view, down: folder.join("down") }))
    }
}

/// A view whose store goes down while it is open.
struct Falling {
    view: holdfast_testkit::MemoryView,
    down: PathBuf,
}

#[async_trait]
impl View for Falling {
    fn catalog(&self) -> &holdfast_core::Catalog {
        self.view.catalog()
    }
    fn heads(&self) -> Vec<holdfast_core::Place> {
        self.view.heads()
    }
    fn vouched(&self) -> Option<holdfast_core::Timestamp> {
        self.view.vouched()
    }
    async fn marks(&self, span: holdfast_core::Span) -> holdfast_core::Result<holdfast_core::Marks> {
        self.view.marks(span).await
    }
    async fn rows(
        &self,
        layers: &[holdfast_core::Layer],
        from: &[u8],
        limit: usize,
    ) -> holdfast_core::Result<Vec<holdfast_core::Row>> {
        self.view.rows(layers, from, limit).await
    }
    async fn content(&self, held: &holdfast_core::Held) -> holdfast_core::Result<holdfast_core::Bytes> {
        self.view.content(held).await
    }
    async fn contents(
        &self,
        held: &[holdfast_core::Held],
    ) -> holdfast_core::Result<Vec<holdfast_core::Bytes>> {
        self.view.contents(held).await
    }
    async fn log(&self, span: holdfast_core::Span) -> holdfast_core::Result<Vec<holdfast_core::LogChunk>> {
        if self.down.exists() {
            return Err(Error::retry("the store does not answer"));
        }
        View::log(&self.view, span).await
    }
    async fn cost(&self, path: &[holdfast_core::Span]) -> holdfast_core::Result<(u64, u64)> {
        self.view.cost(path).await
    }
}

/// What this program is when its environment says so; never returns then.
pub fn be_what_we_are_told() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let patience =
        Patience { errors: Duration::from_millis(1500), idle: Duration::from_secs(3), ..Patience::default() };
    if let Some(own) = std::env::var_os("HF_SERVE") {
        let served = runtime().block_on(serve(Path::new(&own), &Dump, patience, Clock::system()));
        if let Err(error) = &served {
            eprintln!("{}", error.chain());
        }
        std::process::exit(i32::from(served.is_err()));
    }
    let Ok(name) = std::env::var("HF_WAL") else { return };
    let here = std::env::current_dir().unwrap();
    let (own, to) = (here.join(OWN_FOLDER), here.join(std::env::var("HF_TO").unwrap()));
    let launch = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--quiet", "--exact", "wal_fetch_is_this_program"])
            .env("HF_SERVE", here.join(OWN_FOLDER))
            .env_remove("HF_WAL")
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .map(drop)
            .map_err(|cause| Error::unreachable("the prefetcher does not start").because(cause))
    };
    let outcome = runtime().block_on(fetch(&own, &name, &to, &launch, &Clock::system()));
    if let Err(error) = &outcome {
        eprintln!("holdfast: {}", error.chain());
    }
    let standby = Session::load(&own).is_ok_and(|session| session.standby);
    std::process::exit(i32::from(exit_code(&outcome, standby)));
}
