//! Looks at the target before the first byte: is each folder empty, is there room, may we write there. Changes
//! nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
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

/// Why replay must not make tablespaces again at `places`: it would write into files that are another server's.
pub fn made_again(places: &BTreeSet<PathBuf>) -> Result<Vec<String>> {
    let mut conflicts = Vec::new();
    for place in places {
        if occupied(place)?.is_some() {
            conflicts.push(format!(
                "{} is not empty, and replay would write into it: a tablespace was made there after the base backup. \
                 Restore on another host, or make a new base backup and choose a moment after it (its tablespaces can \
                 be mapped), or empty the folder if nobody uses it",
                place.display()
            ));
        }
    }
    Ok(conflicts)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        records::{Parameters, Tablespace},
        restore::{journal::tests::moment, target::Owner},
        wal::Lsn,
    };

    fn base(locations: &[&str]) -> Base {
        let tablespace = |(at, location): (usize, &&str)| Tablespace {
            oid: 16_400 + u32::try_from(at).unwrap(),
            location: (*location).to_owned(),
        };
        Base {
            label: "x".into(),
            timeline: 1,
            start: Lsn(0),
            end_timeline: 1,
            end: Lsn(0),
            tablespaces: locations.iter().enumerate().map(tablespace).collect(),
            segment_size: 16 << 20,
            version: 150_018,
            system_identifier: 1,
            parameters: Parameters::default(),
            checksums: true,
            group_access: false,
            from_standby: false,
        }
    }

    fn conflicts(target: &Target, base: &Base) -> String {
        look(target, &Layout::new(target, base), base, "plan").unwrap().conflicts.join("; ")
    }

    #[test]
    fn a_target_is_looked_at_and_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let mut target = Target::new(folder.path().join("a/b/data"), "x");
        if rustix::process::geteuid().is_root() {
            assert!(conflicts(&target, &base(&[])).contains("runs as root"));
            target.owner = Some(Owner { uid: 1, gid: 1 });
        } else {
            target.owner = Some(Owner { uid: 1, gid: 1 });
            assert!(conflicts(&target, &base(&[])).contains("only root"));
            target.owner = None;
        }
        assert_eq!(conflicts(&target, &base(&[])), "");
        assert!(!folder.path().join("a").exists());
        // The root of a mount, with what the file system puts there.
        fs::create_dir_all(target.data.join("lost+found")).unwrap();
        assert_eq!(conflicts(&target, &base(&[])), "");
        fs::write(target.data.join("PG_VERSION"), "15").unwrap();
        assert!(conflicts(&target, &base(&[])).contains("is not empty (it holds PG_VERSION)"));
        fs::remove_file(target.data.join("PG_VERSION")).unwrap();

        let occupied = folder.path().join("space");
        fs::create_dir_all(occupied.join("PG_15_202209061")).unwrap();
        let location = occupied.display().to_string();
        assert!(conflicts(&target, &base(&[&location])).contains("is not empty"));
        target.tablespaces.insert(location.clone(), target.data.join("inside"));
        assert!(conflicts(&target, &base(&[&location])).contains("lie within each other"));
        target.tablespaces.insert(location.clone(), folder.path().join("new"));
        assert_eq!(conflicts(&target, &base(&[&location])), "");
        target.tablespaces.insert("/nowhere".into(), "relative".into());
        assert!(conflicts(&target, &base(&[&location])).contains("no tablespace lay at /nowhere"));
        target.wal = Some("relative".into());
        assert!(conflicts(&target, &base(&[&location])).contains("no absolute path"));
    }

    #[test]
    fn only_the_plan_that_was_begun_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut target = Target::new(folder.path().join("data"), "x");
        target.owner = rustix::process::geteuid().is_root().then_some(Owner { uid: 0, gid: 0 });
        let layout = Layout::new(&target, &base(&[]));
        drop(Journal::open(&layout.own(), "plan", "Latest", &moment(16)).unwrap());
        fs::write(target.data.join("PG_VERSION"), "15").unwrap();
        let seen = look(&target, &layout, &base(&[]), "plan").unwrap();
        assert!(seen.begun && seen.conflicts.is_empty(), "{seen:?}");
        let other = look(&target, &layout, &base(&[]), "other").unwrap();
        assert!(other.conflicts[0].contains("another restore"), "{other:?}");
    }

    #[test]
    fn room_adds_up_by_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        assert!(room(&[(place("a"), 1), (place("b"), 1)]).unwrap().is_empty());
        let stat = statvfs(folder.path()).unwrap();
        let half = stat.f_bavail * stat.f_frsize / 2 + (1 << 30);
        assert!(room(&[(place("a"), half)]).unwrap().is_empty());
        let conflicts = room(&[(place("a"), half), (place("b"), half)]).unwrap();
        assert!(conflicts.len() == 1 && conflicts[0].contains("are needed"), "{conflicts:?}");
    }
}
