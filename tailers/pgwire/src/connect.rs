//! Finding a server that will do: hosts in order, addresses of a name, TLS or not, role.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::BytesMut;
use holdfast_core::{Clock, task};
use postgres_protocol::message::frontend;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream, lookup_host},
};
use tokio_rustls::TlsConnector;

use crate::{
    Config, Connection, Error, Host, Result,
    auth::{self, Channel},
    config::{Address, Keepalives, Target, TlsMode},
    socket::{self, Socket},
    tls,
};

impl Connection {
    /// Connects to the first host that answers, lets us in and has the role asked for. A refused sign-in
    /// ends the search: asking the others with the same wrong password helps nobody.
    pub async fn open(config: &Config, clock: &Clock) -> Result<Self> {
        let passes: &[Target] = match config.target {
            Target::PreferStandby => &[Target::Standby, Target::Any],
            ref one => std::slice::from_ref(one),
        };
        let mut failures = Vec::new();
        for wanted in passes {
            failures.clear();
            for host in &config.hosts {
                match Box::pin(reach(config, clock, host, *wanted)).await {
                    Ok(connection) => return Ok(connection),
                    Err(error) if is_refusal(&error) => return Err(error),
                    Err(error) => failures.push(error),
                }
            }
        }
        match (failures.pop(), failures.is_empty()) {
            (Some(only), true) => Err(only),
            (Some(last), false) => {
                failures.push(last);
                Err(Error::NoHost(failures))
            }
            (None, _) => Err(Error::Config("no host is given".into())),
        }
    }
}

fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Auth { .. } | Error::Config(_) => true,
        Error::Server(error) => error.code.as_str().starts_with("28"),
        _ => false,
    }
}

async fn reach(config: &Config, clock: &Clock, host: &Host, wanted: Target) -> Result<Connection> {
    let work = async {
        let mut connection = attempts(config, clock, host).await?;
        match suits(&mut connection, wanted).await? {
            true => Ok(connection),
            false => Err(Error::WrongTarget { host: host.to_string(), wanted: name(wanted) }),
        }
    };
    match config.connect_timeout {
        None => work.await,
        Some(limit) => clock.timeout(limit, work).await.unwrap_or_else(|| {
            Err(Error::ConnectTimeout { host: host.to_string(), seconds: limit.as_secs() })
        }),
    }
}

/// One try to connect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Try {
    Plain,
    /// TLS when the server can, else on without.
    Offered,
    Tls,
}

async fn attempts(config: &Config, clock: &Clock, host: &Host) -> Result<Connection> {
    let (first, second) = match (&host.address, config.tls.mode) {
        (Address::Unix(_), _) | (_, TlsMode::Disable) => (Try::Plain, None),
        (_, TlsMode::Allow) => (Try::Plain, Some(Try::Tls)),
        (_, TlsMode::Prefer) => (Try::Offered, Some(Try::Plain)),
        _ => (Try::Tls, None),
    };
    let error = match once(config, clock, host, first).await {
        Ok(connection) => return Ok(connection),
        Err(error) => error,
    };
    // The other way may do where this one was refused by pg_hba.conf or where TLS itself failed.
    let other_way =
        matches!(&error, Error::Tls { .. }) || error.code().is_some_and(|c| c.as_str() == "28000");
    match second.filter(|_| other_way) {
        None => Err(error),
        Some(second) => once(config, clock, host, second).await.map_err(|other| match other {
            // The first refusal is the one to read unless the second tells more.
            Error::Tls { .. } => error,
            other => other,
        }),
    }
}

async fn once(config: &Config, clock: &Clock, host: &Host, how: Try) -> Result<Connection> {
    let plain = dial(config, host).await?;
    let (socket, channel) = match how {
        Try::Plain => (plain, Channel { tls: false, end_point: None }),
        Try::Offered | Try::Tls => protect(config, host, plain, how).await?,
    };
    let (mut incoming, mut outgoing) = socket::split(socket);
    auth::sign_in(&mut incoming, &mut outgoing, config, host, &channel).await?;
    Ok(Connection {
        incoming,
        outgoing,
        host: host.clone(),
        clock: clock.clone(),
        busy: false,
        identified: false,
    })
}

async fn dial(config: &Config, host: &Host) -> Result<Socket> {
    let failed = |source| Error::Connect { host: host.to_string(), source };
    match &host.address {
        Address::Unix(folder) => {
            let path = folder.join(format!(".s.PGSQL.{}", host.port));
            UnixStream::connect(path).await.map(Socket::Unix).map_err(failed)
        }
        Address::Tcp { ip: Some(ip), .. } => {
            tcp(&config.keepalives, SocketAddr::new(*ip, host.port)).await.map_err(failed)
        }
        Address::Tcp { name, ip: None } => {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            for address in lookup_host((name.as_str(), host.port)).await.map_err(failed)? {
                match tcp(&config.keepalives, address).await {
                    Ok(socket) => return Ok(socket),
                    Err(error) => last = error,
                }
            }
            Err(failed(last))
        }
    }
}

