//! A directory as a store. Owns everything below one folder; an object is one file of the same name.
//!
//! **How an object comes to be.** Its bytes are written to a file in `.holdfast-tmp` and flushed; the file is
//! then given its name by one call that fails when the name is taken (`renameat2` with `NOREPLACE`, else
//! `link`); last, the folder is flushed. One `fdatasync` and one folder `fsync` an object; a folder seen for
//! the first time costs one `fsync` of its parent more.
//!
//! **What a crash leaves**, by the step it hits:
//! - before the name is given: a file in `.holdfast-tmp`, removed at a later start once it is an hour old.
//!   No reader ever saw a part of an object, since the name is given to whole, flushed bytes only.
//! - after the name, before the folder's flush: the object may or may not be there after a power loss. It was
//!   not acknowledged, so both are right. Whoever asks for the same name meanwhile gets `Exists` only after
//!   flushing the folder itself, so an `Exists` is as durable as a `New`. The END by which a successor closes
//!   an epoch lies in the folder of the objects it takes over, hence its flush makes those durable too.
//! - after the folder's flush: the object is durable. Its parents were flushed before, by this process: a
//!   folder is trusted only once we flushed its parent ourselves, and folders are never removed.
//!
//! **A failed flush** ends the attempt: the file is thrown away and a retry writes a new one, because Linux
//! reports a lost page once and calls it clean from then on.
//!
//! All calls go through a handle of the root folder: when a disk is unmounted under us we fail, and never
//! fill the empty mount point. There is no deadline: a call ends when the kernel lets it.

mod create;
mod fault;
mod folders;
mod list;
mod place;

use std::{
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_core::{
    Error, Instant, Random, Result, Sink, Timestamp,
    sink::{Body, Capabilities, Created, OBJECT_MAX, Page, Range, StoreClock, check_name},
    task,
};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use fault::Fault;
use folders::Folders;
use place::Place;

/// Files on their way to a name. Not a name of an object, since it begins with a dot at the root.
const TEMP: &str = ".holdfast-tmp";

/// Racers of the probe.
const RACERS: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FsSettings {
    /// Make the folder when it is not there. Off for everything but `init`: a disk that was not mounted must
    /// not look like a new, empty repository.
    pub create: bool,
    /// Age from which an unfinished file counts as left behind by a crash.
    #[serde(with = "holdfast_core::text::duration")]
    pub stale_after: Duration,
}

impl Default for FsSettings {
    fn default() -> Self {
        Self { create: false, stale_after: Duration::from_secs(3600) }
    }
}

/// A directory as a store.
#[derive(Clone)]
pub struct FsSink(Arc<Inner>);

struct Inner {
    path: PathBuf,
    root: OwnedFd,
    settings: FsSettings,
    random: Random,
    folders: Folders,
    /// How names are given here; found out before the first write.
    place: OnceLock<Place>,
    store_clock: StoreClock,
}

impl FsSink {
    /// Opens the folder. Nothing is written (so that a restore works from a read-only disk), except that the
    /// folder is made when the settings say so; the first `create` or `capabilities` tries what the file
    /// system can do.
    ///
    /// Errors: `Configure` when the folder is not there, is none, or may not be read.
    pub async fn open(path: impl Into<PathBuf>, settings: FsSettings, random: Random) -> Result<Self> {
        let path = path.into();
        task::blocking(move || {
            let fault = Fault::at(&path);
            if settings.create {
                std::fs::create_dir_all(&path).map_err(|cause| fault.io("the folder could not be made", cause))?;
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| match errno {
                Errno::NOENT => Error::configure(format!(
                    "the repository folder {} is not there: is its disk mounted? A new repository is made by «holdfast init»",
                    path.display()
                )),
                _ => fault.errno("the repository folder could not be opened", errno),
            })?;
            Ok(Self(Arc::new(Inner {
                path,
                root,
                settings,
                random,
                folders: Folders::default(),
                place: OnceLock::new(),
                store_clock: StoreClock::default(),
            })))
        })
        .await?
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = self.0.clone();
        task::blocking(move || work(&inner)).await?
    }
}

impl Inner {
    fn fault(&self) -> Fault<'_> {
        Fault::at(&self.path)
    }

    fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
        use std::os::unix::fs::FileExt;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = match rustix::fs::openat(&self.root, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(self.fault().errno(&format!("«{name}» could not be opened"), errno)),
        };
        let file = std::fs::File::from(fd);
        let fail = |cause| self.fault().io(&format!("«{name}» could not be read"), cause);
        let meta = file.metadata().map_err(fail)?;
        if !meta.is_file() {
            return Ok(None);
        }
        let (from, length) = match range {
            Range::All => (0, meta.len()),
            Range::Part { from, length } => (from, length.min(meta.len().saturating_sub(from))),
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > OBJECT_MAX {
            return Err(Error::corrupt(format!(
                "the file «{name}» in {} is larger than any object holdfast writes: it was put there by something else, or is damaged",
                self.path.display()
            )));
        }
        let mut bytes = vec![0; length];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, from.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(some) => done = done.saturating_add(some),
                Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(fail(cause)),
            }
        }
        bytes.truncate(done);
        Ok(Some(bytes.into()))
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        for name in names {
            check_name(name)?;
        }
        let mut touched: Vec<&str> = Vec::new();
        for name in names {
            match rustix::fs::unlinkat(&self.root, name.as_str(), AtFlags::empty()) {
                Ok(()) => touched.push(split(name).0),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::ISDIR) => {}
                Err(errno) => {
                    return Err(self.fault().errno(&format!("«{name}» could not be removed"), errno));
                }
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for folder in touched {
            folders::flush(self.root.as_fd(), folder).map_err(|errno| {
                self.fault().errno(&format!("the folder «{folder}» could not be flushed"), errno)
            })?;
        }
        Ok(())
    }
}

