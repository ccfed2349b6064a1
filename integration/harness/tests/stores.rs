//! The harness's stores and the proxy before them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use holdfast_harness::{
    Cable, Certificates, Fault, Major, Options, Rule, S3Local, Server, Store, Toxic, Weed,
};

fn get(store: &Store) -> std::io::Result<String> {
    let address = store.endpoint.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET /holdfast HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn a_store_in_this_process_wants_a_signature() {
    let local = S3Local::start().unwrap();
    let answer = get(local.store()).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(local.objects().is_dir());
}

#[test]
fn the_proxy_delays_answers_and_cuts() {
    let local = S3Local::start().unwrap();
    let mut toxic = Toxic::before(local.store()).unwrap();
    assert!(get(toxic.store()).unwrap().contains(" 403 "));
    toxic.set([Rule::new(Fault::Delay(Duration::from_millis(120)))]);
    let start = Instant::now();
    assert!(get(toxic.store()).unwrap().contains(" 403 "));
    assert!(start.elapsed() >= Duration::from_millis(120));
    toxic.set([Rule::new(Fault::Status(503)).times(1)]);
    assert!(get(toxic.store()).unwrap().contains("SlowDown"));
    assert!(get(toxic.store()).unwrap().contains(" 403 "));
    for fault in [Fault::Reset, Fault::LoseAnswer] {
        toxic.set([Rule::new(fault)]);
        assert_eq!(get(toxic.store()).unwrap_or_default(), "");
    }
    toxic.clear();
    toxic.down();
    assert!(get(toxic.store()).is_err());
    toxic.up().unwrap();
    assert!(get(toxic.store()).unwrap().contains(" 403 "));
    let passed = toxic.passed();
    assert_eq!((passed.requests, passed.puts, passed.up), (7, 0, 0));
    assert!(passed.down > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn seaweedfs_starts_dies_and_comes_back() {
    let mut weed = Weed::start().await.unwrap();
    assert!(get(weed.store()).unwrap().contains(" 403 "));
    weed.kill();
    assert!(get(weed.store()).is_err());
    weed.start_again().await.unwrap();
    assert!(get(weed.store()).unwrap().contains(" 403 "));
}

#[tokio::test]
async fn a_cable_to_postgres_hangs_and_is_cut() {
    let certificates = Certificates::new().unwrap();
    let issued = certificates.server().unwrap();
    let options = Options::new(Major::V17).tls(&issued.certificate, &issued.key);
    let server = Server::start(options).await.unwrap();
    assert_eq!(server.value("show ssl").await.unwrap(), "on");
    let mut cable = Cable::to(server.port()).unwrap();
    let dsn = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", cable.port());
    let client = server.client_of(&dsn).await.unwrap();
    client.simple_query("select 1").await.unwrap();
    cable.hang();
    let answer = tokio::time::timeout(Duration::from_millis(300), client.simple_query("select 1")).await;
    assert!(answer.is_err());
    cable.go();
    client.simple_query("select 1").await.unwrap();
    cable.cut();
    assert!(client.simple_query("select 1").await.is_err());
    assert!(server.client_of(&dsn).await.is_err());
    cable.mend().unwrap();
    server.client_of(&dsn).await.unwrap();
}
