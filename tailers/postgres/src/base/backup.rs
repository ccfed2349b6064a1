//! One base backup, from BASE_BACKUP to a finished run.

use std::{sync::Arc, time::Duration};

use holdfast_core::{Bytes, Clock, Content, Error, Finished, Instant, Result, State, text::show_duration};
use holdfast_pgwire::{BackupEvent, BackupOptions, Connection, SqlState};

use super::{
    Bases, Reason,
    files::Files,
    known::Known,
    manifest::{ManifestReader, Tally},
    tar::{Member, MemberKind, Part, TarParser},
};
use crate::{
    records::{Base, Entry, EntryKind, MANIFEST, Tablespace, place},
    tail::{Facts, parameters},
    wal::Lsn,
};

/// What was said before the first file.
struct Head {
    start: Lsn,
    timeline: u32,
    tablespaces: Vec<Tablespace>,
}

/// Makes one. Errors with a passing act mean: try again.
pub(super) async fn take(
    bases: &Bases,
    reason: Reason,
    content: &Arc<dyn Content>,
    state: &Arc<dyn State>,
) -> Result<Finished> {
    let mut connection = Connection::open(&bases.config, &bases.clock).await?;
    let facts = Facts::gather(&mut connection).await?;
    let parameters = parameters(&mut connection).await?;
    let checksums = connection.show("data_checksums").await? == "on";
    let group_access = connection.show("data_directory_mode").await?.ends_with("50");
    let began = bases.clock.wall();
    let options = BackupOptions {
        label: format!("holdfast {began}"),
        progress: true,
        fast: reason == Reason::Needed,
        max_rate: bases.rate.map(|rate| u32::try_from(rate / 1024).unwrap_or(u32::MAX).clamp(32, 1 << 20)),
        tablespace_map: false,
        ..BackupOptions::default()
    };
    tracing::info!(host = %facts.host, label = options.label, "a base backup begins");
    let mut stream = connection.base_backup(&options).await.map_err(broken)?;
    let head = match stream.next().await.map_err(broken)? {
        BackupEvent::Start { start, timeline, tablespaces } => {
            let total = tablespaces.iter().filter_map(|one| one.kib).sum::<u64>().saturating_mul(1024);
            bases.health.change(|health| health.base_backup.total = Some(total));
            let tablespaces = tablespaces
                .into_iter()
                .filter_map(|one| Some(Tablespace { oid: one.oid?, location: one.location? }))
                .collect();
            Head { start: Lsn(start.0), timeline, tablespaces }
        }
        other => return Err(Error::corrupt(format!("a base backup begins with {other:?}"))),
    };
    let run = content.begin(began, Bytes::from(options.label.clone())).await?;
    let known = Known::new(state.clone(), &state.catalog());
    let mut taking = Taking {
        files: Files::new(content.clone(), run, known, bases.health.clone()),
        parts: Vec::new(),
        tar: None,
        member: None,
        tally: Tally::default(),
        manifest: None,
        manifest_size: 0,
        mtime: began.micros() / 1_000_000,
    };
    let mut pace = Pace { source: Duration::ZERO, store: Duration::ZERO, since: bases.clock.now() };
    let (end, end_timeline, damage) = loop {
        let event = stream.next().await.map_err(broken)?;
        pace.of_source(&bases.clock);
        match event {
            BackupEvent::Start { .. } => return Err(Error::corrupt("a base backup begins twice")),
            BackupEvent::Archive { oid, .. } => taking.archive(oid)?,
            BackupEvent::Data(bytes) => taking.data(bytes).await?,
            BackupEvent::ManifestBegin => taking.begin_manifest()?,
            BackupEvent::Manifest(bytes) => taking.manifest_data(bytes).await?,
            BackupEvent::Progress(_) => {}
            BackupEvent::End { end, timeline, damage } => break (Lsn(end.0), timeline, damage),
        }
        pace.of_store(&bases.clock);
        pace.report(bases);
    };
    let files = taking.finish().await?;
    let (taken, sent, count) = (files.taken, files.sent, files.count);
    let run = files.finish().await?;
    pace.of_store(&bases.clock);
    pace.report(bases);
    let suspect = damage.map(|error| error.to_string());
    if let Some(suspect) = &suspect {
        tracing::error!(
            "the server found damaged pages during the base backup: {suspect}. It is kept and marked suspect"
        );
        let notice = format!("the newest base backup holds damaged pages: {suspect}");
        bases.health.change(|health| health.notice = notice);
    }
    let body = Base {
        label: options.label,
        timeline: head.timeline,
        start: head.start,
        end_timeline,
        end,
        tablespaces: head.tablespaces,
        segment_size: facts.segment.into(),
        version: facts.version,
        system_identifier: facts.system_identifier,
        parameters,
        checksums,
        group_access,
        from_standby: facts.standby,
    };
    let limit = if pace.store > pace.source { "the store" } else { "the server" };
    let (source, store) = (show_duration(pace.source), show_duration(pace.store));
    tracing::info!(
        files = count, bytes = taken, sent, start = %body.start, end = %body.end,
        "a base backup ended; it waited {source} for the server and {store} for the store: its limit was {limit}"
    );
    let (begin, serves) = (place(body.timeline, body.start), place(body.end_timeline, body.end));
    run.finish(begin, serves, bases.clock.wall(), suspect, body.encode()?).await
}

/// What a backup waits for.
struct Pace {
    source: Duration,
    store: Duration,
    since: Instant,
}

