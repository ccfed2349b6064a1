//! Waiting until a source is told that what it holds is durable.

use std::time::Duration;

use anyhow::Result;
use holdfast_harness::Server;

/// Waits until all log that `server` has now is settled.
pub async fn settled(server: &Server, patience: Duration) -> Result<()> {
    let end = server
        .value("select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_flush_lsn() end")
        .await?;
    let query = format!(
        "select coalesce(bool_or(flush_lsn >= '{end}'), false) from pg_stat_replication where application_name = 'holdfast'"
    );
    server.wait_for(&query, patience).await
}
