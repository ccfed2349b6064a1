//! When an attempt is given up: without progress for a while, or over all by its size. A store that takes the
//! connection and never answers costs one stall; a slow link that moves costs nothing but its time.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use holdfast_core::{Clock, Instant};

/// An attempt gets this long, and what its bytes take at [`SLOWEST`].
const WHOLE: Duration = Duration::from_secs(30);

/// Bytes per second below which a link counts as broken.
const SLOWEST: u64 = 128 << 10;

/// Beats whenever bytes of an attempt move.
#[derive(Clone, Debug)]
pub struct Pulse {
    clock: Clock,
    began: Instant,
    /// Microseconds from `began` to the last beat.
    last: Arc<AtomicU64>,
}

impl Pulse {
    pub fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), began: clock.now(), last: Arc::default() }
    }

    pub fn beat(&self) {
        let since = self.clock.now().saturating_duration_since(self.began);
        self.last.store(u64::try_from(since.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// How long until `stall` has passed without a beat.
    fn rest(&self, stall: Duration) -> Duration {
        let last = Duration::from_micros(self.last.load(Relaxed));
        let since = self.clock.now().saturating_duration_since(self.began);
        stall.saturating_sub(since.saturating_sub(last))
    }

    /// `None` when `future` stalled or took longer than an attempt over `bytes` may take.
    pub async fn watch<F: Future>(&self, stall: Duration, bytes: u64, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let whole = WHOLE.max(stall).saturating_add(Duration::from_secs(bytes / SLOWEST));
        loop {
            let spent = self.clock.now().saturating_duration_since(self.began);
            let rest = self.rest(stall).min(whole.saturating_sub(spent));
            if rest.is_zero() {
                return None;
            }
            if let Some(output) = self.clock.timeout(rest, future.as_mut()).await {
                return Some(output);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn silence_ends_an_attempt_and_progress_does_not() {
        let clock = Clock::system();
        let pulse = Pulse::new(&clock);
        let began = clock.now();
        assert!(pulse.watch(STALL, 64 << 20, std::future::pending::<()>()).await.is_none());
        assert_eq!(clock.now() - began, STALL, "the size of the body gives a silent store no more time");
        let pulse = Pulse::new(&clock);
        let moving = async {
            for _ in 0..10 {
                clock.sleep(Duration::from_secs(15)).await;
                pulse.beat();
            }
        };
        assert!(pulse.watch(STALL, 64 << 20, moving).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_ends_by_size() {
        let clock = Clock::system();
        let pulse = Pulse::new(&clock);
        let began = clock.now();
        let trickle = async {
            loop {
                clock.sleep(Duration::from_secs(10)).await;
                pulse.beat();
            }
        };
        assert!(pulse.watch::<_>(STALL, 1 << 20, trickle).await.is_none());
        assert_eq!(clock.now() - began, Duration::from_secs(38));
    }
}
