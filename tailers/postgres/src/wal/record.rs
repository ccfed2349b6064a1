//! The few kinds of records that a backup must understand. Everything else is bytes.

use holdfast_core::Timestamp;

use super::page::Fields;
use crate::records::{Parameters, WalLevel};

/// Bytes of a record's fixed head: length, xid, previous, info, resource manager, checksum.
pub const HEAD: usize = 24;
/// Longest commit-prepared record whose transaction id we look for behind its subtransactions.
const PREPARED_MAX: usize = 1 << 20;
/// A path (MAXPGPATH) and what stands before it.
const TABLESPACE_MAX: usize = 1024 + 64;
/// Microseconds from 1970 to 2000, where Postgres's clock begins.
const EPOCH_2000: i64 = 946_684_800_000_000;

const XLOG: u8 = 0;
const XACT: u8 = 1;
const TABLESPACE: u8 = 5;

/// What a record says to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// `xid` is 64 bits wide once a checkpoint was seen, else as in the record.
    Commit {
        xid: u64,
        time: Timestamp,
    },
    RestorePoint {
        name: String,
        time: Timestamp,
    },
    Parameters(Parameters),
    EndOfRecovery {
        timeline: u32,
        previous: u32,
        time: Timestamp,
    },
    Checkpoint {
        next_xid: u64,
    },
    /// Replay makes it again at the same place, wherever the data folder lies (`commands/tablespace.h`).
    Tablespace {
        oid: u32,
        location: String,
    },
    /// The rest of the segment is padding.
    Switch,
}

/// A time of the server's clock.
pub fn server_time(micros: i64) -> Timestamp {
    Timestamp(micros.saturating_add(EPOCH_2000))
}

#[derive(Clone, Copy)]
enum Kind {
    Commit,
    CommitPrepared,
    Checkpoint,
    Switch,
    Parameters,
    RestorePoint,
    EndOfRecovery,
    Tablespace,
}

fn kind(head: &[u8]) -> Option<Kind> {
    let (info, manager) = (*head.get(16)?, *head.get(17)?);
    Some(match (manager, info & 0xf0, info & 0x70) {
        (XACT, _, 0x00) => Kind::Commit,
        (XACT, _, 0x30) => Kind::CommitPrepared,
        (XLOG, 0x00 | 0x10, _) => Kind::Checkpoint,
        (XLOG, 0x40, _) => Kind::Switch,
        (XLOG, 0x60, _) => Kind::Parameters,
        (XLOG, 0x70, _) => Kind::RestorePoint,
        (XLOG, 0x90, _) => Kind::EndOfRecovery,
        (TABLESPACE, 0x00, _) => Kind::Tablespace,
        _ => return None,
    })
}

/// How many of its bytes a record with this head (of [`HEAD`] bytes) must show to be understood.
pub fn wanted(head: &[u8], total: usize) -> usize {
    let most = match kind(head) {
        None => HEAD,
        Some(Kind::CommitPrepared) => PREPARED_MAX,
        Some(Kind::Tablespace) => TABLESPACE_MAX,
        Some(_) => 160,
    };
    most.min(total)
}

/// Understands a record from its first [`wanted`] bytes. `None` for all that says nothing to us.
pub fn parse(head: &[u8], major: u32) -> Option<Entry> {
    let kind = kind(head)?;
    let mut fields = Fields(head);
    fields.skip(4)?;
    let xid = fields.u32()?;
    fields.skip(8)?;
    let info = fields.u8()?;
    fields.skip(7)?;
    if matches!(kind, Kind::Switch) {
        return Some(Entry::Switch);
    }
    main_data(&mut fields)?;
    Some(match kind {
        Kind::Switch => Entry::Switch,
        Kind::Commit => Entry::Commit { xid: u64::from(xid), time: server_time(fields.i64()?) },
        Kind::CommitPrepared => {
            let time = server_time(fields.i64()?);
            let prepared = prepared_xid(&mut fields, info, major).unwrap_or(xid);
            Entry::Commit { xid: u64::from(prepared), time }
        }
        Kind::Checkpoint => {
            fields.skip(24)?;
            Entry::Checkpoint { next_xid: fields.u64()? }
        }
        Kind::Parameters => Entry::Parameters(parameters(&mut fields)?),
        Kind::RestorePoint => {
            let time = server_time(fields.i64()?);
            let name = fields.0.get(..64.min(fields.0.len()))?;
            let name = name.split(|byte| *byte == 0).next()?;
            Entry::RestorePoint { name: String::from_utf8_lossy(name).into_owned(), time }
        }
        Kind::Tablespace => {
            let oid = fields.u32()?;
            let location = fields.0.split(|byte| *byte == 0).next()?;
            Entry::Tablespace { oid, location: String::from_utf8_lossy(location).into_owned() }
        }
        Kind::EndOfRecovery => {
            let time = server_time(fields.i64()?);
            Entry::EndOfRecovery { timeline: fields.u32()?, previous: fields.u32()?, time }
        }
    })
}

/// Steps over the headers in front of the main data. None of our kinds refers to blocks.
fn main_data(fields: &mut Fields<'_>) -> Option<()> {
    loop {
        match fields.u8()? {
            255 => return fields.skip(1),
            254 => return fields.skip(4),
            253 => fields.skip(2)?,
            252 => fields.skip(4)?,
            _ => return None,
        }
    }
}

/// The id of the prepared transaction stands behind all that its commit lists.
fn prepared_xid(fields: &mut Fields<'_>, info: u8, major: u32) -> Option<u32> {
    if info & 0x80 == 0 {
        return None;
    }
    let has = fields.u32()?;
    if has & 1 != 0 {
        fields.skip(8)?;
    }
    let dropped = if major >= 18 { 16 } else { 12 };
    for (flag, size) in [(1 << 1, 4), (1 << 2, 12), (1 << 8, dropped), (1 << 3, 16)] {
        if has & flag != 0 {
            let count = usize::try_from(fields.u32()?).ok()?;
            fields.skip(count.checked_mul(size)?)?;
        }
    }
    (has & (1 << 4) != 0).then(|| fields.u32()).flatten()
}

fn parameters(fields: &mut Fields<'_>) -> Option<Parameters> {
    Some(Parameters {
        max_connections: fields.u32()?,
        max_worker_processes: fields.u32()?,
        max_wal_senders: fields.u32()?,
        max_prepared_transactions: fields.u32()?,
        max_locks_per_transaction: fields.u32()?,
        wal_level: match fields.u32()? {
            0 => WalLevel::Minimal,
            1 => WalLevel::Replica,
            _ => WalLevel::Logical,
        },
        wal_log_hints: fields.u8()? != 0,
        track_commit_timestamp: fields.u8()? != 0,
    })
}
