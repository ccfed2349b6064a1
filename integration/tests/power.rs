//! Loss of power in the middle of a restore, on a machine that is really switched off (E17).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::time::Duration;

use holdfast_harness::{Machine, Major, Server};
use holdfast_integration::{Place, Site, settled};
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_goes_on_after_the_power_was_cut() {
    let server = Server::start(Major::V18).await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    // Random bytes, so that the restore has something to write.
    let row = "select i, gen_random_uuid()::text || gen_random_uuid()::text from generate_series(1, 40000) i";
    for table in 0..24 {
        server.sql(&format!("create table filler_{table} as {row}")).await.unwrap();
    }
    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let end = server.value("select pg_current_wal_flush_lsn()").await.unwrap();
    settled(&server, PATIENCE).await.unwrap();
    sidecar.stop().await.unwrap();

    let folder = tempfile::Builder::new().prefix("hf-machine-").tempdir_in("/tmp").unwrap();
    let machine = Machine::new(folder.path(), 1024).unwrap();
    let disk = machine.disk();
    let restore = |name: &str| {
        let target = disk.join(name);
        let fixed = ["restore", "main", "--identity", "id.key", "--owner", "postgres", "--lsn", &end];
        site.line(fixed.into_iter().chain(["--target", &target.to_string_lossy()])).unwrap()
    };
    let empty = machine.written().unwrap();
    // Cut when so many MiB have reached the disk, each time in the same restore.
    for mib in [8, 40, 72] {
        let mut running = machine.start(&restore("cut")).unwrap();
        while machine.written().unwrap() < empty + (mib << 20) {
            assert!(!running.ended().unwrap(), "the restore was over before {mib} MiB were written");
            sleep(Duration::from_millis(5)).await;
        }
        running.cut_power();
    }
    // Both end in the same files; only what names the target differs.
    let same = format!(
        "{} && {} && cd {} && diff -r --exclude=postgresql.auto.conf --exclude=restore.json cut whole",
        restore("cut"),
        restore("whole"),
        disk.display()
    );
    machine.start(&same).unwrap().wait(PATIENCE).await.unwrap();
}
