use std::{
    collections::BTreeMap,
    io::{Read, Seek, SeekFrom, Write},
};

use holdfast_harness::{Major, Options, Server};
use holdfast_pgwire::{BackupEvent, BackupOptions, BackupStream, Lsn, ServerError, SqlState};

use crate::{PATIENCE, connect, position};

/// All that a base backup sent.
#[derive(Default)]
struct Sent {
    start: Lsn,
    end: Lsn,
    /// By the tablespace's number, 0 for the main folder.
    archives: BTreeMap<u32, Vec<u8>>,
    order: Vec<u32>,
    manifest: Vec<u8>,
    progress: u64,
    locations: BTreeMap<u32, String>,
    damage: Option<ServerError>,
}

async fn take(stream: &mut BackupStream) -> Sent {
    let mut sent = Sent::default();
    let mut current = 0;
    loop {
        match tokio::time::timeout(PATIENCE, stream.next()).await.unwrap().unwrap() {
            BackupEvent::Start { start, timeline, tablespaces } => {
                assert_eq!(timeline, 1);
                assert!(tablespaces.iter().any(|t| t.oid.is_none()));
                assert!(tablespaces.iter().all(|t| t.kib.is_some()), "progress was asked for");
                sent.start = start;
            }
            BackupEvent::Archive { oid, path } => {
                current = oid.unwrap_or(0);
                sent.order.push(current);
                sent.archives.insert(current, Vec::new());
                if let Some(path) = path {
                    sent.locations.insert(current, path);
                }
            }
            BackupEvent::Data(bytes) => sent.archives.get_mut(&current).unwrap().extend_from_slice(&bytes),
            BackupEvent::ManifestBegin => assert!(sent.manifest.is_empty()),
            BackupEvent::Manifest(bytes) => sent.manifest.extend_from_slice(&bytes),
            BackupEvent::Progress(bytes) => sent.progress = bytes,
            BackupEvent::End { end, timeline, damage } => {
                assert_eq!(timeline, 1);
                sent.end = end;
                sent.damage = damage;
                return sent;
            }
        }
    }
}

/// Names of an archive's members in order.
fn names(archive: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(archive);
    archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().display().to_string()).collect()
}

/// Where the last member ends, filled up to a block.
fn members_end(archive: &[u8]) -> u64 {
    let mut archive = tar::Archive::new(archive);
    let ends = archive.entries().unwrap().map(|e| {
        let entry = e.unwrap();
        entry.raw_file_position() + entry.size().next_multiple_of(512)
    });
    ends.last().unwrap()
}

fn wanted() -> BackupOptions {
    BackupOptions { label: "it's ours".into(), progress: true, ..BackupOptions::default() }
}

async fn whole(major: Major) {
    let server = Server::start(major).await.unwrap();
    let folder = server.new_folder("space").unwrap();
    server.sql(&format!("create tablespace space location '{}'", folder.display())).await.unwrap();
    server.sql("create table t tablespace space as select generate_series(1, 20000)").await.unwrap();
    let oid: u32 =
        server.value("select oid from pg_tablespace where spcname = 'space'").await.unwrap().parse().unwrap();

    let mut stream = connect(&server).await.base_backup(&wanted()).await.unwrap();
    let sent = take(&mut stream).await;
    assert!(sent.start < sent.end && sent.end <= position(&server).await);
    assert_eq!(sent.damage, None);
    assert_eq!(sent.order.len(), 2);
    assert_eq!(sent.locations.get(&oid).unwrap(), folder.to_str().unwrap());

    let main = names(&sent.archives[&0]);
    assert_eq!(main.first().unwrap(), "backup_label");
    assert_eq!(main.get(1).unwrap(), "tablespace_map");
    assert_eq!(main.last().unwrap(), "global/pg_control");
    assert!(names(&sent.archives[&oid]).iter().any(|name| name.starts_with("PG_")));
    let mut label = String::new();
    let mut archive = tar::Archive::new(&sent.archives[&0][..]);
    archive.entries().unwrap().next().unwrap().unwrap().read_to_string(&mut label).unwrap();
    assert!(label.contains("LABEL: it's ours"), "{label}");
    for archive in sent.archives.values() {
        // From 15 on the two empty blocks at the end are sent.
        let rest = archive.len() as u64 - members_end(archive);
        assert_eq!(rest, if major >= Major::V15 { 1024 } else { 0 });
    }
    let manifest = String::from_utf8(sent.manifest).unwrap();
    assert!(manifest.starts_with('{') && manifest.trim_end().ends_with('}'));
    assert!(manifest.contains("\"Manifest-Checksum\"") && manifest.contains("\"CRC32C\""));
    if major >= Major::V15 {
        let bytes: usize = sent.archives.values().map(Vec::len).sum();
        assert!(sent.progress > 0 && sent.progress <= bytes as u64);
    }

    // The connection goes on; a leaner backup on it.
    let connection = stream.into_connection().unwrap();
    let lean = BackupOptions { manifest: None, tablespace_map: false, ..wanted() };
    let mut stream = connection.base_backup(&lean).await.unwrap();
    let sent = take(&mut stream).await;
    assert!(sent.manifest.is_empty());
    let names = names(&sent.archives[&0]);
    let link = format!("pg_tblspc/{oid}");
    let sent_link = names.iter().any(|name| name.trim_end_matches('/') == link);
    assert!(sent_link, "{major:?}: no {link} in {names:?}");
    stream.into_connection().unwrap().identify_system().await.unwrap();
}

#[tokio::test]
async fn every_major_sends_a_whole_base_backup() {
    for major in Major::ALL {
        whole(major).await;
    }
}

async fn damaged(major: Major) {
    let mut server = Server::start(Options::new(major)).await.unwrap();
    server.sql("create table t as select generate_series(1, 50000); checkpoint").await.unwrap();
    let file = server.value("select pg_relation_filepath('t')").await.unwrap();
    server.stop(holdfast_harness::Stop::Fast).await.unwrap();
    let mut raw = std::fs::OpenOptions::new().read(true).write(true).open(server.data().join(&file)).unwrap();
    raw.seek(SeekFrom::Start(3 * 8192 + 4000)).unwrap();
    raw.write_all(b"damage").unwrap();
    drop(raw);
    server.start_again().await.unwrap();

    let mut stream = connect(&server).await.base_backup(&wanted()).await.unwrap();
    let sent = take(&mut stream).await;
    assert_eq!(sent.damage.unwrap().code, SqlState::DATA_CORRUPTED);
    assert!(sent.end > sent.start && !sent.manifest.is_empty());
    let names = names(&sent.archives[&0]);
    assert!(names.contains(&file) && names.last().unwrap() == "global/pg_control", "all was sent");

    let blind = BackupOptions { verify_checksums: false, ..wanted() };
    let mut stream = stream.into_connection().unwrap().base_backup(&blind).await.unwrap();
    assert_eq!(take(&mut stream).await.damage, None);
}

#[tokio::test]
async fn failed_page_checksums_are_told_after_all_was_sent() {
    for major in [Major::V13, Major::V15, Major::V18] {
        damaged(major).await;
    }
}

#[tokio::test]
async fn a_dropped_backup_ends_at_the_server() {
    let server = Server::start(Major::V18).await.unwrap();
    let slow = BackupOptions { max_rate: Some(32), progress: false, ..BackupOptions::default() };
    let mut stream = connect(&server).await.base_backup(&slow).await.unwrap();
    while !matches!(stream.next().await.unwrap(), BackupEvent::Data(_)) {}
    drop(stream);
    server.wait_for("select count(*) = 0 from pg_stat_replication", PATIENCE).await.unwrap();
}
