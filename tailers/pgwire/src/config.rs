//! Where to connect, as whom, and how protected: libpq's connection strings, environment and files.
//!
//! What a connection string says wins over its service, that over the environment, that over defaults.
//! Passwords are looked up at each connect, so a changed file counts at once; they never show in `Debug`.

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf, time::Duration};

use zeroize::Zeroizing;

use crate::{Error, Result};

mod dsn;
mod keys;
mod passfile;
mod service;

use keys::{Values, wrong};
pub(crate) use passfile::check_readers;

/// A text that is wiped when dropped and shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The folder that holds the socket `.s.PGSQL.<port>`.
    Unix(PathBuf),
    Tcp {
        /// As certificates and `.pgpass` name it.
        name: String,
        /// Where to connect without asking for the name (`hostaddr`).
        ip: Option<IpAddr>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub address: Address,
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Unix(folder) => write!(f, "{}/.s.PGSQL.{}", folder.display(), self.port),
            Address::Tcp { name, ip: Some(ip) } if *name != ip.to_string() => {
                write!(f, "{name}:{} ({ip})", self.port)
            }
            Address::Tcp { name, .. } => write!(f, "{name}:{}", self.port),
        }
    }
}

/// What kind of server will do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    #[default]
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    /// A standby, else any.
    PreferStandby,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsMode {
    Disable,
    /// Only when the server refuses to do without.
    Allow,
    /// Where the server can; nothing is verified.
    #[default]
    Prefer,
    /// Always; the certificate is verified only when a root certificate is there.
    Require,
    /// The certificate must come from the given root.
    VerifyCa,
    /// And it must be made out to the host's name.
    VerifyFull,
}

/// Which certificates are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// Those of the operating system (`sslrootcert=system`).
    System,
    File(PathBuf),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    pub mode: TlsMode,
    /// Begin with TLS instead of asking first (17 and newer).
    pub direct: bool,
    pub roots: Option<Roots>,
    /// Our own certificate and its key, PEM.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    Disable,
    #[default]
    Prefer,
    Require,
}

/// Ways of signing in that are acceptable (`require_auth`): a server in the middle cannot talk us into a
/// weaker one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Methods {
    /// Being let in without any proof (trust, or by certificate alone).
    pub none: bool,
    /// The readable password.
    pub cleartext: bool,
    pub md5: bool,
    pub scram: bool,
}

impl Methods {
    pub const ALL: Self = Self { none: true, cleartext: true, md5: true, scram: true };
    const NOTHING: Self = Self { none: false, cleartext: false, md5: false, scram: false };

    /// Names to allow, or, each with «!», names to exclude.
    fn parse(text: &str) -> Result<Self> {
        let names: Vec<_> = text.split(',').map(str::trim).collect();
        let excluding = names.iter().all(|name| name.starts_with('!'));
        let mut methods = if excluding { Self::ALL } else { Self::NOTHING };
        for name in names {
            let bare = if excluding { name.get(1..).unwrap_or("") } else { name };
            let field = match bare {
                "none" => &mut methods.none,
                "password" => &mut methods.cleartext,
                "md5" => &mut methods.md5,
                "scram-sha-256" => &mut methods.scram,
                // Known to libpq, impossible here in any case.
                "gss" | "sspi" | "oauth" => continue,
                _ => {
                    return Err(wrong(
                        "require_auth",
                        text,
                        "names out of none, password, md5, scram-sha-256, either all or none of them with «!» in front",
                    ));
                }
            };
            *field = !excluding;
        }
        Ok(methods)
    }
}

/// TCP's own signs of life; `None` leaves the operating system's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalives {
    pub on: bool,
    pub idle: Option<Duration>,
    pub interval: Option<Duration>,
    pub count: Option<u32>,
    /// How long sent bytes may stay unconfirmed.
    pub user_timeout: Option<Duration>,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The system's own defaults find a dead peer after two hours only, and a base backup reads without a deadline.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 3;
const USER_TIMEOUT: Duration = Duration::from_secs(90);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Tried in this order; never empty.
    pub hosts: Vec<Host>,
    pub user: String,
    pub password: Option<Secret>,
    /// A password file, and whether the user named it.
    pub passfile: Option<(PathBuf, bool)>,
    /// For SQL beside the replication connection, which itself has no database.
    pub database: Option<String>,
    /// What `synchronous_standby_names` matches.
    pub application_name: Option<String>,
    /// Settings for the session, as in `-c wal_sender_timeout=30s`.
    pub options: Option<String>,
    pub target: Target,
    pub tls: Tls,
    pub channel_binding: Binding,
    pub methods: Methods,
    /// For one host, from its first packet until it let us in. Unlike in libpq there is a limit (30 s) when
    /// none is given; 0 in the connection string stands for none.
    pub connect_timeout: Option<Duration>,
    pub keepalives: Keepalives,
    /// Send a password readably over TCP without TLS when a server asks for that
    /// (`cleartext_password=allow`).
    pub allow_cleartext: bool,
}

