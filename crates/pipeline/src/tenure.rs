//! One epoch of a writer, from its number 0 to its end: pulls the stream, closes batches, stores them, settles.
//! All of it is one future, so that a writer that is dropped or not polled stops as one thing.
//!
//! Invariant: what a tailer yielded is sealed in its order, and what an object says of catalog and cursor is as of
//! that object.

use std::{sync::Arc, time::Duration};

use holdfast_core::{Catalog, Cursor, Epoch, Error, Instant, Item, Result, Step, Timestamp};
use holdfast_repo::{
    catalog::apply,
    chain::Access,
    entry::Entry,
    object::Header,
    view::{CACHE_BYTES, Repository, TableReader, Tables},
};
use tokio::sync::watch;

use crate::{
    batcher::{self, Batcher, Due, Limits},
    claim::{Claimed, heartbeat_ms, uptime},
    compose::{Composed, compose},
    content::{self, Gate, Packer},
    gauges::Phase,
    lane::{Lane, Moved},
    ledger::Ledger,
    link::Link,
    lookout::Lookout,
    merge::Merging,
    parts::Tools,
    settling::Settling,
};

/// Unfinished runs are named so often.
const PROGRESS_EVERY: Duration = Duration::from_secs(60);
/// The catalog goes along at least so often, so that no reader goes through more objects than this.
const CATALOG_OBJECTS: u64 = 256;

/// Why a tenure ended.
#[derive(Debug)]
pub(crate) enum End {
    Stopped,
    CaughtUp,
    /// Claim anew at once.
    Roll(String),
    Fenced(Error),
    Failed(Error),
}

struct Ending {
    end: End,
    deadline: Instant,
}

pub(crate) struct Tenure {
    tools: Tools,
    access: Access,
    epoch: Epoch,
    catalog: Catalog,
    catalog_at: (Epoch, u64),
    /// A change of runs or checkpoints that the gauges do not show before this number is durable.
    unshown: Option<(u64, Option<(Timestamp, Timestamp)>)>,
    table: Arc<TableReader>,
    batcher: Batcher,
    ledger: Ledger,
    lane: Lane,
    /// Kept for the connections that are opened later.
    _gate: Arc<Gate>,
    packer: Packer,
    link: Link,
    merging: Merging,
    settling: Settling,
    lookout: Lookout,
    /// Where the source goes on after the newest step that we took.
    cursor: Option<Cursor>,
    vouched: Option<Timestamp>,
    /// The newest vouched instant since the clocks were written down.
    seen: Option<(Instant, Timestamp)>,
    /// Entries that go with the next object.
    extra: Vec<Entry>,
    /// When the newest batch was closed.
    closed_at: Option<Instant>,
    progress_at: Instant,
    ending: Option<Ending>,
}

impl Tenure {
    pub fn new(tools: Tools, repository: Repository, claimed: Claimed) -> Self {
        let Claimed { stream, epoch, data_key, ring, catalog, cursor, vouched, vouched_at, digest } = claimed;
        let access = tools.access(stream);
        let now = tools.clock.now();
        let tables = Arc::new(Tables::new(access.clone(), CACHE_BYTES));
        let table = Arc::new(TableReader::new(tables, Arc::new(catalog.clone())));
        let (gate, inlet) =
            content::gate(tools.settings.budget.content, epoch, tools.clock.clone(), tools.random.clone());
        let packing = content::Tools {
            sink: tools.sink.clone(),
            stream,
            epoch,
            source_key: tools.source_key.clone(),
            data_key: data_key.clone(),
            pool: tools.pool.clone(),
            clock: tools.clock.clone(),
            random: tools.random.clone(),
            gauges: tools.gauges.clone(),
        };
        let limits = Limits {
            bytes: usize::try_from(tools.settings.batch_bytes).unwrap_or(usize::MAX),
            max_lag: tools.settings.max_lag,
            put_spacing: tools.settings.put_spacing,
            in_flight: tools.settings.in_flight,
        };
        tools.gauges.begin_epoch(epoch);
        if let Some(vouched) = vouched {
            tools.gauges.inherited(vouched, vouched_at, tools.clock.wall(), now);
        }
        Self {
            batcher: Batcher::new(limits),
            ledger: Ledger::new(),
            lane: Lane::new(tools.clone(), access.clone(), epoch, data_key, digest),
            packer: Packer::new(packing, inlet),
            link: Link::new(tools.clone(), gate.clone(), table.clone()),
            merging: Merging::new(tools.clone(), access.clone(), epoch),
            settling: Settling::new(tools.clone(), access.clone(), epoch),
            lookout: Lookout::new(repository, access.clone(), epoch, tools.create_only, ring, now),
            _gate: gate,
            catalog_at: (epoch, 0),
            unshown: None,
            cursor,
            vouched,
            seen: None,
            extra: Vec::new(),
            closed_at: None,
            progress_at: now + PROGRESS_EVERY,
            ending: None,
            tools,
            access,
            epoch,
            catalog,
            table,
        }
    }

