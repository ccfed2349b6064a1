//! Base backups and restores of their files.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use holdfast_harness::{Server, process};

use super::{Figure, PgBackRest, bulk, children_time, server_time};
use crate::{Sidecar, Site};

pub const BASE: &str = "base backup of 2 GiB to S3";
pub const CPU: &str = "CPU seconds per GiB of base backup (ours + the server's)";
pub const SECOND: &str = "second base backup, 1 % changed";
pub const RESTORE: &str = "restore of 2 GiB from S3, until all files are there";

struct Cost {
    time: Duration,
    cpu: Duration,
    sent: f64,
}

/// One base backup on demand, from the order until it is durable in the stream.
async fn take(site: &Site, server: &Server, sidecar: &mut Sidecar) -> Result<Cost> {
    let age = "holdfast_restorable_from_seconds";
    let sent = "holdfast_store_bytes_total{operation=\"create\"}";
    let before = sidecar.metrics().await?;
    let known = before.get(age).unwrap_or(0.0);
    let cpu_of =
        |sidecar: &Sidecar| process::cpu_time(sidecar.pid()).unwrap_or_default() + server_time(server);
    let cpu = cpu_of(sidecar);
    let start = Instant::now();
    site.holdfast(["base-backup", "main"]).await?;
    sidecar.until(age, |began| began > known, Duration::from_secs(300)).await?;
    let time = start.elapsed();
    let after = sidecar.metrics().await?;
    Ok(Cost {
        time,
        cpu: cpu_of(sidecar).saturating_sub(cpu),
        sent: after.get(sent).unwrap_or(0.0) - before.get(sent).unwrap_or(0.0),
    })
}

async fn peer_takes(server: &Server, peer: &PgBackRest) -> Result<Cost> {
    let cpu = children_time() + server_time(server);
    let start = Instant::now();
    peer.run(&["backup", "--type=full"]).await?;
    let time = start.elapsed();
    Ok(Cost { time, cpu: (children_time() + server_time(server)).saturating_sub(cpu), sent: 0.0 })
}

/// Ours and the peer's in turn, then ours again after a small change.
pub async fn measure(
    site: &Site,
    server: &Server,
    sidecar: &mut Sidecar,
    peer: &PgBackRest,
) -> Result<Vec<Figure>> {
    bulk::settle(server).await?;
    let bytes = bulk::size(server).await? as f64;
    let first = take(site, server, sidecar).await?;
    eprintln!(
        "  ours {:.2?}, CPU {:.2?}, sent {:.0} MB of {:.0}",
        first.time,
        first.cpu,
        first.sent / 1e6,
        bytes / 1e6
    );
    let theirs = peer_takes(server, peer).await?;
    eprintln!("  pgBackRest {:.2?}, CPU {:.2?}", theirs.time, theirs.cpu);

    // Pages in the middle of a table, and as many new ones at its end.
    let pages = (bytes / 100.0) as u64 / 8192 / 2;
    server.sql(&format!("update bulk_0 set account = account + 1 where ctid < '({pages},0)'::tid")).await?;
    server.sql("checkpoint").await?;
    let second = take(site, server, sidecar).await?;
    eprintln!("  again: {:.2?}, CPU {:.2?}, sent {:.1} MB", second.time, second.cpu, second.sent / 1e6);
    let speed = |cost: &Cost| bytes / 1e6 / cost.time.as_secs_f64();
    let per_gib = |cost: &Cost| cost.cpu.as_secs_f64() / (bytes / (1u64 << 30) as f64);
    Ok(vec![
        Figure::higher(BASE, "MB/s", speed(&first), speed(&theirs), "pgBackRest"),
        Figure::lower(CPU, "s", per_gib(&first), per_gib(&theirs), "pgBackRest"),
        Figure::lower(SECOND, "of the bytes", second.sent / first.sent, 0.05, "our bound"),
    ])
}

/// Restores in turn by each, of which the fastest counts: memory that the machine must first be given makes whoever
/// meets it slow.
const ROUNDS: usize = 3;

pub async fn restore(site: &Site, server: &Server, peer: &PgBackRest, memory: &Path) -> Result<Vec<Figure>> {
    let bytes = bulk::size(server).await? as f64;
    let mut figures = Vec::new();
    for (place, folder) in [("tmpfs", memory), ("disk", Path::new("/tmp"))] {
        let parent = tempfile::Builder::new().prefix("hf-restore-").tempdir_in(folder)?;
        super::open_to_all(parent.path())?;
        let target = parent.path().join("data");
        let path = target.to_string_lossy().into_owned();
        let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            site.holdfast(["restore", "main", "--identity", "id.key", "--immediate", "--target", &path])
                .await?;
            let our_time = start.elapsed();
            tokio::fs::remove_dir_all(&target).await?;
            let start = Instant::now();
            peer.restore(&target).await?;
            let their_time = start.elapsed();
            tokio::fs::remove_dir_all(&target).await?;
            eprintln!("  {place}: ours {our_time:.2?}, pgBackRest {their_time:.2?}");
            (ours, theirs) = (ours.min(our_time), theirs.min(their_time));
        }
        let speed = |time: Duration| bytes / 1e6 / time.as_secs_f64();
        let name = format!("{RESTORE}: {place}");
        figures.push(Figure::higher(name, "MB/s", speed(ours), speed(theirs), "pgBackRest"));
    }
    Ok(figures)
}
