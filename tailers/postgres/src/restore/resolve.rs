//! From a wish to one moment: (timeline, LSN, inclusive), a base backup before it and no gap between.
//!
//! Invariants: every moment ends at a WAL record that is known to be whole and durable, so Postgres always
//! reaches it; only that record's position is given to Postgres, never a time, since commit times are not
//! monotone. A wish that cannot be met exactly is refused with the nearest moments that can.
//!
//! Time T means: everything before the first commit, in stream order, that is later than T.

use holdfast_core::{Checkpoint, Error, Gap, Mark, MarkKind, Moment, Result, Timestamp, View, Wish};

use super::{
    boundary::Entry,
    search::Search,
    timelines::{Line, Stretch, TimelineChoice, Timelines},
};
use crate::{records::Base, wal::Lsn};

/// Transactions that may have begun while an older one was still open, when we look for a commit: more than any
/// server has seen between two windows of marks.
const XIDS_OPEN: i32 = 10_000_000;
/// What WAL knows of a transaction id.
const LOW: u64 = u32::MAX as u64;

/// What the user may add to a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub timeline: TimelineChoice,
    /// Is the commit, record or point that was named part of what is restored?
    pub inclusive: bool,
}

impl Default for Choice {
    fn default() -> Self {
        Self { timeline: TimelineChoice::Current, inclusive: true }
    }
}

/// A base backup on the line that is followed.
#[derive(Clone, Debug)]
pub struct OnLine<'a> {
    pub checkpoint: &'a Checkpoint,
    pub base: Base,
}

/// Everything that resolving needs, read once.
pub struct Resolver<'a> {
    view: &'a dyn View,
    timelines: &'a Timelines,
    line: &'a Line,
    search: Search<'a>,
    stretches: Vec<Stretch>,
    /// By the place that they serve.
    bases: Vec<OnLine<'a>>,
    inclusive: bool,
    /// The line is the one that the stream is on, so its vouched time counts.
    live: bool,
}

/// Where replay ends: after the record (inclusive), or before it.
#[derive(Clone, Copy, Debug)]
struct End {
    record: Entry,
    inclusive: bool,
}

impl End {
    /// What is restored ends here.
    fn effective(self) -> u64 {
        if self.inclusive { self.record.end } else { self.record.begin }
    }
}

/// Turns `wish` into a moment, or says why it cannot be reached.
pub async fn resolve(wish: &Wish, choice: Choice, view: &dyn View) -> Result<Moment> {
    let timelines = Timelines::read(view.catalog(), &view.heads())?;
    let line = timelines.line(choice.timeline)?;
    let resolver = Resolver::new(view, &timelines, &line, choice)?;
    resolver.resolve(wish).await
}

impl<'a> Resolver<'a> {
    pub fn new(view: &'a dyn View, timelines: &'a Timelines, line: &'a Line, choice: Choice) -> Result<Self> {
        let on_line = |c: &&Checkpoint| line.holds(c.begin) && line.holds(c.serves);
        let mut bases = Vec::new();
        for checkpoint in view.catalog().checkpoints.iter().filter(on_line) {
            bases.push(OnLine { checkpoint, base: Base::decode(&checkpoint.body)? });
        }
        bases.sort_by_key(|base| base.checkpoint.serves.position);
        Ok(Self {
            view,
            timelines,
            line,
            search: Search::new(view, line),
            stretches: timelines.stretches(line),
            bases,
            inclusive: choice.inclusive,
            live: timelines.current() == Some(line.newest()),
        })
    }

    pub async fn resolve(&self, wish: &Wish) -> Result<Moment> {
        if self.bases.is_empty() {
            return Err(self.no_base());
        }
        let end = match wish {
            Wish::Latest => self.latest().await?,
            Wish::Immediate => self.immediate().await?,
            Wish::Time(time) => self.time(*time).await?,
            Wish::Position(text) => self.position(text.parse()?).await?,
            Wish::Transaction(id) => self.transaction(*id).await?,
            Wish::Name(name) => self.name(name).await?,
        };
        self.moment(end).await
    }

