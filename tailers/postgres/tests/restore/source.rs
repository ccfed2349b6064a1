//! A real server as a lineage in memory: base backups by copying its folder, WAL and marks from its segments.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use holdfast_core::{
    Branch, Bytes, Catalog, Checkpoint, Mark, MarkKind, Note, Place, Row, RunId, Span, Timestamp,
};
use holdfast_harness::{Major, Options, Server, User};
use holdfast_postgres::{
    records::{Base, Entry, EntryKind, NoteBody, PIECE, Parameters, PieceKey, Tablespace, WalLevel},
    wal::{self, Lsn, Parser, SegmentSize, Start, What},
};
use holdfast_testkit::MemoryView;

pub struct Source {
    pub server: Server,
    pub view: MemoryView,
    /// Log is held up to here.
    held: Option<(u32, u64)>,
    runs: u64,
}

/// Contents that a base backup leaves out.
const EMPTY: [&str; 8] = [
    "pg_wal",
    "pg_replslot",
    "pg_dynshmem",
    "pg_notify",
    "pg_serial",
    "pg_snapshots",
    "pg_stat_tmp",
    "pg_subtrans",
];

impl Source {
    pub async fn start(options: impl Into<Options>) -> Result<Self> {
        let options: Options = options.into();
        let server = Server::start(options.set("wal_keep_size", "2GB").set("autovacuum", "off")).await?;
        Ok(Self { server, view: MemoryView::default(), held: None, runs: 0 })
    }

    /// Goes on with another server of the same cluster: a promoted one.
    pub fn follow(&mut self, server: Server) {
        self.server = server;
    }

    async fn number(&self, name: &str) -> Result<u32> {
        let text =
            self.server.value(&format!("select setting from pg_settings where name = '{name}'")).await?;
        Ok(text.parse()?)
    }

    pub async fn parameters(&self) -> Result<Parameters> {
        Ok(Parameters {
            max_connections: self.number("max_connections").await?,
            max_worker_processes: self.number("max_worker_processes").await?,
            max_wal_senders: self.number("max_wal_senders").await?,
            max_prepared_transactions: self.number("max_prepared_transactions").await?,
            max_locks_per_transaction: self.number("max_locks_per_transaction").await?,
            wal_level: WalLevel::Replica,
            wal_log_hints: false,
            track_commit_timestamp: false,
        })
    }

    async fn now(&self) -> Result<Timestamp> {
        let text =
            self.server.value("select (extract(epoch from clock_timestamp()) * 1000000)::bigint").await?;
        Ok(Timestamp(text.parse()?))
    }

    /// Takes a base backup and all WAL up to now.
    pub async fn base(&mut self) -> Result<()> {
        self.run(None).await
    }

    /// Takes a base backup of a standby, and all WAL of the primary.
    pub async fn base_of_standby(&mut self, standby: Server) -> Result<()> {
        self.run(Some(standby)).await
    }

