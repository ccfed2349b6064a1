//! Writes the files of a base backup: rows in windows, pieces in the order of their packs (so that one ranged read
//! brings many), several reads and writes at once.
//!
//! Invariants: a window is journaled only after everything in it was flushed; at most [`IN_FLIGHT`] reads of
//! [`GROUP`] opened bytes are in memory.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt};
use holdfast_core::{Bytes, Error, Held, Layer, Progress, Result, Row, View, task};
use rustix::fs::{fdatasync, syncfs};

use super::{
    journal::{Journal, failed},
    target::{Layout, Owner, Use},
};
use crate::records::{Entry, EntryKind, PIECE, PieceKey};

/// Rows per question.
const ROWS: usize = 4096;
/// Opened bytes and pieces of one read.
const GROUP: u64 = 8 << 20;
const GROUP_PIECES: usize = 2048;
/// Reads at once.
const IN_FLIGHT: usize = 8;
/// Flushes of large files that run beside the writes, so that the last flush finds little to do.
const FLUSHES: usize = 2;

/// After how many rows, and opened bytes, a window ends and is journaled.
#[derive(Clone, Copy, Debug)]
pub struct WindowSize {
    pub rows: usize,
    pub bytes: u64,
}

impl Default for WindowSize {
    fn default() -> Self {
        Self { rows: 32 << 10, bytes: 2 << 30 }
    }
}

/// Brings back the rows of one table.
pub struct Files {
    pub view: Arc<dyn View>,
    pub progress: Arc<dyn Progress>,
    pub layers: Arc<Vec<Layer>>,
    pub layout: Arc<Layout>,
    pub owner: Option<Owner>,
    /// 0700 or 0750.
    pub folder_mode: u32,
    pub window_size: WindowSize,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    pub files: u64,
    pub bytes: u64,
}

/// A piece on its way: from where, to where.
struct Piece {
    held: Held,
    file: Arc<PathBuf>,
    offset: u64,
}

/// The file whose pieces are coming: rows lie in the order of their pieces.
struct Coming {
    tablespace: u32,
    path: String,
    /// `None`: not written here.
    file: Option<Arc<PathBuf>>,
    /// The next piece.
    next: u32,
    /// Bytes still to come; not known of a file that an earlier run began.
    left: Option<u64>,
}

impl Coming {
    fn is(&self, key: &PieceKey) -> bool {
        self.tablespace == key.tablespace && self.path == key.path
    }

    /// A row that is lost must not become a hole of zeros.
    fn piece(&mut self, piece: u32, bytes: u64) -> Result<()> {
        let fits = self.left.is_none_or(|left| bytes == left.min(PIECE));
        if piece != self.next || !fits {
            return Err(self.broken());
        }
        self.next = piece.saturating_add(1);
        self.left = self.left.map(|left| left.saturating_sub(bytes));
        Ok(())
    }

    fn end(&self) -> Result<()> {
        if self.left.is_some_and(|left| left > 0) { Err(self.broken()) } else { Ok(()) }
    }

    fn broken(&self) -> Error {
        Error::corrupt(format!(
            "the base backup does not hold all of {}: choose a moment that another base backup serves",
            self.path
        ))
    }
}

/// Rows of one window.
struct Window {
    rows: Vec<Row>,
    last: Bytes,
}

impl Files {
    /// Everything after what the journal has.
    pub async fn write(&self, journal: &mut Journal) -> Result<Written> {
        let mut written = Written::default();
        let done = journal.done()?;
        let mut coming = done.as_deref().map(|done| self.begun(done)).transpose()?;
        let mut next = Some(self.read_ahead(done.map(after)));
        while let Some(reading) = next.take() {
            let Some(window) = reading.await?? else { break };
            next = Some(self.read_ahead(Some(after(window.last.to_vec()))));
            let flush = Flush::begin(&self.layout)?;
            self.window(&window.rows, &mut coming, &mut written).await?;
            task::blocking(move || flush.end()).await??;
            journal.advance(&window.last)?;
        }
        coming.map_or(Ok(()), |coming| coming.end())?;
        Ok(written)
    }

