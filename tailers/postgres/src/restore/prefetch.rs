//! Reads WAL ahead of a recovering server and hands it over. A process of its own, since each `wal-fetch` lives for
//! one file only; they meet at a unix socket in our folder of the target.
//!
//! Invariants: one prefetcher a target (a lock); segments wait as files in a spool beside `%p`, so that handing one
//! over is a rename; at most [`SPOOL`] bytes of them, and at most [`READERS`] reads at once.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use holdfast_core::{Clock, Error, Instant, Result, View, task};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    process::{Pid, test_kill_process},
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
};

use super::{
    journal::failed,
    segment::{Asked, SegmentSource},
    session::Session,
    timelines::{TimelineChoice, Timelines, number},
};
use crate::wal::SegmentSize;

/// Bytes of segments that wait to be asked for.
const SPOOL: u64 = 128 << 20;
/// Segments read ahead at most, when they are small.
const AHEAD: u64 = 16;
/// Segments being read at once. One: the view reads ahead within an answer, and knows where the next one begins
/// only when the one before it has ended.
const READERS: usize = 1;
/// A request is one short line.
const REQUEST_MAX: u64 = 16 << 10;
pub(super) const SOCKET: &str = "socket";

/// Opens the repository as a session says it: the program's part.
#[async_trait]
pub trait OpenView: Send + Sync {
    async fn open(&self, session: &Session) -> Result<Arc<dyn View>>;
}

/// What `wal-fetch` asks, one JSON line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub name: String,
    /// Absolute path of the file to be made.
    pub to: PathBuf,
}

/// The answer, one JSON line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Reply {
    Done,
    Missing,
    Failed(String),
}

/// How patient a prefetcher is.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Passing errors of the store are tried again for so long.
    pub errors: Duration,
    /// It ends when nobody asked for so long; the next `wal-fetch` starts another one.
    pub idle: Duration,
    /// The same when the server is gone.
    pub alone: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            errors: Duration::from_secs(120),
            idle: Duration::from_secs(600),
            alone: Duration::from_secs(10),
        }
    }
}

/// Serves one target until recovery has ended or nobody asks any more. `data` is the data folder, `own` our
/// folder in it. Ends at once when another prefetcher serves it.
pub async fn serve(own: &Path, open: &dyn OpenView, patience: Patience, clock: Clock) -> Result<()> {
    let Some(_lock) = lock(own)? else { return Ok(()) };
    let session = Session::load(own)?;
    let data = own.parent().unwrap_or(Path::new("/")).to_owned();
    let folder = File::open(own).map_err(|cause| failed("opened", own, cause))?;
    let socket = socket_path(&folder);
    fs::remove_file(&socket).ok();
    let listener = UnixListener::bind(&socket).map_err(|cause| failed("made", &own.join(SOCKET), cause))?;
    let mut prefetcher = Prefetcher::new(session, &data, patience, clock.clone());
    let step = patience.idle.min(Duration::from_secs(2));
    let mut asked = clock.now();
    let ended = loop {
        match clock.timeout(step, listener.accept()).await {
            Some(Ok((stream, _))) => {
                asked = clock.now();
                // A client that went away is no error of ours.
                answer(stream, &mut prefetcher, open, &clock).await.ok();
            }
            Some(Err(cause)) => return Err(failed("read", &own.join(SOCKET), cause)),
            None if recovered(&data) => break true,
            None => {
                let idle = clock.now().duration_since(asked);
                if idle >= patience.idle || idle >= patience.alone && !is_served(&data) {
                    break false;
                }
            }
        }
    };
    fs::remove_file(&socket).ok();
    prefetcher.clear();
    if ended {
        Session::remove(own);
    }
    Ok(())
}

/// The server has removed the signal file: recovery is over, and the keys are needed no more.
pub(super) fn recovered(data: &Path) -> bool {
    ["recovery.signal", "standby.signal"].iter().all(|name| !data.join(name).exists())
}

