//! Following real servers: the thin path, resuming, marks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use common::{Tail, settings};
use holdfast_core::{Item, Tailer};
use holdfast_harness::{Major, Options, Server};
use holdfast_postgres::{
    Position, Proof,
    wal::{Lsn, Memory},
};

async fn every_commit_is_a_mark(major: Major) {
    let server = Server::start(major).await.unwrap();
    let mut tail = Tail::open(&server).await;
    assert_eq!(
        tail.tailer.identity().await.unwrap().text,
        server.system_identifier().await.unwrap().to_string()
    );
    server.sql("create table t (n int)").await.unwrap();
    let mut xids = Vec::new();
    for n in 0..20 {
        let xid =
            server.value(&format!("insert into t values ({n}) returning pg_current_xact_id()::text")).await;
        xids.push(xid.unwrap().parse::<u64>().unwrap());
    }
    server.value("select pg_create_restore_point('a named place')").await.unwrap();
    server.sql("begin; insert into t values (99); rollback").await.unwrap();
    server.sql("insert into t values (100)").await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    tail.reach(&end).await;
    for xid in &xids {
        assert!(tail.commits.contains(xid), "commit {xid} is no mark: {:?}", tail.commits);
    }
    assert_eq!(tail.names, ["a named place"]);
    tail.backed_up(1).await;
    let checkpoint = tail.content.snapshot().checkpoints.remove(0);
    assert!(checkpoint.serves.position <= tail.at() && checkpoint.begin.position >= tail.log[0].0.from);
    // The server was told.
    let position = Position::decode(tail.cursor.as_ref().unwrap()).unwrap();
    tail.until(|tail| tail.tailer.health().read().acknowledged >= position.lsn).await;
    server
        .wait_for(
            &format!("select restart_lsn >= '{}' from pg_replication_slots", position.lsn),
            std::time::Duration::from_secs(10),
        )
        .await
        .unwrap();
    tail.until(|tail| tail.vouched > 0).await;
}

macro_rules! on_all {
    ($name:ident: $($test:ident $major:ident),*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            $name(Major::$major).await;
        }
    )* };
}

on_all!(every_commit_is_a_mark:
    every_commit_is_a_mark_13 V13, every_commit_is_a_mark_14 V14, every_commit_is_a_mark_15 V15,
    every_commit_is_a_mark_16 V16, every_commit_is_a_mark_17 V17, every_commit_is_a_mark_18 V18);

/// Cut at every step by a new tailer, the log is the same as in one piece.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resuming_anywhere_loses_and_repeats_nothing() {
    let server = Options::new(Major::V18).segment_mib(1).start().await.unwrap();
    let mut whole = Tail::open(&server).await;
    whole.settles = false;
    server.sql("create table t (n int, filler text)").await.unwrap();
    server.sql("insert into t select n, repeat('x', 3000) from generate_series(1, 500) n").await.unwrap();
    server.sql("select pg_logical_emit_message(false, 'large', repeat('y', 600000))").await.unwrap();
    server.sql("insert into t values (1, 'last')").await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    whole.reach(&end).await;
    let (bytes, commits) = (joined(&whole), whole.commits.clone());
    let begin = whole.log[0].0.from;
    // From the beginning again, with a new life at each step; the slot was never told to move.
    let start = Position {
        lsn: Lsn(begin),
        proof: Proof { from: Lsn(begin), hash: *blake3::hash(&[]).as_bytes() },
        memory: Memory::lost().with_newest_xid(commits[0]),
        ..Position::decode(whole.cursor.as_ref().unwrap()).unwrap()
    };
    whole.cursor = Some(start.encode().unwrap());
    let mut tail = whole;
    let (mut again, mut seen, mut lives) = (Vec::new(), Vec::new(), 0);
    while again.len() < bytes.len() {
        tail = tail.again(settings(&server)).await.unwrap();
        lives += 1;
        loop {
            let step = tail.step().await.unwrap();
            if matches!(step.item, Item::Log { .. }) {
                break;
            }
        }
        again.extend(tail.log.iter().flat_map(|(_, bytes)| bytes.clone()));
        seen.extend(tail.commits.clone());
    }
    assert!(lives > 10, "{lives} lives");
    let parted = again.iter().zip(&bytes).position(|(a, b)| a != b);
    assert!(parted.is_none() && again.len() >= bytes.len(), "{parted:?} {} {}", again.len(), bytes.len());
    assert!(seen.starts_with(&commits), "{seen:?} {commits:?}");
}

fn joined(tail: &Tail) -> Vec<u8> {
    tail.log.iter().flat_map(|(_, bytes)| bytes.clone()).collect()
}

/// A backfill ends once the log that was there and a base backup are in the stream, and says so once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caught_up_is_said_once_and_behind_a_base_backup() {
    let server = Server::start(Major::V18).await.unwrap();
    server.sql("create table t (n int); insert into t select generate_series(1, 1000)").await.unwrap();
    let end: Lsn = server.value("select pg_current_wal_flush_lsn()").await.unwrap().parse().unwrap();
    let mut tail = Tail::open(&server).await;
    while !matches!(tail.step().await.unwrap().item, Item::CaughtUp) {}
    assert!(tail.at() >= end.0);
    assert_eq!(tail.content.snapshot().checkpoints.len(), 1);
    for _ in 0..5 {
        assert!(!matches!(tail.step().await.unwrap().item, Item::CaughtUp));
    }
    // The next life needs no base backup.
    let mut tail = tail.again(settings(&server)).await.unwrap();
    while !matches!(tail.step().await.unwrap().item, Item::CaughtUp) {}
    assert_eq!(tail.content.snapshot().checkpoints.len(), 1);
}
