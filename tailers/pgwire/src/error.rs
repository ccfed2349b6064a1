//! What can go wrong on the wire, and whether asking again may help.

use std::{fmt, io};

/// A five-letter class and code from the server (SQL standard plus Postgres's own).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SqlState([u8; 5]);

impl SqlState {
    /// A file the command needs does not exist: a removed log segment, a timeline without history.
    pub const UNDEFINED_FILE: Self = Self(*b"58P01");
    /// The slot does not exist.
    pub const UNDEFINED_OBJECT: Self = Self(*b"42704");
    /// The slot exists already.
    pub const DUPLICATE_OBJECT: Self = Self(*b"42710");
    /// The slot is in use by another connection, or by an old session that the server still holds.
    pub const OBJECT_IN_USE: Self = Self(*b"55006");
    /// The slot was invalidated (from 18 on), and other «not in this state».
    pub const NOT_IN_PREREQUISITE_STATE: Self = Self(*b"55000");
    pub const INSUFFICIENT_PRIVILEGE: Self = Self(*b"42501");
    pub const INVALID_PASSWORD: Self = Self(*b"28P01");
    pub const INVALID_AUTHORIZATION: Self = Self(*b"28000");
    pub const ADMIN_SHUTDOWN: Self = Self(*b"57P01");
    pub const CANNOT_CONNECT_NOW: Self = Self(*b"57P03");
    /// Page checksums failed during a base backup.
    pub const DATA_CORRUPTED: Self = Self(*b"XX001");
    pub const FEATURE_NOT_SUPPORTED: Self = Self(*b"0A000");
    pub const INTERNAL_ERROR: Self = Self(*b"XX000");

    /// `None` unless `text` is five ASCII letters or digits.
    pub fn parse(text: &str) -> Option<Self> {
        let raw: [u8; 5] = text.as_bytes().try_into().ok()?;
        raw.iter().all(u8::is_ascii_alphanumeric).then_some(Self(raw))
    }
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XX000")
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqlState({self})")
    }
}

/// How far the trouble reaches, in the server's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// A notice: nothing ended.
    Notice,
    /// A notice that somebody should see.
    Warning,
    /// The command ended, the connection lives.
    Error,
    /// The connection ended.
    Fatal,
    /// All connections ended.
    Panic,
}

/// An error or notice as the server sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    pub severity: Severity,
    pub code: SqlState,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
}

impl ServerError {
    /// May the same request succeed later without anybody changing anything?
    pub fn is_passing(&self) -> bool {
        let code = self.code.as_str();
        // Connection trouble, resources, operator intervention (shutdown, crash, starting up, cancel);
        // 57P04 means that the database was dropped.
        let class = code.starts_with("08") || code.starts_with("53") || code.starts_with("57");
        (class && code != "57P04") || self.code == SqlState::OBJECT_IN_USE
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code)?;
        if let Some(detail) = &self.detail {
            write!(f, "; {detail}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ServerError {}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is wrong or missing; the text says which and what to write instead.
    #[error("{0}")]
    Config(String),
    /// No connection to one host (name not found, refused, no such socket).
    #[error("no connection to {host}")]
    Connect { host: String, source: io::Error },
    /// A command stayed without an answer; the connection cannot be used any more.
    #[error("the server does not answer {command} within {seconds} s")]
    NoAnswer { command: String, seconds: u64 },
    /// The host did not finish connecting and signing in within `connect_timeout`.
    #[error("{host} did not answer within {seconds} s (connect_timeout)")]
    ConnectTimeout { host: String, seconds: u64 },
    /// The TLS handshake failed, or the certificate is not the one that `sslmode` asks for.
    #[error("TLS with {host} failed: {what}")]
    Tls { host: String, what: String },
    /// The way of signing in that the server asks for is not possible or not safe here.
    #[error("cannot sign in at {host}: {what}")]
    Auth { host: String, what: String },
    /// The server answers but is not what `target_session_attrs` asks for.
    #[error("{host} is not a «{wanted}» server (target_session_attrs)")]
    WrongTarget { host: String, wanted: &'static str },
    /// No host of several would do. The causes, host by host.
    #[error("none of the {} hosts would do: {}", .0.len(), join(.0))]
    NoHost(Vec<Error>),
    /// The server refused a command or ended the connection.
    #[error("the server says: {0}")]
    Server(#[source] ServerError),
    /// The stream did not start although the server had begun to answer: the position lies beyond its
    /// flushed log, or the segment is gone (58P01).
    #[error("the server cannot stream from there: {0}")]
    FailedStart(#[source] ServerError),
    /// The command needs a newer server.
    #[error("{command} needs Postgres {since} or newer, this is {version}")]
    NotSupported { command: &'static str, since: u32, version: u32 },
    /// The bytes are not what the protocol allows at this place.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// An earlier command was dropped before its answer was read: the connection cannot be used any more.
    #[error("an earlier command on this connection was abandoned")]
    Abandoned,
    /// The connection ended without a word.
    #[error("the server closed the connection")]
    Closed,
    #[error("the connection broke: {0}")]
    Io(#[source] io::Error),
}

fn join(errors: &[Error]) -> String {
    errors.iter().map(Error::chain).collect::<Vec<_>>().join("; ")
}

impl Error {
    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol(what.into())
    }
    /// The server's code, when the server spoke.
    pub fn code(&self) -> Option<SqlState> {
        self.server().map(|e| e.code)
    }
    pub fn server(&self) -> Option<&ServerError> {
        match self {
            Self::Server(e) | Self::FailedStart(e) => Some(e),
            _ => None,
        }
    }
    /// May the same call succeed on a new connection without anybody changing anything?
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::Tls { .. }
            | Self::Auth { .. }
            | Self::NotSupported { .. }
            | Self::FailedStart(_) => false,
            Self::Connect { source, .. } => source.kind() != io::ErrorKind::PermissionDenied,
            // A failover may be under way: the role changes by itself.
            Self::ConnectTimeout { .. } | Self::WrongTarget { .. } => true,
            Self::NoAnswer { .. } | Self::Abandoned | Self::Closed | Self::Io(_) => true,
            // Nothing was taken over from a broken message, so another connection may do.
            Self::Protocol(_) => true,
            Self::NoHost(errors) => errors.iter().any(Self::is_passing),
            Self::Server(error) => error.is_passing(),
        }
    }
    /// The sentence and its causes, joined by colons.
    pub fn chain(&self) -> String {
        match self {
            Self::Connect { source, .. } => format!("{self}: {source}"),
            _ => self.to_string(),
        }
    }
}

/// For the seams: passing trouble is to be retried, the rest needs a person. A caller that knows more about
/// a server's code (a lost slot, a foreign cluster) decides before it converts.
impl From<Error> for holdfast_core::Error {
    fn from(error: Error) -> Self {
        let act = match error.is_passing() {
            true => holdfast_core::Act::Retry,
            false => holdfast_core::Act::Configure,
        };
        Self::new(act, error.chain())
    }
}
