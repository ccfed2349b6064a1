//! The cluster that the bulk figures are measured on: Debian's Postgres 15 in memory, and rows that compress about as
//! well as business data does.

use anyhow::Result;
use holdfast_harness::{Options, Server};

use super::store::MEMORY;

/// The file system in memory.
pub fn memory() -> &'static std::path::Path {
    std::path::Path::new(MEMORY)
}

/// The server keeps its log until both of us have it.
pub async fn server() -> Result<Server> {
    let settings = [
        ("max_wal_size", "64GB"),
        ("checkpoint_timeout", "1h"),
        ("autovacuum", "off"),
        ("shared_buffers", "256MB"),
        ("synchronous_commit", "off"),
        ("archive_mode", "on"),
        ("archive_command", "/bin/false"),
    ];
    let options = settings.iter().fold(Options::debian(), |options, (name, value)| options.set(name, value));
    options.home(MEMORY).start().await
}

/// Tables of 64 MiB each until there are `bytes` of them; two clients load them.
pub async fn load(server: &Server, from: u64, bytes: u64) -> Result<u64> {
    let count = bytes.div_ceil(TABLE).max(1);
    let (even, odd) = tokio::try_join!(tables(server, from, count, 0), tables(server, from, count, 1))?;
    Ok(even + odd)
}

const TABLE: u64 = 64 << 20;
/// Rows of one table: 147 bytes each with their headers.
const ROWS: u64 = TABLE / 149;

async fn tables(server: &Server, from: u64, count: u64, part: u64) -> Result<u64> {
    let client = server.client().await?;
    let mut made = 0;
    for number in (from..from + count).filter(|number| number % 2 == part) {
        client
            .simple_query(&format!(
                "create table bulk_{number} as select {number}::bigint * 10000000 + i as id, (i::bigint * 7919) % 1000003 as account, \
                 md5(({number} * i)::text) as reference, 'transfer of goods, delivered by carrier ' || (i % 977) as note, \
                 now() + i * interval '1 second' as at from generate_series(1, {ROWS}) i"
            ))
            .await?;
        made += 1;
    }
    Ok(made)
}

/// Bytes of the databases.
pub async fn size(server: &Server) -> Result<u64> {
    Ok(server.value("select sum(pg_database_size(oid))::bigint from pg_database").await?.parse()?)
}

/// Reads everything once, so that hint bits are set before and not during what is measured; then a checkpoint.
pub async fn settle(server: &Server) -> Result<()> {
    server.sql("vacuum (freeze)").await?;
    server.sql("checkpoint").await.map(drop)
}
