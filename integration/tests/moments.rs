//! Moments: every wish gives exactly the commits it should, on every major, and what cannot be had is refused before
//! the first byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{fs, sync::Arc, time::Duration};

use holdfast_harness::{Major, Options, Server};
use holdfast_integration::{Place, Sidecar, Site, held, settled, up_to};
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

impl Commit {
    /// Its time as holdfast prints it: without zeros at the end of the fraction, which one in ten has.
    fn shown(&self) -> String {
        let time = self.time.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.');
        format!("{time}Z")
    }
}

const TIME: &str = "'YYYY-MM-DD\"T\"HH24:MI:SS.US'";

async fn commit(server: &Server, row: i64) -> Commit {
    let transaction = format!("begin; insert into t values ({row}); select txid_current(); commit");
    let rows = server.sql(&transaction).await.unwrap();
    let xid = rows[0][0].clone().unwrap();
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
                assert_eq!(held(&server).await.unwrap(), expected, "{wish:?}");
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

#[tokio::test(flavor = "multi_thread")]
async fn every_wish_gives_its_commits_and_no_other() {
    let server = Options::new(Major::V18).set("track_commit_timestamp", "on").start().await.unwrap();
    server.sql("create table t(n bigint)").await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
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
        site.refuses(&[meaningless, "--exclusive"], 2, &["--exclusive"]).await.unwrap();
    }
    the_plan_says_what_will_be_done(&site, seven).await;
    a_start_check_proves_the_moment(&site, &server, seven).await;

    // The cluster goes back to «half» and lives on: timeline 2, and the sidecar follows it.
    let half = site.restored(&server, "half", &["--name", "half"]).await.unwrap();
    assert_eq!(held(&half).await.unwrap(), up_to(10));
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
    site.refuses(&["--name", "half", "--timeline", "9"], 3, &["timeline 9"]).await.unwrap();
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
    let time = commit.shown();
    for part in ["base backup", "WAL", "timeline 1: ", "to be read", "objects", "expected time", &time] {
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
    assert!(said.contains("reached ") && said.contains(&commit.shown()), "{said}");
    let server = Server::adopt(server.options().clone(), &target).await.unwrap();
    assert_eq!(held(&server).await.unwrap(), up_to(commit.row));
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
    server.sql("create table t(n bigint); create table filler(f text)").await.unwrap();
    let early = commit(&server, 1).await;
    commit(&server, 2).await;
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let nothing = ["--latest"];
    site.refuses(&nothing, 3, &["main"]).await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
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
    site.refuses(
        &["--at", &early.time],
        3,
        &["cannot be restored", "first base backup", "the first moment that can be restored is"],
    )
    .await
    .unwrap();
    for wish in [["--at", &inside[1].time], ["--lsn", &inside[1].lsn]] {
        site.refuses(
            &wish,
            3,
            &["cannot be restored", &missing, "the nearest moment before it", "the nearest after it"],
        )
        .await
        .unwrap();
    }
    site.refuses(&["--xid", &inside[0].xid], 3, &["no commit of transaction", &inside[0].xid]).await.unwrap();
    site.refuses(&["--name", "nowhere"], 3, &["no restore point «nowhere»"]).await.unwrap();
    site.refuses(&["--at", "2199-01-01T00:00:00Z"], 3, &["later than all", "use --latest"]).await.unwrap();
    site.refuses(&["--lsn", "FF/0"], 3, &["FF/0 cannot be restored"]).await.unwrap();
    site.refuses(&["--lsn", "here"], 2, &["here"]).await.unwrap();

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
    site.refuses(&["--at", "2026-03-29T02:30:00"], 2, &["has no offset", "+02:00"]).await.unwrap();
    // Clocks in Paris jumped from 02:00 to 03:00.
    site.refuses(
        &["--at", "2026-03-29T02:30:00[Europe/Paris]"],
        2,
        &["Europe/Paris", "offset", "does not exist"],
    )
    .await
    .unwrap();
    site.refuses(
        &["--at", "2026-03-29 02:30 Europe/Paris"],
        2,
        &["names a zone", "2026-11-30T14:05:00+01:00"],
    )
    .await
    .unwrap();
    site.refuses(&["--at", "yesterday"], 2, &["«yesterday» is no time"]).await.unwrap();
}

/// Follow, base backup, the newest moment and an earlier one.
async fn there_and_back(major: Major) {
    let server = Options::new(major).set("track_commit_timestamp", "on").start().await.unwrap();
    server.sql("create table t(n bigint)").await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
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
