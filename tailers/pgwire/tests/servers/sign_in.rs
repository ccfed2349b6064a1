use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use holdfast_harness::{Certificates, Major, Options, Server};
use holdfast_pgwire::{Error, SqlState};
use tempfile::TempDir;

use crate::open;

const ACCESS: &str = "\
local    all          all            trust
host     all          postgres       127.0.0.1/32 trust
host     replication  scram          127.0.0.1/32 scram-sha-256
host     replication  digest         127.0.0.1/32 md5
host     replication  readable       127.0.0.1/32 password
hostssl  replication  certified      127.0.0.1/32 cert
hostssl  replication  protected      127.0.0.1/32 trust
hostnossl replication unprotected    127.0.0.1/32 trust
";

/// A server that knows the users above, all with the password «right».
struct Case {
    server: Server,
    folder: TempDir,
    made: Certificates,
}

impl Case {
    async fn start(major: Major) -> Self {
        let made = Certificates::new().unwrap();
        let shown = made.server().unwrap();
        let options = Options::new(major).access(ACCESS).tls(&shown.certificate, &shown.key);
        let mut server = Server::start(options.set("password_encryption", "scram-sha-256")).await.unwrap();
        server.write("root.crt", &made.authority()).unwrap();
        server.sql("alter system set ssl_ca_file = 'root.crt'").await.unwrap();
        server.stop(holdfast_harness::Stop::Fast).await.unwrap();
        server.start_again().await.unwrap();
        for user in ["scram", "readable", "certified", "protected", "unprotected"] {
            server.sql(&format!("create role {user} login replication password 'right'")).await.unwrap();
        }
        server
            .sql("set password_encryption = md5; create role digest login replication password 'right'")
            .await
            .unwrap();
        Self { server, folder: tempfile::tempdir().unwrap(), made }
    }
    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
    fn dsn(&self, user: &str, rest: &str) -> String {
        format!("host=localhost hostaddr=127.0.0.1 port={} user={user} {rest}", self.server.port())
    }
    async fn lets_in(&self, user: &str, rest: &str) {
        let mut connection =
            open(&self.dsn(user, rest)).await.unwrap_or_else(|e| panic!("{user} {rest}: {e}"));
        connection.identify_system().await.unwrap();
    }
    async fn refuses(&self, user: &str, rest: &str) -> Error {
        let error = open(&self.dsn(user, rest)).await.err();
        let error = error.unwrap_or_else(|| panic!("{user} {rest} was let in"));
        assert!(!error.is_passing(), "{error}");
        assert!(!format!("{error:?} {error}").contains("right"), "{error}");
        error
    }
    /// How a user's connection shows at the server: TLS or not.
    async fn is_protected(&self, user: &str, rest: &str) -> bool {
        let _held = open(&self.dsn(user, rest)).await.unwrap();
        let query =
            format!("select ssl from pg_stat_ssl join pg_stat_activity using (pid) where usename = '{user}'");
        self.server.value(&query).await.unwrap() == "t"
    }
}

#[tokio::test]
async fn passwords_of_every_kind() {
    for major in Major::ENDS {
        let case = Case::start(major).await;
        for mode in ["sslmode=disable", "sslmode=require"] {
            for user in ["scram", "digest"] {
                case.lets_in(user, &format!("{mode} password=right")).await;
                let error = case.refuses(user, &format!("{mode} password=wrong")).await;
                assert_eq!(error.code(), Some(SqlState::INVALID_PASSWORD));
            }
        }
        let error = case.refuses("scram", "sslmode=disable").await.to_string();
        assert!(error.contains("asks for a password of «scram»"), "{error}");

        case.lets_in("readable", "sslmode=require password=right").await;
        let error = case.refuses("readable", "sslmode=disable password=right").await.to_string();
        assert!(error.contains("cleartext_password=allow"), "{error}");
        case.lets_in("readable", "sslmode=disable password=right cleartext_password=allow").await;

        // From a file, in which only the second line fits.
        let lines =
            format!("localhost:1:*:scram:no\nlocalhost:{}:replication:scram:right\n", case.server.port());
        let file = case.file("pass", &lines);
        case.lets_in("scram", &format!("passfile={}", file.display())).await;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let error = case.refuses("scram", &format!("passfile={}", file.display())).await.to_string();
        assert!(error.contains("chmod 0600"), "{error}");
    }
}

