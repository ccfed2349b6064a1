//! Points in time, in and out as RFC 3339 with offset.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Microseconds since 1970-01-01 UTC: the resolution of Postgres's commit times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(pub i64);

impl Timestamp {
    pub fn from_micros(micros: i64) -> Self {
        Self(micros)
    }
    pub fn micros(self) -> i64 {
        self.0
    }
    /// Time from `earlier` to here; zero when it lies behind.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time}"),
            Err(_) => write!(f, "{} µs after 1970", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({self})")
    }
}

impl FromStr for Timestamp {
    type Err = Error;
    /// RFC 3339 with an offset. A time without one is refused: it would mean one moment here and another
    /// at the server. A time that does not exist or exists twice cannot be written with an offset.
    fn from_str(text: &str) -> Result<Self> {
        match text.parse::<jiff::Timestamp>() {
            Ok(time) => Ok(Self(time.as_microsecond())),
            Err(_) if !text.contains('[') && text.parse::<jiff::civil::DateTime>().is_ok() => {
                Err(Error::configure(format!(
                    "the time «{text}» has no offset, so it is no definite moment: write {text}Z for UTC, or add one such as +02:00"
                )))
            }
            Err(_) if names_zone(text) => Err(Error::configure(format!(
                "the time «{text}» names a zone and no offset, so it is no definite moment: when the clocks of a zone change, a local time does not exist or comes twice. Write the offset that you mean, as in 2026-11-30T14:05:00+01:00"
            ))),
            Err(cause) => {
                Err(Error::configure(format!("«{text}» is no time: write it like 2026-11-30T14:05:00+01:00"))
                    .because(cause))
            }
        }
    }
}

/// A local time with a zone's name behind it, in brackets or after a blank.
fn names_zone(text: &str) -> bool {
    let local = |(local, zone): (&str, &str)| {
        zone.starts_with(|first: char| first.is_alphabetic())
            && local.parse::<jiff::civil::DateTime>().is_ok()
    };
    text.split_once('[').is_some_and(local) || text.rsplit_once(' ').is_some_and(local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_needs_an_offset() {
        let error = "2026-03-29T02:30:00".parse::<Timestamp>().unwrap_err();
        assert!(error.to_string().contains("offset"), "{error}");
        for named in ["2026-03-29T02:30:00[Europe/Paris]", "2026-03-29 02:30 Europe/Paris"] {
            let error = named.parse::<Timestamp>().unwrap_err();
            assert!(error.to_string().contains("does not exist"), "{error}");
        }
        assert!(!names_zone("2026-03-29 02:30:00") && !names_zone("some time"));
        let time: Timestamp = "2026-11-30T14:05:00.25+01:00".parse().unwrap();
        assert_eq!(time.to_string(), "2026-11-30T13:05:00.25Z");
    }
}
