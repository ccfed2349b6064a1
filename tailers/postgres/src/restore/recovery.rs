//! What tells the restored server how to recover: settings, signal file, and the configuration files it cannot do
//! without. Pure text, but for the last step that looks which files are there.

use std::{collections::BTreeSet, path::PathBuf};

use holdfast_core::{Bytes, Moment, Note, Result};

use super::target::{Action, Target};
use crate::{
    records::{Base, NoteBody, Parameters, WalLevel},
    wal::Lsn,
};

const BEGIN: &str = "# holdfast restore: begin";
const END: &str = "# holdfast restore: end";

/// How the server recovers.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// Stop at the moment, or go on with what the repository gets.
    pub until: Option<Until>,
    /// Number of the moment's timeline, or `latest` for a standby that follows the cluster through promotions.
    pub timeline: String,
    pub parameters: Parameters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Until {
    pub lsn: Lsn,
    pub inclusive: bool,
}

impl Recovery {
    /// The settings block. Later lines win in Postgres, so it goes last.
    pub fn block(&self, target: &Target, version: u32) -> String {
        let mut lines: Vec<(String, String)> = Vec::new();
        let mut set = |name: &str, value: &str| lines.push((name.to_owned(), value.to_owned()));
        set("restore_command", &target.restore_command);
        // Of several targets the server would take none.
        for other in
            ["recovery_target", "recovery_target_name", "recovery_target_time", "recovery_target_xid"]
        {
            set(other, "");
        }
        set("recovery_target_lsn", &self.until.map_or_else(String::new, |until| until.lsn.to_string()));
        set(
            "recovery_target_inclusive",
            if self.until.is_none_or(|until| until.inclusive) { "on" } else { "off" },
        );
        set("recovery_target_timeline", &self.timeline);
        set("recovery_target_action", target.action.word());
        set("recovery_min_apply_delay", "0");
        set("recovery_end_command", "");
        set("archive_cleanup_command", "");
        // A copy must not pull from, wait for, or write over what belongs to its source.
        set("primary_conninfo", "");
        set("primary_slot_name", "");
        set("synchronous_standby_names", "");
        // Its subscriptions would take the source's slots at the publisher, and move them.
        set("max_logical_replication_workers", "0");
        if !target.keep_archiving {
            set("archive_mode", "off");
        }
        if version >= 170_000 {
            set("synchronized_standby_slots", "");
            set("sync_replication_slots", "off");
        }
        if target.standby || target.action == Action::Pause {
            set("hot_standby", "on");
        }
        let least = &self.parameters;
        set("wal_level", if least.wal_level == WalLevel::Logical { "logical" } else { "replica" });
        for (name, value) in [
            ("max_connections", least.max_connections),
            ("max_worker_processes", least.max_worker_processes),
            ("max_wal_senders", least.max_wal_senders),
            ("max_prepared_transactions", least.max_prepared_transactions),
            ("max_locks_per_transaction", least.max_locks_per_transaction),
        ] {
            set(name, &value.to_string());
        }
        let mut text = format!("{BEGIN} (may be deleted when recovery has ended)\n");
        for (name, value) in lines {
            text.push_str(&format!("{name} = '{}'\n", value.replace('\\', "\\\\").replace('\'', "''")));
        }
        text.push_str(END);
        text.push('\n');
        text
    }

    pub fn signal(target: &Target) -> &'static str {
        if target.standby { "standby.signal" } else { "recovery.signal" }
    }
}

/// `postgresql.auto.conf` with `block` at its end and without blocks of earlier restores.
pub fn with_block(held: &[u8], block: &str) -> String {
    let text = String::from_utf8_lossy(held);
    let mut out = String::new();
    let mut within = false;
    for line in text.lines() {
        within |= line.starts_with(BEGIN);
        if !within {
            out.push_str(line);
            out.push('\n');
        }
        within &= !line.starts_with(END);
    }
    out.push_str(block);
    out
}

/// The least the server needs: the source's values when the backup began, and each change replayed since (E11).
pub fn parameters(base: &Base, moment: &Moment, notes: &[Note]) -> Result<Parameters> {
    let mut least = base.parameters;
    for body in replayed(moment, notes)? {
        if let NoteBody::Parameters(changed) = body {
            least.max_connections = least.max_connections.max(changed.max_connections);
            least.max_worker_processes = least.max_worker_processes.max(changed.max_worker_processes);
            least.max_wal_senders = least.max_wal_senders.max(changed.max_wal_senders);
            least.max_prepared_transactions =
                least.max_prepared_transactions.max(changed.max_prepared_transactions);
            least.max_locks_per_transaction =
                least.max_locks_per_transaction.max(changed.max_locks_per_transaction);
        }
    }
    Ok(least)
}

