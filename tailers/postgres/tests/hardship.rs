//! Servers that fall silent, and servers that let us in only half.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::time::{Duration, Instant};

use common::{Tail, settings, tailer};
use holdfast_core::Act;
use holdfast_harness::{Major, Server};
use holdfast_testkit::MemoryContent;

/// A server that is there and answers nobody: noticed, and gone on with once it answers again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_is_noticed() {
    let server = Server::start(Major::V18).await.unwrap();
    server.sql("create table t (n int)").await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    server.pause();
    let from = Instant::now();
    let cause = loop {
        match tail.step().await {
            Ok(_) => {}
            Err(cause) => break cause,
        }
    };
    server.resume();
    assert!(cause.is_passing() && cause.to_string().contains("answers no pings"), "{cause}");
    assert!(from.elapsed() < Duration::from_secs(25), "{:?}", from.elapsed());
    let mut tail = tail.again(settings(&server)).await.unwrap();
    server.sql("insert into t values (1)").await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    tail.reach(&end).await;
    assert_eq!(tail.gaps, []);
}

/// Only replication connections are let in, as a careful pg_hba.conf does.
async fn without_sql(major: Major) -> (Server, holdfast_core::Result<Tail>) {
    let server = Server::start(major).await.unwrap();
    server.sql("create role app superuser login; create table t (n int)").await.unwrap();
    server.write("pg_hba.conf", "local replication all trust\nlocal all app trust\n").unwrap();
    server.sql("select pg_reload_conf()").await.unwrap();
    let tail = Tail::resume(tailer(settings(&server)), None, MemoryContent::default()).await;
    (server, tail)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replication_alone_is_enough_from_15_on() {
    let (server, tail) = without_sql(Major::V15).await;
    let mut tail = tail.unwrap();
    tail.backed_up(1).await;
    let app = server.client_of(&server.dsn().replace("user=postgres", "user=app")).await.unwrap();
    let row =
        app.query_one("insert into t values (1) returning pg_current_xact_id()::text", &[]).await.unwrap();
    let xid: u64 = row.get::<_, String>(0).parse().unwrap();
    tail.until(|tail| tail.commits.contains(&xid)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_15_the_error_says_what_is_missing() {
    let (_server, tail) = without_sql(Major::V13).await;
    let cause = tail.err().unwrap();
    assert_eq!(cause.act(), Act::Configure);
    assert!(cause.to_string().contains("pg_hba.conf"), "{cause}");
}
