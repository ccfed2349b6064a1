//! Base backups beside the stream: when (`Bases`), one run (`backup`), the files cut into pieces (`files`), what
//! the repository already holds (`known`), the server's manifest (`manifest`) and its tar streams (`tar`).
//!
//! A backup runs on a connection of its own and outlives a break of the stream; it ends with its writer.

mod backup;
mod files;
mod known;
mod manifest;
mod tar;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use holdfast_core::{Bytes, Catalog, Clock, Content, Finished, Result, State, Timestamp, task};
use holdfast_pgwire::Config;
use tokio::sync::Notify;

use crate::{health::SharedHealth, settings::Settings};

/// First and longest pause after a failed try.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Why a backup is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// None exists, log was lost since, or somebody asked: the server's checkpoint is made at once.
    Needed,
    /// The last one is old: the server may spread its checkpoint.
    Interval,
}

/// The schedule of one source, its running backup and the finished ones that the stream has yet to yield.
pub struct Bases {
    interval: Duration,
    rate: Option<u64>,
    config: Config,
    clock: Clock,
    health: SharedHealth,
    inner: Mutex<Inner>,
    /// For the follower: something finished, or nothing is due any more.
    changed: Notify,
    /// For the worker: a backup is wanted now.
    wanted: Notify,
}

#[derive(Default)]
struct Inner {
    worker: Option<Worker>,
    finished: Vec<Finished>,
    demanded: bool,
    /// Nothing is due or running.
    idle: bool,
    /// When the newest backup of this process began and ended: the catalog learns of it later.
    newest: Option<(Timestamp, Timestamp)>,
    failures: u64,
    completed: u64,
}

struct Worker {
    content: Arc<dyn Content>,
    _task: task::Task<()>,
}

impl Bases {
    pub(crate) fn new(settings: &Settings, config: Config, clock: Clock, health: SharedHealth) -> Self {
        Self {
            interval: settings.base_backup_interval,
            rate: settings.base_backup_rate,
            config,
            clock,
            health,
            inner: Mutex::default(),
            changed: Notify::new(),
            wanted: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the schedule for a writer. The same writer coming back keeps its running backup.
    pub(crate) fn run(self: &Arc<Self>, content: Arc<dyn Content>, state: Arc<dyn State>) {
        let mut inner = self.lock();
        if inner.worker.as_ref().is_some_and(|worker| Arc::ptr_eq(&worker.content, &content)) {
            return;
        }
        inner.finished.clear();
        inner.newest = None;
        inner.idle = false;
        let work = work(self.clone(), content.clone(), state);
        inner.worker = Some(Worker { content, _task: task::spawn(work) });
    }

    /// Ends the schedule and abandons what runs.
    pub(crate) fn stop(&self) {
        let mut inner = self.lock();
        inner.worker = None;
        inner.finished.clear();
    }

    /// Wants a backup now; `false` when that was known.
    pub(crate) fn demand(&self) -> bool {
        let mut inner = self.lock();
        let new = !std::mem::replace(&mut inner.demanded, true);
        inner.idle = false;
        drop(inner);
        self.wanted.notify_one();
        new
    }

    pub(crate) fn take_finished(&self) -> Vec<Finished> {
        std::mem::take(&mut self.lock().finished)
    }

    pub(crate) fn is_idle(&self) -> bool {
        let inner = self.lock();
        inner.idle && inner.finished.is_empty()
    }

    /// Ends when something changed since the last call. Cancel-safe.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn ended_well(&self, began: Timestamp, ended: Timestamp, finished: Finished) {
        let mut inner = self.lock();
        inner.newest = Some((began, ended));
        inner.completed += 1;
        inner.finished.push(finished);
        drop(inner);
        self.changed.notify_one();
    }

    fn failed(&self, reason: Reason) {
        let mut inner = self.lock();
        inner.failures += 1;
        inner.demanded |= reason == Reason::Needed;
    }

    /// The reason for a backup now, or how long there is none.
    fn due(&self, catalog: &Catalog) -> Result<Reason, Duration> {
        let mut inner = self.lock();
        let own = inner.newest;
        let kept = catalog.checkpoints.iter().map(|one| (one.began, one.ended)).max_by_key(|one| one.1);
        let newest = own.max(kept);
        let lost = |began: Timestamp| catalog.gaps.iter().any(|gap| gap.noticed > began);
        if std::mem::take(&mut inner.demanded) {
            return Ok(Reason::Needed);
        }
        let wait = match newest {
            None => return Ok(Reason::Needed),
            Some((began, _)) if lost(began) => return Ok(Reason::Needed),
            Some((_, ended)) => {
                let age = self.clock.wall().since(ended);
                match self.interval.checked_sub(age) {
                    None | Some(Duration::ZERO) => return Ok(Reason::Interval),
                    Some(wait) => wait,
                }
            }
        };
        inner.idle = true;
        drop(inner);
        self.changed.notify_one();
        Err(wait)
    }
}

async fn work(bases: Arc<Bases>, content: Arc<dyn Content>, state: Arc<dyn State>) {
    let mut pause = PAUSE.0;
    loop {
        let reason = match bases.due(&state.catalog()) {
            Ok(reason) => reason,
            Err(wait) => {
                tokio::select! {
                    biased;
                    () = bases.wanted.notified() => {}
                    // Not longer than a minute: the wall clock may be set.
                    () = bases.clock.sleep(wait.min(Duration::from_secs(60))) => {}
                }
                continue;
            }
        };
        bases.health.change(|health| health.base_backup.running = true);
        let began = bases.clock.wall();
        let taken = Box::pin(backup::take(&bases, reason, &content, &state)).await;
        bases.health.change(|health| {
            health.base_backup.running = false;
            health.base_backup.failure = taken.as_ref().err().map(|cause| cause.chain());
        });
        match taken {
            Ok(finished) => {
                pause = PAUSE.0;
                let ended = finished.checkpoint.ended;
                bases.health.change(|health| health.base_backup.last_ended = Some(ended));
                bases.ended_well(began, ended, finished);
            }
            Err(cause) => {
                tracing::warn!(
                    cause = cause.chain(),
                    "a base backup failed and will be tried again in {pause:?}"
                );
                bases.failed(reason);
                bases.clock.sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}

/// The tar parser on bytes in unequal parts, for fuzzing.
pub(crate) fn read_tar(bytes: &[u8]) -> Result<usize> {
    let (mut parser, mut found) = (tar::TarParser::default(), Vec::new());
    for part in bytes.chunks(509) {
        parser.push(Bytes::copy_from_slice(part), &mut found)?;
    }
    parser.finish()?;
    Ok(found.len())
}

/// The same for the manifest reader.
pub(crate) fn read_manifest(bytes: &[u8]) -> Result<()> {
    let mut reader = manifest::ManifestReader::default();
    for part in bytes.chunks(509) {
        reader.push(part)?;
    }
    reader.finish(&manifest::Tally::default())
}

/// Asks for base backups from outside.
#[derive(Clone)]
pub struct BackupRequests(Arc<Bases>);

impl BackupRequests {
    pub(crate) fn new(bases: Arc<Bases>) -> Self {
        Self(bases)
    }
    /// Begins one as soon as possible and returns at once; it is in the repository when the catalog shows it.
    /// `false` when one is asked for already.
    pub fn ask(&self) -> bool {
        self.0.demand()
    }
    /// Backups that ended well, and failed tries, since the process began.
    pub fn counts(&self) -> (u64, u64) {
        let inner = self.0.lock();
        (inner.completed, inner.failures)
    }
}