/// Does a server run in this data folder? A killed one leaves its file.
fn is_served(data: &Path) -> bool {
    let Ok(text) = fs::read_to_string(data.join("postmaster.pid")) else { return false };
    let pid = text.lines().next().and_then(|line| line.trim().parse().ok()).and_then(Pid::from_raw);
    pid.is_some_and(|pid| !matches!(test_kill_process(pid), Err(Errno::SRCH)))
}

fn lock(own: &Path) -> Result<Option<File>> {
    let path = own.join("prefetch.lock");
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.map_err(|cause| failed("opened", &path, cause))?;
    Ok(flock(&file, FlockOperation::NonBlockingLockExclusive).ok().map(|()| file))
}

/// Paths of sockets are short by definition; this one is, wherever the data folder lies.
pub(super) fn socket_path(folder: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()))
}

async fn answer(
    stream: UnixStream,
    prefetcher: &mut Prefetcher,
    open: &dyn OpenView,
    clock: &Clock,
) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(read.take(REQUEST_MAX));
    let Some(read) = clock.timeout(Duration::from_secs(5), reader.read_line(&mut line)).await else {
        return Ok(());
    };
    read?;
    let Ok(request) = serde_json::from_str::<Request>(&line) else { return Ok(()) };
    let reply = match prefetcher.fetch(&request.name, &request.to, open).await {
        Ok(true) => Reply::Done,
        Ok(false) => Reply::Missing,
        Err(error) => Reply::Failed(error.chain()),
    };
    let mut text = serde_json::to_string(&reply).unwrap_or_default();
    text.push('\n');
    write.write_all(text.as_bytes()).await?;
    if matches!(reply, Reply::Done) {
        prefetcher.read_ahead();
    }
    Ok(())
}

/// A segment on its way into the spool.
struct Ahead {
    timeline: u32,
    file: PathBuf,
    task: task::Task<Result<bool>>,
}

/// Reads ahead for one recovering server.
pub struct Prefetcher {
    session: Session,
    spool: PathBuf,
    patience: Patience,
    clock: Clock,
    source: Option<(Arc<SegmentSource>, Instant)>,
    ahead: BTreeMap<u64, Ahead>,
    /// The segment asked for last.
    newest: Option<u64>,
    readers: Arc<Semaphore>,
    count: u64,
}

impl Prefetcher {
    pub fn new(session: Session, data: &Path, patience: Patience, clock: Clock) -> Self {
        let spool = data.join("pg_wal/holdfast.spool");
        let readers = Arc::new(Semaphore::new(READERS));
        let ahead = BTreeMap::new();
        Self { session, spool, patience, clock, source: None, ahead, newest: None, readers, count: 0 }
    }

    /// Puts the file of this name at `to`, whole; false when it is not there.
    pub async fn fetch(&mut self, name: &str, to: &Path, open: &dyn OpenView) -> Result<bool> {
        let began = self.clock.now();
        loop {
            match self.attempt(name, to, open).await {
                Err(error)
                    if error.is_passing()
                        && self.clock.now().duration_since(began) < self.patience.errors =>
                {
                    tracing::warn!(name, cause = error.chain(), "WAL could not be fetched, trying again");
                    self.clock.sleep(Duration::from_millis(500)).await;
                }
                other => return other,
            }
        }
    }

    async fn attempt(&mut self, name: &str, to: &Path, open: &dyn OpenView) -> Result<bool> {
        let size = SegmentSize::new(u64::from(self.session.segment_size))?;
        let asked = Asked::parse(name, size);
        let source = self.source(open, false).await?;
        match asked {
            Asked::Other => Ok(false),
            Asked::History { timeline } => {
                let source = if self.session.follows { self.source(open, true).await? } else { source };
                let Some(content) = source.history(timeline) else { return Ok(false) };
                let to = to.to_owned();
                task::blocking(move || put(&to, &content)).await?
            }
            Asked::Segment { timeline, number } => {
                if self.segment(&source, timeline, number, to).await? {
                    return Ok(true);
                }
                // A standby that has all waits for more: look whether the repository got any.
                if !self.session.follows {
                    return Ok(false);
                }
                let source = self.source(open, true).await?;
                self.segment(&source, timeline, number, to).await
            }
        }
    }

