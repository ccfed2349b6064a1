//! Each source with a pipeline of its own, failing alone.

use std::{sync::Arc, time::Duration};

use holdfast_core::{Clock, Error, Random, Result, sink::Capabilities, task};
use holdfast_pipeline::{Budget, Gauges, Outcome, Parts, Pool, Writer};
use holdfast_postgres::{BackupRequests, Postgres, SharedHealth};
use holdfast_repo::epoch::InstanceId;
use tokio::sync::watch;

use crate::{
    config::{Config, Kind},
    keys,
    state::StateFolder,
    store::Store,
};

/// A source that this process follows.
pub struct Followed {
    pub name: String,
    pub gauges: Arc<Gauges>,
    pub health: SharedHealth,
    pub requests: BackupRequests,
    pub base_backup_interval: Duration,
    _state: StateFolder,
    writer: Writer,
}

/// What a process shares among its sources.
pub struct Shared {
    pub store: Store,
    pub capabilities: Capabilities,
    pub pool: Pool,
    pub clock: Clock,
    pub random: Random,
    pub budget: Budget,
    pub stop: watch::Receiver<bool>,
}

/// How this start differs from an ordinary one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    pub take_over: bool,
    pub until_caught_up: bool,
}

impl Followed {
    pub fn new(name: &str, config: &Config, shared: &Shared, manner: Manner) -> Result<Self> {
        let source = config.source(name)?;
        let state = StateFolder::open(&config.process.state_dir, name, &shared.random)?;
        let tailer = match source.common.kind {
            Kind::Postgres => Postgres::new(source.postgres.clone(), name, shared.clock.clone())?,
        };
        let (health, requests) = (tailer.health(), tailer.backup_requests());
        let gauges = Arc::new(Gauges::new(shared.clock.now()));
        let mut settings = source.pipeline.clone();
        settings.budget = shared.budget;
        settings.stop_within = config.process.stop_grace;
        settings.take_over = manner.take_over;
        settings.until_caught_up = manner.until_caught_up;
        let source_key = keys::source_key(&source.common.key_file)?;
        if source_key.repo != config.id()? {
            return Err(Error::configure(format!(
                "the key file of «{name}» belongs to repository {}, the settings name {}: correct id in [repository], or key_file in [source.{name}]",
                source_key.repo,
                config.id()?
            )));
        }
        let parts = Parts {
            settings,
            source_key,
            sink: shared.store.sink.clone(),
            capabilities: shared.capabilities.clone(),
            tailer: Arc::new(tailer),
            pool: shared.pool.clone(),
            clock: shared.clock.clone(),
            random: shared.random.clone(),
            instance: InstanceId(state.instance),
            gauges: gauges.clone(),
            stop: shared.stop.clone(),
        };
        Ok(Self {
            name: name.to_owned(),
            gauges,
            health,
            requests,
            base_backup_interval: source.postgres.base_backup_interval,
            _state: state,
            writer: Writer::new(parts),
        })
    }

    /// The source's figures outlive the move of its writer into a task.
    pub fn start(self) -> (Watched, task::Task<(String, Outcome)>) {
        let watched = Watched {
            name: self.name.clone(),
            gauges: self.gauges,
            health: self.health,
            base_backup_interval: self.base_backup_interval,
        };
        let (name, writer, state) = (self.name, self.writer, self._state);
        let task = task::spawn(async move {
            let outcome = writer.run().await;
            drop(state);
            (name, outcome)
        });
        (watched, task)
    }
}

/// What metrics and the status page read.
#[derive(Clone)]
pub struct Watched {
    pub name: String,
    pub gauges: Arc<Gauges>,
    pub health: SharedHealth,
    pub base_backup_interval: Duration,
}
