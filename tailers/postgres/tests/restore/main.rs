//! Restores of real servers, 13 to 18, from a lineage held in memory: every wish, exit codes in real recovery, labels,
//! timelines, parameters, tablespaces, and restores that are cut off.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod source;
mod target;

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use holdfast_core::{
    self as core, Bytes, Catalog, Clock, Held, Layer, LogChunk, Marks, Restorer, Row, Span, Timestamp, View,
    Wish,
};
use holdfast_harness::{Major, Options, Server, Stop};
use holdfast_postgres::{
    restore::{
        Action,
        start_check::{StartCheck, find_server, start_check},
    },
    wal::Lsn,
};
use holdfast_testkit::MemoryView;
use source::Source;
use target::{Place, fork};

/// Not a test of its own: Postgres runs this program as `restore_command` with this one «test» chosen.
#[test]
fn wal_fetch_is_this_program() {
    target::be_what_we_are_told();
    let folder = tempfile::tempdir().unwrap();
    let refuse = || Err(holdfast_core::Error::configure("no program"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(holdfast_postgres::restore::wal_fetch::fetch(
        folder.path(),
        "000000010000000000000001",
        &folder.path().join("x"),
        &refuse,
        &holdfast_core::Clock::system(),
    ));
    assert_eq!(holdfast_postgres::restore::wal_fetch::exit_code(&outcome, false), 126);
}

/// Twenty commits in a table, and what is known of each.
struct Story {
    source: Source,
    /// (rows visible after it, xid, commit time, LSN behind it)
    commits: Vec<(i64, u64, Timestamp, Lsn)>,
}

async fn story(options: impl Into<Options>) -> Result<Story> {
    let mut source = Source::start(options).await?;
    source.server.sql("create table t(i int)").await?;
    source.base().await?;
    let mut commits = Vec::new();
    for row in 1..=20i64 {
        let client = source.server.client().await?;
        let old = source.server.options().major() < Major::V14;
        let xid = if old { "txid_current()" } else { "pg_current_xact_id()::text::bigint" };
        client.simple_query("begin").await?;
        client.simple_query(&format!("insert into t values ({row})")).await?;
        let xid: i64 = client.query_one(&format!("select {xid}"), &[]).await?.get(0);
        client.simple_query("commit").await?;
        let lsn: Lsn = source.server.value("select pg_current_wal_insert_lsn()").await?.parse()?;
        commits.push((row, xid as u64, Timestamp(0), lsn));
        if row == 10 {
            source.server.sql("select pg_create_restore_point('half')").await?;
        }
        if row == 15 {
            source.server.sql("select pg_switch_wal()").await?;
        }
    }
    source.wal().await?;
    for commit in &mut commits {
        let mark = source
            .view
            .marks
            .iter()
            .find(|mark| matches!(mark.kind, holdfast_core::MarkKind::Commit { id } if id == commit.1));
        let mark = mark.with_context(|| format!("no mark of {}", commit.1))?;
        commit.2 = mark.time;
    }
    Ok(Story { source, commits })
}

/// Starts a restored folder and reads what is in it: rows, the timeline left and where.
async fn outcome(place: &Place, options: impl Into<Options>) -> Result<(i64, u32, Lsn)> {
    let mut server = place.recovered(options).await?;
    let rows: i64 = server.value("select count(*) from t").await?.parse()?;
    let (parent, end) = fork(server.data(), server.timeline().await?)?;
    server.stop(Stop::Fast).await?;
    Ok((rows, parent, end))
}

async fn check(source: &mut Source, wish: &Wish, inclusive: bool, options: Options, rows: i64) -> Result<()> {
    let mut place = Place::new()?;
    source.dump(place.dump())?;
    place.choice.inclusive = inclusive;
    let view = source.lend();
    let restored = place.restore(wish, Arc::clone(&view) as Arc<dyn View>).await;
    source.take_back(view)?;
    let (moment, _) = restored?;
    let (held, timeline, end) = outcome(&place, options).await?;
    assert_eq!(held, rows, "{wish:?} {inclusive} {moment:?}");
    assert_eq!(u64::from(timeline), moment.place.branch.0);
    // The end is the promised one, or before the page header that stands in front of the record left out.
    let promised = if moment.inclusive { moment.place.position } else { moment.begin };
    assert!(end.0 <= promised && promised - end.0 <= 40, "{end} {moment:?}");
    Ok(())
}

async fn every_wish(major: Major) -> Result<()> {
    let Story { mut source, commits } = story(major).await?;
    let vouched = source.view.vouched.context("nothing vouched")?;
    let (_, xid, time, _) = commits[6];
    let wishes: Vec<(Wish, bool, i64)> = vec![
        (Wish::Latest, true, 20),
        (Wish::Time(time), false, 6),
        (Wish::Transaction(xid), true, 7),
        (Wish::Time(vouched), true, 20),
        (Wish::Immediate, true, 0),
        (Wish::Time(time), true, 7),
        (Wish::Time(Timestamp(time.0 + 1)), true, 7),
        (Wish::Transaction(xid), false, 6),
        (Wish::Name("half".into()), true, 10),
        (Wish::Position(commits[12].3.to_string()), false, 13),
    ];
    let most = if Major::ENDS.contains(&major) { wishes.len() } else { 3 };
    for (wish, inclusive, rows) in wishes.into_iter().take(most) {
        check(&mut source, &wish, inclusive, major.into(), rows)
            .await
            .with_context(|| format!("Postgres {major}, {wish:?}, inclusive {inclusive}"))?;
    }
    Ok(())
}

macro_rules! each_major {
    ($($name:ident: $major:ident),*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            every_wish(Major::$major).await.unwrap();
        }
    )* };
}