    /// The open repository; a following one is opened anew for `fresh`, at most once a second.
    async fn source(&mut self, open: &dyn OpenView, fresh: bool) -> Result<Arc<SegmentSource>> {
        let now = self.clock.now();
        let second = Duration::from_secs(1);
        if let Some((source, at)) = &self.source
            && (!fresh || now.duration_since(*at) < second)
        {
            return Ok(Arc::clone(source));
        }
        let view = open.open(&self.session).await?;
        let mut path = self.session.path.clone();
        if self.session.follows {
            path = followed(&*view, &path)?;
        }
        let size = SegmentSize::new(u64::from(self.session.segment_size))?;
        let (identity, version) = (self.session.system_identifier, self.session.server_version);
        let source = Arc::new(SegmentSource::new(view, path, size, identity, version)?);
        self.source = Some((Arc::clone(&source), now));
        Ok(source)
    }

    async fn segment(
        &mut self,
        source: &Arc<SegmentSource>,
        timeline: u32,
        number: u64,
        to: &Path,
    ) -> Result<bool> {
        self.newest = Some(number);
        let early = self.ahead.remove(&number).filter(|ahead| ahead.timeline == timeline);
        // The last segment grows while a standby follows: what was read ahead of it may be old.
        let early = early.filter(|_| !self.session.follows || self.complete(source, number));
        let was_early = early.is_some();
        let mut ready = early.unwrap_or_else(|| self.start(source, timeline, number));
        self.read_ahead();
        let mut there = (&mut ready.task).await?;
        if was_early && there.is_err() {
            // What kept it from being read then may be over by now.
            fs::remove_file(&ready.file).ok();
            self.forget_ahead();
            ready = self.start(source, timeline, number);
            self.read_ahead();
            there = (&mut ready.task).await?;
        }
        match there {
            Ok(true) => {
                let (file, to) = (ready.file, to.to_owned());
                task::blocking(move || hand_over(&file, &to)).await??;
                Ok(true)
            }
            other => {
                fs::remove_file(&ready.file).ok();
                other
            }
        }
    }

    fn complete(&self, source: &SegmentSource, number: u64) -> bool {
        let end = source.size().start(number.saturating_add(1));
        end.is_some_and(|end| end.0 <= source.end())
    }

    /// Starts to read what will be asked for next, and forgets what will not.
    pub fn read_ahead(&mut self) {
        let (Some(newest), Some((source, _))) = (self.newest, self.source.clone()) else { return };
        let depth = (SPOOL / source.size().bytes()).clamp(1, AHEAD);
        let last = newest.saturating_add(depth);
        self.ahead.retain(|number, ahead| {
            let keep = *number > newest && *number <= last;
            if !keep {
                fs::remove_file(&ahead.file).ok();
            }
            keep
        });
        for number in newest.saturating_add(1)..=last {
            if !self.ahead.contains_key(&number)
                && let Some(timeline) = source.timeline_of(number)
            {
                let ahead = self.start(&source, timeline, number);
                self.ahead.insert(number, ahead);
            }
        }
    }

