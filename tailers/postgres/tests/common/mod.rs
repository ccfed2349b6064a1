//! A tailer on a real server with content and state in memory: what every test here needs.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::{sync::Arc, time::Duration};

use holdfast_core::{Branch, Clock, Cursor, Follower, Item, MarkKind, Result, Settler, Span, Step, Tailer};
use holdfast_harness::Server;
use holdfast_postgres::{Postgres, Settings, wal::Lsn};
use holdfast_testkit::MemoryContent;

/// Longest that anything here may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn settings(server: &Server) -> Settings {
    let mut settings = Settings::new(server.dsn());
    settings.shutdown_grace = Duration::from_secs(3);
    settings
}

pub fn tailer(settings: Settings) -> Postgres {
    Postgres::new(settings, "test", Clock::system()).unwrap()
}

/// One writer's life with a tailer, without a store: what it takes in is durable when it says so.
pub struct Tail {
    pub tailer: Postgres,
    pub content: MemoryContent,
    pub follower: Box<dyn Follower>,
    pub settler: Box<dyn Settler>,
    pub cursor: Option<Cursor>,
    /// All that was taken in.
    pub log: Vec<(Span, Vec<u8>)>,
    pub commits: Vec<u64>,
    pub names: Vec<String>,
    pub gaps: Vec<Span>,
    pub waited: u64,
    pub vouched: u64,
    /// Settle each step at once.
    pub settles: bool,
}

impl Tail {
    pub async fn open(server: &Server) -> Self {
        Self::resume(tailer(settings(server)), None, MemoryContent::default()).await.unwrap()
    }

    pub async fn resume(tailer: Postgres, cursor: Option<Cursor>, content: MemoryContent) -> Result<Self> {
        let shared = Arc::new(content.clone());
        let (follower, settler) = tailer.open(cursor.clone(), shared.clone(), shared).await?;
        Ok(Self {
            tailer,
            content,
            follower,
            settler,
            cursor,
            log: Vec::new(),
            commits: Vec::new(),
            names: Vec::new(),
            gaps: Vec::new(),
            waited: 0,
            vouched: 0,
            settles: true,
        })
    }

    /// Ends this life; the next one goes on with the same content, at `server`.
    pub async fn again(self, settings: Settings) -> Result<Self> {
        let Self { content, cursor, follower, settler, .. } = self;
        drop(follower);
        settler.close().await?;
        Self::resume(tailer(settings), cursor, content).await
    }

    pub async fn step(&mut self) -> Result<Step> {
        let step =
            tokio::time::timeout(PATIENCE, self.follower.next()).await.expect("no step for a minute")?;
        self.content.append(&step);
        self.cursor = Some(step.cursor.clone());
        self.waited += u64::from(step.waits);
        self.vouched += u64::from(step.vouched.is_some());
        match &step.item {
            Item::Log { span, bytes, marks, .. } => {
                assert_eq!(span.len(), bytes.len() as u64);
                assert!(bytes.len() <= Item::BYTES_MAX);
                if let Some((last, _)) = self.log.last()
                    && last.branch == span.branch
                    && self.gaps.is_empty()
                {
                    assert_eq!(last.to, span.from, "the log has a hole");
                }
                for mark in marks {
                    assert!(mark.place.position <= span.to && mark.begin < mark.place.position);
                    match &mark.kind {
                        MarkKind::Commit { id } => self.commits.push(*id),
                        MarkKind::Name(name) => self.names.push(name.clone()),
                        MarkKind::Tick => {}
                    }
                }
                self.log.push((*span, bytes.to_vec()));
            }
            Item::Gap(gap) => self.gaps.push(gap.span),
            _ => {}
        }
        if self.settles {
            self.settler.settle(&step.cursor).await?;
        }
        Ok(step)
    }

    /// Steps until `enough`.
    pub async fn until(&mut self, mut enough: impl FnMut(&Self) -> bool) {
        let deadline = std::time::Instant::now() + PATIENCE;
        while !enough(self) {
            assert!(std::time::Instant::now() < deadline, "not reached within a minute");
            self.step().await.unwrap();
        }
    }

    /// Keeps stepping while `work` goes on.
    pub async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                step = self.step() => drop(step.unwrap()),
            }
        }
    }

    /// Steps until the stream holds everything up to `lsn`.
    pub async fn reach(&mut self, lsn: &str) {
        let lsn: Lsn = lsn.parse().unwrap();
        self.until(|tail| tail.at() >= lsn.0).await;
    }

    /// Where the stream ends.
    pub fn at(&self) -> u64 {
        self.log.last().map_or(0, |(span, _)| span.to)
    }

    pub fn branch(&self) -> Branch {
        self.log.last().map_or(Branch(0), |(span, _)| span.branch)
    }

    /// Steps until a base backup is in the catalog.
    pub async fn backed_up(&mut self, count: usize) {
        self.until(|tail| tail.content.snapshot().checkpoints.len() >= count).await;
    }
}
