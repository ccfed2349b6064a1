//! Records what real servers of every major say, for `tests/recorded.rs`. Run it after a change of what is
//! asked, then look at the difference: `cargo run -p holdfast-pgwire --example record`.
//!
//! Base backups are cut down to the frames that show their shape: few short ones of each archive, as they
//! came, and its first long one, shortened.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use holdfast_core::Clock;
use holdfast_harness::{Major, Options, Server, Stop};
use holdfast_pgwire::{
    BackupEvent, BackupOptions, Config, Connection, Event, Lifetime, Lsn, Reserve, Started, Status, Stream,
    Surroundings,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Who spoke, and what.
type Turns = Vec<(u8, Vec<u8>)>;

/// A line to a server that remembers what went over it.
struct Tap {
    port: u16,
    turns: Arc<Mutex<Turns>>,
}

impl Tap {
    async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let turns: Arc<Mutex<Turns>> = Arc::default();
        let (kept, to) = (turns.clone(), server.port());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                let ((client_in, client_out), (server_in, server_out)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(pass(client_in, server_out, b'C', kept.clone()));
                tokio::spawn(pass(server_in, client_out, b'S', kept.clone()));
            }
        });
        Self { port, turns }
    }
    async fn connect(&self) -> Connection {
        let dsn = format!("host=127.0.0.1 port={} user=postgres sslmode=disable", self.port);
        let config = Config::parse_in(&dsn, &Surroundings::default()).unwrap();
        Connection::open(&config, &Clock::system()).await.unwrap()
    }
    fn forget(&self) {
        self.turns.lock().unwrap().clear();
    }
    fn turns(&self) -> Turns {
        self.turns.lock().unwrap().clone()
    }
    fn server_bytes(&self) -> Vec<u8> {
        self.turns().into_iter().filter(|(who, _)| *who == b'S').flat_map(|(_, bytes)| bytes).collect()
    }
}

async fn pass(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    who: u8,
    turns: Arc<Mutex<Turns>>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        {
            let mut turns = turns.lock().unwrap();
            match turns.last_mut() {
                Some((last, bytes)) if *last == who => bytes.extend_from_slice(&buffer[..count]),
                _ => turns.push((who, buffer[..count].to_vec())),
            }
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    to.shutdown().await.ok();
}

fn save(major: Major, what: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    let path: PathBuf = folder.join(format!("{}-{what}.bin", major.number()));
    std::fs::write(&path, bytes).unwrap();
    println!("{} {} bytes", path.display(), bytes.len());
}

async fn position(server: &Server) -> Lsn {
    server.lsn().await.unwrap().parse().unwrap()
}

fn streaming(started: Started) -> Stream {
    match started {
        Started::Streaming(stream) => stream,
        Started::EndOfTimeline { .. } => panic!("nothing to stream"),
    }
}

/// Sign-in and commands, as turns: who, length (u32, big-endian), bytes.
async fn commands(major: Major) {
    let server = Server::start(major).await.unwrap();
    let tap = Tap::before(&server).await;
    let mut connection = tap.connect().await;
    connection.identify_system().await.unwrap();
    connection.show("wal_segment_size").await.unwrap();
    connection.show("no_such_setting").await.unwrap_err();
    connection.timeline_history(1).await.unwrap();
    connection.create_slot("s", Reserve::Now, Lifetime::Permanent).await.unwrap();
    if major >= Major::V15 {
        connection.read_slot("s").await.unwrap();
        connection.read_slot("absent").await.unwrap();
    }
    connection.drop_slot("s", false).await.unwrap();
    let mut out = Vec::new();
    for (who, bytes) in tap.turns() {
        out.push(who);
        out.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_be_bytes());
        out.extend_from_slice(&bytes);
    }
    save(major, "commands", &out);
}

async fn timeline(major: Major) {
    let primary = Server::start(major).await.unwrap();
    primary.sql("create table t (a int); checkpoint").await.unwrap();
    let standby = Server::standby_of(&primary, "standby").await.unwrap();
    let start = position(&primary).await;
    primary.sql("insert into t select generate_series(1, 3)").await.unwrap();
    let until = position(&primary).await;
    let caught_up = format!("select pg_last_wal_replay_lsn() >= '{until}'");
    standby.wait_for(&caught_up, std::time::Duration::from_secs(30)).await.unwrap();
    let tap = Tap::before(&standby).await;
    let mut connection = tap.connect().await;
    connection.identify_system().await.unwrap();
    tap.forget();
    let mut reader = streaming(connection.start_replication(None, start, Some(1)).await.unwrap()).reader;
    assert!(matches!(reader.next().await.unwrap(), Event::Wal { .. }));
    standby.promote().await.unwrap();
    while !matches!(reader.next().await.unwrap(), Event::EndOfTimeline { .. }) {}
    save(major, "timeline", &tap.server_bytes());
}