each_major!(wishes_13: V13, wishes_14: V14, wishes_15: V15, wishes_16: V16, wishes_17: V17, wishes_18: V18);

/// E7: whoever deletes the label gets no server, on every major.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_label_nothing_starts() -> Result<()> {
    for major in Major::ALL {
        let mut source = Source::start(major).await?;
        source.base().await?;
        let place = Place::new()?;
        source.dump(place.dump())?;
        place.restore(&Wish::Latest, source.lend()).await?;
        for signal in [true, false] {
            fs::remove_file(place.target.data.join("backup_label")).ok();
            if !signal {
                fs::remove_file(place.target.data.join("recovery.signal"))?;
            }
            let mut server = place.server(major).await?;
            server.launch()?;
            let status = server.wait_exit(Duration::from_secs(30)).await?;
            assert!(!status.success(), "{major}");
            let log = server.log();
            assert!(!log.contains("ready to accept"), "{major}: {log}");
        }
    }
    Ok(())
}

/// E1: the store goes away in the middle of recovery. The server stops and never promotes; a standby asks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_is_never_taken_for_the_end() -> Result<()> {
    for major in Major::ENDS {
        let Story { mut source, .. } = story(Options::new(major).segment_mib(1)).await?;
        let mut place = Place::new()?;
        source.dump(place.dump())?;
        let view = source.lend();
        place.restore(&Wish::Latest, Arc::clone(&view) as Arc<dyn View>).await?;
        fs::write(place.down(), "")?;
        let mut server = place.server(major).await?;
        server.launch()?;
        let status = server.wait_exit(Duration::from_secs(40)).await?;
        assert!(!status.success());
        assert!(server.log().contains("the store does not answer"), "{}", server.log_tail());
        assert!(!place.target.data.join("pg_wal/00000002.history").exists(), "it promoted");
        assert!(place.target.data.join("recovery.signal").exists());
        fs::remove_file(place.down())?;
        let (rows, ..) = outcome(&place, major).await?;
        assert_eq!(rows, 20, "{major}");

        place = Place::new()?;
        source.take_back(view)?;
        source.dump(place.dump())?;
        place.target.standby = true;
        place.follows = true;
        fs::write(place.down(), "")?;
        place.restore(&Wish::Latest, source.lend()).await?;
        let mut server = place.server(major).await?;
        server.launch()?;
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(server.is_running(), "{}", server.log_tail());
        fs::remove_file(place.down())?;
        server.ready().await?;
        server.wait_for("select count(*) = 20 from t", Duration::from_secs(30)).await?;
        assert_eq!(server.value("select pg_is_in_recovery()").await?, "t");
        server.stop(Stop::Fast).await?;
    }
    Ok(())
}

/// A standby that follows gets what the repository gets later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_following_standby_gets_what_comes_later() -> Result<()> {
    let mut source = Source::start(Major::V18).await?;
    source.server.sql("create table t(i int)").await?;
    source.base().await?;
    let mut place = Place::new()?;
    place.target.standby = true;
    place.follows = true;
    source.dump(place.dump())?;
    let view = source.lend();
    place.restore(&Wish::Latest, Arc::clone(&view) as Arc<dyn View>).await?;
    source.take_back(view)?;
    let mut standby = place.server(Major::V18).await?;
    standby.start_again().await?;
    for row in 1..=3 {
        source.server.sql(&format!("insert into t values ({row}); select pg_switch_wal()")).await?;
        source.wal().await?;
        source.dump(place.dump())?;
        standby.wait_for(&format!("select count(*) = {row} from t"), Duration::from_secs(30)).await?;
    }
    standby.stop(Stop::Fast).await
}

