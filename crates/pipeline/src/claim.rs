//! Taking a stream over: R2, R3 and R4, on both kinds of store.
//!
//! Invariants: the epoch object is durable before anything of lower epochs is looked at; what is taken over is
//! the newest lower epoch with a number 0, and through it what that one took over, never counted again; END
//! stands at the lowest free number that a create may still be in flight for; number 0 says all this once, and
//! names no catalog that was not brought up from a whole one.

use std::cmp::Reverse;

use holdfast_core::{
    Act, Catalog, Cursor, Epoch, Error, Result, RunId, Timestamp, WriterId,
    sink::{Body, Range, create_same},
};
use holdfast_repo::{
    chain::{Access, Chain, END_MAX, Known, Opening, Plain, Tail},
    entry::{Entry, Predecessor, Took},
    epoch::{Claim, EPOCH_MAX, EpochObject},
    names::Stream,
    object::{End, Front, Header, OpenFront, seal_body, seal_end, seal_header},
    ring::SourceRing,
    seal::Key,
    view::Repository,
};

use crate::{
    parts::Tools,
    store::{Put, fence, put},
};

/// Epochs that one claim uses up at most: the ring may be replaced and a number 0 may land while it works, but
/// not again and again.
const ATTEMPTS: usize = 8;
/// Unfinished runs of earlier writers that a claim keeps.
const RUNS_KEPT: usize = 2;

/// A stream that is ours.
pub(crate) struct Claimed {
    pub stream: Stream,
    pub epoch: Epoch,
    pub data_key: Key,
    pub ring: u64,
    /// As of number 0.
    pub catalog: Catalog,
    pub cursor: Option<Cursor>,
    /// Newest time that the source vouched for before us, and when a writer's host wrote that down.
    pub vouched: Option<Timestamp>,
    pub vouched_at: Option<Timestamp>,
    /// Of number 0.
    pub digest: [u8; 32],
}

/// What is taken over, before it is written down.
struct Taken {
    took: Took,
    /// Unfinished runs that nobody will look into again.
    abandoned: Vec<RunId>,
    digest: [u8; 32],
    catalog: Catalog,
    cursor: Option<Cursor>,
    vouched: Option<Timestamp>,
    vouched_at: Option<Timestamp>,
}

/// # Errors
/// `Fenced` when another claim stands above ours.
pub(crate) async fn claim(tools: &Tools, repository: &Repository, stream: Stream) -> Result<Claimed> {
    let access = tools.access(stream);
    for _ in 0..ATTEMPTS {
        // A standby may have waited for weeks since it opened the repository.
        repository.refuse_newer().await?;
        let ring = repository.source_ring(tools.source).await?;
        let created = create_epoch(tools, &access, &ring).await;
        if matches!(&created, Err(error) if error.act() == Act::Configure)
            && repository.source_generation(tools.source).await? > Some(ring.generation)
        {
            // Not rolled back: it grew, and another claimant knew it first.
            continue;
        }
        let Some((epoch, data_key)) = created? else { continue };
        tracing::info!(%stream, %epoch, "claimed an epoch");
        // R2: a newer ring generation must not find itself sealed to the old recipients.
        if repository.source_generation(tools.source).await? > Some(ring.generation) {
            continue;
        }
        let Some(taken) = take_over(tools, &access, epoch).await? else {
            // The store shows another predecessor than a moment ago: look again, in an epoch of its own.
            continue;
        };
        if !access.epochs_above(epoch).await?.is_empty() {
            return Err(Error::fenced(format!("another writer claimed {stream} after us: giving way to it")));
        }
        let digest = create_zero(tools, &access, epoch, &data_key, &taken).await?;
        let Taken { catalog, cursor, vouched, vouched_at, .. } = taken;
        return Ok(Claimed {
            stream,
            epoch,
            data_key,
            ring: ring.generation,
            catalog,
            cursor,
            vouched,
            vouched_at,
            digest,
        });
    }
    Err(Error::corrupt(format!(
        "{stream} showed another history at each of {ATTEMPTS} looks: either its store does not show what was \
         written, or its newest epochs were changed; `holdfast verify` names what is damaged"
    )))
}

