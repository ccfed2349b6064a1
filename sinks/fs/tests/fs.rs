//! The directory store: the suite of all sinks, and what only a file system can do wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use holdfast_core::{
    Act, Random, Sink,
    sink::{Body, Created, Range, list_all},
};
use holdfast_fs::{FsSettings, FsSink};
use holdfast_testkit::SinkSuite;

async fn open(path: &Path) -> FsSink {
    FsSink::open(path, FsSettings::default(), Random::system()).await.unwrap()
}

fn temp_files(path: &Path) -> usize {
    std::fs::read_dir(path.join(".holdfast-tmp")).map_or(0, Iterator::count)
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_a_sink_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path()).await;
    SinkSuite::new(Arc::new(sink), "suite").run().await;
    assert_eq!(temp_files(folder.path()), 0, "nothing unfinished stays behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_exclude_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (open(folder.path()).await, open(folder.path()).await);
    for n in 0..50 {
        let name = format!("log/{n}");
        let (a, b) = tokio::join!(one.create(&name, vec![1; 9].into()), two.create(&name, vec![2; 9].into()));
        let new = [a.unwrap(), b.unwrap()].iter().filter(|c| **c == Created::New).count();
        assert_eq!(new, 1);
    }
}

#[tokio::test]
async fn a_missing_folder_is_not_made_by_accident() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("not-mounted");
    let error = FsSink::open(&path, FsSettings::default(), Random::system()).await.err().unwrap();
    assert_eq!(error.act(), Act::Configure);
    assert!(error.to_string().contains("mounted"), "{error}");
    assert!(!path.exists());
    let settings = FsSettings { create: true, ..Default::default() };
    FsSink::open(&path, settings, Random::system()).await.unwrap();
    assert!(path.is_dir());
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let error = FsSink::open(&file, FsSettings::default(), Random::system()).await.err().unwrap();
    assert_eq!(error.act(), Act::Configure, "{error}");
}

#[tokio::test]
async fn reading_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("a")).unwrap();
    std::fs::write(folder.path().join("a/b"), "bytes").unwrap();
    let sink = open(folder.path()).await;
    assert_eq!(sink.read("a/b", Range::All).await.unwrap().unwrap(), "bytes");
    assert_eq!(list_all(&sink, "", None).await.unwrap().len(), 1);
    assert!(!folder.path().join(".holdfast-tmp").exists());
}

#[tokio::test]
async fn foreign_things_in_the_folder_are_not_objects() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path()).await;
    sink.create("a/object", vec![1].into()).await.unwrap();
    assert_eq!(sink.read("a", Range::All).await.unwrap(), None, "a folder is no object");
    assert_eq!(sink.read("a/object/below", Range::All).await.unwrap(), None, "nothing lies below an object");
    std::fs::write(folder.path().join("a/with space"), "x").unwrap();
    std::fs::write(folder.path().join(".holdfast-tmp/x"), "x").unwrap();
    std::os::unix::fs::symlink("/etc", folder.path().join("etc")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("passwd")).unwrap();
    let lost = folder.path().join("lost+found");
    std::fs::create_dir(&lost).unwrap();
    std::fs::set_permissions(&lost, PermissionsExt::from_mode(0o000)).unwrap();
    let names: Vec<_> = list_all(&sink, "", None).await.unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["a/object"]);
    assert!(sink.read("passwd", Range::All).await.is_err(), "a link out of the repository is not followed");
    assert!(sink.create("passwd", vec![1].into()).await.unwrap() == Created::Exists);
}

#[tokio::test]
async fn only_old_files_of_our_own_are_cleaned() {
    let folder = tempfile::tempdir().unwrap();
    let temp = folder.path().join(".holdfast-tmp");
    std::fs::create_dir(&temp).unwrap();
    let id = "0123456789abcdef0123456789abcdef";
    let make = |name: &str, age: u64| {
        let file = std::fs::File::create(temp.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    };
    make(&format!("{id}.part"), 2 * 3600);
    make(&format!("{}.part", id.replace('0', "f")), 60);
    make("somebody-elses", 2 * 3600);
    let sink = open(folder.path()).await;
    sink.create("a", vec![1].into()).await.unwrap();
    let mut left: Vec<_> =
        std::fs::read_dir(&temp).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, [format!("{}.part", id.replace('0', "f")), "somebody-elses".to_owned()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_20_000_names_is_listed_in_pages() {
    let folder = tempfile::tempdir().unwrap();
    let packs = folder.path().join("packs");
    std::fs::create_dir(&packs).unwrap();
    for n in 0..20_000 {
        std::fs::write(packs.join(format!("{:08x}", n * 7919 % 20_000)), "").unwrap();
    }
    let sink = open(folder.path()).await;
    let began = Instant::now();
    let all = list_all(&sink, "packs/", None).await.unwrap();
    assert_eq!(all.len(), 20_000);
    assert!(all.windows(2).all(|w| w[0].name < w[1].name));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let one = sink.list("packs/", Some("packs/00000800"), 1).await.unwrap();
    assert_eq!((one.entries[0].name.as_str(), one.more), ("packs/00000801", true));
}

#[tokio::test]
async fn many_empty_folders_do_not_hide_what_comes_after() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..700 {
        std::fs::create_dir(folder.path().join(format!("e{n:04}"))).unwrap();
    }
    let sink = open(folder.path()).await;
    sink.create("zz/last", vec![1].into()).await.unwrap();
    let page = sink.list("", None, 1).await.unwrap();
    assert_eq!(page.entries.len(), 1);
    assert!(!page.more);
}

#[tokio::test]
async fn a_folder_removed_behind_our_back_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path()).await;
    sink.create("a/b/1", vec![1].into()).await.unwrap();
    std::fs::remove_dir_all(folder.path().join("a")).unwrap();
    std::fs::remove_dir_all(folder.path().join(".holdfast-tmp")).unwrap();
    let first = sink.create("a/b/2", vec![1].into()).await;
    assert!(first.is_err_and(|error| error.act() == Act::Retry));
    assert_eq!(sink.create("a/b/2", vec![1].into()).await.unwrap(), Created::New);
}