/// The process's surroundings that libpq's rules look at.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    pub variables: BTreeMap<String, String>,
    pub home: Option<PathBuf>,
    /// The name of the process's user.
    pub user: Option<String>,
}

impl Surroundings {
    pub fn of_process() -> Self {
        let variables: BTreeMap<_, _> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let account = account();
        let home = variables.get("HOME").map(PathBuf::from);
        Self {
            home: home.or_else(|| account.as_ref().map(|(_, home)| home.clone())),
            user: account.map(|(name, _)| name).or_else(|| variables.get("USER").cloned()),
            variables,
        }
    }
    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).filter(|value| !value.is_empty()).cloned()
    }
    fn in_home(&self, file: &str) -> Option<PathBuf> {
        self.home.as_ref().map(|home| home.join(".postgresql").join(file))
    }
}

/// Name and home folder of the effective user, from /etc/passwd.
fn account() -> Option<(String, PathBuf)> {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    text.lines().find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        match fields.as_slice() {
            [name, _, id, _, _, home, ..] if *id == uid => Some(((*name).to_owned(), PathBuf::from(home))),
            _ => None,
        }
    })
}

impl Config {
    /// Reads a connection string (`key=value …` or `postgres://…`, may be empty) with this process's
    /// environment and home folder.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_in(text, &Surroundings::of_process())
    }

    pub fn parse_in(text: &str, surroundings: &Surroundings) -> Result<Self> {
        let mut values = Values::default();
        values.add(dsn::parse(text)?, true, "the connection string")?;
        let service = values.take("service").or_else(|| surroundings.variable("PGSERVICE"));
        if let Some(name) = service {
            values.add(service::load(&name, surroundings)?, false, &format!("the service {name}"))?;
        }
        values.add_environment(|name| surroundings.variable(name));

        let hosts = hosts(&mut values)?;
        let user = values
            .take("user")
            .or_else(|| surroundings.user.clone())
            .ok_or_else(|| Error::Config("nobody says as whom to connect: add user=…".into()))?;
        let passfile = match values.take("passfile") {
            Some(path) => Some((PathBuf::from(path), true)),
            None => surroundings.home.as_ref().map(|home| (home.join(".pgpass"), false)),
        };
        let fallback = values.take("fallback_application_name");
        Ok(Self {
            hosts,
            user,
            password: values.take("password").map(Secret::new),
            passfile,
            database: values.take("dbname"),
            application_name: values.take("application_name").or(fallback),
            options: values.take("options"),
            target: values
                .word(
                    "target_session_attrs",
                    &[
                        ("any", Target::Any),
                        ("read-write", Target::ReadWrite),
                        ("read-only", Target::ReadOnly),
                        ("primary", Target::Primary),
                        ("standby", Target::Standby),
                        ("prefer-standby", Target::PreferStandby),
                    ],
                )?
                .unwrap_or_default(),
            tls: tls(&mut values, surroundings)?,
            channel_binding: values
                .word(
                    "channel_binding",
                    &[
                        ("disable", Binding::Disable),
                        ("prefer", Binding::Prefer),
                        ("require", Binding::Require),
                    ],
                )?
                .unwrap_or_default(),
            methods: match values.take("require_auth") {
                Some(text) => Methods::parse(&text)?,
                None => Methods::ALL,
            },
            connect_timeout: match values.number("connect_timeout")? {
                None => Some(CONNECT_TIMEOUT),
                Some(0) => None,
                Some(seconds) => Some(Duration::from_secs(seconds.into())),
            },
            keepalives: Keepalives {
                on: values.number("keepalives")?.unwrap_or(1) != 0,
                idle: seconds(&mut values, "keepalives_idle")?.or(Some(KEEPALIVE_IDLE)),
                interval: seconds(&mut values, "keepalives_interval")?.or(Some(KEEPALIVE_INTERVAL)),
                count: values.number("keepalives_count")?.filter(|n| *n > 0).or(Some(KEEPALIVE_COUNT)),
                user_timeout: match values.number("tcp_user_timeout")? {
                    None => Some(USER_TIMEOUT),
                    Some(ms) => Some(Duration::from_millis(ms.into())).filter(|limit| !limit.is_zero()),
                },
            },
            allow_cleartext: values
                .word("cleartext_password", &[("refuse", false), ("allow", true)])?
                .unwrap_or(false),
        })
    }

    /// The password for `host`: the given one, else the first line of the password file that fits. Physical
    /// replication connections (`database` is `None`) look for the database `replication`, then for the
    /// configured one.
    pub fn password_for(&self, host: &Host, database: Option<&str>) -> Result<Option<Secret>> {
        if let Some(password) = &self.password {
            return Ok(Some(password.clone()));
        }
        let Some((path, named)) = &self.passfile else { return Ok(None) };
        let own = self.database.as_deref().unwrap_or(&self.user);
        let databases = database.map_or_else(|| vec!["replication", own], |database| vec![database]);
        passfile::look_up(path, *named, host, &databases, &self.user)
    }
}