/// Creates `epochs/<highest + 1>`; `None` when another one was faster.
async fn create_epoch(tools: &Tools, access: &Access, ring: &SourceRing) -> Result<Option<(Epoch, Key)>> {
    let stream = access.stream;
    let epochs = access.epochs().await?;
    let highest = epochs.last();
    if highest.is_some() {
        refuse_rolled_back(access, &epochs, ring.generation).await?;
        if !tools.create_only && epochs.iter().any(|epoch| epoch.writer == WriterId([0; 8])) {
            return Err(Error::configure(format!(
                "{stream} was written with create-only writes, which {} does not offer now: a writer of that time \
                 could not be fenced",
                tools.sink.address()
            )));
        }
    }
    let number = highest.map_or(0, |epoch| epoch.number).checked_add(1);
    let number = number.ok_or_else(|| Error::corrupt(format!("{stream} has the highest possible epoch")))?;
    let writer = WriterId(tools.random.array());
    let epoch = if tools.create_only { Epoch::numbered(number) } else { Epoch { number, writer } };
    let claim = Claim {
        repo: tools.repo,
        lineage: stream.lineage,
        epoch,
        writer,
        instance: tools.instance,
        ring: ring.generation,
        claimed: tools.clock.wall(),
        recipients: &ring.recipients,
    };
    let (bytes, data_key) = claim.seal(&tools.source_key, &tools.random)?;
    let ours = create_same(&*tools.sink, &stream.epoch(epoch), &Body::from(bytes)).await?;
    Ok(ours.then_some((epoch, data_key)))
}

/// A ring older than one that a writer of this stream knew. Asked of every epoch down to the newest that has a number
/// 0: those above it may have been claimed in any order, what is below was seen by its writer. The first claim of a
/// lineage has nothing to compare with.
async fn refuse_rolled_back(access: &Access, epochs: &[Epoch], newest: u64) -> Result<()> {
    for epoch in epochs.iter().rev() {
        let known = read_epoch(access, *epoch).await?.map_or(0, |object| object.ring);
        if known > newest {
            return Err(Error::configure(format!(
                "epoch {epoch} knew ring generation {known}, but the store shows {newest} as the newest: the ring was \
                 rolled back"
            )));
        }
        // One that cannot be read is met again when it is to be taken over.
        let front = access.front(*epoch, 0).await;
        if !matches!(front, Ok(None) | Ok(Some(OpenFront { front: Front::End(_), .. }))) {
            break;
        }
    }
    Ok(())
}

/// An epoch object, proved; `None` when there is none.
pub(crate) async fn read_epoch(access: &Access, epoch: Epoch) -> Result<Option<EpochObject>> {
    let range = Range::Part { from: 0, length: EPOCH_MAX as u64 + 1 };
    match access.sink.read(&access.stream.epoch(epoch), range).await? {
        Some(bytes) => EpochObject::open(&access.source_key, access.stream, epoch, &bytes).map(Some),
        None => Ok(None),
    }
}