    /// Runs until the epoch ends, one way or another.
    pub async fn run(mut self, stop: &mut watch::Receiver<bool>) -> End {
        self.tools.gauges.phase(Phase::Streaming, "");
        self.show();
        let end = match self.carry_on(stop).await {
            Ok(end) => end,
            Err(error) if error.act() == holdfast_core::Act::Fenced => End::Fenced(error),
            Err(error) => End::Failed(error),
        };
        self.settling.forget();
        self.link.close().await;
        end
    }

    async fn carry_on(&mut self, stop: &mut watch::Receiver<bool>) -> Result<End> {
        loop {
            self.tools.gauges.turned();
            self.tick().await?;
            self.settling.begin(&mut self.ledger, &mut self.link, self.ending.is_some())?;
            if let Some(end) = self.ended() {
                return Ok(end);
            }
            let pull = self.may_pull();
            let wake = self.wake();
            let clock = self.tools.clock.clone();
            tokio::select! {
                biased;
                () = stopped(stop), if self.ending.is_none() => self.end(End::Stopped)?,
                moved = self.lane.step() => self.moved(moved?)?,
                settled = self.settling.step() => {
                    if let Some(error) = self.settling.moved(settled?, &mut self.ledger, &mut self.link)? {
                        self.end(End::Failed(error))?;
                    }
                }
                packed = self.packer.step() => packed?,
                merged = self.merging.step() => merged?,
                looked = self.lookout.step() => {
                    if let Some(why) = self.lookout.judge(looked?, self.tools.clock.now())? {
                        self.end(End::Roll(why))?;
                    }
                }
                step = self.link.next(self.cursor.as_ref()), if pull => match step {
                    Ok(step) => self.take(step)?,
                    Err(error) => self.end(End::Failed(error))?,
                },
                () = clock.sleep_until(wake) => {}
            }
        }
    }

    /// A batch that is being sealed is as good as started: spacing counts from whichever came later.
    fn due(&self, now: Instant) -> Due {
        self.batcher.due(now, self.ledger.outstanding(), self.lane.started().max(self.closed_at))
    }

    fn may_pull(&self) -> bool {
        let most = usize::try_from(self.tools.settings.budget.stream).unwrap_or(usize::MAX);
        let taken = self.lane.in_memory() + self.batcher.cost();
        self.ending.is_none() && taken + Item::BYTES_MAX <= most
    }

    fn take(&mut self, step: Step) -> Result<()> {
        self.cursor = Some(step.cursor.clone());
        self.seen = self.seen.max(step.vouched);
        let quiet = matches!(step.item, Item::Quiet | Item::CaughtUp);
        if !quiet {
            self.ledger.receive(batcher::bytes(&step) as u64);
            self.batcher.push(step, self.tools.clock.now());
            return Ok(());
        }
        if let Some(vouched) = step.vouched {
            self.vouched = self.vouched.max(Some(vouched.1));
            if !self.batcher.vouch(vouched) {
                self.ledger.vouch(vouched);
                self.tools.gauges.vouched(self.ledger.durable().vouched);
            }
        }
        if step.waits {
            self.batcher.hurry();
        }
        if matches!(step.item, Item::CaughtUp) && self.tools.settings.until_caught_up {
            self.end(End::CaughtUp)?;
        }
        Ok(())
    }

