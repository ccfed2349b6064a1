//! The harness's own promises: every major starts, crashes, comes back, is cloned and promoted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::time::Duration;

use holdfast_harness::{Major, Options, Server, Stop};

#[tokio::test]
async fn each_major_survives_a_kill() {
    for major in Major::ALL {
        let mut server = Server::start(major).await.unwrap();
        let version: u32 = server.value("show server_version_num").await.unwrap().parse().unwrap();
        assert_eq!(version / 10000, major.number());
        server.sql("create table t (n int); insert into t select generate_series(1, 100)").await.unwrap();
        server.kill();
        server.start_again().await.unwrap();
        assert_eq!(server.value("select count(*) from t").await.unwrap(), "100");
        server.stop(Stop::Fast).await.unwrap();
    }
}

#[tokio::test]
async fn each_start_is_a_cluster_of_its_own() {
    let one = Server::start(Major::V18).await.unwrap();
    let two = Server::start(Major::V18).await.unwrap();
    assert_ne!(one.system_identifier().await.unwrap(), two.system_identifier().await.unwrap());
}

#[tokio::test]
async fn a_standby_follows_and_is_promoted() {
    for major in Major::ENDS {
        let primary = Server::start(Options::new(major).segment_mib(1)).await.unwrap();
        primary.sql("create table t (n int)").await.unwrap();
        let standby = Server::standby_of(&primary, "copy").await.unwrap();
        primary.sql("insert into t values (7)").await.unwrap();
        let seen = "select exists (select from t where n = 7)";
        standby.wait_for(seen, Duration::from_secs(20)).await.unwrap();
        standby.promote().await.unwrap();
        standby.sql("insert into t values (8)").await.unwrap();
    }
}

#[tokio::test]
async fn a_clone_of_a_running_server_has_its_identity() {
    let server = Server::start(Major::V16).await.unwrap();
    server.sql("create table t as select 1 as n").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    server.clone_folder(&folder.path().join("data")).await.unwrap();
    // tempdir is ours alone; the server must be able to walk through it
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let clone = Server::adopt(Major::V16, &folder.path().join("data")).await.unwrap();
    assert_eq!(clone.system_identifier().await.unwrap(), server.system_identifier().await.unwrap());
    assert_eq!(clone.value("select n from t").await.unwrap(), "1");
}

#[tokio::test]
async fn a_paused_server_answers_nobody() {
    let server = Server::start(Options::debian()).await.unwrap();
    server.pause();
    let answer = tokio::time::timeout(Duration::from_millis(300), server.value("select 1")).await;
    assert!(answer.is_err());
    server.resume();
    assert_eq!(server.value("select 1").await.unwrap(), "1");
}

#[test]
fn servers_end_when_their_owner_is_killed() {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_owner_to_be_killed", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let line = lines.find_map(|line| line.unwrap().strip_prefix("server ").map(str::to_owned)).unwrap();
    let (pid, home) = line.split_once(' ').unwrap();
    let pid: u32 = pid.parse().unwrap();
    let children = holdfast_harness::process::children(pid);
    assert!(!children.is_empty());
    owner.kill().unwrap();
    owner.wait().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while std::iter::once(&pid).chain(&children).any(|pid| holdfast_harness::process::alive(*pid)) {
        assert!(std::time::Instant::now() < deadline, "the server outlived its owner");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::remove_dir_all(home).unwrap();
}

#[tokio::test]
#[ignore = "run by servers_end_when_their_owner_is_killed"]
async fn an_owner_to_be_killed() {
    let server = Server::start(Major::V18).await.unwrap();
    println!("\nserver {} {}", server.pid().unwrap(), server.socket_folder().display());
    std::future::pending::<()>().await;
}
