//! What a server says of itself over the replication connection, and the ancestry of its timeline.

use std::time::Duration;

use holdfast_core::{Error, Result, text};
use holdfast_pgwire::{Connection, Host, TimelineHistory};

use crate::{
    records::{Parameters, WalLevel},
    wal::{History, Lsn, PAGE, SegmentSize},
};

/// Facts of one connected server.
#[derive(Clone, Debug)]
pub struct Facts {
    pub host: Host,
    /// As `server_version_num`.
    pub version: u32,
    pub system_identifier: u64,
    pub timeline: u32,
    /// Flushed (a primary) or received or replayed (a standby) up to here.
    pub position: Lsn,
    pub standby: bool,
    pub segment: SegmentSize,
    pub sender_timeout: Option<Duration>,
}

impl Facts {
    pub async fn gather(connection: &mut Connection) -> Result<Self> {
        let version = connection.server_version();
        let host = connection.host().clone();
        if version < 130_000 {
            return Err(Error::configure(format!(
                "{host} runs Postgres {}: 13 is the oldest that can be followed",
                version / 10_000
            )));
        }
        let identity = connection.identify_system().await?;
        let page = connection.show("wal_block_size").await?;
        if page != PAGE.to_string() {
            return Err(Error::configure(format!(
                "{host} was built with WAL pages of {page} bytes; only {PAGE} are supported"
            )));
        }
        let segment = connection.show("wal_segment_size").await?;
        let segment = SegmentSize::new(setting_size(&segment).unwrap_or(0))?;
        let standby = is_standby(connection).await?;
        let sender_timeout = connection.show("wal_sender_timeout").await?;
        Ok(Self {
            host,
            version,
            system_identifier: identity.system,
            timeline: identity.timeline,
            position: Lsn(identity.position.0),
            standby,
            segment,
            sender_timeout: text::parse_duration(&sender_timeout).ok().filter(|limit| !limit.is_zero()),
        })
    }
}

/// From 14 on the server reports it; before, only sessions of a standby are read-only by force.
async fn is_standby(connection: &mut Connection) -> Result<bool> {
    match connection.parameter("in_hot_standby") {
        Some(value) => Ok(value == "on"),
        None => Ok(connection.show("transaction_read_only").await? == "on"),
    }
}

/// Settings that a restored server must not set lower.
pub async fn parameters(connection: &mut Connection) -> Result<Parameters> {
    async fn number(connection: &mut Connection, name: &str) -> Result<u32> {
        let value = connection.show(name).await?;
        value.parse().map_err(|_| Error::corrupt(format!("the server's setting {name} is «{value}»")))
    }
    Ok(Parameters {
        max_connections: number(connection, "max_connections").await?,
        max_worker_processes: number(connection, "max_worker_processes").await?,
        max_wal_senders: number(connection, "max_wal_senders").await?,
        max_prepared_transactions: number(connection, "max_prepared_transactions").await?,
        max_locks_per_transaction: number(connection, "max_locks_per_transaction").await?,
        wal_level: match connection.show("wal_level").await?.as_str() {
            "minimal" => WalLevel::Minimal,
            "logical" => WalLevel::Logical,
            _ => WalLevel::Replica,
        },
        wal_log_hints: connection.show("wal_log_hints").await? == "on",
        track_commit_timestamp: connection.show("track_commit_timestamp").await? == "on",
    })
}

/// A size as SHOW prints it (`16MB`, `512kB`): units are powers of 1024.
fn setting_size(value: &str) -> Option<u64> {
    let at = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(at);
    let shift = match unit {
        "" | "B" => 0,
        "kB" => 10,
        "MB" => 20,
        "GB" => 30,
        "TB" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The line of the server's timeline, and the history files of all its members as the server has them.
#[derive(Clone, Debug)]
pub struct Ancestry {
    pub line: History,
    pub files: Vec<(u32, TimelineHistory)>,
}

impl Ancestry {
    pub async fn fetch(connection: &mut Connection, timeline: u32) -> Result<Self> {
        let mut files = Vec::new();
        let line = match connection.timeline_history(timeline).await? {
            None if timeline == 1 => History::first(1),
            // Recovery could not follow a line whose newest file is missing either.
            None => {
                return Err(Error::retry(format!(
                    "the server is on timeline {timeline} but has no history file for it"
                )));
            }
            Some(file) => {
                let line = History::parse(timeline, &file.content)?;
                files.push((timeline, file));
                line
            }
        };
        for ancestor in line.ancestors.iter().rev().filter(|ancestor| ancestor.timeline > 1) {
            if let Some(file) = connection.timeline_history(ancestor.timeline).await? {
                files.push((ancestor.timeline, file));
            }
        }
        files.reverse();
        Ok(Self { line, files })
    }
}

#[cfg(test)]
mod tests {
    use super::setting_size;

    #[test]
    fn sizes_as_show_prints_them() {
        assert_eq!(setting_size("16MB"), Some(16 << 20));
        assert_eq!(setting_size("1GB"), Some(1 << 30));
        assert_eq!(setting_size("8192"), Some(8192));
        assert_eq!(setting_size("x"), None);
    }
}
