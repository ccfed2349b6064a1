//! The state folder of a source: who we are. It may vanish; then we count as another instance (design.md
//! section 6) and wait for the silence of our former self.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use holdfast_core::{Error, Random, Result};
use rustix::fs::{FlockOperation, flock};

/// A source's state folder, locked for as long as this value lives.
#[derive(Debug)]
pub struct StateFolder {
    pub instance: [u8; 16],
    folder: PathBuf,
    _lock: File,
}

impl StateFolder {
    pub fn open(state: &Path, source: &str, random: &Random) -> Result<Self> {
        let folder = state.join(source);
        std::fs::create_dir_all(&folder).map_err(|cause| {
            Error::configure(format!(
                "the state folder {} cannot be made; set state_dir in [process] to a folder that this user may write",
                folder.display()
            ))
            .because(cause)
        })?;
        let path = folder.join("instance");
        let trouble = |cause: std::io::Error| {
            Error::configure(format!("the file {} cannot be used", path.display())).because(cause)
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(trouble)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Error::configure(format!(
                "another holdfast on this host follows «{source}» already (it holds {}); stop it first",
                path.display()
            ))
        })?;
        let mut text = String::new();
        Read::take(&mut file, 64).read_to_string(&mut text).map_err(trouble)?;
        let mut instance = [0; 16];
        let instance = match hex::decode_to_slice(text.trim(), &mut instance) {
            Ok(()) => instance,
            Err(_) => {
                let fresh: [u8; 16] = random.array();
                file.set_len(0).map_err(trouble)?;
                file.write_all(format!("{}\n", hex::encode(fresh)).as_bytes()).map_err(trouble)?;
                file.sync_all().map_err(trouble)?;
                fresh
            }
        };
        Ok(Self { instance, folder, _lock: file })
    }

    /// Where whoever holds the lock takes orders (`base-backup`).
    pub fn control_socket(&self) -> PathBuf {
        socket_in(&self.folder)
    }
}

/// The socket on which the process that follows `source` takes orders.
pub fn control_socket(state: &Path, source: &str) -> PathBuf {
    socket_in(&state.join(source))
}

fn socket_in(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}
