//! What users of other tools met, as `research/postgres.md` tells it; each test names its row. Hours are scaled to
//! seconds where a test says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use holdfast_harness::{
    Major, Options, S3Local, Server, User, process,
    toxic::{Fault, Rule, Toxic, away},
};
use holdfast_integration::{Place, Site, Workload, judge, settled};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    time::sleep,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

/// B1: nobody does anything by hand for the last, partial segment.
async fn the_last_row_is_there(major: Major) {
    let options = Options::new(major).set("synchronous_standby_names", "holdfast");
    let mut server = options.start().await.unwrap();
    server.sql("set synchronous_commit = local; create table t(i int)").await.unwrap();
    let site = Site::ready(Place::Folder, &server, "ack = \"remote\"").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    tokio::time::timeout(PATIENCE, server.sql("insert into t values (1)")).await.unwrap().unwrap();
    sleep(Duration::from_millis(100)).await;
    server.kill();
    sidecar.kill();
    fs::remove_dir_all(server.data()).unwrap();
    let restored = site.restored(&server, "latest", &["--latest"]).await.unwrap();
    assert_eq!(restored.value("select count(*) from t").await.unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_row_is_there_13() {
    the_last_row_is_there(Major::V13).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_row_is_there_18() {
    the_last_row_is_there(Major::V18).await;
}

/// C7: ten minutes scaled to forty seconds, at the default heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn idle_costs_next_to_nothing() {
    const IDLE: Duration = Duration::from_secs(40);
    let server = Server::start(Major::V18).await.unwrap();
    let store = S3Local::start().unwrap();
    let toxic = Toxic::before(store.store()).unwrap();
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    settled(&server, PATIENCE).await.unwrap();
    sleep(Duration::from_secs(3)).await;
    let (requests, cpu) = (toxic.passed().requests, process::cpu_time(sidecar.pid()).unwrap());
    sleep(IDLE).await;
    let requests = toxic.passed().requests - requests;
    let cpu = process::cpu_time(sidecar.pid()).unwrap() - cpu;
    // 40 requests in ten minutes.
    assert!(requests <= 4, "{requests} requests in {IDLE:?}");
    assert!(cpu < IDLE / 200, "{cpu:?} of CPU in {IDLE:?}");
    assert!(sidecar.stop().await.unwrap().success());
}

/// D2: ten minutes scaled to fifteen seconds; a third of all requests is told to slow down, from the first one on.
#[tokio::test(flavor = "multi_thread")]
async fn told_to_slow_down_it_lags_and_loses_nothing() {
    let mut server = Server::start(Major::V18).await.unwrap();
    let store = S3Local::start().unwrap();
    let toxic = Toxic::before(store.store()).unwrap();
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, "").await.unwrap();
    let rules = [9, 11, 13, 17].map(|n| Rule::new(Fault::Status(503)).every(n));
    toxic.set(rules);
    let mut sidecar = site.run().unwrap();
    let workload = Workload::start(&server, 4, 100).await.unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    sleep(Duration::from_secs(15)).await;
    let slowed = sidecar.metrics().await.unwrap().get("holdfast_store_slow_down_total").unwrap();
    assert!(slowed > 5.0, "{slowed}");
    workload.pause().await;
    settled(&server, PATIENCE).await.unwrap();
    toxic.clear();
    assert_eq!(sidecar.metrics().await.unwrap().get("holdfast_gaps").unwrap(), 0.0);
    server.kill();
    sidecar.kill();
    let (journal, end) = (workload.stop().await, tokio::time::Instant::now());
    let restored = site.restored(&server, "latest", &["--latest"]).await.unwrap();
    let verdict = judge(&restored, &journal, end).await.unwrap();
    assert!(verdict.acknowledged > 300 && verdict.lost.is_empty(), "{verdict:?}");
}

/// Asks a prefetcher as `wal-fetch` does, without the cost of starting a process.
async fn ask(own: &Path, name: &str, to: &Path) -> (String, Duration) {
    let began = Instant::now();
    let mut line = UnixStream::connect(own.join("socket")).await.unwrap();
    let request = serde_json::json!({ "name": name, "to": to });
    line.write_all(format!("{request}\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    BufReader::new(line).read_line(&mut answer).await.unwrap();
    (answer.trim().to_owned(), began.elapsed())
}

/// E3: at steady state a segment is handed over from the local queue, however far away the store is. 500 GiB are
/// scaled to 50 MiB in segments of 1 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn replay_is_answered_from_a_local_queue() {
    let server = Options::new(Major::V18).segment_mib(1).start().await.unwrap();
    let store = S3Local::start().unwrap();
    let mut toxic = Toxic::before(store.store()).unwrap();
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    server
        .sql("create table t as select md5(i::text) || md5((-i)::text) m from generate_series(1, 500000) i")
        .await
        .unwrap();
    settled(&server, PATIENCE).await.unwrap();
    assert!(sidecar.stop().await.unwrap().success());
    let target = site.restore("replayed", &["--latest"]).await.unwrap();
    let own = target.join("pgsql_tmp.holdfast");
    let session: serde_json::Value =
        serde_json::from_slice(&fs::read(own.join("session.json")).unwrap()).unwrap();
    let at = |end: &str| session["path"][0][end].as_u64().unwrap() >> 20;
    let name = |number: u64| format!("00000001{:08X}{:08X}", number >> 12, number & 0xfff);
    let (first, last) = (at("from"), at("to"));
    assert!(last - first > 40, "{first} to {last}");
    toxic.set(away(Duration::from_millis(30)));
    let to = target.join("pg_wal/RECOVERYXLOG");
    let (folder, path) = (own.to_string_lossy().into_owned(), to.to_string_lossy().into_owned());
    site.holdfast(["wal-fetch", "--own", &folder, &name(first), &path]).await.unwrap();
    // What a server needs to replay 1 MiB, generously: this test is about the queue.
    let replay = Duration::from_millis(150);
    sleep(Duration::from_secs(2)).await;
    let mut took = Vec::new();
    for number in first + 1..first + 24 {
        let (answer, time) = ask(&own, &name(number), &to).await;
        assert_eq!(answer, "\"done\"");
        assert_eq!(fs::metadata(&to).unwrap().len(), 1 << 20);
        took.push(time);
        sleep(replay).await;
    }
    took.sort();
    assert!(took[took.len() / 2] < Duration::from_millis(5), "{took:?}");
    // Answers need no store at all.
    toxic.down();
    for number in first + 24..first + 34 {
        assert_eq!(ask(&own, &name(number), &to).await.0, "\"done\"", "{number}");
    }
}

/// E16: there is no restore of one database that could wipe the others; the way is a scratch cluster, as
/// docs/operations.md has it.
#[tokio::test(flavor = "multi_thread")]
async fn one_database_comes_back_by_a_scratch_cluster() {
    let server = Server::start(Major::V18).await.unwrap();
    for database in ["app", "other"] {
        server.sql(&format!("create database {database}")).await.unwrap();
    }
    let of = |server: &Server, database: &str| {
        server.dsn().replace("dbname=postgres", &format!("dbname={database}"))
    };
    let app = server.client_of(&of(&server, "app")).await.unwrap();
    app.batch_execute("create table t(i int); insert into t select generate_series(1, 100)").await.unwrap();
    let other = server.client_of(&of(&server, "other")).await.unwrap();
    other.batch_execute("create table t(i int)").await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    server.sql("select pg_create_restore_point('before')").await.unwrap();
    app.batch_execute("delete from t").await.unwrap();
    other.batch_execute("insert into t values (7)").await.unwrap();
    settled(&server, PATIENCE).await.unwrap();

    let restore = ["restore", "main", "--identity", "id.key", "--name", "before"];
    let scratch = ["--target", "scratch", "--database", "app"];
    let (code, said) = site.says(restore.into_iter().chain(scratch)).await.unwrap();
    assert!(code == 2 && said.contains("--database"), "{code} {said}");
    assert!(!site.home().join("scratch").exists());
    let live = server.data().to_string_lossy().into_owned();
    let (code, said) = site.says(restore.into_iter().chain(["--target", &live])).await.unwrap();
    assert!(code == 2 && said.contains("nothing was written"), "{code} {said}");

    let scratch = site.restored(&server, "scratch", &["--name", "before"]).await.unwrap();
    let old = scratch.client_of(&of(&scratch, "app")).await.unwrap();
    let rows = old.query("select i from t", &[]).await.unwrap();
    assert_eq!(rows.len(), 100);
    for row in rows {
        app.execute("insert into t values ($1)", &[&row.get::<_, i32>(0)]).await.unwrap();
    }
    let kept: i32 = other.query_one("select i from t", &[]).await.unwrap().get(0);
    assert_eq!(kept, 7, "the other database lost what it had");
    assert!(sidecar.stop().await.unwrap().success());
}

/// F8: the source writes more than the store takes. The backup says what it waits for, and completes when it drops.
#[tokio::test(flavor = "multi_thread")]
async fn a_base_backup_names_its_limit() {
    let server = Server::start(Major::V18).await.unwrap();
    server.sql("create table bulk as select md5(i::text) || md5((-i)::text) m from generate_series(1, 700000) i; create table t(f text)").await.unwrap();
    let store = S3Local::start().unwrap();
    let toxic = Toxic::before(store.store()).unwrap();
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, "").await.unwrap();
    toxic.bandwidth(Some(2 << 20));
    let mut sidecar = site.run().unwrap();
    sidecar.until("holdfast_base_backup_running", |running| running == 1.0, PATIENCE).await.unwrap();
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        // About 8 MiB of log a second.
        server.sql("insert into t select md5(random()::text) || md5(random()::text) from generate_series(1, 20000)").await.unwrap();
        sleep(Duration::from_millis(200)).await;
    }
    let metrics = sidecar.metrics().await.unwrap();
    assert_eq!(metrics.get("holdfast_base_backup_running"), Some(1.0), "{}", metrics.text());
    assert_eq!(metrics.get("holdfast_base_backup_age_seconds"), None);
    assert!(metrics.get("holdfast_at_risk_bytes").unwrap() > 0.0);
    toxic.bandwidth(None);
    sidecar.backed_up(PATIENCE).await.unwrap();
    let metrics = sidecar.metrics().await.unwrap();
    let waited = |side: &str| {
        metrics
            .get(&format!("holdfast_base_backup_waited_seconds{{source=\"main\",for=\"{side}\"}}"))
            .unwrap()
    };
    assert!(waited("store") > waited("source") && waited("store") > 3.0, "{}", metrics.text());
    assert!(sidecar.log().contains("its limit was the store"), "{}", sidecar.log());
    settled(&server, PATIENCE).await.unwrap();
    let rows = server.value("select count(*) from t").await.unwrap();
    assert!(sidecar.stop().await.unwrap().success());
    let restored = site.restored(&server, "latest", &["--latest"]).await.unwrap();
    assert_eq!(restored.value("select count(*) from t").await.unwrap(), rows);
}

