//! Starts a restored server and proves that it arrived where it was promised: position, time and timeline. It listens
//! on a socket in a folder of its own only, and its own access rules do not apply meanwhile, so nobody else gets in.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use holdfast_core::{Clock, Error, Moment, Random, Result, Timestamp};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio_postgres::{Client, NoTls};

use super::{
    files::give,
    journal::failed,
    target::{Action, Owner, Target},
    timelines::number,
};
use crate::wal::{History, Lsn};

/// Longest page header: a record that is left out may begin behind one, and replay ends in front of it.
const HEADER: u64 = 40;
/// Smallest segment: all others are multiples of it.
const SEGMENT_MIN: u64 = 1 << 20;
const PORT: u16 = 5432;

/// How to start.
#[derive(Clone, Debug)]
pub struct StartCheck {
    /// Folder with `postgres` and `pg_ctl`; looked for where packages put it when not given.
    pub bin: Option<PathBuf>,
    /// As `server_version_num`.
    pub version: u32,
    /// A role that exists in the restored cluster; it needs no rights.
    pub role: String,
    /// Start the server with its own settings afterwards and leave it running.
    pub keep: bool,
    /// Replay may take so long.
    pub patience: Duration,
}

/// The folder with the programs of a major version: as Debian, Red Hat and source builds lay it.
pub fn find_server(version: u32) -> Result<PathBuf> {
    let major = version / 10_000;
    let places = [
        format!("/usr/lib/postgresql/{major}/bin"),
        format!("/usr/pgsql-{major}/bin"),
        format!("/opt/postgresql/{major}/bin"),
        "/usr/local/pgsql/bin".to_owned(),
        "/usr/bin".to_owned(),
    ];
    let said = |folder: &Path| {
        let output = std::process::Command::new(folder.join("postgres")).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace().nth(2)?.split('.').next()?.parse::<u32>().ok()
    };
    let found = places.iter().map(PathBuf::from).find(|folder| said(folder) == Some(major));
    found.ok_or_else(|| {
        Error::configure(format!(
            "no PostgreSQL {major} was found in {}: install it, or name the folder of its programs with --pg-bin",
            places.join(", ")
        ))
    })
}

/// Starts the restored folder, waits for the moment, compares. The lines say what was found.
pub async fn start_check(
    check: &StartCheck,
    target: &Target,
    moment: &Moment,
    clock: &Clock,
) -> Result<Vec<String>> {
    let bin = check.bin.clone().map_or_else(|| find_server(check.version), Ok)?;
    let room = Room::make(target.owner)?;
    let mut server = launch(&bin, target, &room)?;
    let outcome = observe(check, target, moment, clock, &room, &mut server).await;
    let stopped = stop(&mut server, clock).await;
    let mut lines =
        outcome.map_err(|error| error.during(format!("the restored server was started: {}", room.tail())))?;
    stopped?;
    drop(room);
    if check.keep {
        keep(&bin, target).await?;
        lines.push("the server runs with its own settings".to_owned());
    } else {
        lines.push("the server was stopped again".to_owned());
    }
    Ok(lines)
}

/// A folder that only the server's account can enter, gone with its owner.
struct Room(PathBuf);

impl Room {
    fn make(owner: Option<Owner>) -> Result<Self> {
        let path = std::env::temp_dir()
            .join(format!("holdfast-check-{}", hex::encode(Random::system().array::<6>())));
        let room = Self(path);
        let made = || {
            fs::DirBuilder::new().mode(0o700).create(&room.0)?;
            fs::write(room.0.join("hba"), "local all all trust\n")?;
            let mut options = fs::File::options();
            options.create_new(true).append(true).mode(0o600).open(room.0.join("log"))?;
            for name in ["hba", "log", ""] {
                give(&room.0.join(name), owner)?;
            }
            Ok(())
        };
        made().map_err(|cause| failed("made", &room.0, cause))?;
        Ok(room)
    }

