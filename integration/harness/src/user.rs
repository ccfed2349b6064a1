//! Who the servers run as: Postgres refuses root, so under root they run as an unprivileged user.

use std::{
    fs,
    os::unix::{fs::lchown, process::CommandExt},
    path::Path,
    process::Command,
    sync::OnceLock,
};

use anyhow::{Context, Result};

use crate::Missing;

/// An account by number. `None` from [`User::servers`] means that we are unprivileged ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

impl User {
    /// The account for servers: `postgres`, else `nobody`, when we are root; nobody else otherwise.
    pub fn servers() -> Result<Option<Self>> {
        static USER: OnceLock<Option<User>> = OnceLock::new();
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        if let Some(user) = USER.get() {
            return Ok(*user);
        }
        let passwd = fs::read_to_string("/etc/passwd").context("/etc/passwd could not be read")?;
        let user =
            ["postgres", "nobody"].iter().find_map(|name| account(&passwd, name)).ok_or_else(|| {
                Missing::new(
                    "an unprivileged account",
                    "Postgres does not run as root, and neither postgres nor nobody exists",
                    "add one of the two accounts",
                )
            })?;
        Ok(*USER.get_or_init(|| Some(user)))
    }

    /// Makes `command` run as the servers' account.
    pub fn drop_root(command: &mut Command) -> Result<()> {
        if let Some(user) = Self::servers()? {
            command.uid(user.uid).gid(user.gid);
        }
        Ok(())
    }

    /// Gives one path (not what lies below it) to the servers' account.
    pub fn give(path: &Path) -> Result<()> {
        if let Some(user) = Self::servers()? {
            lchown(path, Some(user.uid), Some(user.gid))
                .with_context(|| format!("{} could not be given to the servers' account", path.display()))?;
        }
        Ok(())
    }

    /// Gives a folder and all below it to the servers' account, and closes its top to everybody else as Postgres
    /// demands of a data folder.
    pub fn give_all(folder: &Path) -> Result<()> {
        if Self::servers()?.is_none() {
            return Ok(());
        }
        Self::give(folder)?;
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                Self::give_all(&entry.path())?;
            } else {
                Self::give(&entry.path())?;
            }
        }
        Ok(())
    }
}

fn account(passwd: &str, name: &str) -> Option<User> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(User { uid, gid })
    })
}
