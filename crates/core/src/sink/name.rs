//! What an object may be called. One rule for all sinks, so that a name that works in a folder works in S3.

use crate::{Error, Result};

/// Longest name in bytes (S3 allows 1,024 with the user's own prefix before it).
pub const NAME_MAX: usize = 512;

/// Longest part between two slashes (the limit of Linux file systems).
const PART_MAX: usize = 255;

/// Refuses a name that is not of `[0-9A-Za-z._-]` between single slashes, or that a file system would
/// take for something else («.», «..»). A refused name is a bug of the caller: names are made by us.
pub fn check_name(name: &str) -> Result<()> {
    let refuse = |why: &str| Err(Error::bug(format!("«{name}» is no object name: {why}")));
    if name.len() > NAME_MAX {
        return refuse("it is longer than 512 bytes");
    }
    for part in name.split('/') {
        if part.is_empty() {
            return refuse("it has an empty part");
        }
        if part == "." || part == ".." {
            return refuse("a part of it points elsewhere in a file system");
        }
        if part.len() > PART_MAX {
            return refuse("a part of it is longer than 255 bytes");
        }
        if !part.bytes().all(is_name_byte) {
            return refuse("only 0-9, A-Z, a-z, «.», «_» and «-» are allowed");
        }
    }
    Ok(())
}

/// May this byte stand in a part of a name?
pub fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Act;

    #[test]
    fn a_name_means_the_same_in_every_store() {
        for good in ["a", "ab/c.d_e-F/0", "repo.json", "...", &"x".repeat(255)] {
            check_name(good).unwrap();
        }
        for bad in ["", "/a", "a/", "a//b", ".", "a/../b", "ä", "a b", "a\0", "a+b", &"x".repeat(256)] {
            assert_eq!(check_name(bad).unwrap_err().act(), Act::Bug, "{bad}");
        }
        assert!(check_name(&"x/".repeat(300)).is_err());
    }
}
