//! Timelines, promotions, clones, foreign and rewound servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::time::Duration;

use common::{Tail, settings, tailer};
use holdfast_core::{Act, Branch};
use holdfast_harness::{Major, Options, Server, Stop};
use holdfast_postgres::{Settings, StandbyPolicy, records::NoteBody, wal::History};
use holdfast_testkit::MemoryContent;

macro_rules! on {
    ($name:ident: $($test:ident $major:ident),*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            $name(Major::$major).await;
        }
    )* };
}

fn histories(tail: &Tail) -> Vec<History> {
    let notes = tail.content.snapshot().notes;
    notes
        .iter()
        .filter_map(|note| NoteBody::decode(&note.body).unwrap().history())
        .map(Result::unwrap)
        .collect()
}

async fn caught_up(standby: &Server, primary: &Server) {
    let lsn = primary.value("select pg_current_wal_flush_lsn()").await.unwrap();
    standby
        .wait_for(&format!("select pg_last_wal_replay_lsn() >= '{lsn}'"), Duration::from_secs(30))
        .await
        .unwrap();
}

/// A1, A2, A3, A8, A10: the primary is gone, the tailer lags, nobody made a slot on the standby, and two promotions
/// lie between: the old timeline is finished first, and all histories are there.
async fn the_old_timeline_is_finished_first(major: Major) {
    let mut primary = Options::new(major).set("wal_keep_size", "1GB").start().await.unwrap();
    let mut second = Server::standby_of(&primary, "second").await.unwrap();
    let third = Server::standby_of(&second, "third").await.unwrap();
    let mut tail = Tail::open(&primary).await;
    primary.sql("create table t (n int)").await.unwrap();
    tail.backed_up(1).await;
    let cursor_at = tail.at();
    primary.sql("insert into t select generate_series(1, 100000)").await.unwrap();
    primary.sql("select pg_switch_wal(); insert into t values (1)").await.unwrap();
    caught_up(&second, &primary).await;
    primary.kill();
    second.promote().await.unwrap();
    second.sql("insert into t values (2)").await.unwrap();
    caught_up(&third, &second).await;
    second.stop(Stop::Fast).await.unwrap();
    third.promote().await.unwrap();
    let xid = third.value("insert into t values (4) returning pg_current_xact_id()::text").await.unwrap();

    let mut tail = tail.again(settings(&third)).await.unwrap();
    let xid: u64 = xid.parse().unwrap();
    tail.until(|tail| tail.commits.contains(&xid)).await;
    assert_eq!(tail.gaps, []);
    let first = tail.log.first().unwrap().0;
    assert_eq!((first.branch, first.from), (Branch(1), cursor_at));
    assert_eq!(tail.branch(), Branch(3));
    let histories = histories(&tail);
    let line = histories.iter().find(|one| one.timeline == 3).unwrap();
    assert!(histories.iter().any(|one| one.timeline == 2));
    for branch in 1..=2 {
        let last = tail.log.iter().rfind(|(span, _)| span.branch == Branch(branch)).unwrap().0;
        let next = tail.log.iter().find(|(span, _)| span.branch == Branch(branch + 1)).unwrap().0;
        let end = line.end_of(branch as u32).unwrap().unwrap();
        assert_eq!((last.to, next.from), (end.0, end.0), "branch {branch}");
    }
}

on!(the_old_timeline_is_finished_first: failover_13 V13, failover_14 V14, failover_15 V15, failover_16 V16, failover_17 V17, failover_18 V18);

/// The server itself is promoted while it is followed: one follower goes on, across the switch.
async fn a_switch_while_following(major: Major) {
    let mut primary = Server::start(major).await.unwrap();
    let standby = Server::standby_of(&primary, "standby").await.unwrap();
    let mut tail = Tail::open(&standby).await;
    primary.sql("create table t (n int); insert into t values (1)").await.unwrap();
    caught_up(&standby, &primary).await;
    tail.backed_up(1).await;
    primary.kill();
    standby.promote().await.unwrap();
    let xid = standby.value("insert into t values (2) returning pg_current_xact_id()::text").await.unwrap();
    let xid: u64 = xid.parse().unwrap();
    while !tail.commits.contains(&xid) {
        if let Err(cause) = tail.step().await {
            assert!(cause.is_passing(), "{}", cause.chain());
            tail = tail.again(settings(&standby)).await.unwrap();
        }
    }
    assert_eq!(tail.branch(), Branch(2));
    assert!(histories(&tail).iter().any(|one| one.timeline == 2));

    // Somebody who begins just now begins where the segment does, on the old timeline if need be.
    let mut fresh = settings(&standby);
    fresh.slot = Some("fresh".to_owned());
    let mut fresh = Tail::resume(tailer(fresh), None, MemoryContent::default()).await.unwrap();
    fresh.backed_up(1).await;
    assert_eq!(fresh.log[0].0.from % (16 << 20), 0);
    assert_eq!(fresh.branch(), Branch(2));
}

