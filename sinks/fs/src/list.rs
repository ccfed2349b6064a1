//! Names in bytewise order out of nested folders. A folder `a` sorts as `a/`, hence behind `a-1`.
//!
//! One page reads each folder on its way once and keeps only the smallest names it can still need, so a folder
//! of 100,000 names is read, not sorted, per page.

use std::{collections::BinaryHeap, os::fd::AsFd};

use holdfast_core::{
    Error, Result, Timestamp,
    sink::{Entry, NAME_MAX, Page, is_name_byte},
};
use rustix::{
    fs::{AtFlags, Dir, FileType},
    io::Errno,
};

use crate::{Inner, TEMP, folders};

/// Fewest names kept per scan: folders may turn out to be empty.
const KEEP_MIN: usize = 256;

/// A file, or a folder (then with a trailing slash), by its whole name: the order is that of the names.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    name: String,
    folder: bool,
}

struct Walk<'a> {
    inner: &'a Inner,
    prefix: &'a str,
    after: Option<&'a str>,
    limit: usize,
    page: Page,
}

/// Is the page complete?
enum Walked {
    Full,
    End,
}

impl Inner {
    pub fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let odd = |part: &str| part == "." || part == ".." || !part.bytes().all(is_name_byte);
        let base = prefix.rsplit_once('/').map_or("", |(base, _)| base);
        if prefix.split('/').any(odd) || base.split('/').any(str::is_empty) && !base.is_empty() {
            return Err(Error::bug(format!("«{prefix}» is no beginning of an object name")));
        }
        if limit == 0 {
            return Err(Error::bug("a page of no names was asked for"));
        }
        let mut walk = Walk { inner: self, prefix, after, limit, page: Page::default() };
        let start = if base.is_empty() { String::new() } else { format!("{base}/") };
        walk.folder(&start)?;
        Ok(walk.page)
    }
}

impl Walk<'_> {
    /// Adds what lies below `folder` (empty, or with a trailing slash).
    fn folder(&mut self, folder: &str) -> Result<Walked> {
        let mut done: Option<String> = None;
        loop {
            let (candidates, all) = self.scan(folder, done.as_deref())?;
            for Candidate { name, folder } in candidates {
                if folder {
                    if let Walked::Full = self.folder(&name)? {
                        return Ok(Walked::Full);
                    }
                } else if let Some(entry) = self.entry(&name)? {
                    if self.page.entries.len() == self.limit {
                        self.page.more = true;
                        return Ok(Walked::Full);
                    }
                    self.page.entries.push(entry);
                }
                done = Some(name);
            }
            if all {
                return Ok(Walked::End);
            }
        }
    }

    /// The smallest candidates of one folder behind `done`, in order, and whether these are all.
    fn scan(&self, folder: &str, done: Option<&str>) -> Result<(Vec<Candidate>, bool)> {
        let fail =
            |errno| self.inner.fault().errno(&format!("the folder «{folder}» could not be read"), errno);
        let root = self.inner.root.as_fd();
        let keep = self.limit.saturating_sub(self.page.entries.len()).saturating_add(1).max(KEEP_MIN);
        let mut smallest: BinaryHeap<Candidate> = BinaryHeap::new();
        let mut all = true;
        let handle = match folders::open(root, folder.trim_end_matches('/')) {
            Ok(handle) => handle,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok((Vec::new(), true)),
            Err(errno) => return Err(fail(errno)),
        };
        for entry in Dir::new(handle).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let Ok(part) = entry.file_name().to_str() else { continue };
            let foreign = !part.bytes().all(is_name_byte) || folder.len() + part.len() >= NAME_MAX;
            if foreign || part == "." || part == ".." || (folder.is_empty() && part == TEMP) {
                continue;
            }
            let mut name = format!("{folder}{part}");
            let kind = match entry.file_type() {
                FileType::Unknown => match rustix::fs::statat(root, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)
                {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(fail(errno)),
                },
                known => known,
            };
            let is_folder = match kind {
                FileType::Directory => true,
                FileType::RegularFile => false,
                _ => continue,
            };
            if is_folder {
                name.push('/');
            }
            let candidate = Candidate { name, folder: is_folder };
            if !self.wanted(&candidate, done) {
                continue;
            }
            if smallest.len() < keep {
                smallest.push(candidate);
                continue;
            }
            all = false;
            if smallest.peek().is_some_and(|largest| candidate < *largest) {
                smallest.pop();
                smallest.push(candidate);
            }
        }
        Ok((smallest.into_sorted_vec(), all))
    }

    fn wanted(&self, candidate: &Candidate, done: Option<&str>) -> bool {
        let name = candidate.name.as_str();
        if done.is_some_and(|done| name <= done) {
            return false;
        }
        let inside = candidate.folder && self.after.is_some_and(|after| after.starts_with(name));
        if !inside && self.after.is_some_and(|after| name <= after) {
            return false;
        }
        name.starts_with(self.prefix) || (candidate.folder && self.prefix.starts_with(name))
    }

    fn entry(&self, name: &str) -> Result<Option<Entry>> {
        let stat = match rustix::fs::statat(&self.inner.root, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => {
                return Err(self.inner.fault().errno(&format!("«{name}» could not be looked at"), errno));
            }
        };
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(Some(Entry { name: name.to_owned(), size, modified: modified(&stat) }))
    }
}

/// When a file was last written, by the clock of its file system.
pub fn modified(stat: &rustix::fs::Stat) -> Timestamp {
    let nanos = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Timestamp(stat.st_mtime.saturating_mul(1_000_000).saturating_add(nanos / 1_000))
}
