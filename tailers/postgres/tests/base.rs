//! Base backups of real servers: whole, checked, incremental by place, from standbys, of damaged clusters.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::{collections::BTreeMap, time::Duration};

use common::{Tail, settings, tailer};
use holdfast_core::{Checkpoint, Row};
use holdfast_harness::{Major, Options, Server, Stop};
use holdfast_postgres::records::{Base, Entry, EntryKind, MANIFEST, PIECE, PieceKey};
use holdfast_testkit::MemoryContent;

/// Path (as the manifest names it) to contents, of all files of a checkpoint.
fn files(content: &MemoryContent, checkpoint: &Checkpoint) -> BTreeMap<String, Vec<u8>> {
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut stated: BTreeMap<String, u64> = BTreeMap::new();
    for Row { key, value, held } in content.table(&checkpoint.layers) {
        let key = PieceKey::decode(&key).unwrap();
        let path = match key.tablespace {
            0 => key.path,
            oid => format!("pg_tblspc/{oid}/{}", key.path),
        };
        if key.piece == 0 {
            match Entry::decode(&value).unwrap().kind {
                EntryKind::File { size } => stated.insert(path.clone(), size),
                _ => continue,
            };
        }
        let file = files.entry(path).or_default();
        assert_eq!(file.len() as u64, u64::from(key.piece) * PIECE);
        for held in held {
            file.extend_from_slice(&content.piece(&held).unwrap());
        }
    }
    for (path, size) in stated {
        assert_eq!(files[&path].len() as u64, size, "{path}");
    }
    files
}

/// All that the server's manifest names, with its checksum.
fn check_manifest(files: &BTreeMap<String, Vec<u8>>) -> usize {
    let manifest: serde_json::Value = serde_json::from_slice(&files[MANIFEST]).unwrap();
    let named = manifest["Files"].as_array().unwrap();
    for file in named {
        let path = file["Path"].as_str().unwrap();
        let bytes = &files[path];
        assert_eq!(bytes.len() as u64, file["Size"].as_u64().unwrap(), "{path}");
        let sum = hex::encode(crc32c::crc32c(bytes).to_le_bytes());
        assert_eq!(sum, file["Checksum"].as_str().unwrap(), "{path}");
    }
    assert_eq!(named.len() + 1, files.len(), "files without a line in the manifest");
    named.len()
}

/// F1, F2: all files, of a tablespace too, as the server's manifest has them; unchanged pieces are not sent twice.
async fn whole_and_sent_once(major: Major) {
    let server = Server::start(major).await.unwrap();
    let folder = server.new_folder("space").unwrap();
    server.sql(&format!("create tablespace space location '{}'", folder.display())).await.unwrap();
    server.sql("create table large (n int, filler text) tablespace space").await.unwrap();
    server
        .sql("insert into large select n, repeat('x', 1000) from generate_series(1, 3000) n")
        .await
        .unwrap();
    server.sql("create table nothing ()").await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    let first = tail.content.snapshot().checkpoints.remove(0);
    let contents = files(&tail.content, &first);
    assert!(check_manifest(&contents) > 500);
    assert!(contents.contains_key("backup_label") && contents.contains_key("global/pg_control"));
    assert!(
        contents.iter().any(|(path, bytes)| path.starts_with("pg_tblspc/") && bytes.len() as u64 > 3 * PIECE)
    );
    let base = Base::decode(&first.body).unwrap();
    assert_eq!(base.version / 10_000, major.number());
    assert_eq!(base.system_identifier, server.system_identifier().await.unwrap());
    assert_eq!(base.tablespaces.len(), 1);
    assert_eq!(base.tablespaces[0].location, folder.display().to_string());
    assert_eq!((base.parameters.max_connections, base.segment_size, base.checksums), (60, 16 << 20, true));
    assert!(first.suspect.is_none() && first.begin.position <= first.serves.position);

    server.sql("insert into large values (0, 'one row more')").await.unwrap();
    assert!(tail.tailer.backup_requests().ask());
    tail.backed_up(2).await;
    let second = tail.content.snapshot().checkpoints.remove(1);
    check_manifest(&files(&tail.content, &second));
    assert!(
        first.sent > 10 << 20 && second.sent < first.sent / 8,
        "{} of {} bytes were sent again",
        second.sent,
        second.bytes
    );
}

