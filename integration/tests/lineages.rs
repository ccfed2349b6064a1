//! Which server is the one that a stream was written from: clones, strangers, promoted copies, failovers and forks. Nothing
//! acknowledged is lost, and no history is mixed with another one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::time::Duration;

use holdfast_harness::{Major, Options, Server};
use holdfast_integration::{Place, Sidecar, Site, Workload, held, insert, judge, settled};
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(40);

async fn is_standby(sidecar: &mut Sidecar) {
    sidecar.until_phase("standby", Duration::ZERO).await.unwrap();
}

/// A copy of the disk, started with everything that production has. It may wait as long as production lives; told to take
/// over, or once production is silent, it is found out by the bytes of its log.
#[tokio::test(flavor = "multi_thread")]
async fn a_clone_with_productions_settings_takes_nothing() {
    const SETTINGS: &str = "heartbeat = \"1s\"";
    let production = Server::start(Major::V18).await.unwrap();
    let site = Site::ready(Place::Folder, &production, SETTINGS).await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    insert(&production, 1).await.unwrap();
    let folder = production.new_folder("clone").unwrap();
    production.clone_folder(&folder).await.unwrap();
    insert(&production, 2).await.unwrap();
    production.sql("create table much as select generate_series(1, 1000)").await.unwrap();
    settled(&production, PATIENCE).await.unwrap();
    let clone = Server::adopt(Major::V18, &folder).await.unwrap();
    insert(&clone, -2).await.unwrap();
    clone.sql("create table more as select generate_series(1, 9000)").await.unwrap();

    let mut other = site.another().unwrap();
    other.source("main", &clone.dsn(), SETTINGS).unwrap();
    let mut stranger = other.run().unwrap();
    stranger.until_phase("standby", PATIENCE).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    is_standby(&mut stranger).await;
    assert_eq!(site.epochs().unwrap(), 1);
    assert!(stranger.stop().await.unwrap().success());

    let mut stranger = other.run_with(&["--take-over"]).unwrap();
    let status = stranger.wait(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(4), "{}", stranger.log());
    assert!(stranger.log().contains("it is a clone"), "{}", stranger.log());
    insert(&production, 3).await.unwrap();
    settled(&production, PATIENCE).await.unwrap();

    sidecar.kill();
    let slot = "select restart_lsn || ' ' || active from pg_replication_slots";
    let before = production.value(slot).await.unwrap();
    let mut stranger = other.run().unwrap();
    let status = stranger.wait(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(4), "{}", stranger.log());
    assert_eq!(production.value(slot).await.unwrap(), before);
    let mut sidecar = site.run().unwrap();
    insert(&production, 4).await.unwrap();
    settled(&production, PATIENCE).await.unwrap();
    assert_eq!(sidecar.metrics().await.unwrap().get("holdfast_gaps"), Some(0.0));
    sidecar.until_phase("streaming", Duration::ZERO).await.unwrap();
    sidecar.stop().await.unwrap();
    let restored = site.restored(&production, "restored", &["--latest"]).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), "1 2 3 4");
}

/// A copy for tests, restored and promoted, with production's settings: it waits as long as production lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_copy_waits_while_production_lives() {
    let production = Server::start(Major::V18).await.unwrap();
    let site = Site::ready(Place::Folder, &production, "heartbeat = \"1s\"").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    insert(&production, 1).await.unwrap();
    settled(&production, PATIENCE).await.unwrap();
    let copy = site.restored(&production, "copy", &["--latest"]).await.unwrap();
    insert(&copy, -2).await.unwrap();
    let mut other = site.another().unwrap();
    other.source("main", &copy.dsn(), "heartbeat = \"1s\"").unwrap();
    let mut stranger = other.run().unwrap();
    stranger.until_phase("standby", PATIENCE).await.unwrap();
    insert(&production, 2).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    is_standby(&mut stranger).await;
    assert_eq!(site.epochs().unwrap(), 1);
    assert!(stranger.stop().await.unwrap().success());
    settled(&production, PATIENCE).await.unwrap();
    sidecar.stop().await.unwrap();
    let restored = site.restored(&production, "restored", &["--latest"]).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), "1 2");
}

