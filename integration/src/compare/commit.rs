//! Commits that wait for the store.

use std::time::Duration;

use anyhow::Result;
use holdfast_harness::{Major, Options, Server};

use super::{Figure, Scale, StoreProcess, median, store::MEMORY};
use crate::{Metrics, Place, Sidecar, Site, Workload};

pub const NAME: &str = "commit latency, `ack = \"remote\"`, 1 and 32 clients, store 20 ms away";
pub const BESIDE: &str = "commit latency while a base backup runs over a store that takes 5 s per pack";

pub async fn started(place: Place, settings: &str) -> Result<(Server, Site, Sidecar)> {
    let server = Options::new(Major::V18).home(MEMORY).start().await?;
    let site = Site::ready(place, &server, settings).await?;
    let mut sidecar = site.run()?;
    sidecar.until("holdfast_base_backup_age_seconds", |age| age >= 0.0, Duration::from_secs(60)).await?;
    Ok((server, site, sidecar))
}

/// Mean time of a create between two readings, in milliseconds.
fn put_time(before: &Metrics, after: &Metrics) -> f64 {
    let of = |part: &str| {
        let name = format!("holdfast_store_seconds_{part}{{operation=\"create\"");
        after.get(&name).unwrap_or(0.0) - before.get(&name).unwrap_or(0.0)
    };
    of("sum") / of("count").max(1.0) * 1e3
}

fn milliseconds(latencies: Vec<Duration>) -> Vec<f64> {
    latencies.into_iter().map(|one| one.as_secs_f64() * 1e3).collect()
}

pub async fn measure(store: &mut StoreProcess, scale: Scale) -> Result<Vec<Figure>> {
    store.delay(Duration::from_millis(20))?;
    let (server, _site, sidecar) = started(Place::S3(store.away()), "ack = \"remote\"").await?;
    super::set(&server, "synchronous_standby_names", "holdfast").await?;
    let time = scale.time(Duration::from_secs(20));
    let mut figures = Vec::new();
    for clients in [1, 32] {
        let workload = Workload::start(&server, clients, 0).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = sidecar.metrics().await?;
        workload.take_latencies();
        tokio::time::sleep(time).await;
        let latencies = milliseconds(workload.take_latencies());
        let put = put_time(&before, &sidecar.metrics().await?);
        workload.pause().await;
        let rate = latencies.len() as f64 / time.as_secs_f64();
        let latency = median(latencies);
        eprintln!("  {clients} clients: median {latency:.2} ms, {rate:.0} commits/s, PUT {put:.2} ms");
        figures.push(Figure::lower(
            format!("{NAME}: median, {clients} clients"),
            "ms",
            latency,
            put,
            "the store's PUT",
        ));
        if clients > 1 {
            figures.push(Figure::higher(
                format!("{NAME}: commits/s, {clients} clients"),
                "/s",
                rate,
                1100.0,
                "our bound",
            ));
        }
    }
    Ok(figures)
}

/// The same 8 clients without and with a base backup that the store takes in slowly.
pub async fn beside(store: &mut StoreProcess, scale: Scale) -> Result<Vec<Figure>> {
    store.slow_packs(Duration::from_secs(5))?;
    let server = Options::new(Major::V18).home(MEMORY).start().await?;
    super::bulk::load(&server, 0, scale.bytes(512 << 20)).await?;
    let site = Site::ready(Place::S3(store.away()), &server, "ack = \"remote\"").await?;
    let mut sidecar = site.run()?;
    sidecar.until("holdfast_base_backup_running", |running| running > 0.0, Duration::from_secs(60)).await?;
    super::set(&server, "synchronous_standby_names", "holdfast").await?;
    let workload = Workload::start(&server, 8, 0).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    workload.take_latencies();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let with = median(milliseconds(workload.take_latencies()));
    let running = sidecar.metrics().await?.get("holdfast_base_backup_running").unwrap_or(0.0);
    anyhow::ensure!(running > 0.0, "the base backup ended before it was measured");
    store.slow_packs(Duration::ZERO)?;
    sidecar.until("holdfast_base_backup_running", |running| running == 0.0, Duration::from_secs(120)).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    workload.take_latencies();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let without = median(milliseconds(workload.take_latencies()));
    Ok(vec![Figure::lower(BESIDE, "ms", with, without, "without it")])
}
