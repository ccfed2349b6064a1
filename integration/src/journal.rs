//! What the clients of a workload were told, and what a restored server must therefore hold.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, bail};
use holdfast_harness::Server;
use tokio::time::Instant;

/// Each client commits entries 1, 2, 3 … in order, so what it was told is two numbers and some times.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    pub clients: BTreeMap<i32, Told>,
}

#[derive(Clone, Debug, Default)]
pub struct Told {
    /// The highest entry that was sent to the server, answered or not.
    pub sent: i64,
    /// When each entry was acknowledged; entry n at index n - 1. `None`: its outcome was never told.
    pub acknowledged: Vec<Option<Instant>>,
}

impl Told {
    pub fn last_acknowledged(&self) -> i64 {
        self.acknowledged.iter().rposition(Option::is_some).map_or(0, |at| at as i64 + 1)
    }
}

impl Journal {
    pub fn acknowledged(&self) -> u64 {
        self.clients.values().map(|told| told.last_acknowledged().unsigned_abs()).sum()
    }
}

/// What was found on a server.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub acknowledged: u64,
    pub found: u64,
    /// Acknowledged and not there: how long before `end` each was acknowledged.
    pub lost: Vec<Duration>,
}

impl Verdict {
    /// Age of the oldest lost entry: what was at risk.
    pub fn oldest_lost(&self) -> Duration {
        self.lost.iter().max().copied().unwrap_or_default()
    }
}

/// Compares a server with a journal that ended at `end`. An error: what no crash and no lag can explain (holes in a
/// client's entries, halves of transactions, entries that nobody sent).
pub async fn judge(server: &Server, journal: &Journal, end: Instant) -> Result<Verdict> {
    let rows = server
        .sql(
            "select e.client, count(*), max(e.seq), sum(e.amount), b.total, b.entries \
             from entry e left join balance b using (client) group by e.client, b.total, b.entries",
        )
        .await?;
    let mut found = BTreeMap::new();
    for row in rows {
        let numbers: Vec<i64> =
            row.iter().map(|cell| cell.as_deref().unwrap_or("-1").parse().unwrap_or(-1)).collect();
        let [client, count, highest, sum, total, entries] = numbers.as_slice() else {
            bail!("the comparison query gave {row:?}");
        };
        if count != highest {
            bail!("client {client} has {count} entries up to number {highest}: a hole");
        }
        if (sum, count) != (total, entries) {
            bail!(
                "client {client} has {count} entries of sum {sum}, its balance says {entries} and {total}: half a transaction"
            );
        }
        found.insert(i32::try_from(*client)?, *highest);
    }
    let mut verdict = Verdict { acknowledged: journal.acknowledged(), ..Verdict::default() };
    for (client, told) in &journal.clients {
        let there = found.remove(client).unwrap_or(0);
        if there > told.sent {
            bail!("client {client} has {there} entries and sent {}", told.sent);
        }
        verdict.found += there.unsigned_abs();
        let lost = told.acknowledged.iter().skip(usize::try_from(there)?).flatten();
        verdict.lost.extend(lost.map(|at| end.saturating_duration_since(*at)));
    }
    if let Some((client, _)) = found.first_key_value() {
        bail!("client {client} has entries and never was");
    }
    Ok(verdict)
}
