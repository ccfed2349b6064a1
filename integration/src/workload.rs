//! Clients that commit at a steady rate and remember what they were told.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use holdfast_harness::Server;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};
use tokio_postgres::{Client, NoTls};

use crate::{Journal, journal::Told};

const TABLES: &str = "\
    create table if not exists entry (client int, seq bigint, amount bigint, note text, primary key (client, seq)); \
    create table if not exists balance (client int primary key, total bigint not null, entries bigint not null);";

/// Clients stop when it is dropped.
pub struct Workload {
    journal: Arc<Mutex<Journal>>,
    latencies: Arc<Mutex<Vec<Duration>>>,
    going: watch::Sender<bool>,
    busy: Arc<tokio::sync::RwLock<()>>,
    clients: JoinSet<()>,
}

impl Workload {
    /// Starts `clients` clients that together make `rate` commits a second (0: as many as they can).
    pub async fn start(server: &Server, clients: u16, rate: u32) -> Result<Self> {
        Self::start_at(server, &server.dsn(), clients, rate).await
    }

    /// The same by another way to the server.
    pub async fn start_at(server: &Server, dsn: &str, clients: u16, rate: u32) -> Result<Self> {
        server.sql(TABLES).await?;
        let going = watch::Sender::new(true);
        let mut workload = Self {
            journal: Arc::default(),
            latencies: Arc::default(),
            going,
            busy: Arc::default(),
            clients: JoinSet::new(),
        };
        let spacing = (rate > 0).then(|| Duration::from_secs_f64(f64::from(clients) / f64::from(rate)));
        for number in 0..i32::from(clients) {
            let one = One {
                number,
                dsn: dsn.to_owned(),
                journal: workload.journal.clone(),
                latencies: workload.latencies.clone(),
                going: workload.going.subscribe(),
                busy: workload.busy.clone(),
            };
            workload.clients.spawn(one.run(spacing));
        }
        Ok(workload)
    }

    /// Lets the clients finish what they are at and holds them.
    pub async fn pause(&self) {
        self.going.send_replace(false);
        drop(self.busy.write().await);
    }

    pub fn resume(&self) {
        self.going.send_replace(true);
    }

    /// What the clients were told so far.
    pub fn journal(&self) -> Journal {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until so many commits were acknowledged in all.
    pub async fn until(&self, acknowledged: u64, patience: Duration) -> Result<()> {
        let reached = async {
            while self.journal().acknowledged() < acknowledged {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(patience, reached).await.with_context(|| {
            format!("{} of {acknowledged} commits after {patience:?}", self.journal().acknowledged())
        })
    }

    /// Takes the latencies seen since the last call.
    pub fn take_latencies(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.latencies.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the clients where they are, and gives the whole journal.
    pub async fn stop(mut self) -> Journal {
        self.clients.shutdown().await;
        self.journal()
    }
}

struct One {
    number: i32,
    dsn: String,
    journal: Arc<Mutex<Journal>>,
    latencies: Arc<Mutex<Vec<Duration>>>,
    going: watch::Receiver<bool>,
    busy: Arc<tokio::sync::RwLock<()>>,
}

impl One {
    /// Reconnects for ever: the server may be killed and come back.
    async fn run(mut self, spacing: Option<Duration>) {
        loop {
            self.session(spacing).await.ok();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn told<T>(&self, change: impl FnOnce(&mut Told) -> T) -> T {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        change(journal.clients.entry(self.number).or_default())
    }

    async fn session(&mut self, spacing: Option<Duration>) -> Result<()> {
        let (client, connection) = tokio_postgres::connect(&self.dsn, NoTls).await?;
        let _connection = Ended(tokio::spawn(async move {
            connection.await.ok();
        }));
        let number = self.number;
        client
            .batch_execute(&format!("insert into balance values ({number}, 0, 0) on conflict do nothing"))
            .await?;
        let mut seq = self.resume_from(&client).await?;
        let mut ticks = spacing.map(|spacing| {
            let mut ticks = tokio::time::interval(spacing);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        loop {
            if let Some(ticks) = &mut ticks {
                ticks.tick().await;
            }
            self.going.wait_for(|going| *going).await?;
            let busy = self.busy.clone();
            let _busy = busy.read().await;
            if !*self.going.borrow() {
                continue;
            }
            seq += 1;
            self.told(|told| {
                told.sent = seq;
                told.acknowledged.push(None);
            });
            let amount = (seq * 7919 + i64::from(number)) % 1000;
            let start = Instant::now();
            // One message, one transaction: both rows or none.
            client
                .batch_execute(&format!(
                    "insert into entry values ({number}, {seq}, {amount}, repeat(md5('{number}-{seq}'), 3)); \
                     update balance set total = total + {amount}, entries = entries + 1 where client = {number}"
                ))
                .await?;
            let now = Instant::now();
            self.told(|told| {
                if let Some(last) = told.acknowledged.last_mut() {
                    *last = Some(now);
                }
            });
            self.latencies.lock().unwrap_or_else(PoisonError::into_inner).push(now - start);
        }
    }

    /// After a broken connection the last entry may be there or not: the server knows.
    async fn resume_from(&self, client: &Client) -> Result<i64> {
        let row = client
            .query_one("select coalesce(max(seq), 0) from entry where client = $1", &[&self.number])
            .await?;
        let there: i64 = row.get(0);
        self.told(|told| {
            told.sent = told.sent.min(there);
            told.acknowledged.truncate(usize::try_from(there).unwrap_or(0));
        });
        Ok(there)
    }
}

struct Ended(tokio::task::JoinHandle<()>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Number of entries and a digest of all rows of both tables.
pub async fn digest(server: &Server) -> Result<(u64, String)> {
    let query = "select (select count(*) from entry)::text || ' ' || \
        md5(coalesce((select string_agg(e::text, ',' order by client, seq) from entry e), '') || '/' || \
            coalesce((select string_agg(b::text, ',' order by client) from balance b), ''))";
    let text = server.value(query).await?;
    let (count, digest) = text.split_once(' ').context("the digest query gave no two words")?;
    Ok((count.parse()?, digest.to_owned()))
}
