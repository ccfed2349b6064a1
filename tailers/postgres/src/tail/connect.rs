//! From a position to a running stream: who is there, is it the one we left, what can it still give.
//!
//! Invariants: the stream begins at the repository's position, never at the slot's, unless log is gone, and
//! then a gap says so; a server that holds other bytes than the stream at that position is refused.

use std::sync::Arc;

use holdfast_core::{Act, Catalog, Clock, Error, Gap, Item, Result, Span};
use holdfast_pgwire::{
    Config, Connection, Error as WireError, Lsn as WireLsn, SqlState, Started, Status, Stream,
};

use super::{
    Shared,
    cutter::{Cut, Cutter},
    link::{Event, Link, Pace},
    server::{self, Ancestry, Facts},
    slot::{self, Slot},
};
use crate::{
    cursor::{OpenPage, Position},
    records::{NoteBody, place},
    settings::StandbyPolicy,
    sql::Sql,
    wal::{Lsn, Memory},
};

/// How long the server may take until the first byte that it said to have.
const FIRST_BYTE: std::time::Duration = std::time::Duration::from_secs(60);

/// A running stream, and what comes before its first byte.
pub struct Connected {
    pub facts: Facts,
    pub link: Link,
    pub cutter: Cutter,
    /// Notes and gaps, with the position behind them.
    pub items: Vec<(Item, Position)>,
    /// Log that arrived while the position was proven.
    pub cuts: Vec<Cut>,
    pub gap: bool,
}

/// Where a stream is to begin.
struct Target {
    position: Position,
    /// The bytes from `position.proof.from` on are to be compared.
    prove: bool,
}

/// Why a stream did not begin.
enum Failed {
    /// The log is gone.
    Removed(Error),
    /// The slot is (18 says so, older ones were asked).
    Slot(Error),
    /// The slot is in use, perhaps by a connection of ours that the server has not missed yet.
    Busy(Error),
    Other(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Another host may be the right one where this one is not.
#[derive(Debug)]
struct Behind;

impl std::fmt::Display for Behind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another host may do")
    }
}

impl std::error::Error for Behind {}

fn is_unfit(error: &Error) -> bool {
    let cause = std::error::Error::source(error);
    error.act() == Act::LostLineage || cause.is_some_and(|cause| cause.is::<Behind>())
}

/// Connects, and begins at `from` or, without one, where a new slot keeps log from. Of several hosts the first
/// one that holds what the stream holds is followed.
pub async fn connect(shared: &Arc<Shared>, from: Option<Position>, known: &Catalog) -> Result<Connected> {
    let connection = Connection::open(&shared.config, &shared.clock).await?;
    let first = connection.host().clone();
    let mut worst = match Box::pin(begin(shared, connection, from.clone(), known)).await {
        Err(cause) if is_unfit(&cause) => cause,
        other => return other,
    };
    for host in shared.config.hosts.iter().filter(|host| **host != first) {
        tracing::warn!(host = %first, cause = worst.chain(), "not the host to follow: trying {host}");
        let attempt = async {
            let config = Config { hosts: vec![host.clone()], ..shared.config.clone() };
            let connection = Connection::open(&config, &shared.clock).await?;
            Box::pin(begin(shared, connection, from.clone(), known)).await
        };
        match attempt.await {
            Ok(connected) => return Ok(connected),
            // A host that is away, or not promoted yet, may still turn out to be the right one.
            Err(cause) if cause.is_passing() || !worst.is_passing() && !is_unfit(&cause) => worst = cause,
            Err(_) => {}
        }
    }
    Err(worst)
}

