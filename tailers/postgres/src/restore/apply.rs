//! Carries a plan out. Order: folders and links, the files of the base backup in journaled windows, settings and
//! signal file, a flush of everything, and only then the control file, without which no server starts.
//!
//! Invariant: at every instant the target is either refused by the server or whole.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

use holdfast_core::{Bytes, Error, Progress, Report, Result, View, task, text::show_size};

use super::{
    control,
    files::{Files, Flush, WindowSize, Written, give, make_folder, make_link, make_top},
    journal::{Journal, failed, replace},
    plan::PostgresPlan,
    recovery::{self, Recovery},
    target::{AUTO_CONF, CONTROL, Layout, Owner},
};
use crate::records::{Entry, EntryKind, PieceKey};

/// Largest file that is read into memory at the end: the control file has 8 KiB, settings a few more.
const SMALL_MAX: u64 = 4 << 20;

pub struct Apply {
    plan: PostgresPlan,
    view: Arc<dyn View>,
    progress: Arc<dyn Progress>,
    layout: Arc<Layout>,
    folder_mode: u32,
}

impl Apply {
    pub fn new(plan: PostgresPlan, view: Arc<dyn View>, progress: Arc<dyn Progress>) -> Self {
        let layout = Arc::new(Layout::new(&plan.target, &plan.base));
        let folder_mode = if plan.base.group_access { 0o750 } else { 0o700 };
        Self { plan, view, progress, layout, folder_mode }
    }

    pub async fn run(self) -> Result<Report> {
        let (layout, owner, mode) = (Arc::clone(&self.layout), self.plan.target.owner, self.folder_mode);
        let (wish, moment) = (self.plan.wish.clone(), self.plan.moment.clone());
        let (digest, later) = (self.plan.digest.clone(), self.plan.later.clone());
        let mut journal = task::blocking(move || {
            let made = make_top(&layout.data, mode).and_then(|()| give(&layout.data, owner));
            made.map_err(|cause| failed("made", &layout.data, cause))?;
            let journal = Journal::open(&layout.own(), &digest, &wish, &moment)?;
            if !journal.state.finished {
                skeleton(&layout, &later, owner, mode)?;
            }
            Ok::<_, Error>(journal)
        })
        .await??;
        if journal.state.finished {
            return Ok(self.report(Written::default(), true));
        }
        self.progress.total(self.plan.checkpoint.bytes);
        self.progress.say("files of the base backup");
        let files = Files {
            view: Arc::clone(&self.view),
            progress: Arc::clone(&self.progress),
            layers: Arc::new(self.plan.checkpoint.layers.clone()),
            layout: Arc::clone(&self.layout),
            owner,
            folder_mode: self.folder_mode,
            window_size: WindowSize::default(),
        };
        let written = files.write(&mut journal).await?;
        self.progress.say("settings and control file");
        let control = self.small(CONTROL).await?.ok_or_else(|| {
            Error::corrupt(
                "the base backup holds no control file (global/pg_control): choose another base backup",
            )
        })?;
        let control = control::without_checkpoint(&control)?;
        let held = self.small(AUTO_CONF).await?.unwrap_or_default();
        let block = self.plan.recovery.block(&self.plan.target, self.plan.base.version);
        let settings = recovery::with_block(&held, &block);
        let (layout, signal) = (Arc::clone(&self.layout), Recovery::signal(&self.plan.target));
        let file_mode = if self.plan.base.group_access { 0o640 } else { 0o600 };
        task::blocking(move || {
            let flush = Flush::begin(&layout)?;
            let put = |name: &str, bytes: &[u8]| -> Result<()> {
                let path = layout.data.join(name);
                replace(&path, bytes, file_mode)?;
                give(&path, owner).map_err(|cause| failed("given away", &path, cause))
            };
            for (name, text) in recovery::missing_configuration(|name| layout.data.join(name).exists()) {
                put(name, &text)?;
            }
            put(AUTO_CONF, settings.as_bytes())?;
            put(signal, b"")?;
            give_own(&layout, owner)?;
            label_is_there(&layout.data)?;
            flush.end()?;
            let flush = Flush::begin(&layout)?;
            put(CONTROL, &control)?;
            flush.end()?;
            journal.finish()
        })
        .await??;
        Ok(self.report(written, false))
    }

