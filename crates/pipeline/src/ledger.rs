//! Counts what became of each byte. Pure.
//!
//! Invariants: `received >= sealed >= stored >= settled`, in bytes and in objects, checked after every
//! change; the watermark moves only over a gapless prefix of our own epoch; nothing above it is ever settled.

use std::collections::BTreeMap;

use holdfast_core::{Cursor, Error, Instant, Result, Timestamp};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub bytes: u64,
    pub objects: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.objects += 1;
    }
    fn covers(self, other: Self) -> bool {
        self.bytes >= other.bytes && self.objects >= other.objects
    }
}

/// The four stations of a byte. The distance between neighbours is the lag there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub received: Amount,
    pub sealed: Amount,
    /// In the gapless prefix that is durable.
    pub stored: Amount,
    pub settled: Amount,
}

impl Counts {
    pub fn check(&self) -> Result<()> {
        let ordered = self.received.covers(self.sealed)
            && self.sealed.covers(self.stored)
            && self.stored.covers(self.settled);
        if ordered {
            Ok(())
        } else {
            Err(Error::bug(format!("more was settled than stored, or the like: {self:?}")))
        }
    }
}

#[derive(Debug)]
struct Object {
    bytes: u64,
    sealed: bool,
    done: bool,
    cursor: Option<Cursor>,
    vouched: Option<(Instant, Timestamp)>,
}

/// What the watermark stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durable {
    pub number: u64,
    pub cursor: Option<Cursor>,
    pub vouched: Option<(Instant, Timestamp)>,
}

#[derive(Debug)]
pub struct Ledger {
    counts: Counts,
    /// Objects above the watermark, by number.
    open: BTreeMap<u64, Object>,
    next: u64,
    durable: Durable,
    /// Bytes and objects up to each number that is stored and not settled.
    stored: BTreeMap<u64, Amount>,
}

impl Ledger {
    /// Number 0 is durable: the claim wrote it.
    pub fn new() -> Self {
        Self {
            counts: Counts::default(),
            open: BTreeMap::new(),
            next: 1,
            durable: Durable::default(),
            stored: BTreeMap::new(),
        }
    }
    pub fn counts(&self) -> Counts {
        self.counts
    }
    pub fn durable(&self) -> &Durable {
        &self.durable
    }
    pub fn watermark(&self) -> u64 {
        self.durable.number
    }
    /// Objects that are not yet below the watermark.
    pub fn outstanding(&self) -> usize {
        self.open.len()
    }