/// Another cluster is refused by name until somebody says that it is meant; then both lives can be restored.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_cluster_is_a_lineage_only_when_told_so() {
    let old = Server::start(Major::V17).await.unwrap();
    let mut site = Site::ready(Place::Folder, &old, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    insert(&old, 1).await.unwrap();
    let moment = old.value("select to_char(now() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')");
    let moment = moment.await.unwrap();
    insert(&old, 2).await.unwrap();
    settled(&old, PATIENCE).await.unwrap();
    sidecar.stop().await.unwrap();

    let new = Server::start(Major::V18).await.unwrap();
    insert(&new, 100).await.unwrap();
    site.source("main", &new.dsn(), "").unwrap();
    let name = new.system_identifier().await.unwrap().to_string();
    let mut sidecar = site.run().unwrap();
    let status = sidecar.wait(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(4), "{}", sidecar.log());
    let said = sidecar.log();
    assert!(said.contains(&name) && said.contains("holdfast source adopt"), "{said}");
    let (code, said) = site.says(["check", "main"]).await.unwrap();
    assert!(code == 2 && said.contains(&name) && said.contains("holdfast source adopt main"), "{said}");
    assert_eq!(new.value("select count(*) from pg_replication_slots").await.unwrap(), "0");
    assert_eq!(site.epochs().unwrap(), 1);

    let said = site.holdfast(["source", "adopt", "main", "--identity", "id.key"]).await.unwrap();
    assert!(said.contains(&name), "{said}");
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    insert(&new, 101).await.unwrap();
    settled(&new, PATIENCE).await.unwrap();
    sidecar.stop().await.unwrap();
    let restored = site.restored(&new, "new", &["--latest"]).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), "100 101");
    let restored = site.restored(&old, "old", &["--at", &moment]).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), "1");
    // Where none reaches, each says why.
    let never =
        ["restore", "main", "--identity", "id.key", "--target", "never", "--at", "2020-01-01T00:00:00Z"];
    let (code, said) = site.says(never).await.unwrap();
    let lineage = old.system_identifier().await.unwrap().to_string();
    assert!(code == 3 && said.contains(&lineage), "{said}");
    let restored = site.restored(&old, "named", &["--latest", "--lineage", &lineage]).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), "1 2");
}

/// Has the standby replayed all that the primary flushed?
async fn replayed(standby: &Server, primary: &Server) {
    let lsn = primary.value("select pg_current_wal_flush_lsn()").await.unwrap();
    let query = format!("select pg_last_wal_replay_lsn() >= '{lsn}'");
    standby.wait_for(&query, PATIENCE).await.unwrap();
}

/// Cuts a standby off its primary, so that the two can part.
async fn cut_off(standby: &Server) {
    standby.sql("alter system set primary_conninfo = ''").await.unwrap();
    standby.sql("select pg_reload_conf()").await.unwrap();
    standby.wait_for("select count(*) = 0 from pg_stat_wal_receiver", PATIENCE).await.unwrap();
}

/// B7: after the fork both servers write the same segment of the log, each its own bytes.
async fn both_ends_of_a_fork_are_kept(major: Major) {
    let old = Server::start(Options::new(major).set("wal_keep_size", "256MB")).await.unwrap();
    let site = Site::ready(Place::Folder, &old, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let new = Server::standby_of(&old, "standby").await.unwrap();
    insert(&old, 1).await.unwrap();
    replayed(&new, &old).await;
    cut_off(&new).await;
    let fork = old.value("select pg_walfile_name(pg_current_wal_lsn())").await.unwrap();
    insert(&old, -2).await.unwrap();
    settled(&old, PATIENCE).await.unwrap();
    assert_eq!(old.value("select pg_walfile_name(pg_current_wal_lsn())").await.unwrap(), fork);
    sidecar.stop().await.unwrap();
    new.promote().await.unwrap();
    insert(&new, 2).await.unwrap();

    let mut other = site.another().unwrap();
    other.source("main", &new.dsn(), "").unwrap();
    let mut sidecar = other.run().unwrap();
    insert(&new, 3).await.unwrap();
    sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    sidecar.until_says("were never part of the new one", PATIENCE).await.unwrap();
    settled(&new, PATIENCE).await.unwrap();
    assert_eq!(sidecar.metrics().await.unwrap().get("holdfast_gaps"), Some(0.0));
    sidecar.stop().await.unwrap();
    let restored = site.restored(&new, "new", &["--latest"]).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), "1 2 3");
    let plan = ["restore", "main", "--identity", "id.key", "--target", "plan", "--latest", "--plan"];
    let said = site.holdfast(plan).await.unwrap();
    assert!(said.contains("timeline 1 behind"), "{said}");
    let restored = site.restored(&old, "old", &["--latest", "--timeline", "1"]).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), "-2 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_of_a_fork_are_kept_13() {
    both_ends_of_a_fork_are_kept(Major::V13).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_of_a_fork_are_kept_18() {
    both_ends_of_a_fork_are_kept(Major::V18).await;
}

