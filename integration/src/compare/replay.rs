//! Recovery that reads its log through `wal-fetch`, and recovery from a folder.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use holdfast_harness::{Server, User, process};

use super::Figure;
use crate::Site;

pub const NAME: &str = "replay of 1 GiB of WAL through `wal-fetch`, store 20 ms away";

/// `wish` stops before the big base backup, so that the log from the first, small one is replayed; `folder` holds the
/// same segments.
pub async fn measure(
    site: &Site,
    server: &Server,
    wish: &str,
    folder: &Path,
    memory: &Path,
    bytes: u64,
) -> Result<Figure> {
    let parent = tempfile::Builder::new().prefix("hf-replay-").tempdir_in(memory)?;
    super::open_to_all(parent.path())?;
    let (by_us, by_folder) = (parent.path().join("ours"), parent.path().join("folder"));
    let path = by_us.to_string_lossy().into_owned();
    site.holdfast(["restore", "main", "--identity", "id.key", "--lsn", wish, "--target", &path]).await?;
    process::run(Command::new("cp").arg("-a").arg(&by_us).arg(&by_folder))?;
    let ours = recover(server, &by_us).await?;
    eprintln!("  through wal-fetch {ours:.2?}");
    let settings = by_folder.join("postgresql.auto.conf");
    let mut text = std::fs::read_to_string(&settings)?;
    text.push_str(&format!("\nrestore_command = 'cp {}/%f %p'\n", folder.display()));
    std::fs::write(&settings, text)?;
    User::give(&settings)?;
    let local = recover(server, &by_folder).await?;
    eprintln!("  from a folder {local:.2?}");
    let speed = |time: Duration| bytes as f64 / 1e6 / time.as_secs_f64();
    Ok(Figure::higher(NAME, "MB/s", speed(ours), speed(local), "a local folder"))
}

/// Until the server writes.
async fn recover(like: &Server, data: &Path) -> Result<Duration> {
    let start = Instant::now();
    let server = Server::adopt(like.options().clone(), data).await?;
    server
        .wait_for("select not pg_is_in_recovery()", Duration::from_secs(300))
        .await
        .with_context(|| server.log_tail())?;
    Ok(start.elapsed())
}
