//! What a user may tune. Values only: clocks and the like are passed in.

use std::{fmt, time::Duration};

use holdfast_core::text;
use serde::{Deserialize, Serialize};

/// How commits and we depend on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ack {
    /// Commits never wait for us; at most `max_lag` and one PUT may be lost with the host.
    #[default]
    Async,
    /// We stand in the server's `synchronous_standby_names`: every byte is hurried to the sink.
    Remote,
}

/// What to do when the server we reach is a standby.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StandbyPolicy {
    /// Follow it, and say so.
    #[default]
    Allow,
    /// Wait until it is promoted or another host is reached.
    Refuse,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// libpq connection string; what it leaves out comes from the environment, service and password files.
    pub dsn: String,
    /// Replication slot; `holdfast_<source>` when absent.
    #[serde(default)]
    pub slot: Option<String>,
    #[serde(default)]
    pub ack: Ack,
    /// How old the newest bytes may get before they are sent (read by the pipeline).
    #[serde(default = "second", with = "text::duration")]
    pub max_lag: Duration,
    /// How long a server that shuts down may be kept waiting for its tail to become durable.
    #[serde(default = "grace", with = "text::duration")]
    pub shutdown_grace: Duration,
    /// Time between two base backups.
    #[serde(default = "day", with = "text::duration")]
    pub base_backup_interval: Duration,
    /// Bytes a second that a base backup may read at the server; no limit when absent.
    #[serde(default, with = "text::size::optional")]
    pub base_backup_rate: Option<u64>,
    #[serde(default)]
    pub standby: StandbyPolicy,
    /// Log that the slot may hold back before we give it up: the source lives, a gap is recorded and a new
    /// base backup made. No limit of ours when absent (`max_slot_wal_keep_size` is the server's own).
    #[serde(default, with = "text::size::optional")]
    pub max_slot_lag: Option<u64>,
}

fn second() -> Duration {
    Duration::from_secs(1)
}
fn grace() -> Duration {
    Duration::from_secs(30)
}
fn day() -> Duration {
    Duration::from_secs(86_400)
}

impl Settings {
    /// All defaults.
    pub fn new(dsn: impl Into<String>) -> Self {
        Self {
            dsn: dsn.into(),
            slot: None,
            ack: Ack::default(),
            max_lag: second(),
            shutdown_grace: grace(),
            base_backup_interval: day(),
            base_backup_rate: None,
            standby: StandbyPolicy::default(),
            max_slot_lag: None,
        }
    }

    /// The slot's name for a source of this name: lower case, everything but letters and digits as `_`.
    pub fn slot_for(&self, source: &str) -> String {
        self.slot.clone().unwrap_or_else(|| {
            let plain = source.chars().map(|c| match c.to_ascii_lowercase() {
                c if c.is_ascii_alphanumeric() => c,
                _ => '_',
            });
            "holdfast_".chars().chain(plain).take(63).collect()
        })
    }
}

impl fmt::Debug for Settings {
    /// Without the connection string, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("slot", &self.slot)
            .field("ack", &self.ack)
            .field("max_lag", &self.max_lag)
            .field("shutdown_grace", &self.shutdown_grace)
            .field("base_backup_interval", &self.base_backup_interval)
            .field("base_backup_rate", &self.base_backup_rate)
            .field("standby", &self.standby)
            .field("max_slot_lag", &self.max_slot_lag)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_mistakes() {
        let settings: Settings = serde_json::from_str(r#"{"dsn": "host=/run"}"#).unwrap();
        assert_eq!(settings, Settings::new("host=/run"));
        assert_eq!(settings.slot_for("Main-DB.1"), "holdfast_main_db_1");
        assert!(serde_json::from_str::<Settings>(r#"{"dsn": "", "max_lags": "1s"}"#).is_err());
        assert!(serde_json::from_str::<Settings>(r#"{"dsn": "", "max_lag": "1"}"#).is_err());
        let secret = Settings::new("password=hunter2");
        assert!(!format!("{secret:?}").contains("hunter2"));
    }
}
