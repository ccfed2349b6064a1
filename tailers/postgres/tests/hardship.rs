//! Servers that fall silent, and servers that let us in only half.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::time::{Duration, Instant};

use common::{Tail, settings, tailer};
use holdfast_core::Act;
use holdfast_harness::{Major, Options, Server};
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

/// Passing trouble of the SQL connection is waited out, where only SQL tells the state of a slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_clients_do_not_end_a_source() {
    let server = Options::new(Major::V13)
        .set("max_connections", "3")
        .set("superuser_reserved_connections", "0")
        .start()
        .await
        .unwrap();
    let mut taken = Vec::new();
    while let Ok(client) = server.client().await {
        taken.push(client);
    }
    let full = Tail::resume(tailer(settings(&server)), None, MemoryContent::default()).await;
    let cause = full.err().unwrap();
    assert!(cause.is_passing() && cause.chain().contains("SQL only"), "{}", cause.chain());
    drop(taken);
}

/// SQL that is refused at first is asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_is_looked_at_once_sql_is_let_in() {
    let (server, tail) = without_sql(Major::V18).await;
    let mut tail = tail.unwrap();
    tail.backed_up(1).await;
    assert_eq!(tail.tailer.health().read().slot_status, None);
    server.write("pg_hba.conf", "local replication all trust\nlocal all all trust\n").unwrap();
    let app = server.client_of(&server.dsn().replace("user=postgres", "user=app")).await.unwrap();
    app.simple_query("select pg_reload_conf()").await.unwrap();
    let seen = async {
        while tail.tailer.health().read().slot_status.is_none() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), seen).await.expect("nobody looks at the slot");
}
