//! Many small files: what a cluster of 100,000 relations takes in memory, to back up and to restore.

use std::{sync::atomic::Ordering, time::Duration};

use anyhow::{Result, bail};
use holdfast_harness::{Major, Options, process};

use super::{Figure, Scale, StoreProcess, bulk, sample_memory};
use crate::{Place, Site};

pub const NAME: &str = "resident memory with 100,000 relations";

pub async fn measure(store: &mut StoreProcess, scale: Scale) -> Result<Vec<Figure>> {
    store.delay(Duration::ZERO)?;
    let count = scale.count(100_000);
    let options = [("fsync", "off"), ("autovacuum", "off"), ("max_locks_per_transaction", "1024")]
        .iter()
        .fold(Options::new(Major::V18), |options, (name, value)| options.set(name, value));
    let server = options.home(bulk::memory()).start().await?;
    for first in (0..count).step_by(1000) {
        let last = (first + 1000).min(count) - 1;
        let text = format!(
            "do $$ begin for i in {first}..{last} loop execute 'create table many_' || i || ' as select ' || i || ' as id'; \
             end loop; end $$"
        );
        server.sql(&text).await?;
    }
    let site = Site::ready(Place::S3(store.away()), &server, "").await?;
    let mut sidecar = site.run()?;
    sidecar.until("holdfast_base_backup_age_seconds", |age| age >= 0.0, Duration::from_secs(400)).await?;
    let tailing = process::peak_memory(sidecar.pid()).unwrap_or(0);
    sidecar.stop().await?;

    let parent = tempfile::Builder::new().prefix("hf-many-").tempdir_in(bulk::memory())?;
    super::open_to_all(parent.path())?;
    let target = parent.path().join("data").to_string_lossy().into_owned();
    let mut child = site
        .command(["restore", "main", "--identity", "id.key", "--immediate", "--target", &target])?
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()?;
    let (peak, watch) = sample_memory(child.id());
    let status = tokio::task::spawn_blocking(move || child.wait()).await??;
    watch.abort();
    if !status.success() {
        bail!("the restore of {count} relations ended with {status}");
    }
    let figure = |what: &str, bytes: u64| {
        let mib = bytes as f64 / f64::from(1 << 20);
        Figure::lower(format!("{NAME}: {what}"), "MiB", mib, 256.0, "our bound")
    };
    Ok(vec![figure("base backup", tailing), figure("restore", peak.load(Ordering::Relaxed))])
}
