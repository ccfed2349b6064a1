//! systemd's watchdog: it hears that we live for as long as every pipeline that streams moves.

use std::time::Duration;

use holdfast_core::{
    Clock, Instant,
    task::{self, Task},
};
use holdfast_pipeline::Phase;

use crate::sources::Watched;

/// A pipeline that streams turns at least once a minute, by its own clock.
const PATIENCE: Duration = Duration::from_secs(180);

/// Tells systemd that we are ready, and as often as its watchdog asks that the pipelines move.
pub fn notify(watched: Vec<Watched>, clock: Clock) -> Option<Task<()>> {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let interval = sd_notify::watchdog_enabled()?;
    Some(task::spawn(async move {
        let mut pulses = vec![Pulse { turns: 0, since: clock.now() }; watched.len()];
        loop {
            let now = clock.now();
            let mut moves = true;
            for (source, pulse) in watched.iter().zip(&mut pulses) {
                let figures = source.gauges.figures(now);
                if !pulse.beats(figures.phase, figures.turns, now) {
                    tracing::error!(
                        source = source.name,
                        "the pipeline stands still: systemd is not told that we live"
                    );
                    moves = false;
                }
            }
            if moves {
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            }
            clock.sleep((interval / 3).max(Duration::from_millis(100))).await;
        }
    }))
}

/// When a pipeline was last seen to move, or had no need to.
#[derive(Clone, Copy)]
struct Pulse {
    turns: u64,
    since: Instant,
}

impl Pulse {
    fn beats(&mut self, phase: Phase, turns: u64, now: Instant) -> bool {
        if turns != self.turns || !matches!(phase, Phase::Streaming | Phase::Stopping) {
            *self = Self { turns, since: now };
        }
        now.saturating_duration_since(self.since) < PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_pipeline_that_streams_must_move() {
        let start = Clock::system().now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pulse = Pulse { turns: 0, since: start };
        assert!(pulse.beats(Phase::Standby, 0, at(3600)), "a standby waits for another");
        assert!(pulse.beats(Phase::Streaming, 0, at(3779)));
        assert!(!pulse.beats(Phase::Streaming, 0, at(3780)), "stuck");
        assert!(pulse.beats(Phase::Streaming, 1, at(3790)), "it moves again");
        assert!(!pulse.beats(Phase::Stopping, 1, at(3970)), "stuck in its stop");
        assert!(pulse.beats(Phase::Failed, 1, at(3980)), "a failed one is begun again by its supervision");
    }
}
