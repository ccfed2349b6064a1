//! Copies of data folders, cold or while a server writes to them.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use anyhow::{Context, Result};

use crate::User;

/// Copies a folder with modes and symbolic links and gives the copy to the servers' account. `skip` is asked
/// with each path relative to `from`. A file that vanishes meanwhile is left out: a server may be running.
pub fn copy_folder(from: &Path, to: &Path, skip: &dyn Fn(&Path) -> bool) -> Result<()> {
    copy_below(from, to, Path::new(""), skip)
        .with_context(|| format!("{} could not be copied to {}", from.display(), to.display()))
}

fn copy_below(from: &Path, to: &Path, below: &Path, skip: &dyn Fn(&Path) -> bool) -> Result<()> {
    let source = from.join(below);
    let target = to.join(below);
    fs::create_dir_all(&target)?;
    fs::set_permissions(&target, fs::metadata(&source)?.permissions())?;
    User::give(&target)?;
    for entry in fs::read_dir(&source)? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if skip(&path) {
            continue;
        }
        let Some(kind) = present(entry.file_type())? else { continue };
        if kind.is_dir() {
            copy_below(from, to, &path, skip)?;
        } else if kind.is_symlink() {
            if let Some(goal) = present(fs::read_link(from.join(&path)))? {
                symlink(goal, to.join(&path))?;
                User::give(&to.join(&path))?;
            }
        } else if kind.is_file() && present(fs::copy(from.join(&path), to.join(&path)))?.is_some() {
            User::give(&to.join(&path))?;
        }
    }
    Ok(())
}

fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}

/// A folder for the servers' account, closed to all others.
pub fn make_private(path: &Path) -> Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    User::give(path)
}
