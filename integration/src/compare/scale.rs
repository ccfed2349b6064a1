//! How large and how long: whole, or divided by a stated factor.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct Scale {
    divide: u32,
}

impl Scale {
    pub const WHOLE: Self = Self { divide: 1 };
    /// Sizes, times and counts are an eighth.
    pub const QUICK: Self = Self { divide: 8 };

    pub fn divisor(self) -> u32 {
        self.divide
    }

    pub fn bytes(self, whole: u64) -> u64 {
        whole / u64::from(self.divide)
    }

    /// Never so short that nothing could be seen.
    pub fn time(self, whole: Duration) -> Duration {
        (whole / self.divide).max(Duration::from_secs(5))
    }

    pub fn count(self, whole: u32) -> u32 {
        (whole / self.divide).max(2)
    }
}
