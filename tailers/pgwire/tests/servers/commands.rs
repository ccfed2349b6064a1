use holdfast_harness::{Major, Server};
use holdfast_pgwire::{Error, Lifetime, Reserve, SqlState};

use crate::connect;

async fn commands(major: Major) {
    let server = Server::start(major).await.unwrap();
    let mut connection = connect(&server).await;
    assert_eq!(connection.server_major(), major.number());

    let identity = connection.identify_system().await.unwrap();
    assert_eq!(identity.system, server.system_identifier().await.unwrap());
    assert_eq!(identity.timeline, 1);
    assert!(identity.position <= server.lsn().await.unwrap().parse().unwrap());
    assert_eq!(identity.database, None);

    assert_eq!(connection.show("wal_segment_size").await.unwrap(), "16MB");
    let shown = connection.show("server_version_num").await.unwrap();
    assert_eq!(shown, connection.server_version().to_string());
    assert!(matches!(connection.show("a; drop").await, Err(Error::Config(_))));
    let error = connection.show("no_such_setting").await.unwrap_err();
    assert_eq!(error.code(), Some(SqlState::UNDEFINED_OBJECT));
    assert_eq!(connection.timeline_history(1).await.unwrap(), None);

    connection.create_slot("now", Reserve::Now, Lifetime::Permanent).await.unwrap();
    let error = connection.create_slot("now", Reserve::Now, Lifetime::Permanent).await.unwrap_err();
    assert_eq!(error.code(), Some(SqlState::DUPLICATE_OBJECT));
    assert!(!error.is_passing());
    if major < Major::V15 {
        let error = connection.read_slot("now").await.unwrap_err();
        assert!(matches!(error, Error::NotSupported { since: 15, .. }), "{error}");
    } else {
        connection.create_slot("later", Reserve::Later, Lifetime::Session).await.unwrap();
        let slot = connection.read_slot("now").await.unwrap().unwrap();
        assert_eq!((slot.kind.as_str(), slot.timeline), ("physical", Some(1)));
        assert!(slot.restart.unwrap() <= identity.position);
        assert_eq!(connection.read_slot("later").await.unwrap().unwrap().restart, None);
        assert_eq!(connection.read_slot("absent").await.unwrap(), None);
    }
    connection.drop_slot("now", true).await.unwrap();
    let error = connection.drop_slot("now", false).await.unwrap_err();
    assert_eq!(error.code(), Some(SqlState::UNDEFINED_OBJECT));
    // A refused command does not cost the connection.
    connection.identify_system().await.unwrap();
    connection.close().await;
}

#[tokio::test]
async fn every_major_answers_the_commands() {
    for major in Major::ALL {
        commands(major).await;
    }
}

#[tokio::test]
async fn a_command_dropped_half_way_is_noticed() {
    let server = Server::start(Major::V18).await.unwrap();
    let mut connection = connect(&server).await;
    server.pause();
    let limit = std::time::Duration::from_millis(50);
    assert!(tokio::time::timeout(limit, connection.identify_system()).await.is_err());
    server.resume();
    assert!(matches!(connection.identify_system().await, Err(Error::Abandoned)));
}
