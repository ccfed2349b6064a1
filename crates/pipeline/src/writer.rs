//! A writer: asks the source who it is, waits for its turn, claims, streams, and begins anew when it is fenced.
//! One future, without tasks of its own.

use std::time::Duration;

use holdfast_core::{Act, Error, Identity, Result};
use holdfast_repo::view::Repository;
use tokio::sync::watch;

use crate::{
    claim::claim,
    gauges::Phase,
    lineage,
    parts::{Parts, Tools},
    standby,
    tenure::{End, Tenure},
};

const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A stream that ran asks again so often when a person must act: a changed password, a full disk at the server.
const PAUSE_FAILED: Duration = Duration::from_secs(60);

/// How a writer ended.
#[derive(Debug)]
pub enum Outcome {
    /// It was told to stop. What it had taken is settled, unless its time was over before.
    Stopped,
    /// A backfill is complete, durable and settled.
    CaughtUp,
    /// A person must act; the error says on what.
    Failed(Error),
}

/// Writes one stream.
pub struct Writer {
    tools: Tools,
    stop: watch::Receiver<bool>,
}

impl Writer {
    pub fn new(parts: Parts) -> Self {
        Self { tools: Tools::new(&parts), stop: parts.stop }
    }

    /// Runs until it is stopped, caught up (where that was asked for), or cannot go on. May be dropped at any
    /// time: what is not settled stays with the source.
    pub async fn run(self) -> Outcome {
        let Self { mut tools, mut stop } = self;
        let outcome = match run(&mut tools, &mut stop).await {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Failed(error),
        };
        match &outcome {
            Outcome::Failed(error) => tools.gauges.phase(Phase::Failed, error.chain()),
            Outcome::Stopped | Outcome::CaughtUp => tools.gauges.phase(Phase::Ended, ""),
        }
        outcome
    }
}

async fn run(tools: &mut Tools, stop: &mut watch::Receiver<bool>) -> Result<Outcome> {
    let mut fenced: Option<Error> = None;
    loop {
        let before = async {
            let repository = Repository::open(tools.sink.clone(), Some(tools.repo)).await?;
            lineage::is_meant(tools, &repository).await?;
            let identity = identity(tools).await?;
            let stream = lineage::stream(tools, &repository, &identity).await?;
            standby::wait(tools, stream, fenced.as_ref().map(ToString::to_string).as_deref()).await?;
            // R2: the source must have answered before we claim, not an hour before.
            if self::identity(tools).await? != identity {
                return Err(Error::retry("the source changed while we waited for its stream"));
            }
            tools.gauges.phase(Phase::Claiming, "");
            let claimed = claim(tools, &repository, stream).await?;
            Ok((repository, claimed))
        };
        let claimed = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return Ok(Outcome::Stopped),
            claimed = Box::pin(before) => claimed,
        };
        let (repository, claimed) = match claimed {
            Ok(claimed) => claimed,
            Err(error) if error.act() == Act::Fenced => {
                tools.settings.take_over = false;
                fenced = Some(error);
                continue;
            }
            Err(error) if error.is_passing() => {
                tracing::warn!(error = error.chain(), "claiming did not work; trying again");
                tools.clock.sleep(PAUSE).await;
                continue;
            }
            Err(error) => {
                if !may_mend(tools, error, stop).await? {
                    return Ok(Outcome::Stopped);
                }
                continue;
            }
        };
        tools.settings.take_over = false;
        match Box::pin(Tenure::new(tools.clone(), repository, claimed).run(stop)).await {
            End::Stopped => return Ok(Outcome::Stopped),
            End::CaughtUp => return Ok(Outcome::CaughtUp),
            End::Failed(error) => {
                if !may_mend(tools, error, stop).await? {
                    return Ok(Outcome::Stopped);
                }
            }
            End::Roll(why) => {
                tracing::info!(why, "rolling to a new epoch");
                fenced = None;
            }
            End::Fenced(error) => {
                tools.gauges.fenced();
                tracing::warn!(
                    error = error.chain(),
                    "fenced: another writer owns the stream; staying as its standby"
                );
                fenced = Some(error);
            }
        }
    }
}

/// What a person must set right may be set right while we run, so a stream that ran is tried again, under alarm;
/// one that never did fails, as does any other error. False when it was stopped meanwhile.
async fn may_mend(tools: &Tools, error: Error, stop: &mut watch::Receiver<bool>) -> Result<bool> {
    let ran = tools.gauges.figures(tools.clock.now()).counts.received.bytes > 0;
    if error.act() != Act::Configure || !ran {
        return Err(error);
    }
    tracing::error!(
        error = error.chain(),
        "the stream stands still until this is set right; trying every minute"
    );
    tools.gauges.phase(Phase::Failed, error.chain());
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => Ok(false),
        () = tools.clock.sleep(PAUSE_FAILED) => Ok(true),
    }
}

/// Asks the source until it answers.
async fn identity(tools: &Tools) -> Result<Identity> {
    let mut pause = PAUSE;
    loop {
        match tools.tailer.identity().await {
            Ok(identity) => {
                tools.gauges.source(None);
                return Ok(identity);
            }
            Err(error) if error.is_passing() => {
                tracing::warn!(error = error.chain(), "the source does not answer; asking again");
                tools.gauges.phase(Phase::Starting, "waiting for the source");
                tools.gauges.source(Some(error.chain()));
            }
            Err(error) => return Err(error),
        }
        tools.clock.sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
