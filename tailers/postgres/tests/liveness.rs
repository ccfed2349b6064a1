//! Waiting and being waited for: idle servers, shutdowns, synchronous commits, floods of switches.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::time::{Duration, Instant};

use common::{Tail, settings, tailer};
use holdfast_core::Item;
use holdfast_harness::{Major, Options, Server, Stop};
use holdfast_postgres::{Ack, Position, wal::Lsn};
use holdfast_testkit::MemoryContent;

macro_rules! on {
    ($name:ident: $($test:ident $major:ident),*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            $name(Major::$major).await;
        }
    )* };
}

/// A7, C8: two hours scaled to six seconds, with the server's patience scaled alike: one connection, a vouched
/// instant at least every second.
async fn idle_is_alive(major: Major) {
    let server = Options::new(major).set("wal_sender_timeout", "2s").start().await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    let (from, mut last, mut longest) = (Instant::now(), None::<holdfast_core::Instant>, Duration::ZERO);
    while from.elapsed() < Duration::from_secs(6) {
        let step = tail.step().await.unwrap();
        if let Some((instant, _)) = step.vouched {
            assert!(last.is_none_or(|last| last < instant), "vouched instants fall");
            longest = longest.max(last.map_or(Duration::ZERO, |last| instant - last));
            last = Some(instant);
            assert!(holdfast_core::Clock::system().now() - instant < Duration::from_secs(2));
        }
        if matches!(step.item, Item::Quiet) {
            assert!(!step.waits, "an idle server was taken for one that shuts down");
        }
    }
    assert!(longest < Duration::from_millis(1500), "{longest:?} without a vouched instant");
    assert_eq!(tail.tailer.health().read().connections, 1);
}

on!(idle_is_alive: idle_13 V13, idle_18 V18);

/// A13, store reachable: the tail is hurried, acknowledged, and the server ends at once.
async fn shutdown_with_a_store(major: Major) {
    let mut server = Server::start(major).await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    server.sql("create table t (n int)").await.unwrap();
    let from = Instant::now();
    server.ask_stop(Stop::Fast);
    let cause = loop {
        match tail.step().await {
            Ok(_) => {}
            Err(cause) => break cause,
        }
    };
    server.wait_exit(Duration::from_secs(5)).await.unwrap();
    assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
    assert!(cause.is_passing(), "{}", cause.chain());
    assert!(cause.to_string().contains("shut down"), "{cause}");
}

on!(shutdown_with_a_store: shutdown_13 V13, shutdown_14 V14, shutdown_15 V15, shutdown_16 V16, shutdown_17 V17, shutdown_18 V18);

