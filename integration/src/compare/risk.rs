//! How old the newest durable instant is while commits flow.

use std::time::Duration;

use anyhow::Result;
use holdfast_harness::Major;

use super::{Figure, Scale, StoreProcess, quantile, store::MEMORY};
use crate::{Place, Sampler, Site, Workload};

pub const NAME: &str = "at risk p99 / median, 200 commits/s, defaults, store 20 ms away";

pub async fn measure(store: &mut StoreProcess, scale: Scale) -> Result<Vec<Figure>> {
    store.delay(Duration::from_millis(20))?;
    let server = holdfast_harness::Options::new(Major::V18).home(MEMORY).start().await?;
    let site = Site::ready(Place::S3(store.away()), &server, "").await?;
    let mut sidecar = site.run()?;
    let workload = Workload::start(&server, 4, 200).await?;
    sidecar.until("holdfast_base_backup_age_seconds", |age| age >= 0.0, Duration::from_secs(60)).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let risk = Sampler::start(sidecar.metrics_port(), "holdfast_at_risk_seconds", Duration::from_millis(11));
    tokio::time::sleep(scale.time(Duration::from_secs(40))).await;
    let samples = risk.sorted();
    drop(workload);
    eprintln!(
        "  {} samples, largest {:.3} s, 95 % {:.3} s",
        samples.len(),
        quantile(&samples, 1.0),
        quantile(&samples, 0.95)
    );
    sidecar.stop().await?;
    Ok(vec![
        Figure::lower(format!("{NAME}: p99"), "s", quantile(&samples, 0.99), 1.15, "our bound"),
        Figure::lower(format!("{NAME}: median"), "s", quantile(&samples, 0.5), 0.7, "our bound"),
    ])
}