macro_rules! on {
    ($name:ident: $($test:ident $major:ident),*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            $name(Major::$major).await;
        }
    )* };
}

on!(whole_and_sent_once: whole_13 V13, whole_14 V14, whole_15 V15, whole_16 V16, whole_17 V17, whole_18 V18);

/// F5: kept, and marked.
async fn damage_is_kept_and_flagged(major: Major) {
    let mut server = Server::start(major).await.unwrap();
    server.sql("create table t (filler text); insert into t select repeat('x', 500) from generate_series(1, 200)")
        .await
        .unwrap();
    let path = server.data().join(server.value("select pg_relation_filepath('t')").await.unwrap());
    server.stop(Stop::Fast).await.unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4000] ^= 0xff;
    std::fs::write(&path, bytes).unwrap();
    server.start_again().await.unwrap();
    let mut tail = Tail::open(&server).await;
    tail.backed_up(1).await;
    let checkpoint = tail.content.snapshot().checkpoints.remove(0);
    assert!(checkpoint.suspect.as_ref().unwrap().contains("checksum"), "{:?}", checkpoint.suspect);
    assert!(tail.tailer.health().read().notice.contains("damaged pages"));
    check_manifest(&files(&tail.content, &checkpoint));
}

on!(damage_is_kept_and_flagged: damage_13 V13, damage_18 V18);

/// Steps until a running base backup took in so many bytes; the stream itself may have nothing to say meanwhile.
async fn taken(tail: &mut Tail, bytes: u64) {
    let health = tail.tailer.health();
    let enough = async {
        while health.read().base_backup.taken < bytes {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tail.during(enough).await;
}

/// F6: from a standby; a promotion in the middle ends that backup, and the next one succeeds.
async fn from_a_standby(major: Major) {
    let primary = Server::start(major).await.unwrap();
    let standby = Server::standby_of(&primary, "standby").await.unwrap();
    primary.sql("create table t (filler text)").await.unwrap();
    let mut tail = Tail::open(&standby).await;
    tail.backed_up(1).await;
    let checkpoint = tail.content.snapshot().checkpoints.remove(0);
    let base = Base::decode(&checkpoint.body).unwrap();
    assert!(base.from_standby && tail.tailer.health().read().standby);
    check_manifest(&files(&tail.content, &checkpoint));

    let mut slow = settings(&standby);
    slow.base_backup_rate = Some(4 << 20);
    let mut tail = tail.again(slow).await.unwrap();
    let requests = tail.tailer.backup_requests();
    requests.ask();
    taken(&mut tail, 4 << 20).await;
    standby.promote().await.unwrap();
    let content = tail.content.clone();
    let mut failed = false;
    while content.snapshot().checkpoints.len() < 2 {
        if tail.step().await.is_err() {
            let cursor = tail.cursor.clone();
            drop(tail.follower);
            tail = Tail::resume(tail.tailer, cursor, content.clone()).await.unwrap();
        }
        if let Some(failure) = tail.tailer.health().read().base_backup.failure {
            assert!(failure.contains("promoted"), "{failure}");
            failed = true;
        }
    }
    assert!(failed && requests.counts() == (1, 1), "{:?}", requests.counts());
    let base = Base::decode(&content.snapshot().checkpoints[1].body).unwrap();
    assert!(!base.from_standby && base.end_timeline == 2);
}

on!(from_a_standby: standby_13 V13, standby_18 V18);

/// A writer that is fenced in the middle abandons its backup; the next writer sends nothing again that was named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unfinished_backup_is_not_sent_again() {
    let server = Options::new(Major::V18).start().await.unwrap();
    let mut slow = settings(&server);
    slow.base_backup_rate = Some(16 << 20);
    let mut tail = Tail::resume(tailer(slow), None, MemoryContent::default()).await.unwrap();
    taken(&mut tail, 10 << 20).await;
    let (_, before) = tail.content.traffic();
    let mut tail = tail.again(settings(&server)).await.unwrap();
    assert_eq!(tail.content.snapshot().runs.len(), 1);
    tail.backed_up(1).await;
    let checkpoint = tail.content.snapshot().checkpoints.remove(0);
    check_manifest(&files(&tail.content, &checkpoint));
    let (_, after) = tail.content.traffic();
    assert!(after < checkpoint.bytes + (2 << 20), "{before} before, {after} in all of {}", checkpoint.bytes);
    tokio::time::sleep(Duration::from_millis(1)).await;
}
