//! What the stream cannot tell and SQL can: whether the server counts on us, how much log the slot keeps and
//! how much it may, and that the server shuts down while its log is still under way.
//!
//! Invariants: watches from the first stream on, whether or not one runs, since the slot keeps most while none
//! does; figures that nobody looks at are not shown.

use std::{sync::Arc, time::Duration};

use holdfast_core::{Result, task, text};
use holdfast_pgwire::{Config, Connection, Host};

use super::{Shared, slot};
use crate::{
    settings::Ack,
    sql::{self, Sql, parsed},
};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// Between two, whatever happens: a server may close each connection as soon as it is open.
const BREATH: Duration = Duration::from_millis(100);

/// Watches the slot at `host` until the source or the task is dropped.
pub(super) fn watch(shared: &Arc<Shared>, host: Host) -> task::Task<()> {
    let (weak, clock, begun) = (Arc::downgrade(shared), shared.clock.clone(), shared.begun.clone());
    task::spawn(async move {
        let mut sql: Option<Sql> = None;
        while let Some(shared) = weak.upgrade() {
            let reused = sql.is_some();
            match turn(&shared, &host, sql).await {
                Ok(open) => sql = Some(open),
                Err(cause) => {
                    tracing::debug!(cause = cause.chain(), "the slot could not be looked at");
                    sql = None;
                    if sql::is_going_down(&cause)
                        && let Some(link) = shared.link()
                    {
                        link.stopping();
                    }
                    shared.health.change(|health| {
                        health.slot_status = None;
                        health.slot_headroom = None;
                        health.slot_lag = None;
                    });
                }
            }
            drop(shared);
            clock.sleep(BREATH).await;
            // A new stream must know at once whether the server counts on it.
            let pause = clock.timeout(LOOK, begun.notified());
            // The server closes connections when it shuts down, and tells the next one so.
            match &mut sql {
                None if reused => {}
                None => drop(pause.await),
                Some(open) => tokio::select! {
                    _ = pause => {}
                    () = open.ended() => sql = None,
                },
            }
        }
    })
}

/// One look.
async fn turn(shared: &Shared, host: &Host, sql: Option<Sql>) -> Result<Sql> {
    let sql = match sql {
        Some(open) => open,
        None => Sql::open(&shared.config, host, &shared.clock).await?,
    };
    // Not while a stream begins: its slot may be on the way.
    let _turn = shared.slot_turn.lock().await;
    if let Some(lag) = look(shared, &sql).await?
        && let Some(limit) = shared.settings.max_slot_lag
        && lag > limit
        && !is_kept_anyway(&sql, &shared.slot).await
    {
        give_slot_up(shared, host, lag).await?;
    }
    Ok(sql)
}

/// How much log the slot keeps, when it is ours to give up.
async fn look(shared: &Shared, sql: &Sql) -> Result<Option<u64>> {
    let query = format!(
        "select s.wal_status, s.safe_wal_size, \
         (case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn() \
          else pg_catalog.pg_current_wal_lsn() end - s.restart_lsn)::bigint, r.sync_state, s.active \
         from pg_catalog.pg_replication_slots s \
         left join pg_catalog.pg_stat_replication r on r.pid = s.active_pid where s.slot_name = '{}'",
        shared.slot.replace('\'', "''")
    );
    let row = sql.row(&query).await?.unwrap_or_default();
    let column = |at: usize| row.get(at).cloned().flatten();
    let link = shared.link();
    let sync_state = column(3).filter(|_| link.is_some());
    let sync = matches!(sync_state.as_deref(), Some("sync" | "quorum"));
    if let Some(link) = &link
        && link.counted_on() != sync
    {
        link.set_counted_on(sync);
        if sync && shared.settings.ack != Ack::Remote {
            tracing::warn!(
                "the server's synchronous_standby_names make its commits wait for us although «ack» is async: \
                 they are served as with ack = \"remote\"; set that, or take us out of the list"
            );
        }
    }
    let lag: Option<u64> = parsed(&row, 2);
    shared.health.change(|health| {
        health.slot_status = column(0);
        health.slot_headroom = parsed(&row, 1);
        health.slot_lag = lag;
        health.sync_state = sync_state;
        health.waits = sync || shared.settings.ack == Ack::Remote;
    });
    // In use and not by us: another holdfast follows this server and guards the slot itself.
    let foreign = link.is_none() && column(4).as_deref() == Some("t");
    Ok(lag.filter(|_| !foreign))
}

/// Does the slot keep no more than the server's next recovery needs? Then giving it up would free nothing.
async fn is_kept_anyway(sql: &Sql, slot: &str) -> bool {
    let query = format!(
        "select restart_lsn >= (select redo_lsn from pg_catalog.pg_control_checkpoint()) \
         from pg_catalog.pg_replication_slots where slot_name = '{}'",
        slot.replace('\'', "''")
    );
    let answer = sql.row(&query).await.ok().flatten().and_then(|row| row.into_iter().next().flatten());
    answer.as_deref() == Some("t")
}

/// The source comes first: it must not fill its disk for us. No acknowledgement: what is lost becomes a gap.
async fn give_slot_up(shared: &Shared, host: &Host, lag: u64) -> Result<()> {
    let what = format!(
        "the slot {} kept {} of log at the server, more than max_slot_lag: it was given up so that the server's disk \
         does not fill. If log is lost by this, a gap is recorded and a new base backup made",
        shared.slot,
        text::show_size(lag)
    );
    tracing::error!("{what}");
    shared.health.change(|health| health.notice.clone_from(&what));
    shared.set_given_up(true);
    // The connection must end before the slot can be dropped.
    if let Some(link) = shared.link() {
        link.give_up(what);
    }
    let config = Config { hosts: vec![host.clone()], ..shared.config.clone() };
    let dropped = async {
        let mut connection = Connection::open(&config, &shared.clock).await?;
        slot::drop_it(&mut connection, &shared.slot, &shared.clock).await
    };
    dropped.await.inspect_err(|cause| {
        tracing::error!(cause = cause.chain(), "the slot could not be given up yet");
    })
}
