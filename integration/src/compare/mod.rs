//! The comparison with the peers: each module measures the figures of one situation, ours and the peer's in turn, on the
//! same data, machine and store. The store is a process of its own (`store`), so that its work is nobody's.

pub mod backlog;
pub mod base;
pub mod bulk;
pub mod commit;
mod figure;
pub mod kills;
pub mod many;
mod pgbackrest;
pub mod quiet;
pub mod replay;
pub mod risk;
mod scale;
mod store;
mod usage;

pub use figure::{Better, Figure, median, quantile};
pub use pgbackrest::PgBackRest;
pub use scale::Scale;
pub use store::{StoreProcess, serve};
pub use usage::{children_time, sample_memory, server_time};

/// Lets the servers' account write into a folder of ours.
fn open_to_all(folder: &std::path::Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    holdfast_harness::User::give(folder)
}

/// Changes a setting of a running server, and waits until it has read it.
async fn set(server: &holdfast_harness::Server, name: &str, value: &str) -> anyhow::Result<()> {
    let value = value.replace('\'', "''");
    server.sql(&format!("alter system set {name} = '{value}'")).await?;
    server.sql("select pg_reload_conf()").await?;
    let patience = std::time::Duration::from_secs(10);
    server.wait_for(&format!("select current_setting('{name}') = '{value}'"), patience).await
}