    /// What is due by the clock.
    async fn tick(&mut self) -> Result<()> {
        let now = self.tools.clock.now();
        while self.due(now) == Due::Now {
            self.close_batch()?;
        }
        if now >= self.progress_at {
            self.progress_at = now + PROGRESS_EVERY;
            let changed = content::lock(self.packer.live()).changed();
            self.extra.extend(changed.into_iter().map(Entry::Progress));
            let clocks = self.clocks(now);
            // Without a store the newest is enough.
            self.extra.retain(|entry| !matches!(entry, Entry::Clocks { .. }));
            self.extra.push(clocks);
        }
        if self.heartbeat_at().is_some_and(|at| at <= now) {
            if !self.tools.create_only && !self.link.has_settler() {
                // Nothing is settled now, and so nothing listed (R7); such a store tells a fenced writer no other way.
                self.lookout.hurry(now);
            }
            if self.batcher.is_empty() {
                self.seal(Composed::default(), None, 0, 0, false)?
            } else {
                self.close_batch()?
            }
        }
        self.lookout.tick(now);
        if self.park_at().is_some_and(|at| at <= now) {
            tracing::warn!(
                "the store has not answered for two heartbeats: letting go of the source's connection, so that a \
                 successor with a store could stream"
            );
            self.settling.forget();
            self.link.close().await;
        }
        Ok(())
    }

    /// The clocks of source, host and store at one moment: the newest that the source vouched for since the last
    /// record, else now. What the store showed earlier or later is moved there by our monotonic clock.
    fn clocks(&mut self, now: Instant) -> Entry {
        let seen = self.seen.take();
        let at = seen.map_or(now, |(at, _)| at);
        let host = self.tools.clock.wall().minus(now.saturating_duration_since(at));
        let store = self.tools.sink.clock().map(|(told, time)| {
            time.plus(at.saturating_duration_since(told)).minus(told.saturating_duration_since(at))
        });
        Entry::Clocks { source: seen.map(|(_, source)| source), host, store }
    }

    fn heartbeat_at(&self) -> Option<Instant> {
        let idle = self.ledger.outstanding() == 0 && self.ending.is_none();
        self.lane.started().filter(|_| idle).map(|started| started + self.tools.settings.heartbeat)
    }

    fn park_at(&self) -> Option<Instant> {
        let waiting = self.lane.waiting_since().filter(|_| !self.link.is_parked());
        waiting.map(|since| since + self.tools.settings.heartbeat * 2)
    }

    fn wake(&self) -> Instant {
        let now = self.tools.clock.now();
        let mut wake = self.progress_at;
        if let Due::At(at) = self.due(now) {
            wake = wake.min(at);
        }
        let settle = self.settling.wake(&self.ledger, &self.link);
        let ending = self.ending.as_ref().map(|ending| ending.deadline);
        let look = self.lookout.wake();
        [self.heartbeat_at(), self.park_at(), settle, ending, look]
            .into_iter()
            .flatten()
            .fold(wake, Instant::min)
    }

