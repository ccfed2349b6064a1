//! How a flushed file gets its name here, found out by doing it. Nothing is believed of a file system's type:
//! each way must refuse a name that is taken and leave what stands there alone.

use std::os::fd::BorrowedFd;

use rustix::{
    fs::{AtFlags, RenameFlags},
    io::Errno,
};

/// The call that gives a name. Both fail with `EXIST` when it is taken, in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// `renameat2` with `RENAME_NOREPLACE`.
    Rename,
    /// `linkat`; the old name remains and is removed afterwards.
    Link,
}

impl Place {
    pub fn give(self, from: BorrowedFd<'_>, old: &str, to: BorrowedFd<'_>, new: &str) -> Result<(), Errno> {
        match self {
            Self::Rename => rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE),
            Self::Link => rustix::fs::linkat(from, old, to, new, AtFlags::empty()),
        }
    }
}

/// What a trial of one way showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    Works,
    /// The call itself is not there, or not here.
    Missing(Errno),
    /// It gave a name that was taken.
    Overwrites,
}

/// Tries a way with two files: the first takes the name, the second must be refused. `give(file)` moves file
/// 0 or 1 to the one name.
pub fn try_out(mut give: impl FnMut(usize) -> Result<(), Errno>) -> Trial {
    match give(0).and_then(|()| give(1)) {
        Err(Errno::EXIST) => Trial::Works,
        Err(errno) => Trial::Missing(errno),
        Ok(()) => Trial::Overwrites,
    }
}

/// The way to use, or a sentence naming what the file system lacks.
pub fn choose(rename: Trial, link: impl FnOnce() -> Trial) -> Result<Place, String> {
    if rename == Trial::Works {
        return Ok(Place::Rename);
    }
    let link = link();
    if link == Trial::Works {
        return Ok(Place::Link);
    }
    let say = |trial| match trial {
        Trial::Works => "works".to_owned(),
        Trial::Missing(errno) => format!("fails ({errno})"),
        Trial::Overwrites => "replaces what is there".to_owned(),
    };
    Err(format!("renameat2 with NOREPLACE {}, link {}", say(rename), say(link)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_cannot_refuse_a_taken_name_is_named() {
        let overwrites = try_out(|_| Ok(()));
        let missing = try_out(|_| Err(Errno::INVAL));
        let mut calls = 0;
        let works = try_out(|file| {
            calls += 1;
            if file == 0 { Ok(()) } else { Err(Errno::EXIST) }
        });
        assert_eq!((works, calls), (Trial::Works, 2));
        assert_eq!(choose(works, || unreachable!()), Ok(Place::Rename));
        assert_eq!(choose(missing, || works), Ok(Place::Link));
        assert_eq!(choose(overwrites, || works), Ok(Place::Link));
        let why = choose(missing, || overwrites).unwrap_err();
        assert!(why.contains("renameat2") && why.contains("link replaces"), "{why}");
    }
}
