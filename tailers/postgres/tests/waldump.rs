//! Commits found while following against those that Postgres's own pg_waldump finds in the same log.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::process::Command;

use common::Tail;
use holdfast_core::{Item, MarkKind};
use holdfast_harness::Options;
use holdfast_postgres::wal::Lsn;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_commits_as_pg_waldump() {
    let server = Options::debian()
        .segment_mib(1)
        .set("max_prepared_transactions", "5")
        .set("wal_level", "logical")
        .set("track_commit_timestamp", "on")
        .set("wal_keep_size", "1GB")
        .start()
        .await
        .unwrap();
    let mut tail = Tail::open(&server).await;
    server.sql("create table t (n int, filler text); create table gone ()").await.unwrap();
    server.sql("drop table gone").await.unwrap();
    server.sql("begin; insert into t values (1); prepare transaction 'one'").await.unwrap();
    let mut nested = "begin;".to_owned();
    for n in 0..200 {
        nested += &format!("savepoint s{n}; insert into t values ({n});");
    }
    server.sql(&format!("{nested} prepare transaction 'nested'")).await.unwrap();
    server.sql("commit prepared 'nested'").await.unwrap();
    for n in 0..150 {
        server.sql(&format!("insert into t values ({n}, repeat('x', {}))", n * 97)).await.unwrap();
        if n % 25 == 0 {
            server.sql("select pg_switch_wal()").await.unwrap();
        }
    }
    server.sql("commit prepared 'one'").await.unwrap();
    server.sql("begin; insert into t values (2); rollback").await.unwrap();
    server.sql("truncate t").await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    let mut marks = Vec::new();
    let until: Lsn = end.parse().unwrap();
    while tail.at() < until.0 {
        if let Item::Log { marks: new, .. } = tail.step().await.unwrap().item {
            marks.extend(new);
        }
    }
    let ours: Vec<(u64, u64)> = marks
        .iter()
        .filter(|mark| mark.place.position <= until.0)
        .filter_map(|mark| match mark.kind {
            MarkKind::Commit { id } => Some((mark.begin, id)),
            _ => None,
        })
        .collect();

    let begin = Lsn(tail.log[0].0.from).to_string();
    let dump = Command::new(server.bin().join("pg_waldump"))
        .args(["-p", &server.data().join("pg_wal").display().to_string(), "-r", "Transaction"])
        .args(["-s", &begin, "-e", &end])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&dump.stdout).into_owned();
    let theirs: Vec<(u64, u64)> = text.lines().filter_map(commit).collect();
    assert!(theirs.len() > 150, "{text}{}", String::from_utf8_lossy(&dump.stderr));
    assert_eq!(ours, theirs);
}

/// Begin and transaction id of a commit's line.
fn commit(line: &str) -> Option<(u64, u64)> {
    let after = |key: &str, end: char| line.split_once(key)?.1.split(end).next().map(str::trim);
    let lsn: Lsn = after("lsn:", ',')?.parse().ok()?;
    let description = line.split_once("desc: ")?.1;
    let xid = if let Some(prepared) = description.strip_prefix("COMMIT_PREPARED ") {
        prepared.split(':').next()?.parse().ok()?
    } else if description.starts_with("COMMIT ") {
        after("tx:", ',')?.parse().ok()?
    } else {
        return None;
    };
    Some((lsn.0, xid))
}
