//! Moments: every wish gives exactly the commits it should, what cannot be had is refused before the first byte, and
//! a restore survives what happens to it. The real program on real servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use holdfast_harness::{
    Major, Options, S3Local, Server, Stop,
    process::Guard,
    toxic::{Fault, Rule, Toxic},
};
use holdfast_integration::{Place, Sidecar, Site, settled};
use tokio::{task::JoinSet, time::sleep};

const PATIENCE: Duration = Duration::from_secs(60);
/// Restores at once: each is a program, a server and its recovery.
const ABREAST: usize = 3;

/// One commit of one row, and what is known of it from the server itself.
struct Commit {
    row: i64,
    xid: String,
    time: String,
    /// The end of the log behind it.
    lsn: String,
}

const TIME: &str = "'YYYY-MM-DD\"T\"HH24:MI:SS.US'";

async fn commit(server: &Server, row: i64) -> Commit {
    let client = server.client().await.unwrap();
    let transaction = format!("begin; insert into t values ({row}); select txid_current(); commit");
    let rows = server.sql(&transaction).await.unwrap();
    let xid = rows[0][0].clone().unwrap();
    drop(client);
    let time = format!(
        "select to_char(pg_xact_commit_timestamp('{xid}'::text::xid) at time zone 'UTC', {TIME}) || 'Z', \
         pg_current_wal_insert_lsn()::text"
    );
    let mut known = server.sql(&time).await.unwrap().remove(0).into_iter().flatten();
    Commit { row, xid, time: known.next().unwrap(), lsn: known.next().unwrap() }
}

async fn commits(server: &Server, rows: std::ops::RangeInclusive<i64>) -> Vec<Commit> {
    let mut all = Vec::new();
    for row in rows {
        all.push(commit(server, row).await);
    }
    all
}

async fn now(server: &Server) -> String {
    server
        .value(&format!("select to_char(clock_timestamp() at time zone 'UTC', {TIME}) || 'Z'"))
        .await
        .unwrap()
}

/// Waits until the repository vouches for everything up to now.
async fn vouched(server: &Server, sidecar: &mut Sidecar) {
    settled(server, PATIENCE).await.unwrap();
    let now: f64 =
        server.value("select extract(epoch from clock_timestamp())").await.unwrap().parse().unwrap();
    sidecar.until("holdfast_restorable_to_seconds", |to| to > now, PATIENCE).await.unwrap();
}

async fn base_backup(sidecar: &mut Sidecar) {
    sidecar.until("holdfast_base_backup_age_seconds", |age| age >= 0.0, PATIENCE).await.unwrap();
}

async fn rows(server: &Server) -> String {
    server.value("select coalesce(string_agg(i::text, ' ' order by i), '') from t").await.unwrap()
}

fn up_to(last: i64) -> String {
    (1..=last).map(|row| row.to_string()).collect::<Vec<_>>().join(" ")
}

/// Restores and starts each wish; the rows must be the expected ones.
async fn check(site: &Arc<Site>, like: &Arc<Server>, wishes: Vec<(Vec<String>, String)>) {
    for (round, some) in wishes.chunks(ABREAST).enumerate() {
        let mut running = JoinSet::new();
        for (number, (wish, expected)) in some.iter().cloned().enumerate() {
            let (site, like) = (Arc::clone(site), Arc::clone(like));
            running.spawn(async move {
                let words: Vec<&str> = wish.iter().map(String::as_str).collect();
                let name = format!("wish-{round}-{number}");
                let server =
                    site.restored(&like, &name, &words).await.unwrap_or_else(|c| panic!("{wish:?}: {c:#}"));
                assert_eq!(rows(&server).await, expected, "{wish:?}");
                drop(server);
                fs::remove_dir_all(site.home().join(name)).unwrap();
            });
        }
        while let Some(done) = running.join_next().await {
            done.unwrap();
        }
    }
}

fn wish(words: &[&str], expected: String) -> (Vec<String>, String) {
    (words.iter().map(|word| (*word).to_owned()).collect(), expected)
}

