//! C3, A6: slots that the server gave up, on every major.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::time::Duration;

use common::{Tail, settings};
use holdfast_harness::{Major, Options, Server};
use holdfast_postgres::wal::Lsn;

macro_rules! on {
    ($name:ident: $($test:ident $major:ident),*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            $name(Major::$major).await;
        }
    )* };
}

async fn small(major: Major) -> Server {
    let server = Options::new(major)
        .segment_mib(1)
        .set("max_slot_wal_keep_size", "2MB")
        .set("wal_keep_size", "0")
        .set("min_wal_size", "2MB")
        .set("max_wal_size", "4MB")
        .start()
        .await
        .unwrap();
    server.sql("create table t (filler text)").await.unwrap();
    server
}

async fn outgrow(server: &Server) {
    for _ in 0..12 {
        server.sql("insert into t select repeat('x', 1000) from generate_series(1, 900)").await.unwrap();
        server.sql("select pg_switch_wal()").await.unwrap();
        server.sql("checkpoint").await.unwrap();
    }
    let lost = "select coalesce(wal_status = 'lost', false) from pg_replication_slots where slot_name = 'holdfast_test'";
    server.wait_for(lost, Duration::from_secs(20)).await.unwrap();
}

/// The log is gone too: a gap, then a base backup by itself, and the new slot protects.
async fn lost_with_bytes(major: Major) {
    let server = small(major).await;
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    let (at, cursor) = (tail.at(), tail.cursor.clone());
    let content = tail.content.clone();
    tail.settler.close().await.unwrap();
    drop(tail.follower);
    outgrow(&server).await;
    let mut tail = Tail::resume(tail.tailer, cursor, content).await.unwrap();
    tail.backed_up(2).await;
    assert_eq!(tail.gaps.len(), 1);
    let gap = tail.gaps[0];
    assert_eq!(gap.from, at);
    assert_eq!(tail.log[0].0.from, gap.to);
    let newest = tail.content.snapshot().checkpoints.remove(1);
    assert!(newest.begin.position >= gap.to);
    let gaps = tail.content.snapshot().gaps;
    assert!(gaps[0].cause.contains("removed"), "{}", gaps[0].cause);
    assert_eq!(tail.tailer.health().read().slots_lost, 1);
    server
        .wait_for("select wal_status <> 'lost' from pg_replication_slots", Duration::from_secs(5))
        .await
        .unwrap();
    server.sql("insert into t values ('after')").await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    tail.reach(&end).await;
}

on!(lost_with_bytes: lost_13 V13, lost_14 V14, lost_15 V15, lost_16 V16, lost_17 V17, lost_18 V18);

/// Only the slot is lost, not the log at the repository's position: made anew, no gap.
async fn lost_without_bytes(major: Major) {
    let server = Options::new(major)
        .segment_mib(1)
        .set("max_slot_wal_keep_size", "2MB")
        .set("max_wal_size", "1GB")
        .start()
        .await
        .unwrap();
    server.sql("create table t (filler text)").await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    tail.settles = false;
    server.sql("insert into t select repeat('x', 1000) from generate_series(1, 8000)").await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    tail.reach(&end).await;
    let cursor = tail.cursor.clone();
    drop(tail.follower);
    server.wait_for("select not active from pg_replication_slots", Duration::from_secs(10)).await.unwrap();
    server.sql("checkpoint").await.unwrap();
    server
        .wait_for("select wal_status = 'lost' from pg_replication_slots", Duration::from_secs(10))
        .await
        .unwrap();
    let mut tail = Tail::resume(tail.tailer, cursor, tail.content).await.unwrap();
    server.sql("insert into t values ('after')").await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    tail.reach(&end).await;
    assert_eq!(tail.gaps, []);
    let health = tail.tailer.health().read();
    assert_eq!(health.slots_lost, 1);
    assert!(health.notice.contains("no log was lost"), "{}", health.notice);
    server
        .wait_for("select wal_status <> 'lost' from pg_replication_slots", Duration::from_secs(5))
        .await
        .unwrap();
}

on!(lost_without_bytes: only_slot_13 V13, only_slot_14 V14, only_slot_15 V15, only_slot_16 V16, only_slot_17 V17, only_slot_18 V18);

/// A3: somebody made the slot anew, ahead of us; it is not trusted as a place to go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_ahead_is_no_place_to_go_on() {
    let server = Options::new(Major::V18).set("wal_keep_size", "1GB").start().await.unwrap();
    server.sql("create table t (n int)").await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    let at = tail.at();
    let cursor = tail.cursor.clone();
    tail.settler.close().await.unwrap();
    drop(tail.follower);
    server.sql("insert into t select generate_series(1, 1000)").await.unwrap();
    server.wait_for("select not active from pg_replication_slots", Duration::from_secs(10)).await.unwrap();
    server.sql("select pg_drop_replication_slot('holdfast_test')").await.unwrap();
    server
        .sql("checkpoint; select pg_create_physical_replication_slot('holdfast_test', true)")
        .await
        .unwrap();
    let mut tail = Tail::resume(tail.tailer, cursor, tail.content).await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    tail.reach(&end).await;
    assert_eq!(tail.log[0].0.from, at);
    assert_eq!(tail.gaps, []);
}

