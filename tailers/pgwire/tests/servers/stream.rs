use std::time::Duration;

use holdfast_harness::{Major, Options, Server, Stop};
use holdfast_pgwire::{
    Error, Event, Lifetime, Lsn, Reserve, SqlState, Started, Status, Stream, StreamReader,
};

use crate::{connect, next, position, receive, streaming};

const SEGMENT: u64 = 16 << 20;

fn all(at: Lsn) -> Status {
    Status { written: at, flushed: at, applied: at }
}

/// The bytes of `length` from `from` on, out of the server's own segment files (timeline 1).
fn on_disk(server: &Server, from: Lsn, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let at = from.0 + bytes.len() as u64;
        let segment = at / SEGMENT;
        let name = format!("{:08X}{:08X}{:08X}", 1, segment / 256, segment % 256);
        let file = std::fs::read(server.data().join("pg_wal").join(name)).unwrap();
        let part = &file[(at % SEGMENT) as usize..];
        bytes.extend_from_slice(&part[..part.len().min(length - bytes.len())]);
    }
    bytes
}

async fn streams(major: Major) {
    let server = Server::start(major).await.unwrap();
    let mut connection = connect(&server).await;
    connection.create_slot("s", Reserve::Now, Lifetime::Permanent).await.unwrap();
    // Any byte is a possible start.
    let start = position(&server).await;
    let started = connection.start_replication(Some("s"), start, Some(1)).await.unwrap();
    let (mut reader, mut writer) = streaming(started).split();

    server
        .sql("create table t as select g, repeat('x', 500) as x from generate_series(1, 4000) g")
        .await
        .unwrap();
    server.sql("insert into t select * from t").await.unwrap();
    let until = position(&server).await;
    let log = receive(&mut reader, start, until).await;
    let reached = start.plus(log.len() as u64);
    assert!(log == on_disk(&server, start, log.len()), "the bytes are not those of the server's files");

    // A status goes out while nobody waits for the reading half, and is answered.
    writer.status(all(reached), true).await.unwrap();
    let mut answered = false;
    while !answered {
        match next(&mut reader).await.unwrap() {
            Event::Keepalive { server_end, reply_requested, .. } => {
                assert!(server_end >= until);
                answered = !reply_requested;
            }
            Event::Wal { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    let restart =
        server.value("select restart_lsn from pg_replication_slots where slot_name = 's'").await.unwrap();
    assert_eq!(restart.parse::<Lsn>().unwrap(), reached);

    writer.stop().await.unwrap();
    writer.status(all(Lsn(1)), false).await.unwrap();
    let tag = loop {
        match next(&mut reader).await.unwrap() {
            Event::Ended { tag } => break tag,
            Event::EndOfTimeline { .. } => panic!("no timeline ended"),
            _ => {}
        }
    };
    assert!(tag.starts_with("START"), "{tag}");
    assert!(matches!(next(&mut reader).await, Err(Error::Closed)));
    let mut connection = Stream { reader, writer }.into_connection().unwrap();
    assert_eq!(connection.identify_system().await.unwrap().timeline, 1);
}

#[tokio::test]
async fn log_arrives_unchanged_and_statuses_move_the_slot_on_every_major() {
    for major in Major::ALL {
        streams(major).await;
    }
}

#[tokio::test]
async fn a_dropped_wait_loses_no_byte() {
    let server = Server::start(Major::V18).await.unwrap();
    let start = position(&server).await;
    let started = connect(&server).await.start_replication(None, start, None).await.unwrap();
    let (mut reader, _writer) = streaming(started).split();
    let load = server.client().await.unwrap();
    let work = tokio::spawn(async move {
        for _ in 0..5 {
            load.batch_execute(
                "create table t as select g, repeat('y', 900) from generate_series(1, 9000) g; drop table t",
            )
            .await
            .unwrap();
        }
    });
    let mut at = start;
    let mut dropped = 0;
    let mut micros = 1;
    loop {
        micros = micros * 7 % 997;
        tokio::select! {
            biased;
            event = reader.next() => match event.unwrap() {
                Event::Wal { start, bytes, .. } => {
                    assert_eq!(start, at);
                    at = at.plus(bytes.len() as u64);
                }
                Event::Keepalive { .. } => {}
                other => panic!("{other:?}"),
            },
            () = tokio::time::sleep(Duration::from_micros(micros)) => dropped += 1,
        }
        if work.is_finished() && at >= position(&server).await {
            break;
        }
    }
    work.await.unwrap();
    assert!(dropped > 10, "only {dropped} waits were dropped");
}

async fn end_of_timeline(major: Major) {
    let primary = Server::start(major).await.unwrap();
    primary.sql("create table t (a int)").await.unwrap();
    let standby = Server::standby_of(&primary, "standby").await.unwrap();
    primary.sql("insert into t select generate_series(1, 1000)").await.unwrap();
    let before = position(&primary).await;
    standby
        .wait_for(&format!("select pg_last_wal_replay_lsn() >= '{before}'"), crate::PATIENCE)
        .await
        .unwrap();

    // The timeline ends while it is being streamed.
    let from = Lsn(before.0 / SEGMENT * SEGMENT);
    let started = connect(&standby).await.start_replication(None, from, Some(1)).await.unwrap();
    let (mut reader, writer) = streaming(started).split();
    receive(&mut reader, from, before).await;
    standby.promote().await.unwrap();
    let (next_timeline, switch_at, connection) = ending(reader, writer).await;
    assert_eq!(next_timeline, 2);
    assert!(switch_at >= before);
    let mut connection = connection.unwrap();
    let history = connection.timeline_history(2).await.unwrap().unwrap();
    assert_eq!(history.file_name, "00000002.history");
    assert!(String::from_utf8_lossy(&history.content).contains(&switch_at.to_string()));

    // The timeline has ended long ago: first all of it, then nothing of it.
    let started = connection.start_replication(None, from, Some(1)).await.unwrap();
    let (mut reader, writer) = streaming(started).split();
    receive(&mut reader, from, switch_at).await;
    let (_, again, connection) = ending(reader, writer).await;
    assert_eq!(again, switch_at);
    let started = connection.unwrap().start_replication(None, switch_at, Some(1)).await.unwrap();
    let Started::EndOfTimeline { next_timeline: 2, switch_at: same, connection } = started else {
        panic!("there is nothing to stream");
    };
    assert_eq!(same, switch_at);
    // And on with the new one, on the same connection.
    let started = connection.start_replication(None, switch_at, Some(2)).await.unwrap();
    let (mut reader, _writer) = streaming(started).split();
    standby.sql("insert into t values (1)").await.unwrap();
    receive(&mut reader, switch_at, position(&standby).await).await;

    // A timeline that the server never had.
    let error = connect(&standby).await.start_replication(None, from, Some(7)).await.err().unwrap();
    assert!(error.server().is_some() && !error.is_passing(), "{error}");
}

async fn ending(
    mut reader: StreamReader,
    writer: holdfast_pgwire::StreamWriter,
) -> (u32, Lsn, Result<holdfast_pgwire::Connection, Error>) {
    loop {
        match next(&mut reader).await.unwrap() {
            Event::EndOfTimeline { next_timeline, switch_at } => {
                return (next_timeline, switch_at, Stream { reader, writer }.into_connection());
            }
            Event::Ended { tag } => panic!("ended with {tag}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_promotion_ends_the_timeline_and_the_connection_goes_on() {
    for major in Major::ALL {
        end_of_timeline(major).await;
    }
}

async fn failed_starts(major: Major) {
    let server = Server::start(
        Options::new(major).segment_mib(1).set("wal_keep_size", "0").set("max_wal_size", "2MB"),
    )
    .await
    .unwrap();
    let old = position(&server).await;
    let beyond = old.plus(1 << 30);
    let started = connect(&server).await.start_replication(None, beyond, None).await.unwrap();
    let mut reader = streaming(started).reader;
    let error = next(&mut reader).await.unwrap_err();
    assert!(matches!(&error, Error::FailedStart(_)) && !error.is_passing(), "{error}");
    assert!(matches!(next(&mut reader).await, Err(Error::Closed)));

    for _ in 0..6 {
        server.sql("select pg_switch_wal(); checkpoint").await.unwrap();
        server.sql("create table x as select generate_series(1, 30000); drop table x").await.unwrap();
    }
    server.sql("checkpoint").await.unwrap();
    let started = connect(&server).await.start_replication(None, old, None).await.unwrap();
    let error = next(&mut streaming(started).reader).await.unwrap_err();
    assert!(matches!(&error, Error::FailedStart(_)), "{error}");
    assert_eq!(error.code(), Some(SqlState::UNDEFINED_FILE));
}

#[tokio::test]
async fn a_start_beyond_the_end_or_in_a_removed_segment_fails_as_a_start() {
    for major in Major::ENDS {
        failed_starts(major).await;
    }
}

async fn shutdown(major: Major) {
    let mut server = Server::start(major).await.unwrap();
    let mut connection = connect(&server).await;
    connection.create_slot("s", Reserve::Now, Lifetime::Permanent).await.unwrap();
    let start = position(&server).await;
    let started = connection.start_replication(Some("s"), start, None).await.unwrap();
    let (mut reader, mut writer) = streaming(started).split();
    writer.status(all(start), false).await.unwrap();
    server.sql("create table t as select generate_series(1, 5000)").await.unwrap();
    server.ask_stop(Stop::Fast);

    // The server sends all it has and then asks for our position; each answer that is not the end of its
    // log makes it ask again at once.
    let mut end = start;
    let mut asked = 0;
    while asked < 1000 {
        match next(&mut reader).await.unwrap() {
            Event::Wal { start, bytes, .. } => end = start.plus(bytes.len() as u64),
            Event::Keepalive { reply_requested: true, .. } => {
                asked += 1;
                writer.status(all(start), false).await.unwrap();
            }
            Event::Keepalive { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(server.is_running());
    writer.status(all(end), false).await.unwrap();
    let tag = loop {
        match next(&mut reader).await.unwrap() {
            Event::Ended { tag } => break tag,
            Event::Wal { .. } => panic!("log after the end"),
            _ => {}
        }
    };
    assert_eq!(tag, "COPY 0");
    assert!(matches!(Stream { reader, writer }.into_connection(), Err(Error::Closed)));
    server.wait_exit(crate::PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_fast_shutdown_waits_for_our_flush_position_and_ends_the_stream() {
    for major in Major::ENDS {
        shutdown(major).await;
    }
}

#[tokio::test]
async fn a_killed_server_and_a_terminated_session_are_passing_trouble() {
    let mut server = Server::start(Major::V18).await.unwrap();
    let start = position(&server).await;
    let started = connect(&server).await.start_replication(None, start, None).await.unwrap();
    let mut reader = streaming(started).reader;
    server.sql("select pg_terminate_backend(pid) from pg_stat_replication").await.unwrap();
    let error = loop {
        if let Err(error) = next(&mut reader).await {
            break error;
        }
    };
    assert_eq!(error.code(), Some(SqlState::ADMIN_SHUTDOWN));
    assert!(error.is_passing());

    let started = connect(&server).await.start_replication(None, start, None).await.unwrap();
    let mut reader = streaming(started).reader;
    server.kill();
    let error = loop {
        if let Err(error) = next(&mut reader).await {
            break error;
        }
    };
    assert!(error.is_passing(), "{error}");
    let error = crate::open(&server.dsn()).await.err().unwrap();
    assert!(matches!(&error, Error::Connect { .. }) && error.is_passing(), "{error}");
}

#[tokio::test]
async fn a_slot_in_use_is_passing_trouble() {
    let server = Server::start(Major::V13).await.unwrap();
    let mut connection = connect(&server).await;
    connection.create_slot("s", Reserve::Now, Lifetime::Permanent).await.unwrap();
    let start = position(&server).await;
    let first = connection.start_replication(Some("s"), start, None).await.unwrap();
    let error = connect(&server).await.start_replication(Some("s"), start, None).await.err().unwrap();
    assert_eq!(error.code(), Some(SqlState::OBJECT_IN_USE));
    assert!(error.is_passing());
    drop(first);
}