/// Refused with this exit code and a sentence that holds all of `parts`; nothing was written.
async fn refused(site: &Site, wish: &[&str], code: i32, parts: &[&str]) {
    let target = site.home().join("refused");
    let path = target.to_string_lossy().into_owned();
    for plan in [&[][..], &["--plan"]] {
        let fixed = ["restore", "main", "--identity", "id.key", "--target", &path];
        let (ended, said) = site
            .says(fixed.into_iter().chain(wish.iter().copied()).chain(plan.iter().copied()))
            .await
            .unwrap();
        assert_eq!(ended, code, "{wish:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{wish:?}: «{part}» is not in: {said}");
        }
        assert!(!target.exists(), "{wish:?} was refused and wrote");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_wish_gives_its_commits_and_no_other() {
    let server = Options::new(Major::V18).set("track_commit_timestamp", "on").start().await.unwrap();
    server.sql("create table t(i int)").await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    base_backup(&mut sidecar).await;
    let mut known = commits(&server, 1..=10).await;
    server.sql("select pg_create_restore_point('half')").await.unwrap();
    known.extend(commits(&server, 11..=15).await);
    server.sql("select pg_switch_wal()").await.unwrap();
    known.extend(commits(&server, 16..=20).await);
    let later = now(&server).await;
    vouched(&server, &mut sidecar).await;

    let seven = &known[6];
    assert_eq!(seven.row, 7);
    // The same instant as a clock in Kathmandu shows it, and a microsecond later.
    let other = |offset: &str, sign: &str| {
        format!(
            "select to_char(timestamp '{}' + interval '{offset}', {TIME}) || '{sign}'",
            seven.time.trim_end_matches('Z')
        )
    };
    let elsewhere = server.value(&other("5 hours 45 minutes", "+05:45")).await.unwrap();
    let just_after = server.value(&other("1 microsecond", "Z")).await.unwrap();
    let (site, mut server) = (Arc::new(site), Arc::new(server));
    check(
        &site,
        &server,
        vec![
            wish(&["--latest"], up_to(20)),
            wish(&["--immediate"], up_to(0)),
            wish(&["--at", &seven.time], up_to(7)),
            wish(&["--at", &seven.time, "--exclusive"], up_to(6)),
            wish(&["--at", &elsewhere], up_to(7)),
            wish(&["--at", &just_after], up_to(7)),
            wish(&["--at", &later], up_to(20)),
            wish(&["--xid", &seven.xid], up_to(7)),
            wish(&["--xid", &seven.xid, "--exclusive"], up_to(6)),
            wish(&["--name", "half", "--exclusive"], up_to(10)),
            wish(&["--lsn", &known[12].lsn], up_to(13)),
            wish(&["--lsn", &known[12].lsn, "--exclusive"], up_to(13)),
        ],
    )
    .await;
    for meaningless in ["--latest", "--immediate"] {
        refused(&site, &[meaningless, "--exclusive"], 2, &["--exclusive"]).await;
    }
    the_plan_says_what_will_be_done(&site, seven).await;
    a_start_check_proves_the_moment(&site, &server, seven).await;

    // The cluster goes back to «half» and lives on: timeline 2, and the sidecar follows it.
    let half = site.restored(&server, "half", &["--name", "half"]).await.unwrap();
    assert_eq!(rows(&half).await, up_to(10));
    assert!(sidecar.stop().await.unwrap().success());
    Arc::get_mut(&mut server).unwrap().kill();
    let mut site = Arc::into_inner(site).unwrap();
    site.source("main", &half.dsn(), "").unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    half.sql("insert into t values (101)").await.unwrap();
    vouched(&half, &mut sidecar).await;
    let (site, half, sixteen) = (Arc::new(site), Arc::new(half), &known[15]);
    let forked = format!("{} 101", up_to(10));
    check(
        &site,
        &half,
        vec![
            wish(&["--latest"], forked.clone()),
            wish(&["--latest", "--timeline", "latest"], forked),
            wish(&["--latest", "--timeline", "1"], up_to(20)),
            wish(&["--xid", &sixteen.xid, "--timeline", "1"], up_to(16)),
            wish(&["--at", &seven.time], up_to(7)),
        ],
    )
    .await;
    refused(&site, &["--name", "half", "--timeline", "9"], 3, &["timeline 9"]).await;
    let (code, said) = site
        .says([
            "restore",
            "main",
            "--identity",
            "id.key",
            "--target",
            "x",
            "--plan",
            "--latest",
            "--timeline",
            "1",
        ])
        .await
        .unwrap();
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("timeline 2, forked from 1 at") && said.contains("the cluster is on it now"),
        "{said}"
    );
    assert!(sidecar.stop().await.unwrap().success());
}

