//! Key files: read with care for who else can read them. Secrets come from files, never from flags.

use std::{
    io::{Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use holdfast_core::{Error, Result};
use holdfast_repo::{
    keys::{Identity, ProtectedIdentity, SourceKey},
    view::Repository,
};
use zeroize::Zeroizing;

use crate::cli::IdentityArgs;

const LARGEST: u64 = 64 << 10;

/// Reads a secret. Others (the world) must not be able to read it; group-readable is accepted, since that is
/// how Kubernetes mounts secrets.
pub fn read_secret(path: &Path, what: &str) -> Result<Zeroizing<String>> {
    let trouble = |cause: std::io::Error| {
        Error::configure(format!("{what} {} cannot be read", path.display())).because(cause)
    };
    let file = std::fs::File::open(path).map_err(trouble)?;
    let mode = file.metadata().map_err(trouble)?.mode();
    if mode & 0o007 != 0 {
        return Err(Error::configure(format!(
            "{what} {} can be read by everybody on this host (mode {:03o}); chmod 600 it (0400 and group-readable mounts are fine)",
            path.display(),
            mode & 0o777
        )));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(LARGEST).read_to_string(&mut text).map_err(trouble)?;
    Ok(text)
}

/// Creates a file of mode 0600; an existing one is never touched.
pub fn write_secret(path: &Path, text: &str) -> Result<()> {
    let trouble = |cause: std::io::Error| {
        let mend = if cause.kind() == std::io::ErrorKind::AlreadyExists {
            "it is there already and is not overwritten; choose another name"
        } else {
            "it cannot be written: its folder must be there, and this user must be allowed to write to it"
        };
        Error::configure(format!("{}: {mend}", path.display())).because(cause)
    };
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(trouble)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(trouble)
}

pub fn passphrase(path: &Path) -> Result<Zeroizing<String>> {
    let text = read_secret(path, "the passphrase file")?;
    Ok(Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned()))
}

/// The identity that a command was given: a file, or, by a passphrase alone, the one stored in the repository that
/// it opens.
pub async fn identity(args: &IdentityArgs, repository: &Repository) -> Result<Option<Identity>> {
    match (&args.identity, &args.passphrase_file) {
        (Some(path), passphrase_file) => from_file(path, passphrase_file.as_deref()).map(Some),
        (None, Some(file)) => stored(file, repository).await.map(Some),
        (None, None) => Ok(None),
    }
}

/// For a command that can do nothing without one.
pub async fn needed(args: &IdentityArgs, repository: &Repository) -> Result<Identity> {
    identity(args, repository).await?.ok_or_else(|| {
        Error::configure(
            "an identity is needed: --identity FILE, or --passphrase-file for one stored in the repository",
        )
    })
}

async fn stored(file: &Path, repository: &Repository) -> Result<Identity> {
    let passphrase = passphrase(file)?;
    let stored = repository.protected_identities().await?;
    let opened = stored.iter().find_map(|identity| identity.open(&passphrase).ok());
    opened.ok_or_else(|| {
        Error::configure(format!(
            "the passphrase in {} opens none of the {} identities that are stored in the repository; give the identity's file by --identity",
            file.display(),
            stored.len()
        ))
    })
}

fn from_file(path: &Path, passphrase_file: Option<&Path>) -> Result<Identity> {
    let text = read_secret(path, "the identity file")?;
    let named =
        |error: Error| error.during(format!("{} is no identity as «keygen» writes it", path.display()));
    if !ProtectedIdentity::is(&text) {
        return text.parse().map_err(named);
    }
    let file = passphrase_file.ok_or_else(|| {
        Error::configure(format!(
            "the identity in {} is protected: give the file with its passphrase by --passphrase-file",
            path.display()
        ))
    })?;
    text.parse::<ProtectedIdentity>().map_err(named)?.open(&passphrase(file)?)
}

pub fn source_key(path: &Path) -> Result<SourceKey> {
    read_secret(path, "the source's key file")?.parse().map_err(|error: Error| {
        let what = format!("{} holds no source key as «source add» writes it", path.display());
        error.during(what)
    })
}
