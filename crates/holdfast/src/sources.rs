//! Each source with a pipeline of its own, failing alone.

use std::{sync::Arc, time::Duration};

use holdfast_core::{Clock, Error, Random, Result, sink::Capabilities, task};
use holdfast_pipeline::{Budget, Gauges, Outcome, Parts, Pool, Writer};
use holdfast_postgres::{Postgres, SharedHealth};
use holdfast_repo::{epoch::InstanceId, keys::SourceKey};
use tokio::sync::watch;

use crate::{
    config::{Config, Kind, Source},
    control, keys,
    state::StateFolder,
    store::Store,
    supervision::Supervision,
};

const GOOD_BYE: Duration = Duration::from_secs(2);

/// What metrics and status page see of a source.
#[derive(Clone)]
pub struct Watched {
    pub name: String,
    pub gauges: Arc<Gauges>,
    pub health: SharedHealth,
    pub base_backup_interval: Duration,
}

/// A source that this process follows once the store was seen, or that could not be got ready.
pub struct Followed {
    pub watched: Watched,
    work: Result<Work>,
}

/// What following takes.
struct Work {
    settings: holdfast_pipeline::Settings,
    source_key: SourceKey,
    tailer: Arc<Postgres>,
    state: StateFolder,
    control: task::Task<()>,
}

/// What a process shares among its sources.
#[derive(Clone)]
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

impl Work {
    fn prepare(
        name: &str,
        source: &Source,
        config: &Config,
        shared: &Shared,
        manner: Manner,
    ) -> Result<Self> {
        let state = StateFolder::open(&config.process.state_dir, name, &shared.random)?;
        let tailer = match source.common.kind {
            Kind::Postgres => Postgres::new(source.postgres.clone(), name, shared.clock.clone())?,
        };
        let mut settings = source.pipeline.clone();
        settings.budget = shared.budget;
        settings.stop_grace = to_drain(config.process.stop_grace);
        settings.source = Some(name.to_owned());
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
        let control = control::serve(&state, tailer.backup_requests())?;
        Ok(Self { settings, source_key, tailer: Arc::new(tailer), state, control })
    }
}

impl Followed {
    /// Gets a source ready. What is wrong with it stops this one alone.
    ///
    /// # Errors
    /// There is no such source.
    pub fn new(name: &str, config: &Config, shared: &Shared, manner: Manner) -> Result<Self> {
        let source = config.source(name)?;
        let work = Work::prepare(name, source, config, shared, manner);
        let watched = Watched {
            name: name.to_owned(),
            gauges: Arc::new(Gauges::new(shared.clock.now())),
            health: work.as_ref().map(|work| work.tailer.health()).unwrap_or_default(),
            base_backup_interval: source.postgres.base_backup_interval,
        };
        if let Err(error) = &work {
            watched.gauges.failed(error.chain());
        }
        Ok(Self { watched, work })
    }

    /// What is wrong, where the source could not be got ready.
    pub fn trouble(&self) -> Option<&Error> {
        self.work.as_ref().err()
    }

    pub fn into_trouble(self) -> Option<Error> {
        self.work.err()
    }

    /// Follows it until the end; `others` live beside it.
    pub fn start(
        self,
        shared: &Shared,
        capabilities: &Capabilities,
        others: bool,
    ) -> task::Task<(String, Outcome)> {
        let (shared, capabilities) = (shared.clone(), capabilities.clone());
        let Watched { name, gauges, .. } = self.watched;
        task::spawn(async move {
            let work = match self.work {
                Ok(work) => work,
                Err(error) => return (name, Outcome::Failed(error)),
            };
            let supervision = Supervision {
                name: name.clone(),
                gauges: gauges.clone(),
                clock: shared.clock.clone(),
                stop: shared.stop.clone(),
                others,
            };
            let outcome = supervision.carry(|first| {
                let mut settings = work.settings.clone();
                // An order to take the stream over is for this start, and not for what follows a failure.
                settings.take_over &= first;
                let writer = Writer::new(Parts {
                    settings,
                    source_key: work.source_key.clone(),
                    sink: shared.store.sink.clone(),
                    capabilities: capabilities.clone(),
                    tailer: work.tailer.clone(),
                    pool: shared.pool.clone(),
                    clock: shared.clock.clone(),
                    random: shared.random.clone(),
                    instance: InstanceId(work.state.instance),
                    gauges: gauges.clone(),
                    stop: shared.stop.clone(),
                });
                task::spawn(writer.run())
            });
            let outcome = outcome.await;
            // The lock goes last: nobody else may be this instance before its writer is gone.
            drop(work.control);
            drop(work.state);
            (name, outcome)
        })
    }
}
