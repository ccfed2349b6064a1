//! What a writer is given, and what all its phases share.

use std::sync::Arc;

use holdfast_core::{Clock, Random, RepoId, Sink, SourceId, Tailer, sink::Capabilities};
use holdfast_repo::{chain::Access, epoch::InstanceId, keys::SourceKey, names::Stream, seal::Key};
use tokio::sync::watch;

use crate::{gauges::Gauges, pool::Pool, settings::Settings, store::patient};

/// All that a [`crate::Writer`] needs.
pub struct Parts {
    pub settings: Settings,
    pub source_key: SourceKey,
    /// The store, with its decorators. What it can do was probed at this start.
    pub sink: Arc<dyn Sink>,
    pub capabilities: Capabilities,
    pub tailer: Arc<dyn Tailer>,
    pub pool: Pool,
    pub clock: Clock,
    pub random: Random,
    /// The state folder's own id. Two processes must never run with the same one (flock).
    pub instance: InstanceId,
    pub gauges: Arc<Gauges>,
    /// Becomes true when the writer shall end in order.
    pub stop: watch::Receiver<bool>,
}

/// [`Parts`] as the phases use them.
#[derive(Clone)]
pub(crate) struct Tools {
    pub settings: Settings,
    pub repo: RepoId,
    pub source: SourceId,
    pub source_key: Key,
    pub sink: Arc<dyn Sink>,
    pub create_only: bool,
    pub tailer: Arc<dyn Tailer>,
    pub pool: Pool,
    pub clock: Clock,
    pub random: Random,
    pub instance: InstanceId,
    pub gauges: Arc<Gauges>,
    pub started: holdfast_core::Instant,
}

impl Tools {
    pub fn new(parts: &Parts) -> Self {
        let (clock, random, gauges) = (parts.clock.clone(), parts.random.clone(), parts.gauges.clone());
        Self {
            settings: parts.settings.clone(),
            repo: parts.source_key.repo,
            source: parts.source_key.source,
            source_key: parts.source_key.key.clone(),
            sink: patient(parts.sink.clone(), clock.clone(), random.clone(), gauges.clone()),
            create_only: parts.capabilities.create_only,
            tailer: parts.tailer.clone(),
            pool: parts.pool.clone(),
            started: clock.now(),
            clock,
            random,
            instance: parts.instance,
            gauges,
        }
    }
    pub fn access(&self, stream: Stream) -> Access {
        Access { sink: self.sink.clone(), stream, source_key: self.source_key.clone() }
    }
}
