//! The door to time. Simulations run on tokio's paused time and set the wall clock by an offset of it.

use std::{future::Future, time::Duration};

use crate::Timestamp;

/// Our monotonic clock (follows tokio's paused time in simulations).
pub type Instant = tokio::time::Instant;

/// Passed in wherever time is needed. Safety rules never read it.
#[derive(Clone, Debug)]
pub struct Clock {
    wall: Wall,
}

#[derive(Clone, Debug)]
enum Wall {
    System,
    /// Wall time at an instant: moves with the (paused) monotonic clock.
    Set(Timestamp, Instant),
}

#[allow(clippy::disallowed_methods, reason = "this is the door")]
impl Clock {
    pub fn system() -> Self {
        Self { wall: Wall::System }
    }
    /// A clock that reads `wall` now and then runs with the monotonic clock.
    pub fn set(wall: Timestamp) -> Self {
        Self { wall: Wall::Set(wall, Instant::now()) }
    }
    pub fn now(&self) -> Instant {
        Instant::now()
    }
    pub fn wall(&self) -> Timestamp {
        match &self.wall {
            Wall::System => {
                let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                Timestamp(since.map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX)))
            }
            Wall::Set(wall, at) => wall.plus(Instant::now().saturating_duration_since(*at)),
        }
    }
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
    pub async fn sleep_until(&self, deadline: Instant) {
        tokio::time::sleep_until(deadline).await;
    }
    /// `None` when `future` did not end within `duration`.
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(duration, future).await.ok()
    }
}
