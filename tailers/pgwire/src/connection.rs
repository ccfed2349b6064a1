//! A connection in replication mode and its commands. Simple queries only: a physical walsender knows no
//! others.

use std::time::Duration;

use bytes::Bytes;
use holdfast_core::Clock;
use postgres_protocol::message::frontend;

use crate::{
    Error, Host, Lsn, Result, SqlState,
    message::{Message, Row},
    socket::{Incoming, Outgoing},
};

/// Bytes of rows that the answer to one command may have. The longest answer known is a timeline history.
const ANSWER_MAX: usize = 16 << 20;

/// How long a command that has nothing to wait for may take.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// A physical replication connection, ready for a command. Dropping it closes the socket; the server
/// then frees its slot when it notices.
pub struct Connection {
    pub(crate) incoming: Incoming,
    pub(crate) outgoing: Outgoing,
    pub(crate) host: Host,
    pub(crate) clock: Clock,
    /// A command was sent whose answer was not read to its end.
    pub(crate) busy: bool,
    /// IDENTIFY_SYSTEM was answered: older servers stream only after that.
    pub(crate) identified: bool,
}

/// The answer to IDENTIFY_SYSTEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemIdentity {
    /// The cluster's own number, made by initdb.
    pub system: u64,
    pub timeline: u32,
    /// Flushed up to here; on a standby, received or replayed.
    pub position: Lsn,
    pub database: Option<String>,
}

/// A timeline's history file as the server keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineHistory {
    pub file_name: String,
    pub content: Bytes,
}

/// The answer to READ_REPLICATION_SLOT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotState {
    /// `physical` or `logical`.
    pub kind: String,
    /// The server keeps its log from here on; `None` when the slot is lost or never reserved any.
    pub restart: Option<Lsn>,
    pub timeline: Option<u32>,
}

/// When a new slot begins to keep log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// From its creation on (in fact from the last checkpoint's redo position).
    Now,
    /// From its first stream on.
    Later,
}

/// How long a new slot lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    Permanent,
    /// Until this connection ends, or until the next command on it that the server refuses.
    Session,
}