    /// The newest clean base backup that serves `effective` and from which the log is whole; a suspect one
    /// only when no clean one does (E5).
    pub fn base_for(&self, effective: u64) -> Option<&OnLine<'a>> {
        let stretch = self.stretch_ending(effective)?;
        let fits = |base: &&OnLine<'_>| {
            base.checkpoint.begin.position >= stretch.from && base.checkpoint.serves.position <= effective
        };
        let clean = self.bases.iter().rev().filter(fits).find(|base| base.checkpoint.suspect.is_none());
        clean.or_else(|| self.bases.iter().rev().find(fits))
    }

    async fn moment(&self, end: End) -> Result<Moment> {
        let effective = end.effective();
        let Some(base) = self.base_for(effective) else {
            return Err(self.hole(&format!("WAL position {}", Lsn(effective)), effective).await);
        };
        let begin = base.checkpoint.begin.position;
        self.timelines.require(self.line, begin, end.record.end)?;
        let last = self.search.last(begin, effective, is_commit).await?;
        Ok(Moment {
            checkpoint: base.checkpoint.id,
            place: self.line.ending(end.record.end),
            begin: end.record.begin,
            inclusive: end.inclusive,
            time: last.map(|mark| mark.time),
            path: self.line.path(begin, end.record.end),
        })
    }

    /// The end of the stretch that ends last.
    async fn latest(&self) -> Result<End> {
        let Some(stretch) = self.stretches.last().copied() else { return Err(self.no_base()) };
        if self.base_for(stretch.to).is_none() {
            return Err(self.hole("the newest moment", stretch.to).await);
        }
        self.end_of(stretch).await
    }

    /// Up to the last whole record of a stretch.
    async fn end_of(&self, stretch: Stretch) -> Result<End> {
        self.record_before(stretch, stretch.to).await
    }

    async fn record_before(&self, stretch: Stretch, limit: u64) -> Result<End> {
        let Some(base) = self.base_for(limit) else {
            return Err(self.hole(&format!("WAL position {}", Lsn(limit)), limit).await);
        };
        let known = base.checkpoint.begin.position.max(stretch.from);
        match self.search.last_record(known, limit, u64::from(base.base.segment_size)).await? {
            Some(record) => Ok(End { record, inclusive: true }),
            None => Err(Error::corrupt(format!(
                "the WAL before {} holds no whole record: run `holdfast verify`",
                Lsn(limit)
            ))),
        }
    }

    /// The newest base backup, as soon as it is consistent.
    async fn immediate(&self) -> Result<End> {
        let serves = |base: &OnLine<'_>| base.checkpoint.serves.position;
        let usable = |base: &&OnLine<'_>| {
            let stretch = self.stretch_ending(serves(base));
            stretch.is_some_and(|stretch| base.checkpoint.begin.position >= stretch.from)
        };
        let clean = self.bases.iter().rev().filter(usable).find(|base| base.checkpoint.suspect.is_none());
        let Some(base) = clean.or_else(|| self.bases.iter().rev().find(usable)) else {
            let newest = self.bases.last().map_or(0, serves);
            return Err(self.hole("the newest base backup", newest).await);
        };
        match self.stretch_ending(serves(base)) {
            Some(stretch) => self.record_before(stretch, serves(base)).await,
            None => Err(self.no_base()),
        }
    }

    async fn time(&self, time: Timestamp) -> Result<End> {
        let inclusive = self.inclusive;
        let later = move |mark: &Mark| if inclusive { mark.time > time } else { mark.time >= time };
        let passed = if inclusive { time } else { time.minus(std::time::Duration::from_micros(1)) };
        let newest = self.stretches.len().saturating_sub(1);
        let mut known = None;
        for (at, stretch) in self.stretches.iter().copied().enumerate() {
            let next =
                self.search.first(stretch, Some(passed), |mark| is_commit(mark) && later(mark)).await?;
            if let Some(mark) = next {
                let before = Entry { begin: mark.begin, end: mark.place.position };
                return self.before(time, stretch, before).await;
            }
            let mut until = self.search.known_until(stretch).await?;
            if at == newest && self.live {
                until = until.max(self.view.vouched());
            }
            if until.is_some_and(|until| time <= until) {
                if !self.began_by(time, stretch, stretch.to).await? {
                    return Err(self.hole(&time.to_string(), stretch.from).await);
                }
                return self.end_of(stretch).await;
            }
            known = until;
        }
        let newest = match known {
            Some(known) => format!("the newest moment that can be restored is {known}"),
            None => "no moment of this line has a known time".to_owned(),
        };
        Err(Error::unreachable(format!(
            "{time} is later than all that timeline {} is known to hold: {newest} (use --latest for it)",
            self.line.newest()
        )))
    }

    /// Replay ends before `record`, the first commit later than `time` in `stretch`.
    async fn before(&self, time: Timestamp, stretch: Stretch, record: Entry) -> Result<End> {
        if self.base_for(record.begin).is_none() || !self.began_by(time, stretch, record.begin).await? {
            // Just before the stretch or its first base backup: name what is missing there.
            return Err(self.hole(&time.to_string(), record.begin.min(self.first_served(stretch))).await);
        }
        Ok(End { record, inclusive: false })
    }

    /// Did `time` come after the log of `stretch` began? Else commits that nobody saw may lie between.
    async fn began_by(&self, time: Timestamp, stretch: Stretch, end: u64) -> Result<bool> {
        if self.base_for(end).is_some_and(|base| base.checkpoint.began <= time) {
            return Ok(true);
        }
        let earlier = |mark: &Mark| is_commit(mark) && mark.time <= time;
        Ok(self.search.first(Stretch { to: end, ..stretch }, None, earlier).await?.is_some())
    }

    /// Postgres's own meaning: inclusive ends after the record that begins at or after `target`, exclusive
    /// before it. At the end of the log, where no such record exists, all of it is meant.
    async fn position(&self, target: Lsn) -> Result<End> {
        let Some(stretch) = self.stretch_ending(target.0) else {
            return Err(self.hole(&format!("WAL position {target}"), target.0).await);
        };
        let Some(base) = self.base_for(target.0) else {
            return Err(self.hole(&format!("WAL position {target}"), target.0).await);
        };
        let (known, segment) = (base.checkpoint.begin.position, u64::from(base.base.segment_size));
        match self.search.record_from(known, target.0, stretch.to, segment).await? {
            Some(record) => Ok(End { record, inclusive: self.inclusive }),
            None => self.end_of(stretch).await,
        }
    }

    async fn transaction(&self, id: u64) -> Result<End> {
        // A wish may carry the epoch, as `pg_current_xact_id` shows it, or not, as logs and `xmin` do. A mark may too:
        // WAL itself knows the lower 32 bits.
        let low = id & LOW;
        let same = move |mark: &Mark| match mark.kind {
            MarkKind::Commit { id: held } if id > LOW && held > LOW => held == id,
            MarkKind::Commit { id: held } => held & LOW == low,
            _ => false,
        };
        // Ids are given in order, so long before this one was given no commit has it.
        let before = move |mark: &Mark| match mark.kind {
            MarkKind::Commit { id: held } if id > LOW && held > LOW => {
                held.saturating_add(XIDS_OPEN.unsigned_abs().into()) < id
            }
            MarkKind::Commit { id: held } => (low as u32).wrapping_sub(held as u32) as i32 > XIDS_OPEN,
            _ => false,
        };
        match self.newest(u64::MAX, same, before).await? {
            Some(mark) => {
                if let Some(other) = self.earlier_epoch(&mark, same).await? {
                    return Err(Error::unreachable(format!(
                        "transaction {id} may be the one that was committed {} or the one that was committed {}, four \
                         billion transactions later: give its id with the epoch (as pg_current_xact_id shows it), or \
                         choose by --lsn: {} or {}",
                        other.time,
                        mark.time,
                        Lsn(other.begin),
                        Lsn(mark.begin)
                    )));
                }
                Ok(self.at(&mark))
            }
            None => Err(Error::unreachable(format!(
                "no commit of transaction {id} is in the WAL of timeline {}: it was rolled back, is not durable yet, or was a subtransaction{}",
                self.line.newest(),
                self.window()
            ))),
        }
    }

    /// The newest commit that `same` takes for `mark`'s transaction too, as ids came round since: looked for only where
    /// the log holds so many.
    async fn earlier_epoch(
        &self,
        mark: &Mark,
        same: impl Fn(&Mark) -> bool + Send + Sync,
    ) -> Result<Option<Mark>> {
        let MarkKind::Commit { id } = mark.kind else { return Ok(None) };
        if id <= LOW {
            return Ok(None);
        }
        let Some(oldest) = self.oldest_commit().await? else { return Ok(None) };
        let MarkKind::Commit { id: first } = oldest.kind else { return Ok(None) };
        if id.saturating_sub(first) <= LOW {
            return Ok(None);
        }
        self.newest(mark.begin, same, |_| false).await
    }

    async fn oldest_commit(&self) -> Result<Option<Mark>> {
        for stretch in self.stretches.iter().copied() {
            if let Some(mark) = self.search.first(stretch, None, is_commit).await? {
                return Ok(Some(mark));
            }
        }
        Ok(None)
    }

    async fn name(&self, name: &str) -> Result<End> {
        let same = |mark: &Mark| matches!(&mark.kind, MarkKind::Name(other) if other == name);
        let Some(mark) = self.newest(u64::MAX, same, |_| false).await? else {
            return Err(Error::unreachable(format!(
                "no restore point «{name}» is in the WAL of timeline {}{}",
                self.line.newest(),
                self.window()
            )));
        };
        // Among the moments that the same base backup serves, where Postgres itself would stop at the first one.
        let from = self.begin_of(mark.begin);
        if from > 0
            && let Some(other) = self.search.last(from, mark.begin, same).await?
        {
            return Err(Error::unreachable(format!(
                "the restore point «{name}» exists more than once, at {} ({}) and at {} ({}): choose one by --lsn",
                Lsn(other.begin),
                other.time,
                Lsn(mark.begin),
                mark.time
            )));
        }
        Ok(self.at(&mark))
    }

    fn at(&self, mark: &Mark) -> End {
        End { record: Entry { begin: mark.begin, end: mark.place.position }, inclusive: self.inclusive }
    }

    /// The last mark that ends at or before `limit` and that `wanted` likes.
    async fn newest(
        &self,
        limit: u64,
        wanted: impl Fn(&Mark) -> bool + Send + Sync,
        hopeless: impl Fn(&Mark) -> bool + Send + Sync,
    ) -> Result<Option<Mark>> {
        for stretch in self.stretches.iter().rev() {
            let to = stretch.to.min(limit);
            if let Some(mark) = self.search.last_unless(stretch.from, to, &wanted, &hopeless).await? {
                return Ok(Some(mark));
            }
        }
        Ok(None)
    }

    fn stretch_ending(&self, position: u64) -> Option<Stretch> {
        self.stretches.iter().copied().find(|stretch| stretch.from <= position && position <= stretch.to)
    }

    fn first_served(&self, stretch: Stretch) -> u64 {
        let within = |base: &&OnLine<'_>| {
            base.checkpoint.begin.position >= stretch.from && base.checkpoint.serves.position <= stretch.to
        };
        self.bases.iter().find(within).map_or(stretch.to, |base| base.checkpoint.serves.position - 1)
    }

    /// Why `at` cannot be reached: before the first moment, or in a gap with moments on both sides.
    async fn hole(&self, what: &str, at: u64) -> Error {
        match self.describe_hole(what, at).await {
            Ok(sentence) => Error::unreachable(sentence),
            Err(error) => error,
        }
    }

    async fn describe_hole(&self, what: &str, at: u64) -> Result<String> {
        let mut before: Option<u64> = None;
        for stretch in self.stretches.iter().filter(|stretch| stretch.to <= at) {
            let served = self.base_for(stretch.to);
            before = before.max(served.map(|_| stretch.to));
        }
        let after = self.bases.iter().find(|base| {
            let serves = base.checkpoint.serves.position;
            serves > at && self.base_for(serves).is_some()
        });
        let mut sentence = format!("{what} cannot be restored");
        let gap_to = after.map_or(u64::MAX, |base| base.checkpoint.serves.position);
        let gap_from = before.unwrap_or(0);
        let between: Vec<&Gap> = self
            .view
            .catalog()
            .gaps
            .iter()
            .filter(|gap| self.line.holds(gap.span.start()))
            .filter(|gap| gap.span.from < gap_to && gap.span.to > gap_from)
            .collect();
        let nearest = between.iter().rfind(|gap| gap.span.from <= at).or(between.first());
        match (nearest, before) {
            (Some(gap), _) => sentence.push_str(&format!(
                ": the WAL of timeline {} from {} to {} is missing ({}, noticed {})",
                gap.span.branch.0,
                Lsn(gap.span.from),
                Lsn(gap.span.to),
                gap.cause,
                gap.noticed
            )),
            (None, None) => sentence.push_str(": it lies before the first base backup was finished"),
            (None, Some(_)) if at >= self.head() => {
                sentence.push_str(": the repository's WAL ends before it")
            }
            (None, Some(_)) => {
                sentence.push_str(": the WAL or the base backup it needs is not in the repository")
            }
        }
        if let Some(before) = before {
            let time = self.search.last(self.begin_of(before), before, is_commit).await?;
            sentence.push_str(&format!(
                "; the nearest moment before it is {}",
                self.show(before, time.map(|m| m.time))
            ));
        }
        if let Some(base) = after {
            let (serves, ended) = (base.checkpoint.serves.position, base.checkpoint.ended);
            let word = if before.is_some() {
                "the nearest after it"
            } else {
                "the first moment that can be restored"
            };
            sentence.push_str(&format!("; {word} is {}", self.show(serves, Some(ended))));
        }
        Ok(sentence)
    }

    fn begin_of(&self, effective: u64) -> u64 {
        self.base_for(effective).map_or(0, |base| base.checkpoint.begin.position)
    }

    fn head(&self) -> u64 {
        self.stretches.last().map_or(0, |stretch| stretch.to)
    }

    fn show(&self, position: u64, time: Option<Timestamp>) -> String {
        let place = format!("{} on timeline {}", Lsn(position), self.line.ending(position).branch.0);
        match time {
            Some(time) => format!("{time} ({place})"),
            None => place,
        }
    }

    fn window(&self) -> String {
        match (self.stretches.first(), self.stretches.last()) {
            (Some(first), Some(last)) => {
                format!("; the repository holds WAL from {} to {}", Lsn(first.from), Lsn(last.to))
            }
            _ => String::new(),
        }
    }

    fn no_base(&self) -> Error {
        let others = self.view.catalog().checkpoints.len();
        let why = if others > 0 {
            format!("{others} base backups of other timelines exist: choose one of them with --timeline")
        } else {
            "none has been finished yet: `holdfast base-backup` makes one".to_owned()
        };
        Error::unreachable(format!(
            "no base backup of the line of timeline {} is in the repository ({why})",
            self.line.newest()
        ))
    }
}

fn is_commit(mark: &Mark) -> bool {
    matches!(mark.kind, MarkKind::Commit { .. })
}
