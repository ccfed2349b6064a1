//! Servers that lie, stall or never end, played by a few lines.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{future::Future, time::Duration};

use holdfast_core::Clock;
use holdfast_pgwire::{Config, Connection, Error, Event, Lsn, Started, Status, Surroundings};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UnixListener, UnixStream},
    task::JoinHandle,
};

/// A frame of the server.
fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    out.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
    out.extend_from_slice(body);
    out
}
fn auth(kind: u32, rest: &[u8]) -> Vec<u8> {
    frame(b'R', &[&kind.to_be_bytes(), rest].concat())
}

/// What the client says next: the startup message has no tag.
async fn hear(socket: &mut UnixStream, tagged: bool) -> Vec<u8> {
    if tagged {
        socket.read_u8().await.unwrap();
    }
    let length = socket.read_u32().await.unwrap() as usize - 4;
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.unwrap();
    body
}

/// Starts a server on a socket that plays `part` with the first client after its startup message.
fn server<F: Future<Output = ()> + Send + 'static>(
    part: impl FnOnce(UnixStream) -> F + Send + 'static,
) -> (TempDir, JoinHandle<()>) {
    let home = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(home.path().join(".s.PGSQL.5432")).unwrap();
    let task = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        hear(&mut socket, false).await;
        part(socket).await;
    });
    (home, task)
}

async fn open(home: &TempDir) -> Result<Connection, Error> {
    let dsn = format!("host={} user=u password=secret", home.path().display());
    let config = Config::parse_in(&dsn, &Surroundings::default()).unwrap();
    let clock = Clock::system();
    Connection::open(&config, &clock).await
}

async fn welcome(socket: &mut UnixStream) {
    socket.write_all(&auth(0, b"")).await.unwrap();
    socket.write_all(&frame(b'S', b"server_version\x0018.0\0")).await.unwrap();
    socket.write_all(&frame(b'Z', b"I")).await.unwrap();
}

/// SCRAM up to the client's proof.
async fn half_scram(socket: &mut UnixStream) {
    socket.write_all(&auth(10, b"SCRAM-SHA-256\0\0")).await.unwrap();
    let first = String::from_utf8(hear(socket, true).await).unwrap();
    let nonce = first.rsplit_once("r=").unwrap().1;
    let challenge = format!("r={nonce}more,s=c2FsdHNhbHQ=,i=4096");
    socket.write_all(&auth(11, challenge.as_bytes())).await.unwrap();
    hear(socket, true).await;
}

#[tokio::test]
async fn a_server_must_prove_that_it_knows_the_password() {
    let (home, _task) = server(|mut socket| async move {
        half_scram(&mut socket).await;
        welcome(&mut socket).await;
    });
    let error = open(&home).await.err().unwrap();
    assert!(matches!(&error, Error::Auth { .. }) && error.to_string().contains("without proving"), "{error}");

    let (home, _task) = server(|mut socket| async move {
        half_scram(&mut socket).await;
        socket.write_all(&auth(12, b"v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")).await.unwrap();
        welcome(&mut socket).await;
    });
    let error = open(&home).await.err().unwrap();
    assert!(matches!(&error, Error::Auth { .. }) && error.to_string().contains("impostor"), "{error}");
}

#[tokio::test]
async fn a_sign_in_out_of_order_is_an_error() {
    for wrong in [
        auth(11, b"r=x"),
        auth(12, b"v=x"),
        auth(10, b"SCRAM-SHA-256"),
        auth(7, b""),
        auth(99, b""),
        frame(b'D', b"\0\0"),
        frame(b'?', b""),
        // A length that nobody has proved to be worth its room.
        [&b"R"[..], &0x3fff_ffff_u32.to_be_bytes()].concat(),
    ] {
        let (home, _task) = server(|mut socket| async move {
            socket.write_all(&wrong).await.unwrap();
            socket.read_u8().await.ok();
        });
        let error = open(&home).await.err().unwrap();
        assert!(matches!(&error, Error::Auth { .. } | Error::Protocol(_)), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_is_given_up() {
    let (home, _task) = server(|mut socket| async move {
        socket.read_u8().await.ok();
    });
    let error = open(&home).await.err().unwrap();
    assert!(matches!(error, Error::ConnectTimeout { seconds: 30, .. }), "{error}");

    let (home, _task) = server(|mut socket| async move {
        welcome(&mut socket).await;
        while socket.read_u8().await.is_ok() {}
    });
    let mut connection = open(&home).await.unwrap();
    let error = connection.identify_system().await.unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }) && error.is_passing(), "{error}");
    assert!(matches!(connection.show("port").await, Err(Error::Abandoned)));
}

