//! Where a restore goes, as the user says it, and where each file of a base backup lies then.
//!
//! Invariant: no row of a base backup, however hostile, names a path outside of the folders of the target.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use holdfast_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::records::Base;

/// Our own folder within the data folder: journal and session. The server leaves names that begin like this out
/// of base backups, so keys in the session never reach one.
pub const OWN_FOLDER: &str = "pgsql_tmp.holdfast";

/// What Postgres does when it has reached the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Takes writes, on a new timeline.
    #[default]
    Promote,
    /// Serves reads and waits for `pg_wal_replay_resume()`.
    Pause,
    /// Stops; the next start goes on from there.
    Shutdown,
}

impl Action {
    pub fn word(self) -> &'static str {
        match self {
            Self::Promote => "promote",
            Self::Pause => "pause",
            Self::Shutdown => "shutdown",
        }
    }
}

/// Who the files are given to; only root may give files away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// The target of a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The new data folder: absent or empty.
    pub data: PathBuf,
    /// Location of a tablespace at the source → the new one. Those not named keep their location.
    pub tablespaces: BTreeMap<String, PathBuf>,
    /// A folder of its own for `pg_wal`.
    pub wal: Option<PathBuf>,
    pub action: Action,
    /// The restored server stays a standby, which follows the repository.
    pub standby: bool,
    pub owner: Option<Owner>,
    /// What Postgres runs for WAL, with `%f` and `%p`; its working folder is the data folder.
    pub restore_command: String,
    /// Keep the source's archiving settings instead of switching archiving off.
    pub keep_archiving: bool,
}

impl Target {
    pub fn new(data: impl Into<PathBuf>, restore_command: impl Into<String>) -> Self {
        Self {
            data: data.into(),
            tablespaces: BTreeMap::new(),
            wal: None,
            action: Action::Promote,
            standby: false,
            owner: None,
            restore_command: restore_command.into(),
            keep_archiving: false,
        }
    }
}

/// Quotes for a shell, and doubles `%` so that Postgres leaves it alone: for parts of a `restore_command`.
pub fn command_word(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''").replace('%', "%%"))
}

/// Folders of one restore, by tablespace.
#[derive(Clone, Debug)]
pub struct Layout {
    pub data: PathBuf,
    pub wal: Option<PathBuf>,
    /// Oid → folder.
    pub tablespaces: BTreeMap<u32, PathBuf>,
}

/// What to do with a row of a base backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    Write(PathBuf),
    /// Written at the very end, when all else is durable.
    Last,
    /// Not brought back: it tells of the source's own process or of an older recovery.
    Leave,
}

/// Written last: the server starts nothing without the one, and our settings go into the other.
pub const CONTROL: &str = "global/pg_control";
pub const AUTO_CONF: &str = "postgresql.auto.conf";

/// Files that would make the restored server something else than was asked for. `tablespace_map` would have the
/// server make the links anew as they were at the source; the links are ours.
const LEFT: [&str; 9] = [
    "recovery.signal",
    "standby.signal",
    "recovery.conf",
    "recovery.done",
    "postmaster.pid",
    "postmaster.opts",
    "backup_label.old",
    "tablespace_map",
    "tablespace_map.old",
];

impl Layout {
    pub fn new(target: &Target, base: &Base) -> Self {
        let place = |tablespace: &crate::records::Tablespace| {
            let mapped = target.tablespaces.get(&tablespace.location).cloned();
            (tablespace.oid, mapped.unwrap_or_else(|| PathBuf::from(&tablespace.location)))
        };
        Self {
            data: target.data.clone(),
            wal: target.wal.clone(),
            tablespaces: base.tablespaces.iter().map(place).collect(),
        }
    }

    /// Every folder that is written to.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        let wal = self.wal.as_deref();
        [self.data.as_path()].into_iter().chain(wal).chain(self.tablespaces.values().map(PathBuf::as_path))
    }

    pub fn own(&self) -> PathBuf {
        self.data.join(OWN_FOLDER)
    }

    pub fn place(&self, tablespace: u32, path: &str) -> Result<Use> {
        let root = match tablespace {
            0 => &self.data,
            oid => self.tablespaces.get(&oid).ok_or_else(|| {
                Error::corrupt(format!(
                    "the base backup holds files of a tablespace {oid} that it does not name"
                ))
            })?,
        };
        let normal = |part: Component<'_>| matches!(part, Component::Normal(_));
        if path.is_empty() || !Path::new(path).components().all(normal) {
            return Err(Error::corrupt(format!(
                "«{path}» in the base backup is no path below the data folder"
            )));
        }
        if tablespace == 0 {
            if path == CONTROL || path == AUTO_CONF {
                return Ok(Use::Last);
            }
            let link = path.strip_prefix("pg_tblspc/").is_some_and(|name| !name.contains('/'));
            let own = path == OWN_FOLDER || path.starts_with("pgsql_tmp.holdfast/");
            let linked = path == "pg_wal" && self.wal.is_some();
            if LEFT.contains(&path) || own || linked || link && self.is_tablespace(path) {
                return Ok(Use::Leave);
            }
            if let (Some(wal), Some(below)) = (&self.wal, path.strip_prefix("pg_wal/")) {
                return Ok(Use::Write(wal.join(below)));
            }
        }
        Ok(Use::Write(root.join(path)))
    }

    fn is_tablespace(&self, path: &str) -> bool {
        let oid = path.strip_prefix("pg_tblspc/").and_then(|oid| oid.parse().ok());
        oid.is_some_and(|oid: u32| self.tablespaces.contains_key(&oid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_leads_outside() {
        let layout = Layout {
            data: "/d".into(),
            wal: Some("/w".into()),
            tablespaces: [(16400, PathBuf::from("/t"))].into(),
        };
        for bad in ["", "/etc/passwd", "../x", "base/../../x", "./base", "..", "base/./1"] {
            let place = layout.place(0, bad);
            assert!(place.is_err() || place.unwrap() == Use::Write("/d/base/1".into()), "{bad}");
        }
        assert!(layout.place(7, "x").is_err());
        assert_eq!(layout.place(0, "base/1/2").unwrap(), Use::Write("/d/base/1/2".into()));
        assert_eq!(layout.place(16400, "PG_15/1").unwrap(), Use::Write("/t/PG_15/1".into()));
        assert_eq!(layout.place(0, "pg_wal/archive_status").unwrap(), Use::Write("/w/archive_status".into()));
        assert_eq!(layout.place(0, "global/pg_control").unwrap(), Use::Last);
        for left in
            ["standby.signal", "pg_tblspc/16400", "pg_wal", "tablespace_map", "pgsql_tmp.holdfast/session"]
        {
            assert_eq!(layout.place(0, left).unwrap(), Use::Leave, "{left}");
        }
    }

    #[test]
    fn words_of_a_command_are_quoted_for_shell_and_server() {
        assert_eq!(command_word("/opt/100% it's/holdfast"), r"'/opt/100%% it'\''s/holdfast'");
    }
}
