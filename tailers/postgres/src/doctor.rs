//! What `holdfast check` says of a server: each fact, whether it is well, and what to change where it is not.
//! Changes nothing at the server.

use std::time::Duration;

use holdfast_core::{Clock, Error, Result, Timestamp, text};
use holdfast_pgwire::{Address, Config, Connection, Target};
use serde::Serialize;

use crate::{
    settings::{Ack, Settings, StandbyPolicy},
    sql::{Sql, parsed},
    tail::Facts,
};

/// Clocks further apart than this make moments across sources vague.
const SKEW: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Good,
    /// Works, but should be known.
    Note,
    /// Must be changed.
    Bad,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub what: &'static str,
    pub verdict: Verdict,
    pub sentence: String,
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, what: &'static str, verdict: Verdict, sentence: impl Into<String>) {
        self.0.push(Finding { what, verdict, sentence: sentence.into() });
    }
    fn choose(&mut self, what: &'static str, good: bool, otherwise: Verdict, well: &str, ill: &str) {
        let (verdict, sentence) = if good { (Verdict::Good, well) } else { (otherwise, ill) };
        self.add(what, verdict, sentence);
    }
}

/// Examines the server of a source. Never fails: what cannot be found out is a finding.
pub(crate) async fn examine(settings: &Settings, config: &Config, slot: &str, clock: &Clock) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    if let Err(cause) = look(settings, config, slot, clock, &mut findings).await {
        findings.add("server", Verdict::Bad, cause.chain());
    }
    findings.0
}

async fn look(
    settings: &Settings,
    config: &Config,
    slot: &str,
    clock: &Clock,
    findings: &mut Findings,
) -> Result<()> {
    let mut connection = match Connection::open(config, clock).await {
        Ok(connection) => connection,
        Err(cause) => {
            let advice = match cause.server() {
                Some(_) => {
                    "The user needs the attribute REPLICATION (ALTER ROLE … REPLICATION), pg_hba.conf a line whose \
                     database is «replication» for it, and the server wal_level = replica"
                }
                None => {
                    "Does the server run and listen there? Else correct «dsn»: its host, port, password or TLS settings"
                }
            };
            let sentence = format!("not possible: {}. {advice}", Error::from(cause).chain());
            findings.add("replication connection", Verdict::Bad, sentence);
            return Ok(());
        }
    };
    let facts = Facts::gather(&mut connection).await?;
    let major = facts.version / 10_000;
    findings.add("replication connection", Verdict::Good, format!("{} lets us in as a standby", facts.host));
    let known = major <= 18;
    findings.add(
        "version",
        if known { Verdict::Good } else { Verdict::Note },
        format!(
            "Postgres {major}.{}{}",
            facts.version % 10_000,
            if known { "" } else { ": newer than those holdfast was tested with" }
        ),
    );
    standby(settings, &facts, findings);
    if config.hosts.len() > 1 && config.target == Target::Any {
        findings.add(
            "target_session_attrs",
            Verdict::Note,
            "any, with several hosts: the first that answers is followed, be it a standby; set \
             target_session_attrs=primary in «dsn»",
        );
    }
    let full_pages = connection.show("full_page_writes").await? == "on";
    findings.choose(
        "full_page_writes",
        full_pages,
        Verdict::Bad,
        "on",
        "off: base backups cannot be made consistent; set full_page_writes = on and reload",
    );
    let checksums = connection.show("data_checksums").await? == "on";
    findings.choose(
        "data_checksums",
        checksums,
        Verdict::Note,
        "on: base backups notice damaged pages",
        "off: damaged pages go unnoticed into base backups; pg_checksums --enable switches them on while the server is \
         stopped",
    );
    findings.choose(
        "wal_sender_timeout",
        facts.sender_timeout.is_some(),
        Verdict::Note,
        "set: the server gives the slot free when our host is gone",
        "0: the server never notices that our host is gone, and its old session keeps the slot busy; set it to 60s",
    );
    synchronous(settings, config, &connection.show("synchronous_standby_names").await?, findings);
    match Sql::open(config, &facts.host, clock).await {
        Err(cause) => findings.add(
            "SQL connection",
            if major < 15 { Verdict::Bad } else { Verdict::Note },
            format!(
                "not possible: {}. Slot, room and clock stay unknown{}; let the user into its database in pg_hba.conf",
                cause.chain(),
                if major < 15 { ", and before 15 the slot's state is told by SQL only" } else { "" }
            ),
        ),
        Ok(sql) => {
            let limit = connection.show("max_slot_wal_keep_size").await?;
            slot_state(&sql, slot, findings).await?;
            room(&sql, slot, config.application_name.as_deref().unwrap_or("holdfast"), findings).await?;
            retention(settings, &sql, &facts, major, &limit, findings).await?;
            clocks(&sql, clock, findings).await?;
        }
    }
    if major >= 18 {
        let idle = connection.show("idle_replication_slot_timeout").await?;
        findings.choose(
            "idle_replication_slot_timeout",
            idle == "0",
            Verdict::Note,
            "0",
            &format!("{idle}: the slot is lost when holdfast is away for so long; set it to 0"),
        );
    }
    Ok(())
}