/// Folder (empty for the root) and last part of a name.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

#[async_trait]
impl Sink for FsSink {
    async fn capabilities(&self) -> Result<Capabilities> {
        let history = "a folder keeps no old versions: whoever may write to it can remove objects";
        let yes = Capabilities { create_only: true, history: history.to_owned() };
        let id = hex(self.0.random.array::<8>());
        let twice = format!("probe/{id}-twice");
        let race = format!("probe/{id}-race");
        let first = self.create(&twice, Bytes::from_static(b"first").into()).await?;
        let second = self.create(&twice, Bytes::from_static(b"second").into()).await?;
        let racers = (0..RACERS).map(|racer| self.create(&race, vec![racer as u8].into()));
        let raced = futures::future::try_join_all(racers).await?;
        let kept = self.read(&twice, Range::All).await?;
        self.remove(&[twice, race]).await?;
        let winners = raced.iter().filter(|created| **created == Created::New).count();
        let holds = first == Created::New && second == Created::Exists && winners == 1;
        if holds && kept.as_deref() == Some(b"first") {
            return Ok(yes);
        }
        Err(Error::configure(format!(
            "the file system under {} lets {winners} of {RACERS} writers create one name: use another one",
            self.address()
        )))
    }

    async fn create(&self, name: &str, body: Body) -> Result<Created> {
        check_name(name)?;
        if body.len() > OBJECT_MAX {
            return Err(Error::bug(format!("«{name}» would be larger than any object we write")));
        }
        let name = name.to_owned();
        self.run(move |inner| inner.create(&name, &body)).await
    }

    async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
        check_name(name)?;
        let name = name.to_owned();
        self.run(move |inner| inner.read(&name, range)).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        self.run(move |inner| inner.list(&prefix, after.as_deref(), limit)).await
    }

    async fn remove(&self, names: &[String]) -> Result<()> {
        let names = names.to_vec();
        self.run(move |inner| inner.remove(&names)).await
    }

    fn address(&self) -> String {
        self.0.path.display().to_string()
    }

    /// Whoever serves the file system gives its files their times.
    fn clock(&self) -> Option<(Instant, Timestamp)> {
        self.0.store_clock.read()
    }
}

fn hex(bytes: impl IntoIterator<Item = u8>) -> String {
    bytes.into_iter().map(|byte| format!("{byte:02x}")).collect()
}
