//! How many calls may be in flight: halved when the store asks for less, raised by one per round of answers
//! («additive increase, multiplicative decrease»). Owns the permits; never below one, never above the ceiling.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Error, Instant, Result};

/// Answers to calls that were sent before the last halving say nothing new, so one burst halves once.
const CUT_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Limit {
    permits: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    ceiling: usize,
    /// Where the limit should be; whole permits follow it.
    wanted: f64,
    /// Permits that exist, taken or not. Above `wanted` only until the taken ones come back.
    granted: usize,
    cut: Option<Instant>,
}

impl Limit {
    pub fn new(ceiling: usize) -> Self {
        let ceiling = ceiling.clamp(1, 1 << 16);
        Self {
            permits: Arc::new(Semaphore::new(ceiling)),
            state: Mutex::new(State { ceiling, wanted: ceiling as f64, granted: ceiling, cut: None }),
        }
    }

    /// Waits for its turn, in order of asking.
    pub async fn enter(&self) -> Result<OwnedSemaphorePermit> {
        let permits = self.permits.clone();
        permits.acquire_owned().await.map_err(|cause| Error::bug("the store's limit is gone").because(cause))
    }

    /// Gives the permit back after an answer; `throttled` when the store asked for less.
    pub fn leave(&self, permit: OwnedSemaphorePermit, throttled: bool, now: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if throttled {
            let fresh = state.cut.is_none_or(|cut| now.saturating_duration_since(cut) >= CUT_PAUSE);
            if fresh {
                state.wanted = (state.wanted / 2.0).max(1.0);
                state.cut = Some(now);
            }
        } else {
            state.wanted = (state.wanted + 1.0 / state.wanted).min(state.ceiling as f64);
        }
        if state.granted > state.whole() {
            permit.forget();
            state.granted -= 1;
        } else {
            drop(permit);
        }
        self.settle(state);
    }

    /// Whole permits follow the limit: idle ones are taken out, missing ones are added.
    fn settle(&self, mut state: MutexGuard<'_, State>) {
        let surplus = state.granted.saturating_sub(state.whole());
        if surplus > 0 {
            state.granted -= self.permits.forget_permits(surplus);
        }
        let missing = state.whole().saturating_sub(state.granted);
        if missing > 0 {
            self.permits.add_permits(missing);
            state.granted += missing;
        }
    }

    /// Calls that may be in flight now.
    pub fn now(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).whole()
    }
}

impl State {
    fn whole(&self) -> usize {
        (self.wanted as usize).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    #[tokio::test(start_paused = true)]
    async fn a_throttled_store_gets_half_and_then_slowly_more() {
        let clock = Clock::system();
        let limit = Limit::new(16);
        let mut taken = Vec::new();
        for _ in 0..16 {
            taken.push(limit.enter().await.unwrap());
        }
        // One burst of refusals halves once.
        for _ in 0..8 {
            limit.leave(taken.pop().unwrap(), true, clock.now());
        }
        assert_eq!(limit.now(), 8);
        assert_eq!(limit.permits.available_permits(), 0, "eight are still out, so none may start");
        for permit in taken {
            limit.leave(permit, false, clock.now());
        }
        let after_success = limit.now();
        assert!((8..=9).contains(&after_success), "{after_success}");
        for _ in 0..400 {
            let permit = limit.enter().await.unwrap();
            limit.leave(permit, false, clock.now());
        }
        assert_eq!(limit.now(), 16, "success raises it to the ceiling, never above");
        assert_eq!(limit.permits.available_permits(), 16);
        for _ in 0..20 {
            clock.sleep(CUT_PAUSE).await;
            let permit = limit.enter().await.unwrap();
            limit.leave(permit, true, clock.now());
        }
        assert_eq!(limit.now(), 1, "one call is always allowed");
        assert_eq!(limit.permits.available_permits(), 1);
    }
}
