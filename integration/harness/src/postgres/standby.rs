//! Streaming standbys, made as a base backup tool makes them but by a copy of the folder.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{Major, Options, Server};
use crate::folder;

impl Server {
    /// A hot standby that streams from `primary` over a physical slot `name`; returns when it takes connections.
    pub async fn standby_of(primary: &Server, name: &str) -> Result<Self> {
        let options = Options { home: None, ..primary.options.clone() };
        Self::standby_with(primary, name, options).await
    }

    /// As [`Server::standby_of`], with options of its own (version and shape must be the primary's).
    pub async fn standby_with(primary: &Server, name: &str, options: Options) -> Result<Self> {
        let mut standby = Self::prepare(options).await?;
        let client = primary.client().await?;
        client.simple_query(&format!("select pg_create_physical_replication_slot('{name}', true)")).await?;
        let old = primary.options.major < Major::V15;
        let begin = if old {
            "select pg_start_backup('standby', true, false)"
        } else {
            "select pg_backup_start('standby', true)"
        };
        client.simple_query(begin).await?;
        let (from, to) = (primary.data().to_owned(), standby.data().to_owned());
        tokio::task::spawn_blocking(move || folder::copy_folder(&from, &to, &left_out)).await??;
        // The session that began a backup must end it.
        let end = if old {
            "select labelfile, spcmapfile from pg_stop_backup(false, false)"
        } else {
            "select labelfile, spcmapfile from pg_backup_stop(false)"
        };
        let row = client.query_one(end, &[]).await.context("the backup for a standby did not end")?;
        let map: Option<String> = row.get(1);
        if map.is_some_and(|map| !map.trim().is_empty()) {
            bail!(
                "a standby of a server with tablespaces on the same machine would write into them: make one without"
            );
        }
        standby.write("backup_label", row.get(0))?;
        standby.write("standby.signal", "")?;
        standby.write("postgresql.auto.conf", "")?;
        let settings = [
            ("primary_conninfo", format!("{} application_name={name}", primary.dsn())),
            ("primary_slot_name", name.to_owned()),
            ("recovery_target_timeline", "latest".to_owned()),
            ("hot_standby", "on".to_owned()),
        ];
        for (key, value) in settings {
            standby.options.settings.push((key.to_owned(), value));
        }
        standby.configure()?;
        standby.start_again().await?;
        Ok(standby)
    }
}

/// What a base backup leaves out: WAL (it is streamed), what belongs to the running server, and its slots.
fn left_out(path: &Path) -> bool {
    let first = path.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned());
    let inside = path.components().count() == 2;
    match first.as_deref() {
        Some(
            "postmaster.pid" | "postmaster.opts" | "backup_label" | "standby.signal" | "recovery.signal",
        ) => true,
        Some("pg_wal") => inside && !path.ends_with("archive_status") && !path.ends_with("summaries"),
        Some(
            "pg_replslot" | "pg_dynshmem" | "pg_notify" | "pg_serial" | "pg_snapshots" | "pg_stat_tmp"
            | "pg_subtrans",
        ) => inside,
        _ => false,
    }
}
