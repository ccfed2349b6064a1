//! What a store's own clock showed when it last told. Kept by the sinks, written into the stream beside the
//! clocks of source and host.

use std::sync::{Mutex, PoisonError};

use crate::{Instant, Timestamp};

/// The newest reading; shared by all calls of one sink.
#[derive(Debug, Default)]
pub struct StoreClock(Mutex<Option<(Instant, Timestamp)>>);

impl StoreClock {
    /// The store showed `time` at our instant `at`.
    pub fn saw(&self, at: Instant, time: Timestamp) {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.is_none_or(|(before, _)| before <= at) {
            *newest = Some((at, time));
        }
    }
    pub fn read(&self) -> Option<(Instant, Timestamp)> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
