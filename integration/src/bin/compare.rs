//! `cargo compare postgres`: the peers and holdfast in turn on the same data, machine and store; one line per figure.
//! What is said on stderr is how it went; stdout has the result only.

#![allow(clippy::disallowed_methods, reason = "a command that lives in real time")]

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result, bail};
use holdfast_harness::process;
use holdfast_integration::{
    Place, Site,
    compare::{
        Figure, PgBackRest, Scale, StoreProcess, backlog, base, bulk, commit, kills, many, quiet, replay,
        risk, serve,
    },
};

const USAGE: &str = "usage: cargo compare postgres [--only SUBSTRING]... [--quick] [--json] [--list]";
const MEMORY: &str = "resident memory, any of the above";

#[tokio::main]
async fn main() -> ExitCode {
    let result = tokio::select! {
        result = command() => result,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted; everything that was started is ended")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("compare: {cause:#}");
            ExitCode::FAILURE
        }
    }
}

struct Wanted {
    only: Vec<String>,
    scale: Scale,
    json: bool,
}

impl Wanted {
    fn any(&self, names: &[&str]) -> bool {
        let chosen = |name: &&str| self.only.iter().any(|part| name.contains(part.as_str()));
        self.only.is_empty() || names.iter().any(chosen)
    }
}

const BULK: [&str; 7] =
    [backlog::NAME, base::BASE, base::CPU, base::SECOND, base::RESTORE, replay::NAME, MEMORY];

async fn command() -> Result<()> {
    let mut wanted = Wanted { only: Vec::new(), scale: Scale::WHOLE, json: false };
    let mut arguments = std::env::args().skip(1);
    let mut postgres = false;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "postgres" => postgres = true,
            "--quick" => wanted.scale = Scale::QUICK,
            "--json" => wanted.json = true,
            "--only" => wanted.only.push(arguments.next().context(USAGE)?),
            "--serve-store" => {
                let root = arguments.next().context("--serve-store needs a folder")?;
                return tokio::task::spawn_blocking(move || serve(Path::new(&root))).await?;
            }
            "--list" => {
                for name in [
                    risk::NAME,
                    commit::NAME,
                    commit::BESIDE,
                    kills::NAME,
                    many::NAME,
                    quiet::IDLE,
                    quiet::SHUTDOWN,
                ]
                .into_iter()
                .chain(BULK)
                {
                    println!("{name}");
                }
                return Ok(());
            }
            _ => bail!(USAGE),
        }
    }
    if !postgres {
        bail!(USAGE);
    }
    let mut report = Report { json: wanted.json, figures: Vec::new() };
    let result = run(&wanted, &mut report).await;
    if report.json {
        let list: Vec<_> = report.figures.iter().map(Figure::json).collect();
        println!("{}", serde_json::to_string_pretty(&list)?);
    }
    result
}

/// What was measured so far; lines are printed as they come, and none is lost when a later part fails.
struct Report {
    json: bool,
    figures: Vec<Figure>,
}

impl Report {
    fn take(&mut self, figures: impl IntoIterator<Item = Figure>) {
        for figure in figures {
            if !self.json {
                println!("{}", figure.line());
            }
            self.figures.push(figure);
        }
    }
}