async fn the_plan_says_what_will_be_done(site: &Site, commit: &Commit) {
    let fixed =
        ["restore", "main", "--identity", "id.key", "--target", "planned", "--plan", "--xid", &commit.xid];
    let text = site.holdfast(fixed).await.unwrap();
    for part in ["base backup", "WAL", "timeline 1: ", "to be read", "objects", "expected time", &commit.time]
    {
        assert!(text.contains(part), "«{part}» is not in: {text}");
    }
    let json = site.holdfast(fixed.into_iter().chain(["--json"])).await.unwrap();
    let plan: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(plan["bytes"].as_u64().unwrap() > 1 << 20, "{json}");
    assert!(plan["objects"].as_u64().unwrap() > 0, "{json}");
    assert_eq!(plan["conflicts"].as_array().unwrap().len(), 0, "{json}");
    assert!(plan["moment"]["path"].as_array().is_some_and(|path| path.len() == 1), "{json}");
    assert!(!site.home().join("planned").exists(), "a plan wrote");
}

async fn a_start_check_proves_the_moment(site: &Site, server: &Server, commit: &Commit) {
    let target = site.home().join("started");
    let (path, bin) = (target.to_string_lossy().into_owned(), server.bin().to_string_lossy().into_owned());
    let said = site
        .holdfast([
            "restore",
            "main",
            "--identity",
            "id.key",
            "--target",
            &path,
            "--xid",
            &commit.xid,
            "--start-check",
            "--pg-bin",
            &bin,
        ])
        .await
        .unwrap();
    assert!(said.contains("reached ") && said.contains(&commit.time), "{said}");
    let server = Server::adopt(server.options().clone(), &target).await.unwrap();
    assert_eq!(rows(&server).await, up_to(commit.row));
    drop(server);
    // A folder that is somebody's cluster is nobody's target.
    let (code, said) =
        site.says(["restore", "main", "--identity", "id.key", "--target", &path, "--latest"]).await.unwrap();
    assert_eq!(code, 2, "{said}");
    fs::remove_dir_all(target).unwrap();
}

/// Before the first base backup, inside a gap, beyond the end, and never.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_had_is_refused_before_the_first_byte() {
    let server = Options::new(Major::V18)
        .segment_mib(1)
        .set("track_commit_timestamp", "on")
        .set("max_slot_wal_keep_size", "2MB")
        .set("wal_keep_size", "0")
        .set("min_wal_size", "2MB")
        .set("max_wal_size", "4MB")
        .start()
        .await
        .unwrap();
    server.sql("create table t(i int); create table filler(f text)").await.unwrap();
    let early = commit(&server, 1).await;
    commit(&server, 2).await;
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let nothing = ["--latest"];
    refused(&site, &nothing, 3, &["main"]).await;
    let mut sidecar = site.run().unwrap();
    base_backup(&mut sidecar).await;
    let before = commits(&server, 3..=5).await;
    vouched(&server, &mut sidecar).await;
    assert!(sidecar.stop().await.unwrap().success());

    // While nobody follows, the server outgrows its slot.
    let inside = commits(&server, 6..=7).await;
    for _ in 0..12 {
        server.sql("insert into filler select repeat('x', 1000) from generate_series(1, 900)").await.unwrap();
        server.sql("select pg_switch_wal()").await.unwrap();
        server.sql("checkpoint").await.unwrap();
    }
    server
        .wait_for("select coalesce(bool_or(wal_status = 'lost'), false) from pg_replication_slots", PATIENCE)
        .await
        .unwrap();
    commit(&server, 8).await;
    let mut sidecar = site.run().unwrap();
    sidecar.until("holdfast_gaps", |gaps| gaps == 1.0, PATIENCE).await.unwrap();
    let listed = async || -> serde_json::Value {
        serde_json::from_str(&site.holdfast(["list", "main", "--json"]).await.unwrap()).unwrap()
    };
    let deadline = std::time::Instant::now() + PATIENCE;
    while listed().await["base_backups"].as_array().unwrap().len() < 2 {
        assert!(std::time::Instant::now() < deadline, "no base backup began by itself");
        sleep(Duration::from_millis(200)).await;
    }
    commit(&server, 9).await;
    vouched(&server, &mut sidecar).await;
    let gap = listed().await["gaps"][0].clone();
    let (from, to) = (gap["from"].as_str().unwrap(), gap["to"].as_str().unwrap());

    let missing = format!("from {from} to {to} is missing");
    refused(
        &site,
        &["--at", &early.time],
        3,
        &["cannot be restored", "first base backup", "the first moment that can be restored is"],
    )
    .await;
    for wish in [["--at", &inside[1].time], ["--lsn", &inside[1].lsn]] {
        refused(
            &site,
            &wish,
            3,
            &["cannot be restored", &missing, "the nearest moment before it", "the nearest after it"],
        )
        .await;
    }
    refused(&site, &["--xid", &inside[0].xid], 3, &["no commit of transaction", &inside[0].xid]).await;
    refused(&site, &["--name", "nowhere"], 3, &["no restore point «nowhere»"]).await;
    refused(&site, &["--at", "2199-01-01T00:00:00Z"], 3, &["later than all", "use --latest"]).await;
    refused(&site, &["--lsn", "FF/0"], 3, &["FF/0 cannot be restored"]).await;
    refused(&site, &["--lsn", "here"], 2, &["here"]).await;

    let (site, server) = (Arc::new(site), Arc::new(server));
    check(
        &site,
        &server,
        vec![
            wish(&["--at", &before[2].time], up_to(5)),
            wish(&["--xid", &before[1].xid], up_to(4)),
            wish(&["--latest"], up_to(9)),
        ],
    )
    .await;
    sidecar.kill();
}

