//! The cache of fetched servers: outside the repository, made once under a lock, moved into place when whole.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

/// `$HOLDFAST_CACHE`; else, for root, a folder that the servers' account can reach; else the user's own cache.
pub fn folder() -> Result<PathBuf> {
    let folder = if let Some(folder) = std::env::var_os("HOLDFAST_CACHE") {
        PathBuf::from(folder)
    } else if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/cache/holdfast")
    } else if let Some(cache) = std::env::var_os("XDG_CACHE_HOME") {
        PathBuf::from(cache).join("holdfast")
    } else {
        let home = std::env::var_os("HOME").context("neither HOLDFAST_CACHE nor HOME is set: set one")?;
        PathBuf::from(home).join(".cache/holdfast")
    };
    fs::create_dir_all(&folder)
        .with_context(|| format!("the cache {} could not be made", folder.display()))?;
    Ok(folder)
}

/// The cached folder `name`; when it is not there, `make` fills an empty folder that is then moved into place.
/// Other processes that want the same wait.
pub fn once(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let place = folder()?.join(name);
    if place.is_dir() {
        return Ok(place);
    }
    let _lock = lock(&name.replace('/', "-"))?;
    if place.is_dir() {
        return Ok(place);
    }
    let parent = place.parent().context("a cached folder needs a parent")?;
    fs::create_dir_all(parent)?;
    let fresh = tempfile::Builder::new().prefix(".making-").tempdir_in(parent)?;
    fs::set_permissions(fresh.path(), fs::Permissions::from_mode(0o755))?;
    make(fresh.path())?;
    fs::rename(fresh.keep(), &place)?;
    Ok(place)
}

/// A lock among all processes of this machine that share the cache; held until dropped.
pub fn lock(name: &str) -> Result<fs::File> {
    let path = folder()?.join(format!(".lock-{name}"));
    let file = fs::File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("the lock {} could not be opened", path.display()))?;
    flock(&file, FlockOperation::LockExclusive).context("the cache could not be locked")?;
    Ok(file)
}
