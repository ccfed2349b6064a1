//! What holdfast costs while nothing happens, and whether it lets a server go.

use std::time::{Duration, Instant};

use anyhow::Result;
use holdfast_harness::{Stop, process};

use super::{Figure, Scale, StoreProcess, commit};
use crate::{Place, Workload};

pub const IDLE: &str = "idle for 10 minutes";
pub const SHUTDOWN: &str = "fast shutdown of the primary with holdfast attached; store reachable / not";

/// Ten minutes, or a part of them: the requests are counted for the whole.
pub async fn idle(store: &mut StoreProcess, scale: Scale) -> Result<Vec<Figure>> {
    store.delay(Duration::ZERO)?;
    let (_server, _site, sidecar) = commit::started(Place::S3(store.away()), "").await?;
    // The tail of the start is stored and merged by then.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let time = scale.time(Duration::from_secs(600));
    let (cpu, passed) = (process::cpu_time(sidecar.pid()).unwrap_or_default(), store.passed()?);
    tokio::time::sleep(time).await;
    let cpu = process::cpu_time(sidecar.pid()).unwrap_or_default().saturating_sub(cpu);
    let requests = store.passed()?.requests - passed.requests;
    let factor = 600.0 / time.as_secs_f64();
    eprintln!("  watched for {time:?}, a factor of {factor:.0} below ten minutes");
    Ok(vec![
        Figure::lower(
            format!("{IDLE}: CPU"),
            "%",
            cpu.as_secs_f64() / time.as_secs_f64() * 100.0,
            0.5,
            "our bound",
        ),
        Figure::lower(format!("{IDLE}: requests"), "", requests as f64 * factor, 40.0, "our bound"),
    ])
}

pub async fn shutdown(store: &mut StoreProcess) -> Result<Vec<Figure>> {
    let grace = 6.0;
    let mut figures = Vec::new();
    for reachable in [true, false] {
        store.empty()?;
        store.delay(Duration::from_millis(20))?;
        let (mut server, _site, _sidecar) =
            commit::started(Place::S3(store.away()), "shutdown_grace = \"6s\"").await?;
        let workload = Workload::start(&server, 4, 200).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        if !reachable {
            store.silent()?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let start = Instant::now();
        server.stop(Stop::Fast).await?;
        let took = start.elapsed().as_secs_f64();
        drop(workload);
        let (what, bound) =
            if reachable { ("store reachable", 5.0) } else { ("not, shutdown_grace = 6s", grace + 2.0) };
        figures.push(Figure::lower(format!("{SHUTDOWN}: {what}"), "s", took, bound, "our bound"));
    }
    store.delay(Duration::ZERO)?;
    Ok(figures)
}
