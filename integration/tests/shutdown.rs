//! Ends that somebody asked for: a server that shuts down is not kept waiting (A13), and a sidecar that is told to stop
//! drains, settles and releases, whatever it is at.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{process::ExitStatus, time::Duration};

use holdfast_harness::{Fault, Major, Rule, S3Local, Server, Stop, Toxic};
use holdfast_integration::{Place, Sidecar, Site, Workload, judge, settled};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_secs(40);
/// Batches wait for longer than any test runs: only a reason to hurry makes them durable.
const LAZY: &str = "max_lag = \"5min\"";

async fn ended(sidecar: &mut Sidecar) -> (ExitStatus, Duration) {
    let asked = Instant::now();
    sidecar.signal(Signal::TERM);
    let status = sidecar.wait(PATIENCE).await.unwrap_or_else(|cause| panic!("{cause}\n{}", sidecar.log()));
    (status, asked.elapsed())
}

async fn fast(server: &mut Server) -> Duration {
    let asked = Instant::now();
    server.ask_stop(Stop::Fast);
    server.wait_exit(PATIENCE).await.unwrap();
    asked.elapsed()
}

/// A13: the shutdown ends soon, and not because we let go: all that was ever acknowledged is durable then.
async fn with_a_store(major: Major) {
    let mut server = Server::start(major).await.unwrap();
    let site = Site::ready(Place::Folder, &server, LAZY).await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let workload = Workload::start(&server, 4, 200).await.unwrap();
    workload.until(200, PATIENCE).await.unwrap();
    let took = fast(&mut server).await;
    let end = Instant::now();
    assert!(took <= Duration::from_secs(5), "{took:?}\n{}\n{}", server.log_tail(), sidecar.log());
    assert!(!sidecar.log().contains("shutdown_grace"), "{}", sidecar.log());
    let journal = workload.stop().await;
    let restored = site.restored(&server, "restored", &["--latest"]).await.unwrap();
    let verdict = judge(&restored, &journal, end).await.unwrap();
    assert!(verdict.acknowledged >= 200 && verdict.lost.is_empty(), "{verdict:?}");

    // It waits for its server, and goes on where it was.
    server.start_again().await.unwrap();
    server.sql("create table later (n int)").await.unwrap();
    sidecar.until("holdfast_source_connected", |is| is == 1.0, PATIENCE).await.unwrap();
    let (status, _) = ended(&mut sidecar).await;
    assert!(status.success(), "{status}\n{}", sidecar.log());
    let restored = site.restored(&server, "later", &["--latest"]).await.unwrap();
    restored.sql("select n from later").await.unwrap();
}

/// A13: the shutdown waits no longer than `shutdown_grace`; what was not durable is received again later.
async fn without_a_store(major: Major, away: fn(&mut Toxic)) {
    const GRACE: Duration = Duration::from_secs(3);
    let store = S3Local::start().unwrap();
    let mut toxic = Toxic::before(store.store()).unwrap();
    let mut server = Server::start(major).await.unwrap();
    let place = Place::S3(toxic.store().clone());
    let site = Site::ready(place, &server, "shutdown_grace = \"3s\"").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let workload = Workload::start(&server, 4, 200).await.unwrap();
    workload.until(200, PATIENCE).await.unwrap();
    away(&mut toxic);
    let so_far = workload.journal().acknowledged();
    workload.until(so_far + 200, PATIENCE).await.unwrap();
    let took = fast(&mut server).await;
    assert!(took <= GRACE + Duration::from_secs(2), "{took:?}\n{}\n{}", server.log_tail(), sidecar.log());
    sidecar.until_says("could not be made durable within shutdown_grace", PATIENCE).await.unwrap();

    toxic.up().ok();
    toxic.clear();
    server.start_again().await.unwrap();
    let so_far = workload.journal().acknowledged();
    workload.until(so_far + 100, PATIENCE).await.unwrap();
    workload.pause().await;
    let journal = workload.stop().await;
    let end = Instant::now();
    settled(&server, PATIENCE).await.unwrap_or_else(|cause| panic!("{cause}\n{}", sidecar.log()));
    assert_eq!(sidecar.metrics().await.unwrap().get("holdfast_gaps"), Some(0.0));
    sidecar.stop().await.unwrap();
    let restored = site.restored(&server, "restored", &["--latest"]).await.unwrap();
    let verdict = judge(&restored, &journal, end).await.unwrap();
    assert!(verdict.acknowledged >= 500 && verdict.lost.is_empty(), "{verdict:?}");
}

macro_rules! on {
    ($($test:ident: $call:expr),*) => { $(
        #[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            $call.await;
        }
    )* };
}

on!(
    shutdown_with_a_store_13: with_a_store(Major::V13),
    shutdown_with_a_store_18: with_a_store(Major::V18),
    shutdown_without_a_store_13: without_a_store(Major::V13, Toxic::down),
    shutdown_without_a_store_18: without_a_store(Major::V18, |toxic| toxic.set([Rule::new(Fault::Silence)]))
);

