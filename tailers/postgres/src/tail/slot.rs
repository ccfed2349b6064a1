//! The physical slot: found, made, made anew when the server gave it up.
//!
//! A lost slot behaves in three ways (13 to 15 revive silently, 16 and 17 stream and protect nothing, 18
//! refuses), so its state is asked for and START_REPLICATION is never relied upon.

use std::time::Duration;

use holdfast_core::{Clock, Error, Result};
use holdfast_pgwire::{Connection, Error as WireError, Lifetime, Reserve, SqlState};

use crate::{sql::Sql, wal::Lsn};

/// How long an ended connection of ours may still hold the slot, and how often to look.
pub const LINGER: Duration = Duration::from_secs(5);
pub const LOOK: Duration = Duration::from_millis(50);

/// The SQL connection beside the replication connection, or why there is none.
pub type Side<'a> = std::result::Result<&'a Sql, &'a Error>;

/// A slot that keeps log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Log is kept from here on.
    pub restart: Lsn,
    /// It had existed and the server had given it up.
    pub was_lost: bool,
    /// It was made just now.
    pub made: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Absent,
    /// Invalidated, or made without a reservation and never used.
    KeepsNothing,
    Keeps(Lsn),
}

/// The server's own rule, so that a wrong name is known before the server is asked.
pub fn check_name(name: &str) -> Result<()> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if (1..=63).contains(&name.len()) && name.chars().all(fine) {
        return Ok(());
    }
    Err(Error::configure(format!(
        "«{name}» is no name for a slot: write at most 63 of a-z, 0-9 and _ in «slot»"
    )))
}

/// Finds the slot, or makes it so that it keeps log from now on.
pub async fn ensure(connection: &mut Connection, sql: Side<'_>, name: &str, clock: &Clock) -> Result<Slot> {
    let was_lost = match find(connection, sql, name).await? {
        Found::Keeps(restart) => return Ok(Slot { restart, was_lost: false, made: false }),
        Found::KeepsNothing => {
            drop_it(connection, name, clock).await?;
            true
        }
        Found::Absent => false,
    };
    make(connection, sql, name).await.map(|restart| Slot { restart, was_lost, made: true })
}

/// Drops the slot whatever its state and makes it anew.
pub async fn renew(connection: &mut Connection, sql: Side<'_>, name: &str, clock: &Clock) -> Result<Slot> {
    drop_it(connection, name, clock).await?;
    make(connection, sql, name).await.map(|restart| Slot { restart, was_lost: true, made: true })
}

/// Drops the slot, if there is one. The server needs a moment to notice that our own connection is gone.
pub async fn drop_it(connection: &mut Connection, name: &str, clock: &Clock) -> Result<()> {
    let deadline = clock.now() + LINGER;
    loop {
        match connection.drop_slot(name, false).await {
            Err(cause) if cause.code() == Some(SqlState::UNDEFINED_OBJECT) => return Ok(()),
            Err(cause) if cause.code() == Some(SqlState::OBJECT_IN_USE) && clock.now() < deadline => {
                clock.sleep(LOOK).await;
            }
            other => return other.map_err(|cause| named(cause, name)),
        }
    }
}

async fn make(connection: &mut Connection, sql: Side<'_>, name: &str) -> Result<Lsn> {
    match connection.create_slot(name, Reserve::Now, Lifetime::Permanent).await {
        Err(cause) if cause.code() == Some(SqlState::DUPLICATE_OBJECT) => {}
        other => other.map_err(|cause| named(cause, name))?,
    }
    match find(connection, sql, name).await? {
        Found::Keeps(restart) => Ok(restart),
        _ => Err(Error::retry(format!("the slot {name} was made but keeps no log yet"))),
    }
}

async fn find(connection: &mut Connection, sql: Side<'_>, name: &str) -> Result<Found> {
    let (kind, restart) = if connection.server_major() >= 15 {
        match connection.read_slot(name).await {
            Ok(None) => return Ok(Found::Absent),
            Ok(Some(slot)) => (slot.kind, slot.restart.map(|lsn| Lsn(lsn.0))),
            // The command refuses to read such a slot.
            Err(cause) if cause.code() == Some(SqlState::FEATURE_NOT_SUPPORTED) => {
                ("logical".to_owned(), None)
            }
            Err(cause) => return Err(cause.into()),
        }
    } else {
        let sql = sql.map_err(|cause| {
            let (major, why) = (connection.server_major(), cause.chain());
            if cause.is_passing() {
                return Error::retry(format!(
                    "Postgres {major} tells the state of a slot by SQL only, and no SQL connection is possible now: {why}"
                ));
            }
            Error::configure(format!(
                "Postgres {major} tells the state of a slot by SQL only, and no SQL connection is possible: let the user \
                 connect to its database in pg_hba.conf: {why}"
            ))
        })?;
        // The name was checked when it was first sent to the server; here it stands between quotes.
        let name = name.replace('\'', "''");
        let query = format!(
            "select slot_type, case when wal_status = 'lost' then null else restart_lsn end \
             from pg_catalog.pg_replication_slots where slot_name = '{name}'"
        );
        match sql.row(&query).await? {
            None => return Ok(Found::Absent),
            Some(row) => {
                let mut columns = row.into_iter();
                let kind = columns.next().flatten().unwrap_or_default();
                (kind, columns.next().flatten().and_then(|lsn| lsn.parse().ok()))
            }
        }
    };
    if kind != "physical" {
        return Err(Error::configure(format!(
            "the slot {name} exists and is a {kind} one: choose another name in «slot»"
        )));
    }
    Ok(restart.filter(|lsn| *lsn != Lsn::INVALID).map_or(Found::KeepsNothing, Found::Keeps))
}

fn named(cause: WireError, name: &str) -> Error {
    let what = match cause.code() {
        Some(SqlState::OBJECT_IN_USE) => format!(
            "the slot {name} is in use: by another holdfast, or by an old session that the server drops after its \
             wal_sender_timeout"
        ),
        Some(SqlState::INSUFFICIENT_PRIVILEGE) => {
            format!("the user may not manage the slot {name}: give it the attribute REPLICATION")
        }
        _ => format!("the slot {name} could not be made or dropped"),
    };
    Error::from(cause).during(what)
}
