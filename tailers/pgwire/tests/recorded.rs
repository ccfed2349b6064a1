//! What servers of every major really said (see `examples/record.rs`), read again without them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{fs, path::Path};

use holdfast_core::Clock;
use holdfast_pgwire::{
    BackupEvent, Config, Connection, Error, Event, Lifetime, Lsn, Reserve, SqlState, Surroundings,
    fuzz_decode, replay_backup, replay_stream,
};
use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
};

const MAJORS: [u32; 6] = [13, 14, 15, 16, 17, 18];

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded")
}
fn recorded(major: u32, what: &str) -> Vec<u8> {
    fs::read(folder().join(format!("{major}-{what}.bin"))).unwrap()
}

#[test]
fn a_timeline_ends_where_the_server_says() {
    for major in MAJORS {
        let (events, end) = replay_stream(&recorded(major, "timeline"));
        end.unwrap();
        let (last, rest) = events.split_last().unwrap();
        let Event::EndOfTimeline { next_timeline: 2, switch_at } = last else { panic!("{major}: {last:?}") };
        let mut at: Option<Lsn> = None;
        for event in rest {
            if let Event::Wal { start, bytes, server_end, .. } = event {
                assert!(at.is_none_or(|at| at == *start), "{major}: a gap at {start}");
                let end = start.plus(bytes.len() as u64);
                assert!(*server_end >= end);
                at = Some(end);
            }
        }
        // All of the timeline was sent, perhaps more.
        assert!(at.unwrap() >= *switch_at, "{major}");
    }
}

#[test]
fn a_shutdown_ends_with_a_tag_and_nothing_more() {
    for major in MAJORS {
        let (events, end) = replay_stream(&recorded(major, "shutdown"));
        end.unwrap();
        assert_eq!(events.last().unwrap(), &Event::Ended { tag: "COPY 0".into() }, "{major}");
        let asks = |e: &Event| matches!(e, Event::Keepalive { reply_requested: true, .. });
        assert!(events.iter().any(asks), "{major}");
        // The checkpoint of the shutdown comes before.
        assert!(events.iter().any(|e| matches!(e, Event::Wal { .. })), "{major}");
    }
}

#[test]
fn refused_starts_are_failed_starts() {
    for major in MAJORS {
        let (events, end) = replay_stream(&recorded(major, "beyond"));
        assert_eq!(events, []);
        assert!(matches!(end, Err(Error::FailedStart(_))), "{major}");
        let (events, end) = replay_stream(&recorded(major, "removed"));
        assert_eq!(events, []);
        let error = end.unwrap_err();
        assert!(matches!(&error, Error::FailedStart(_)), "{major}");
        assert_eq!(error.code(), Some(SqlState::UNDEFINED_FILE));
    }
}

#[test]
fn base_backups_have_two_shapes_and_one_meaning() {
    for major in MAJORS {
        for (what, suspect) in [("backup", false), ("damaged", true)] {
            let (events, end) = replay_backup(&recorded(major, what), major);
            end.unwrap();
            let Some(BackupEvent::Start { start, timeline: 1, tablespaces }) = events.first() else {
                panic!("{major}: {:?}", events.first());
            };
            // The tablespace first, the main folder last.
            let oids: Vec<_> = tablespaces.iter().map(|t| t.oid).collect();
            assert!(matches!(oids[..], [Some(_), None]), "{major}: {oids:?}");
            assert!(tablespaces[0].location.as_ref().unwrap().ends_with("/space"));
            let archives: Vec<_> = events
                .iter()
                .filter_map(|e| if let BackupEvent::Archive { oid, .. } = e { Some(*oid) } else { None })
                .collect();
            assert_eq!(archives, oids, "{major}");
            let main =
                events.iter().position(|e| matches!(e, BackupEvent::Archive { oid: None, .. })).unwrap();
            let header = events[main..].iter().find_map(|e| match e {
                BackupEvent::Data(bytes) => Some(bytes),
                _ => None,
            });
            assert!(header.unwrap().starts_with(b"backup_label\0"), "{major}");
            assert_eq!(events.iter().filter(|e| matches!(e, BackupEvent::ManifestBegin)).count(), 1);
            let manifest: Vec<u8> = events
                .iter()
                .filter_map(
                    |e| if let BackupEvent::Manifest(bytes) = e { Some(bytes.to_vec()) } else { None },
                )
                .flatten()
                .collect();
            assert!(manifest.starts_with(b"{ \"PostgreSQL-Backup-Manifest-Version\""), "{major}");
            let progress = events.iter().any(|e| matches!(e, BackupEvent::Progress(_)));
            assert_eq!(progress, major >= 15);
            let Some(BackupEvent::End { end, timeline: 1, damage }) = events.last() else {
                panic!("{major}: {:?}", events.last());
            };
            assert!(end > start);
            assert_eq!(damage.as_ref().map(|d| d.code), suspect.then_some(SqlState::DATA_CORRUPTED));
        }
    }
}

