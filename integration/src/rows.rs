//! A few numbers in a table, to tell one history from another.

use anyhow::Result;
use holdfast_harness::Server;

/// Commits a number.
pub async fn insert(server: &Server, n: i64) -> Result<()> {
    server
        .sql(&format!("create table if not exists t (n bigint); insert into t values ({n})"))
        .await
        .map(drop)
}

/// The numbers that are there, in order.
pub async fn held(server: &Server) -> Result<String> {
    server.value("select coalesce(string_agg(n::text, ' ' order by n), '') from t").await
}

/// What [`held`] gives of 1, 2, 3 … up to `last`.
pub fn up_to(last: i64) -> String {
    (1..=last).map(|n| n.to_string()).collect::<Vec<_>>().join(" ")
}