/// Begins on a connection to one host.
async fn begin(
    shared: &Arc<Shared>,
    mut connection: Connection,
    from: Option<Position>,
    known: &Catalog,
) -> Result<Connected> {
    let config = Config { hosts: vec![connection.host().clone()], ..shared.config.clone() };
    let facts = Facts::gather(&mut connection).await?;
    refuse_standby(shared, &facts)?;
    if let Some(from) = &from {
        same_system(from, &facts)?;
    }
    let ancestry = Ancestry::fetch(&mut connection, facts.timeline).await?;
    let sql = Sql::open(&shared.config, &facts.host, &shared.clock).await;
    if let Err(cause) = &sql {
        tracing::warn!(cause = cause.chain(), "no SQL connection: slot headroom and sync state stay unknown");
    }
    let _turn = shared.slot_turn.lock().await;
    let given_up = from.is_some() && shared.is_given_up();
    let slot = if given_up {
        slot::renew(&mut connection, sql.as_ref(), &shared.slot, &shared.clock).await?
    } else {
        slot::ensure(&mut connection, sql.as_ref(), &shared.slot, &shared.clock).await?
    };
    shared.health.change(|health| {
        health.host = facts.host.to_string();
        health.server_version = facts.version;
        health.timeline = facts.timeline;
        health.standby = facts.standby;
        health.slots_lost += u64::from(slot.was_lost);
    });

    let mut begin = Begin { shared, config, facts, ancestry, sql, slot, items: Vec::new(), gap: false };
    let mut target = match &from {
        Some(from) => begin.resume(from)?,
        None => Target { position: begin.fresh(None).await?, prove: false },
    };
    if given_up && begin.fresh(None).await?.lsn > target.position.lsn {
        // The log may still be there, but to take it up would have the slot keep it again.
        let cause = Error::retry("the slot was given up at max_slot_lag");
        let position = begin.gap(&target.position, &cause).await?;
        target = Target { position, prove: false };
    }
    begin.notes(&mut connection, &target.position, known).await?;
    let connected = begin.stream(connection, target, from.is_some()).await?;
    shared.set_given_up(false);
    Ok(connected)
}

fn refuse_standby(shared: &Shared, facts: &Facts) -> Result<()> {
    if !facts.standby {
        return Ok(());
    }
    if shared.settings.standby == StandbyPolicy::Refuse {
        return Err(Error::retry(format!(
            "{} is a standby and «standby» is set to refuse: waiting for its promotion or for another host",
            facts.host
        ))
        .because(Behind));
    }
    tracing::warn!(host = %facts.host, "the server is a standby: what it has not received is not protected");
    Ok(())
}

fn same_system(from: &Position, facts: &Facts) -> Result<()> {
    if from.system_identifier == facts.system_identifier {
        return Ok(());
    }
    Err(Error::lost_lineage(format!(
        "{} has the system identifier {}, the stream in the repository was written from {}: it is another cluster. \
         Point the source at the right one, or take the new one on with «holdfast source adopt»",
        facts.host, facts.system_identifier, from.system_identifier
    )))
}

struct Begin<'a> {
    shared: &'a Arc<Shared>,
    /// Of the host that answered, and no other.
    config: Config,
    facts: Facts,
    ancestry: Ancestry,
    sql: Result<Sql>,
    slot: Slot,
    items: Vec<(Item, Position)>,
    gap: bool,
}