    /// Bytes came in; they belong to an object once [`Self::close`] gave it a number.
    pub fn receive(&mut self, bytes: u64) {
        self.counts.received.bytes += bytes;
    }
    /// Gives a batch its number.
    pub fn close(
        &mut self,
        bytes: u64,
        cursor: Option<Cursor>,
        vouched: Option<(Instant, Timestamp)>,
    ) -> Result<u64> {
        let number = self.next;
        self.next += 1;
        self.counts.received.objects += 1;
        self.open.insert(number, Object { bytes, sealed: false, done: false, cursor, vouched });
        self.counts.check().map(|()| number)
    }
    pub fn seal(&mut self, number: u64) -> Result<()> {
        match self.open.get_mut(&number) {
            Some(object) if !object.sealed => {
                object.sealed = true;
                self.counts.sealed.add(object.bytes);
                self.counts.check()
            }
            _ => Err(Error::bug(format!("number {number} was sealed twice"))),
        }
    }
    /// The create of `number` is known to have succeeded. True when the watermark moved.
    pub fn store(&mut self, number: u64) -> Result<bool> {
        match self.open.get_mut(&number) {
            Some(object) if object.sealed && !object.done => object.done = true,
            _ => {
                return Err(Error::bug(format!("number {number} was stored twice, or before it was sealed")));
            }
        }
        let mut moved = false;
        while let Some(entry) = self.open.first_entry().filter(|entry| entry.get().done) {
            let (number, object) = entry.remove_entry();
            self.counts.stored.add(object.bytes);
            self.durable.number = number;
            if object.cursor.is_some() {
                self.durable.cursor = object.cursor;
            }
            self.durable.vouched = object.vouched.max(self.durable.vouched);
            self.stored.insert(number, self.counts.stored);
            moved = true;
        }
        self.counts.check().map(|()| moved)
    }
    /// All that the source held at `vouched` has come in and has a number.
    pub fn vouch(&mut self, vouched: (Instant, Timestamp)) {
        let at = match self.open.last_entry() {
            Some(entry) => &mut entry.into_mut().vouched,
            None => &mut self.durable.vouched,
        };
        *at = Some(vouched).max(*at);
    }
    /// The source was told that it may forget what `number` and all below it hold.
    pub fn settle(&mut self, number: u64) -> Result<()> {
        if number > self.durable.number {
            return Err(Error::bug(format!(
                "number {number} was settled, but only {} is durable",
                self.durable.number
            )));
        }
        let above = self.stored.split_off(&(number + 1));
        if let Some((_, amount)) = self.stored.pop_last() {
            self.counts.settled = amount;
        }
        self.stored = above;
        self.counts.check()
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn cursor(number: u64) -> Cursor {
        Cursor(Bytes::from(number.to_le_bytes().to_vec()))
    }

    proptest! {
        #[test]
        fn the_watermark_moves_over_a_gapless_prefix_only(
            order in Just((1..=24u64).collect::<Vec<_>>()).prop_shuffle(),
            settles in prop::collection::vec(any::<bool>(), 24),
        ) {
            let mut ledger = Ledger::new();
            for number in 1..=24 {
                ledger.receive(number * 10);
                prop_assert_eq!(ledger.close(number * 10, Some(cursor(number)), None).unwrap(), number);
                ledger.seal(number).unwrap();
            }
            let mut done = std::collections::BTreeSet::new();
            for (number, settle) in order.into_iter().zip(settles) {
                done.insert(number);
                let before = ledger.watermark();
                let moved = ledger.store(number).unwrap();
                let prefix = (1..=24).take_while(|n| done.contains(n)).count() as u64;
                prop_assert_eq!(ledger.watermark(), prefix);
                prop_assert_eq!(moved, prefix > before);
                prop_assert_eq!(ledger.counts().stored.bytes, (1..=prefix).map(|n| n * 10).sum::<u64>());
                if prefix > 0 {
                    prop_assert_eq!(ledger.durable().cursor.clone(), Some(cursor(prefix)));
                }
                if settle && prefix > 0 {
                    ledger.settle(prefix).unwrap();
                    prop_assert_eq!(ledger.counts().settled, ledger.counts().stored);
                }
                prop_assert!(ledger.settle(prefix + 1).is_err());
                prop_assert!(ledger.store(number).is_err());
                prop_assert!(ledger.counts().check().is_ok());
            }
        }
    }

    #[test]
    fn a_vouched_instant_counts_once_what_came_before_it_is_durable() {
        let now = Instant::now();
        let mut ledger = Ledger::new();
        ledger.vouch((now, Timestamp(1)));
        assert_eq!(ledger.durable().vouched, Some((now, Timestamp(1))));
        ledger.receive(5);
        ledger.close(5, None, None).unwrap();
        let later = now + std::time::Duration::from_secs(1);
        ledger.vouch((later, Timestamp(2)));
        assert_eq!(ledger.durable().vouched, Some((now, Timestamp(1))));
        ledger.seal(1).unwrap();
        assert!(ledger.store(1).unwrap());
        assert_eq!(ledger.durable().vouched, Some((later, Timestamp(2))));
    }

    #[test]
    fn an_order_that_does_not_hold_is_a_bug() {
        let wrong = Counts { stored: Amount { bytes: 1, objects: 0 }, ..Counts::default() };
        assert_eq!(wrong.check().unwrap_err().act(), holdfast_core::Act::Bug);
    }
}
