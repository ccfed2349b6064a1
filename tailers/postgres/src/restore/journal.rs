//! How far a restore has come, in the target itself: written only after everything it claims was flushed, so a
//! power loss can make it too old but never too new (E17).

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use holdfast_core::{Error, Moment, Result};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::target::OWN_FOLDER;
use crate::wal::Lsn;

const NAME: &str = "restore.json";

/// State of one restore into one folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub version: u32,
    /// Digest of the plan: another plan must not go on here.
    pub plan: String,
    /// What was wished for, and the moment that it became: a wish for the newest one means the same moment when
    /// the restore goes on, however much the repository got meanwhile.
    pub wish: String,
    pub moment: Moment,
    /// All rows up to this key (hexadecimal) are on disk for good.
    pub done: Option<String>,
    pub finished: bool,
}

/// The open journal. One process at a time: a lock is held until it is dropped.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    _lock: File,
    pub state: State,
}

impl Journal {
    /// Reads what a folder says without changing it; `None` when no restore was begun there.
    pub fn peek(folder: &Path) -> Result<Option<State>> {
        let path = folder.join(NAME);
        let text = match fs::read(&path) {
            Ok(text) => text,
            // A target that is a file has no journal; what is wrong with it is for the plan to say.
            Err(cause)
                if matches!(
                    cause.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(None);
            }
            Err(cause) => return Err(failed("read", &path, cause)),
        };
        let state: State = serde_json::from_slice(&text).map_err(|cause| {
            Error::configure(format!(
                "{} cannot be read, so nobody knows how far that restore came: empty the folder and begin again",
                path.display()
            ))
            .because(cause)
        })?;
        if state.version != 1 {
            return Err(Error::configure(format!(
                "{} was written by a newer holdfast: finish that restore with it, or empty the folder",
                path.display()
            )));
        }
        Ok(Some(state))
    }

    /// Goes on with the plan of this digest, or begins it.
    pub fn open(folder: &Path, plan: &str, wish: &str, moment: &Moment) -> Result<Self> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(folder).map_err(|cause| failed("made", folder, cause))?;
        let path = folder.join("lock");
        let mut options = File::options();
        let lock = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
        let lock = lock.map_err(|cause| failed("opened", &path, cause))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|cause| {
            Error::configure(format!("another process is restoring into {} right now", folder.display()))
                .because(cause)
        })?;
        let state = match Self::peek(folder)? {
            Some(state) if state.plan != plan => return Err(other_plan(folder, &state)),
            Some(state) => state,
            None => State {
                version: 1,
                plan: plan.into(),
                wish: wish.into(),
                moment: moment.clone(),
                done: None,
                finished: false,
            },
        };
        let journal = Self { folder: folder.to_owned(), _lock: lock, state };
        journal.save()?;
        Ok(journal)
    }

    /// The key after which to go on.
    pub fn done(&self) -> Result<Option<Vec<u8>>> {
        let bad = |cause| {
            Error::configure("the journal of the restore is damaged: empty the folder").because(cause)
        };
        self.state.done.as_ref().map(hex::decode).transpose().map_err(bad)
    }

    /// Everything up to `key` was flushed by the caller.
    pub fn advance(&mut self, key: &[u8]) -> Result<()> {
        self.state.done = Some(hex::encode(key));
        self.save()
    }

    pub fn finish(&mut self) -> Result<()> {
        self.state.finished = true;
        self.save()
    }

    fn save(&self) -> Result<()> {
        let text = serde_json::to_vec_pretty(&self.state)
            .map_err(|cause| Error::bug("a journal could not be encoded").because(cause))?;
        replace(&self.folder.join(NAME), &text, 0o600)
    }
}

/// The moment of a journal, for people.
fn describe(moment: &Moment) -> String {
    let at = if moment.inclusive { moment.place.position } else { moment.begin };
    format!("to {} on timeline {}", Lsn(at), moment.place.branch.0)
}

pub fn other_plan(folder: &Path, state: &State) -> Error {
    let mend = match state.finished {
        true => "which is complete; choose another folder, or empty this one",
        false => "which is not complete: give its command again, choose another folder, or empty this one",
    };
    Error::configure(format!(
        "{} belongs to another restore ({}), {mend}",
        folder.display(),
        describe(&state.moment)
    ))
}

/// Was the restore into this data folder carried out to its end?
pub fn is_finished(data: &Path) -> Result<bool> {
    Ok(Journal::peek(&data.join(OWN_FOLDER))?.is_some_and(|state| state.finished))
}

/// Puts a file in place, whole or not at all, also across a power loss.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    let write = || -> std::io::Result<()> {
        fs::remove_file(&fresh).or_else(|cause| match cause.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(cause),
        })?;
        let mut file = File::options().create_new(true).write(true).mode(mode).open(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    write().map_err(|cause| failed("written", path, cause))
}

/// A file system call that did not succeed.
pub fn failed(verb: &str, path: &Path, cause: std::io::Error) -> Error {
    let what = format!("{} could not be {verb}", path.display());
    match cause.kind() {
        std::io::ErrorKind::StorageFull => {
            Error::configure(format!("{what}: the file system is full; make room and run the restore again"))
        }
        std::io::ErrorKind::PermissionDenied => Error::configure(format!(
            "{what}: this account may not. Run the restore as the account that will own the server, or choose a folder \
             of its own"
        )),
        std::io::ErrorKind::NotADirectory => {
            Error::configure(format!("{what}: one of the folders above it is a file; choose another place"))
        }
        _ => Error::unreachable(what),
    }
    .because(cause)
}

#[cfg(test)]
pub mod tests {
    use holdfast_core::{Branch, Place, RunId};

    use super::*;

    pub fn moment(position: u64) -> Moment {
        let place = Place { branch: Branch(1), position };
        Moment { checkpoint: RunId([1; 8]), place, begin: 0, inclusive: true, time: None, path: Vec::new() }
    }

    #[test]
    fn a_journal_goes_on_where_it_was_and_knows_its_plan() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        let open = |plan| Journal::open(&own, plan, "Latest", &moment(16));
        let mut journal = open("abc").unwrap();
        assert_eq!(journal.done().unwrap(), None);
        journal.advance(b"key").unwrap();
        assert!(open("abc").unwrap_err().to_string().contains("right now"));
        drop(journal);
        let journal = open("abc").unwrap();
        assert_eq!(journal.done().unwrap().unwrap(), b"key");
        assert_eq!(journal.state.moment, moment(16));
        drop(journal);
        let error = open("def").unwrap_err();
        assert!(error.to_string().contains("another restore (to 0/10 on timeline 1)"), "{error}");
        assert!(error.to_string().contains("is not complete"), "{error}");
        let mut journal = open("abc").unwrap();
        journal.finish().unwrap();
        drop(journal);
        let error = open("def").unwrap_err();
        assert!(error.to_string().contains("which is complete"), "{error}");
        fs::write(own.join(NAME), "{").unwrap();
        assert!(Journal::peek(&own).is_err());
        assert_eq!(Journal::peek(&own.join(NAME)).unwrap(), None, "a file is no folder of ours");
    }
}