fn standby(settings: &Settings, facts: &Facts, findings: &mut Findings) {
    let (verdict, sentence) = match (facts.standby, settings.standby) {
        (false, _) => (Verdict::Good, "a primary"),
        (true, StandbyPolicy::Allow) => (
            Verdict::Note,
            "a standby: what it has not received from its primary is not protected; give both hosts and \
             target_session_attrs=primary in «dsn» to follow the primary",
        ),
        (true, StandbyPolicy::Refuse) => {
            (Verdict::Bad, "a standby, and «standby» is set to refuse: nothing is followed now")
        }
    };
    findings.add("role", verdict, sentence);
}

fn synchronous(settings: &Settings, config: &Config, names: &str, findings: &mut Findings) {
    let what = "synchronous_standby_names";
    let own = config.application_name.as_deref().unwrap_or("holdfast");
    let (counts, needed) = counted(names, own);
    let (verdict, sentence) = match (settings.ack, counts) {
        (Ack::Async, false) => {
            (Verdict::Good, "does not name us: commits never wait for holdfast".to_owned())
        }
        (Ack::Async, true) => (
            Verdict::Bad,
            format!(
                "«{names}» makes commits wait for us although «ack» is async: set ack = \"remote\", or take {own} out"
            ),
        ),
        (Ack::Remote, false) => (
            Verdict::Note,
            format!(
                "«{names}» does not name us, so commits do not wait: add {own}, as in ANY 1 ({own}, standby)"
            ),
        ),
        (Ack::Remote, true) if needed => (
            Verdict::Note,
            format!(
                "«{names}» cannot do without us: while holdfast or its store is away, commits hang. ANY 1 ({own}, \
                 standby) does not"
            ),
        ),
        (Ack::Remote, true) => (Verdict::Good, format!("«{names}» counts on us")),
    };
    findings.add(what, verdict, sentence);
}

/// Whether the list can match our name, and whether the others on it are too few without us.
fn counted(names: &str, own: &str) -> (bool, bool) {
    let (number, list) = match (names.find('('), names.rfind(')')) {
        (Some(from), Some(to)) if from < to => (
            names.get(..from).and_then(|head| head.split_whitespace().last()?.parse().ok()).unwrap_or(1),
            names.get(from + 1..to).unwrap_or(""),
        ),
        _ => (1, names),
    };
    let mut words = list.split(',').map(|word| word.trim().trim_matches('"')).filter(|word| !word.is_empty());
    let count = words.clone().count();
    let ours = words.any(|word| word == "*" || word.eq_ignore_ascii_case(own));
    // A star may stand for any number of others.
    (ours, ours && count.saturating_sub(1) < number && !list.contains('*'))
}

async fn slot_state(sql: &Sql, slot: &str, findings: &mut Findings) -> Result<()> {
    let query = format!(
        "select slot_type, wal_status, active, safe_wal_size from pg_catalog.pg_replication_slots where slot_name = '{}'",
        slot.replace('\'', "''")
    );
    let row = sql.row(&query).await?;
    let column = |at: usize| row.as_ref().and_then(|row| row.get(at).cloned().flatten());
    let (verdict, sentence) = match (column(0).as_deref(), column(1).as_deref()) {
        (None, _) => (Verdict::Note, format!("{slot} does not exist yet: «holdfast run» makes it")),
        (Some("physical"), Some("lost")) => (
            Verdict::Bad,
            format!(
                "{slot} was given up by the server: «holdfast run» makes it anew, and records a gap if log is gone"
            ),
        ),
        (Some("physical"), Some("unreserved")) => (
            Verdict::Bad,
            format!(
                "{slot} is about to be given up by the server: holdfast must catch up before its next checkpoint"
            ),
        ),
        (Some("physical"), status) => {
            let used = if column(2).as_deref() == Some("t") { "in use" } else { "not in use" };
            (Verdict::Good, format!("{slot} keeps log ({}), {used}", status.unwrap_or("reserved")))
        }
        (Some(kind), _) => {
            (Verdict::Bad, format!("{slot} exists and is {kind}: choose another name in «slot»"))
        }
    };
    findings.add("slot", verdict, sentence);
    Ok(())
}

