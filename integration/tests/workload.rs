//! The workload's own promise: it finds what is lost, and nothing that is not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::time::Duration;

use holdfast_harness::{Major, Server};
use holdfast_integration::{Workload, digest, judge};
use tokio::time::Instant;

#[tokio::test]
async fn what_is_lost_is_found() {
    let mut server = Server::start(Major::V18).await.unwrap();
    let workload = Workload::start(&server, 3, 0).await.unwrap();
    workload.until(300, Duration::from_secs(60)).await.unwrap();
    server.kill();
    server.start_again().await.unwrap();
    let before = workload.journal().acknowledged();
    workload.until(before + 300, Duration::from_secs(60)).await.unwrap();
    workload.pause().await;
    let (count, quiet) = digest(&server).await.unwrap();
    assert_eq!(digest(&server).await.unwrap(), (count, quiet.clone()));
    let journal = workload.stop().await;
    let end = Instant::now();

    let verdict = judge(&server, &journal, end).await.unwrap();
    assert_eq!((verdict.acknowledged, verdict.found, verdict.lost.len()), (count, count, 0));

    let last_two =
        "delete from entry where client = 1 and seq > (select max(seq) - 2 from entry where client = 1)";
    let counted = "update balance set (entries, total) = (select count(*), sum(amount) from entry where client = 1) \
                   where client = 1";
    server.sql(&format!("{last_two}; {counted}")).await.unwrap();
    let verdict = judge(&server, &journal, end).await.unwrap();
    assert_eq!((verdict.found, verdict.lost.len()), (count - 2, 2));
    assert!(verdict.oldest_lost() > Duration::ZERO);
    assert_ne!(digest(&server).await.unwrap().1, quiet);

    server.sql("update balance set total = total + 1 where client = 0").await.unwrap();
    assert!(judge(&server, &journal, end).await.unwrap_err().to_string().contains("half a transaction"));
    server.sql("delete from entry where client = 0 and seq = 2").await.unwrap();
    assert!(judge(&server, &journal, end).await.unwrap_err().to_string().contains("a hole"));
}