/// A13, store out of reach: the connection is dropped after `shutdown_grace`, by a task that needs nobody to poll.
async fn shutdown_without_a_store(major: Major, polled: bool) {
    let mut server = Server::start(major).await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    tail.settles = false;
    server.sql("create table t (n int)").await.unwrap();
    if !polled {
        server.sql("insert into t select generate_series(1, 300000)").await.unwrap();
    }
    let from = Instant::now();
    server.ask_stop(Stop::Fast);
    if polled {
        let waited = tail.waited;
        let cause = loop {
            match tail.step().await {
                Ok(_) => {}
                Err(cause) => break cause,
            }
        };
        assert!(cause.is_passing() && cause.to_string().contains("shutdown_grace"), "{cause}");
        assert!(tail.waited > waited, "nobody said that the shutdown waits");
    }
    server.wait_exit(Duration::from_secs(20)).await.unwrap();
    let took = from.elapsed();
    assert!(took > Duration::from_millis(2500) && took < Duration::from_secs(7), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_without_store_13() {
    shutdown_without_a_store(Major::V13, true).await;
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_without_store_18() {
    shutdown_without_a_store(Major::V18, true).await;
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_while_nobody_reads() {
    shutdown_without_a_store(Major::V18, false).await;
}

/// B4: switches flood the stream with padding; the position keeps moving and nothing is lost.
async fn switches_flood(major: Major) {
    let server = Options::new(major).segment_mib(1).start().await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    server.sql("create table t (n int)").await.unwrap();
    let mut xids = Vec::new();
    for n in 0..50 {
        let sql = format!("insert into t values ({n}) returning pg_current_xact_id()::text");
        xids.push(server.value(&sql).await.unwrap().parse::<u64>().unwrap());
        server.sql("select pg_switch_wal()").await.unwrap();
    }
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    tail.reach(&end).await;
    assert!(xids.iter().all(|xid| tail.commits.contains(xid)));
    let whole: Vec<u8> = tail.log.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    let zeros = whole.iter().filter(|byte| **byte == 0).count();
    assert!(zeros * 10 > whole.len() * 9, "padding is not empty: {zeros} of {}", whole.len());
}

on!(switches_flood: switches_13 V13, switches_18 V18);

/// `ack = "remote"`: a commit returns once it is settled and not before; all versions count us.
async fn commits_wait_for_us(major: Major) {
    let server = Server::start(major).await.unwrap();
    server.sql("create table t (n int)").await.unwrap();
    let mut remote = settings(&server);
    remote.ack = Ack::Remote;
    let mut tail = Tail::resume(tailer(remote), None, MemoryContent::default()).await.unwrap();
    tail.backed_up(1).await;
    server.sql("alter system set synchronous_standby_names = 'holdfast'; ").await.unwrap();
    server.sql("select pg_reload_conf()").await.unwrap();
    tail.during(server.wait_for(
        "select sync_state = 'sync' from pg_stat_replication where state = 'streaming'",
        Duration::from_secs(10),
    ))
    .await
    .unwrap();
    tail.settles = false;
    let client = server.client().await.unwrap();
    let commit = tokio::spawn(async move {
        client.simple_query("set synchronous_commit = remote_apply; insert into t values (1)").await.unwrap();
    });
    let before = tail.commits.len();
    tail.until(|tail| tail.commits.len() > before).await;
    assert!(tail.waited > 0);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!commit.is_finished(), "a commit returned before it was settled");
    let cursor = tail.cursor.clone().unwrap();
    tail.settler.settle(&cursor).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), commit).await.expect("the commit was not released").unwrap();
}

on!(commits_wait_for_us: remote_13 V13, remote_14 V14, remote_15 V15, remote_16 V16, remote_17 V17, remote_18 V18);

/// A server that counts on us although we are asynchronous is noticed and served as if remote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_counts_on_us_is_noticed() {
    let server = Options::new(Major::V18).set("synchronous_standby_names", "*").start().await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.until(|tail| tail.tailer.health().read().sync_state.as_deref() == Some("sync")).await;
    let waited = tail.waited;
    let client = server.client().await.unwrap();
    let commit = tokio::spawn(async move { client.simple_query("create table t (n int)").await.unwrap() });
    tail.until(|tail| tail.waited > waited && commit.is_finished()).await;
    assert!(tail.tailer.health().read().waits);
}

/// B5 (part): a cursor beyond what was received is never reported, and nothing ever falls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_acknowledged_beyond_what_was_received() {
    let server = Server::start(Major::V18).await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    let true_one = Position::decode(tail.cursor.as_ref().unwrap()).unwrap();
    tail.settles = false;
    let far = Position { lsn: Lsn(0xff_0000_0000), ..true_one.clone() };
    tail.settler.settle(&far.encode().unwrap()).await.unwrap();
    tail.until(|tail| tail.tailer.health().read().acknowledged >= true_one.lsn).await;
    for _ in 0..5 {
        tail.step().await.unwrap();
    }
    let restart: Lsn =
        server.value("select restart_lsn from pg_replication_slots").await.unwrap().parse().unwrap();
    let health = tail.tailer.health().read();
    assert!(health.acknowledged <= health.received && restart <= health.received);
}

/// A stream that is opened again goes on behind what it took in; the slot stays where the last settled byte is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_in_is_not_taken_for_durable() {
    let server = Server::start(Major::V18).await.unwrap();
    server.sql("create table t (n int)").await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    let durable = Position::decode(tail.cursor.as_ref().unwrap()).unwrap().lsn;
    tail.settles = false;
    server.sql("insert into t select generate_series(1, 1000)").await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    tail.reach(&end).await;
    let cursor = tail.cursor.clone();
    drop(tail.follower);
    let mut tail = Tail::resume(tail.tailer, cursor, tail.content).await.unwrap();
    tail.settles = false;
    server.sql("insert into t values (0)").await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    tail.reach(&end).await;
    for _ in 0..3 {
        tail.step().await.unwrap();
    }
    assert!(tail.tailer.health().read().acknowledged <= durable);
    let restart: Lsn =
        server.value("select restart_lsn from pg_replication_slots").await.unwrap().parse().unwrap();
    assert!(restart <= durable, "{restart} of {durable}");
    let cursor = tail.cursor.clone().unwrap();
    tail.settler.settle(&cursor).await.unwrap();
    let lsn = Position::decode(&cursor).unwrap().lsn;
    tail.until(|tail| tail.tailer.health().read().acknowledged >= lsn).await;
}
