//! Server and holdfast killed at once, both disks gone.

use std::time::Duration;

use anyhow::Result;
use holdfast_harness::Server;
use tokio::time::Instant;

use super::{Figure, Scale, StoreProcess, commit};
use crate::{Place, Workload, judge};

pub const NAME: &str =
    "rows lost: SIGKILL of Postgres **and** holdfast, both disks gone, `ack = \"remote\"`, 20 kills";

pub async fn measure(store: &mut StoreProcess, scale: Scale) -> Result<Vec<Figure>> {
    store.delay(Duration::from_millis(20))?;
    let (mut lost, mut acknowledged) = (0, 0);
    for kill in 0..scale.count(20) {
        let (there, gone) = once(store, kill).await?;
        acknowledged += there;
        lost += gone;
    }
    eprintln!("  {acknowledged} commits acknowledged in all");
    Ok(vec![Figure::lower(NAME, "rows", lost as f64, 0.0, "our bound")])
}

async fn once(store: &StoreProcess, kill: u32) -> Result<(u64, usize)> {
    store.empty()?;
    let (mut server, site, sidecar): (Server, _, _) =
        commit::started(Place::S3(store.away()), "ack = \"remote\"").await?;
    super::set(&server, "synchronous_standby_names", "holdfast").await?;
    let workload = Workload::start(&server, 8, 0).await?;
    tokio::time::sleep(Duration::from_millis(700 + u64::from(kill) * 37)).await;
    server.kill();
    sidecar.kill();
    let end = Instant::now();
    let journal = workload.stop().await;
    tokio::fs::remove_dir_all(server.data()).await?;
    tokio::fs::remove_dir_all(site.home().join("state")).await?;
    let other = site.another()?;
    let restored = other.restored(&server, "restored", &["--latest"]).await?;
    let verdict = judge(&restored, &journal, end).await?;
    Ok((verdict.acknowledged, verdict.lost.len()))
}