/// A restored cluster becomes the source: one line over three timelines, and moments on each of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moments_on_three_timelines() -> Result<()> {
    let major = Major::V18;
    let Story { mut source, commits } = story(major).await?;
    let mut old = Vec::new();
    for round in 0..2 {
        let place = Place::new()?;
        source.dump(place.dump())?;
        let view = source.lend();
        place.restore(&Wish::Latest, Arc::clone(&view) as Arc<dyn View>).await?;
        source.take_back(view)?;
        let server = place.recovered(major).await?;
        source.follow(server);
        source.server.sql(&format!("insert into t values ({})", 100 + round)).await?;
        source.wal().await?;
        old.push(place);
    }
    check(&mut source, &Wish::Latest, true, major.into(), 22).await?;
    check(&mut source, &Wish::Transaction(commits[8].1), true, major.into(), 9).await?;
    // The plan for the oldest timeline says what it does not follow.
    let place = Place::new()?;
    let moment = place.restorer().resolve(&Wish::Transaction(commits[8].1), &source.view).await?;
    let text = place.restorer().plan(&moment, &source.view).await?.summary().to_string();
    for part in ["timeline 2, forked from 1 at", "timeline 3, forked from 1 at", "the cluster is on it now"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A10: one history in between is lost.
    source.view.catalog.notes.retain(|note| {
        let body = holdfast_postgres::records::NoteBody::decode(&note.body).unwrap();
        !matches!(body, holdfast_postgres::records::NoteBody::History { timeline: 2, .. })
    });
    let place = Place::new()?;
    let error = place.restorer().resolve(&Wish::Latest, &source.view).await.unwrap_err();
    assert!(error.to_string().contains("history of timeline 2"), "{error}");
    assert!(!place.target.data.exists());
    Ok(())
}

/// E11: max_connections rose after the base backup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raised_parameters_are_passed_on() -> Result<()> {
    for major in Major::ENDS {
        let mut source = Source::start(major).await?;
        source.server.sql("create table t(i int)").await?;
        source.base().await?;
        source.server.sql("alter system set max_connections = 130").await?;
        source.server.stop(Stop::Fast).await?;
        source.server.start_again().await?;
        source.server.sql("alter system reset max_connections").await?;
        source.server.sql("insert into t values (1)").await?;
        source.wal().await?;
        let place = Place::new()?;
        source.dump(place.dump())?;
        place.restore(&Wish::Latest, source.lend()).await?;
        let mut server = place.recovered(major).await?;
        assert_eq!(server.value("show max_connections").await?, "130");
        assert_eq!(server.value("select count(*) from t").await?, "1");
        server.stop(Stop::Fast).await?;
    }
    Ok(())
}

