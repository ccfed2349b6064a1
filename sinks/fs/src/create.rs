//! From a body to a named, durable file (the steps are on the crate's page).

use std::{
    io::Write,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use holdfast_core::{
    Clock, Error, Result,
    sink::{Body, Created},
};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};

use crate::{
    Inner, TEMP, folders, hex,
    list::modified,
    place::{Place, Trial, choose, try_out},
    split,
};

const ENDING: &str = ".part";

/// A file in [`TEMP`]; removed when dropped, which does nothing once it was renamed.
struct Temp<'a> {
    root: BorrowedFd<'a>,
    path: String,
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        // What stays behind after a failure here is removed at a later start.
        let _ = rustix::fs::unlinkat(self.root, self.path.as_str(), AtFlags::empty());
    }
}

impl Inner {
    pub fn create(&self, name: &str, body: &Body) -> Result<Created> {
        let place = self.place()?;
        let fail = |errno| self.fault().errno(&format!("«{name}» could not be written"), errno);
        let root = self.root.as_fd();
        let (folder, leaf) = split(name);
        // Most answers of «exists» are known before a byte is written.
        match rustix::fs::statat(root, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => return self.exists(folder).map_err(fail),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(fail(errno)),
        }
        let temp = self
            .write(body)
            .map_err(|cause| self.fault().io(&format!("«{name}» could not be written"), cause))?;
        self.folders.ensure(root, folder).map_err(fail)?;
        let target = self.target(folder).map_err(fail)?;
        match place.give(root, &temp.path, target.as_fd(), leaf) {
            Ok(()) => {}
            Err(Errno::EXIST) => return self.exists(folder).map_err(fail),
            Err(errno) => {
                self.folders.forget();
                return Err(fail(errno));
            }
        }
        rustix::fs::fsync(&target).map_err(fail)?;
        Ok(Created::New)
    }

    /// Another attempt gave the name, maybe without having flushed the folder: then we do.
    fn exists(&self, folder: &str) -> Result<Created, Errno> {
        self.folders.ensure(self.root.as_fd(), folder)?;
        folders::flush(self.root.as_fd(), folder)?;
        Ok(Created::Exists)
    }

    fn target(&self, folder: &str) -> Result<OwnedFd, Errno> {
        folders::open(self.root.as_fd(), folder).inspect_err(|_| self.folders.forget())
    }

    /// Writes and flushes a file without a name that readers could see.
    fn write(&self, body: &Body) -> std::io::Result<Temp<'_>> {
        let root = self.root.as_fd();
        let path = format!("{TEMP}/{}{ENDING}", hex(self.random.array::<16>()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o600);
        let fd = match rustix::fs::openat(root, path.as_str(), flags, mode) {
            Err(Errno::NOENT) => {
                self.make_temp_folder()?;
                rustix::fs::openat(root, path.as_str(), flags, mode)?
            }
            other => other?,
        };
        let temp = Temp { root, path };
        let mut file = std::fs::File::from(fd);
        for part in &body.0 {
            file.write_all(part)?;
        }
        let written = Clock::system().now();
        file.sync_data()?;
        self.store_clock.saw(written, modified(&rustix::fs::fstat(&file)?));
        Ok(temp)
    }

    fn make_temp_folder(&self) -> Result<(), Errno> {
        match rustix::fs::mkdirat(&self.root, TEMP, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// The way to give names, found out at the first call; what earlier crashes left is removed then too.
    fn place(&self) -> Result<Place> {
        if let Some(place) = self.place.get() {
            return Ok(*place);
        }
        let fail = |cause| self.fault().io("a trial file could not be written", cause);
        let trial = Body::from(b"trial".to_vec());
        let first = self.write(&trial).map_err(fail)?;
        let second = self.write(&trial).map_err(fail)?;
        let root = self.root.as_fd();
        let test = |place: Place| -> Trial {
            let name = format!("{TEMP}/{}{ENDING}", hex(self.random.array::<16>()));
            let taken = Temp { root, path: name };
            try_out(|file| {
                let file = if file == 0 { &first } else { &second };
                place.give(root, &file.path, root, &taken.path)
            })
        };
        // Links first: they leave both files where the other trial needs them.
        let link = test(Place::Link);
        let place = choose(test(Place::Rename), || link).map_err(|missing| {
            Error::configure(format!(
                "the file system under {} cannot create a file only if its name is free ({missing}): \
                 put the repository on another one (ext4, xfs, btrfs, zfs and NFS can)",
                self.path.display()
            ))
        })?;
        folders::flush(root, TEMP).and_then(|()| folders::flush(root, "")).map_err(|errno| {
            Error::configure(format!(
                "the file system under {} cannot flush a folder, so nothing in it is durable: put the repository on another one",
                self.path.display()
            ))
            .because(errno)
        })?;
        self.clean(&second.path);
        Ok(*self.place.get_or_init(|| place))
    }

    /// Removes files of ours that a crash left behind. Their age is read against a file written just now, by
    /// the file system's own clock. A writer that hung longer than that fails at its next step and retries.
    fn clean(&self, fresh: &str) {
        let root = self.root.as_fd();
        let stat =
            |path: &str| rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW).map(|stat| stat.st_mtime);
        let (Ok(now), Ok(folder)) = (stat(fresh), folders::open(root, TEMP)) else { return };
        let Ok(entries) = rustix::fs::Dir::new(folder) else { return };
        let age = i64::try_from(self.settings.stale_after.as_secs()).unwrap_or(i64::MAX);
        let mut removed: u64 = 0;
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().to_str() else { continue };
            let ours = name
                .strip_suffix(ENDING)
                .is_some_and(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
            let path = format!("{TEMP}/{name}");
            if !ours || path == fresh || !stat(&path).is_ok_and(|at| now.saturating_sub(at) > age) {
                continue;
            }
            if rustix::fs::unlinkat(root, path.as_str(), AtFlags::empty()).is_ok() {
                removed += 1;
            }
        }
        if removed > 0 {
            tracing::info!(
                removed,
                "removed unfinished files that an earlier crash left in {}",
                self.path.display()
            );
        }
    }
}
