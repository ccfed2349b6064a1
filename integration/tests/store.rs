//! What a store can do to us: away, silent, careless with conditions, full, with rights and credentials that change.
//! Nothing is lost, and it goes on by itself. Times of the issue are scaled where a test says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, Instant},
};

use holdfast_harness::{
    Cable, Conditions, Disk, Major, S3Local, Server, Store, User,
    toxic::{Fault, Rule, Toxic},
};
use holdfast_integration::{Metrics, Place, Sidecar, Site, Workload, judge, settled};
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(60);

/// What an attempt without any answer may take (D9).
const ABANDONED: Duration = Duration::from_secs(30);

/// The host goes, with all that ran on it: every acknowledged commit that was settled is in the restore.
async fn nothing_is_lost(site: &Site, mut server: Server, sidecar: Sidecar, workload: Workload) {
    workload.pause().await;
    settled(&server, PATIENCE).await.unwrap();
    assert_eq!(sidecar.metrics().await.unwrap().get("holdfast_gaps"), Some(0.0));
    server.kill();
    sidecar.kill();
    let (journal, end) = (workload.stop().await, tokio::time::Instant::now());
    let restored = site.restored(&server, "latest", &["--latest"]).await.unwrap();
    let verdict = judge(&restored, &journal, end).await.unwrap();
    assert!(verdict.acknowledged > 50 && verdict.lost.is_empty(), "{verdict:?}");
}

fn stored(metrics: &Metrics) -> f64 {
    metrics.get("holdfast_log_objects_total{source=\"main\",stage=\"stored\"}").unwrap()
}

/// Three stores at once, since most of the time is waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_down_or_silent_or_behind_a_black_hole() {
    tokio::join!(down_for_ten_minutes(), never_answering(), behind_a_black_hole());
}

/// Ten minutes at the default heartbeat of 20 s are scaled to thirty seconds at 1 s.
async fn down_for_ten_minutes() {
    const DOWN: Duration = Duration::from_secs(30);
    let server = Server::start(Major::V18).await.unwrap();
    let store = S3Local::start().unwrap();
    let mut toxic = Toxic::before(store.store()).unwrap();
    let place = Place::S3(toxic.store().clone());
    let site = Site::ready(place, &server, "heartbeat = \"1s\"").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let workload = Workload::start(&server, 4, 40).await.unwrap();
    settled(&server, PATIENCE).await.unwrap();

    toxic.down();
    let went = Instant::now();
    let ready = loop {
        let ready = sidecar.ready().await.unwrap();
        if ready.contains("503") {
            break ready;
        }
        assert!(went.elapsed() < DOWN - Duration::from_secs(5), "still ready without a store: {ready}");
        sleep(Duration::from_millis(200)).await;
    };
    assert!(ready.contains(toxic.store().bucket.as_str()), "what holdfast waits for is not said: {ready}");
    sleep((DOWN / 2).saturating_sub(went.elapsed())).await;
    let metrics = sidecar.metrics().await.unwrap();
    let before = metrics.get("holdfast_at_risk_seconds").unwrap();
    assert!(
        before > DOWN.as_secs_f64() / 2.0 - 2.0,
        "at risk {before} s, {:?} without a store",
        went.elapsed()
    );
    assert_eq!(metrics.get("holdfast_store_answers"), Some(0.0));
    assert!(metrics.get("holdfast_store_retries_total").unwrap() > 0.0);
    let committed = workload.journal().acknowledged();

    let asked = Instant::now();
    let ended = sidecar.stop().await.unwrap();
    assert!(ended.success(), "{ended}");
    // The default stop_grace.
    assert!(asked.elapsed() < Duration::from_secs(11), "a stop without a store took {:?}", asked.elapsed());
    let mut sidecar = site.run().unwrap();
    sleep(DOWN.saturating_sub(went.elapsed())).await;
    assert!(workload.journal().acknowledged() > committed, "commits waited for a store that was away");
    toxic.up().unwrap();
    sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    sidecar.until("holdfast_at_risk_seconds", |at_risk| at_risk < 5.0, PATIENCE).await.unwrap();
    let ready = sidecar.ready().await.unwrap();
    assert!(ready.contains("200 OK"), "{ready}");
    nothing_is_lost(&site, server, sidecar, workload).await;
}

/// D13: connections are taken and no request is ever answered.
async fn never_answering() {
    let server = Server::start(Major::V18).await.unwrap();
    let store = S3Local::start().unwrap();
    let toxic = Toxic::before(store.store()).unwrap();
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let workload = Workload::start(&server, 4, 40).await.unwrap();
    settled(&server, PATIENCE).await.unwrap();
    toxic.set([Rule::new(Fault::Silence)]);
    let committed = workload.journal().acknowledged();
    sidecar.until("holdfast_store_answers", |answers| answers == 0.0, ABANDONED).await.unwrap();
    let at_risk = sidecar.metrics().await.unwrap().get("holdfast_at_risk_seconds").unwrap();
    assert!(at_risk > 10.0, "{at_risk}");
    assert!(workload.journal().acknowledged() > committed + 200, "commits wait for a store in async mode");
    toxic.clear();
    nothing_is_lost(&site, server, sidecar, workload).await;
}

