//! `run` and `backfill`: the sources of the settings, each with its own pipeline.

use std::{process::ExitCode, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use holdfast_core::{Act, Clock, Error, Instant, Random, Result, sink::Capabilities, task::Task};
use holdfast_pipeline::{Outcome, Pool};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

use crate::{
    cli::{One, Run},
    config::Config,
    exit_code, memory,
    sources::{Followed, Manner, Shared, Watched},
    status_page,
    store::{self, Patience},
    watchdog,
};

/// Between two looks at a store that is away at the start.
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(10);

pub async fn run(args: &Run, config: Config) -> Result<ExitCode> {
    follow(config.chosen(&args.names), config, Manner { take_over: args.take_over, ..Manner::default() })
        .await
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
    let mut signals = Signals::listen()?;
    let shared = tokio::select! {
        shared = share(names.len(), &config, stopped) => shared?,
        () = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    let followed: Vec<Followed> =
        names.iter().map(|name| Followed::new(name, &config, &shared, manner)).collect::<Result<_>>()?;
    if followed.iter().all(|followed| followed.trouble().is_some()) {
        let first = followed.into_iter().find_map(Followed::into_trouble);
        return first.map_or(Ok(ExitCode::SUCCESS), Err);
    }
    report(&followed);
    let watched: Vec<Watched> = followed.iter().map(|followed| followed.watched.clone()).collect();
    // Seen from the start: a store that is away keeps us waiting, and must be named.
    let _page = match &config.process.listen {
        Some(address) => {
            let meter = shared.store.meter.clone();
            Some(status_page::serve(address, watched.clone(), meter, shared.clock.clone()).await?)
        }
        None => None,
    };
    let _watchdog = watchdog::notify(watched.clone(), shared.clock.clone());
    let capabilities = tokio::select! {
        capabilities = probe(&shared, &watched) => capabilities?,
        () = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    let others = names.len() > 1;
    let tasks = followed.into_iter().map(|followed| followed.start(&shared, &capabilities, others));
    let grace = config.process.stop_grace;
    let worst =
        until_ended(tasks.collect(), async || signals.next().await, &stop, grace, &shared.clock).await;
    Ok(worst.map_or(ExitCode::SUCCESS, exit_code))
}

/// Says at once which sources cannot be followed, whatever the store does meanwhile.
fn report(followed: &[Followed]) {
    for (one, error) in followed.iter().filter_map(|one| Some((one, one.trouble()?))) {
        tracing::error!(
            source = one.watched.name,
            error = error.chain(),
            "this source cannot be followed with these settings; the others are"
        );
    }
}

/// Until the last source has ended; once `asked` to stop, at most `grace` longer, whatever hangs. The worst of what
/// the sources ended with.
async fn until_ended(
    mut tasks: FuturesUnordered<Task<(String, Outcome)>>,
    mut asked: impl AsyncFnMut(),
    stop: &watch::Sender<bool>,
    grace: Duration,
    clock: &Clock,
) -> Option<Act> {
    let mut worst: Option<Act> = None;
    let mut deadline: Option<Instant> = None;
    loop {
        let late = async {
            match deadline {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            ended = tasks.next() => ended,
            () = asked() => {
                stop.send_replace(true);
                deadline.get_or_insert(clock.now() + grace);
                continue;
            }
            () = late => {
                tracing::warn!("stop_grace is over: ending now; what is not settled stays with the source");
                break;
            }
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
    worst
}

async fn share(sources: usize, config: &Config, stop: watch::Receiver<bool>) -> Result<Shared> {
    let (clock, random) = (Clock::system(), Random::system());
    let store = store::open(&config.repository, Patience::Writer, &clock, &random).await?;
    Ok(Shared {
        store,
        pool: Pool::threads(std::thread::available_parallelism().map_or(2, usize::from).min(8))?,
        clock,
        random,
        budget: memory::budget(config.process.memory, sources as u64)?,
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

/// What asks the process to end.
struct Signals {
    term: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self> {
        let listen =
            |kind| signal(kind).map_err(|cause| Error::retry("signals cannot be listened to").because(cause));
        Ok(Self { term: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }
    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Timestamp, task};
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stop_is_over_within_its_grace_whatever_hangs() {
        let clock = Clock::set(Timestamp(0));
        let obeys = |name: &str, mut stopped: watch::Receiver<bool>| {
            let name = name.to_owned();
            task::spawn(async move {
                let _ = stopped.wait_for(|stop| *stop).await;
                (name, Outcome::Stopped)
            })
        };
        for (hangs, took) in [(false, 5), (true, 15)] {
            let (stop, stopped) = watch::channel(false);
            let tasks = FuturesUnordered::new();
            tasks.push(obeys("a", stopped.clone()));
            match hangs {
                true => tasks.push(task::spawn(std::future::pending())),
                false => tasks.push(obeys("b", stopped)),
            }
            let (ask, mut asked) = mpsc::channel(1);
            let later = clock.clone();
            let _asks = task::spawn(async move {
                later.sleep(Duration::from_secs(5)).await;
                ask.send(()).await.unwrap();
                std::future::pending::<()>().await;
            });
            let began = clock.now();
            let next = async || asked.recv().await.unwrap();
            let worst = until_ended(tasks, next, &stop, Duration::from_secs(10), &clock).await;
            assert_eq!((worst, (clock.now() - began).as_secs()), (None, took));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_source_that_fails_does_not_end_the_others() {
        let clock = Clock::set(Timestamp(0));
        let (stop, _stopped) = watch::channel(false);
        let later = clock.clone();
        let fails = task::spawn(async { ("a".to_owned(), Outcome::Failed(Error::lost_lineage("another"))) });
        let goes_on = task::spawn(async move {
            later.sleep(Duration::from_secs(60)).await;
            ("b".to_owned(), Outcome::CaughtUp)
        });
        let began = clock.now();
        let tasks = [fails, goes_on].into_iter().collect();
        let never = async || std::future::pending().await;
        let worst = until_ended(tasks, never, &stop, Duration::from_secs(10), &clock).await;
        assert_eq!((worst, (clock.now() - began).as_secs()), (Some(Act::LostLineage), 60));
    }
}