/// Plays the server's part of recorded turns, byte by byte, to whoever says as many bytes as the client did.
async fn play(listener: UnixListener, turns: Vec<(u8, Vec<u8>)>) {
    let (mut socket, _) = listener.accept().await.unwrap();
    for (who, bytes) in turns {
        if who == b'C' {
            let mut heard = vec![0; bytes.len()];
            socket.read_exact(&mut heard).await.unwrap();
            assert_eq!(heard, bytes, "the client speaks otherwise than when it was recorded");
        } else {
            for byte in bytes {
                socket.write_all(&[byte]).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn sign_in_and_commands_go_as_recorded() {
    for major in MAJORS {
        let raw = recorded(major, "commands");
        let mut rest = &raw[..];
        let mut turns = Vec::new();
        while let Some((head, tail)) = rest.split_at_checked(5) {
            let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
            turns.push((head[0], tail[..length].to_vec()));
            rest = &tail[length..];
        }
        let home = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(home.path().join(".s.PGSQL.5432")).unwrap();
        let server = tokio::spawn(play(listener, turns));
        let dsn = format!("host={} user=postgres", home.path().display());
        let config = Config::parse_in(&dsn, &Surroundings::default()).unwrap();

        let mut connection = Connection::open(&config, &Clock::system()).await.unwrap();
        assert_eq!(connection.server_major(), major);
        assert_eq!(connection.parameter("in_hot_standby"), (major >= 14).then_some("off"));
        let identity = connection.identify_system().await.unwrap();
        assert_eq!(identity.timeline, 1);
        assert!(identity.system > 0 && identity.position > Lsn::ZERO);
        assert_eq!(connection.show("wal_segment_size").await.unwrap(), "16MB");
        let error = connection.show("no_such_setting").await.unwrap_err();
        assert_eq!(error.code(), Some(SqlState::UNDEFINED_OBJECT));
        assert_eq!(connection.timeline_history(1).await.unwrap(), None);
        connection.create_slot("s", Reserve::Now, Lifetime::Permanent).await.unwrap();
        if major >= 15 {
            let slot = connection.read_slot("s").await.unwrap().unwrap();
            assert!(slot.restart.unwrap() <= identity.position);
            assert_eq!(connection.read_slot("absent").await.unwrap(), None);
        }
        connection.drop_slot("s", false).await.unwrap();
        server.await.unwrap();
    }
}

/// The recorded conversations and the corpus of the fuzz target.
fn seeds() -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/fuzz/corpus/pgwire");
    let mut files: Vec<_> = [folder(), corpus]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()))
        .collect();
    files.sort();
    assert!(files.len() > 7 * MAJORS.len());
    files.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn a_conversation_may_be_cut_anywhere() {
    for seed in seeds() {
        for length in (0..seed.len()).step_by(1 + seed.len() / 300) {
            fuzz_decode(&seed[..length]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn damaged_conversations_are_errors_at_worst(
        seed in prop::sample::select(seeds()),
        harm in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = seed;
        for (at, byte) in harm {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        fuzz_decode(&bytes);
    }

    #[test]
    fn any_bytes_are_errors_at_worst(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz_decode(&bytes);
    }
}
