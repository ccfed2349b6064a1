//! A repository in a cruel store, a source made of arithmetic, and writers between them.

use std::{sync::Arc, time::Duration};

use holdfast_core::{
    Clock, Random, Sink, Timestamp,
    sink::{self, Body, Capabilities, Created, RetrySettings},
};
use holdfast_pipeline::{Gauges, Outcome, Parts, Phase, Pool, Settings, Writer};
use holdfast_repo::{
    epoch::InstanceId,
    keys::{Identity, RootKey, SourceKey},
    names::{self, Name, REPO},
    ring::{RepoRecord, SourceContent, SourceRingDraft},
};
use holdfast_testkit::{
    CruelSink, Cruelty,
    scripted::{Script, ScriptedSource},
};
use tokio::sync::watch;

use crate::faulty::{Pausable, Pause};

pub struct World {
    pub clock: Clock,
    pub random: Random,
    pub sink: CruelSink,
    pub source: ScriptedSource,
    pub identity: Identity,
    pub root: RootKey,
    pub key: SourceKey,
    pub create_only: bool,
    pub settings: Settings,
    pub pool: Pool,
}

/// How long a writer's store tries one call before the writer hears of it.
const PATIENCE: Duration = Duration::from_secs(15);

pub const SCRIPT: Script = Script {
    start: 1000,
    bytes_per_second: 4000,
    busy_for: Duration::from_secs(120),
    step_bytes: 1500,
    waits: 20,
    breaks: 0,
    run_every: Duration::ZERO,
    run_pieces: 0,
    run_takes: Duration::from_secs(20),
};

pub fn settings() -> Settings {
    Settings {
        max_lag: Duration::from_millis(200),
        batch_bytes: 8 << 10,
        in_flight: 4,
        heartbeat: Duration::from_secs(10),
        ..Settings::default()
    }
}

impl World {
    pub async fn new(seed: u64, create_only: bool, script: Script) -> Self {
        let clock = Clock::set(Timestamp(1_790_000_000_000_000));
        let random = Random::seeded(seed);
        let sink = CruelSink::new(create_only, Cruelty::NONE, clock.clone(), random.clone());
        let source = ScriptedSource::new(clock.clone(), random.clone(), script);
        let identity = Identity::generate(&random);
        let root = RootKey::generate(&random);
        let public = root.public().unwrap();
        let key = SourceKey::generate(public.repo(), &random);
        let record = RepoRecord { root: public, created: clock.wall() };
        let world = Self {
            clock,
            random,
            sink,
            source,
            identity,
            root,
            key,
            create_only,
            settings: settings(),
            pool: Pool::inline(),
        };
        world.put(REPO, record.write().unwrap()).await;
        world.put_ring(1).await;
        world
    }
    pub async fn put(&self, name: &str, bytes: Vec<u8>) {
        assert_eq!(self.sink.create(name, Body::from(bytes)).await.unwrap(), Created::New);
    }
    pub async fn put_ring(&self, generation: u64) {
        let content =
            SourceContent { name: "main".to_owned(), kind: "arithmetic".to_owned(), lineages: Vec::new() };
        let recipients = [self.identity.recipient().unwrap()];
        let draft = SourceRingDraft {
            generation,
            created: self.clock.wall(),
            recipients: &recipients,
            key: &self.key,
            content: &content,
        };
        let name = Name::SourceRing { source: self.key.source, generation }.to_string();
        self.put(&name, draft.seal(&self.root, &self.random).unwrap()).await;
    }