/// R3. `None` when readers begin elsewhere than at the epoch that was found: a number 0 landed meanwhile.
async fn take_over(tools: &Tools, access: &Access, ours: Epoch) -> Result<Option<Taken>> {
    let lower: Vec<Epoch> = access.epochs().await?.into_iter().filter(|epoch| *epoch < ours).collect();
    let mut opening = None;
    let mut from = 0;
    for (at, epoch) in lower.iter().enumerate().rev() {
        opening = opening_of(access, *epoch).await?;
        if opening.is_some() {
            from = at;
            break;
        }
    }
    let closer = Closer { tools, access, ours };
    let mut took = Took::default();
    let mut end: Option<([u8; 32], Opening)> = None;
    for epoch in lower.get(from..).unwrap_or_default() {
        let mut open = opening.take_if(|opening| opening.epoch == *epoch);
        if open.is_none() {
            match closer.close_dead(*epoch).await? {
                Dead::Closed { by_us } => {
                    took.dead.push(*epoch);
                    took.closed.extend(by_us.then_some(*epoch));
                    continue;
                }
                Dead::Lives => open = opening_of(access, *epoch).await?,
            }
        }
        let open = open.ok_or_else(|| Error::corrupt(format!("number 0 of epoch {epoch} came and went")))?;
        // Whatever was found before is reached through this one, or was dead to it.
        let (last, digest, by_us) = closer.close(&open).await?;
        took.predecessor = Some(Predecessor { epoch: *epoch, last, digest });
        took.dead.clear();
        took.closed.extend(by_us.then_some(*epoch));
        end = Some((digest, open));
    }
    let Some((digest, _)) = end else {
        let digest = [0; 32];
        let (catalog, abandoned) = (Catalog::default(), Vec::new());
        let (cursor, vouched, vouched_at) = (None, None, None);
        return Ok(Some(Taken { took, abandoned, digest, catalog, cursor, vouched, vouched_at }));
    };
    let Some(known) = resume(access, took.predecessor).await? else { return Ok(None) };
    let Known { mut catalog, cursor, vouched, vouched_at, .. } = known;
    let abandoned = abandon(&mut catalog);
    Ok(Some(Taken { took, abandoned, digest, catalog, cursor, vouched, vouched_at }))
}

/// Number 0 of an epoch. Without it nobody can say what the epoch took over, so a person must decide.
async fn opening_of(access: &Access, epoch: Epoch) -> Result<Option<Opening>> {
    let name = access.stream.log(epoch, 0);
    access.opening(epoch).await.map_err(|error| match error.act() {
        Act::Corrupt => error.during(format!(
            "the stream cannot go on: {name}, which says what epoch {epoch} took over, is damaged. Put an intact copy \
             in its place (an older version of the object, a mirror); where there is none, move it away: then all that \
             epoch {epoch} wrote is given up, and a gap is recorded where the source no longer holds it"
        )),
        _ => error,
    })
}

/// A start after a start that ended no run would leave ever more of them: the newest that hold something are
/// kept for look-ups.
fn abandon(catalog: &mut Catalog) -> Vec<RunId> {
    catalog.runs.sort_by_key(|run| (run.layers.is_empty(), Reverse(run.began)));
    let kept = catalog.runs.iter().take(RUNS_KEPT).take_while(|run| !run.layers.is_empty()).count();
    let abandoned = catalog.runs.drain(kept..).map(|run| run.id).collect();
    // Where rows are looked up in several runs, the newest wins.
    catalog.runs.sort_by_key(|run| run.began);
    abandoned
}

struct Closer<'a> {
    tools: &'a Tools,
    access: &'a Access,
    ours: Epoch,
}

enum Dead {
    Closed {
        by_us: bool,
    },
    /// It has a number 0 after all.
    Lives,
}