#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_it_drains_settles_and_releases() {
    let server = Server::start(Major::V17).await.unwrap();
    let site = Site::ready(Place::Folder, &server, LAZY).await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let workload = Workload::start(&server, 4, 200).await.unwrap();
    workload.until(400, PATIENCE).await.unwrap();
    let lsn = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    // Long enough to be received, and far too short for a batch to close by itself.
    sleep(Duration::from_millis(500)).await;
    let asked = Instant::now();
    let (status, took) = ended(&mut sidecar).await;
    assert!(status.success() && took <= Duration::from_secs(10), "{status} {took:?}\n{}", sidecar.log());
    let slot = "select active, restart_lsn >= '{lsn}' from pg_replication_slots".replace("{lsn}", &lsn);
    let slot = server.sql(&slot).await.unwrap();
    assert_eq!(slot, [[Some("f".to_owned()), Some("t".to_owned())]], "{}", sidecar.log());
    let journal = workload.journal();
    workload.pause().await;
    let restored = site.restored(&server, "first", &["--latest"]).await.unwrap();
    let verdict = judge(&restored, &journal, asked).await.unwrap();
    assert!(verdict.oldest_lost() < Duration::from_millis(500), "{verdict:?}");
    drop(restored);
    workload.resume();

    // Released: another host does not wait for the 60 s that its silence would take.
    let other = site.another().unwrap();
    let mut sidecar = other.run().unwrap();
    let waited = sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    let so_far = workload.journal().acknowledged();
    workload.until(so_far + 100, PATIENCE).await.unwrap();
    workload.pause().await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(sidecar.metrics().await.unwrap().get("holdfast_gaps"), Some(0.0));
    let (status, _) = ended(&mut sidecar).await;
    assert!(status.success(), "{status}\n{}", sidecar.log());
    let journal = workload.stop().await;
    let restored = site.restored(&server, "second", &["--latest"]).await.unwrap();
    let verdict = judge(&restored, &journal, Instant::now()).await.unwrap();
    assert!(verdict.lost.is_empty(), "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_it_does_not_wait_for_a_base_backup() {
    let server = Server::start(Major::V18).await.unwrap();
    let slow = format!("{LAZY}\nbase_backup_rate = \"1MiB\"");
    let mut site = Site::ready(Place::Folder, &server, &slow).await.unwrap();
    let mut sidecar = site.run().unwrap();
    let workload = Workload::start(&server, 2, 100).await.unwrap();
    let taken = "holdfast_base_backup_taken_bytes";
    sidecar.until(taken, |bytes| bytes > 3e6, PATIENCE).await.unwrap();
    let (status, took) = ended(&mut sidecar).await;
    assert!(status.success() && took <= Duration::from_secs(10), "{status} {took:?}\n{}", sidecar.log());
    // The server does not go on with a base backup that nobody takes.
    let nobody = "select count(*) = 0 from pg_stat_replication";
    server.wait_for(nobody, Duration::from_secs(5)).await.unwrap();

    site.source("main", &server.dsn(), LAZY).unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    workload.pause().await;
    sleep(Duration::from_millis(500)).await;
    let (status, _) = ended(&mut sidecar).await;
    assert!(status.success(), "{status}\n{}", sidecar.log());
    let journal = workload.stop().await;
    let restored = site.restored(&server, "restored", &["--latest"]).await.unwrap();
    let verdict = judge(&restored, &journal, Instant::now()).await.unwrap();
    assert!(verdict.acknowledged > 0 && verdict.lost.is_empty(), "{verdict:?}");
}

/// As `holdfast run --help` has it: 0, since it did what it was told, and its log says what it left.
#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_it_does_not_wait_for_a_silent_store() {
    const STOP_GRACE: Duration = Duration::from_secs(3);
    let store = S3Local::start().unwrap();
    let toxic = Toxic::before(store.store()).unwrap();
    let server = Server::start(Major::V16).await.unwrap();
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, "").await.unwrap();
    let start = || {
        let mut command = site.command(["run"]).unwrap();
        command.env("HOLDFAST_PROCESS__STOP_GRACE", "3s");
        site.run_as(command).unwrap()
    };
    let mut sidecar = start();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let workload = Workload::start(&server, 4, 200).await.unwrap();
    workload.until(200, PATIENCE).await.unwrap();
    toxic.set([Rule::new(Fault::Silence)]);
    let so_far = workload.journal().acknowledged();
    workload.until(so_far + 200, PATIENCE).await.unwrap();
    let (status, took) = ended(&mut sidecar).await;
    assert_eq!(status.code(), Some(0), "{}", sidecar.log());
    assert!(took <= STOP_GRACE + Duration::from_secs(2), "{took:?}\n{}", sidecar.log());
    assert!(sidecar.log().contains("what is not settled stays with the source"), "{}", sidecar.log());

    // Nor while it starts, before it could know anything of the store.
    let mut sidecar = start();
    sleep(Duration::from_secs(1)).await;
    let (status, took) = ended(&mut sidecar).await;
    assert_eq!(status.code(), Some(0), "{}", sidecar.log());
    assert!(took <= Duration::from_secs(2), "{took:?}\n{}", sidecar.log());

    toxic.clear();
    let mut sidecar = start();
    sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    let so_far = workload.journal().acknowledged();
    workload.until(so_far + 50, PATIENCE).await.unwrap();
    workload.pause().await;
    let journal = workload.stop().await;
    settled(&server, PATIENCE).await.unwrap_or_else(|cause| panic!("{cause}\n{}", sidecar.log()));
    sidecar.stop().await.unwrap();
    let restored = site.restored(&server, "restored", &["--latest"]).await.unwrap();
    let verdict = judge(&restored, &journal, Instant::now()).await.unwrap();
    assert!(verdict.acknowledged >= 450 && verdict.lost.is_empty(), "{verdict:?}");
}
