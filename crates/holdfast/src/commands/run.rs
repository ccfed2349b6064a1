//! `run` and `backfill`: the sources of the settings, each with its own pipeline.

use std::{process::ExitCode, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use holdfast_core::{Act, Clock, Error, Random, Result, sink::Capabilities};
use holdfast_pipeline::{Budget, Outcome, Pool};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{
    cli::{One, Run},
    config::Config,
    control, exit_code,
    sources::{Followed, Manner, Shared, Watched},
    status_page,
    store::{self, Patience},
};

/// Between two looks at a store that is away at the start.
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(10);

pub async fn run(args: &Run, config: Config) -> Result<ExitCode> {
    let names =
        if args.names.is_empty() { config.sources.keys().cloned().collect() } else { args.names.clone() };
    follow(names, config, Manner { take_over: args.take_over, ..Manner::default() }).await
}

pub async fn backfill(args: &One, config: Config) -> Result<ExitCode> {
    follow(vec![args.name.clone()], config, Manner { until_caught_up: true, ..Manner::default() }).await
}

async fn follow(names: Vec<String>, config: Config, manner: Manner) -> Result<ExitCode> {
    if names.is_empty() {
        return Err(Error::configure("the settings name no source: add a section [source.NAME]"));
    }
    // Before anything that may take long: a SIGTERM during the start must end it, too.
    let (stop, stopped) = watch::channel(false);
    let mut term = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let shared = tokio::select! {
        shared = share(names.len(), &config, stopped) => shared?,
        _ = term.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    let followed: Vec<Followed> =
        names.iter().map(|name| Followed::new(name, &config, &shared, manner)).collect::<Result<_>>()?;
    let watched: Vec<Watched> = followed.iter().map(|followed| followed.watched.clone()).collect();
    // Seen from the start: a store that is away keeps us waiting, and must be named.
    let _control = control::serve(&config.process.state_dir, &watched)?;
    let _page = match &config.process.listen {
        Some(address) => {
            let meter = shared.store.meter.clone();
            Some(status_page::serve(address, watched.clone(), meter, shared.clock.clone()).await?)
        }
        None => None,
    };
    let _watchdog = notify_systemd();
    let capabilities = tokio::select! {
        capabilities = probe(&shared, &watched) => capabilities?,
        _ = term.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    let tasks = followed.into_iter().map(|followed| followed.start(&shared, &capabilities));
    let mut tasks: FuturesUnordered<_> = tasks.collect();
    let mut worst: Option<Act> = None;
    loop {
        let ended = tokio::select! {
            ended = tasks.next() => ended,
            _ = term.recv() => { stop.send_replace(true); continue }
            _ = interrupt.recv() => { stop.send_replace(true); continue }
        };
        match ended {
            None => break,
            Some(Ok((name, Outcome::Failed(error)))) => {
                // The others go on; the process ends, and tells, when the last one has.
                tracing::error!(source = name, error = error.chain(), "this source is not followed any more");
                worst = Some(error.act());
            }
            Some(Ok((name, outcome))) => tracing::info!(source = name, ?outcome, "ended"),
            Some(Err(error)) => {
                tracing::error!(error = error.chain(), "a source ended by a fault of ours");
                worst = Some(Act::Bug);
            }
        }
    }
    Ok(worst.map_or(ExitCode::SUCCESS, exit_code))
}

async fn share(sources: usize, config: &Config, stop: watch::Receiver<bool>) -> Result<Shared> {
    let (clock, random) = (Clock::system(), Random::system());
    let store = store::open(&config.repository, Patience::Writer, &clock, &random).await?;
    Ok(Shared {
        store,
        pool: Pool::threads(std::thread::available_parallelism().map_or(2, usize::from).min(8))?,
        clock,
        random,
        budget: budget(config).share(sources as u64),
        stop,
    })
}

/// What the store can do. One that is away is waited for, here as later: the sources keep what is not durable.
///
/// # Errors
/// What does not pass by itself: wrong rights, no such bucket.
async fn probe(shared: &Shared, watched: &[Watched]) -> Result<Capabilities> {
    let mut pause = Duration::from_secs(1);
    let capabilities = loop {
        match shared.store.bare.capabilities().await {
            Ok(capabilities) => break capabilities,
            Err(error) if error.is_passing() => {
                tracing::warn!(
                    error = error.chain(),
                    "the store is out of reach; it is asked again, and nothing is followed before it answers"
                );
                for source in watched {
                    source.gauges.store_failed(error.chain());
                }
            }
            Err(error) => return Err(error),
        }
        shared.clock.sleep(pause).await;
        pause = (pause * 2).min(PROBE_PAUSE_MAX);
    };
    for source in watched {
        source.gauges.store_answered();
    }
    if !capabilities.create_only {
        tracing::warn!(
            "the store does not refuse to overwrite; holdfast stays safe by listing epochs before it settles, at one \
             request more"
        );
    }
    Ok(capabilities)
}

/// Of `memory` (default: 256 MiB, or a quarter of what the cgroup allows), about 40 % are batches and packs in
/// flight; the rest is what sealing, connections and the allocator need.
fn budget(config: &Config) -> Budget {
    let whole = Budget::default();
    let allowed =
        config.process.memory.unwrap_or_else(|| cgroup_limit().map_or(256 << 20, |limit| limit / 4));
    let allowed = allowed.min(1 << 30);
    let part = |bytes: u64| bytes.saturating_mul(allowed) / (256 << 20);
    Budget { stream: part(whole.stream), content: part(whole.content), merge: part(whole.merge) }.share(1)
}

fn cgroup_limit() -> Option<u64> {
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok())
        .filter(|limit| *limit < 1 << 30)
}

fn listen(kind: SignalKind) -> Result<tokio::signal::unix::Signal> {
    signal(kind).map_err(|cause| Error::retry("signals cannot be listened to").because(cause))
}

/// Tells systemd that we are ready, and as often as its watchdog asks that we live.
fn notify_systemd() -> Option<holdfast_core::task::Task<()>> {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let interval = sd_notify::watchdog_enabled()?;
    let clock = Clock::system();
    Some(holdfast_core::task::spawn(async move {
        loop {
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            clock.sleep((interval / 3).max(Duration::from_millis(100))).await;
        }
    }))
}
