//! A checked intention: what is restored, onto what, and every reason why it could not be. Nothing is written.

use std::{
    collections::{BTreeSet, HashSet},
    path::PathBuf,
    sync::Arc,
};

use async_trait::async_trait;
use holdfast_core::{
    Checkpoint, Error, Moment, PackId, Plan, PlanSummary, Progress, Report, Result, Span, View,
    text::{show_duration, show_size},
};

use super::{
    apply::Apply,
    recovery::{self, Recovery, Until},
    space, start_check,
    target::{Layout, Target},
    timelines::{TimelineChoice, Timelines, number},
};
use crate::{
    records::{Base, PieceKey},
    wal::Lsn,
};

/// WAL that waits in `pg_wal` and in our spool while the server recovers, at most; and what it takes for the spool
/// and the segments that the server makes itself.
const WAL_ROOM: u64 = 1 << 30;
const SPOOL_ROOM: u64 = 160 << 20;
/// Bytes a second for the estimate of time: fetching and writing, and one server process that replays.
const WRITES: u64 = 200 << 20;
const REPLAYS: u64 = 50 << 20;
const ROWS: usize = 4096;

/// A plan for one moment and one target.
pub struct PostgresPlan {
    pub(super) moment: Moment,
    pub(super) target: Target,
    pub(super) checkpoint: Checkpoint,
    pub(super) base: Base,
    pub(super) recovery: Recovery,
    /// Digest of all that makes this plan another than that one.
    pub(super) digest: String,
    /// What was wished for, as the journal keeps it.
    pub(super) wish: String,
    /// Folders in which replay makes tablespaces again.
    pub(super) later: BTreeSet<PathBuf>,
    summary: PlanSummary,
}

/// Sizes read from the rows of a base backup.
#[derive(Default)]
struct Sizes {
    files: u64,
    opened: u64,
    sealed: u64,
    packs: HashSet<PackId>,
    by_tablespace: std::collections::BTreeMap<u32, u64>,
    /// Names of configuration files that the base backup holds.
    configuration: HashSet<String>,
}

impl PostgresPlan {
    pub async fn new(
        moment: &Moment,
        wish: String,
        target: &Target,
        follows: bool,
        view: &dyn View,
    ) -> Result<Self> {
        let catalog = view.catalog();
        let checkpoint =
            catalog.checkpoints.iter().find(|held| held.id == moment.checkpoint).ok_or_else(|| {
                Error::unreachable(format!(
                    "the base backup {} is not in the repository any more",
                    moment.checkpoint
                ))
            })?;
        let base = Base::decode(&checkpoint.body)?;
        let layout = Layout::new(target, &base);
        let digest = digest(moment, target, follows);
        let sizes = sizes(view, checkpoint, &layout).await?;
        let (wal_sealed, wal_objects) = view.cost(&moment.path).await?;
        let timelines = Timelines::read(catalog, &view.heads())?;
        let own = number(moment.place.branch).unwrap_or(1);
        // «latest» would have the server follow a stray timeline, so only a line without one may use it.
        let timeline = match follows && timelines.highest() == Some(own) {
            true => "latest".to_owned(),
            false => own.to_string(),
        };
        let recovery = Recovery {
            until: (!follows).then_some(Until { lsn: Lsn(moment.begin), inclusive: moment.inclusive }),
            timeline,
            parameters: recovery::parameters(&base, moment, &catalog.notes)?,
        };

        let look = space::look(target, &layout, &base, &digest)?;
        let mut conflicts = look.conflicts;
        let later = recovery::tablespaces(moment, &catalog.notes)?;
        if !look.begun {
            conflicts.extend(space::made_again(&later)?);
        }
        let wal: u64 = moment.path.iter().map(holdfast_core::Span::len).sum();
        if conflicts.is_empty() && !look.begun {
            let mut needs: Vec<(PathBuf, u64)> = Vec::new();
            for (oid, bytes) in &sizes.by_tablespace {
                let folder = layout.tablespaces.get(oid).unwrap_or(&layout.data);
                needs.push((folder.clone(), *bytes));
            }
            let room = wal.saturating_add(SPOOL_ROOM).min(WAL_ROOM);
            needs.push((layout.wal.clone().unwrap_or(layout.data.clone()), room));
            conflicts.extend(space::room(&needs)?);
        }

        let seconds = |bytes: u64, rate: u64| std::time::Duration::from_secs(bytes / rate + 1);
        let mut lines = Vec::new();
        let mut line = |name: &str, value: String| lines.push((name.to_owned(), value));
        line("moment", show_moment(moment));
        line("base backup", show_base(checkpoint, &base));
        if let Some(damage) = &checkpoint.suspect {
            line(
                "warning",
                format!("this base backup is damaged ({damage}), and no clean one serves this moment"),
            );
        }
        for span in &moment.path {
            let size = show_size(span.len());
            line(
                "WAL",
                format!("timeline {}: {} to {} ({size})", span.branch.0, Lsn(span.from), Lsn(span.to)),
            );
        }
        for stray in strays(&timelines, own) {
            line("not followed", stray);
        }
        line(
            "server",
            format!("PostgreSQL {} (made by {})", base.version / 10_000, show_version(base.version)),
        );
        match start_check::find_server(base.version) {
            Ok(bin) => line("programs", bin.display().to_string()),
            Err(_) => {
                line("programs", format!("no PostgreSQL {} was found on this host", base.version / 10_000))
            }
        }
        line("data folder", target.data.display().to_string());
        for tablespace in &base.tablespaces {
            if let Some(place) = layout.tablespaces.get(&tablespace.oid) {
                line("tablespace", format!("{} → {}", tablespace.location, place.display()));
            }
        }
        for place in &later {
            line(
                "tablespace",
                format!("made again at {} by replay: it was made after the base backup", place.display()),
            );
        }
        if let Some(wal) = &target.wal {
            line("WAL folder", wal.display().to_string());
        }
        let missing = recovery::missing_configuration(|name| sizes.configuration.contains(name));
        if !missing.is_empty() {
            let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
            let text = "not in the base backup (Debian keeps them in /etc): minimal ones are written";
            line("configuration", format!("{}: {text}", names.join(", ")));
        }
        line("after recovery", recovery::describe(target, follows));
        if look.begun {
            line("goes on", "this restore was begun before; what is on disk for good is kept".to_owned());
        }
        line("files", format!("{} ({})", sizes.files, show_size(sizes.opened)));
        line(
            "to be read",
            format!(
                "{} in about {} objects",
                show_size(sizes.sealed + wal_sealed),
                sizes.packs.len() as u64 + wal_objects
            ),
        );
        line(
            "expected time",
            format!(
                "about {} for the files, up to {} for replay",
                show_duration(seconds(sizes.opened, WRITES)),
                show_duration(seconds(wal, REPLAYS))
            ),
        );
        let summary = PlanSummary {
            moment: moment.clone(),
            lines,
            conflicts,
            bytes: sizes.sealed + wal_sealed,
            objects: sizes.packs.len() as u64 + wal_objects,
        };
        Ok(Self {
            moment: moment.clone(),
            target: target.clone(),
            checkpoint: checkpoint.clone(),
            base,
            recovery,
            digest,
            wish,
            later,
            summary,
        })
    }
}

