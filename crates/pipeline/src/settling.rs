//! Tells the source what it may forget: one settle at a time, never anything above the ledger's watermark.
//!
//! Invariant (R7): on a store without create-only writes the source is told only after a list of the epochs
//! above ours came back empty, and that list was asked for when all that the settle covers had come back.

use std::{collections::VecDeque, time::Duration};

use futures::future::BoxFuture;
use holdfast_core::{Cursor, Epoch, Error, Instant, Result, Settler};
use holdfast_repo::chain::Access;

use crate::{ledger::Ledger, link::Link, lookout::overtaken, parts::Tools};

/// A settle that lists first (R7) is made at most so often, unless somebody waits.
const SETTLE_EVERY: Duration = Duration::from_secs(1);

/// How far a settle has come.
pub(crate) enum Settled {
    /// No epoch stands above ours, listed after all up to `number` had come back (R7).
    Alone {
        number: u64,
        cursor: Cursor,
    },
    Told {
        settler: Box<dyn Settler>,
        number: u64,
        cursor: Cursor,
        result: Result<()>,
    },
}

pub(crate) struct Settling {
    tools: Tools,
    access: Access,
    epoch: Epoch,
    work: Option<BoxFuture<'static, Result<Settled>>>,
    /// Up to here the source was told.
    number: u64,
    cursor: Option<Cursor>,
    /// Not before, unless somebody waits.
    at: Instant,
    /// Numbers that somebody waits for and that are not settled, ascending.
    waited: VecDeque<u64>,
}

impl Settling {
    pub fn new(tools: Tools, access: Access, epoch: Epoch) -> Self {
        let at = tools.clock.now();
        Self { tools, access, epoch, work: None, number: 0, cursor: None, at, waited: VecDeque::new() }
    }

    /// Somebody waits until this number is settled.
    pub fn wait_for(&mut self, number: u64) {
        self.waited.push_back(number);
    }
    /// Nothing is on its way, and nothing more can be told now.
    pub fn is_done(&self, ledger: &Ledger, link: &Link) -> bool {
        self.work.is_none() && !self.wants(ledger, link)
    }
    /// A settle that is still on its way has nothing more to say.
    pub fn forget(&mut self) {
        self.work = None;
    }
    /// When [`Self::begin`] is to be called again at the latest.
    pub fn wake(&self, ledger: &Ledger, link: &Link) -> Option<Instant> {
        (self.work.is_none() && self.wants(ledger, link)).then_some(self.at)
    }

    fn wants(&self, ledger: &Ledger, link: &Link) -> bool {
        ledger.watermark() > self.number && ledger.durable().cursor.is_some() && link.has_settler()
    }

    /// Begins a settle where there is something to settle; `hurry` when the writer ends.
    pub fn begin(&mut self, ledger: &mut Ledger, link: &mut Link, hurry: bool) -> Result<()> {
        let number = ledger.watermark();
        if self.work.is_some() || !self.wants(ledger, link) {
            return Ok(());
        }
        let Some(cursor) = ledger.durable().cursor.clone() else { return Ok(()) };
        if self.tools.create_only && self.cursor.as_ref() == Some(&cursor) {
            return self.mark(number, ledger);
        }
        let now = self.tools.clock.now();
        let hurry = hurry || self.waited.front().is_some_and(|waited| *waited <= number);
        if now < self.at && !hurry {
            return Ok(());
        }
        if self.tools.create_only {
            self.tell(number, cursor, link);
            return Ok(());
        }
        self.at = now + SETTLE_EVERY;
        let (access, epoch) = (self.access.clone(), self.epoch);
        self.work = Some(Box::pin(async move {
            // R7: the creates that this settle covers have come back; only now the list means something.
            match access.epochs_above(epoch).await?.last() {
                None => Ok(Settled::Alone { number, cursor }),
                Some(above) => Err(overtaken(*above)),
            }
        }));
        Ok(())
    }

    /// Tells the source. Without a connection it is told later, after another list.
    fn tell(&mut self, number: u64, cursor: Cursor, link: &mut Link) {
        let Some(mut settler) = link.take_settler() else { return };
        self.work = Some(Box::pin(async move {
            let result = settler.settle(&cursor).await;
            Ok(Settled::Told { settler, number, cursor, result })
        }));
    }

    /// Carries a settle on; pending while there is none. Cancel-safe.
    ///
    /// # Errors
    /// `Fenced` when another writer took over.
    pub async fn step(&mut self) -> Result<Settled> {
        match &mut self.work {
            Some(work) => {
                let done = work.await;
                self.work = None;
                done
            }
            None => std::future::pending().await,
        }
    }

    /// Takes what [`Self::step`] brought. Answers why the source refuses to be told, where a person must see to it.
    pub fn moved(&mut self, settled: Settled, ledger: &mut Ledger, link: &mut Link) -> Result<Option<Error>> {
        let (settler, number, cursor, result) = match settled {
            Settled::Alone { number, cursor } => {
                self.tell(number, cursor, link);
                return Ok(None);
            }
            Settled::Told { settler, number, cursor, result } => (settler, number, cursor, result),
        };
        link.return_settler(settler);
        match result {
            Ok(()) => {
                self.cursor = Some(cursor);
                self.mark(number, ledger)?;
                Ok(None)
            }
            Err(error) if error.is_passing() => {
                tracing::warn!(error = error.chain(), "the source did not take a settle; telling it again");
                self.at = self.tools.clock.now() + SETTLE_EVERY;
                Ok(None)
            }
            Err(error) => Ok(Some(error)),
        }
    }

    fn mark(&mut self, number: u64, ledger: &mut Ledger) -> Result<()> {
        self.number = number;
        while self.waited.pop_front_if(|waited| *waited <= number).is_some() {}
        ledger.settle(number)?;
        self.tools.gauges.counts(ledger.counts(), ledger.outstanding());
        Ok(())
    }
}