/// E8 and what else a restored copy must not inherit: stale labels, signals, archiving, synchronous standbys; a
/// tablespace elsewhere, `pg_wal` elsewhere, segments of 1 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_stands_on_its_own_feet() -> Result<()> {
    for major in Major::ENDS {
        let options = Options::new(major)
            .segment_mib(1)
            .set("archive_mode", "on")
            .set("archive_command", "/bin/false")
            .set("max_prepared_transactions", "3");
        let mut source = Source::start(options).await?;
        let space = source.server.new_folder("space")?;
        source.server.sql(&format!("create tablespace s location '{}'", space.display())).await?;
        source.server.sql("create table t(i int) tablespace s").await?;
        source.server.sql("alter system set recovery_target_xid = '12345'").await?;
        source.server.sql("alter system set primary_conninfo = 'host=production'").await?;
        fs::write(source.server.data().join("backup_label.old"), "START WAL LOCATION: 0/1 (file x)\n")?;
        fs::write(source.server.data().join("tablespace_map"), "1 /nowhere\n")?;
        fs::write(source.server.data().join("standby.signal"), "")?;
        source.base().await?;
        source.server.sql("insert into t select generate_series(1, 50000)").await?;
        source.server.sql("alter system set synchronous_standby_names = 'nobody'").await?;
        source.wal().await?;
        let mut place = Place::new()?;
        source.dump(place.dump())?;
        let view = source.lend();
        let refused = place.restore(&Wish::Latest, Arc::clone(&view) as Arc<dyn View>).await.unwrap_err();
        assert!(refused.to_string().contains("not empty"), "{refused}");
        assert!(!place.target.data.exists(), "something was written");
        let new = place.folder.path().join("new-space");
        place.target.tablespaces.insert(space.display().to_string(), new.clone());
        place.target.wal = Some(place.folder.path().join("new-wal"));
        place.restore(&Wish::Latest, Arc::clone(&view) as Arc<dyn View>).await?;
        for path in [&new, place.target.wal.as_ref().unwrap()] {
            holdfast_harness::User::give_all(path)?;
        }
        let mut server = place.recovered(major).await?;
        assert_eq!(server.value("select count(*) from t").await?, "50000");
        for (name, value) in [
            ("archive_mode", "off"),
            ("synchronous_standby_names", ""),
            ("primary_conninfo", ""),
            ("recovery_target_xid", ""),
            ("wal_segment_size", "1MB"),
        ] {
            assert_eq!(server.value(&format!("show {name}")).await?, value, "{name}");
        }
        let location =
            server.value("select pg_tablespace_location(oid) from pg_tablespace where spcname = 's'").await?;
        assert_eq!(location, new.display().to_string());
        assert!(fs::symlink_metadata(server.data().join("pg_wal"))?.is_symlink());
        server.sql("insert into t values (1)").await?;
        server.stop(Stop::Fast).await?;
        // Recovery's end takes the keys away.
        let session = place.target.data.join("pgsql_tmp.holdfast/session.json");
        for _ in 0..100 {
            if !session.exists() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(!session.exists(), "the session is still there");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_ends_of_recovery() -> Result<()> {
    for major in Major::ENDS {
        let Story { mut source, commits } = story(major).await?;
        for action in [Action::Pause, Action::Shutdown] {
            let mut place = Place::new()?;
            source.dump(place.dump())?;
            place.target.action = action;
            let view = source.lend();
            place.restore(&Wish::Transaction(commits[4].1), Arc::clone(&view) as Arc<dyn View>).await?;
            source.take_back(view)?;
            let mut server = place.server(major).await?;
            if action == Action::Shutdown {
                server.launch()?;
                server.wait_exit(Duration::from_secs(30)).await?;
                assert!(server.log().contains("shutdown at recovery target"), "{}", server.log_tail());
            } else {
                server.start_again().await?;
                server.wait_for("select count(*) = 5 from t", Duration::from_secs(30)).await?;
                server.wait_for("select pg_is_wal_replay_paused()", Duration::from_secs(30)).await?;
                server.stop(Stop::Fast).await?;
            }
        }
    }
    Ok(())
}

/// `--start-check` agrees with what was promised, and notices what was not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_check_compares_promise_and_server() -> Result<()> {
    for major in Major::ENDS {
        let Story { mut source, commits } = story(major).await?;
        let check = StartCheck {
            bin: Some(source.server.bin().to_owned()),
            version: major.number() * 10_000,
            role: "postgres".into(),
            keep: false,
            patience: Duration::from_secs(60),
        };
        for action in [Action::Promote, Action::Pause, Action::Shutdown] {
            let mut place = Place::new()?;
            place.target.action = action;
            source.dump(place.dump())?;
            let view = source.lend();
            let wish = Wish::Transaction(commits[4].1);
            let (moment, _) = place.restore(&wish, Arc::clone(&view) as Arc<dyn View>).await?;
            source.take_back(view)?;
            holdfast_harness::User::give_all(&place.target.data)?;
            let lines = start_check(&check, &place.target, &moment, &Clock::system()).await?;
            assert!(lines[0].starts_with("reached "), "{lines:?}");
            assert!(lines[1].contains(&commits[4].2.to_string()), "{lines:?}");
            let mut other = moment.clone();
            other.place.position += 100;
            other.inclusive = true;
            if action == Action::Promote {
                let error = start_check(&check, &place.target, &other, &Clock::system()).await.unwrap_err();
                assert!(error.chain().contains("not what was promised"), "{}", error.chain());
            }
        }
        let wrong = StartCheck { version: 120_000, bin: None, ..check };
        let place = Place::new()?;
        let error = find_server(wrong.version).unwrap_err();
        assert!(error.to_string().contains("no PostgreSQL 12"), "{error} {:?}", place.target.data);
    }
    Ok(())
}

/// The last record of all is the end of a segment: whole, or with its padding still on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_may_end_with_a_switch() -> Result<()> {
    for major in Major::ENDS {
        let Story { mut source, .. } = story(Options::new(major).segment_mib(32)).await?;
        source.server.sql("select pg_switch_wal()").await?;
        source.wal_as_it_is().await?;
        let check = StartCheck {
            bin: Some(source.server.bin().to_owned()),
            version: major.number() * 10_000,
            role: "postgres".into(),
            keep: false,
            patience: Duration::from_secs(60),
        };
        // A position in the padding: all that there is, and once there is more, the first record behind it.
        let restorer = Place::new()?.restorer();
        let latest = restorer.resolve(&Wish::Latest, &source.view).await?;
        let padding = Wish::Position(Lsn(latest.place.position - 5000).to_string());
        assert_eq!(restorer.resolve(&padding, &source.view).await?, latest);
        let before = source.view.catalog.spans.clone();
        source.wal().await?;
        let next = restorer.resolve(&padding, &source.view).await?;
        assert!(next.begin >= latest.place.position && next.begin <= latest.place.position + 40, "{next:?}");
        source.view.catalog.spans = before;
        for cut in [0, 1 << 20] {
            let span = source.view.catalog.spans.last_mut().context("no log")?;
            span.to -= cut;
            let place = Place::new()?;
            source.dump(place.dump())?;
            let view = source.lend();
            let (moment, _) = place.restore(&Wish::Latest, Arc::clone(&view) as Arc<dyn View>).await?;
            source.take_back(view)?;
            holdfast_harness::User::give_all(&place.target.data)?;
            start_check(&check, &place.target, &moment, &Clock::system())
                .await
                .with_context(|| format!("{major}, cut by {cut}"))?;
            let mut server = place.server(major).await?;
            server.start_again().await?;
            assert_eq!(server.value("select count(*) from t").await?, "20");
            server.stop(Stop::Fast).await?;
        }
    }
    Ok(())
}