/// G2: nothing readable is ever written, and without recipients nothing at all.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_readable_is_written() {
    let server = Server::start(Major::V18).await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    server.sql("create table legible_table as select 'legible contents ' || i as legible_column from generate_series(1, 100) i").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    for row in 0..10 {
        server
            .sql(&format!("insert into legible_table values ('legible contents, too {row}')"))
            .await
            .unwrap();
    }
    server.sql("select pg_create_restore_point('legible name')").await.unwrap();
    settled(&server, PATIENCE).await.unwrap();
    assert!(sidecar.stop().await.unwrap().success());
    let found = files_below(&site.repository());
    assert!(found.len() > 8, "{found:?}");
    for path in &found {
        let bytes = fs::read(path).unwrap();
        let name = path.strip_prefix(site.repository()).unwrap().to_string_lossy().into_owned();
        for word in ["legible", "backup_label", "postgresql.conf", "PG_VERSION", "base/5/"] {
            let legible = bytes.windows(word.len()).any(|window| window == word.as_bytes());
            assert!(!legible && !name.contains(word), "«{word}» can be read in {name}");
        }
    }
    let secret = fs::read_to_string(site.home().join("main.key")).unwrap();
    let secret = secret.split_whitespace().last().unwrap();
    assert!(secret.len() > 20 && !sidecar_log(&site).contains(secret));

    // The ring, which says to whom to seal, is gone.
    for path in found.iter().filter(|path| path.components().any(|part| part.as_os_str() == "ring")) {
        fs::remove_file(path).unwrap();
    }
    let before = files_below(&site.repository()).len();
    server.sql("insert into legible_table values ('one more')").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sleep(Duration::from_secs(4)).await;
    let streaming = sidecar.until_phase("streaming", Duration::from_millis(500)).await;
    assert!(streaming.is_err(), "it writes without knowing for whom");
    assert_eq!(files_below(&site.repository()).len(), before, "{}", sidecar.log());
}