    /// The end of what the server said.
    fn tail(&self) -> String {
        let text = fs::read(self.0.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines.get(lines.len().saturating_sub(12)..).unwrap_or_default().join("\n")
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn as_owner(program: &Path, owner: Option<Owner>) -> Command {
    let mut command = Command::new(program);
    if let Some(owner) = owner {
        command.uid(owner.uid).gid(owner.gid);
    }
    command.stdin(Stdio::null()).current_dir("/");
    command
}

fn launch(bin: &Path, target: &Target, room: &Room) -> Result<Child> {
    let log = fs::File::options().append(true).open(room.0.join("log"));
    let log = log.map_err(|cause| failed("opened", &room.0, cause))?;
    let mut command = as_owner(&bin.join("postgres"), target.owner);
    command.arg("-D").arg(&target.data);
    let mut set = |name: &str, value: &str| {
        command.arg("-c").arg(format!("{name}={value}"));
    };
    set("listen_addresses", "");
    set("port", &PORT.to_string());
    set("unix_socket_directories", &room.0.to_string_lossy());
    set("hba_file", &room.0.join("hba").to_string_lossy());
    set("logging_collector", "off");
    set("log_destination", "stderr");
    set("ssl", "off");
    set("hot_standby", "on");
    if target.action == Action::Shutdown {
        set("recovery_target_action", "pause");
    }
    let other = log.try_clone().map_err(|cause| failed("opened", &room.0, cause))?;
    command.stdout(log).stderr(other).kill_on_drop(true).process_group(0);
    command.spawn().map_err(|cause| failed("started", &bin.join("postgres"), cause))
}

async fn observe(
    check: &StartCheck,
    target: &Target,
    moment: &Moment,
    clock: &Clock,
    room: &Room,
    server: &mut Child,
) -> Result<Vec<String>> {
    let began = clock.now();
    let promised = Lsn(if moment.inclusive { moment.place.position } else { moment.begin });
    let promotes = !target.standby && target.action == Action::Promote;
    let seen = loop {
        if let Some(status) = server.try_wait().map_err(|cause| failed("watched", &target.data, cause))? {
            return Err(Error::unreachable(format!("it ended with {status} before it reached {promised}")));
        }
        if let Some(client) = connect(&room.0, &check.role).await? {
            let seen = Seen::read(&client).await?;
            let there = seen.replayed.is_some_and(|lsn| arrived(lsn, promised) || lsn > promised);
            if if promotes { !seen.recovering } else { there } {
                break seen;
            }
        }
        if clock.now().duration_since(began) > check.patience {
            return Err(Error::unreachable(format!("it did not reach {promised} within the time given")));
        }
        clock.sleep(Duration::from_millis(200)).await;
    };
    seen.compare(target, moment, promised, promotes)
}

/// Is this where replay ends that was to end at `promised`?
fn arrived(lsn: Lsn, promised: Lsn) -> bool {
    lsn <= promised && promised.since(lsn) <= HEADER
}

async fn connect(room: &Path, role: &str) -> Result<Option<Client>> {
    for database in ["postgres", "template1"] {
        let mut config = tokio_postgres::Config::new();
        config.host_path(room).port(PORT).user(role).dbname(database).connect_timeout(Duration::from_secs(5));
        match config.connect(NoTls).await {
            Ok((client, connection)) => {
                // Ends with the client.
                tokio_task(connection);
                return Ok(Some(client));
            }
            Err(cause) if cause.code().is_some_and(|code| code.code() == "3D000") => {}
            Err(cause) if cause.code().is_some_and(|code| code.code().starts_with("28")) => {
                return Err(Error::configure(format!(
                    "the restored cluster has no role «{role}»: name one with --role"
                ))
                .because(cause));
            }
            Err(_) => return Ok(None),
        }
    }
    Ok(None)
}

#[allow(clippy::disallowed_methods, reason = "ends by itself when its client is dropped")]
fn tokio_task<F: Future<Output = Result<(), tokio_postgres::Error>> + Send + 'static>(connection: F) {
    tokio::spawn(connection);
}

/// What the server says of itself.
struct Seen {
    recovering: bool,
    replayed: Option<Lsn>,
    /// Of the newest commit or abort that was replayed.
    time: Option<Timestamp>,
    timeline: Option<u32>,
}

impl Seen {
    async fn read(client: &Client) -> Result<Self> {
        let sentence = "select pg_is_in_recovery(), pg_last_wal_replay_lsn()::text, \
            (extract(epoch from pg_last_xact_replay_timestamp()) * 1000000)::bigint, \
            case when pg_is_in_recovery() then null else pg_walfile_name(pg_current_wal_insert_lsn()) end";
        let asked = client.query_one(sentence, &[]).await;
        let row =
            asked.map_err(|cause| Error::unreachable("the restored server did not answer").because(cause))?;
        let replayed: Option<String> = row.get(1);
        let segment: Option<String> = row.get(3);
        let timeline = segment.and_then(|name| u32::from_str_radix(name.get(..8)?, 16).ok());
        let time: Option<i64> = row.get(2);
        Ok(Self {
            recovering: row.get(0),
            replayed: replayed.map(|lsn| lsn.parse()).transpose()?,
            time: time.map(Timestamp),
            timeline,
        })
    }

    fn compare(
        &self,
        target: &Target,
        moment: &Moment,
        promised: Lsn,
        promotes: bool,
    ) -> Result<Vec<String>> {
        let wrong = |what: String| {
            Error::unreachable(format!("the restored server is not what was promised: {what}"))
        };
        let mut lines = Vec::new();
        let replayed = self.replayed.unwrap_or(Lsn::INVALID);
        // A switch ends where its segment does, even where the log that is held ends in the padding behind it.
        let switched = moment.inclusive && replayed > promised && replayed.0.is_multiple_of(SEGMENT_MIN);
        let beyond = switched || target.standby && replayed > promised;
        if !arrived(replayed, promised) && !beyond {
            return Err(wrong(format!("it replayed up to {replayed}, and {promised} was promised")));
        }
        lines.push(format!("reached {replayed} ({promised} was promised)"));
        // A server that stops after a commit by position does not count that commit's own time.
        if self.time < moment.time && !moment.inclusive {
            let show = |time: Option<Timestamp>| time.map_or("none".to_owned(), |time| time.to_string());
            return Err(wrong(format!(
                "its last commit was at {}, and {} was promised",
                show(self.time),
                show(moment.time)
            )));
        }
        if let Some(time) = moment.time {
            lines.push(format!("its last commit was at {time}"));
        }
        if promotes {
            let own = self.timeline.unwrap_or(0);
            let path = target.data.join(format!("pg_wal/{own:08X}.history"));
            let content = fs::read(&path).map_err(|cause| failed("read", &path, cause))?;
            let history = History::parse(own, &content)?;
            let parent = history.ancestors.last().map_or(0, |ancestor| ancestor.timeline);
            if Some(parent) != number(moment.place.branch) {
                return Err(wrong(format!(
                    "it left timeline {parent}, and {} was promised",
                    moment.place.branch.0
                )));
            }
            lines.push(format!("now on timeline {own}, which left timeline {parent}"));
        }
        Ok(lines)
    }
}

async fn stop(server: &mut Child, clock: &Clock) -> Result<()> {
    let pid = server.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        kill_process(pid, Signal::INT).ok();
    }
    match clock.timeout(Duration::from_secs(300), server.wait()).await {
        Some(Ok(_)) => Ok(()),
        Some(Err(cause)) => {
            Err(Error::unreachable("the restored server could not be waited for").because(cause))
        }
        None => Err(Error::unreachable("the restored server does not stop; it was killed")),
    }
}

async fn keep(bin: &Path, target: &Target) -> Result<()> {
    let mut command = as_owner(&bin.join("pg_ctl"), target.owner);
    command.arg("-D").arg(&target.data).args(["-w", "-t", "3600", "-s", "start", "-l"]);
    command.arg(target.data.join("holdfast-start.log")).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status().await {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::configure(format!(
            "the restored server did not start with its own settings (pg_ctl ended with {status}): see {}",
            target.data.join("holdfast-start.log").display()
        ))),
        Err(cause) => Err(failed("started", &bin.join("pg_ctl"), cause)),
    }
}