/// Where replay makes tablespaces again that were made after the base backup began: at their own locations, which no
/// mapping reaches.
pub fn tablespaces(moment: &Moment, notes: &[Note]) -> Result<BTreeSet<PathBuf>> {
    let made = replayed(moment, notes)?.into_iter().filter_map(|body| match body {
        NoteBody::Tablespace { location, .. } => Some(PathBuf::from(location)),
        _ => None,
    });
    Ok(made.collect())
}

/// Notes of what is replayed on the way to `moment`.
fn replayed(moment: &Moment, notes: &[Note]) -> Result<Vec<NoteBody>> {
    let on_path = |note: &&Note| {
        let holds = |span: &holdfast_core::Span| {
            span.branch == note.place.branch && (span.from..=span.to).contains(&note.place.position)
        };
        moment.path.iter().any(holds)
    };
    notes.iter().filter(on_path).map(|note| NoteBody::decode(&note.body)).collect()
}

/// Files that the server does not start without and that some packages keep outside of the data folder.
pub const CONFIGURATION: [(&str, &str); 3] = [
    (
        "postgresql.conf",
        "# Written by holdfast: the base backup holds no postgresql.conf (Debian and others keep it in /etc).\n# Replace it with the source's own, or start with -c config_file=PATH.\nlisten_addresses = 'localhost'\n",
    ),
    (
        "pg_hba.conf",
        "# Written by holdfast: the base backup holds no pg_hba.conf. Only the account that runs the server gets in.\nlocal all all peer\n",
    ),
    ("pg_ident.conf", "# Written by holdfast: the base backup holds no pg_ident.conf.\n"),
];

/// Folders that the server needs and whose contents a base backup leaves out.
pub const FOLDERS: [&str; 16] = [
    "global",
    "pg_wal",
    "pg_wal/archive_status",
    "pg_commit_ts",
    "pg_dynshmem",
    "pg_logical",
    "pg_logical/mappings",
    "pg_logical/snapshots",
    "pg_notify",
    "pg_replslot",
    "pg_serial",
    "pg_snapshots",
    "pg_stat",
    "pg_stat_tmp",
    "pg_subtrans",
    "pg_tblspc",
];

/// One line for people: what the server will do.
pub fn describe(target: &Target, follows: bool) -> String {
    match (target.standby, follows, target.action) {
        (true, true, _) => "stays a standby that follows the repository".to_owned(),
        (true, false, action) => format!("a standby; at the moment: {}", action.word()),
        (false, _, Action::Promote) => "takes writes on a new timeline once it is there".to_owned(),
        (false, _, Action::Pause) => {
            "pauses for reads; `SELECT pg_wal_replay_resume()` promotes it".to_owned()
        }
        (false, _, Action::Shutdown) => "shuts down once it is there".to_owned(),
    }
}

/// Does the base backup itself hold this file, so that we leave it alone?
pub fn missing_configuration(held: impl Fn(&str) -> bool) -> Vec<(&'static str, Bytes)> {
    let missing = CONFIGURATION.iter().filter(|(name, _)| !held(name));
    missing.map(|(name, text)| (*name, Bytes::from_static(text.as_bytes()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_block_goes_and_the_new_one_stands_last() {
        let held = format!("a = '1'\n{BEGIN} (x)\nrecovery_target_lsn = '0/1'\n{END}\nb = '2'\n");
        assert_eq!(with_block(held.as_bytes(), "new\n"), "a = '1'\nb = '2'\nnew\n");
        assert_eq!(with_block(b"", "new\n"), "new\n");
    }

    #[test]
    fn a_block_quotes_and_neutralises() {
        let target = Target::new("/d", "it's %f %p");
        let until = Some(Until { lsn: Lsn(0x16b_3748), inclusive: false });
        let recovery = Recovery { until, timeline: "3".into(), parameters: Parameters::default() };
        let block = recovery.block(&target, 150_000);
        for line in [
            "restore_command = 'it''s %f %p'",
            "recovery_target_lsn = '0/16B3748'",
            "recovery_target_inclusive = 'off'",
            "recovery_target_timeline = '3'",
            "synchronous_standby_names = ''",
            "archive_mode = 'off'",
        ] {
            assert!(block.lines().any(|held| held == line), "{line}: {block}");
        }
        assert!(!block.contains("synchronized_standby_slots"));
    }
}
