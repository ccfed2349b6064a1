//! A small file system of its own, to be filled.

use std::{
    fs,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{Missing, User, process};

/// Memory, mounted on a folder; unmounted with its owner.
pub struct Disk {
    place: PathBuf,
}

impl Disk {
    /// Mounts `mib` MiB on a folder, which is made when it is not there and belongs to the servers' account.
    pub fn mount(place: &Path, mib: u32) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            let mend = "run the tests as root (of a container, say)";
            return Err(Missing::new("a small file system", "only root may mount one", mend).into());
        }
        fs::create_dir_all(place)?;
        let size = format!("size={mib}m");
        process::run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(place))
            .context("a small file system could not be mounted")?;
        let disk = Self { place: place.to_owned() };
        User::give(place)?;
        Ok(disk)
    }

    pub fn place(&self) -> &Path {
        &self.place
    }

    fn ballast(&self) -> PathBuf {
        self.place.join("ballast")
    }

    /// Takes all the space that is left.
    pub fn fill(&self) -> Result<()> {
        let mut file = fs::File::options().create(true).append(true).open(self.ballast())?;
        for size in [1 << 20, 4 << 10, 1] {
            let block = vec![0; size];
            loop {
                match file.write_all(&block) {
                    Ok(()) => {}
                    Err(cause) if cause.kind() == ErrorKind::StorageFull => break,
                    Err(cause) => return Err(cause).context("the small file system could not be filled"),
                }
            }
        }
        Ok(())
    }

    /// Gives back what [`Disk::fill`] took.
    pub fn make_space(&self) -> Result<()> {
        fs::remove_file(self.ballast()).context("nothing was filled")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazy: programs that still end hold files open.
        process::run(Command::new("umount").arg("--lazy").arg(&self.place)).ok();
    }
}
