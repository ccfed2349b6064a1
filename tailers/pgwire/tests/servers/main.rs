//! The client against real servers of every major.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod backup;
mod commands;
mod hosts;
mod sign_in;
mod stream;

use std::time::Duration;

use holdfast_core::Clock;
use holdfast_harness::Server;
use holdfast_pgwire::{Config, Connection, Error, Event, Lsn, Started, Stream, StreamReader, Surroundings};

/// Nothing in these tests may take longer than this.
const PATIENCE: Duration = Duration::from_secs(60);

/// As the strings say, without this machine's own files and variables.
fn config(dsn: &str) -> Config {
    Config::parse_in(dsn, &Surroundings::default()).unwrap()
}

async fn open(dsn: &str) -> Result<Connection, Error> {
    tokio::time::timeout(PATIENCE, Connection::open(&config(dsn), &Clock::system())).await.unwrap()
}

async fn connect(server: &Server) -> Connection {
    open(&server.dsn()).await.unwrap()
}

fn streaming(started: Started) -> Stream {
    match started {
        Started::Streaming(stream) => stream,
        Started::EndOfTimeline { .. } => panic!("the timeline ended before it began"),
    }
}

async fn next(reader: &mut StreamReader) -> Result<Event, Error> {
    tokio::time::timeout(PATIENCE, reader.next()).await.expect("no event for a minute")
}

/// Receives until the log reaches `until`; the bytes must follow one another without a gap.
async fn receive(reader: &mut StreamReader, from: Lsn, until: Lsn) -> Vec<u8> {
    let mut log = Vec::new();
    while from.plus(log.len() as u64) < until {
        if let Event::Wal { start, bytes, server_end, .. } = next(reader).await.unwrap() {
            assert_eq!(start, from.plus(log.len() as u64));
            log.extend_from_slice(&bytes);
            assert!(server_end >= from.plus(log.len() as u64));
        }
    }
    log
}

async fn position(server: &Server) -> Lsn {
    server.lsn().await.unwrap().parse().unwrap()
}
