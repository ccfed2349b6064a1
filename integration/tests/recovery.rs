//! From the command to a running server: files that lie elsewhere than at the source, restores that are killed, base
//! backups of standbys, and a store that goes away while a server recovers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use holdfast_harness::{
    Major, Options, S3Local, Server, Stop,
    process::Guard,
    toxic::{Fault, Rule, Toxic},
};
use holdfast_integration::{Place, Site, held, settled, up_to};
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(60);

/// Tablespaces, the log's folder and the data folder lie elsewhere than at the source; a standby follows what the
/// repository gets later. Segments of 64 MiB on 13, of 1 MiB on 18.
async fn elsewhere(major: Major, segment: u32) {
    let server = Options::new(major).segment_mib(segment).start().await.unwrap();
    let space = server.new_folder("space").unwrap().to_string_lossy().into_owned();
    server.sql(&format!("create tablespace s location '{space}'")).await.unwrap();
    server.sql("create table t(n bigint) tablespace s; insert into t values (1)").await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    server.sql("insert into t values (2); select pg_switch_wal(); insert into t values (3)").await.unwrap();
    settled(&server, PATIENCE).await.unwrap();

    site.refuses(&["--latest"], 2, &["not empty", &space]).await.unwrap();
    let home = |name: &str| site.home().join(name).to_string_lossy().into_owned();
    let (new, wal) = (home("new-space"), home("new-wal"));
    let mapping = format!("{space}={new}");
    let taken = site.home().join("taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("precious"), "mine").unwrap();
    let (path, restore) = (home("taken"), ["restore", "main", "--identity", "id.key", "--latest"]);
    let arguments = ["--target", &path, "--tablespace", &mapping, "--pg-wal", &wal];
    let (code, said) = site.says(restore.into_iter().chain(arguments)).await.unwrap();
    assert!(code == 2 && said.contains("not empty"), "{code} {said}");
    assert_eq!(fs::read_dir(&taken).unwrap().count(), 1);
    assert!(!Path::new(&new).exists() && !Path::new(&wal).exists(), "something was written");

    let copy = site
        .restored(&server, "copy", &["--latest", "--tablespace", &mapping, "--pg-wal", &wal])
        .await
        .unwrap();
    assert_eq!(held(&copy).await.unwrap(), up_to(3));
    let location = copy
        .value("select pg_tablespace_location(oid) from pg_tablespace where spcname = 's'")
        .await
        .unwrap();
    assert_eq!(location, new);
    assert_eq!(fs::read_link(copy.data().join("pg_wal")).unwrap(), PathBuf::from(&wal));
    assert_eq!(copy.value("show wal_segment_size").await.unwrap(), format!("{segment}MB"));
    copy.sql("insert into t values (9)").await.unwrap();

    let mapping = format!("{space}={}", home("standby-space"));
    let target = site.restore("standby", &["--latest", "--standby", "--tablespace", &mapping]).await.unwrap();
    let standby = Server::adopt(server.options().clone(), &target).await.unwrap();
    standby.wait_for("select count(*) = 3 from t", PATIENCE).await.unwrap();
    server.sql("insert into t values (4); select pg_switch_wal(); insert into t values (5)").await.unwrap();
    standby.wait_for("select count(*) = 5 from t", PATIENCE).await.unwrap();
    assert_eq!(standby.value("select pg_is_in_recovery()").await.unwrap(), "t");
    assert_eq!(held(&server).await.unwrap(), up_to(5));
    sidecar.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_lies_elsewhere_13() {
    elsewhere(Major::V13, 64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_lies_elsewhere_18() {
    elsewhere(Major::V18, 1).await;
}

/// A tablespace made after the base backup is made again by replay where it was: never into files of the living
/// server.
async fn a_tablespace_is_made_again(major: Major) {
    let mut server = Server::start(major).await.unwrap();
    server.sql("create table t(n bigint); insert into t values (1)").await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let space = server.new_folder("late").unwrap();
    let path = space.to_string_lossy().into_owned();
    server.sql(&format!("create tablespace late location '{path}'")).await.unwrap();
    server.sql("create table kept(n bigint) tablespace late; insert into kept values (7)").await.unwrap();
    server.sql("insert into t values (2)").await.unwrap();
    settled(&server, PATIENCE).await.unwrap();
    assert!(sidecar.stop().await.unwrap().success());

    site.refuses(&["--latest"], 2, &[&path, "not empty", "made there after the base backup"]).await.unwrap();
    server.kill();
    // As on another host, where the path is not there at all.
    fs::rename(&space, space.with_extension("gone")).unwrap();
    let copy = site.restored(&server, "copy", &["--latest"]).await.unwrap();
    assert_eq!(held(&copy).await.unwrap(), up_to(2));
    assert_eq!(copy.value("select n from kept").await.unwrap(), "7");
    assert!(fs::read_dir(&space).unwrap().next().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tablespace_is_made_again_13() {
    a_tablespace_is_made_again(Major::V13).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tablespace_is_made_again_18() {
    a_tablespace_is_made_again(Major::V18).await;
}

/// All files below a folder but those of the restore itself: path, contents, mode.
fn files(root: &Path) -> BTreeMap<PathBuf, (Vec<u8>, u32)> {
    use std::os::unix::fs::PermissionsExt;
    let (mut files, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            let Ok(meta) = fs::metadata(&path) else { continue };
            if path.ends_with("pgsql_tmp.holdfast") {
                continue;
            }
            if meta.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = fs::read(&path) {
                files.insert(path.strip_prefix(root).unwrap().to_owned(), (bytes, meta.permissions().mode()));
            }
        }
    }
    files
}

/// Bytes of a folder that lie on its disk: files are written out of order.
fn written(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |path: PathBuf| match fs::symlink_metadata(&path) {
        Ok(meta) if meta.is_dir() => written(&path),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    };
    entries.map(|entry| size(entry.path())).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_restore_goes_on_and_ends_alike() {
    let server = Server::start(Major::V18).await.unwrap();
    server.sql("create table t(n bigint); insert into t select generate_series(1, 5)").await.unwrap();
    server.sql("create table bulk as select md5(i::text) || md5((i * 7)::text) m from generate_series(1, 400000) i").await.unwrap();
    let store = S3Local::start().unwrap();
    let toxic = Toxic::before(store.store()).unwrap();
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    assert!(sidecar.stop().await.unwrap().success());

    let passed = toxic.passed().down;
    let whole = site.restore("whole", &["--latest"]).await.unwrap();
    let all = toxic.passed().down - passed;
    assert!(all > 8 << 20, "{all}");
    let target = site.home().join("killed");
    let path = target.to_string_lossy().into_owned();
    let arguments = ["restore", "main", "--identity", "id.key", "--latest", "--target", &path];
    // Slow enough to be met in the middle: a whole restore would take half a minute.
    toxic.bandwidth(Some(all / 30));
    let mut reached = 0;
    for _ in 0..2 {
        let mut command = site.command(arguments).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut restore = Guard::spawn(&mut command).unwrap();
        let deadline = std::time::Instant::now() + PATIENCE;
        while written(&target) < reached + (2 << 20) {
            assert_eq!(restore.ended().unwrap(), None, "it ended before it was killed");
            assert!(std::time::Instant::now() < deadline, "{} bytes after a minute", written(&target));
            sleep(Duration::from_millis(50)).await;
        }
        restore.kill();
        reached = written(&target);
        assert!(!target.join("global/pg_control").exists(), "half a cluster looks whole");
        // Another wish is not what was begun here.
        let other = ["restore", "main", "--identity", "id.key", "--immediate", "--target", &path];
        let (code, said) = site.says(other).await.unwrap();
        assert!(code == 2 && said.contains("another restore"), "{code} {said}");
    }
    toxic.bandwidth(None);
    let passed = toxic.passed().down;
    site.holdfast(arguments).await.unwrap();
    let rest = toxic.passed().down - passed;
    assert!(rest < all, "{rest} of {all} bytes were read again");
    let (one, two) = (files(&whole), files(&target));
    assert!(one.keys().eq(two.keys()));
    for (path, file) in &one {
        assert!(two[path] == *file, "{} differs", path.display());
    }
    let restored = Server::adopt(server.options().clone(), &target).await.unwrap();
    restored.wait_for("select not pg_is_in_recovery()", PATIENCE).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), up_to(5));
    assert_eq!(restored.value("select count(distinct m) from bulk").await.unwrap(), "400000");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_a_source() {
    let primary = Server::start(Major::V16).await.unwrap();
    primary.sql("create table t(n bigint)").await.unwrap();
    let standby = Server::standby_of(&primary, "standby").await.unwrap();
    let site = Site::ready(Place::Folder, &standby, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    primary.sql("insert into t select generate_series(1, 6)").await.unwrap();
    standby.wait_for("select count(*) = 6 from t", PATIENCE).await.unwrap();
    settled(&standby, PATIENCE).await.unwrap();
    let plan = site
        .holdfast(["restore", "main", "--identity", "id.key", "--target", "x", "--latest", "--plan"])
        .await
        .unwrap();
    assert!(plan.contains("from a standby"), "{plan}");
    let restored = site.restored(&primary, "latest", &["--latest"]).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), up_to(6));
    assert!(sidecar.stop().await.unwrap().success());
}

/// Enough log that no prefetcher holds all of it at once.
const ROWS: i64 = 36;

/// E1: trouble with the store in the middle of recovery is never the end of the log.
async fn the_store_goes_away(major: Major) {
    let server = Options::new(major).segment_mib(1).start().await.unwrap();
    server.sql("create table t(n bigint); create table filler(f text)").await.unwrap();
    let store = S3Local::start().unwrap();
    let mut toxic = Toxic::before(store.store()).unwrap();
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    for row in 1..=ROWS {
        server.sql(&format!("insert into filler select md5(random()::text) || md5(random()::text) from generate_series(1, 16000); insert into t values ({row})")).await.unwrap();
    }
    settled(&server, PATIENCE).await.unwrap();
    // No prefetcher has it at hand after a few segments.
    let last = server.value("select pg_walfile_name(pg_current_wal_flush_lsn())").await.unwrap();
    assert!(sidecar.stop().await.unwrap().success());
    let refusing = || [Rule::new(Fault::Status(403))];
    let replayed = async |server: &Server, count: usize| {
        let deadline = std::time::Instant::now() + PATIENCE;
        while server.log().matches("restored log file").count() < count {
            assert!(std::time::Instant::now() < deadline, "{}", server.log_tail());
            sleep(Duration::from_millis(20)).await;
        }
    };
    let slow = Some(3 << 20);

    // Refused for good: recovery stops and can be started again.
    let target = site.restore("stopped", &["--latest"]).await.unwrap();
    let mut restored = Server::adopt_stopped(server.options().clone(), &target).await.unwrap();
    toxic.bandwidth(slow);
    restored.launch().unwrap();
    replayed(&restored, 3).await;
    toxic.set(refusing());
    let status = restored.wait_exit(PATIENCE).await.unwrap();
    assert!(!status.success(), "{}", restored.log_tail());
    assert!(!restored.log().contains("archive recovery complete"), "{}", restored.log());
    assert!(target.join("recovery.signal").exists() && !target.join("pg_wal/00000002.history").exists());
    let own = target.join("pgsql_tmp.holdfast").to_string_lossy().into_owned();
    let to = site.home().join("segment").to_string_lossy().into_owned();
    let (code, said) = site.says(["wal-fetch", "--own", &own, &last, &to]).await.unwrap();
    assert!(code >= 126 && said.contains("holdfast wal-fetch"), "{code} {said}");
    toxic.clear();
    toxic.bandwidth(None);
    restored.start_again().await.unwrap();
    restored.wait_for("select not pg_is_in_recovery()", PATIENCE).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), up_to(ROWS));
    drop(restored);

    // Out of reach for a while: recovery waits and goes on by itself.
    let target = site.restore("waited", &["--latest"]).await.unwrap();
    let mut restored = Server::adopt_stopped(server.options().clone(), &target).await.unwrap();
    toxic.bandwidth(slow);
    restored.launch().unwrap();
    replayed(&restored, 3).await;
    toxic.down();
    sleep(Duration::from_secs(5)).await;
    assert!(restored.is_running(), "{}", restored.log_tail());
    assert!(target.join("recovery.signal").exists(), "it promoted without its log");
    toxic.bandwidth(None);
    toxic.up().unwrap();
    restored.ready().await.unwrap();
    restored.wait_for("select not pg_is_in_recovery()", PATIENCE).await.unwrap();
    assert_eq!(held(&restored).await.unwrap(), up_to(ROWS));
    drop(restored);

    // A standby asks again, whatever the trouble.
    let target = site.restore("standby", &["--latest", "--standby"]).await.unwrap();
    let mut standby = Server::adopt_stopped(server.options().clone(), &target).await.unwrap();
    toxic.set(refusing());
    standby.launch().unwrap();
    sleep(Duration::from_secs(4)).await;
    assert!(standby.is_running(), "{}", standby.log_tail());
    let own = target.join("pgsql_tmp.holdfast").to_string_lossy().into_owned();
    let (code, said) = site.says(["wal-fetch", "--own", &own, &last, &to]).await.unwrap();
    assert_eq!(code, 1, "{said}");
    toxic.clear();
    standby.ready().await.unwrap();
    standby.wait_for(&format!("select count(*) = {ROWS} from t"), PATIENCE).await.unwrap();
    assert_eq!(standby.value("select pg_is_in_recovery()").await.unwrap(), "t");
    standby.stop(Stop::Fast).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_is_not_the_end_13() {
    the_store_goes_away(Major::V13).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_is_not_the_end_18() {
    the_store_goes_away(Major::V18).await;
}
