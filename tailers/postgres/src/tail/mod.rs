//! Following a server: who it is (`server`, `slot`, `connect`), one streaming connection (`link`), the log cut
//! into items (`cutter`), and the two halves that the pipeline sees (`follow`, `settle`). `monitor` watches by
//! SQL what the stream cannot tell.

mod connect;
mod cutter;
mod follow;
mod link;
mod monitor;
mod server;
mod settle;
mod slot;

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use holdfast_core::{Clock, Content, Cursor, Follower, Identity, Result, Settler, State, Tailer, task};
use holdfast_pgwire::{Config, Connection, Host};

pub(crate) use server::{Facts, parameters};

use self::{follow::PostgresFollower, link::LinkState, settle::PostgresSettler};
use crate::{
    base::{BackupRequests, Bases},
    cursor::Position,
    doctor::{self, Finding},
    health::SharedHealth,
    settings::Settings,
    wal::Lsn,
};

/// What all parts of one source share.
pub(crate) struct Shared {
    pub settings: Settings,
    pub config: Config,
    pub slot: String,
    pub clock: Clock,
    pub health: SharedHealth,
    pub bases: Arc<Bases>,
    link: Mutex<Option<Arc<LinkState>>>,
    settled: Mutex<Option<(u32, Lsn)>>,
    /// Looks at the slot from the first connection to the end, also while no stream runs.
    watch: Mutex<Option<(Host, task::Task<()>)>>,
    /// A stream has begun: what SQL tells of it is wanted now.
    begun: Arc<tokio::sync::Notify>,
    /// Held by whoever makes or drops the slot.
    slot_turn: tokio::sync::Mutex<()>,
    /// The slot went beyond `max_slot_lag`: the next stream leaves the log behind that it kept.
    given_up: AtomicBool,
}

impl Shared {
    /// What is durable, as a position of a link on `timeline` that goes on at `at`: the past that the timelines
    /// share counts. 0/0 when nothing is.
    fn settled_on(&self, timeline: u32, at: Lsn) -> Lsn {
        match *self.settled.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Lsn::INVALID,
            Some((on, lsn)) if on == timeline => lsn,
            Some((on, lsn)) if on < timeline => lsn.min(at),
            Some(_) => Lsn::INVALID,
        }
    }

    /// Remembers what is durable and tells the link, if it may know.
    fn settle(&self, timeline: u32, lsn: Lsn) {
        *self.settled.lock().unwrap_or_else(PoisonError::into_inner) = Some((timeline, lsn));
        if let Some(link) = self.link() {
            link.settle(self.settled_on(link.timeline, link.start));
        }
    }

    /// Has the slot watched at `host`, from now on.
    fn watch_slot(self: &Arc<Self>, host: &Host) {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        match &*watch {
            Some((there, task)) if there == host && !task.is_finished() => {}
            _ => *watch = Some((host.clone(), monitor::watch(self, host.clone()))),
        }
        drop(watch);
        self.begun.notify_one();
    }

    fn unwatch_slot(&self) {
        drop(self.watch.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn set_given_up(&self, given_up: bool) {
        self.given_up.store(given_up, Ordering::Release);
    }

    fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    fn link(&self) -> Option<Arc<LinkState>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The link is over, unless another one has taken its place.
    fn forget_link(&self, over: &Arc<LinkState>) {
        if self.link().is_some_and(|link| Arc::ptr_eq(&link, over)) {
            self.set_link(None);
        }
    }

    fn set_link(&self, link: Option<Arc<LinkState>>) {
        self.health.change(|health| health.connected = link.is_some());
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = link;
    }
}

/// A Postgres cluster as a source.
pub struct Postgres {
    shared: Arc<Shared>,
}

impl Postgres {
    /// `source` is the configured name of the source: it names the slot unless the settings do.
    pub fn new(settings: Settings, source: &str, clock: Clock) -> Result<Self> {
        let mut config = Config::parse(&settings.dsn)
            .map_err(|cause| holdfast_core::Error::from(cause).during("«dsn» is not usable"))?;
        config.application_name.get_or_insert_with(|| "holdfast".to_owned());
        let health = SharedHealth::default();
        let bases = Arc::new(Bases::new(&settings, config.clone(), clock.clone(), health.clone()));
        let slot = settings.slot_for(source);
        slot::check_name(&slot)?;
        Ok(Self {
            shared: Arc::new(Shared {
                settings,
                config,
                slot,
                clock,
                health,
                bases,
                link: Mutex::default(),
                settled: Mutex::default(),
                watch: Mutex::default(),
                begun: Arc::default(),
                slot_turn: tokio::sync::Mutex::default(),
                given_up: AtomicBool::new(false),
            }),
        })
    }

    /// Always readable, for metrics and `status`.
    pub fn health(&self) -> SharedHealth {
        self.shared.health.clone()
    }

    /// For `holdfast base-backup`.
    pub fn backup_requests(&self) -> BackupRequests {
        BackupRequests::new(self.shared.bases.clone())
    }

    /// For `holdfast check`: what is well at the server and what to change.
    pub async fn examine(&self) -> Vec<Finding> {
        let Shared { settings, config, slot, clock, .. } = &*self.shared;
        doctor::examine(settings, config, slot, clock).await
    }

    /// Drops the slot at the server (`source retire`): the server then forgets what was not received.
    pub async fn retire(&self) -> Result<()> {
        self.shared.unwatch_slot();
        let mut connection = Connection::open(&self.shared.config, &self.shared.clock).await?;
        slot::drop_it(&mut connection, &self.shared.slot, &self.shared.clock).await
    }
}

#[async_trait]
impl Tailer for Postgres {
    async fn identity(&self) -> Result<Identity> {
        let mut connection = Connection::open(&self.shared.config, &self.shared.clock).await?;
        let identity = connection.identify_system().await?;
        connection.close().await;
        Ok(Identity { text: identity.system.to_string() })
    }

    async fn open(
        &self,
        cursor: Option<Cursor>,
        content: Arc<dyn Content>,
        state: Arc<dyn State>,
    ) -> Result<(Box<dyn Follower>, Box<dyn Settler>)> {
        let from = cursor.as_ref().map(Position::decode).transpose()?;
        self.shared.set_link(None);
        // The cursor tells what the stream took in, which need not be durable yet: only `settle` moves the slot.
        let connected = Box::pin(connect::connect(&self.shared, from, &state.catalog())).await?;
        let follower = PostgresFollower::begin(self.shared.clone(), connected, content, state)?;
        Ok((Box::new(follower), Box::new(PostgresSettler::new(self.shared.clone()))))
    }
}