    /// The file in which an earlier run stopped.
    fn begun(&self, done: &[u8]) -> Result<Coming> {
        let key = PieceKey::decode(done)?;
        let file = self.place(&key)?;
        Ok(Coming {
            tablespace: key.tablespace,
            path: key.path,
            file,
            next: key.piece.saturating_add(1),
            left: None,
        })
    }

    fn place(&self, key: &PieceKey) -> Result<Option<Arc<PathBuf>>> {
        Ok(match self.layout.place(key.tablespace, &key.path)? {
            Use::Write(path) => Some(Arc::new(path)),
            Use::Last | Use::Leave => None,
        })
    }

    /// Reads the next window while the one before is written.
    fn read_ahead(&self, from: Option<Vec<u8>>) -> task::Task<Result<Option<Window>>> {
        let (view, layers, most) = (Arc::clone(&self.view), Arc::clone(&self.layers), self.window_size);
        task::spawn(async move {
            let mut from = from.unwrap_or_default();
            let (mut rows, mut bytes) = (Vec::new(), 0);
            while rows.len() < most.rows && bytes < most.bytes {
                let more = view.rows(&layers, &from, ROWS.min(most.rows)).await?;
                let Some(last) = more.last() else { break };
                from = after(last.key.to_vec());
                bytes += more.iter().map(opened).sum::<u64>();
                rows.extend(more);
            }
            Ok(rows.last().map(|row| row.key.clone()).map(|last| Window { rows, last }))
        })
    }

    async fn window(&self, rows: &[Row], coming: &mut Option<Coming>, written: &mut Written) -> Result<()> {
        let (mut pieces, mut plain) = (Vec::new(), Vec::new());
        for row in rows {
            let key = PieceKey::decode(&row.key)?;
            let entry = if key.piece == 0 { Some(Entry::decode(&row.value)?) } else { None };
            if !coming.as_ref().is_some_and(|coming| coming.is(&key)) {
                coming.take().map_or(Ok(()), |coming| coming.end())?;
            }
            let left = entry.as_ref().map(|entry| match entry.kind {
                EntryKind::File { size } => size,
                EntryKind::Folder | EntryKind::Link { .. } => 0,
            });
            let coming = match coming {
                Some(coming) => coming,
                None => {
                    let (file, path) = (self.place(&key)?, key.path.clone());
                    coming.insert(Coming { tablespace: key.tablespace, path, file, next: 0, left })
                }
            };
            coming.piece(key.piece, opened(row))?;
            let Some(file) = coming.file.clone() else { continue };
            if let Some(entry) = entry {
                written.files += u64::from(matches!(entry.kind, EntryKind::File { .. }));
                plain.push((Arc::clone(&file), entry));
            }
            let offset = u64::from(key.piece) * PIECE;
            let mut at = offset;
            for held in &row.held {
                pieces.push(Piece { held: *held, file: Arc::clone(&file), offset: at });
                at += u64::from(held.extent.opened);
            }
            if at - offset > PIECE {
                return Err(coming.broken());
            }
            written.bytes += at - offset;
        }
        let (owner, folder_mode) = (self.owner, self.folder_mode);
        task::blocking(move || make(&plain, owner, folder_mode)).await??;
        self.pieces(pieces).await
    }

    async fn pieces(&self, mut pieces: Vec<Piece>) -> Result<()> {
        pieces.sort_by_key(|piece| (piece.held.extent.pack, piece.held.extent.offset));
        let (flusher, to_flush) = Flusher::start();
        let jobs = futures::stream::iter(spread(groups(pieces))).map(|group| {
            let (view, progress, flusher) =
                (Arc::clone(&self.view), Arc::clone(&self.progress), to_flush.clone());
            task::spawn(async move {
                let held: Vec<Held> = group.iter().map(|piece| piece.held).collect();
                let contents = view.contents(&held).await?;
                let large = task::blocking(move || write_group(&group, &contents, &*progress)).await??;
                if let Some(file) = large {
                    // Closed only when the flusher failed, which it says itself.
                    flusher.send(file).await.ok();
                }
                Ok::<_, Error>(())
            })
        });
        let done =
            jobs.buffer_unordered(IN_FLIGHT).map(|joined| joined.and_then(|r| r)).try_collect::<()>().await;
        drop(to_flush);
        let flushed = flusher.end().await;
        done.and(flushed)
    }
}

