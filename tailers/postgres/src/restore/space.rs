//! Looks at the target before the first byte: is each folder empty, is there room, may we write there. Changes
//! nothing.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use holdfast_core::{Result, text::show_size};
use rustix::fs::{Access, access, statvfs};

use super::{
    journal::{Journal, failed, other_plan},
    target::{Layout, OWN_FOLDER, Target},
};
use crate::records::Base;

/// The file system makes this one at the root of a mount.
const LOST_FOUND: &str = "lost+found";

/// What a look at the target found.
#[derive(Debug, Default)]
pub struct Look {
    pub conflicts: Vec<String>,
    /// Part of this very plan was written before.
    pub begun: bool,
}

/// Checks folders, mapping and rights for the plan of this digest.
pub fn look(target: &Target, layout: &Layout, base: &Base, plan: &str) -> Result<Look> {
    let mut look = Look::default();
    match Journal::peek(&layout.own())? {
        Some(state) if state.plan == plan => look.begun = true,
        Some(state) => look.conflicts.push(other_plan(&target.data, &state).to_string()),
        None => {}
    }
    for old in target.tablespaces.keys() {
        if base.tablespaces.iter().all(|tablespace| tablespace.location != *old) {
            let known: Vec<&str> = base.tablespaces.iter().map(|t| t.location.as_str()).collect();
            look.conflicts.push(format!(
                "no tablespace lay at {old}, so it cannot be mapped; the base backup has {}",
                if known.is_empty() { "none".to_owned() } else { known.join(", ") }
            ));
        }
    }
    let folders: Vec<&Path> = layout.folders().collect();
    for (at, folder) in folders.iter().enumerate() {
        if !folder.is_absolute() {
            look.conflicts.push(format!("{} is no absolute path", folder.display()));
            continue;
        }
        for other in folders.iter().skip(at + 1) {
            if folder.starts_with(other) || other.starts_with(folder) {
                look.conflicts.push(format!(
                    "{} and {} lie within each other: give each a folder of its own (map tablespaces with --tablespace OLD=NEW)",
                    folder.display(),
                    other.display()
                ));
            }
        }
        if !look.begun && look.conflicts.is_empty() {
            look.conflicts.extend(occupied(folder)?);
        }
        look.conflicts.extend(unwritable(folder));
    }
    if rustix::process::geteuid().is_root() && target.owner.is_none() {
        look.conflicts.push(
            "holdfast runs as root, and Postgres refuses files of root's: run it as the server's account (`sudo -u postgres holdfast restore …`) or name the account with --owner".to_owned(),
        );
    }
    if !rustix::process::geteuid().is_root() && target.owner.is_some() {
        look.conflicts.push("only root can give files to another account: leave --owner out".to_owned());
    }
    Ok(look)
}

/// Why a folder cannot be used, when something lies in it.
fn occupied(folder: &Path) -> Result<Option<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) if cause.kind() == io::ErrorKind::NotADirectory => {
            return Ok(Some(format!("{} is no folder", folder.display())));
        }
        Err(cause) => return Err(failed("read", folder, cause)),
    };
    for entry in entries {
        let name = entry.map_err(|cause| failed("read", folder, cause))?.file_name();
        // Our own folder without a journal: a restore that ended before it wrote anything.
        if name != LOST_FOUND && name != OWN_FOLDER {
            return Ok(Some(format!(
                "{} is not empty (it holds {}): a restore never mixes with what is there; choose another folder or empty this one",
                folder.display(),
                name.to_string_lossy()
            )));
        }
    }
    Ok(None)
}

fn unwritable(folder: &Path) -> Option<String> {
    let place = existing(folder)?;
    match access(&place, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => None,
        Err(cause) => Some(format!("nothing can be written to {} by this account: {cause}", place.display())),
    }
}

/// The folder itself, or the nearest one above that exists.
fn existing(folder: &Path) -> Option<PathBuf> {
    folder.ancestors().find(|place| place.exists()).map(Path::to_owned)
}

/// Conflicts where a file system has less room than `needs` (folder → bytes) adds up to on it.
pub fn room(needs: &[(PathBuf, u64)]) -> Result<Vec<String>> {
    let mut devices: BTreeMap<u64, (PathBuf, u64)> = BTreeMap::new();
    for (folder, bytes) in needs {
        let Some(place) = existing(folder) else { continue };
        let device = fs::metadata(&place).map_err(|cause| failed("read", &place, cause))?;
        let need = devices.entry(std::os::unix::fs::MetadataExt::dev(&device)).or_insert((place, 0));
        need.1 = need.1.saturating_add(*bytes);
    }
    let mut conflicts = Vec::new();
    for (place, needed) in devices.into_values() {
        let stat = statvfs(&place).map_err(|cause| failed("read", &place, cause.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < needed {
            conflicts.push(format!(
                "the file system of {} has {} free, and {} are needed",
                place.display(),
                show_size(free),
                show_size(needed)
            ));
        }
    }
    Ok(conflicts)
}
