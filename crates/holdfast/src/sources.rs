//! Each source with a pipeline of its own, failing alone.

use std::{sync::Arc, time::Duration};

use holdfast_core::{Clock, Error, Random, Result, sink::Capabilities, task};
use holdfast_pipeline::{Budget, Gauges, Outcome, Parts, Pool, Writer};
use holdfast_postgres::{BackupRequests, Postgres, SharedHealth};
use holdfast_repo::{epoch::InstanceId, keys::SourceKey};
use tokio::sync::watch;

use crate::{
    config::{Config, Kind},
    keys,
    state::StateFolder,
    store::Store,
};

const GOOD_BYE: Duration = Duration::from_secs(2);

/// What metrics, status page and orders see of a source.
#[derive(Clone)]
pub struct Watched {
    pub name: String,
    pub gauges: Arc<Gauges>,
    pub health: SharedHealth,
    pub requests: BackupRequests,
    pub base_backup_interval: Duration,
}

/// A source that this process follows once the store was seen.
pub struct Followed {
    pub watched: Watched,
    settings: holdfast_pipeline::Settings,
    source_key: SourceKey,
    tailer: Postgres,
    state: StateFolder,
}

/// What a process shares among its sources.
pub struct Shared {
    pub store: Store,
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

/// Of the time to stop, what the pipeline may take to drain and settle; the rest is for the good-bye to the source.
fn to_drain(stop_grace: Duration) -> Duration {
    stop_grace.saturating_sub(GOOD_BYE).max(stop_grace / 2)
}

impl Followed {
    pub fn new(name: &str, config: &Config, shared: &Shared, manner: Manner) -> Result<Self> {
        let source = config.source(name)?;
        let state = StateFolder::open(&config.process.state_dir, name, &shared.random)?;
        let tailer = match source.common.kind {
            Kind::Postgres => Postgres::new(source.postgres.clone(), name, shared.clock.clone())?,
        };
        let watched = Watched {
            name: name.to_owned(),
            gauges: Arc::new(Gauges::new(shared.clock.now())),
            health: tailer.health(),
            requests: tailer.backup_requests(),
            base_backup_interval: source.postgres.base_backup_interval,
        };
        let mut settings = source.pipeline.clone();
        settings.budget = shared.budget;
        settings.stop_grace = to_drain(config.process.stop_grace);
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
        Ok(Self { watched, settings, source_key, tailer, state })
    }

    /// Follows it until the end.
    pub fn start(self, shared: &Shared, capabilities: &Capabilities) -> task::Task<(String, Outcome)> {
        let Self { watched, settings, source_key, tailer, state } = self;
        let writer = Writer::new(Parts {
            settings,
            source_key,
            sink: shared.store.sink.clone(),
            capabilities: capabilities.clone(),
            tailer: Arc::new(tailer),
            pool: shared.pool.clone(),
            clock: shared.clock.clone(),
            random: shared.random.clone(),
            instance: InstanceId(state.instance),
            gauges: watched.gauges,
            stop: shared.stop.clone(),
        });
        task::spawn(async move {
            let outcome = writer.run().await;
            drop(state);
            (watched.name, outcome)
        })
    }
}
