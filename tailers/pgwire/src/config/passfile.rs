//! Password files (`.pgpass`): one `host:port:database:user:password` a line, `*` for any.
//!
//! Rule for who may read such a file (also for private keys): nobody but its owner (0600, 0400); a file that
//! root owns may also be readable, not writable, for its group (0640, 0440), which is how container secrets
//! are mounted for a user without root. All else is refused with an error, never passed over: signing in
//! without the password would fail with a message that says nothing of the cause.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use zeroize::Zeroizing;

use super::{Address, Host, Secret};
use crate::{Error, Result};

/// Larger files are refused before they are read.
const FILE_MAX: u64 = 1 << 20;

/// The password for `user` at `host`, for the first of the `databases` that a line names.
/// `must_exist`: the file was named by the user, so its absence is an error.
pub(super) fn look_up(
    path: &Path,
    must_exist: bool,
    host: &Host,
    databases: &[&str],
    user: &str,
) -> Result<Option<Secret>> {
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !must_exist => return Ok(None),
        Err(error) => {
            return Err(Error::Config(format!(
                "the password file {} cannot be read: {error}",
                path.display()
            )));
        }
    };
    if !meta.is_file() || meta.len() > FILE_MAX {
        return Err(Error::Config(format!("{} is no password file", path.display())));
    }
    check_readers(path, meta.permissions().mode(), meta.uid())?;
    let text = Zeroizing::new(fs::read_to_string(path).map_err(|error| {
        Error::Config(format!("the password file {} cannot be read: {error}", path.display()))
    })?);
    Ok(find(&text, host, databases, user))
}

/// The rule of this module's page.
pub(crate) fn check_readers(path: &Path, mode: u32, owner: u32) -> Result<()> {
    let mode = mode & 0o777;
    let forbidden = if owner == 0 { 0o037 } else { 0o077 };
    if mode & forbidden == 0 {
        return Ok(());
    }
    Err(Error::Config(format!(
        "{} has mode {mode:04o}: others than its owner could read or change it. Run chmod 0600 on it; a container secret \
         needs defaultMode 0440 with fsGroup (root owns it, the group reads it)",
        path.display()
    )))
}

fn find(text: &str, host: &Host, databases: &[&str], user: &str) -> Option<Secret> {
    let port = host.port.to_string();
    for line in text.lines().map(|line| line.trim_end_matches('\r')) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (fields, password) = fields(line)?;
        let [line_host, line_port, line_database, line_user] = &fields;
        let matches = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        if host_matches(line_host, &host.address)
            && matches(line_port, &port)
            && databases.iter().any(|database| matches(line_database, database))
            && matches(line_user, user)
        {
            return Some(Secret::new(password));
        }
    }
    None
}

fn host_matches(pattern: &str, address: &Address) -> bool {
    pattern == "*"
        || match address {
            // libpq: «localhost» stands for the default socket folder; we take it for any.
            Address::Unix(folder) => pattern == "localhost" || Path::new(pattern) == folder,
            Address::Tcp { name, .. } => pattern == name,
        }
}

/// Four fields and the rest of the line; `\:` and `\\` stand for `:` and `\`.
fn fields(line: &str) -> Option<([String; 4], String)> {
    let mut fields: [String; 4] = Default::default();
    let mut password = String::new();
    let mut at = 0;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        let target = fields.get_mut(at).unwrap_or(&mut password);
        match c {
            '\\' => target.extend(chars.next()),
            ':' if at < 4 => at += 1,
            c => target.push(c),
        }
    }
    (at == 4).then_some((fields, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: u16) -> Host {
        Host { address: Address::Tcp { name: name.into(), ip: None }, port }
    }

    #[test]
    fn the_first_line_that_matches_wins() {
        let text = "# comment\ndb:5432:other:u:no\ndb:*:replication:u:p\\:w\\\\\n*:*:*:*:last\n";
        let found = |host: &Host, user| find(text, host, &["replication"], user).unwrap();
        assert_eq!(found(&host("db", 5432), "u").reveal(), "p:w\\");
        assert_eq!(found(&host("db", 5432), "v").reveal(), "last");
        let local = Host { address: Address::Unix("/run/pg".into()), port: 5432 };
        assert_eq!(find("localhost:5432:*:*:s", &local, &["x"], "u").unwrap().reveal(), "s");
        assert!(find("other:1:*:*:s", &local, &["x"], "u").is_none());
    }

    #[test]
    fn a_file_others_can_read_is_refused_and_says_why() {
        let path = Path::new("/x/.pgpass");
        for (mode, owner) in [(0o600, 1000), (0o400, 1000), (0o400, 0), (0o440, 0), (0o640, 0)] {
            check_readers(path, 0o100_000 | mode, owner).unwrap();
        }
        for (mode, owner) in [(0o640, 1000), (0o440, 1000), (0o644, 0), (0o660, 0), (0o604, 1000), (0o444, 0)]
        {
            let error = check_readers(path, mode, owner).unwrap_err().to_string();
            assert!(error.contains("chmod 0600") && error.contains(&format!("{mode:04o}")), "{error}");
        }
    }
}
