//! What an error number of the kernel means for the caller.

use std::path::Path;

use holdfast_core::{Act, Error};
use rustix::io::Errno;

/// Makes errors that name the repository's folder.
#[derive(Clone, Copy)]
pub struct Fault<'a> {
    path: &'a Path,
}

impl<'a> Fault<'a> {
    pub fn at(path: &'a Path) -> Self {
        Self { path }
    }

    pub fn errno(self, what: &str, errno: Errno) -> Error {
        let (act, advice) = match errno {
            Errno::NOSPC | Errno::DQUOT => (
                Act::Retry,
                "; the disk or quota is full: free space or enlarge it, writing goes on by itself",
            ),
            Errno::ROFS => (
                Act::Configure,
                "; the file system is read-only: mount it writable, and look into the kernel's log for the cause",
            ),
            Errno::ACCESS | Errno::PERM => {
                (Act::Configure, "; give the user that holdfast runs as the right to read and write there")
            }
            Errno::NOTDIR | Errno::LOOP | Errno::ISDIR | Errno::EXIST => {
                (Act::Configure, "; something that is not holdfast's lies in the way: remove it")
            }
            Errno::XDEV => {
                (Act::Configure, "; the folder spans more than one file system: mount nothing inside it")
            }
            Errno::FBIG | Errno::NAMETOOLONG => {
                (Act::Configure, "; the file system cannot hold it: use another one")
            }
            Errno::IO => (
                Act::Retry,
                "; the disk reports an error: look into the kernel's log and replace it if it repeats",
            ),
            Errno::NOENT => (Act::Retry, "; was the folder removed, or its disk unmounted?"),
            _ => (Act::Retry, ""),
        };
        Error::new(act, format!("{what} in {}{advice}", self.path.display())).because(errno)
    }

    pub fn io(self, what: &str, cause: std::io::Error) -> Error {
        match Errno::from_io_error(&cause) {
            Some(errno) => self.errno(what, errno),
            None => Error::retry(format!("{what} in {}", self.path.display())).because(cause),
        }
    }
}