    async fn run(&mut self, standby: Option<Server>) -> Result<()> {
        let primary = standby.map(|standby| std::mem::replace(&mut self.server, standby));
        let from_standby = primary.is_some();
        let old = self.server.options().major() < Major::V15;
        let client = self.server.client().await?;
        let began = self.now().await?;
        let start = if old { "pg_start_backup('t', true, false)" } else { "pg_backup_start('t', true)" };
        let stop = if old { "pg_stop_backup(false, false)" } else { "pg_backup_stop(false)" };
        let start: String = client.query_one(&format!("select {start}::text"), &[]).await?.get(0);
        let start: Lsn = start.parse()?;
        let timeline = self.server.timeline().await?;
        let mut rows = Vec::new();
        let data = self.server.data().to_owned();
        self.folder(0, &data, Path::new(""), &mut rows)?;
        let mut tablespaces = Vec::new();
        for row in client
            .query("select oid, pg_tablespace_location(oid) from pg_tablespace where spcname !~ '^pg_'", &[])
            .await?
        {
            let (oid, location): (u32, String) = (row.get(0), row.get(1));
            self.folder(oid, Path::new(&location), Path::new(""), &mut rows)?;
            tablespaces.push(Tablespace { oid, location });
        }
        let ended = client.query_one(&format!("select lsn::text, labelfile from {stop}"), &[]).await?;
        let (end, label): (String, String) = (ended.get(0), ended.get(1));
        let end: Lsn = end.parse()?;
        self.file(0, "backup_label", label.as_bytes(), &mut rows)?;
        rows.retain(|row| !row.key.starts_with(b"\0\0\0\0global/pg_control\0"));
        let control = fs::read(data.join("global/pg_control"))?;
        self.file(0, "global/pg_control", &control, &mut rows)?;
        let base = Base {
            label: "t".into(),
            timeline,
            start,
            end_timeline: timeline,
            end,
            tablespaces,
            segment_size: u32::try_from(segment_size(&self.server).await?.bytes())?,
            version: self.number("server_version_num").await?,
            system_identifier: self.server.system_identifier().await?,
            parameters: self.parameters().await?,
            checksums: true,
            group_access: false,
            from_standby,
        };
        let place = |lsn: Lsn| Place { branch: Branch(u64::from(timeline)), position: lsn.0 };
        self.runs += 1;
        let rows_count = rows.len() as u64;
        let bytes = rows.iter().flat_map(|row| &row.held).map(|held| u64::from(held.extent.opened)).sum();
        let layer = self.view.layer(rows);
        if self.held.is_none() {
            // The first stream begins in the middle of a segment, as ours may.
            self.held = Some((timeline, start.0));
        }
        self.view.checkpoint(Checkpoint {
            id: RunId(self.runs.to_be_bytes()),
            begin: place(start),
            serves: place(end),
            began,
            ended: self.now().await?,
            layers: vec![layer],
            rows: rows_count,
            bytes,
            sent: bytes,
            suspect: None,
            body: base.encode()?,
        });
        if let Some(primary) = primary {
            self.server = primary;
        }
        self.wal().await
    }