    fn close_batch(&mut self) -> Result<()> {
        let batch = self.batcher.close();
        self.closed_at = Some(self.tools.clock.now());
        let (bytes, cost, waits) = (batch.bytes(), batch.cost, batch.waits());
        let (cursor, vouched) = (batch.cursor().cloned(), batch.vouched());
        if let Some((_, time)) = vouched {
            self.vouched = self.vouched.max(Some(time));
        }
        self.tools.gauges.batch(usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut composed = compose(batch.steps);
        let finished = composed.entries.iter().any(|entry| matches!(entry, Entry::Checkpoint(_)));
        if finished {
            self.abandon_old_runs(&mut composed.entries);
        }
        self.seal_at(composed, cursor, vouched, bytes, cost, waits)
    }

    /// A checkpoint makes the unfinished runs of earlier writers worthless.
    fn abandon_old_runs(&self, entries: &mut Vec<Entry>) {
        let live = content::lock(self.packer.live());
        let old = self.catalog.runs.iter().filter(|run| !live.is_live(run.id)).map(|run| run.id);
        let finished = |id| {
            entries.iter().any(|entry| matches!(entry, Entry::Checkpoint(checkpoint) if checkpoint.id == id))
        };
        let old: Vec<_> = old.filter(|id| !finished(*id)).map(Entry::Abandoned).collect();
        entries.extend(old);
    }

    /// An object behind everything that was taken.
    fn seal(
        &mut self,
        composed: Composed,
        vouched: Option<(Instant, Timestamp)>,
        bytes: u64,
        cost: usize,
        waits: bool,
    ) -> Result<()> {
        self.seal_at(composed, self.cursor.clone(), vouched, bytes, cost, waits)
    }

    fn seal_at(
        &mut self,
        composed: Composed,
        cursor: Option<Cursor>,
        vouched: Option<(Instant, Timestamp)>,
        bytes: u64,
        cost: usize,
        waits: bool,
    ) -> Result<()> {
        let Composed { mut entries, closed, spans, marks, mark_count, rare, .. } = composed;
        let runs = rare || self.extra.iter().any(|entry| !matches!(entry, Entry::Clocks { .. }));
        entries.append(&mut self.extra);
        entries.extend(cursor.clone().map(Entry::Cursor));
        let number = self.ledger.close(bytes, cursor, vouched)?;
        if waits {
            self.settling.wait_for(number);
        }
        let release = entries.contains(&Entry::Release);
        let mut header = Header {
            spans,
            written: self.tools.clock.wall(),
            uptime: uptime(&self.tools),
            vouched: self.vouched,
            marks,
            mark_count,
            heartbeat: heartbeat_ms(&self.tools),
            catalog: Some(self.catalog_at),
            release,
        };
        apply(&mut self.catalog, self.access.id(self.epoch, number), &header, &entries);
        if rare || number >= self.catalog_at.1 + CATALOG_OBJECTS {
            self.catalog_at = (self.epoch, number);
            header.catalog = Some(self.catalog_at);
            entries.push(Entry::Catalog(Box::new(self.catalog.clone())));
        }
        if runs {
            self.table.set(Arc::new(self.catalog.clone()));
            self.unshown = Some((number, self.newest_checkpoint()));
        }
        self.lane.push(number, header, entries, closed, cost);
        Ok(())
    }

    fn moved(&mut self, moved: Moved) -> Result<()> {
        match moved {
            Moved::Sealed(number) => self.ledger.seal(number)?,
            Moved::Stored { number, body } => {
                self.tools.gauges.object_put();
                self.ledger.store(number)?;
                let watermark = self.ledger.watermark();
                if let Some((_, checkpoint)) = self.unshown.take_if(|(number, _)| *number <= watermark) {
                    self.tools.gauges.catalog(self.catalog.gaps.len(), checkpoint);
                }
                self.merging.stored(number, body, self.ledger.watermark());
                self.tools.gauges.vouched(self.ledger.durable().vouched);
                self.link.unpark();
            }
        }
        self.show_counts();
        Ok(())
    }

    /// Begins to end: what was taken is stored and settled, as far as the deadline allows.
    fn end(&mut self, end: End) -> Result<()> {
        if self.ending.is_some() {
            return Ok(());
        }
        self.tools.gauges.phase(Phase::Stopping, "");
        while !self.batcher.is_empty() {
            self.close_batch()?;
        }
        if !matches!(end, End::Roll(_)) {
            self.seal(Composed::only(Entry::Release), None, 0, 0, true)?;
        }
        let deadline = self.tools.clock.now() + self.tools.settings.stop_grace;
        self.ending = Some(Ending { end, deadline });
        Ok(())
    }

    fn ended(&mut self) -> Option<End> {
        let ending = self.ending.as_ref()?;
        let stored = self.ledger.outstanding() == 0;
        let settled = self.settling.is_done(&self.ledger, &self.link);
        let late = self.tools.clock.now() >= ending.deadline;
        if late && !(stored && settled) {
            tracing::warn!("the time to stop is over; what is not settled stays with the source");
        }
        if stored && settled || late { self.ending.take().map(|ending| ending.end) } else { None }
    }

    fn show_counts(&self) {
        self.tools.gauges.counts(self.ledger.counts(), self.ledger.outstanding());
    }

    fn newest_checkpoint(&self) -> Option<(Timestamp, Timestamp)> {
        self.catalog.checkpoints.last().map(|checkpoint| (checkpoint.began, checkpoint.ended))
    }

    fn show(&self) {
        self.tools.gauges.catalog(self.catalog.gaps.len(), self.newest_checkpoint());
        self.show_counts();
    }
}

/// Resolves once the writer shall end; a sender that is gone ends it too.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}