#[tokio::test]
async fn a_file_in_the_way_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path()).await;
    std::fs::write(folder.path().join("log"), "x").unwrap();
    let error = sink.create("log/1", vec![1].into()).await.unwrap_err();
    assert_eq!(error.act(), Act::Configure, "{}", error.chain());
    assert!(error.to_string().contains("«log/1»"), "{error}");
    assert_eq!(temp_files(folder.path()), 0);
}

/// Runs this test binary's `inside` test in a user namespace with a file system of its own.
fn in_own_mount(mount: &str, test: &str) -> Option<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    let script = format!("{mount} && exec \"$0\" --exact {test} --ignored --nocapture");
    let probe = Command::new("unshare").args(["-rm", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!(
            "skipped: user namespaces are not allowed here, so no file system of our own can be mounted"
        );
        return None;
    }
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-ec", &script])
        .arg(std::env::current_exe().unwrap())
        .env("HOLDFAST_TEST_MOUNT", &path)
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
    Some(())
}

#[test]
fn a_full_disk_passes_once_there_is_room() {
    in_own_mount("mount -t tmpfs -o size=3m tmpfs \"$HOLDFAST_TEST_MOUNT\"", "inside_full_disk");
}

#[tokio::test]
#[ignore = "run by a_full_disk_passes_once_there_is_room, inside a small file system"]
async fn inside_full_disk() {
    let path = std::env::var("HOLDFAST_TEST_MOUNT").unwrap();
    let path = Path::new(&path);
    let sink = open(path).await;
    sink.create("packs/1", vec![1; 1 << 20].into()).await.unwrap();
    let body = Body::from(vec![2; 3 << 20]);
    let error = sink.create("packs/2", body.clone()).await.unwrap_err();
    assert_eq!(error.act(), Act::Retry, "{}", error.chain());
    assert!(error.to_string().contains("full"), "{error}");
    assert_eq!(temp_files(path), 0, "the unfinished file takes no space");
    assert_eq!(sink.read("packs/2", Range::All).await.unwrap(), None);
    sink.create("packs/3", vec![3; 1000].into()).await.unwrap();
    sink.remove(&["packs/1".to_owned()]).await.unwrap();
    let body = Body::from(vec![2; 2 << 20]);
    assert_eq!(sink.create("packs/2", body).await.unwrap(), Created::New);
}

#[test]
fn a_read_only_file_system_can_be_read_and_says_what_to_do() {
    in_own_mount(
        "mount -t tmpfs tmpfs \"$HOLDFAST_TEST_MOUNT\" && mkdir \"$HOLDFAST_TEST_MOUNT/a\" && \
         echo hello > \"$HOLDFAST_TEST_MOUNT/a/b\" && mount -o remount,ro \"$HOLDFAST_TEST_MOUNT\"",
        "inside_read_only",
    );
}

#[tokio::test]
#[ignore = "run by a_read_only_file_system_can_be_read_and_says_what_to_do, inside one"]
async fn inside_read_only() {
    let path = std::env::var("HOLDFAST_TEST_MOUNT").unwrap();
    let sink = open(Path::new(&path)).await;
    assert_eq!(sink.read("a/b", Range::All).await.unwrap().unwrap(), "hello\n");
    for error in [
        sink.create("a/c", vec![1].into()).await.unwrap_err(),
        sink.capabilities().await.unwrap_err(),
        sink.remove(&["a/b".to_owned()]).await.unwrap_err(),
    ] {
        assert_eq!(error.act(), Act::Configure, "{}", error.chain());
        assert!(error.to_string().contains("read-only"), "{error}");
    }
}

/// An NFS server leaves `.nfs…` where a file was removed that somebody reads; such a name is no object's.
#[tokio::test]
async fn names_with_a_leading_dot_are_nobodys() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/c");
    let settings = FsSettings { create: true, ..Default::default() };
    let sink = FsSink::open(&path, settings, Random::system()).await.unwrap();
    sink.create("log/1", vec![1].into()).await.unwrap();
    std::fs::write(path.join("log/.nfs0000000000c0ffee"), "x").unwrap();
    std::fs::create_dir(path.join("log/.snapshot")).unwrap();
    std::fs::write(path.join("log/.snapshot/1"), "x").unwrap();
    let names: Vec<String> =
        list_all(&sink, "log/", None).await.unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["log/1"]);
}
