//! One stream, several who would write it: standbys, zombies, copies of a host. Whoever loses settles nothing more and
//! says so; nothing acknowledged is lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{fs, time::Duration};

use holdfast_harness::{Conditions, Major, Options, S3Local, Server, Weed};
use holdfast_integration::{Place, Sidecar, Site, Workload, held, insert, judge, settled};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(40);

async fn is_standby(sidecar: &mut Sidecar) {
    sidecar.until_phase("standby", Duration::ZERO).await.unwrap();
}

/// Log bytes that the source was told of.
async fn told(sidecar: &Sidecar) -> f64 {
    let metrics = sidecar.metrics().await.unwrap();
    metrics.get("holdfast_log_bytes_total{source=\"main\",stage=\"settled\"}").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn after_three_silent_heartbeats_the_standby_takes_over() {
    let server = Server::start(Major::V18).await.unwrap();
    let site = Site::ready(Place::Folder, &server, "heartbeat = \"2s\"").await.unwrap();
    let mut first = site.run().unwrap();
    first.backed_up(PATIENCE).await.unwrap();
    let other = site.another().unwrap();
    let mut second = other.run().unwrap();
    second.until_phase("standby", PATIENCE).await.unwrap();
    // A writer with nothing to write lives, too.
    sleep(Duration::from_secs(7)).await;
    is_standby(&mut second).await;
    assert!(second.ready().await.unwrap().contains("another writer has the stream"));
    assert_eq!(site.epochs().unwrap(), 1);
    insert(&server, 1).await.unwrap();
    first.kill();
    let waited = second.until_phase("streaming", PATIENCE).await.unwrap();
    // From the last sign of life, which is younger than a heartbeat, to the look after the third.
    assert!((4..15).contains(&waited.as_secs()), "{waited:?}");
    insert(&server, 2).await.unwrap();
    settled(&server, PATIENCE).await.unwrap();
    second.stop().await.unwrap();
    let restored = site.restored(&server, "restored", &["--latest"]).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), "1 2");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_takeover_manual_silence_means_nothing() {
    let server = Server::start(Major::V13).await.unwrap();
    let settings = "heartbeat = \"1s\"\ntakeover = \"manual\"";
    let site = Site::ready(Place::Folder, &server, settings).await.unwrap();
    let mut first = site.run().unwrap();
    first.backed_up(PATIENCE).await.unwrap();
    let other = site.another().unwrap();
    let mut second = other.run().unwrap();
    second.until_phase("standby", PATIENCE).await.unwrap();
    first.kill();
    sleep(Duration::from_secs(6)).await;
    is_standby(&mut second).await;
    assert!(second.ready().await.unwrap().contains("takeover = \"manual\""));
    assert_eq!(site.epochs().unwrap(), 1);
    assert!(second.stop().await.unwrap().success());
    let mut second = other.run_with(&["--take-over"]).unwrap();
    second.until_phase("streaming", PATIENCE).await.unwrap();
    insert(&server, 1).await.unwrap();
    settled(&server, PATIENCE).await.unwrap();
    second.stop().await.unwrap();
    let restored = site.restored(&server, "restored", &["--latest"]).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), "1");
}

/// With a silence of 24 s nobody takes over by chance within these bounds.
#[tokio::test(flavor = "multi_thread")]
async fn told_to_it_takes_over_at_once_and_a_release_hands_back() {
    const AT_ONCE: Duration = Duration::from_secs(12);
    let server = Server::start(Major::V18).await.unwrap();
    let site = Site::ready(Place::Folder, &server, "heartbeat = \"8s\"").await.unwrap();
    let mut first = site.run().unwrap();
    let workload = Workload::start(&server, 2, 100).await.unwrap();
    first.backed_up(PATIENCE).await.unwrap();
    let other = site.another().unwrap();
    let mut second = other.run_with(&["--take-over"]).unwrap();
    let waited = second.until_phase("streaming", PATIENCE).await.unwrap();
    assert!(waited < AT_ONCE, "{waited:?}");
    first.until_says("fenced: another writer owns the stream", PATIENCE).await.unwrap();
    first.until_phase("standby", PATIENCE).await.unwrap();
    second.until("holdfast_source_connected", |is| is == 1.0, PATIENCE).await.unwrap();
    // The old word is spent: the one that was fenced does not take back what was taken from it.
    sleep(Duration::from_secs(2)).await;
    is_standby(&mut first).await;
    assert_eq!(site.epochs().unwrap(), 2);

    assert!(second.stop().await.unwrap().success());
    let waited = first.until_phase("streaming", PATIENCE).await.unwrap();
    assert!(waited < AT_ONCE, "{waited:?}");
    workload.pause().await;
    settled(&server, PATIENCE).await.unwrap();
    let journal = workload.stop().await;
    assert_eq!(first.metrics().await.unwrap().get("holdfast_gaps"), Some(0.0));
    first.stop().await.unwrap();
    let restored = site.restored(&server, "restored", &["--latest"]).await.unwrap();
    let verdict = judge(&restored, &journal, Instant::now()).await.unwrap();
    assert!(verdict.acknowledged > 100 && verdict.lost.is_empty(), "{verdict:?}");
}

