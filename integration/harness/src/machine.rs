//! A machine whose power can be cut: Debian's user-mode Linux, which sees all files of the host, with a disk of its
//! own. What a program wrote to that disk and did not flush dies with the machine, as in a real loss of power.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    postgres::apt_install,
    process::{self, Guard},
};

/// The kernel and what makes a file system.
const PACKAGES: [&str; 2] = ["user-mode-linux", "e2fsprogs"];

/// A switched-off machine; its files lie in a folder of the caller's.
pub struct Machine {
    folder: PathBuf,
}

/// A machine that runs one script as root.
pub struct Running {
    folder: PathBuf,
    kernel: Guard,
}

impl Machine {
    /// With an empty disk of so many MiB, which is mounted at [`Self::disk`] while the machine runs.
    pub fn new(folder: &Path, mib: u64) -> Result<Self> {
        if !process::on_path("linux.uml") || !process::on_path("mkfs.ext4") {
            apt_install(&PACKAGES).context("user-mode Linux could not be installed")?;
        }
        let machine = Self { folder: folder.to_owned() };
        fs::create_dir_all(machine.disk())?;
        fs::File::create(machine.image())?.set_len(mib << 20)?;
        process::run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(machine.image()))?;
        Ok(machine)
    }

    /// Where the disk is mounted, inside; an empty folder of the host.
    pub fn disk(&self) -> PathBuf {
        self.folder.join("disk")
    }

    fn image(&self) -> PathBuf {
        self.folder.join("disk.img")
    }

    /// Bytes that have reached the disk, the file system's own among them.
    pub fn written(&self) -> Result<u64> {
        Ok(fs::metadata(self.image())?.blocks() * 512)
    }

    /// Switches it on: it mounts its disk, runs `script` and switches itself off.
    pub fn start(&self, script: &str) -> Result<Running> {
        let (folder, disk, image) = (self.folder.display(), self.disk(), self.image());
        let init = self.folder.join("init");
        let text = format!(
            "#!/bin/sh\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin\n\
             mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmpfs /run\n\
             mount -t ext4 /dev/ubdb {disk} && ( {script} ) >{folder}/said 2>&1; echo $? >{folder}/status\n\
             umount {disk}; echo o >/proc/sysrq-trigger; sleep 9\n",
            disk = disk.display(),
        );
        fs::write(&init, text)?;
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
        for stale in ["said", "status"] {
            fs::remove_file(self.folder.join(stale)).ok();
        }
        let console = fs::File::create(self.folder.join("console"))?;
        let mut command = Command::new("linux.uml");
        command
            .args([
                "rootfstype=hostfs",
                "rootflags=/",
                "rw",
                "mem=768M",
                "con=null",
                "con0=fd:0,fd:1",
                "quiet",
            ])
            .arg(format!("init={}", init.display()))
            .arg(format!("ubdb={}", image.display()))
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console);
        Ok(Running { folder: self.folder.clone(), kernel: Guard::spawn(&mut command)? })
    }
}

impl Running {
    /// Is the script over?
    pub fn ended(&mut self) -> Result<bool> {
        Ok(self.kernel.ended()?.is_some())
    }

    /// What the script said, once it has ended well.
    pub async fn wait(mut self, patience: Duration) -> Result<String> {
        self.kernel.wait(patience).await?;
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        let (status, said) = (read("status"), read("said"));
        if status.trim() != "0" {
            bail!("inside, the script ended with «{}»: {said}\n{}", status.trim(), read("console"));
        }
        Ok(said)
    }

    /// Cuts its power.
    pub fn cut_power(mut self) {
        self.kernel.kill();
    }
}