/// The primary dies under load and its standby takes its place; clients and sidecar find it by themselves.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_in_a_promotion() {
    let options = Options::new(Major::V18).set("wal_keep_size", "256MB");
    let both = options.clone().set("synchronous_standby_names", "FIRST 2 (standby, holdfast)");
    let mut old = Server::start(both).await.unwrap();
    let ours = options.set("synchronous_standby_names", "holdfast");
    let new = Server::standby_with(&old, "standby", ours).await.unwrap();
    let folders = format!("{},{}", old.socket_folder().display(), new.socket_folder().display());
    let hosts = format!("host={folders} port={},{} user=postgres dbname=postgres", old.port(), new.port());
    let mut site = Site::ready(Place::Folder, &old, "").await.unwrap();
    let primary = format!("{hosts} target_session_attrs=primary");
    site.source("main", &primary, "ack = \"remote\"").unwrap();
    let mut sidecar = site.run().unwrap();
    let writable = format!("{hosts} target_session_attrs=read-write");
    let workload = Workload::start_at(&old, &writable, 8, 0);
    let workload = timeout(PATIENCE, workload).await.unwrap().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    workload.until(300, PATIENCE).await.unwrap();
    old.kill();
    let before = workload.journal();
    new.promote().await.unwrap();
    let so_far = workload.journal().acknowledged();
    let more = workload.until(so_far + 300, PATIENCE).await;
    more.unwrap_or_else(|cause| panic!("{cause}\n{}", sidecar.log()));
    let attached = new.value("select count(*) from pg_stat_replication where application_name = 'holdfast'");
    assert_eq!(attached.await.unwrap(), "1");
    assert_eq!(sidecar.metrics().await.unwrap().get("holdfast_gaps"), Some(0.0));
    drop(new);
    sidecar.kill();
    let end = Instant::now();
    let journal = workload.stop().await;
    for (client, told) in &before.clients {
        // The clients asked the new primary what it holds.
        assert!(journal.clients[client].last_acknowledged() >= told.last_acknowledged(), "client {client}");
    }
    let restored = site.restored(&old, "restored", &["--latest"]).await.unwrap();
    let verdict = judge(&restored, &journal, end).await.unwrap();
    assert!(verdict.acknowledged >= 600 && verdict.lost.is_empty(), "{verdict:?}");
}

/// A11: a standby was promoted by accident and followed for a moment; then the true primary is to be followed again.
#[tokio::test(flavor = "multi_thread")]
async fn a_stray_timeline_is_explained() {
    let primary = Server::start(Options::new(Major::V18).set("wal_keep_size", "256MB")).await.unwrap();
    let mut site = Site::ready(Place::Folder, &primary, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let stray = Server::standby_of(&primary, "standby").await.unwrap();
    insert(&primary, 1).await.unwrap();
    replayed(&stray, &primary).await;
    cut_off(&stray).await;
    insert(&primary, 2).await.unwrap();
    settled(&primary, PATIENCE).await.unwrap();
    sidecar.stop().await.unwrap();
    stray.promote().await.unwrap();
    insert(&stray, -1).await.unwrap();
    let mut other = site.another().unwrap();
    other.source("main", &stray.dsn(), "").unwrap();
    let mut sidecar = other.run().unwrap();
    sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    settled(&stray, PATIENCE).await.unwrap();
    sidecar.stop().await.unwrap();

    insert(&primary, 3).await.unwrap();
    let mut sidecar = site.run().unwrap();
    let status = sidecar.wait(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(4), "{}", sidecar.log());
    let said = sidecar.log();
    assert!(said.contains("timeline 1, at") && said.contains("timeline 2, at"), "{said}");
    // The way that it names: nothing tells the two apart but what they wrote, so they are two sources.
    assert!(said.contains("holdfast source add"), "{said}");
    site.source("again", &primary.dsn(), "").unwrap();
    site.holdfast(["source", "add", "again", "--identity", "id.key"]).await.unwrap();
    let mut sidecar = site.run_with(&["again"]).unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    settled(&primary, PATIENCE).await.unwrap();
    sidecar.stop().await.unwrap();
    let target = site.home().join("again").to_string_lossy().into_owned();
    site.holdfast(["restore", "again", "--latest", "--identity", "id.key", "--target", &target])
        .await
        .unwrap();
    let mut restored = Server::adopt(Major::V18, target.as_ref()).await.unwrap();
    restored.wait_for("select not pg_is_in_recovery()", PATIENCE).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), "1 2 3");
    restored.kill();

    // Who restores is told of both lines before the first byte, and has both.
    let plan = ["restore", "main", "--identity", "id.key", "--target", "plan", "--latest", "--plan"];
    let said = site.holdfast(plan).await.unwrap();
    let explained = said.lines().any(|line| line.starts_with("not followed") && line.contains("timeline 1"));
    assert!(explained, "{said}");
    let said = site.holdfast(plan.into_iter().chain(["--timeline", "1"])).await.unwrap();
    let explained = said.lines().any(|line| line.starts_with("not followed") && line.contains("timeline 2"));
    assert!(explained, "{said}");
    let restored = site.restored(&primary, "true", &["--latest", "--timeline", "1"]).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), "1 2");
    let restored = site.restored(&stray, "stray", &["--latest"]).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), "-1 1");
}