#[async_trait]
impl Plan for PostgresPlan {
    fn summary(&self) -> PlanSummary {
        self.summary.clone()
    }

    async fn apply(self: Box<Self>, view: Arc<dyn View>, progress: Arc<dyn Progress>) -> Result<Report> {
        if let Some(conflict) = self.summary.conflicts.first() {
            return Err(Error::configure(format!("the restore cannot begin: {conflict}")));
        }
        Apply::new(*self, view, progress).run().await
    }
}

async fn sizes(view: &dyn View, checkpoint: &Checkpoint, layout: &Layout) -> Result<Sizes> {
    let mut sizes = Sizes::default();
    let mut from = Vec::new();
    loop {
        let rows = view.rows(&checkpoint.layers, &from, ROWS).await?;
        let Some(last) = rows.last() else { return Ok(sizes) };
        from = last.key.to_vec();
        from.push(0);
        for row in &rows {
            let key = PieceKey::decode(&row.key)?;
            // Refuses a hostile path before anything is written.
            layout.place(key.tablespace, &key.path)?;
            sizes.files += u64::from(key.piece == 0);
            if key.tablespace == 0 && recovery::CONFIGURATION.iter().any(|(name, _)| *name == key.path) {
                sizes.configuration.insert(key.path);
            }
            for held in &row.held {
                sizes.opened += u64::from(held.extent.opened);
                sizes.sealed += u64::from(held.extent.length);
                sizes.packs.insert(held.extent.pack);
                *sizes.by_tablespace.entry(key.tablespace).or_default() += u64::from(held.extent.opened);
            }
        }
    }
}

/// The command is left out: a holdfast that was moved or renewed may go on.
fn digest(moment: &Moment, target: &Target, follows: bool) -> String {
    let target = Target { restore_command: String::new(), ..target.clone() };
    let text = format!(
        "{} {:?} {} {} {follows} {:?}",
        moment.checkpoint, moment.place, moment.begin, moment.inclusive, target
    );
    hex::encode(holdfast_core::digest(text.as_bytes()))
}

fn show_moment(moment: &Moment) -> String {
    let at = if moment.inclusive { moment.place.position } else { moment.begin };
    let place = format!("{} on timeline {}", Lsn(at), moment.place.branch.0);
    match moment.time {
        Some(time) => format!("{place}; its last commit was at {time}"),
        None => format!("{place}; no commit since the base backup began"),
    }
}

fn show_base(checkpoint: &Checkpoint, base: &Base) -> String {
    let place = if base.from_standby { ", from a standby" } else { "" };
    format!("{} to {} ({} to {}{place})", checkpoint.began, checkpoint.ended, base.start, base.end)
}

fn show_version(version: u32) -> String {
    format!("{}.{}", version / 10_000, version % 10_000)
}

/// Log beside the line that is restored: timelines with where they were forked (A11), and tails behind a fork (B7).
fn strays(timelines: &Timelines, own: u32) -> Vec<String> {
    let Ok(line) = timelines.line(TimelineChoice::Number(own)) else { return Vec::new() };
    let show = |stray: super::timelines::Stray| match stray.fork {
        Some((parent, at)) => format!(
            "timeline {}, forked from {parent} at {at}{}",
            stray.timeline,
            if timelines.current() == Some(stray.timeline) { " (the cluster is on it now)" } else { "" }
        ),
        None => format!("timeline {}, whose history is not known", stray.timeline),
    };
    let tail = |tail: Span| {
        let (from, to) = (Lsn(tail.from), Lsn(tail.to));
        format!("timeline {} behind {from}, where it was left: it goes on to {to}", tail.branch.0)
    };
    let tails = timelines.tails(&line).into_iter().map(tail);
    tails.chain(timelines.strays(&line).into_iter().map(show)).collect()
}
