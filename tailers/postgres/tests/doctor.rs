//! C1 and `check`: what the doctor says of real servers, and what it says to change.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use common::{settings, tailer};
use holdfast_harness::{Major, Options};
use holdfast_postgres::{Ack, Finding, Verdict};

fn finding<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
    findings.iter().find(|one| one.what == what).unwrap_or_else(|| panic!("nothing on {what}: {findings:?}"))
}

async fn of_a_plain_server(major: Major) {
    let server = Options::new(major).start().await.unwrap();
    let findings = tailer(settings(&server)).examine().await;
    assert!(findings.iter().all(|one| one.verdict != Verdict::Bad), "{findings:?}");
    let unlimited = finding(&findings, "max_slot_wal_keep_size");
    assert_eq!(unlimited.verdict, Verdict::Note);
    assert!(major == Major::V13 || unlimited.sentence.contains("hours"), "{}", unlimited.sentence);
    assert_eq!(finding(&findings, "clock").verdict, Verdict::Good);
    assert!(finding(&findings, "slot").sentence.contains("does not exist yet"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_13() {
    of_a_plain_server(Major::V13).await;
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_18() {
    of_a_plain_server(Major::V18).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_mistake_has_its_sentence() {
    let server = Options::new(Major::V18)
        .set("full_page_writes", "off")
        .set("max_replication_slots", "1")
        .set("max_wal_senders", "1")
        .set("synchronous_standby_names", "holdfast")
        .set("wal_sender_timeout", "0")
        .set("idle_replication_slot_timeout", "1h")
        .checksums(false)
        .start()
        .await
        .unwrap();
    server
        .sql("set synchronous_commit = local; select pg_create_physical_replication_slot('other')")
        .await
        .unwrap();
    let findings = tailer(settings(&server)).examine().await;
    let verdict = |what: &str| finding(&findings, what).verdict;
    assert_eq!(verdict("full_page_writes"), Verdict::Bad);
    assert_eq!(verdict("max_replication_slots"), Verdict::Bad);
    assert_eq!(verdict("max_wal_senders"), Verdict::Bad);
    assert_eq!(verdict("synchronous_standby_names"), Verdict::Bad);
    assert_eq!(verdict("wal_sender_timeout"), Verdict::Note);
    assert_eq!(verdict("idle_replication_slot_timeout"), Verdict::Note);
    assert_eq!(verdict("data_checksums"), Verdict::Note);
    let mut remote = settings(&server);
    remote.ack = Ack::Remote;
    let findings = tailer(remote).examine().await;
    assert!(finding(&findings, "synchronous_standby_names").sentence.contains("commits hang"));
    server.sql("set synchronous_commit = local; create role nobody login").await.unwrap();
    let mut weak = settings(&server);
    weak.dsn = weak.dsn.replace("user=postgres", "user=nobody");
    let findings = tailer(weak).examine().await;
    assert!(finding(&findings, "replication connection").sentence.contains("REPLICATION"), "{findings:?}");
}