/// D9: the connections are there and carry nothing any more; new ones work. Nobody does anything.
async fn behind_a_black_hole() {
    let server = Server::start(Major::V18).await.unwrap();
    let store = S3Local::start().unwrap();
    let port = store.store().endpoint.rsplit(':').next().unwrap().parse().unwrap();
    let cable = Cable::to(port).unwrap();
    let endpoint = format!("http://127.0.0.1:{}", cable.port());
    let place = Place::S3(Store { endpoint, ..store.store().clone() });
    let site = Site::ready(place, &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let workload = Workload::start(&server, 4, 40).await.unwrap();
    settled(&server, PATIENCE).await.unwrap();
    cable.strand();
    let stranded = Instant::now();
    sleep(Duration::from_secs(2)).await;
    settled(&server, ABANDONED).await.unwrap();
    // A stall_timeout (20 s by default), not luck.
    assert!(stranded.elapsed() > Duration::from_secs(10), "nothing was stranded");
    nothing_is_lost(&site, server, sidecar, workload).await;
}

/// Such as B2: `If-None-Match` is taken and ignored.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_create_only_writes() {
    let server = Server::start(Major::V18).await.unwrap();
    let store = S3Local::start_with(Conditions::Ignored, None).unwrap();
    let settings = "max_lag = \"200ms\"\nheartbeat = \"1s\"";
    let site = Site::ready(Place::S3(store.store().clone()), &server, settings).await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let workload = Workload::start(&server, 4, 40).await.unwrap();
    for _ in 0..2 {
        let so_far = workload.journal().acknowledged();
        workload.until(so_far + 60, PATIENCE).await.unwrap();
        sidecar.kill();
        sidecar = site.run().unwrap();
        sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    }
    // Names of epochs carry the writer where the store cannot keep a second one out.
    let epochs = names_below(store.objects(), "epochs");
    assert!(epochs.len() == 3 && epochs.iter().all(|name| name.contains('-')), "{epochs:?}");
    nothing_is_lost(&site, server, sidecar, workload).await;
}

/// The files of all folders of this name, and in the folders of theirs.
fn names_below(folder: &Path, parent: &str) -> Vec<String> {
    let (mut names, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if folder.components().any(|part| part.as_os_str() == parent) {
                names.push(path.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
    }
    names
}

/// D5: put, get and list are granted, nothing else. An hour is scaled to the time in which small objects are merged
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_credential_that_may_not_delete() {
    let server = Server::start(Major::V18).await.unwrap();
    let store = S3Local::start().unwrap();
    let toxic = Toxic::before(store.store()).unwrap();
    toxic.set([
        Rule::new(Fault::Status(403)).method("DELETE".parse().unwrap()),
        Rule::new(Fault::Status(403)).method("POST".parse().unwrap()),
        Rule::new(Fault::Status(403)).path("?versioning"),
        Rule::new(Fault::Status(403)).path("?object-lock"),
    ]);
    let settings = "max_lag = \"50ms\"";
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, settings).await.unwrap();
    let before = toxic.passed().removals;
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let workload = Workload::start(&server, 4, 80).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while stored(&sidecar.metrics().await.unwrap()) < 140.0 {
        assert!(Instant::now() < deadline, "{}", sidecar.log());
        sleep(Duration::from_millis(100)).await;
    }
    let log = sidecar.log();
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
    // One request for the probe and one for each merged object, and a no is taken for an answer.
    let (asked, merged) =
        (toxic.passed().removals - before, names_below(store.objects(), "merged").len() as u64);
    assert!(merged >= 2 && asked <= 1 + merged, "{asked} requests to remove something, {merged} merges");
    nothing_is_lost(&site, server, sidecar, workload).await;
}

/// D7: two minutes and ten are scaled to some seconds: credentials end several times while a base backup runs, at
/// times before their successors are at hand.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_end_while_a_base_backup_runs() {
    let server = Server::start(Major::V18).await.unwrap();
    server
        .sql("create table filler as select md5(i::text) || md5((-i)::text) || md5((i * 7)::text) m from generate_series(1, 400000) i")
        .await
        .unwrap();
    let mut store = S3Local::start().unwrap();
    let toxic = Toxic::before(store.store()).unwrap();
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, "").await.unwrap();
    let files = [site.home().join("access"), site.home().join("secret")];
    let write = |access: &str, secret: &str| {
        for (path, text) in files.iter().zip([access, secret]) {
            let fresh = path.with_extension("new");
            fs::write(&fresh, text).unwrap();
            fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600)).unwrap();
            User::give(&fresh).unwrap();
            fs::rename(&fresh, path).unwrap();
        }
    };
    let first = store.store().clone();
    write(&first.access_key, &first.secret_key);
    let mut command = site.command(["run"]).unwrap();
    command
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY")
        .env("HOLDFAST_REPOSITORY__S3__ACCESS_KEY_FILE", &files[0])
        .env("HOLDFAST_REPOSITORY__S3__SECRET_KEY_FILE", &files[1]);
    toxic.bandwidth(Some(2 << 20));
    let mut sidecar = site.run_as(command).unwrap();
    let workload = Workload::start(&server, 2, 20).await.unwrap();
    sidecar.until("holdfast_base_backup_taken_bytes", |bytes| bytes > 0.0, PATIENCE).await.unwrap();
    for (round, late) in [0, 0, 2].into_iter().enumerate() {
        let (access, secret) = (format!("AKIAROUND00000000000{round}"), format!("secret-of-round-{round}"));
        if late == 0 {
            write(&access, &secret);
            store.accept_only(&access, &secret);
        } else {
            store.accept_only(&access, &secret);
            sleep(Duration::from_secs(late)).await;
            write(&access, &secret);
        }
        sleep(Duration::from_secs(1)).await;
    }
    let metrics = sidecar.metrics().await.unwrap();
    assert_eq!(metrics.get("holdfast_base_backup_age_seconds"), None, "it ended before its credentials did");
    toxic.bandwidth(None);
    sidecar.backed_up(PATIENCE).await.unwrap();
    sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    assert!(!sidecar.log().contains("ERROR"), "{}", sidecar.log());
    // Commands read theirs from the environment.
    let mut site = site;
    let now = Store { endpoint: first.endpoint.clone(), ..store.store().clone() };
    site.move_to(Place::S3(now)).unwrap();
    nothing_is_lost(&site, server, sidecar, workload).await;
}

