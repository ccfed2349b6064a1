use std::time::Duration;

use holdfast_harness::{Major, Server};
use holdfast_pgwire::Error;
use tokio::net::TcpListener;

use crate::open;

/// A port of 127.0.0.1 that refuses connections.
fn dead_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn a_dead_host_and_a_silent_one_are_passed_over() {
    let server = Server::start(Major::V18).await.unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ports = format!("{},{},{}", dead_port(), silent.local_addr().unwrap().port(), server.port());
    let began = tokio::time::Instant::now();
    let dsn = format!("host=127.0.0.1,127.0.0.1,localhost port={ports} user=postgres connect_timeout=1");
    let mut connection = open(&dsn).await.unwrap();
    assert_eq!(connection.host().port, server.port());
    assert!(began.elapsed() >= Duration::from_secs(1));
    connection.identify_system().await.unwrap();

    let dsn = format!("host=127.0.0.1,127.0.0.1 port={},{} user=postgres", dead_port(), dead_port());
    let error = open(&dsn).await.err().unwrap();
    assert!(matches!(&error, Error::NoHost(list) if list.len() == 2) && error.is_passing(), "{error}");
    let error = open("host=no-such-host.invalid user=postgres").await.err().unwrap();
    assert!(error.to_string().contains("no-such-host.invalid") && error.is_passing(), "{error}");
}

async fn roles(major: Major) {
    let primary = Server::start(major).await.unwrap();
    let standby = Server::standby_of(&primary, "standby").await.unwrap();
    let both = |first: &Server, second: &Server, wanted: &str| {
        format!(
            "host={},{} port={},{} user=postgres target_session_attrs={wanted}",
            first.socket_folder().display(),
            second.socket_folder().display(),
            first.port(),
            second.port()
        )
    };
    for (first, second) in [(&primary, &standby), (&standby, &primary)] {
        for (wanted, expected) in [
            ("any", first),
            ("read-write", &primary),
            ("primary", &primary),
            ("read-only", &standby),
            ("standby", &standby),
            ("prefer-standby", &standby),
        ] {
            let connection = open(&both(first, second, wanted)).await.unwrap();
            assert_eq!(connection.host().port, expected.port(), "{major:?} {wanted}");
        }
    }
    let alone = |wanted| format!("{} target_session_attrs={wanted}", primary.dsn());
    open(&alone("prefer-standby")).await.unwrap();
    let error = open(&alone("standby")).await.err().unwrap();
    assert!(matches!(error, Error::WrongTarget { wanted: "standby", .. }), "{error}");
    if major >= Major::V14 {
        primary.sql("alter system set default_transaction_read_only = on").await.unwrap();
        primary.sql("select pg_reload_conf()").await.unwrap();
        primary
            .wait_for("select current_setting('default_transaction_read_only') = 'on'", crate::PATIENCE)
            .await
            .unwrap();
        open(&alone("read-only")).await.unwrap();
        open(&alone("primary")).await.unwrap();
        assert!(open(&alone("read-write")).await.is_err());
    }
}

#[tokio::test]
async fn roles_are_told_apart_on_old_and_new_servers() {
    for major in Major::ENDS {
        roles(major).await;
    }
}