fn after(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

fn opened(row: &Row) -> u64 {
    row.held.iter().map(|held| u64::from(held.extent.opened)).sum()
}

/// Cuts sorted pieces into reads: neighbours in one pack.
fn groups(pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    let mut all: Vec<Vec<Piece>> = Vec::new();
    let mut bytes = 0;
    for piece in pieces {
        let size = u64::from(piece.held.extent.opened);
        let fits = |group: &Vec<Piece>| {
            bytes + size <= GROUP
                && group.len() < GROUP_PIECES
                && group.last().is_some_and(|last| last.held.extent.pack == piece.held.extent.pack)
        };
        match all.last_mut() {
            Some(group) if fits(group) => group.push(piece),
            _ => {
                bytes = 0;
                all.push(vec![piece]);
            }
        }
        bytes += size;
    }
    all
}

/// Orders reads so that those in flight lie far apart: neighbours belong to one large file, and a file takes one
/// write at a time.
fn spread(groups: Vec<Vec<Piece>>) -> Vec<Vec<Piece>> {
    let stride = groups.len().div_ceil(IN_FLIGHT).max(1);
    let mut order: Vec<_> = groups.into_iter().enumerate().collect();
    order.sort_by_key(|(at, _)| (at % stride, at / stride));
    order.into_iter().map(|(_, group)| group).collect()
}

/// Folders, links and empty files in the order of their keys: a folder comes before what lies in it.
fn make(entries: &[(Arc<PathBuf>, Entry)], owner: Option<Owner>, folder_mode: u32) -> Result<()> {
    for (path, entry) in entries {
        let made = match &entry.kind {
            EntryKind::Folder => make_folder(path, folder_mode),
            // The server sends none but those of tablespaces, which are made by their mapping; whoever forged one
            // would have the files below it written outside the target.
            EntryKind::Link { .. } => {
                Err(io::Error::other("a base backup holds no symbolic links of its own"))
            }
            EntryKind::File { size } => make_file(path, *size, entry.mode, folder_mode),
        };
        made.and_then(|()| give(path, owner)).map_err(|cause| failed("made", path, cause))?;
    }
    Ok(())
}

/// Makes a folder of the target itself. Folders above it stay open to others as the system has it, or the server's
/// account could not reach it.
pub fn make_top(path: &Path, mode: u32) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    make_folder(path, mode)
}