    fn start(&mut self, source: &Arc<SegmentSource>, timeline: u32, number: u64) -> Ahead {
        self.count += 1;
        let file = self.spool.join(format!("{timeline:08X}-{number:016X}-{}", self.count));
        let (source, readers, spool, path) =
            (Arc::clone(source), Arc::clone(&self.readers), self.spool.clone(), file.clone());
        let task = task::spawn(async move {
            let Ok(_turn) = readers.acquire().await else { return Err(Error::bug("the readers are gone")) };
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&spool)
                .map_err(|c| failed("made", &spool, c))?;
            source.write(timeline, number, &path).await
        });
        Ahead { timeline, file, task }
    }

    fn forget_ahead(&mut self) {
        for ahead in std::mem::take(&mut self.ahead).into_values() {
            fs::remove_file(&ahead.file).ok();
        }
    }

    /// Ends all reading and empties the spool.
    pub fn clear(&mut self) {
        self.ahead.clear();
        fs::remove_dir_all(&self.spool).ok();
    }
}

/// The path of a standby that follows: its line as the repository holds it now, up to the first gap.
fn followed(view: &dyn View, path: &[holdfast_core::Span]) -> Result<Vec<holdfast_core::Span>> {
    let timelines = Timelines::read(view.catalog(), &view.heads())?;
    let (Some(first), Some(last)) = (path.first(), path.last()) else { return Ok(Vec::new()) };
    let current = timelines.line(TimelineChoice::Current)?;
    let line = if current.holds(last.end()) {
        current
    } else {
        timelines.line(TimelineChoice::Number(number(last.branch).unwrap_or(1)))?
    };
    let stretches = timelines.stretches(&line);
    let holds = stretches.iter().find(|stretch| stretch.from <= first.from && first.from < stretch.to);
    Ok(holds.map_or_else(Vec::new, |stretch| line.path(first.from, stretch.to)))
}

/// Makes a whole small file appear at once.
fn put(to: &Path, content: &[u8]) -> Result<bool> {
    let part = part(to);
    let write = fs::write(&part, content).and_then(|()| fs::rename(&part, to));
    write.map(|()| true).map_err(|cause| failed("written", to, cause))
}

/// Moves a file of the spool to where the server wants it; copies where they lie on two file systems.
fn hand_over(file: &Path, to: &Path) -> Result<()> {
    match fs::rename(file, to) {
        Err(cause) if cause.kind() == io::ErrorKind::CrossesDevices => {
            let part = part(to);
            fs::copy(file, &part)
                .and_then(|_| fs::rename(&part, to))
                .and_then(|()| fs::remove_file(file))
                .map_err(|cause| failed("written", to, cause))
        }
        other => other.map_err(|cause| failed("written", to, cause)),
    }
}

