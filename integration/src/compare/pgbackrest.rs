//! Debian's pgBackRest at its best: two processes, zstd 1, bundles, encrypted, S3 with TLS.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use holdfast_harness::{Server, Store, User, postgres::apt_install, process};
use tempfile::TempDir;

/// Its settings and folders; removed with its owner.
pub struct PgBackRest {
    home: TempDir,
}

impl PgBackRest {
    /// Installs it where it is missing and writes its settings for `server` and `store`.
    pub fn new(server: &Server, store: &Store) -> Result<Self> {
        if !process::on_path("pgbackrest") {
            apt_install(&["pgbackrest"]).context("the peer pgBackRest could not be installed")?;
        }
        let home = tempfile::Builder::new().prefix("hf-peer-").tempdir_in("/tmp")?;
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755))?;
        User::give(home.path())?;
        for folder in ["log", "lock", "spool"] {
            fs::create_dir(home.path().join(folder))?;
            User::give(&home.path().join(folder))?;
        }
        let port = store.endpoint.rsplit(':').next().unwrap_or_default();
        let authority = store.write_authority(home.path())?.context("pgBackRest needs a store with TLS")?;
        let home_text = home.path().display();
        let settings = format!(
            "[global]\nrepo1-type=s3\nrepo1-path=/peer\nrepo1-s3-bucket={}\nrepo1-s3-endpoint=localhost\n\
             repo1-storage-port={port}\nrepo1-storage-ca-file={}\nrepo1-s3-region={}\nrepo1-s3-key={}\n\
             repo1-s3-key-secret={}\nrepo1-s3-uri-style=path\nrepo1-bundle=y\nrepo1-cipher-type=aes-256-cbc\n\
             repo1-cipher-pass=a-passphrase-of-no-value\ncompress-type=zst\ncompress-level=1\nprocess-max=2\n\
             start-fast=y\narchive-check=n\narchive-async=y\nspool-path={home_text}/spool\nlog-path={home_text}/log\n\
             lock-path={home_text}/lock\nlog-level-file=off\nlog-level-console=warn\nlog-level-stderr=warn\n\
             repo1-retention-full=9\n\
             [main]\npg1-path={}\npg1-port={}\npg1-socket-path={}\npg1-user=postgres\n",
            store.bucket,
            authority.display(),
            store.region,
            store.access_key,
            store.secret_key,
            server.data().display(),
            server.port(),
            server.socket_folder().display(),
        );
        fs::write(home.path().join("pgbackrest.conf"), settings)?;
        User::give(&home.path().join("pgbackrest.conf"))?;
        Ok(Self { home })
    }

    fn settings(&self) -> PathBuf {
        self.home.path().join("pgbackrest.conf")
    }

    /// Runs one of its commands to its end.
    pub async fn run(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("pgbackrest");
        command
            .arg(format!("--config={}", self.settings().display()))
            .arg("--stanza=main")
            .args(arguments)
            .current_dir(self.home.path())
            .stdin(Stdio::null());
        User::drop_root(&mut command)?;
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        if !output.status.success() {
            let said = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            bail!(
                "pgbackrest {} ended with {}: {}",
                arguments.join(" "),
                output.status,
                process::tail(&said, 20)
            );
        }
        Ok(())
    }

    pub async fn restore(&self, target: &Path) -> Result<()> {
        fs::create_dir_all(target)?;
        fs::set_permissions(target, fs::Permissions::from_mode(0o700))?;
        User::give(target)?;
        self.run(&["restore", "--type=none", &format!("--pg1-path={}", target.display())]).await
    }

    /// For `archive_command`.
    pub fn archive_command(&self) -> String {
        format!("pgbackrest --config={} --stanza=main archive-push %p", self.settings().display())
    }
}
