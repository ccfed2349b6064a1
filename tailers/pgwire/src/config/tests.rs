use super::*;

fn at_home() -> Surroundings {
    Surroundings { variables: BTreeMap::new(), home: None, user: Some("me".into()) }
}
fn parsed(text: &str) -> Config {
    Config::parse_in(text, &at_home()).unwrap()
}
fn refused(text: &str) -> String {
    Config::parse_in(text, &at_home()).unwrap_err().to_string()
}

#[test]
fn several_hosts_share_a_port_or_have_their_own() {
    let config = parsed("host=a,/run/pg,c port=1,2,3 target_session_attrs=primary");
    let shown: Vec<_> = config.hosts.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["a:1", "/run/pg/.s.PGSQL.2", "c:3"]);
    assert_eq!(config.target, Target::Primary);
    assert_eq!(parsed("host=a,b port=7").hosts[1].port, 7);
    assert_eq!(parsed("postgres://a,b:6").hosts[0].port, 5432);
    assert!(refused("host=a,b port=1,2,3").contains("3 ports for 2 hosts"));
    assert!(refused("host=a port=0").contains("port=0"));
    let config = parsed("host=db.example hostaddr=10.0.0.7");
    assert_eq!(config.hosts[0].to_string(), "db.example:5432 (10.0.0.7)");
}

#[test]
fn an_unknown_setting_names_its_neighbour() {
    assert!(refused("hots=a").contains("did you mean «host»"), "{}", refused("hots=a"));
    assert!(refused("aplication_name=a").contains("«application_name»"));
    assert!(!refused("zzzzzzzzzz=a").contains("did you mean"));
    assert!(refused("gssencmode=require").contains("not supported"));
    assert!(refused("replication=database").contains("not supported"));
    parsed("gssencmode=disable replication=true");
    assert!(refused("sslmode=verify").contains("verify-full"));
}

#[test]
fn the_string_wins_over_the_service_over_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("services");
    std::fs::write(&file, "[s]\nhost=from-service\nport=2\n").unwrap();
    let mut surroundings = at_home();
    for (name, value) in [
        ("PGSERVICEFILE", file.to_str().unwrap()),
        ("PGHOST", "from-env"),
        ("PGPORT", "3"),
        ("PGUSER", "env-user"),
        ("PGPASSWORD", "env-secret"),
    ] {
        surroundings.variables.insert(name.into(), value.into());
    }
    let config = Config::parse_in("service=s port=1", &surroundings).unwrap();
    assert_eq!(config.hosts[0].to_string(), "from-service:1");
    assert_eq!(config.user, "env-user");
    assert!(!format!("{config:?}").contains("env-secret"));
    assert_eq!(config.password.unwrap().reveal(), "env-secret");
    let missing = Config::parse_in("service=t", &surroundings).unwrap_err().to_string();
    assert!(missing.contains("no [t] in it"), "{missing}");
}

#[test]
fn tls_settings_must_make_sense_together() {
    assert_eq!(parsed("").tls.mode, TlsMode::Prefer);
    assert_eq!(parsed("sslrootcert=system").tls.mode, TlsMode::VerifyFull);
    assert!(refused("sslrootcert=system sslmode=require").contains("verify-full"));
    assert!(refused("sslmode=verify-full").contains("sslrootcert"));
    assert!(refused("sslnegotiation=direct").contains("sslmode=require"));
    assert!(refused("sslcert=a").contains("together"));
}

#[test]
fn a_password_file_with_open_doors_is_an_error_not_a_missing_password() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pass");
    std::fs::write(&file, "*:*:*:me:hunter\n").unwrap();
    let config = parsed(&format!("host=a passfile={}", file.display()));
    let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    let found = || config.password_for(&config.hosts[0], None);
    mode(0o600);
    assert_eq!(found().unwrap().unwrap().reveal(), "hunter");
    mode(0o644);
    let error = found().unwrap_err().to_string();
    assert!(error.contains("0644") && !error.contains("hunter"), "{error}");
    std::fs::remove_file(&file).unwrap();
    assert!(found().is_err());
}

#[test]
fn ways_of_signing_in_are_allowed_or_excluded() {
    let only = parsed("require_auth=scram-sha-256,md5").methods;
    assert_eq!(only, Methods { none: false, cleartext: false, md5: true, scram: true });
    let without = parsed("require_auth=!password,!none").methods;
    assert_eq!(without, Methods { none: false, cleartext: false, md5: true, scram: true });
    assert_eq!(parsed("").methods, Methods::ALL);
    assert!(refused("require_auth=!md5,none").contains("scram-sha-256"));
    assert!(refused("require_auth=scram").contains("scram-sha-256"));
}

/// Or a base backup would read from a dead host for two hours.
#[test]
fn a_dead_peer_is_noticed_without_a_setting() {
    let seconds = |n| Some(Duration::from_secs(n));
    let default = parsed("").keepalives;
    assert_eq!((default.idle, default.interval, default.count), (seconds(60), seconds(10), Some(3)));
    assert_eq!(default.user_timeout, seconds(90));
    let own = parsed("keepalives_idle=5 tcp_user_timeout=0").keepalives;
    assert_eq!((own.idle, own.user_timeout), (seconds(5), None));
}