fn sidecar_log(site: &Site) -> String {
    fs::read_to_string(site.home().join("run.log")).unwrap()
}

/// G5, G7, G8: whose cluster, who may read a key, and a key that is lost: said before it is needed.
#[tokio::test(flavor = "multi_thread")]
async fn check_knows_clusters_and_keys() {
    let server = Server::start(Major::V18).await.unwrap();
    let mut site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    assert!(sidecar.stop().await.unwrap().success());

    // G7: nobody but owner and group.
    for (file, command) in [("id.key", "check"), ("main.key", "list")] {
        let path = site.home().join(file);
        for (mode, accepted) in [
            (0o400, true),
            (0o600, true),
            (0o440, true),
            (0o640, true),
            (0o644, false),
            (0o604, false),
            (0o666, false),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let arguments: &[&str] =
                if command == "check" { &["check", "--identity", "id.key"] } else { &["list", "main"] };
            let (code, said) = site.says(arguments.iter().copied()).await.unwrap();
            assert_eq!(code == 0, accepted, "{file} with mode {mode:o}: {said}");
            let mend = format!("{mode:o}");
            assert!(
                accepted || said.contains("chmod 600") && said.contains(&mend),
                "{file} with mode {mode:o}: {said}"
            );
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    // G8: the identity is another one, damaged, or not there.
    site.holdfast(["keygen", "--out", "other.key"]).await.unwrap();
    fs::write(site.home().join("torn.key"), "hf-identity-").unwrap();
    fs::set_permissions(site.home().join("torn.key"), fs::Permissions::from_mode(0o600)).unwrap();
    User::give(&site.home().join("torn.key")).unwrap();
    for lost in ["other.key", "torn.key", "gone.key"] {
        let (code, said) = site.says(["check", "--identity", lost]).await.unwrap();
        let line = said.lines().find(|line| line.starts_with("BAD") && line.contains("identity"));
        assert!(code == 2 && line.is_some(), "{lost}: {code} {said}");
    }
    let (code, said) = site.says(["check", "--identity", "id.key"]).await.unwrap();
    assert!(code == 0 && said.contains("opens the source's key and the newest data key"), "{code} {said}");

    // G5: another cluster under the same name.
    let foreign = Server::start(Major::V18).await.unwrap();
    let (own, other) =
        (server.system_identifier().await.unwrap(), foreign.system_identifier().await.unwrap());
    site.source("main", &foreign.dsn(), "").unwrap();
    let (code, said) = site.says(["check"]).await.unwrap();
    assert!(code == 2 && said.contains(&other.to_string()) && said.contains("source adopt"), "{code} {said}");
    let mut sidecar = site.run().unwrap();
    assert_eq!(sidecar.wait(PATIENCE).await.unwrap().code(), Some(4));
    let said = sidecar.log();
    assert!(said.contains(&other.to_string()) && said.contains(&own.to_string()), "{said}");
}