fn seconds(values: &mut Values, key: &'static str) -> Result<Option<Duration>> {
    Ok(values.number(key)?.filter(|n| *n > 0).map(|n| Duration::from_secs(n.into())))
}

fn hosts(values: &mut Values) -> Result<Vec<Host>> {
    let list = |text: Option<String>| -> Vec<String> {
        text.map(|t| t.split(',').map(|part| part.trim().to_owned()).collect()).unwrap_or_default()
    };
    let names = list(values.take("host"));
    let ips = list(values.take("hostaddr"));
    let ports = list(values.take("port"));
    let count = names.len().max(ips.len()).max(1);
    if !names.is_empty() && !ips.is_empty() && names.len() != ips.len() {
        return Err(Error::Config(format!(
            "host names {} and hostaddr {} of them: give as many",
            names.len(),
            ips.len()
        )));
    }
    if ports.len() > 1 && ports.len() != count {
        return Err(Error::Config(format!(
            "{} ports for {count} hosts: give one for all or one for each",
            ports.len()
        )));
    }
    (0..count)
        .map(|at| {
            let name = names.get(at).map_or("", String::as_str);
            let ip = ips.get(at).map_or("", String::as_str);
            let port = ports.get(at).or(ports.first()).map_or("", String::as_str);
            let port = match port {
                "" => 5432,
                text => match text.parse() {
                    Ok(0) | Err(_) => return Err(wrong("port", text, "a number from 1 to 65535")),
                    Ok(port) => port,
                },
            };
            let address = match (name, ip) {
                (_, ip) if !ip.is_empty() => {
                    let parsed = ip.parse().map_err(|_| wrong("hostaddr", ip, "an IP address"))?;
                    let name = if name.is_empty() { ip } else { name };
                    Address::Tcp { name: name.to_owned(), ip: Some(parsed) }
                }
                ("", _) => default_address(),
                (folder, _) if folder.starts_with('/') => Address::Unix(folder.into()),
                (name, _) if name.starts_with('@') => {
                    return Err(wrong("host", name, "a folder: abstract sockets are not supported"));
                }
                (name, _) => Address::Tcp { name: name.to_owned(), ip: None },
            };
            Ok(Host { address, port })
        })
        .collect()
}

/// The socket folder of distributions, else of Postgres itself.
fn default_address() -> Address {
    let packaged = PathBuf::from("/var/run/postgresql");
    Address::Unix(if packaged.is_dir() { packaged } else { "/tmp".into() })
}

fn tls(values: &mut Values, surroundings: &Surroundings) -> Result<Tls> {
    let mode = values.word(
        "sslmode",
        &[
            ("disable", TlsMode::Disable),
            ("allow", TlsMode::Allow),
            ("prefer", TlsMode::Prefer),
            ("require", TlsMode::Require),
            ("verify-ca", TlsMode::VerifyCa),
            ("verify-full", TlsMode::VerifyFull),
        ],
    )?;
    let direct = values.word("sslnegotiation", &[("postgres", false), ("direct", true)])?.unwrap_or(false);
    let roots = match values.take("sslrootcert") {
        Some(word) if word == "system" => Some(Roots::System),
        Some(path) => Some(Roots::File(path.into())),
        None => surroundings.in_home("root.crt").filter(|path| path.exists()).map(Roots::File),
    };
    // Anybody can get a certificate from a public authority, so its name must be checked.
    let mode = match (&roots, mode) {
        (Some(Roots::System), None) => TlsMode::VerifyFull,
        (Some(Roots::System), Some(mode)) if mode != TlsMode::VerifyFull => {
            return Err(Error::Config("sslrootcert=system needs sslmode=verify-full".into()));
        }
        (_, mode) => mode.unwrap_or_default(),
    };
    if mode >= TlsMode::VerifyCa && roots.is_none() {
        return Err(Error::Config(
            "sslmode=verify-ca and verify-full need sslrootcert=FILE (the authority's certificate) or sslrootcert=system".into(),
        ));
    }
    if direct && mode < TlsMode::Require {
        return Err(Error::Config("sslnegotiation=direct needs sslmode=require or stricter".into()));
    }
    let (certificate, key) = (values.take("sslcert"), values.take("sslkey"));
    let certificate = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
        (None, None) => surroundings
            .in_home("postgresql.crt")
            .zip(surroundings.in_home("postgresql.key"))
            .filter(|(certificate, key)| certificate.exists() && key.exists()),
        _ => return Err(Error::Config("sslcert and sslkey must be given together".into())),
    };
    Ok(Tls { mode, direct, roots, certificate })
}

#[cfg(test)]
mod tests;