    /// A small file of the base backup, whole.
    async fn small(&self, path: &str) -> Result<Option<Bytes>> {
        let key = |piece| PieceKey { tablespace: 0, path: path.to_owned(), piece }.encode();
        let rows = self.view.rows(&self.plan.checkpoint.layers, &key(0), 8).await?;
        let Some(first) = rows.first().filter(|row| row.key == key(0)) else { return Ok(None) };
        let EntryKind::File { size } = Entry::decode(&first.value)?.kind else { return Ok(None) };
        if size > SMALL_MAX {
            return Err(Error::corrupt(format!("{path} in the base backup has {}", show_size(size))));
        }
        let mut bytes = Vec::new();
        for (row, piece) in rows.iter().zip(0..) {
            if row.key != key(piece) {
                break;
            }
            for held in &row.held {
                bytes.extend_from_slice(&self.view.content(held).await?);
            }
        }
        Ok(Some(bytes.into()))
    }

    fn report(&self, written: Written, before: bool) -> Report {
        let data = self.plan.target.data.display();
        let mut lines = Vec::new();
        if before {
            lines.push("This restore was finished before; nothing was changed.".to_owned());
        }
        lines.push(format!(
            "Start it with PostgreSQL {}: pg_ctl -D {data} start",
            self.plan.base.version / 10_000
        ));
        lines.push(format!(
            "Then it {}.",
            recovery::describe(&self.plan.target, self.plan.recovery.until.is_none())
        ));
        lines.push(
            "Settings of the source that reach elsewhere (synchronous standbys, replication, subscriptions, archiving) are switched off at the end of postgresql.auto.conf.".to_owned(),
        );
        Report { files: written.files, bytes: written.bytes, lines }
    }
}

/// Folders that must be there before the first file, and our links.
fn skeleton(layout: &Layout, later: &BTreeSet<PathBuf>, owner: Option<Owner>, mode: u32) -> Result<()> {
    let make = |path: &Path| {
        let made = make_folder(path, mode).and_then(|()| give(path, owner));
        made.map_err(|cause| failed("made", path, cause))
    };
    let link = |path: &Path, to: &Path| {
        let made = make_link(path, to).and_then(|()| give(path, owner));
        made.map_err(|cause| failed("made", path, cause))
    };
    for folder in layout.folders().chain(later.iter().map(PathBuf::as_path)) {
        let made = make_top(folder, mode).and_then(|()| give(folder, owner));
        made.map_err(|cause| failed("made", folder, cause))?;
    }
    if let Some(wal) = &layout.wal {
        link(&layout.data.join("pg_wal"), wal)?;
    }
    for folder in recovery::FOLDERS {
        let path = layout.data.join(folder);
        if !path.is_symlink() {
            make(&path)?;
        }
    }
    for (oid, place) in &layout.tablespaces {
        link(&layout.data.join("pg_tblspc").join(oid.to_string()), place)?;
    }
    // What is not journaled as finished must not start, whatever was there.
    let control = layout.data.join(CONTROL);
    match fs::remove_file(&control) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(failed("removed", &control, cause)),
        _ => Ok(()),
    }
}

fn give_own(layout: &Layout, owner: Option<Owner>) -> Result<()> {
    let own = layout.own();
    let entries = fs::read_dir(&own).map_err(|cause| failed("read", &own, cause))?;
    for entry in entries {
        let path = entry.map_err(|cause| failed("read", &own, cause))?.path();
        give(&path, owner).map_err(|cause| failed("given away", &path, cause))?;
    }
    give(&own, owner).map_err(|cause| failed("given away", &own, cause))
}

/// Without its label the server would take the control file's checkpoint.
fn label_is_there(data: &Path) -> Result<()> {
    let label = data.join("backup_label");
    match File::open(&label).and_then(|file| file.metadata()) {
        Ok(held) if held.len() > 0 => Ok(()),
        _ => Err(Error::corrupt(format!(
            "the base backup brought no {}: choose another base backup",
            label.display()
        ))),
    }
}