    /// A writer of one instance, with its gauges and what stops it.
    pub fn writer(&self, instance: u8, settings: Settings) -> Started {
        self.writer_over(self.sink.clone(), instance, settings)
    }
    /// As [`Self::writer`], over a way to the store of its own.
    pub fn writer_over(&self, sink: CruelSink, instance: u8, settings: Settings) -> Started {
        let (stop, stopped) = watch::channel(false);
        let gauges = Arc::new(Gauges::new(self.clock.now()));
        // As the product stacks them.
        let retry = RetrySettings { patience: Some(PATIENCE), ..RetrySettings::default() };
        let (clock, random) = (self.clock.clone(), self.random.clone());
        let (sink, _) = sink::decorate(Arc::new(sink), retry, None, names::is_urgent, clock, random);
        let parts = Parts {
            settings,
            source_key: self.key.clone(),
            sink,
            capabilities: Capabilities { create_only: self.create_only, history: String::new() },
            tailer: self.source.tailer(format!("i{instance}")),
            pool: self.pool.clone(),
            clock: self.clock.clone(),
            random: self.random.clone(),
            instance: InstanceId([instance; 16]),
            gauges: gauges.clone(),
            stop: stopped,
        };
        Started { run: Box::pin(Writer::new(parts).run()), stop, gauges }
    }

    /// A writer that is told to take over and to end when all is stored.
    pub async fn catch_up(&self) {
        // What it shall catch up with must stand still.
        self.clock.sleep(self.source.busy_for()).await;
        let mut settings = self.settings.clone();
        settings.take_over = true;
        settings.until_caught_up = true;
        let started = self.writer(250, settings);
        let outcome = self.clock.timeout(Duration::from_secs(900), started.run).await;
        match outcome {
            Some(Outcome::CaughtUp) => {}
            other => panic!(
                "the last writer did not catch up: {other:?} {:?}",
                started.gauges.figures(self.clock.now())
            ),
        }
    }

    pub async fn sleep(&self, seconds: f64) {
        self.clock.sleep(Duration::from_secs_f64(seconds)).await;
    }
}

impl World {
    /// Starts a writer that goes on by itself.
    pub fn start(&self, instance: u8, settings: Settings) -> Running {
        self.start_over(self.sink.clone(), instance, settings)
    }
    pub fn start_over(&self, sink: CruelSink, instance: u8, settings: Settings) -> Running {
        let Started { run, stop, gauges } = self.writer_over(sink, instance, settings);
        let (run, pause) = Pausable::new(run);
        Running { task: tokio::spawn(run), pause, stop, gauges }
    }
    pub fn taking_over(&self) -> Settings {
        Settings { take_over: true, ..self.settings.clone() }
    }
    /// Waits until `met`; a schedule that never comes to it has failed.
    pub async fn until(&self, what: &str, met: impl Fn() -> bool) {
        for wait in 0..20_000_u64 {
            if met() {
                return;
            }
            // Finely at first, where a schedule wants to get between two steps.
            self.clock.sleep(Duration::from_millis(1 + wait / 100)).await;
        }
        let trace = self.sink.trace();
        let from = trace.len().saturating_sub(40);
        panic!("it never came to this: {what}\n{}", trace[from..].join("\n"));
    }
    /// Object names that contain `part`.
    pub fn names(&self, part: &str) -> Vec<String> {
        self.sink.names().into_iter().filter(|name| name.contains(part)).collect()
    }
    pub fn phase(&self, running: &Running) -> Phase {
        running.gauges.figures(self.clock.now()).phase
    }
}

/// A writer as a task of its own. Dropping it crashes it.
pub struct Running {
    task: tokio::task::JoinHandle<Outcome>,
    pause: Pause,
    stop: watch::Sender<bool>,
    pub gauges: Arc<Gauges>,
}

impl Running {
    /// From here on it does nothing, not even give up what it waits for.
    pub fn pause(&self) {
        self.pause.set(true);
    }
    pub fn wake(&self) {
        self.pause.set(false);
    }
    /// Kills it between two polls.
    pub fn crash(self) {
        self.task.abort();
    }
    /// How it ends by itself.
    pub async fn end(mut self) -> Outcome {
        (&mut self.task).await.unwrap()
    }
    pub async fn stop(mut self) -> Outcome {
        self.stop.send(true).unwrap();
        (&mut self.task).await.unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub struct Started {
    pub run: std::pin::Pin<Box<dyn Future<Output = Outcome> + Send>>,
    pub stop: watch::Sender<bool>,
    pub gauges: Arc<Gauges>,
}
