//! Holds, reader side (R9): a restore says before it plans that nothing doomed later may be removed.
//!
//! Invariants: a hold is as old as its k = 0 and gone a day after its newest k, both by the store's times, so a
//! host that slept notices its lapse; after a lapse nothing is renewed: a new hold and a new plan are needed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use holdfast_core::{
    Act, Clock, Error, Random, Result, Sink, SourceId, Timestamp,
    sink::{Created, Range, list_all},
    task::{self, Task},
};
use tokio::sync::watch;

use crate::{
    names::{self, Name},
    record::{Hold, RECORD_MAX},
    seal::Key,
};

/// A hold ends this long after its newest renewal.
pub const LIFE: Duration = Duration::from_secs(24 * 3600);
/// A renewal is due this long after the last.
const RENEWAL: Duration = Duration::from_secs(3600);
/// After a failed renewal.
const AGAIN: Duration = Duration::from_secs(60);
/// A lapse is assumed this much early: whoever removes may have looked at another moment.
const MARGIN: Duration = Duration::from_secs(3600);

/// Where holds of one source are written.
#[derive(Clone)]
pub struct Holds {
    pub sink: Arc<dyn Sink>,
    pub source: SourceId,
    pub source_key: Key,
}

/// What became of the wish for a hold.
pub enum Placed {
    Held(Holder),
    /// We may not write there; the sentence says what that means for the restore.
    Unheld(Error),
}

/// A hold as it lies in the store.
#[derive(Clone, Debug)]
pub struct Seen {
    pub hold: [u8; 8],
    /// The store's times of k = 0 and of the newest renewal.
    pub began: Timestamp,
    pub renewed: Timestamp,
    pub newest: u64,
    /// Who holds and why; `None` when the record is damaged (it counts all the same).
    pub record: Option<Hold>,
}

impl Seen {
    /// Does it still hold at `now`, by the store's clock?
    pub fn holds(&self, now: Timestamp) -> bool {
        now.since(self.renewed) < LIFE
    }
}

impl Holds {
    /// Writes a hold. To be done before anything is planned.
    ///
    /// # Errors
    /// Passing errors of the store. What it forbids is [`Placed::Unheld`].
    pub async fn place(&self, record: Hold, clock: &Clock, random: &Random) -> Result<Placed> {
        let holder = Holder {
            holds: self.clone(),
            hold: random.array(),
            next: 0,
            record,
            clock: clock.clone(),
            random: random.clone(),
        };
        let mut holder = holder;
        match holder.write().await {
            Ok(()) => Ok(Placed::Held(holder)),
            Err(error) if error.act() == Act::Configure => Ok(Placed::Unheld(error.during(format!(
                "no hold could be written to {}: should expiry remove what this restore reads, it stops with a \
                 missing object and must be planned again",
                self.sink.address()
            )))),
            Err(error) => Err(error),
        }
    }

    /// All holds of the source, lapsed ones too.
    pub async fn list(&self) -> Result<Vec<Seen>> {
        let mut found: BTreeMap<[u8; 8], Seen> = BTreeMap::new();
        for entry in list_all(&*self.sink, &names::holds_prefix(self.source), None).await? {
            // A stranger's name holds nothing.
            let Ok(Name::Hold { hold, renewal, .. }) = entry.name.parse() else { continue };
            let seen = found.entry(hold).or_insert(Seen {
                hold,
                began: entry.modified,
                renewed: entry.modified,
                newest: renewal,
                record: None,
            });
            seen.renewed = seen.renewed.max(entry.modified);
            seen.newest = renewal;
        }
        let mut all: Vec<Seen> = found.into_values().collect();
        for seen in &mut all {
            seen.record = self.read(seen.hold, seen.newest).await?;
        }
        Ok(all)
    }

    async fn read(&self, hold: [u8; 8], renewal: u64) -> Result<Option<Hold>> {
        let name = Name::Hold { source: self.source, hold, renewal }.to_string();
        let range = Range::Part { from: 0, length: RECORD_MAX as u64 + 1 };
        let bytes = self.sink.read(&name, range).await?;
        Ok(bytes.and_then(|bytes| Hold::open(&self.source_key, self.source, hold, renewal, &bytes).ok()))
    }
}

