//! How fast log that piled up at the server gets away.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use holdfast_harness::{Server, process};

use super::{Figure, PgBackRest};
use crate::{Sidecar, Site};

pub const NAME: &str = "WAL backlog of 2 GiB drained";

/// Both drain the same log of the same server, which keeps it until both have.
pub async fn measure(
    site: &Site,
    server: &Server,
    peer: &PgBackRest,
    bytes: u64,
) -> Result<(Sidecar, Figure)> {
    let end = server.value("select pg_switch_wal()").await?;
    let start = Instant::now();
    let sidecar = site.run()?;
    let done =
        format!("select coalesce((select flush_lsn >= '{end}' from pg_stat_replication limit 1), false)");
    until(server, &done, &sidecar).await?;
    let ours = start.elapsed();
    let cpu = process::cpu_time(sidecar.pid()).unwrap_or_default();
    eprintln!("  ours drained {} MiB in {ours:.2?}, CPU {cpu:.2?}", bytes >> 20);

    peer.run(&["stanza-create"]).await?;
    let name = server.value("select pg_walfile_name(pg_current_wal_lsn() - 1)").await?;
    let start = Instant::now();
    super::set(server, "archive_command", &peer.archive_command()).await?;
    server.sql("select pg_switch_wal()").await?;
    let done =
        format!("select coalesce((select last_archived_wal >= '{name}' from pg_stat_archiver), false)");
    until(server, &done, &sidecar).await?;
    let theirs = start.elapsed();
    super::set(server, "archive_command", "/bin/true").await?;
    eprintln!("  pgBackRest in {theirs:.2?}");
    let speed = |time: Duration| bytes as f64 / 1e6 / time.as_secs_f64();
    Ok((sidecar, Figure::higher(NAME, "MB/s", speed(ours), speed(theirs), "pgBackRest")))
}

async fn until(server: &Server, query: &str, sidecar: &Sidecar) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(400);
    let client = server.client().await?;
    loop {
        let row = client.query_one(query, &[]).await?;
        if row.get::<_, bool>(0) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!(
                "the log was not drained within 400 s:\n{}\n{}",
                server.log_tail(),
                process::tail(&sidecar.log(), 20)
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