/// A base backup of a standby has no end record; it serves from where the standby had replayed to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_backup_of_a_standby_serves() -> Result<()> {
    for major in Major::ENDS {
        let Story { mut source, commits } = story(major).await?;
        let standby = Server::standby_of(&source.server, "s").await?;
        source.server.sql("checkpoint; insert into t values (21)").await?;
        standby.wait_for("select count(*) = 21 from t", Duration::from_secs(30)).await?;
        source.view.catalog.checkpoints.clear();
        source.base_of_standby(standby).await?;
        check(&mut source, &Wish::Immediate, true, major.into(), 21).await?;
        source.server.sql("insert into t values (22)").await?;
        source.wal().await?;
        check(&mut source, &Wish::Latest, true, major.into(), 22).await?;
        let early = Place::new()?.restorer().resolve(&Wish::Transaction(commits[3].1), &source.view).await;
        assert!(early.unwrap_err().to_string().contains("before the first base backup"));
    }
    Ok(())
}

/// `--keep-running`: after the check the server runs with its own settings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checked_server_may_stay() -> Result<()> {
    let mut source = Source::start(Major::V17).await?;
    let place = Place::new()?;
    source.server.sql("alter system set listen_addresses = ''").await?;
    let sockets = place.folder.path().display();
    source.server.sql(&format!("alter system set unix_socket_directories = '{sockets}'")).await?;
    source.base().await?;
    source.dump(place.dump())?;
    let (moment, _) = place.restore(&Wish::Immediate, source.lend()).await?;
    holdfast_harness::User::give_all(&place.target.data)?;
    let check = StartCheck {
        bin: Some(source.server.bin().to_owned()),
        version: 170_000,
        role: "postgres".into(),
        keep: true,
        patience: Duration::from_secs(60),
    };
    let lines = start_check(&check, &place.target, &moment, &Clock::system()).await?;
    let file = fs::read_to_string(place.target.data.join("postmaster.pid"))?;
    let pid: u32 = file.lines().next().context("no pid")?.parse()?;
    let dsn = format!("host={sockets} port=5432 user=postgres dbname=postgres");
    let asked = match source.server.client_of(&dsn).await {
        Ok(client) => client.query_one("select current_setting('hba_file')", &[]).await.map_err(Into::into),
        Err(cause) => Err(cause),
    };
    holdfast_harness::process::signal(pid, rustix::process::Signal::QUIT);
    let access: String = asked?.get(0);
    assert!(access.starts_with(&place.target.data.display().to_string()), "{access}");
    for _ in 0..200 {
        if !holdfast_harness::process::alive(pid) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!holdfast_harness::process::alive(pid));
    assert!(lines.last().is_some_and(|line| line.contains("runs with its own settings")), "{lines:?}");
    Ok(())
}