async fn shutdown(major: Major) {
    let mut server = Server::start(major).await.unwrap();
    server.sql("checkpoint").await.unwrap();
    let start = position(&server).await;
    let tap = Tap::before(&server).await;
    let mut connection = tap.connect().await;
    connection.identify_system().await.unwrap();
    tap.forget();
    let stream = streaming(connection.start_replication(None, start, None).await.unwrap());
    let (mut reader, mut writer) = stream.split();
    writer.status(Status { written: start, flushed: start, applied: start }, true).await.unwrap();
    while !matches!(reader.next().await.unwrap(), Event::Keepalive { .. }) {}
    server.ask_stop(Stop::Fast);
    loop {
        match reader.next().await.unwrap() {
            Event::Keepalive { server_end: at, reply_requested: true, .. } => {
                writer.status(Status { written: at, flushed: at, applied: at }, false).await.unwrap();
            }
            Event::Ended { tag } => break assert_eq!(tag, "COPY 0"),
            _ => {}
        }
    }
    server.wait_exit(std::time::Duration::from_secs(60)).await.unwrap();
    save(major, "shutdown", &tap.server_bytes());
}

async fn refused(major: Major) {
    let options = Options::new(major).segment_mib(1).set("wal_keep_size", "0").set("max_wal_size", "2MB");
    let server = Server::start(options).await.unwrap();
    let old = position(&server).await;
    let tap = Tap::before(&server).await;
    for (what, at) in [("beyond", old.plus(1 << 30)), ("removed", old)] {
        if what == "removed" {
            for _ in 0..6 {
                server.sql("select pg_switch_wal(); checkpoint").await.unwrap();
                server.sql("create table x as select generate_series(1, 30000); drop table x").await.unwrap();
            }
            server.sql("checkpoint").await.unwrap();
        }
        let mut connection = tap.connect().await;
        connection.identify_system().await.unwrap();
        tap.forget();
        let mut reader = streaming(connection.start_replication(None, at, None).await.unwrap()).reader;
        reader.next().await.unwrap_err();
        save(major, what, &tap.server_bytes());
    }
}

async fn backups(major: Major) {
    let mut server = Server::start(major).await.unwrap();
    let folder = server.new_folder("space").unwrap();
    server.sql(&format!("create tablespace space location '{}'", folder.display())).await.unwrap();
    server
        .sql("create table s tablespace space as select 1; create table t as select generate_series(1, 3000)")
        .await
        .unwrap();
    backup(&server, major, "backup").await;
    let file = server.value("select pg_relation_filepath('t')").await.unwrap();
    server.stop(Stop::Fast).await.unwrap();
    let mut raw = std::fs::OpenOptions::new().write(true).open(server.data().join(&file)).unwrap();
    raw.seek(SeekFrom::Start(8192 + 4000)).unwrap();
    raw.write_all(b"damage").unwrap();
    server.start_again().await.unwrap();
    backup(&server, major, "damaged").await;
}

async fn backup(server: &Server, major: Major, what: &str) {
    let tap = Tap::before(server).await;
    let connection = tap.connect().await;
    tap.forget();
    let options = BackupOptions { progress: true, ..BackupOptions::default() };
    let mut stream = connection.base_backup(&options).await.unwrap();
    while !matches!(stream.next().await.unwrap(), BackupEvent::End { .. }) {}
    save(major, what, &cut(&tap.server_bytes()));
}

/// Longest frame of copied data that stays whole.
const SHORT: usize = 2048;

/// Of each run of copied data, the first and last four short frames stay, and the first long one, shortened.
/// All else stays.
fn cut(bytes: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    let mut rest = bytes;
    while let Some(header) = rest.first_chunk::<5>() {
        let length = u32::from_be_bytes(header[1..].try_into().unwrap()) as usize + 1;
        frames.push(&rest[..length]);
        rest = &rest[length..];
    }
    // A run ends at any frame that is not plain data.
    let is_data =
        |frame: &[u8]| frame[0] == b'd' && (frame.len() > SHORT || !matches!(frame[5], b'n' | b'm'));
    let mut out = Vec::new();
    for run in frames.chunk_by(|a, b| is_data(a) && is_data(b)) {
        let short = run.iter().filter(|frame| frame.len() <= SHORT).count();
        let (mut at, mut long) = (0, 0);
        for frame in run {
            if frame.len() <= SHORT {
                if at < 4 || at + 4 >= short {
                    out.extend_from_slice(frame);
                }
                at += 1;
            } else {
                if long == 0 {
                    out.push(b'd');
                    out.extend_from_slice(&(600u32 + 4).to_be_bytes());
                    out.extend_from_slice(&frame[5..605]);
                }
                long += 1;
            }
        }
    }
    out
}

#[tokio::main]
async fn main() {
    for major in Major::ALL {
        commands(major).await;
        timeline(major).await;
        shutdown(major).await;
        refused(major).await;
        backups(major).await;
    }
}