/// E4: a time means one instant, or nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_needs_an_offset() {
    let server = Server::start(Major::V18).await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    refused(&site, &["--at", "2026-03-29T02:30:00"], 2, &["has no offset", "+02:00"]).await;
    // Clocks in Paris jumped from 02:00 to 03:00.
    refused(
        &site,
        &["--at", "2026-03-29T02:30:00[Europe/Paris]"],
        2,
        &["Europe/Paris", "offset", "does not exist"],
    )
    .await;
    refused(
        &site,
        &["--at", "2026-03-29 02:30 Europe/Paris"],
        2,
        &["names a zone", "2026-11-30T14:05:00+01:00"],
    )
    .await;
    refused(&site, &["--at", "yesterday"], 2, &["«yesterday» is no time"]).await;
}

/// Tablespaces, the log's folder and the data folder lie elsewhere than at the source; a standby follows what the
/// repository gets later. Segments of 64 MiB on 13, of 1 MiB on 18.
async fn elsewhere(major: Major, segment: u32) {
    let server = Options::new(major).segment_mib(segment).start().await.unwrap();
    let space = server.new_folder("space").unwrap().to_string_lossy().into_owned();
    server.sql(&format!("create tablespace s location '{space}'")).await.unwrap();
    server.sql("create table t(i int) tablespace s; insert into t values (1)").await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    base_backup(&mut sidecar).await;
    server.sql("insert into t values (2); select pg_switch_wal(); insert into t values (3)").await.unwrap();
    settled(&server, PATIENCE).await.unwrap();

    refused(&site, &["--latest"], 2, &["not empty", &space]).await;
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
    assert_eq!(rows(&copy).await, up_to(3));
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
    assert_eq!(rows(&server).await, up_to(5));
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

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_restore_goes_on_and_ends_alike() {
    let server = Server::start(Major::V18).await.unwrap();
    server.sql("create table t(i int); insert into t select generate_series(1, 5)").await.unwrap();
    server.sql("create table bulk as select md5(i::text) || md5((i * 7)::text) m from generate_series(1, 400000) i").await.unwrap();
    let store = S3Local::start().unwrap();
    let toxic = Toxic::before(store.store()).unwrap();
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    base_backup(&mut sidecar).await;
    assert!(sidecar.stop().await.unwrap().success());

    let passed = toxic.passed().down;
    let whole = site.restore("whole", &["--latest"]).await.unwrap();
    let all = toxic.passed().down - passed;
    assert!(all > 8 << 20, "{all}");
    let target = site.home().join("killed");
    let path = target.to_string_lossy().into_owned();
    let arguments = ["restore", "main", "--identity", "id.key", "--latest", "--target", &path];
    // Slow enough to be met in the middle: a whole restore would take about ten seconds.
    toxic.bandwidth(Some(all / 10));
    let size = |path: &Path| -> usize { files(path).values().map(|(bytes, _)| bytes.len()).sum() };
    let mut reached = 0;
    for _ in 0..3 {
        let mut restore = Guard::spawn(&mut site.command(arguments).unwrap()).unwrap();
        let deadline = std::time::Instant::now() + PATIENCE;
        while size(&target) < reached + (4 << 20) {
            assert_eq!(restore.ended().unwrap(), None, "it ended before it was killed");
            assert!(std::time::Instant::now() < deadline, "{} bytes after a minute", size(&target));
            sleep(Duration::from_millis(50)).await;
        }
        restore.kill();
        reached = size(&target);
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
    assert_eq!(rows(&restored).await, up_to(5));
    assert_eq!(restored.value("select count(distinct m) from bulk").await.unwrap(), "400000");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_a_source() {
    let primary = Server::start(Major::V16).await.unwrap();
    primary.sql("create table t(i int)").await.unwrap();
    let standby = Server::standby_of(&primary, "standby").await.unwrap();
    let site = Site::ready(Place::Folder, &standby, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    base_backup(&mut sidecar).await;
    primary.sql("insert into t select generate_series(1, 6)").await.unwrap();
    standby.wait_for("select count(*) = 6 from t", PATIENCE).await.unwrap();
    settled(&standby, PATIENCE).await.unwrap();
    let plan = site
        .holdfast(["restore", "main", "--identity", "id.key", "--target", "x", "--latest", "--plan"])
        .await
        .unwrap();
    assert!(plan.contains("from a standby"), "{plan}");
    let restored = site.restored(&primary, "latest", &["--latest"]).await.unwrap();
    assert_eq!(rows(&restored).await, up_to(6));
    assert!(sidecar.stop().await.unwrap().success());
}

/// Enough log that no prefetcher holds all of it at once.
const ROWS: i64 = 36;

/// E1: trouble with the store in the middle of recovery is never the end of the log.
async fn the_store_goes_away(major: Major) {
    let server = Options::new(major).segment_mib(1).start().await.unwrap();
    server.sql("create table t(i int); create table filler(f text)").await.unwrap();
    let store = S3Local::start().unwrap();
    let mut toxic = Toxic::before(store.store()).unwrap();
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    base_backup(&mut sidecar).await;
    for row in 1..=ROWS {
        server.sql(&format!("insert into filler select md5(random()::text) || md5(random()::text) from generate_series(1, 16000); insert into t values ({row})")).await.unwrap();
    }
    settled(&server, PATIENCE).await.unwrap();
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
    let (code, said) =
        site.says(["wal-fetch", "--own", &own, "000000010000000000000009", &to]).await.unwrap();
    assert!(code >= 126 && said.contains("holdfast wal-fetch"), "{code} {said}");
    toxic.clear();
    toxic.bandwidth(None);
    restored.start_again().await.unwrap();
    restored.wait_for("select not pg_is_in_recovery()", PATIENCE).await.unwrap();
    assert_eq!(rows(&restored).await, up_to(ROWS));
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
    assert_eq!(rows(&restored).await, up_to(ROWS));
    drop(restored);

    // A standby asks again, whatever the trouble.
    let target = site.restore("standby", &["--latest", "--standby"]).await.unwrap();
    let mut standby = Server::adopt_stopped(server.options().clone(), &target).await.unwrap();
    toxic.set(refusing());
    standby.launch().unwrap();
    sleep(Duration::from_secs(4)).await;
    assert!(standby.is_running(), "{}", standby.log_tail());
    let own = target.join("pgsql_tmp.holdfast").to_string_lossy().into_owned();
    let (code, said) =
        site.says(["wal-fetch", "--own", &own, "000000010000000000000009", &to]).await.unwrap();
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

/// Follow, base backup, the newest moment and an earlier one.
async fn there_and_back(major: Major) {
    let server = Options::new(major).set("track_commit_timestamp", "on").start().await.unwrap();
    server.sql("create table t(i int)").await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    base_backup(&mut sidecar).await;
    let known = commits(&server, 1..=6).await;
    vouched(&server, &mut sidecar).await;
    assert!(sidecar.stop().await.unwrap().success());
    let (site, server) = (Arc::new(site), Arc::new(server));
    check(&site, &server, vec![wish(&["--latest"], up_to(6)), wish(&["--at", &known[3].time], up_to(4))])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_major_there_and_back() {
    for two in Major::ALL.chunks(2) {
        let mut running = JoinSet::new();
        for major in two.iter().copied() {
            running.spawn(there_and_back(major));
        }
        while let Some(done) = running.join_next().await {
            done.unwrap();
        }
    }
}
