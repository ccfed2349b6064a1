//! The first level of merging, from memory: small log objects that were just stored become one.
//!
//! Invariants (R6): originals go only when the merged object is durable and, checked after that, no epoch
//! stands above ours; number 0 and the newest object are never merged.

use std::collections::{BTreeMap, VecDeque};

use futures::future::BoxFuture;
use holdfast_core::{Act, Epoch, Result, sink::Body};
use holdfast_repo::{
    chain::Access,
    merged::{FAN_IN, Merger},
};

use crate::{parts::Tools, store::create_ours};

/// A run that a large object ends is merged from so many on.
const SHORT_RUN: usize = 8;

pub(crate) struct Merging {
    tools: Tools,
    access: Access,
    epoch: Epoch,
    /// Stored, and not yet known to be below the watermark.
    above: BTreeMap<u64, Body>,
    /// A gapless run below the watermark.
    run: VecDeque<(u64, Body)>,
    bytes: usize,
    /// What is merged now; it answers whether originals may go on being removed.
    work: Option<BoxFuture<'static, Result<bool>>>,
    /// Until the store says that this writer may not, which no second question in this epoch would change.
    removes: bool,
}

impl Merging {
    pub fn new(tools: Tools, access: Access, epoch: Epoch) -> Self {
        Self {
            tools,
            access,
            epoch,
            above: BTreeMap::new(),
            run: VecDeque::new(),
            bytes: 0,
            work: None,
            removes: true,
        }
    }

    /// Takes an object that was stored, and what of it lies below the watermark now.
    pub fn stored(&mut self, number: u64, body: Body, watermark: u64) {
        if !self.tools.settings.merge {
            return;
        }
        let most = usize::try_from(self.tools.settings.budget.merge).unwrap_or(usize::MAX);
        // A large one needs no merging, and holds what follows it apart from what came before.
        if body.len() <= most / 4 {
            self.bytes += body.len();
            self.above.insert(number, body);
        }
        while let Some(entry) = self.above.first_entry().filter(|entry| *entry.key() <= watermark) {
            let (number, body) = entry.remove_entry();
            if self.run.back().is_some_and(|(last, _)| last + 1 != number) {
                // The object that stands between is newer than all of the run.
                if self.work.is_none() && self.run.len() >= SHORT_RUN {
                    self.merge(self.run.len());
                }
                self.forget();
            }
            self.run.push_back((number, body));
        }
        while self.bytes > most {
            // Where one create hangs, what came back above it goes too, the newest first.
            let evicted = self.run.pop_front().or_else(|| self.above.pop_last());
            match evicted {
                Some((_, body)) => self.bytes -= body.len(),
                None => break,
            }
        }
        self.begin();
    }

    fn forget(&mut self) {
        for (_, body) in self.run.drain(..) {
            self.bytes -= body.len();
        }
    }

    /// Begins to merge when a full run lies below the newest object.
    fn begin(&mut self) {
        let count = usize::try_from(FAN_IN).unwrap_or(usize::MAX);
        if self.work.is_none() && self.run.len() > count {
            self.merge(count);
        }
    }

    fn merge(&mut self, count: usize) {
        let taken: Vec<(u64, Body)> = self.run.drain(..count).collect();
        self.bytes -= taken.iter().map(|(_, body)| body.len()).sum::<usize>();
        let (tools, access) = (self.tools.clone(), self.access.clone());
        self.work = Some(Box::pin(merge(tools, access, self.epoch, taken, self.removes)));
    }

    /// Carries merging on; returns when one merge is done. Cancel-safe.
    pub async fn step(&mut self) -> Result<()> {
        match &mut self.work {
            Some(work) => {
                let done = work.await;
                self.work = None;
                self.removes = done?;
                self.begin();
                Ok(())
            }
            None => std::future::pending().await,
        }
    }
}

/// Whether the next originals may be removed, too.
async fn merge(
    tools: Tools,
    access: Access,
    epoch: Epoch,
    originals: Vec<(u64, Body)>,
    removes: bool,
) -> Result<bool> {
    let names: Vec<String> = originals.iter().map(|(number, _)| access.stream.log(epoch, *number)).collect();
    let key = tools.source_key.clone();
    let merged = tools.pool.run(move || {
        let mut merger = Merger::default();
        for (_, body) in &originals {
            merger.push(body)?;
        }
        merger.finish(&key)
    });
    let merged = merged.await??;
    let name = access.stream.merged(epoch, merged.from, merged.to);
    create_ours(&*tools.sink, &name, &merged.body).await?;
    if !removes {
        return Ok(false);
    }
    // R6: a claimant creates its epoch before it looks; we look before we remove. One of us sees the other.
    if !access.epochs_above(epoch).await?.is_empty() {
        tracing::info!(name, "another epoch stands above ours: originals stay");
        return Ok(true);
    }
    let Err(error) = tools.sink.remove(&names).await else { return Ok(true) };
    tracing::debug!(name, error = error.chain(), "originals were not removed and stay; readers pass them by");
    Ok(error.act() != Act::Configure)
}