    fn folder(&mut self, oid: u32, root: &Path, below: &Path, rows: &mut Vec<Row>) -> Result<()> {
        for entry in fs::read_dir(root.join(below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            let name = path.to_string_lossy().into_owned();
            let last = entry.file_name().to_string_lossy().into_owned();
            if last.starts_with("postmaster.") || last.starts_with("pgsql_tmp") || last == "backup_label" {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                let value = Entry { kind: EntryKind::Folder, mode: 0o700, mtime: 0 };
                let key = PieceKey { tablespace: oid, path: name.clone(), piece: 0 };
                rows.push(Row { key: key.encode(), value: value.encode()?, held: vec![] });
                if oid != 0 || !EMPTY.contains(&name.as_str()) {
                    self.folder(oid, root, &path, rows)?;
                }
            } else if kind.is_file() {
                // A file may vanish or grow meanwhile: WAL mends it.
                if let Ok(bytes) = fs::read(entry.path()) {
                    self.file(oid, &name, &bytes, rows)?;
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, oid: u32, name: &str, bytes: &[u8], rows: &mut Vec<Row>) -> Result<()> {
        let value = Entry { kind: EntryKind::File { size: bytes.len() as u64 }, mode: 0o600, mtime: 0 };
        let mut pieces: Vec<&[u8]> = bytes.chunks(PIECE as usize).collect();
        if pieces.is_empty() {
            pieces.push(b"");
        }
        for (piece, bytes) in pieces.into_iter().enumerate() {
            let key = PieceKey { tablespace: oid, path: name.to_owned(), piece: u32::try_from(piece)? };
            let held =
                if bytes.is_empty() { vec![] } else { vec![self.view.put(Bytes::copy_from_slice(bytes))] };
            let value = if piece == 0 { value.encode()? } else { Bytes::new() };
            rows.push(Row { key: key.encode(), value, held });
        }
        Ok(())
    }

    /// Takes all WAL that the server has flushed since last time, with its marks, histories and parameter changes.
    pub async fn wal(&mut self) -> Result<()> {
        self.server.sql("create table if not exists flush_(i int); insert into flush_ values (1)").await?;
        self.wal_as_it_is().await
    }

    /// As [`Self::wal`], without a commit of its own.
    pub async fn wal_as_it_is(&mut self) -> Result<()> {
        let timeline = self.server.timeline().await?;
        let end: Lsn = self.server.value("select pg_current_wal_flush_lsn()").await?.parse()?;
        let now = self.now().await?;
        self.take(timeline, end, now, segment_size(&self.server).await?)
    }

    /// The lineage as it is now; the source goes on with an empty one unless it gets it back.
    pub fn lend(&mut self) -> Arc<MemoryView> {
        Arc::new(std::mem::take(&mut self.view))
    }

    pub fn take_back(&mut self, view: Arc<MemoryView>) -> Result<()> {
        self.view = Arc::into_inner(view).context("somebody still reads")?;
        Ok(())
    }

    fn take(&mut self, timeline: u32, end: Lsn, now: Timestamp, size: SegmentSize) -> Result<()> {
        let folder = self.server.data().join("pg_wal");
        let (held, mut from) = self.held.unwrap_or((timeline, end.0));
        if held != timeline {
            let content = fs::read(folder.join(format!("{timeline:08X}.history")))?;
            let history = wal::History::parse(timeline, &content)?;
            let place = Place { branch: Branch(u64::from(timeline)), position: from };
            let switch = history.start_of(timeline).context("no start")?;
            let body = NoteBody::History { timeline, content: content.into() }.encode()?;
            self.view.note(Note { place, time: now, body });
            from = switch.0;
        }
        let branch = Branch(u64::from(timeline));
        let mut parser = Parser::new(Lsn(from), Start::Record, size);
        let mut found = Vec::new();
        while from < end.0 {
            let number = size.number(Lsn(from));
            let bytes = fs::read(folder.join(size.file_name(timeline, number)))?;
            let start = size.start(number).context("start")?.0;
            let to = end.0.min(start + size.bytes());
            let bytes = Bytes::from(bytes).slice((from - start) as usize..(to - start) as usize);
            parser.push(&bytes, &mut found);
            self.view.add_log(branch, from, bytes);
            from = to;
        }
        for found in found {
            let place = Place { branch, position: found.end.0 };
            let (time, kind) = match found.what {
                What::Entry(wal::Entry::Commit { xid, time }) => (time, MarkKind::Commit { id: xid }),
                What::Entry(wal::Entry::RestorePoint { name, time }) => (time, MarkKind::Name(name)),
                What::Entry(wal::Entry::Parameters(changed)) => {
                    let body = NoteBody::Parameters(changed).encode()?;
                    self.view.note(Note { place, time: now, body });
                    continue;
                }
                What::Damage(why) => anyhow::bail!("damage at {}: {why}", found.begin),
                _ => continue,
            };
            self.view.marks.push(Mark { begin: found.begin.0, place, time, kind });
        }
        self.held = Some((timeline, end.0));
        self.view.vouched = Some(now);
        self.view.catalog.samples.clear();
        self.view.sample(7);
        Ok(())
    }

    /// Leaves catalog and log in a folder, for prefetchers that run as processes of their own.
    pub fn dump(&self, folder: &Path) -> Result<()> {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)?;
        fs::write(folder.join("catalog.json"), serde_json::to_vec(&self.view.catalog)?)?;
        let spans: &[Span] = &self.view.catalog.spans;
        for span in spans {
            let mut bytes = Vec::new();
            futures::executor::block_on(holdfast_postgres::restore::search::read_log(
                &self.view, *span, &mut bytes,
            ))?;
            fs::write(folder.join(format!("{}-{}.wal", span.branch.0, span.from)), bytes)?;
        }
        User::give_all(folder)?;
        Ok(())
    }
}

/// What [`Source::dump`] left.
pub fn load(folder: &Path) -> Result<MemoryView> {
    let mut view = MemoryView::default();
    let catalog: Catalog = serde_json::from_slice(&fs::read(folder.join("catalog.json"))?)?;
    for span in &catalog.spans {
        let path: PathBuf = folder.join(format!("{}-{}.wal", span.branch.0, span.from));
        view.add_log(span.branch, span.from, fs::read(path)?.into());
    }
    view.catalog = catalog;
    Ok(view)
}

pub async fn segment_size(server: &Server) -> Result<SegmentSize> {
    let bytes =
        server.value("select setting::bigint from pg_settings where name = 'wal_segment_size'").await?;
    Ok(SegmentSize::new(bytes.parse()?)?)
}