fn part(to: &Path) -> PathBuf {
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(".holdfast");
    to.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use holdfast_core::{Branch, Bytes, Span};
    use holdfast_testkit::MemoryView;

    use super::*;

    const MIB: u64 = 1 << 20;

    struct Store {
        view: Arc<MemoryView>,
        /// So many opens fail first.
        failures: AtomicU32,
    }

    #[async_trait]
    impl OpenView for Store {
        async fn open(&self, _: &Session) -> Result<Arc<dyn View>> {
            if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
                return Err(Error::retry("the store does not answer"));
            }
            Ok(Arc::clone(&self.view) as Arc<dyn View>)
        }
    }

    fn store(segments: u64, failures: u32) -> Store {
        let mut view = MemoryView::default();
        view.chunk = 16 << 20;
        for number in 0..segments {
            view.add_log(Branch(1), number * MIB, Bytes::from(vec![number as u8; MIB as usize]));
        }
        Store { view: Arc::new(view), failures: AtomicU32::new(failures) }
    }

    fn session(segments: u64) -> Session {
        Session {
            version: 1,
            path: vec![Span { branch: Branch(1), from: 0, to: segments * MIB }],
            segment_size: MIB as u32,
            system_identifier: 1,
            server_version: 150_018,
            standby: false,
            follows: false,
            blob: String::new(),
        }
    }

    fn prefetcher(data: &Path, segments: u64, errors: Duration) -> Prefetcher {
        fs::create_dir_all(data.join("pg_wal")).unwrap();
        let patience = Patience { errors, idle: Duration::from_secs(1), ..Patience::default() };
        Prefetcher::new(session(segments), data, patience, Clock::system())
    }

    fn name(number: u64) -> String {
        SegmentSize::new(MIB).unwrap().file_name(1, number)
    }

    #[tokio::test]
    async fn it_ends_soon_after_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let (data, own) = (folder.path(), folder.path().join("own"));
        fs::create_dir(&own).unwrap();
        fs::write(data.join("recovery.signal"), "").unwrap();
        fs::write(own.join("session.json"), serde_json::to_vec(&session(1)).unwrap()).unwrap();
        let patience = Patience {
            errors: Duration::ZERO,
            idle: Duration::from_secs(3),
            alone: Duration::from_millis(100),
        };
        let clock = Clock::system();
        let took = async |pid: Option<u32>| {
            if let Some(pid) = pid {
                fs::write(data.join("postmaster.pid"), format!("{pid}\n{}\n", data.display())).unwrap();
            }
            let began = clock.now();
            serve(&own, &store(1, 0), patience, clock.clone()).await.unwrap();
            clock.now() - began
        };
        // A look every two seconds.
        assert!(took(None).await < Duration::from_millis(2900), "no server was ever there");
        assert!(took(Some(std::process::id())).await >= Duration::from_secs(3), "a server that lives");
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        assert!(took(Some(ended.id())).await < Duration::from_millis(2900), "a killed one leaves its file");
        assert!(own.join("session.json").exists(), "recovery goes on at the next start");
    }

    #[tokio::test]
    async fn what_is_asked_next_is_there_already_and_the_spool_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let (store, to) = (store(60, 0), folder.path().join("pg_wal/RECOVERYXLOG"));
        let mut prefetcher = prefetcher(folder.path(), 60, Duration::ZERO);
        assert!(prefetcher.fetch(&name(0), &to, &store).await.unwrap());
        for number in 1..60u64 {
            while !prefetcher.ahead.values().all(|ahead| ahead.task.is_finished()) {
                prefetcher.clock.sleep(Duration::from_millis(1)).await;
            }
            let spooled = fs::read_dir(&prefetcher.spool).unwrap().count() as u64;
            assert!(spooled <= AHEAD && (number > 40 || spooled == AHEAD), "{spooled} at {number}");
            let calls = store.view.calls();
            let task = prefetcher.ahead.get(&number).is_some_and(|ahead| ahead.task.is_finished());
            assert!(task, "{number} was not read ahead");
            assert!(prefetcher.fetch(&name(number), &to, &store).await.unwrap());
            assert!(store.view.calls() - calls <= 2, "{number} was read again");
            assert!(fs::read(&to).unwrap() == vec![number as u8; MIB as usize], "{number}");
        }
        assert!(!prefetcher.fetch(&name(60), &to, &store).await.unwrap());
        // Recovery's end reads the last segment once more; a jump drops what was read ahead.
        assert!(prefetcher.fetch(&name(59), &to, &store).await.unwrap());
        assert!(prefetcher.fetch(&name(3), &to, &store).await.unwrap());
        assert!(fs::read(&to).unwrap() == vec![3; MIB as usize]);
        prefetcher.clear();
        assert!(!prefetcher.spool.exists());
    }

    #[tokio::test]
    async fn passing_trouble_is_waited_out_for_as_long_as_told() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("x");
        let mut patient = prefetcher(folder.path(), 1, Duration::from_secs(60));
        assert!(patient.fetch(&name(0), &to, &store(1, 2)).await.unwrap());
        let mut hasty = prefetcher(folder.path(), 1, Duration::ZERO);
        let error = hasty.fetch(&name(0), &to, &store(1, 2)).await.unwrap_err();
        assert!(error.to_string().contains("does not answer"));
        assert!(!hasty.fetch("00000002.history", &to, &store(1, 0)).await.unwrap());
        assert!(!hasty.fetch("rubbish", &to, &store(1, 0)).await.unwrap());
    }
}