#[tokio::test]
async fn an_answer_without_end_is_given_up() {
    let (home, task) = server(|mut socket| async move {
        welcome(&mut socket).await;
        hear(&mut socket, true).await;
        socket.write_all(&frame(b'T', b"\0\0")).await.unwrap();
        let mut row = 1u16.to_be_bytes().to_vec();
        row.extend_from_slice(&100_000u32.to_be_bytes());
        row.resize(row.len() + 100_000, b'x');
        while socket.write_all(&frame(b'D', &row)).await.is_ok() {}
    });
    let mut connection = open(&home).await.unwrap();
    let error = connection.identify_system().await.unwrap_err();
    assert!(error.to_string().contains("does not end"), "{error}");
    drop(connection);
    task.await.unwrap();
}

#[tokio::test]
async fn plain_bytes_cannot_be_slipped_in_before_tls() {
    for (answer, expected) in
        [(&b"SZ\0\0\0\x05I"[..], "TLS with"), (b"EFATAL: send money\0", "cannot answer")]
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 8];
            socket.read_exact(&mut request).await.unwrap();
            socket.write_all(answer).await.unwrap();
            while socket.read_u8().await.is_ok() {}
        });
        let dsn = format!("host=127.0.0.1 port={port} user=u sslmode=require");
        let config = Config::parse_in(&dsn, &Surroundings::default()).unwrap();
        let error = Connection::open(&config, &Clock::system()).await.err().unwrap();
        assert!(matches!(&error, Error::Tls { .. }), "{error}");
        assert!(error.to_string().contains(expected) && !error.to_string().contains("money"), "{error}");
        task.await.unwrap();
    }
}

/// A message of 64 bytes of log at `start`.
fn log(start: u64) -> Vec<u8> {
    let mut body = vec![b'w'];
    for number in [start, start + 64, 0] {
        body.extend_from_slice(&number.to_be_bytes());
    }
    body.resize(25 + 64, b'x');
    frame(b'd', &body)
}

#[tokio::test]
async fn a_server_that_does_not_listen_stops_neither_reading_nor_memory() {
    let (go, mut gone) = tokio::sync::oneshot::channel::<()>();
    let (home, task) = server(|mut socket| async move {
        welcome(&mut socket).await;
        hear(&mut socket, true).await;
        let identity = [&b"\0\x04"[..], b"\0\0\0\x017\0\0\0\x011\0\0\0\x030/0\xff\xff\xff\xff"].concat();
        for message in [frame(b'T', b"\0\0"), frame(b'D', &identity), frame(b'C', b"X\0"), frame(b'Z', b"I")]
        {
            socket.write_all(&message).await.unwrap();
        }
        hear(&mut socket, true).await;
        socket.write_all(&frame(b'W', b"\0\0\0")).await.unwrap();
        let mut at = 0;
        while gone.try_recv().is_err() {
            socket.write_all(&log(at)).await.unwrap();
            at += 64;
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        // Now listen: all statuses are whole, and the last one is the newest.
        let mut last = 0;
        loop {
            match socket.read_u8().await.unwrap() {
                b'd' => {
                    assert_eq!(socket.read_u32().await.unwrap(), 38);
                    let mut body = [0; 34];
                    socket.read_exact(&mut body).await.unwrap();
                    assert_eq!(body[0], b'r');
                    let written = u64::from_be_bytes(body[1..9].try_into().unwrap());
                    assert!(written > last);
                    last = written;
                }
                b'c' => break,
                other => panic!("{other}"),
            }
        }
        assert_eq!(last, 1 << 40);
    });
    let connection = open(&home).await.unwrap();
    let Started::Streaming(stream) = connection.start_replication(None, Lsn(0), None).await.unwrap() else {
        panic!("nothing to stream");
    };
    let (mut reader, mut writer) = stream.split();
    let mut blocked = 0;
    let mut said = 0;
    let mut heard = 0u64;
    while blocked < 50 {
        said += 1;
        let status = Status { written: Lsn(said), ..Status::default() };
        tokio::select! {
            biased;
            sent = writer.status(status, false) => sent.unwrap(),
            () = tokio::time::sleep(Duration::from_millis(2)) => blocked += 1,
        }
        if blocked > 0 {
            let event = tokio::time::timeout(Duration::from_secs(5), reader.next()).await.unwrap().unwrap();
            assert!(matches!(event, Event::Wal { .. }));
            heard += 1;
        }
    }
    assert!(heard >= 50 && said > 150, "heard {heard}, said {said}");
    go.send(()).unwrap();
    let last = Status { written: Lsn(1 << 40), ..Status::default() };
    tokio::time::timeout(Duration::from_secs(5), writer.status(last, false)).await.unwrap().unwrap();
    writer.stop().await.unwrap();
    task.await.unwrap();
}