async fn tcp(keepalives: &Keepalives, address: SocketAddr) -> io::Result<Socket> {
    use rustix::net::sockopt;
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&socket, keepalives.on)?;
    if keepalives.on {
        if let Some(idle) = keepalives.idle {
            sockopt::set_tcp_keepidle(&socket, idle)?;
        }
        if let Some(interval) = keepalives.interval {
            sockopt::set_tcp_keepintvl(&socket, interval)?;
        }
        if let Some(count) = keepalives.count {
            sockopt::set_tcp_keepcnt(&socket, count)?;
        }
    }
    if let Some(limit) = keepalives.user_timeout {
        sockopt::set_tcp_user_timeout(&socket, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?;
    }
    Ok(Socket::Tcp(socket))
}

/// Puts TLS over a fresh socket, after asking for it unless it begins with it.
async fn protect(config: &Config, host: &Host, mut plain: Socket, how: Try) -> Result<(Socket, Channel)> {
    let failed = |what: String| Error::Tls { host: host.to_string(), what };
    if !config.tls.direct {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        plain.write_all(&request).await.map_err(Error::Io)?;
        // Exactly one byte is read: whatever follows belongs to TLS, so nobody can slip plain bytes in.
        match plain.read_u8().await {
            Ok(b'S') => {}
            Ok(b'N') if how == Try::Offered => return Ok((plain, Channel { tls: false, end_point: None })),
            Ok(b'N') => return Err(failed("the server does not speak TLS (ssl = off there)".into())),
            // An error message that nobody has vouched for: not shown.
            Ok(_) => return Err(failed("the server cannot answer a request for TLS".into())),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(Error::Closed),
            Err(error) => return Err(Error::Io(error)),
        }
    }
    let Address::Tcp { name, .. } = &host.address else {
        return Err(Error::protocol("TLS over a unix socket"));
    };
    let server = ServerName::try_from(name.clone())
        .map_err(|_| failed(format!("«{name}» cannot be the name in a certificate")))?;
    let wanted = config.tls.clone();
    let client = task::blocking(move || wanted.client_config())
        .await
        .map_err(|cause| Error::Config(cause.chain()))??;
    let stream = TlsConnector::from(Arc::new(client))
        .connect(server, plain)
        .await
        .map_err(|cause| failed(explained(&cause)))?;
    let (_, session) = stream.get_ref();
    if config.tls.direct && !tls::speaks_postgres(session.alpn_protocol()) {
        return Err(failed("the server did not agree on the protocol «postgresql» (ALPN)".into()));
    }
    let end_point =
        session.peer_certificates().and_then(|list| list.first()).and_then(|leaf| tls::end_point_hash(leaf));
    Ok((Socket::Tls(Box::new(stream)), Channel { tls: true, end_point }))
}

/// What a failed handshake means for a person.
fn explained(cause: &io::Error) -> String {
    use rustls::{CertificateError, Error as TlsError};
    let what = match cause.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
        // A bad signature: another authority that bears the same name.
        Some(TlsError::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => "its certificate comes from an authority that sslrootcert does not hold",
        Some(TlsError::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "its certificate is made out to another name (subjectAltName counts, the common name does not)",
        Some(TlsError::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => "its certificate has expired",
        _ if cause.kind() == io::ErrorKind::UnexpectedEof => {
            "the server closed the connection during the handshake (before 17 it does not know sslnegotiation=direct)"
        }
        _ => return cause.to_string(),
    };
    format!("{what} ({cause})")
}

/// Whether the server has the role. From 14 on it says so itself; before, SHOW tells: a session that is
/// read-only although sessions begin writable is one of a standby. (A 13 whose sessions begin read-only
/// counts as a standby.)
async fn suits(connection: &mut Connection, wanted: Target) -> Result<bool> {
    if wanted == Target::Any {
        return Ok(true);
    }
    let reported = |c: &Connection, name: &str| c.parameter(name).map(|value| value == "on");
    let (standby, read_only) =
        match (reported(connection, "in_hot_standby"), reported(connection, "default_transaction_read_only"))
        {
            (Some(standby), Some(default)) => (standby, standby || default),
            _ => {
                let read_only = connection.show("transaction_read_only").await? == "on";
                (read_only, read_only)
            }
        };
    Ok(match wanted {
        Target::Any | Target::PreferStandby => true,
        Target::ReadWrite => !read_only,
        Target::ReadOnly => read_only,
        Target::Primary => !standby,
        Target::Standby => standby,
    })
}

fn name(target: Target) -> &'static str {
    match target {
        Target::Any => "any",
        Target::ReadWrite => "read-write",
        Target::ReadOnly => "read-only",
        Target::Primary => "primary",
        Target::Standby | Target::PreferStandby => "standby",
    }
}