on!(a_switch_while_following: switch_13 V13, switch_14 V14, switch_15 V15, switch_16 V16, switch_17 V17, switch_18 V18);

async fn refused(tail: Tail, settings: Settings) -> String {
    match tail.again(settings).await {
        Ok(_) => panic!("the server was taken on"),
        Err(cause) => {
            assert_eq!(cause.act(), Act::LostLineage, "{}", cause.chain());
            cause.chain()
        }
    }
}

/// G5: a foreign cluster, a clone that went its own way, and a server set back to an earlier state.
async fn others_are_recognised(major: Major) {
    let server = Server::start(major).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    server.sql("create table t (n int); checkpoint").await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    let early = folder.path().join("early");
    server.clone_folder(&early).await.unwrap();
    server.sql("insert into t select generate_series(1, 1000)").await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    tail.reach(&end).await;

    // Set back: less log than the stream holds.
    let mut rewound = Server::adopt(major, &early).await.unwrap();
    let why = refused(tail, settings(&rewound)).await;
    assert!(why.contains("set back"), "{why}");

    // A clone that wrote more than the original, with other contents.
    rewound.sql("insert into t select -generate_series(1, 3000); insert into t values (7)").await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.reach(&end).await;
    let why = refused(tail, settings(&rewound)).await;
    assert!(why.contains("clone"), "{why}");
    rewound.kill();

    // Another cluster.
    let foreign = Server::start(major).await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.reach(&end).await;
    let why = refused(tail, settings(&foreign)).await;
    let (own, other) =
        (server.system_identifier().await.unwrap(), foreign.system_identifier().await.unwrap());
    assert!(why.contains(&own.to_string()) && why.contains(&other.to_string()), "{why}");

    // The true one still goes on.
    let mut tail = Tail::open(&server).await;
    tail.reach(&end).await;
    let mut tail = tail.again(settings(&server)).await.unwrap();
    server.sql("insert into t values (8)").await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    tail.reach(&end).await;
}

on!(others_are_recognised: others_13 V13, others_18 V18);

/// A14: by policy.
async fn a_standby_is_refused_when_told_so(major: Major) {
    let primary = Server::start(major).await.unwrap();
    let standby = Server::standby_of(&primary, "standby").await.unwrap();
    let mut strict = settings(&standby);
    strict.standby = StandbyPolicy::Refuse;
    let cause = Tail::resume(tailer(strict), None, MemoryContent::default()).await.err().unwrap();
    assert!(cause.is_passing() && cause.to_string().contains("standby"), "{cause}");
}

on!(a_standby_is_refused_when_told_so: refused_13 V13, refused_18 V18);

/// Two hosts, and the first one that answers is the wrong one: a stuck standby, then a server set back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_that_holds_the_stream_is_followed() {
    let server = Server::start(Major::V18).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    server.sql("create table t (n int); checkpoint").await.unwrap();
    let (stuck, early) = (folder.path().join("stuck"), folder.path().join("early"));
    server.clone_folder(&stuck).await.unwrap();
    server.clone_folder(&early).await.unwrap();
    std::fs::write(stuck.join("standby.signal"), "").unwrap();
    let mut tail = Tail::open(&server).await;
    server.sql("insert into t select generate_series(1, 1000)").await.unwrap();
    tail.backed_up(1).await;
    for wrong in [stuck, early] {
        let wrong = Server::adopt(Major::V18, &wrong).await.unwrap();
        let mut both = settings(&server);
        both.dsn = format!(
            "host={},{} port={},{} user=postgres dbname=postgres",
            wrong.socket_folder().display(),
            server.socket_folder().display(),
            wrong.port(),
            server.port()
        );
        tail = tail.again(both).await.unwrap();
        server.sql("insert into t values (1)").await.unwrap();
        let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
        tail.reach(&end).await;
        assert_eq!(tail.gaps, []);
    }
}

/// What its primary holds beyond it nobody knows: no moment is promised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_vouched_for_by_nobody() {
    let mut primary = Server::start(Major::V18).await.unwrap();
    let standby = Server::standby_of(&primary, "standby").await.unwrap();
    let mut tail = Tail::open(&standby).await;
    tail.backed_up(1).await;
    primary.kill();
    let _ = tail.during(tokio::time::sleep(Duration::from_secs(4))).await;
    assert_eq!(tail.vouched, 0);
}
