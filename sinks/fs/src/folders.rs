//! Folders whose entry in their parent is known to be durable. Owns that knowledge; a folder enters only after
//! this process flushed its parent, whoever made it.

use std::{
    collections::BTreeSet,
    os::fd::BorrowedFd,
    sync::{Mutex, PoisonError},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use crate::split;

/// More folders than this are not remembered at once: forgetting costs a flush, never safety.
const KNOWN_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub struct Folders(Mutex<BTreeSet<String>>);

impl Folders {
    /// Makes `folder` and its parents below `root` where they are missing, and their entries durable.
    pub fn ensure(&self, root: BorrowedFd<'_>, folder: &str) -> Result<(), Errno> {
        if folder.is_empty() || self.lock().contains(folder) {
            return Ok(());
        }
        let ends = folder.match_indices('/').map(|(at, _)| at).chain([folder.len()]);
        for end in ends {
            let part = folder.get(..end).unwrap_or(folder);
            if self.lock().contains(part) {
                continue;
            }
            match rustix::fs::mkdirat(root, part, Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            flush(root, split(part).0)?;
            let mut known = self.lock();
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
            known.insert(part.to_owned());
        }
        Ok(())
    }

    /// Trusts nothing any more: a folder we knew is gone.
    pub fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the entries of `folder` (empty: `root` itself) durable.
pub fn flush(root: BorrowedFd<'_>, folder: &str) -> Result<(), Errno> {
    rustix::fs::fsync(open(root, folder)?)
}

pub fn open(root: BorrowedFd<'_>, folder: &str) -> Result<std::os::fd::OwnedFd, Errno> {
    let path = if folder.is_empty() { "." } else { folder };
    rustix::fs::openat(root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}