impl Pace {
    fn lap(&mut self, clock: &Clock) -> Duration {
        let since = std::mem::replace(&mut self.since, clock.now());
        self.since.duration_since(since)
    }

    fn of_source(&mut self, clock: &Clock) {
        let lap = self.lap(clock);
        self.source += lap;
    }

    fn of_store(&mut self, clock: &Clock) {
        let lap = self.lap(clock);
        self.store += lap;
    }

    fn report(&self, bases: &Bases) {
        bases.health.change(|health| {
            health.base_backup.source_wait = self.source;
            health.base_backup.store_wait = self.store;
        });
    }
}

/// What a failure of the server in the middle means.
fn broken(cause: holdfast_pgwire::Error) -> Error {
    let code = cause.code();
    let error = Error::from(cause);
    match code {
        Some(SqlState::NOT_IN_PREREQUISITE_STATE) => Error::retry(
            "the server could not go on with the base backup (a standby that was promoted meanwhile does that); it is \
             made anew",
        )
        .because(error),
        Some(SqlState::INSUFFICIENT_PRIVILEGE) => {
            error.during("the user may not make base backups: give it the attribute REPLICATION")
        }
        _ => error,
    }
}

struct Taking {
    files: Files,
    parts: Vec<Part>,
    /// The open tar stream and its tablespace (0: the data folder).
    tar: Option<(TarParser, u32)>,
    member: Option<Receiving>,
    tally: Tally,
    manifest: Option<ManifestReader>,
    manifest_size: u64,
    mtime: i64,
}

/// The member being received.
struct Receiving {
    /// As the manifest names it.
    path: String,
    size: u64,
    checksum: u32,
    kind: Kept,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    File,
    /// Folders and links: no part of the manifest.
    Other,
    /// Not kept: links to tablespaces, which a restore makes itself.
    Dropped,
}

impl Taking {
    fn archive(&mut self, oid: Option<u32>) -> Result<()> {
        if let Some((tar, _)) = self.tar.take() {
            tar.finish()?;
        }
        self.tar = Some((TarParser::default(), oid.unwrap_or(0)));
        Ok(())
    }

    async fn data(&mut self, bytes: Bytes) -> Result<()> {
        let Some((tar, tablespace)) = &mut self.tar else {
            return Err(Error::corrupt("the base backup has data before its first archive"));
        };
        let tablespace = *tablespace;
        let mut parts = std::mem::take(&mut self.parts);
        tar.push(bytes, &mut parts)?;
        for part in parts.drain(..) {
            match part {
                Part::Member(member) => self.member(tablespace, member)?,
                Part::Data(bytes) => self.member_data(bytes).await?,
                Part::End => self.member_end().await?,
            }
        }
        self.parts = parts;
        Ok(())
    }

    fn member(&mut self, tablespace: u32, member: Member) -> Result<()> {
        let Member { path, kind, size, mode, mtime } = member;
        let (entry, kept) = match kind {
            MemberKind::File => (EntryKind::File { size }, Kept::File),
            MemberKind::Folder => (EntryKind::Folder, Kept::Other),
            MemberKind::Link { .. } if tablespace == 0 && path.starts_with("pg_tblspc/") => {
                (EntryKind::Folder, Kept::Dropped)
            }
            MemberKind::Link { target } => {
                return Err(Error::corrupt(format!(
                    "the base backup holds «{path}», a symbolic link to {target}"
                )));
            }
        };
        let kept = if path.is_empty() || path == "." { Kept::Dropped } else { kept };
        let named = match tablespace {
            0 => path.clone(),
            oid => format!("pg_tblspc/{oid}/{path}"),
        };
        if kept != Kept::Dropped {
            self.files.begin(tablespace, path, Entry { kind: entry, mode, mtime });
        }
        self.member = Some(Receiving { path: named, size, checksum: 0, kind: kept });
        Ok(())
    }

    async fn member_data(&mut self, bytes: Bytes) -> Result<()> {
        if let Some(member) = &mut self.member {
            member.checksum = crc32c::crc32c_append(member.checksum, &bytes);
        }
        self.files.data(bytes).await
    }

    async fn member_end(&mut self) -> Result<()> {
        let Some(member) = self.member.take() else { return Ok(()) };
        if member.kind == Kept::File {
            self.tally.add(&member.path, member.size, member.checksum);
        }
        if member.kind != Kept::Dropped {
            self.files.end(None).await?;
        }
        Ok(())
    }

    fn begin_manifest(&mut self) -> Result<()> {
        if let Some((tar, _)) = self.tar.take() {
            tar.finish()?;
        }
        self.manifest = Some(ManifestReader::default());
        self.files.begin_unsized(MANIFEST, 0o600, self.mtime);
        Ok(())
    }

    async fn manifest_data(&mut self, bytes: Bytes) -> Result<()> {
        let Some(manifest) = &mut self.manifest else {
            return Err(Error::corrupt("the base backup has manifest bytes before its manifest"));
        };
        manifest.push(&bytes)?;
        self.manifest_size += bytes.len() as u64;
        self.files.data(bytes).await
    }

    async fn finish(mut self) -> Result<Files> {
        let manifest =
            self.manifest.take().ok_or_else(|| Error::retry("the base backup came without its manifest"))?;
        manifest.finish(&self.tally)?;
        self.files.end(Some(self.manifest_size)).await?;
        Ok(self.files)
    }
}
