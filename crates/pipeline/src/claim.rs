//! Taking a stream over: R2, R3 and R4, on both kinds of store.
//!
//! Invariants: the epoch object is durable before anything of lower epochs is looked at; what is taken over is
//! the newest lower epoch with a number 0, and through it what that one took over, never counted again; END
//! stands at the lowest free number; number 0 says all this once.

use std::cmp::Reverse;

use holdfast_core::{
    Catalog, Cursor, Epoch, Error, Result, RunId, Timestamp, WriterId,
    sink::{Body, Range, create_same},
};
use holdfast_repo::{
    catalog::apply,
    chain::{Access, Chain, Depth, Found, Opening},
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

/// Nothing larger than this is an END.
const END_MAX: u64 = 1024;
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
    /// Newest time that the source vouched for before us.
    pub vouched: Option<Timestamp>,
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
}

/// # Errors
/// `Fenced` when another claim stands above ours.
pub(crate) async fn claim(tools: &Tools, repository: &Repository, stream: Stream) -> Result<Claimed> {
    let access = tools.access(stream);
    for _ in 0..ATTEMPTS {
        // A standby may have waited for weeks since it opened the repository.
        repository.refuse_newer().await?;
        let ring = repository.source_ring(tools.source).await?;
        let Some((epoch, data_key)) = create_epoch(tools, &access, &ring).await? else { continue };
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
        let Taken { catalog, cursor, vouched, .. } = taken;
        return Ok(Claimed {
            stream,
            epoch,
            data_key,
            ring: ring.generation,
            catalog,
            cursor,
            vouched,
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
    if let Some(highest) = highest {
        if let Some(object) = read_epoch(access, *highest).await?
            && object.ring > ring.generation
        {
            return Err(Error::configure(format!(
                "epoch {highest} knew ring generation {}, but the store shows {} as the newest: the ring was rolled \
                 back",
                object.ring, ring.generation
            )));
        }
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
        opening = access.opening(*epoch).await?;
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
                Dead::Lives => open = access.opening(*epoch).await?,
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
        let catalog = Catalog::default();
        return Ok(Some(Taken { took, abandoned: Vec::new(), digest, catalog, cursor: None, vouched: None }));
    };
    let Some((mut catalog, cursor, vouched)) = resume(access, took.predecessor).await? else {
        return Ok(None);
    };
    let abandoned = abandon(&mut catalog);
    Ok(Some(Taken { took, abandoned, digest, catalog, cursor, vouched }))
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
        let run: Vec<_> = listed
            .iter()
            .zip(first..)
            .take_while(|(plain, number)| plain.number == *number)
            .map(|(plain, _)| *plain)
            .collect();
        if run.is_empty() {
            return Err(Error::corrupt(format!(
                "the store's list of {} begins too late: number {first} is not in it",
                self.access.stream.log_prefix(epoch)
            )));
        }
        for plain in run.iter().filter(|plain| plain.number > 0 && plain.size <= END_MAX) {
            let found = self.front(epoch, plain.number).await?;
            if let Front::End(end) = found.front {
                self.is_lower(&found, end)?;
                let last = plain.number - 1;
                return Ok((last, self.digest(opening, last).await?, false));
            }
        }
        let mut last = first + run.len() as u64 - 1;
        let size = run.last().map_or(0, |plain| plain.size);
        let mut digest = self.whole(opening, last, size).await?;
        if !self.tools.create_only {
            return Ok((last, digest, false));
        }
        loop {
            match self.put_end(epoch, last + 1, digest).await? {
                Put::Stored => return Ok((last, digest, true)),
                Put::Taken(found) => match found.front {
                    Front::End(end) => {
                        self.is_lower(&found, end)?;
                        return Ok((last, digest, end.by == self.ours));
                    }
                    // It landed since we listed: it is data, and taken over.
                    Front::Data(_) => {
                        last += 1;
                        digest = found.digest;
                    }
                },
            }
        }
    }

    async fn digest(&self, opening: &Opening, number: u64) -> Result<[u8; 32]> {
        if number == 0 { Ok(opening.digest) } else { Ok(self.front(opening.epoch, number).await?.digest) }
    }

    /// The digest of an object that the store lists with `size` bytes. Where we go on nothing may be torn.
    async fn whole(&self, opening: &Opening, number: u64, size: u64) -> Result<[u8; 32]> {
        if number == 0 {
            return Ok(opening.digest);
        }
        let front = self.front(opening.epoch, number).await?;
        let expected = front.prelude.object_len() as u64;
        if size == expected {
            return Ok(front.digest);
        }
        Err(Error::corrupt(format!(
            "{} has {size} bytes instead of {expected}: the store keeps part of an object, which none may",
            self.access.stream.log(opening.epoch, number)
        )))
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
        put(self.access, &object).await
    }
}

type Resumed = (Catalog, Option<Cursor>, Option<Timestamp>);

/// What the stream holds up to and with `predecessor`.
async fn resume(access: &Access, predecessor: Option<Predecessor>) -> Result<Option<Resumed>> {
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
    let from = match head.header.catalog {
        // A catalog behind what we took over is none of ours.
        Some(at) if at <= (epoch, last) => at,
        _ => (epoch, 0),
    };
    let mut walk = chain.walk_until(from, (epoch, last), Depth::Entries);
    let mut catalog = Catalog::default();
    let (mut cursor, mut vouched) = (None, None);
    while let Some(found) = walk.next().await? {
        let object = match found {
            Found::Object(object) => object,
            // Damage behind us costs readers what it held; where we go on, only the last object says.
            Found::Lost { epoch: lost, to, error, .. } if (lost, to) < (epoch, last) => {
                tracing::warn!(error = error.chain(), "an object of the stream is damaged");
                continue;
            }
            Found::Lost { error, .. } => return Err(error),
        };
        let entries = object.entries(&access.source_key)?;
        apply(&mut catalog, object.id(), &object.header, &entries);
        for entry in entries {
            if let Entry::Cursor(newer) = entry {
                cursor = Some(newer);
            }
        }
        vouched = vouched.max(object.header.vouched);
    }
    Ok(Some((catalog, cursor, vouched)))
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
    match put(access, &object).await? {
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