/// A stream with a limit of its own, backed up.
async fn limited() -> (Server, Tail) {
    let server = Options::new(Major::V18)
        .segment_mib(1)
        .set("max_wal_size", "4MB")
        .set("min_wal_size", "2MB")
        .set("wal_keep_size", "0")
        .start()
        .await
        .unwrap();
    server.sql("create table t (filler text)").await.unwrap();
    let mut limited = settings(&server);
    limited.max_slot_lag = Some(4 << 20);
    let mut tail = Tail::resume(common::tailer(limited), None, holdfast_testkit::MemoryContent::default())
        .await
        .unwrap();
    tail.backed_up(1).await;
    (server, tail)
}

async fn write_eight_mib(server: &Server) {
    for _ in 0..8 {
        server.sql("insert into t select repeat('x', 1000) from generate_series(1, 900)").await.unwrap();
    }
    server.sql("checkpoint").await.unwrap();
}

const NO_SLOT: &str = "select count(*) = 0 from pg_replication_slots";

/// A tailer that may not keep more than so much gives its slot up and says so. Given up is given up: the log
/// leaves the server's disk, and the stream that follows does not have it kept again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_is_given_up_at_our_own_limit() {
    let (server, mut tail) = limited().await;
    tail.settles = false;
    let (old, cursor) = (Lsn(tail.at()), tail.cursor.clone());
    write_eight_mib(&server).await;
    let cause = loop {
        if let Err(cause) = tail.step().await {
            break cause;
        }
    };
    assert!(cause.is_passing() && cause.to_string().contains("max_slot_lag"), "{cause}");
    server.wait_for(NO_SLOT, Duration::from_secs(20)).await.unwrap();

    // Nothing removed the log so far, and the stream could go on where it was.
    let mut tail = Tail::resume(tail.tailer, cursor, tail.content).await.unwrap();
    tail.settles = false;
    tail.backed_up(2).await;
    assert_eq!((tail.gaps.len(), tail.gaps[0].from), (1, old.0));
    assert_eq!(tail.log[0].0.from, tail.gaps[0].to);
    assert!(tail.content.snapshot().gaps[0].cause.contains("max_slot_lag"));
    let behind = format!("select restart_lsn >= '{}' from pg_replication_slots", Lsn(tail.gaps[0].to));
    tail.during(server.wait_for(&behind, Duration::from_secs(5))).await.unwrap();
    tail.during(server.sql("checkpoint")).await.unwrap();
    let gone =
        format!("select not exists (select from pg_ls_waldir() where name = pg_walfile_name('{old}'))");
    tail.during(server.wait_for(&gone, Duration::from_secs(10))).await.unwrap();
    assert_eq!(server.value("select count(*) from pg_replication_slots").await.unwrap(), "1");
}

/// No stream runs, as while the store is away: the slot is watched all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_is_given_up_while_no_stream_runs() {
    let (server, tail) = limited().await;
    let Tail { tailer, follower, settler, .. } = tail;
    settler.close().await.unwrap();
    drop(follower);
    write_eight_mib(&server).await;
    server.wait_for(NO_SLOT, Duration::from_secs(20)).await.unwrap();
    assert!(tailer.health().read().notice.contains("max_slot_lag"));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(tailer.health().read().slot_lag, None);
}

/// Removes finished segments from `from` on, as an overeager person would. The server itself needs none of them.
async fn remove_log(server: &Server, from: &str) -> usize {
    server.sql("select pg_switch_wal(); checkpoint").await.unwrap();
    let query = format!(
        "select name from pg_ls_waldir() where name >= pg_walfile_name('{from}') and length(name) = 24 \
         and name < (select redo_wal_file from pg_control_checkpoint())"
    );
    let names = server.sql(&query).await.unwrap();
    for name in names.iter().flatten().flatten() {
        std::fs::remove_file(server.data().join("pg_wal").join(name)).unwrap();
    }
    names.len()
}

/// A slot that was there before us and claims to keep what is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_stream_renews_a_slot_whose_log_is_gone() {
    let server = Options::new(Major::V18).segment_mib(1).start().await.unwrap();
    server.sql("create table t (filler text)").await.unwrap();
    server.sql("select pg_create_physical_replication_slot('holdfast_test', true)").await.unwrap();
    let kept = server.value("select restart_lsn from pg_replication_slots").await.unwrap();
    server.sql("insert into t select repeat('x', 1000) from generate_series(1, 3000)").await.unwrap();
    assert!(remove_log(&server, &kept).await > 0);
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    assert_eq!(tail.gaps, []);
    assert!(Lsn(tail.log[0].0.from) > kept.parse().unwrap());
}

/// The log vanishes under a running stream: it is opened again, with a gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_removed_in_mid_stream_becomes_a_gap() {
    let server = Options::new(Major::V18).segment_mib(1).set("max_wal_size", "1GB").start().await.unwrap();
    server.sql("create table t (filler text)").await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    // Nobody steps, so the server is stuck with a full socket soon.
    server.sql("insert into t select repeat('x', 1000) from generate_series(1, 30000)").await.unwrap();
    let sent = "select sent_lsn + 2 * 1048576 from pg_stat_replication where application_name = 'holdfast' \
                and sent_lsn is not null order by 1 desc limit 1";
    let sent = server.value(sent).await.unwrap();
    assert!(remove_log(&server, &sent).await > 0);
    let cause = loop {
        if let Err(cause) = tail.step().await {
            break cause;
        }
    };
    assert!(cause.is_passing() && cause.to_string().contains("removed log"), "{}", cause.chain());
    let mut tail = Tail::resume(tail.tailer, tail.cursor, tail.content).await.unwrap();
    tail.backed_up(2).await;
    assert_eq!(tail.gaps.len(), 1);
}