/// Makes a folder and those above it; what is there stays, and so do rights that are as they should be: the root of
/// a mount may belong to somebody else.
pub fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    if fs::metadata(path)?.permissions().mode() & 0o7777 == mode {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

pub fn make_link(path: &Path, target: impl AsRef<Path>) -> io::Result<()> {
    match fs::read_link(path) {
        Ok(held) if held == target.as_ref() => Ok(()),
        Ok(_) => fs::remove_file(path).and_then(|()| symlink(target, path)),
        Err(_) => symlink(target, path),
    }
}

/// Only permissions that keep others out are kept: the server refuses anything wider.
fn make_file(path: &Path, size: u64, mode: u32, folder_mode: u32) -> io::Result<()> {
    let mode = mode & if folder_mode & 0o050 == 0 { 0o700 } else { 0o750 } | 0o600;
    let open = || File::options().write(true).create(true).truncate(false).mode(mode).open(path);
    let file = open().or_else(|cause| match (cause.kind(), path.parent()) {
        (io::ErrorKind::NotFound, Some(parent)) => make_folder(parent, folder_mode).and_then(|()| open()),
        _ => Err(cause),
    })?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.set_len(size)
}

/// Gives one path to the owner that was asked for, links themselves and not what they lead to.
pub fn give(path: &Path, owner: Option<Owner>) -> io::Result<()> {
    match owner {
        Some(owner) => std::os::unix::fs::lchown(path, Some(owner.uid), Some(owner.gid)),
        None => Ok(()),
    }
}

/// Writes the pieces of one read; hands back the file when it got enough to be worth an early flush.
fn write_group(group: &[Piece], contents: &[Bytes], progress: &dyn Progress) -> Result<Option<File>> {
    if contents.len() != group.len() {
        return Err(Error::bug(format!(
            "{} pieces came where {} were asked for",
            contents.len(),
            group.len()
        )));
    }
    let mut open: Option<(Arc<PathBuf>, File, u64)> = None;
    for (piece, bytes) in group.iter().zip(contents) {
        let same = open.as_ref().is_some_and(|(path, ..)| *path == piece.file);
        if !same {
            // Made before with its size; opening does not create, so a window that was journaled stays as it is.
            let file = File::options().write(true).open(&*piece.file);
            open = Some((
                Arc::clone(&piece.file),
                file.map_err(|cause| failed("opened", &piece.file, cause))?,
                0,
            ));
        }
        if let Some((path, file, total)) = &mut open {
            file.write_all_at(bytes, piece.offset).map_err(|cause| failed("written", path, cause))?;
            *total += bytes.len() as u64;
            progress.done(bytes.len() as u64);
        }
    }
    Ok(open.filter(|(_, _, total)| *total >= GROUP / 2).map(|(_, file, _)| file))
}

/// Flushes large files while others are still being written.
struct Flusher(Vec<task::Task<Result<()>>>);

impl Flusher {
    fn start() -> (Self, tokio::sync::mpsc::Sender<File>) {
        let (sender, receiver) = tokio::sync::mpsc::channel::<File>(4);
        let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
        let tasks = (0..FLUSHES).map(|_| {
            let receiver = Arc::clone(&receiver);
            task::spawn(async move {
                loop {
                    let next = receiver.lock().await.recv().await;
                    let Some(file) = next else { return Ok(()) };
                    task::blocking(move || fdatasync(&file)).await?.map_err(|cause| {
                        Error::unreachable("a restored file could not be flushed to disk").because(cause)
                    })?;
                }
            })
        });
        (Self(tasks.collect()), sender)
    }

    async fn end(self) -> Result<()> {
        for task in self.0 {
            task.await??;
        }
        Ok(())
    }
}

/// Flushes whole file systems. The handles are opened before the first write, since the kernel reports an error of
/// writing back only to those that were open when it happened (Linux 5.8 and later).
pub struct Flush(Vec<(PathBuf, File)>);

impl Flush {
    pub fn begin(layout: &Layout) -> Result<Self> {
        let mut handles = Vec::new();
        let mut seen = HashSet::new();
        for folder in layout.folders() {
            let handle = File::open(folder).map_err(|cause| failed("opened", folder, cause))?;
            let device =
                rustix::fs::fstat(&handle).map_err(|cause| failed("read", folder, cause.into()))?.st_dev;
            if seen.insert(device) {
                handles.push((folder.to_owned(), handle));
            }
        }
        Ok(Self(handles))
    }

    pub fn end(self) -> Result<()> {
        for (path, handle) in self.0 {
            syncfs(&handle).map_err(|cause| failed("flushed", &path, cause.into()))?;
            if !kernel_reports_errors() {
                flush_all(&path).map_err(|cause| failed("flushed", &path, cause))?;
            }
        }
        Ok(())
    }
}

/// Since Linux 5.8 `syncfs` tells of writes that failed.
fn kernel_reports_errors() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (5, 8)
}