#[tokio::test]
async fn scram_is_bound_to_the_certificate() {
    for major in Major::ENDS {
        let case = Case::start(major).await;
        case.lets_in("scram", "sslmode=require channel_binding=require password=right").await;
        case.lets_in("scram", "sslmode=require channel_binding=disable password=right").await;
        case.refuses("scram", "sslmode=require channel_binding=require password=wrong").await;
        for (user, rest) in
            [("scram", "sslmode=disable"), ("digest", "sslmode=require"), ("protected", "sslmode=require")]
        {
            let error = case.refuses(user, &format!("{rest} channel_binding=require password=right")).await;
            assert!(
                matches!(&error, Error::Auth { .. }) && error.to_string().contains("channel_binding"),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn a_weaker_way_than_required_is_refused() {
    let case = Case::start(Major::V18).await;
    case.lets_in("scram", "require_auth=scram-sha-256 password=right").await;
    case.lets_in("digest", "require_auth=!password,!none password=right").await;
    for user in ["digest", "readable", "protected"] {
        let error = case.refuses(user, "require_auth=scram-sha-256 sslmode=require password=right").await;
        assert!(
            matches!(&error, Error::Auth { .. }) && error.to_string().contains("require_auth"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn each_sslmode_trusts_what_libpq_trusts() {
    let case = Case::start(Major::V18).await;
    let right = case.file("right.crt", &case.made.authority());
    let wrong = case.file("wrong.crt", &Certificates::new().unwrap().authority());
    let with = |mode: &str, root: &PathBuf| format!("sslmode={mode} sslrootcert={}", root.display());

    for mode in ["require", "verify-ca", "verify-full"] {
        case.lets_in("protected", &with(mode, &right)).await;
        let error = case.refuses("protected", &with(mode, &wrong)).await;
        assert!(matches!(&error, Error::Tls { .. }) && error.to_string().contains("sslrootcert"), "{error}");
    }
    case.lets_in("protected", "sslmode=require").await;

    // Under another name: the authority alone does not mind.
    let by_name = |name: &str, rest: &str| {
        format!("host={name} hostaddr=127.0.0.1 port={} user=protected {rest}", case.server.port())
    };
    open(&by_name("other.example", &with("verify-ca", &right))).await.unwrap();
    let error = open(&by_name("other.example", &with("verify-full", &right))).await.err().unwrap();
    assert!(error.to_string().contains("another name"), "{error}");
    open(&by_name("127.0.0.1", &with("verify-full", &right))).await.unwrap();

    // What the server refuses one way is tried the other way, where that is allowed.
    assert!(case.is_protected("protected", "sslmode=prefer").await);
    assert!(case.is_protected("protected", "sslmode=allow").await);
    assert!(!case.is_protected("unprotected", "sslmode=prefer").await);
    let error = case.refuses("unprotected", "sslmode=require").await;
    assert_eq!(error.code(), Some(SqlState::INVALID_AUTHORIZATION));
    case.refuses("protected", "sslmode=disable").await;

    // Our own certificate.
    let ours = case.made.client("certified").unwrap();
    let (certificate, key) = (case.file("c.crt", &ours.certificate), case.file("c.key", &ours.key));
    let own = format!("sslcert={} sslkey={}", certificate.display(), key.display());
    case.lets_in("certified", &format!("{} {own}", with("verify-full", &right))).await;
    case.refuses("certified", &with("verify-full", &right)).await;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let error = case.refuses("certified", &format!("{} {own}", with("verify-full", &right))).await;
    assert!(error.to_string().contains("chmod 0600"), "{error}");
}

#[tokio::test]
async fn a_self_made_certificate_can_be_its_own_root() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    // As `openssl req -x509` makes them: it calls itself an authority.
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    let options = Options::new(Major::V18).tls(&certificate.pem(), &key.serialize_pem());
    let server = Server::start(options).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.crt");
    fs::write(&root, certificate.pem()).unwrap();
    let dsn = |host: &str, mode: &str| {
        format!(
            "host={host} hostaddr=127.0.0.1 port={} user=postgres sslmode={mode} sslrootcert={}",
            server.port(),
            root.display()
        )
    };
    open(&dsn("localhost", "verify-full")).await.unwrap();
    open(&dsn("other.example", "verify-ca")).await.unwrap();
    assert!(matches!(open(&dsn("other.example", "verify-full")).await, Err(Error::Tls { .. })));
}

#[tokio::test]
async fn direct_tls_works_from_17_on() {
    for (major, works) in [(Major::V16, false), (Major::V17, true), (Major::V18, true)] {
        let case = Case::start(major).await;
        let rest = "sslmode=require sslnegotiation=direct password=right channel_binding=require";
        if works {
            case.lets_in("scram", rest).await;
        } else {
            let error = case.refuses("scram", rest).await;
            assert!(matches!(&error, Error::Tls { .. }), "{error}");
        }
    }
}

#[tokio::test]
async fn a_server_without_tls_is_refused_or_used_as_asked() {
    let server = Server::start(Major::V18).await.unwrap();
    open(&format!("{} sslmode=prefer", server.tcp_dsn())).await.unwrap();
    let error = open(&format!("{} sslmode=require", server.tcp_dsn())).await.err().unwrap();
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
    // A socket needs none, whatever is asked for.
    open(&format!("{} sslmode=require", server.dsn())).await.unwrap();
}

#[tokio::test]
async fn name_and_options_reach_the_server() {
    let server = Server::start(Major::V13).await.unwrap();
    let dsn = format!("{} application_name='hold fast' options='-c wal_sender_timeout=7s'", server.dsn());
    let mut connection = open(&dsn).await.unwrap();
    assert_eq!(connection.show("wal_sender_timeout").await.unwrap(), "7s");
    let shown =
        server.value("select count(*) from pg_stat_activity where application_name = 'hold fast'").await;
    assert_eq!(shown.unwrap(), "1");
}