impl Begin<'_> {
    fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Where to go on after `from`, on the line of the server's timeline.
    fn resume(&self, from: &Position) -> Result<Target> {
        let Facts { host, timeline, position, standby, .. } = &self.facts;
        let lost = |why: String| {
            Error::lost_lineage(format!(
                "{host} (timeline {timeline}, at {position}) is not where the stream in the repository came from \
                 (timeline {}, at {}): {why}",
                from.timeline, from.lsn
            ))
        };
        let line = &self.ancestry.line;
        let behind = *timeline == from.timeline && *position < from.lsn || *timeline < from.timeline;
        if behind && *standby {
            return Err(Error::retry(format!(
                "{host} is a standby that has not received yet what the stream already holds ({position} on timeline \
                 {timeline}, the stream is at {} on timeline {}): waiting for it",
                from.lsn, from.timeline
            ))
            .because(Behind));
        }
        if behind {
            return Err(lost(
                "the server was set back to an earlier state, or the stream followed a standby that was promoted by \
                 mistake. If this is the right server, follow it as a source of its own (a new section and «holdfast \
                 source add»); what the stream holds stays restorable"
                    .into(),
            ));
        }
        match line.end_of(from.timeline) {
            None => Err(lost(format!("timeline {} is no ancestor of the server's", from.timeline))),
            Some(None) => Ok(Target { position: from.clone(), prove: true }),
            Some(Some(end)) if from.lsn < end => Ok(Target { position: from.clone(), prove: true }),
            Some(Some(end)) => {
                let (next, _) = line
                    .next_part(from.timeline)
                    .ok_or_else(|| Error::bug("a timeline that ended has no successor"))?;
                let beyond = from.lsn.since(end);
                if beyond > 0 {
                    tracing::warn!(
                        timeline = from.timeline,
                        switch = %end,
                        "{beyond} bytes of the old timeline's log were never part of the new one: they stay in the \
                         repository, and no restore along timeline {next} uses them"
                    );
                }
                let position = Position {
                    timeline: next,
                    lsn: end,
                    memory: from.memory.between(),
                    proof: if beyond == 0 { from.proof } else { OpenPage::new(end).proof() },
                    ..from.clone()
                };
                Ok(Target { position, prove: beyond == 0 })
            }
        }
    }

    /// The start of the first segment that the slot keeps. Whole segments, so that recovery finds their first
    /// pages.
    async fn fresh(&self, newest_xid: Option<&Memory>) -> Result<Position> {
        let segment = self.facts.segment;
        let lsn = segment
            .start(segment.number(self.slot.restart))
            .ok_or_else(|| Error::corrupt("the slot's position lies beyond the end of all log"))?;
        let mut memory = Memory::lost();
        match newest_xid {
            Some(known) => memory = memory.with_newest_xid_of(known),
            None => {
                if let Some(next) = self.next_xid().await {
                    memory = memory.with_newest_xid(next);
                }
            }
        }
        Ok(Position {
            system_identifier: self.facts.system_identifier,
            timeline: self.ancestry.line.timeline_at(lsn),
            lsn,
            proof: OpenPage::new(lsn).proof(),
            memory,
        })
    }

    /// The next transaction id at the newest checkpoint, in 64 bits.
    async fn next_xid(&self) -> Option<u64> {
        let query = "select next_xid from pg_catalog.pg_control_checkpoint()";
        let text = self.sql.as_ref().ok()?.row(query).await.ok()??.into_iter().next()??;
        let (epoch, xid) = text.split_once(':')?;
        Some(epoch.parse::<u64>().ok()? << 32 | u64::from(xid.parse::<u32>().ok()?))
    }

    /// History files and parameters that the repository does not hold yet.
    async fn notes(&mut self, connection: &mut Connection, at: &Position, known: &Catalog) -> Result<()> {
        let time = self.clock().wall();
        let bodies: Vec<_> =
            known.notes.iter().filter_map(|note| NoteBody::decode(&note.body).ok()).collect();
        for (timeline, file) in &self.ancestry.files {
            let body = NoteBody::History { timeline: *timeline, content: file.content.clone() };
            if !bodies.contains(&body) {
                let begins = self.ancestry.line.start_of(*timeline).unwrap_or(at.lsn);
                self.items.push((body.note(place(*timeline, begins), time)?, at.clone()));
            }
        }
        if !bodies.iter().any(|body| matches!(body, NoteBody::Parameters(_))) {
            let body = NoteBody::Parameters(server::parameters(connection).await?);
            self.items.push((body.note(at.place(), time)?, at.clone()));
        }
        Ok(())
    }

    /// Begins the stream: with proof, without where only the page before is gone, behind a gap where the log
    /// itself is.
    async fn stream(mut self, connection: Connection, target: Target, resumed: bool) -> Result<Connected> {
        let mut connection = Some(connection);
        let mut renewed = false;
        let patience = self.clock().now() + slot::LINGER;
        let mut tries = vec![(target.position.clone(), target.prove)];
        if target.prove && target.position.proof.from < target.position.lsn {
            tries.push((target.position.clone(), false));
        }
        let mut at = 0;
        while let Some((position, prove)) = tries.get(at).cloned() {
            let open = match connection.take() {
                Some(open) => open,
                None => Connection::open(&self.config, self.clock()).await?,
            };
            let failed = match self.attempt(open, &position, prove).await {
                Ok((link, cutter, cuts)) => {
                    if resumed && self.slot.was_lost && !self.gap {
                        let what = format!(
                            "the server had given the slot {} up; it was made anew and no log was lost",
                            self.shared.slot
                        );
                        tracing::warn!("{what}");
                        self.shared.health.change(|health| health.notice = what);
                    }
                    let Self { facts, items, gap, .. } = self;
                    return Ok(Connected { facts, link, cutter, items, cuts, gap });
                }
                Err(failed) => failed,
            };
            match failed {
                Failed::Other(cause) => return Err(cause),
                Failed::Busy(cause) if self.clock().now() >= patience => return Err(cause),
                Failed::Busy(_) => self.clock().sleep(slot::LOOK).await,
                Failed::Slot(_) if !renewed => {
                    renewed = true;
                    let mut open = Connection::open(&self.config, self.clock()).await?;
                    self.slot =
                        slot::renew(&mut open, self.sql.as_ref(), &self.shared.slot, self.clock()).await?;
                    self.shared.health.change(|health| health.slots_lost += 1);
                    connection = Some(open);
                }
                Failed::Slot(cause) => return Err(cause),
                Failed::Removed(cause) => {
                    at += 1;
                    if at == tries.len() && !self.gap && resumed {
                        tries.push((self.gap(&position, &cause).await?, false));
                    } else if at == tries.len() && !resumed && !renewed {
                        // Nothing was taken in yet: the slot has only to keep what the server has.
                        renewed = true;
                        let mut open = Connection::open(&self.config, self.clock()).await?;
                        self.slot =
                            slot::renew(&mut open, self.sql.as_ref(), &self.shared.slot, self.clock())
                                .await?;
                        connection = Some(open);
                        let begin = self.fresh(None).await?;
                        for (_, at) in &mut self.items {
                            at.clone_from(&begin);
                        }
                        tries.push((begin, false));
                    } else if at == tries.len() {
                        return Err(Error::retry("the log that the slot should keep is gone").because(cause));
                    }
                }
            }
        }
        Err(Error::bug("a stream was neither begun nor refused"))
    }

    /// The log from `from` on is gone: records what is missing and says where the stream can go on.
    async fn gap(&mut self, from: &Position, cause: &Error) -> Result<Position> {
        let mut begin = self.fresh(Some(&from.memory)).await?;
        if begin.timeline == from.timeline && begin.lsn <= from.lsn {
            // The slot claims to keep what the server no longer has: make it keep what it has.
            let mut open = Connection::open(&self.config, self.clock()).await?;
            self.slot = slot::renew(&mut open, self.sql.as_ref(), &self.shared.slot, self.clock()).await?;
            begin = self.fresh(Some(&from.memory)).await?;
        }
        if begin.timeline < from.timeline || begin.timeline == from.timeline && begin.lsn <= from.lsn {
            return Err(Error::retry("the log is gone, and the slot keeps none that lies behind it"));
        }
        let noticed = self.clock().wall();
        let add = |timeline: u32, from: Lsn, to: Lsn, items: &mut Vec<_>| {
            if from >= to {
                return;
            }
            let span = Span { branch: place(timeline, from).branch, from: from.0, to: to.0 };
            let cause = format!(
                "the server removed its log from {from} to {to} of timeline {timeline} before it was received: {}",
                cause.chain()
            );
            tracing::error!(%from, %to, timeline, "{cause}; a new base backup is made");
            items.push((Item::Gap(Gap { span, cause, noticed }), begin.clone()));
        };
        let (mut timeline, mut lsn) = (from.timeline, from.lsn);
        let mut gaps = Vec::new();
        while timeline != begin.timeline {
            let Some((next, end)) = self.ancestry.line.next_after(timeline) else { break };
            add(timeline, lsn, end, &mut gaps);
            (timeline, lsn) = (next, lsn.max(end));
        }
        add(begin.timeline, lsn, begin.lsn, &mut gaps);
        self.shared.health.change(|health| {
            health.gaps += gaps.len() as u64;
            health.notice =
                format!("log was lost at the server before it was received (up to {}): a gap", begin.lsn);
        });
        self.items.append(&mut gaps);
        self.gap = true;
        Ok(begin)
    }

    /// Asks for the stream at `position` and waits until the server has proven that it can give it.
    async fn attempt(
        &self,
        connection: Connection,
        position: &Position,
        prove: bool,
    ) -> Result<(Link, Cutter, Vec<Cut>), Failed> {
        let from = if prove { position.proof.from } else { position.lsn };
        let (timeline, slot) = (position.timeline, self.shared.slot.as_str());
        let started = connection.start_replication(Some(slot), WireLsn(from.0), Some(timeline)).await;
        let stream = match started {
            Ok(Started::Streaming(stream)) => stream,
            Ok(Started::EndOfTimeline { next_timeline, switch_at, .. }) => {
                return Err(Failed::Other(Error::retry(format!(
                    "the server ended timeline {timeline} at {switch_at} and went on to {next_timeline}"
                ))));
            }
            Err(cause) => return Err(self.refused(cause)),
        };
        self.prove(stream, position, from).await
    }

    fn refused(&self, cause: WireError) -> Failed {
        match cause.code() {
            Some(SqlState::UNDEFINED_FILE) => Failed::Removed(cause.into()),
            Some(SqlState::NOT_IN_PREREQUISITE_STATE | SqlState::UNDEFINED_OBJECT) => Failed::Slot(cause.into()),
            Some(SqlState::OBJECT_IN_USE) => Failed::Busy(Error::from(cause).during(format!(
                "the slot {} is in use: by another holdfast, or by an old session that the server drops after its \
                 wal_sender_timeout",
                self.shared.slot
            ))),
            _ => Failed::Other(cause.into()),
        }
    }

    async fn prove(
        &self,
        mut stream: Stream,
        position: &Position,
        from: Lsn,
    ) -> Result<(Link, Cutter, Vec<Cut>), Failed> {
        // A report first: the server answers it, so even an idle one shows that the stream runs.
        stream.writer.status(Status::default(), true).await.map_err(|cause| self.refused(cause))?;
        let pace = Pace {
            shutdown_grace: self.shared.settings.shutdown_grace,
            sender_timeout: self.facts.sender_timeout,
        };
        let settled = self.shared.settled_on(position.timeline, position.lsn);
        let floor = if self.gap || self.slot.made { position.lsn } else { Lsn::INVALID };
        let (clock, health) = (self.clock(), &self.shared.health);
        let mut link = Link::run(stream, position.timeline, from, settled, floor, pace, clock, health);
        let mut page = OpenPage::new(from);
        let mut rest = None;
        let more = self.facts.position > position.lsn;
        while page.end() < position.lsn || more && rest.is_none() {
            let event = self.clock().timeout(FIRST_BYTE, link.next()).await;
            let event = event.ok_or_else(|| Error::retry("the server does not send the log it has"))?;
            match event {
                Event::Wal { start, mut bytes } => {
                    if start != page.end() {
                        return Err(Failed::Other(Error::retry(format!(
                            "the server sent its log from {start} on where {} was asked for",
                            page.end()
                        ))));
                    }
                    let known = bytes.split_to(
                        usize::try_from(position.lsn.since(start)).unwrap_or(usize::MAX).min(bytes.len()),
                    );
                    page.push(&known);
                    if !bytes.is_empty() {
                        rest = Some(bytes);
                    }
                }
                Event::Wake => {}
                Event::Removed(cause) => return Err(Failed::Removed(cause)),
                Event::Over(cause) => return Err(Failed::Other(cause)),
                Event::TimelineEnd { next, switch } => {
                    return Err(Failed::Other(Error::retry(format!(
                        "the server ended timeline {} at {switch} and went on to {next}",
                        position.timeline
                    ))));
                }
            }
        }
        if from == position.proof.from && page.proof() != position.proof {
            return Err(Failed::Other(Error::lost_lineage(format!(
                "{} (system identifier {}, timeline {}) holds other bytes from {from} to {} than the stream in the \
                 repository: it is a clone or a rewound server that shares the past of the one followed so far, and \
                 the two have parted. Point the source at the right server; if it is this one, follow it as a source \
                 of its own (a new section and «holdfast source add»)",
                self.facts.host, self.facts.system_identifier, self.facts.timeline, position.lsn
            ))));
        }
        let mut cutter = Cutter::new(position, page, self.facts.segment);
        let mut cuts = Vec::new();
        if let Some(bytes) = rest {
            cutter.receive(position.lsn, bytes, &mut cuts)?;
        }
        Ok((link, cutter, cuts))
    }
}