/// Stopped in the middle of everything, overtaken, and awake again.
async fn a_zombie_is_fenced(place: Place) {
    let options = Options::new(Major::V18).set("synchronous_standby_names", "holdfast");
    // The server drops the zombie's connection by this; until then it holds the slot.
    let mut server = Server::start(options.set("wal_sender_timeout", "4s")).await.unwrap();
    let site = Site::ready(place, &server, "ack = \"remote\"\nheartbeat = \"1s\"").await.unwrap();
    let mut first = site.run().unwrap();
    let workload = timeout(PATIENCE, Workload::start(&server, 8, 0)).await.unwrap().unwrap();
    first.backed_up(PATIENCE).await.unwrap();
    let other = site.another().unwrap();
    let mut second = other.run().unwrap();
    second.until_phase("standby", PATIENCE).await.unwrap();
    let more = async |commits| {
        let so_far = workload.journal().acknowledged();
        workload.until(so_far + commits, PATIENCE).await
    };
    more(100).await.unwrap();
    first.signal(Signal::STOP);
    second.until_phase("streaming", PATIENCE).await.unwrap();
    more(100).await.unwrap_or_else(|cause| panic!("{cause}\n{}", second.log()));
    first.signal(Signal::CONT);
    first.until_says("fenced: another writer owns the stream", PATIENCE).await.unwrap();
    first.until_phase("standby", PATIENCE).await.unwrap();
    let (zombies, ours) = (told(&first).await, told(&second).await);
    more(100).await.unwrap_or_else(|cause| panic!("{cause}\n{}", second.log()));
    assert_eq!(told(&first).await, zombies);
    assert!(told(&second).await > ours);
    is_standby(&mut first).await;
    assert!(first.ready().await.unwrap().contains("another writer has the stream"));
    let writers = "select count(*) from pg_stat_replication where application_name = 'holdfast'";
    assert_eq!(server.value(writers).await.unwrap(), "1");

    server.kill();
    second.kill();
    first.kill();
    let end = Instant::now();
    let journal = workload.stop().await;
    fs::remove_dir_all(server.data()).unwrap();
    let restored = site.restored(&server, "restored", &["--latest"]).await.unwrap();
    let verdict = judge(&restored, &journal, end).await.unwrap();
    assert!(verdict.acknowledged >= 300 && verdict.lost.is_empty(), "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_at_a_store_is_fenced() {
    let store = Weed::start().await.unwrap();
    a_zombie_is_fenced(Place::S3(store.store().clone())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_at_a_folder_is_fenced() {
    a_zombie_is_fenced(Place::Folder).await;
}

/// R7: the store lets everybody overwrite, so the zombie finds out by looking before it settles.
#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_at_a_store_that_overwrites_is_fenced() {
    let store = S3Local::start_with(Conditions::Ignored, None).unwrap();
    a_zombie_is_fenced(Place::S3(store.store().clone())).await;
}

/// Both claim to be one instance. The newer start wins, and they do not duel.
#[tokio::test(flavor = "multi_thread")]
async fn a_copied_state_folder_starts_no_duel() {
    let server = Server::start(Major::V18).await.unwrap();
    let site = Site::ready(Place::Folder, &server, "heartbeat = \"8s\"").await.unwrap();
    let mut first = site.run().unwrap();
    let workload = Workload::start(&server, 2, 100).await.unwrap();
    first.backed_up(PATIENCE).await.unwrap();
    let copy = site.another().unwrap();
    copy.copy_state(&site).unwrap();
    let mut second = copy.run().unwrap();
    let waited = second.until_phase("streaming", PATIENCE).await.unwrap();
    assert!(waited < Duration::from_secs(12), "{waited:?}");
    first.until_says("fenced: another writer owns the stream", PATIENCE).await.unwrap();
    first.until_phase("standby", PATIENCE).await.unwrap();
    second.until("holdfast_source_connected", |is| is == 1.0, PATIENCE).await.unwrap();
    sleep(Duration::from_secs(3)).await;
    is_standby(&mut first).await;
    assert_eq!(site.epochs().unwrap(), 2);
    workload.pause().await;
    settled(&server, PATIENCE).await.unwrap();
    let journal = workload.stop().await;
    second.stop().await.unwrap();
    first.stop().await.unwrap();
    let restored = site.restored(&server, "restored", &["--latest"]).await.unwrap();
    let verdict = judge(&restored, &journal, Instant::now()).await.unwrap();
    assert!(verdict.acknowledged > 100 && verdict.lost.is_empty(), "{verdict:?}");
}