/// Older kernels tell it to each file alone. Everything was written back already, so this is quick.
fn flush_all(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            flush_all(&entry.path())?;
        } else if kind.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use holdfast_core::digest;
    use holdfast_testkit::MemoryView;
    use proptest::prelude::*;

    use super::{super::journal::tests::moment, *};

    #[derive(Default)]
    struct Count(AtomicU64);

    impl Progress for Count {
        fn total(&self, _: u64) {}
        fn done(&self, bytes: u64) {
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }
        fn say(&self, _: &str) {}
    }

    fn content(file: usize, size: u64) -> Vec<u8> {
        let pattern: Vec<u8> = (0..1021).map(|at| (at / 7 + file * 31) as u8).collect();
        let mut all = pattern.repeat(size as usize / pattern.len() + 1);
        all.truncate(size as usize);
        all
    }

    fn table(view: &mut MemoryView, sizes: &[u64], lost: Option<usize>) -> Vec<Layer> {
        let mut rows = Vec::new();
        for (file, size) in sizes.iter().enumerate() {
            let bytes = content(file, *size);
            let path = format!("base/{}/{file}", file % 3);
            let folder = Entry { kind: EntryKind::Folder, mode: 0o700, mtime: 0 };
            let key = PieceKey { tablespace: 0, path: format!("base/{}", file % 3), piece: 0 };
            rows.push(Row { key: key.encode(), value: folder.encode().unwrap(), held: vec![] });
            let entry = Entry { kind: EntryKind::File { size: *size }, mode: 0o644, mtime: 0 };
            let key =
                |piece: usize| PieceKey { tablespace: 0, path: path.clone(), piece: piece as u32 }.encode();
            rows.push(Row { key: key(0), value: entry.encode().unwrap(), held: vec![] });
            for (piece, bytes) in bytes.chunks(PIECE as usize).enumerate() {
                let mut held = view.put(Bytes::copy_from_slice(bytes));
                if lost == Some(rows.len()) {
                    held.hash = digest(b"something else");
                }
                let value = if piece == 0 { entry.encode().unwrap() } else { Bytes::new() };
                rows.retain(|row| row.key != key(piece));
                rows.push(Row { key: key(piece), value, held: vec![held] });
            }
        }
        vec![view.layer(rows)]
    }

    fn files(view: MemoryView, layers: Vec<Layer>, data: &Path) -> Files {
        let layout = Layout { data: data.to_owned(), wal: None, tablespaces: Default::default() };
        Files {
            view: Arc::new(view),
            progress: Arc::new(Count::default()),
            layers: Arc::new(layers),
            layout: Arc::new(layout),
            owner: None,
            folder_mode: 0o700,
            window_size: WindowSize { rows: 5, bytes: 3 << 20 },
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        /// E17: cut off at a damaged piece, then a power loss that leaves only what the journal claims.
        #[test]
        fn what_is_journaled_is_never_written_again_and_the_rest_is(
            sizes in proptest::collection::vec(prop_oneof![0u64..5000, 0u64..(5 << 19)], 1..24),
            lost in 0usize..60,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let data = folder.path().join("data");
            let own = data.join("own");
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
            let mut view = MemoryView::default();
            let layers = table(&mut view, &sizes, Some(lost));
            let mut journal = Journal::open(&own, "x", "x", &moment(0)).unwrap();
            let first = runtime.block_on(files(view, layers, &data).write(&mut journal));
            let done = journal.done().unwrap();
            drop(journal);
            let durable = |path: &str, piece: u32| {
                let key = PieceKey { tablespace: 0, path: path.to_owned(), piece }.encode();
                done.as_ref().is_some_and(|done| key[..] <= done[..])
            };
            let path = |file: usize| format!("base/{}/{file}", file % 3);
            for (file, size) in sizes.iter().enumerate() {
                let last = (size.div_ceil(PIECE).max(1) - 1) as u32;
                if !durable(&path(file), last) {
                    // What was written of it is lost, in part or whole; its name may be, too.
                    let place = data.join(path(file));
                    if durable(&path(file), 0) {
                        let keep = (0..=last).take_while(|piece| durable(&path(file), *piece)).count() as u64;
                        let keep = content(file, *size)[..(keep * PIECE).min(*size) as usize].to_vec();
                        let held = File::options().write(true).truncate(true).open(&place).unwrap();
                        held.write_all_at(&keep, 0).unwrap();
                        held.set_len(*size).unwrap();
                    } else {
                        fs::remove_file(&place).ok();
                    }
                }
            }
            let mut view = MemoryView::default();
            let layers = table(&mut view, &sizes, None);
            let mut journal = Journal::open(&own, "x", "x", &moment(0)).unwrap();
            let second = files(view, layers, &data);
            let progress: Arc<Count> = Arc::new(Count::default());
            let second = Files { progress: Arc::clone(&progress) as Arc<dyn Progress>, ..second };
            runtime.block_on(second.write(&mut journal)).unwrap();
            for (file, size) in sizes.iter().enumerate() {
                let place = data.join(path(file));
                prop_assert!(fs::read(&place).unwrap() == content(file, *size), "file {file}");
                let mode = fs::metadata(&place).unwrap().permissions().mode() & 0o777;
                prop_assert_eq!(mode, 0o600, "wider than the server allows");
            }
            if first.is_ok() {
                prop_assert_eq!(progress.0.load(Ordering::Relaxed), 0, "written twice");
            }
        }
    }

    #[tokio::test]
    async fn a_lost_row_is_no_hole_of_zeros_and_a_link_is_refused() {
        let size = 3 * PIECE + 5;
        let rows = |view: &mut MemoryView, kind: EntryKind, lost: u32| {
            let entry = Entry { kind, mode: 0o600, mtime: 0 };
            let mut rows = Vec::new();
            for (piece, bytes) in (0u32..).zip(content(1, size).chunks(PIECE as usize)) {
                let value = if piece == 0 { entry.encode().unwrap() } else { Bytes::new() };
                let key = PieceKey { tablespace: 0, path: "base/1/2".to_owned(), piece }.encode();
                let held = vec![view.put(Bytes::copy_from_slice(bytes))];
                rows.push(Row { key, value, held });
            }
            rows.retain(|row| PieceKey::decode(&row.key).unwrap().piece != lost);
            rows
        };
        let write = async |kind: EntryKind, lost: u32| {
            let folder = tempfile::tempdir().unwrap();
            let (data, own) = (folder.path().join("data"), folder.path().join("own"));
            fs::create_dir_all(data.join("base/1")).unwrap();
            fs::create_dir_all(&own).unwrap();
            let mut view = MemoryView::default();
            let rows = rows(&mut view, kind, lost);
            let layers = vec![view.layer(rows)];
            let mut journal = Journal::open(&own, "x", "x", &moment(0)).unwrap();
            files(view, layers, &data).write(&mut journal).await.map(|written| written.bytes)
        };
        assert_eq!(write(EntryKind::File { size }, 9).await.unwrap(), size);
        for lost in 0..4 {
            let error = write(EntryKind::File { size }, lost).await.unwrap_err();
            assert!(error.to_string().contains("does not hold all of base/1/2"), "{lost}: {error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("outside");
        let link = Entry { kind: EntryKind::Link { target: "/etc".to_owned() }, mode: 0o777, mtime: 0 };
        let error = make(&[(Arc::new(target.clone()), link)], None, 0o700).unwrap_err();
        assert!(
            error.chain().contains("no symbolic links") && fs::read_link(&target).is_err(),
            "{}",
            error.chain()
        );
    }

    #[test]
    fn reads_join_neighbours_of_one_pack() {
        let mut view = MemoryView::default();
        let held: Vec<Held> = (0..40).map(|_| view.put(Bytes::from(vec![1; 1 << 20]))).collect();
        let file = Arc::new(PathBuf::from("/x"));
        let pieces =
            held.iter().map(|held| Piece { held: *held, file: Arc::clone(&file), offset: 0 }).collect();
        let groups = groups(pieces);
        assert!(groups.iter().all(|group| group.len() <= 8), "8 MiB at most");
        assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), 40);
        assert_eq!(groups.len(), 5);
    }
}
