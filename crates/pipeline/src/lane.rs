//! The stream's way from a closed batch to a durable object: bodies sealed in parallel, headers in order, up
//! to so many creates in flight.
//!
//! Invariants: a number is sealed once and always sent with the same bytes; headers are chained in order; no create
//! begins a window or more above the lowest one without an answer; what a batch costs is given back when its object
//! is stored.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use holdfast_core::{Epoch, Instant, Result, sink::Body};
use holdfast_repo::{
    chain::{Access, WINDOW},
    entry::Entry,
    object::{Header, SealedBody, SealedObject, seal_body, seal_header},
    seal::Key,
};

use crate::{
    parts::Tools,
    store::{Put, fence, put},
};

pub(crate) struct Lane {
    tools: Tools,
    access: Access,
    epoch: Epoch,
    data_key: Key,
    sealing: FuturesUnordered<BoxFuture<'static, Result<(u64, SealedBody)>>>,
    /// Bodies whose header's turn has not come.
    bodies: BTreeMap<u64, SealedBody>,
    headers: BTreeMap<u64, Header>,
    next_header: u64,
    previous: [u8; 32],
    ready: VecDeque<SealedObject>,
    storing: FuturesUnordered<BoxFuture<'static, Result<(SealedObject, Put)>>>,
    /// When each create in flight began, by number.
    flights: BTreeMap<u64, Instant>,
    started: Option<Instant>,
    costs: BTreeMap<u64, usize>,
    in_memory: usize,
}

/// What a step did.
#[derive(Debug)]
pub(crate) enum Moved {
    /// The header of this number is sealed.
    Sealed(u64),
    Stored {
        number: u64,
        body: Body,
    },
}

impl Lane {
    /// `previous` is the digest of number 0.
    pub fn new(tools: Tools, access: Access, epoch: Epoch, data_key: Key, previous: [u8; 32]) -> Self {
        let started = Some(tools.clock.now());
        Self {
            tools,
            access,
            epoch,
            data_key,
            sealing: FuturesUnordered::new(),
            bodies: BTreeMap::new(),
            headers: BTreeMap::new(),
            next_header: 1,
            previous,
            ready: VecDeque::new(),
            storing: FuturesUnordered::new(),
            flights: BTreeMap::new(),
            started,
            costs: BTreeMap::new(),
            in_memory: 0,
        }
    }

    /// Bytes that batches hold until they are stored.
    pub fn in_memory(&self) -> usize {
        self.in_memory
    }
    /// When the newest create began; number 0 counts.
    pub fn started(&self) -> Option<Instant> {
        self.started
    }
    /// Since when the oldest create in flight has had no answer.
    pub fn waiting_since(&self) -> Option<Instant> {
        self.flights.values().min().copied()
    }

    /// Takes a closed batch; `number` follows the one before.
    pub fn push(
        &mut self,
        number: u64,
        header: Header,
        entries: Vec<Entry>,
        closed: Vec<Bytes>,
        cost: usize,
    ) {
        self.headers.insert(number, header);
        self.costs.insert(number, cost);
        self.in_memory += cost;
        let (source_key, data_key) = (self.access.source_key.clone(), self.data_key.clone());
        let (id, salt) = (self.access.id(self.epoch, number), self.tools.random.array());
        let pool = self.tools.pool.clone();
        self.sealing.push(Box::pin(async move {
            let seal = move || seal_body(&source_key, &data_key, id, salt, &entries, &closed);
            Ok((number, pool.run(seal).await??))
        }));
    }

    /// The next thing that happens. Cancel-safe.
    ///
    /// # Errors
    /// `Fenced` when another writer's object stands under a name of ours.
    pub async fn step(&mut self) -> Result<Moved> {
        loop {
            // Before waiting: bodies come in any order, so one that came can make several headers ready.
            if let Some(number) = self.seal_next()? {
                return Ok(Moved::Sealed(number));
            }
            self.start();
            tokio::select! {
                biased;
                Some(stored) = self.storing.next() => return self.stored(stored?),
                Some(sealed) = self.sealing.next() => {
                    let (number, body) = sealed?;
                    self.bodies.insert(number, body);
                }
                else => std::future::pending().await,
            }
        }
    }

    /// Seals the next header, if its body is there.
    pub fn seal_next(&mut self) -> Result<Option<u64>> {
        let number = self.next_header;
        let Some(body) = self.bodies.remove(&number) else { return Ok(None) };
        let Some(header) = self.headers.remove(&number) else { return Ok(None) };
        let object = seal_header(&self.access.source_key, &header, &body, self.previous)?;
        self.previous = object.digest;
        self.next_header += 1;
        // From here on only the sealed bytes are held.
        let held = object.body.len();
        self.in_memory = self.in_memory.saturating_sub(self.costs.insert(number, held).unwrap_or(0)) + held;
        self.ready.push_back(object);
        self.start();
        Ok(Some(number))
    }

    /// Is a number close enough to the lowest one without an answer? Farther up, that one would be taken for lost
    /// (R3), and what follows it would wait in memory without bound.
    fn is_near(&self, number: u64) -> bool {
        self.flights.first_key_value().is_none_or(|(lowest, _)| number < lowest.saturating_add(WINDOW))
    }

    fn start(&mut self) {
        while self.storing.len() < self.tools.settings.in_flight
            && self.ready.front().is_some_and(|object| self.is_near(object.id.number))
            && let Some(object) = self.ready.pop_front()
        {
            let now = self.tools.clock.now();
            self.started = Some(now);
            self.flights.insert(object.id.number, now);
            let (access, clock) = (self.access.clone(), self.tools.clock.clone());
            self.storing.push(Box::pin(async move {
                let stored = put(&access, &clock, &object).await?;
                Ok((object, stored))
            }));
        }
    }

    fn stored(&mut self, (object, stored): (SealedObject, Put)) -> Result<Moved> {
        let number = object.id.number;
        self.flights.remove(&number);
        self.in_memory = self.in_memory.saturating_sub(self.costs.remove(&number).unwrap_or(0));
        match stored {
            Put::Stored => Ok(Moved::Stored { number, body: object.body }),
            Put::Taken(found) => Err(fence(&found)),
        }
    }
}
