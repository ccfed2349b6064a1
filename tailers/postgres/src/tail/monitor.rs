//! What the stream cannot tell and SQL can: whether the server counts on us, how much log the slot keeps and
//! how much it may, and that the server shuts down while its log is still under way.

use std::{sync::Arc, time::Duration};

use holdfast_core::{Result, task, text};
use holdfast_pgwire::{Connection, Host};

use super::{Shared, link::LinkState, slot};
use crate::sql::{self, Sql, parsed};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);

pub(super) fn watch(shared: Arc<Shared>, link: Arc<LinkState>, host: Host, sql: Sql) -> task::Task<()> {
    task::spawn(async move {
        let mut sql = Some(sql);
        let mut counted_on = false;
        loop {
            if let Some(open) = &sql
                && let Err(cause) = look(&shared, &link, open, &mut counted_on).await
            {
                tracing::debug!(cause = cause.chain(), "the slot could not be looked at");
                if sql::is_going_down(&cause) {
                    link.stopping();
                }
                sql = None;
            }
            shared.clock.sleep(LOOK).await;
            if sql.is_none() {
                match Sql::open(&shared.config, &host, &shared.clock).await {
                    Ok(open) => sql = Some(open),
                    Err(cause) if sql::is_going_down(&cause) => link.stopping(),
                    Err(_) => {}
                }
            }
        }
    })
}

async fn look(shared: &Arc<Shared>, link: &LinkState, sql: &Sql, counted_on: &mut bool) -> Result<()> {
    let query = format!(
        "select s.wal_status, s.safe_wal_size, \
         (case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn() \
          else pg_catalog.pg_current_wal_lsn() end - s.restart_lsn)::bigint, r.sync_state \
         from pg_catalog.pg_replication_slots s \
         left join pg_catalog.pg_stat_replication r on r.pid = s.active_pid where s.slot_name = '{}'",
        shared.slot.replace('\'', "''")
    );
    let row = sql.row(&query).await?.unwrap_or_default();
    let column = |at: usize| row.get(at).cloned().flatten();
    let sync_state = column(3);
    let sync = matches!(sync_state.as_deref(), Some("sync" | "quorum"));
    if sync != *counted_on {
        *counted_on = sync;
        link.set_counted_on(sync);
        if sync && shared.settings.ack != crate::settings::Ack::Remote {
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
        health.waits = sync || shared.settings.ack == crate::settings::Ack::Remote;
    });
    if let (Some(limit), Some(lag)) = (shared.settings.max_slot_lag, lag)
        && lag > limit
    {
        give_slot_up(shared, link, lag);
    }
    Ok(())
}

/// The source comes first: it must not fill its disk for us. No acknowledgement: what is lost becomes a gap.
fn give_slot_up(shared: &Arc<Shared>, link: &LinkState, lag: u64) {
    let what = format!(
        "the slot {} kept {} of log at the server, more than max_slot_lag: it was given up so that the server's disk \
         does not fill. If log is lost by this, a gap is recorded and a new base backup made",
        shared.slot,
        text::show_size(lag)
    );
    tracing::error!("{what}");
    shared.health.change(|health| health.notice.clone_from(&what));
    // Not this task's own work: it ends with the connection, which must end before the slot can be dropped.
    let own = shared.clone();
    shared.set_chore(task::spawn(async move {
        let dropped = async {
            let mut connection = Connection::open(&own.config, &own.clock).await?;
            slot::drop_it(&mut connection, &own.slot, &own.clock).await
        };
        if let Err(cause) = dropped.await {
            tracing::error!(cause = cause.chain(), "the slot could not be given up");
        }
    }));
    link.give_up(what);
}