async fn run(wanted: &Wanted, report: &mut Report) -> Result<()> {
    let scale = wanted.scale;
    eprintln!(
        "store: s3s-fs with TLS, in a process of its own, objects in memory; sizes and times divided by {}",
        scale.divisor()
    );
    let mut store = StoreProcess::start()?;
    if wanted.any(&[risk::NAME]) {
        eprintln!("at risk");
        report.take(risk::measure(&mut store, scale).await?);
        store.empty()?;
    }
    if wanted.any(&[commit::NAME]) {
        eprintln!("commit latency");
        report.take(commit::measure(&mut store, scale).await?);
        store.empty()?;
    }
    if wanted.any(&BULK) {
        bulk_figures(wanted, &mut store, report).await?;
        store.empty()?;
    }
    if wanted.any(&[commit::BESIDE]) {
        eprintln!("commit latency beside a base backup");
        report.take(commit::beside(&mut store, scale).await?);
        store.empty()?;
    }
    if wanted.any(&[kills::NAME]) {
        eprintln!("kills");
        report.take(kills::measure(&mut store, scale).await?);
        store.empty()?;
    }
    if wanted.any(&[many::NAME]) {
        eprintln!("many relations");
        report.take(many::measure(&mut store, scale).await?);
        store.empty()?;
    }
    if wanted.any(&[quiet::IDLE]) {
        eprintln!("idle");
        report.take(quiet::idle(&mut store, scale).await?);
        store.empty()?;
    }
    if wanted.any(&[quiet::SHUTDOWN]) {
        eprintln!("fast shutdown");
        report.take(quiet::shutdown(&mut store).await?);
    }
    Ok(())
}

/// One cluster, loaded while nobody takes its log: the backlog, the base backups, the restores, the replay.
async fn bulk_figures(wanted: &Wanted, store: &mut StoreProcess, report: &mut Report) -> Result<()> {
    let bytes = wanted.scale.bytes(2 << 30);
    let server = bulk::server().await?;
    let mut site = Site::ready(Place::S3(store.direct()), &server, "").await?;
    let peer = PgBackRest::new(&server, &store.peer())?;
    let mut sidecar = site.run()?;
    let patience = std::time::Duration::from_secs(60);
    sidecar.until("holdfast_base_backup_age_seconds", |age| age >= 0.0, patience).await?;
    sidecar.stop().await?;

    let from = server.lsn().await?;
    let tables = bulk::load(&server, 0, bytes / 2).await?;
    let half = server.lsn().await?;
    bulk::load(&server, tables, bytes / 2).await?;
    let piled: u64 =
        server.value(&format!("select (pg_current_wal_lsn() - '{from}')::bigint")).await?.parse()?;
    let replayed: u64 = server.value(&format!("select '{half}'::pg_lsn - '{from}'")).await?.parse()?;
    // What a local archive would hold.
    let archive = tempfile::Builder::new().prefix("hf-archive-").tempdir_in(bulk::memory())?;
    holdfast_harness::User::give(archive.path())?;
    if wanted.any(&[replay::NAME]) {
        server.sql("select pg_switch_wal()").await?;
        copy_segments(&server.data().join("pg_wal"), archive.path())?;
    }
    eprintln!("WAL backlog ({} MiB)", piled >> 20);
    let (mut sidecar, figure) = backlog::measure(&site, &server, &peer, piled).await?;
    report.take([figure]);
    if wanted.any(&[base::BASE, base::CPU, base::SECOND, base::RESTORE]) {
        eprintln!("base backup");
        report.take(base::measure(&site, &server, &mut sidecar, &peer).await?);
    }
    let peak = process::peak_memory(sidecar.pid()).unwrap_or(0) as f64 / f64::from(1 << 20);
    sidecar.stop().await?;
    report.take([Figure::lower(
        format!("{MEMORY}: backlog and base backup"),
        "MiB",
        peak,
        256.0,
        "our bound",
    )]);
    if wanted.any(&[base::RESTORE]) {
        eprintln!("restore");
        report.take(base::restore(&site, &server, &peer, bulk::memory()).await?);
    }
    if wanted.any(&[replay::NAME]) {
        eprintln!("replay");
        store.delay(std::time::Duration::from_millis(20))?;
        site.move_to(Place::S3(store.away()))?;
        report
            .take([replay::measure(&site, &server, &half, archive.path(), bulk::memory(), replayed).await?]);
    }
    Ok(())
}

fn copy_segments(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let target = to.join(entry.file_name());
            std::fs::copy(entry.path(), &target)?;
            holdfast_harness::User::give(&target)?;
        }
    }
    Ok(())
}