impl Closer<'_> {
    /// Closes an epoch that had no number 0 when we looked.
    async fn close_dead(&self, epoch: Epoch) -> Result<Dead> {
        if !self.tools.create_only {
            // It cannot settle: our epoch object came before its number 0, and it lists before it settles.
            return Ok(Dead::Closed { by_us: false });
        }
        match self.put_end(epoch, 0, [0; 32]).await? {
            Put::Stored => Ok(Dead::Closed { by_us: true }),
            Put::Taken(found) => match found.front {
                Front::End(end) => self.is_lower(&found, end).map(|()| Dead::Closed { by_us: false }),
                Front::Data(_) => Ok(Dead::Lives),
            },
        }
    }

    /// Ends an epoch that has a number 0: its last number that counts, that object's digest, and whether the
    /// END is ours.
    async fn close(&self, opening: &Opening) -> Result<(u64, [u8; 32], bool)> {
        let epoch = opening.epoch;
        let merged = self.access.merged(epoch).await?.iter().map(|range| range.to).max();
        let listed = self.access.plain(epoch, merged, true).await?;
        let first = merged.map_or(0, |end| end.saturating_add(1));
        let tail = Tail::new(&listed, first, merged.is_some());
        if tail.run.is_empty() || first == 0 && tail.run.first().is_some_and(|plain| plain.number > 0) {
            return Err(Error::corrupt(format!(
                "the store's list of {} begins too late: number {first} is not in it",
                self.access.stream.log_prefix(epoch)
            )));
        }
        for (from, to) in &tail.lost {
            tracing::warn!(%epoch, from, to, "objects of the stream were stored and are gone: what they held is lost");
        }
        let mut last = (first, 0);
        for plain in &tail.run {
            let at_end = match self.end_at(epoch, *plain).await? {
                Some(end) => end,
                None => {
                    last = (plain.number, plain.size);
                    continue;
                }
            };
            self.is_lower(&at_end.0, at_end.1)?;
            return Ok((last.0, self.whole(opening, last).await?, at_end.1.by == self.ours));
        }
        let mut digest = self.whole(opening, last).await?;
        let mut last = last.0;
        if !self.tools.create_only {
            return Ok((last, digest, false));
        }
        let mut number = tail.end;
        loop {
            match self.put_end(epoch, number, digest).await? {
                Put::Stored => return Ok((last, digest, true)),
                Put::Taken(found) => match found.front {
                    Front::End(end) => {
                        self.is_lower(&found, end)?;
                        return Ok((last, digest, end.by == self.ours));
                    }
                    // It landed since we listed: it is data, and taken over.
                    Front::Data(_) => {
                        last = number;
                        digest = found.digest;
                        number = number.checked_add(1).ok_or_else(|| {
                            Error::corrupt(format!("epoch {epoch} has the highest possible number"))
                        })?;
                    }
                },
            }
        }
    }

    /// The END that an object is; what cannot be read is taken for data, as readers take it.
    async fn end_at(&self, epoch: Epoch, plain: Plain) -> Result<Option<(OpenFront, End)>> {
        if plain.number == 0 || plain.size > END_MAX {
            return Ok(None);
        }
        match self.front(epoch, plain.number).await {
            Ok(found) => match found.front {
                Front::End(end) => Ok(Some((found, end))),
                Front::Data(_) => Ok(None),
            },
            Err(error) if error.act() == Act::Corrupt => {
                tracing::warn!(error = error.chain(), "an object of the stream is damaged");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The digest of an object that the store lists with a size. Where we go on nothing may be torn.
    async fn whole(&self, opening: &Opening, (number, size): (u64, u64)) -> Result<[u8; 32]> {
        if number == 0 {
            return Ok(opening.digest);
        }
        let last = |error: Error| match error.act() {
            Act::Corrupt => error.during(at_its_end(self.access, opening.epoch, number)),
            _ => error,
        };
        let front = self.front(opening.epoch, number).await.map_err(last)?;
        let expected = front.prelude.object_len() as u64;
        if size == expected {
            return Ok(front.digest);
        }
        Err(last(Error::corrupt(format!(
            "{} has {size} bytes instead of {expected}: the store keeps part of an object, which none may",
            self.access.stream.log(opening.epoch, number)
        ))))
    }

    async fn front(&self, epoch: Epoch, number: u64) -> Result<OpenFront> {
        let front = self.access.front(epoch, number).await?;
        front.ok_or_else(|| {
            Error::corrupt(format!("{} was listed and is gone", self.access.stream.log(epoch, number)))
        })
    }

    fn is_lower(&self, found: &OpenFront, end: End) -> Result<()> {
        if end.by > self.ours { Err(fence(found)) } else { Ok(()) }
    }

    async fn put_end(&self, epoch: Epoch, number: u64, previous: [u8; 32]) -> Result<Put> {
        let end = End { by: self.ours, written: self.tools.clock.wall() };
        let id = self.access.id(epoch, number);
        let salt = self.tools.random.array();
        let object = seal_end(&self.access.source_key, id, salt, end, previous)?;
        put(self.access, &self.tools.clock, &object).await
    }
}

/// What the stream holds up to and with `predecessor`.
async fn resume(access: &Access, predecessor: Option<Predecessor>) -> Result<Option<Known>> {
    let Some(Predecessor { epoch, last, digest }) = predecessor else { return Ok(None) };
    let Some(chain) = Chain::open(access.clone()).await? else { return Ok(None) };
    let head = chain.head();
    if head.at.0 != epoch || head.at.1 < last {
        return Ok(None);
    }
    let front = if head.at.1 == last {
        Some(head.digest)
    } else {
        access.front(epoch, last).await?.map(|f| f.digest)
    };
    if front != Some(digest) {
        return Ok(None);
    }
    let mut known = chain.known((epoch, last)).await?;
    // Damage behind us costs readers what it held; where we go on, only the last object says.
    for damage in &known.damage {
        tracing::warn!(damage, "an object of the stream is damaged");
    }
    if let Some(error) = known.last.take() {
        return Err(error.during(at_its_end(access, epoch, last)));
    }
    if !known.based {
        return Err(Error::corrupt(format!(
            "no catalog of {} can be read, and a new one would forget every base backup: {}; put an intact copy of one \
             of these objects back (an older version of it, a mirror)",
            access.stream,
            known.damage.join("; ")
        )));
    }
    Ok(Some(known))
}

/// Said before the error of the object that a stream is to go on after.
fn at_its_end(access: &Access, epoch: Epoch, number: u64) -> String {
    let name = access.stream.log(epoch, number);
    format!(
        "the stream cannot go on after {name}, its last object. Put an intact copy in its place (an older version of \
         the object, a mirror); where there is none, move it away: then the stream goes on before it, and a gap is \
         recorded where the source no longer holds what it held"
    )
}

/// R4: number 0 says what was taken over. Answers its digest.
async fn create_zero(
    tools: &Tools,
    access: &Access,
    epoch: Epoch,
    data_key: &Key,
    taken: &Taken,
) -> Result<[u8; 32]> {
    let mut entries = vec![Entry::Took(taken.took.clone())];
    entries.extend(taken.abandoned.iter().copied().map(Entry::Abandoned));
    entries.push(Entry::Catalog(Box::new(taken.catalog.clone())));
    entries.extend(taken.cursor.clone().map(Entry::Cursor));
    let header = Header {
        written: tools.clock.wall(),
        uptime: uptime(tools),
        vouched: taken.vouched,
        heartbeat: heartbeat_ms(tools),
        catalog: Some((epoch, 0)),
        spans: Vec::new(),
        marks: None,
        mark_count: 0,
        release: false,
    };
    let (source_key, data_key) = (tools.source_key.clone(), data_key.clone());
    let (id, salt, previous) = (access.id(epoch, 0), tools.random.array(), taken.digest);
    let sealed = tools.pool.run(move || {
        let body = seal_body(&source_key, &data_key, id, salt, &entries, &[])?;
        seal_header(&source_key, &header, &body, previous)
    });
    let object = sealed.await??;
    match put(access, &tools.clock, &object).await? {
        Put::Stored => Ok(object.digest),
        Put::Taken(found) => Err(fence(&found)),
    }
}

pub(crate) fn uptime(tools: &Tools) -> u64 {
    let since = tools.clock.now().saturating_duration_since(tools.started);
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn heartbeat_ms(tools: &Tools) -> u32 {
    u32::try_from(tools.settings.heartbeat.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Bytes, Layer, RunProgress};

    use super::*;

    #[test]
    fn a_claim_keeps_the_newest_unfinished_runs_that_hold_something() {
        let run = |id: u8, began: i64, layers: usize| RunProgress {
            id: RunId([id; 8]),
            began: Timestamp(began),
            layers: vec![Layer { objects: Vec::new() }; layers],
            body: Bytes::new(),
        };
        let runs = vec![run(1, 10, 1), run(2, 20, 3), run(3, 30, 0), run(4, 15, 1)];
        let mut catalog = Catalog { runs, ..Catalog::default() };
        let mut abandoned = abandon(&mut catalog);
        abandoned.sort_unstable();
        assert_eq!(abandoned, [RunId([1; 8]), RunId([3; 8])]);
        assert_eq!(catalog.runs.iter().map(|run| run.id).collect::<Vec<_>>(), [RunId([4; 8]), RunId([2; 8])]);
    }
}
