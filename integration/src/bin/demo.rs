//! `cargo demo`: a real Postgres is followed under load, killed, deleted and restored, twice, before your eyes.

#![allow(clippy::disallowed_methods, reason = "a command that lives in real time")]

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use holdfast_harness::{Major, Server};
use holdfast_integration::{Journal, Place, Sampler, Site, Workload, digest, judge};
use tokio::time::Instant;

/// What may be lost by default: `max_lag` (1 s), one write to the directory, and what a busy machine adds.
const PROMISED: Duration = Duration::from_millis(1500);

#[tokio::main]
async fn main() -> ExitCode {
    let start = Instant::now();
    // Whichever ends first: all servers and folders belong to what is dropped here.
    let result = tokio::select! {
        result = show(start) => result,
        () = asked_to_end() => Err(anyhow::anyhow!("interrupted; everything that was started is ended")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("demo: {cause:#}");
            ExitCode::FAILURE
        }
    }
}

async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

struct Chosen {
    time: String,
    count: u64,
    digest: String,
}

async fn show(start: Instant) -> Result<()> {
    let say = |text: String| println!("[{:5.1} s] {text}", start.elapsed().as_secs_f64());
    let mut server = Server::start(Major::V18).await?;
    say(format!("Postgres {} runs", server.value("show server_version").await?));

    let site = Site::ready(Place::Folder, &server, "").await?;
    say("keys made, repository made in a directory, source «main» added".to_owned());

    let mut sidecar = site.run()?;
    let workload = Workload::start(&server, 4, 200).await?;
    let base = "holdfast_base_backup_age_seconds";
    sidecar
        .until(base, |age| age >= 0.0, Duration::from_secs(60))
        .await
        .context("no base backup was finished")?;
    let risk = Sampler::start(sidecar.metrics_port(), "holdfast_at_risk_seconds", Duration::from_millis(100));
    say("holdfast follows it, a base backup is stored, 4 clients make 200 commits a second".to_owned());

    tokio::time::sleep(Duration::from_secs(6)).await;
    let chosen = choose(&server, &workload).await?;
    say(format!("chosen moment: {} ({} entries)", chosen.time, chosen.count));
    tokio::time::sleep(Duration::from_secs(6)).await;

    server.kill();
    let killed = Instant::now();
    let journal = workload.stop().await;
    let data = server.data().to_owned();
    tokio::fs::remove_dir_all(&data).await?;
    say(format!("SIGKILL for every process of Postgres, {} deleted", data.display()));
    let samples = risk.sorted();
    sidecar.stop().await.context("holdfast did not stop")?;

    let (found, lost) = restore_latest(&site, &server, &journal, killed).await?;
    say(format!(
        "restored to the last commit: {found} of {} acknowledged entries, {lost}",
        journal.acknowledged()
    ));
    let earlier = site.restored(&server, "earlier", &["--at", &chosen.time]).await?;
    let (count, digest) = digest(&earlier).await?;
    ensure!(
        (count, &digest) == (chosen.count, &chosen.digest),
        "the restore at {} holds {count} entries with digest {digest}, the server had {} with {}",
        chosen.time,
        chosen.count,
        chosen.digest
    );
    drop(earlier);
    say(format!("restored to the chosen moment: both tables equal, {count} entries, md5 {digest}"));

    let at = |share: f64| {
        samples.get((samples.len() as f64 * share) as usize).or(samples.last()).copied().unwrap_or(0.0)
    };
    ensure!(!samples.is_empty(), "holdfast_at_risk_seconds was never seen");
    println!();
    println!(
        "compared   latest: each client's entries 1 to n without a hole, each transaction whole, none acknowledged"
    );
    println!(
        "           earlier than {PROMISED:?} before the kill missing; chosen moment: every row of both tables"
    );
    println!(
        "at risk    median {:.2} s, at most {:.2} s ({} samples while 200 commits a second ran)",
        at(0.5),
        at(1.0),
        samples.len()
    );
    println!("took       {:.0} s; nothing is left running", start.elapsed().as_secs_f64());
    Ok(())
}

/// Holds the clients for an instant, so that the tables of one moment are known.
async fn choose(server: &Server, workload: &Workload) -> Result<Chosen> {
    workload.pause().await;
    let (count, digest) = digest(server).await?;
    let utc = "select to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
    let time = server.value(utc).await?;
    workload.resume();
    Ok(Chosen { time, count, digest })
}

async fn restore_latest(
    site: &Site,
    server: &Server,
    journal: &Journal,
    end: Instant,
) -> Result<(u64, String)> {
    let restored = site.restored(server, "latest", &["--latest"]).await?;
    let verdict = judge(&restored, journal, end).await?;
    if verdict.oldest_lost() > PROMISED {
        bail!("an entry acknowledged {:?} before the kill is lost", verdict.oldest_lost());
    }
    let lost = match verdict.lost.len() {
        0 => "none lost".to_owned(),
        count => format!("{count} lost, the oldest acknowledged {:?} before the kill", verdict.oldest_lost()),
    };
    Ok((verdict.found, lost))
}