/// The owner of one hold.
pub struct Holder {
    holds: Holds,
    hold: [u8; 8],
    next: u64,
    record: Hold,
    clock: Clock,
    random: Random,
}

impl Holder {
    fn name(&self, renewal: u64) -> String {
        Name::Hold { source: self.holds.source, hold: self.hold, renewal }.to_string()
    }

    async fn write(&mut self) -> Result<()> {
        self.record.written = self.clock.wall();
        let (key, source) = (&self.holds.source_key, self.holds.source);
        let bytes = self.record.seal(key, source, self.hold, self.next, &self.random)?;
        // «Exists» can only be an earlier attempt of our own: the id is random.
        match self.holds.sink.create(&self.name(self.next), bytes.into()).await? {
            Created::New | Created::Exists => self.next += 1,
        }
        Ok(())
    }

    /// Writes the next k.
    ///
    /// # Errors
    /// `Unreachable` when the hold had lapsed by the store's clock: plan again under a new one.
    pub async fn renew(&mut self) -> Result<()> {
        self.write().await?;
        let prefix = format!("{}{}/", names::holds_prefix(self.holds.source), hex::encode(self.hold));
        let listed = list_all(&*self.holds.sink, &prefix, None).await?;
        let long = |pair: &[holdfast_core::sink::Entry]| match pair {
            [a, b] => b.modified.since(a.modified) >= LIFE.saturating_sub(MARGIN),
            _ => false,
        };
        if listed.len() as u64 == self.next && !listed.windows(2).any(long) {
            return Ok(());
        }
        Err(Error::unreachable(format!(
            "the hold {} lapsed: what this restore planned to read may be removed by now. Plan it again",
            hex::encode(self.hold)
        )))
    }

    /// Removes the hold, k = 0 last. Where that is not allowed it ends by itself.
    pub async fn release(self) -> Result<()> {
        for renewal in (0..self.next).rev() {
            match self.holds.sink.remove(&[self.name(renewal)]).await {
                Err(error) if error.act() == Act::Configure => {
                    tracing::debug!("a hold is left to its end: {}", error.chain());
                    return Ok(());
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Renews every hour from now on.
    pub fn keep(self) -> KeptHold {
        let (lapse, state) = watch::channel(None);
        let (stop, mut stopped) = watch::channel(false);
        let mut holder = self;
        let clock = holder.clock.clone();
        let task = task::spawn(async move {
            let mut pause = RENEWAL;
            loop {
                // Ended by the owner, or by the owner's end.
                if clock.timeout(pause, stopped.changed()).await.is_some() {
                    return holder;
                }
                pause = match holder.renew().await {
                    Ok(()) => RENEWAL,
                    Err(error) if error.act() == Act::Unreachable => {
                        lapse.send_replace(Some(error.to_string()));
                        return holder;
                    }
                    Err(error) => {
                        tracing::warn!(
                            "a hold could not be renewed, trying again in a minute: {}",
                            error.chain()
                        );
                        AGAIN
                    }
                };
            }
        });
        KeptHold { task, stop, lapsed: state }
    }
}

/// A hold that renews itself until it is dropped or released.
pub struct KeptHold {
    task: Task<Holder>,
    stop: watch::Sender<bool>,
    lapsed: watch::Receiver<Option<String>>,
}

impl KeptHold {
    /// To be asked between the steps of a restore.
    ///
    /// # Errors
    /// `Unreachable` after a lapse.
    pub fn check(&self) -> Result<()> {
        match &*self.lapsed.borrow() {
            Some(sentence) => Err(Error::unreachable(sentence.clone())),
            None => Ok(()),
        }
    }

    /// The restore is done.
    pub async fn release(self) -> Result<()> {
        self.stop.send_replace(true);
        self.task.await?.release().await
    }
}