impl Connection {
    /// The host that this connection reached.
    pub fn host(&self) -> &Host {
        &self.host
    }
    /// As `server_version_num` has it: 150018 for 15.18. Zero when the server did not say.
    pub fn server_version(&self) -> u32 {
        self.parameter("server_version").map_or(0, version_number)
    }
    /// 13 to 18.
    pub fn server_major(&self) -> u32 {
        self.server_version() / 10_000
    }
    /// What the server reported about itself (`in_hot_standby` from 14 on, `TimeZone`, …), newest value.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.incoming.inbox.parameters.get(name).map(String::as_str)
    }

    pub async fn identify_system(&mut self) -> Result<SystemIdentity> {
        let row = self.only_row("IDENTIFY_SYSTEM").await?;
        self.identified = true;
        Ok(SystemIdentity {
            system: row.parsed(0)?,
            timeline: row.parsed(1)?,
            position: row.parsed(2)?,
            database: row.text(3)?,
        })
    }

    /// The value of a setting, as SHOW prints it (with its unit).
    pub async fn show(&mut self, name: &str) -> Result<String> {
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.') {
            return Err(Error::Config(format!("«{name}» cannot be the name of a server setting")));
        }
        self.only_row(&format!("SHOW {name}")).await?.some_text(0)
    }

    /// `None` when the server has no such file (timeline 1 never has).
    pub async fn timeline_history(&mut self, timeline: u32) -> Result<Option<TimelineHistory>> {
        match self.only_row(&format!("TIMELINE_HISTORY {timeline}")).await {
            Ok(row) => {
                let content = row.0.get(1).cloned().flatten();
                let content =
                    content.ok_or_else(|| Error::protocol("a timeline history comes without content"))?;
                Ok(Some(TimelineHistory { file_name: row.some_text(0)?, content }))
            }
            Err(Error::Server(error)) if error.code == SqlState::UNDEFINED_FILE => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a physical slot. The answer names no position even when log is reserved: read the slot back.
    pub async fn create_slot(&mut self, name: &str, reserve: Reserve, lifetime: Lifetime) -> Result<()> {
        let temporary = if lifetime == Lifetime::Session { " TEMPORARY" } else { "" };
        let reserve = if reserve == Reserve::Now { " RESERVE_WAL" } else { "" };
        let text = format!("CREATE_REPLICATION_SLOT {}{temporary} PHYSICAL{reserve}", identifier(name)?);
        self.command(&text).await.map(drop)
    }

    /// `None` when there is no such slot. Servers before 15 do not know the command
    /// ([`Error::NotSupported`]): ask `pg_replication_slots` over SQL there.
    pub async fn read_slot(&mut self, name: &str) -> Result<Option<SlotState>> {
        if self.server_major() < 15 {
            return Err(Error::NotSupported {
                command: "READ_REPLICATION_SLOT",
                since: 15,
                version: self.server_major(),
            });
        }
        let row = self.only_row(&format!("READ_REPLICATION_SLOT {}", identifier(name)?)).await?;
        let Some(kind) = row.text(0)? else { return Ok(None) };
        Ok(Some(SlotState { kind, restart: row.maybe(1)?, timeline: row.maybe(2)? }))
    }

    /// Drops a slot; with `wait` the server waits until nobody uses it.
    pub async fn drop_slot(&mut self, name: &str, wait: bool) -> Result<()> {
        let text = format!("DROP_REPLICATION_SLOT {}", identifier(name)?);
        match wait {
            true => self.answer(&format!("{text} WAIT")).await.map(drop),
            false => self.command(&text).await.map(drop),
        }
    }

    /// Says good-bye and closes.
    pub async fn close(self) {
        self.outgoing.terminate().await;
    }

    async fn only_row(&mut self, text: &str) -> Result<Row> {
        let mut results = self.command(text).await?;
        match (results.pop(), results.is_empty()) {
            (Some(mut rows), true) if rows.len() == 1 => Ok(rows.pop().unwrap_or_default()),
            _ => Err(Error::protocol(format!("the answer to {text} is not one row"))),
        }
    }

    /// Runs a command that the server answers at once.
    async fn command(&mut self, text: &str) -> Result<Vec<Vec<Row>>> {
        let clock = self.clock.clone();
        clock.timeout(ANSWER_PATIENCE, self.answer(text)).await.unwrap_or_else(|| {
            Err(Error::NoAnswer { command: text.to_owned(), seconds: ANSWER_PATIENCE.as_secs() })
        })
    }

    /// Sends a command and reads its answer up to the server's readiness for the next one.
    async fn answer(&mut self, text: &str) -> Result<Vec<Vec<Row>>> {
        self.send(text).await?;
        let mut results: Vec<Vec<Row>> = Vec::new();
        let mut failed = None;
        let mut bytes = 0usize;
        loop {
            match self.incoming.message().await? {
                Message::RowDescription => results.push(Vec::new()),
                Message::DataRow(row) => {
                    bytes += row.0.iter().flatten().map(|b| b.len() + 32).sum::<usize>();
                    if bytes > ANSWER_MAX {
                        return Err(Error::protocol(format!("the answer to {text} does not end")));
                    }
                    match results.last_mut() {
                        Some(rows) => rows.push(row),
                        None => return Err(Error::protocol("a row came before its description")),
                    }
                }
                Message::CommandComplete(_) => {}
                Message::Error(error) => failed = Some(error),
                Message::ReadyForQuery => {
                    self.busy = false;
                    return failed.map_or(Ok(results), |error| Err(Error::Server(error)));
                }
                // A fatal error is not followed by readiness: the connection ends.
                other => return Err(other.unexpected("in the answer to a command")),
            }
            if failed.as_ref().is_some_and(|e| e.severity != crate::Severity::Error) {
                return Err(failed.map_or(Error::Closed, Error::Server));
            }
        }
    }

    /// Sends a command; its answer is the caller's.
    pub(crate) async fn send(&mut self, text: &str) -> Result<()> {
        if self.busy {
            return Err(Error::Abandoned);
        }
        self.busy = true;
        frontend::query(text, &mut self.outgoing.buffer)
            .map_err(|_| Error::Config("a command contains a zero byte".into()))?;
        self.outgoing.flush().await
    }
}

/// `15.18 (Debian …)` → 150018, `17beta1` → 170000.
fn version_number(text: &str) -> u32 {
    let mut parts = text
        .split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .next()
        .unwrap_or("")
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let major = parts.next().unwrap_or(0).min(9_999);
    let minor = parts.next().unwrap_or(0).min(9_999);
    major * 10_000 + minor
}

/// A name as the replication commands take it.
pub(crate) fn identifier(name: &str) -> Result<String> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if name.is_empty() || name.len() > 63 || !name.bytes().all(plain) {
        return Err(Error::Config(format!(
            "«{name}» cannot be the name of a slot: only a-z, 0-9 and _ are allowed, at most 63 of them"
        )));
    }
    Ok(format!("\"{name}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_the_servers_text() {
        assert_eq!(version_number("15.18 (Debian 15.18-0+deb12u1)"), 150_018);
        assert_eq!(version_number("13.23"), 130_023);
        assert_eq!(version_number("19beta3"), 190_000);
        assert_eq!(version_number("nonsense"), 0);
    }

    #[test]
    fn only_slot_names_that_the_server_accepts_are_sent() {
        assert_eq!(identifier("holdfast_1").unwrap(), "\"holdfast_1\"");
        for bad in ["", "A", "a\"b", "a b", &"x".repeat(64)] {
            assert!(identifier(bad).is_err(), "{bad}");
        }
    }
}