/// The folder's disk fills under load, and gets space again.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_the_repository() {
    let mut server = Server::start(Major::V18).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let disk = Disk::mount(&folder.path().join("disk"), 200).unwrap();
    let site = Site::ready(Place::At(disk.place().join("repository")), &server, "").await.unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let workload = Workload::start(&server, 4, 40).await.unwrap();
    settled(&server, PATIENCE).await.unwrap();

    disk.fill().unwrap();
    sidecar.until_says("full", PATIENCE).await.unwrap();
    sidecar.until("holdfast_at_risk_seconds", |at_risk| at_risk > 5.0, PATIENCE).await.unwrap();
    let committed = workload.journal().acknowledged();
    workload.until(committed + 40, PATIENCE).await.unwrap();
    assert!(server.is_running());
    // Killed and started anew while it is full: it waits.
    sidecar.kill();
    let mut sidecar = site.run().unwrap();
    sleep(Duration::from_secs(3)).await;
    sidecar.metrics().await.unwrap();
    disk.make_space().unwrap();
    sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    assert!(server.is_running());
    nothing_is_lost(&site, server, sidecar, workload).await;
    let (code, said) = site.says(["verify", "main", "--identity", "id.key"]).await.unwrap();
    assert_eq!(code, 0, "{said}");
}

/// State is a cache: a running process needs no more of it, and one that starts says what is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_the_state() {
    let server = Server::start(Major::V18).await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let disk = Disk::mount(&site.home().join("state"), 1).unwrap();
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let workload = Workload::start(&server, 4, 40).await.unwrap();
    disk.fill().unwrap();
    let so_far = workload.journal().acknowledged();
    workload.until(so_far + 60, PATIENCE).await.unwrap();
    settled(&server, PATIENCE).await.unwrap();
    sidecar.kill();
    // Its folder and instance id are there already: a full disk does not keep it from going on.
    let mut sidecar = site.run().unwrap();
    sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    let so_far = workload.journal().acknowledged();
    workload.until(so_far + 60, PATIENCE).await.unwrap();
    sidecar.stop().await.unwrap();

    // Without an id of before it cannot make one.
    disk.make_space().unwrap();
    fs::remove_dir_all(disk.place().join("main")).unwrap();
    disk.fill().unwrap();
    let mut refused = site.run().unwrap();
    let ended = refused.wait(PATIENCE).await.unwrap();
    assert_eq!(ended.code(), Some(2), "{}", refused.log());
    assert!(refused.log().contains("No space left"), "{}", refused.log());
    assert!(refused.log().contains(&*disk.place().to_string_lossy()), "{}", refused.log());
    disk.make_space().unwrap();
    let mut sidecar = site.run_with(&["--take-over"]).unwrap();
    sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    nothing_is_lost(&site, server, sidecar, workload).await;
}