/// A view whose store goes away after so many reads of content.
struct Failing {
    view: Arc<MemoryView>,
    left: AtomicI64,
}

#[async_trait]
impl View for Failing {
    fn catalog(&self) -> &Catalog {
        self.view.catalog()
    }
    fn heads(&self) -> Vec<core::Place> {
        self.view.heads()
    }
    fn vouched(&self) -> Option<Timestamp> {
        self.view.vouched()
    }
    async fn marks(&self, span: Span) -> core::Result<Marks> {
        self.view.marks(span).await
    }
    async fn rows(&self, layers: &[Layer], from: &[u8], limit: usize) -> core::Result<Vec<Row>> {
        self.view.rows(layers, from, limit).await
    }
    async fn content(&self, held: &Held) -> core::Result<Bytes> {
        self.view.content(held).await
    }
    async fn contents(&self, held: &[Held]) -> core::Result<Vec<Bytes>> {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            return Err(core::Error::retry("the store went away"));
        }
        self.view.contents(held).await
    }
    async fn log(&self, span: Span) -> core::Result<Vec<LogChunk>> {
        View::log(&*self.view, span).await
    }
    async fn cost(&self, path: &[Span]) -> core::Result<(u64, u64)> {
        self.view.cost(path).await
    }
}

/// E17: a restore is cut off, what was not flushed is lost, and the next run brings the same files as one that was
/// never cut off. Until it is finished no server starts, and another plan is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_was_cut_off_goes_on() -> Result<()> {
    let mut source = Source::start(Major::V18).await?;
    source.server.sql("create table t as select generate_series(1, 200000) i").await?;
    source.base().await?;
    let view = source.lend();
    let whole = Place::new()?;
    let wish = Wish::Latest;
    whole.restore(&wish, Arc::clone(&view) as Arc<dyn View>).await?;

    let mut place = Place::new()?;
    place.target.restore_command = whole.target.restore_command.clone();
    for reads in [0, 1, 2] {
        let failing = Failing { view: Arc::clone(&view), left: AtomicI64::new(reads) };
        let error = place.restore(&wish, Arc::new(failing)).await.unwrap_err();
        assert!(format!("{error:#}").contains("the store went away"), "{error:#}");
        assert!(!place.target.data.join("global/pg_control").exists());
        // Power loss: of what was not flushed nothing remains but names.
        for path in files_below(&place.target.data)? {
            if !path.starts_with(place.target.data.join("pgsql_tmp.holdfast")) && path.is_file() {
                fs::write(&path, "")?;
            }
        }
        let mut other = place.restorer();
        other.target.action = Action::Pause;
        let moment = other.resolve(&wish, &*view).await?;
        let summary = other.plan(&moment, &*view).await?.summary();
        assert!(
            summary.conflicts.iter().any(|why| why.contains("another restore")),
            "{:?}",
            summary.conflicts
        );
    }
    place.restore(&wish, Arc::clone(&view) as Arc<dyn View>).await?;
    let (one, two) = (files_below(&whole.target.data)?, files_below(&place.target.data)?);
    assert_eq!(one.len(), two.len());
    for (one, two) in one
        .iter()
        .zip(&two)
        .filter(|(one, _)| one.is_file() && !one.starts_with(whole.target.data.join("pgsql_tmp.holdfast")))
    {
        assert_eq!(one.strip_prefix(&whole.target.data)?, two.strip_prefix(&place.target.data)?);
        assert_eq!(fs::read(one)?, fs::read(two)?, "{}", one.display());
        assert_eq!(fs::metadata(one)?.permissions(), fs::metadata(two)?.permissions(), "{}", one.display());
    }
    // More WAL meanwhile: the wish for the newest moment still means the one that was begun.
    source.take_back(view)?;
    source.server.sql("insert into t values (0)").await?;
    source.wal().await?;
    let (_, report) = place.restore(&wish, source.lend()).await?;
    assert!(report.lines[0].contains("finished before"), "{report:?}");
    Ok(())
}

fn files_below(folder: &std::path::Path) -> Result<Vec<std::path::PathBuf>> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path.clone());
            }
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}