async fn room(sql: &Sql, slot: &str, own: &str, findings: &mut Findings) -> Result<()> {
    let query = format!(
        "select current_setting('max_replication_slots')::int - (select count(*) from pg_catalog.pg_replication_slots \
         where slot_name <> '{}'), current_setting('max_wal_senders')::int - (select count(*) from \
         pg_catalog.pg_stat_replication where application_name is distinct from '{}')",
        slot.replace('\'', "''"),
        own.replace('\'', "''")
    );
    let row = sql.row(&query).await?.unwrap_or_default();
    let slots: i64 = parsed(&row, 0).unwrap_or(0);
    let senders: i64 = parsed(&row, 1).unwrap_or(0);
    findings.choose(
        "max_replication_slots",
        slots >= 1,
        Verdict::Bad,
        "has room for our slot",
        "all taken: raise max_replication_slots by one and restart the server",
    );
    findings.choose(
        "max_wal_senders",
        senders >= 2,
        Verdict::Bad,
        "has room for the stream and a base backup",
        "too few: the stream and a base backup take one each; raise max_wal_senders and restart the server",
    );
    Ok(())
}

/// C1: a slot without a limit fills the disk when we are away for long.
async fn retention(
    settings: &Settings,
    sql: &Sql,
    facts: &Facts,
    major: u32,
    limit: &str,
    findings: &mut Findings,
) -> Result<()> {
    let what = "max_slot_wal_keep_size";
    if limit != "-1" {
        let sentence = format!("{limit}: the server gives our slot up rather than fill its disk");
        findings.add(what, Verdict::Good, sentence);
        return Ok(());
    }
    if let Some(own) = settings.max_slot_lag {
        let sentence =
            format!("no limit; ours is max_slot_lag = {}, while holdfast runs", text::show_size(own));
        findings.add(what, Verdict::Note, sentence);
        return Ok(());
    }
    let mut sentence =
        "no limit: while holdfast is away the server keeps all its log, until its disk is full".to_owned();
    if let Some(rate) = rate(sql, major).await? {
        sentence += &format!(". It writes about {} of log an hour", text::show_size((rate * 3600.0) as u64));
        if let Some(hours) = hours_left(sql, facts, rate).await {
            sentence += &format!(": full after about {hours:.0} hours");
        }
    }
    sentence += "; set it to what the disk can spare, such as 50GB, and reload";
    findings.add(what, Verdict::Note, sentence);
    Ok(())
}

/// Bytes of log a second since the server's statistics began (14 and newer).
async fn rate(sql: &Sql, major: u32) -> Result<Option<f64>> {
    if major < 14 {
        return Ok(None);
    }
    let query = "select wal_bytes::float8 / greatest(extract(epoch from now() - stats_reset), 60) from pg_catalog.pg_stat_wal";
    Ok(sql.row(query).await?.and_then(|row| parsed(&row, 0)))
}

/// Only where the server's disk is ours to look at.
async fn hours_left(sql: &Sql, facts: &Facts, rate: f64) -> Option<f64> {
    if !matches!(facts.host.address, Address::Unix(_)) || rate < 1.0 {
        return None;
    }
    let row = sql.row("select current_setting('data_directory')").await.ok()??;
    let folder: String = parsed(&row, 0)?;
    let disk = rustix::fs::statvfs(format!("{folder}/pg_wal")).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize) as f64 / rate / 3600.0)
}

async fn clocks(sql: &Sql, clock: &Clock, findings: &mut Findings) -> Result<()> {
    let before = clock.wall();
    let row = sql.row("select (extract(epoch from clock_timestamp()) * 1000000)::bigint").await?;
    let after = clock.wall();
    let Some(server) = row.and_then(|row| parsed(&row, 0)).map(Timestamp::from_micros) else { return Ok(()) };
    let ours = before.plus(after.since(before) / 2);
    let apart = server.since(ours).max(ours.since(server));
    let sentence = format!("the server's clock and ours are {} apart", text::show_duration(apart));
    let verdict = if apart <= SKEW { Verdict::Good } else { Verdict::Note };
    let advice =
        if apart <= SKEW { "" } else { ": times in a restore are the server's; run a time service on both" };
    findings.add("clock", verdict, sentence + advice);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn names_that_count_on_us() {
        assert_eq!(counted("", "holdfast"), (false, false));
        assert_eq!(counted("Holdfast", "holdfast"), (true, true));
        assert_eq!(counted("ANY 1 (\"holdfast\", s1)", "holdfast"), (true, false));
        assert_eq!(counted("ANY 2 (holdfast, s1)", "holdfast"), (true, true));
        assert_eq!(counted("2(holdfast, s1, s2)", "holdfast"), (true, false));
        assert_eq!(counted("FIRST 2 (holdfast, *)", "holdfast"), (true, false));
        assert_eq!(counted("FIRST 1 (s1, s2)", "holdfast"), (false, false));
        assert_eq!(counted("*", "holdfast"), (true, false));
    }
}
