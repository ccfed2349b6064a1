//! Messages of the server, from frames. Pure; never panics, allocates no more than the frame holds.

use bytes::{Buf, Bytes};

use crate::{Error, Result, ServerError, SqlState, error::Severity, frame::Frame};

#[derive(Debug)]
pub(crate) enum Message {
    Authentication(Authentication),
    ParameterStatus {
        name: String,
        value: String,
    },
    Notice(ServerError),
    Error(ServerError),
    ReadyForQuery,
    RowDescription,
    DataRow(Row),
    CommandComplete(String),
    CopyOut,
    CopyBoth,
    CopyData(Bytes),
    CopyDone,
    /// Nothing that we act on (key data for cancel requests, an empty query, …).
    Other,
}

#[derive(Debug)]
pub(crate) enum Authentication {
    Ok,
    Cleartext,
    Md5([u8; 4]),
    /// Names of mechanisms.
    Sasl(Vec<String>),
    SaslContinue(Bytes),
    SaslFinal(Bytes),
    Unknown(u32),
}

/// Columns in text form, `None` for NULL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row(pub Vec<Option<Bytes>>);

impl Row {
    pub(crate) fn text(&self, column: usize) -> Result<Option<String>> {
        match self.0.get(column) {
            None => Err(Error::protocol(format!("a row has no column {}", column + 1))),
            Some(None) => Ok(None),
            Some(Some(raw)) => utf8(raw.clone()).map(Some),
        }
    }
    pub(crate) fn some_text(&self, column: usize) -> Result<String> {
        self.text(column)?
            .ok_or_else(|| Error::protocol(format!("column {} of a row is unexpectedly NULL", column + 1)))
    }
    /// The column parsed; NULL is an error.
    pub(crate) fn parsed<T: std::str::FromStr>(&self, column: usize) -> Result<T> {
        parse(&self.some_text(column)?)
    }
    /// The column parsed; NULL is `None`.
    pub(crate) fn maybe<T: std::str::FromStr>(&self, column: usize) -> Result<Option<T>> {
        self.text(column)?.map(|text| parse(&text)).transpose()
    }
}

fn parse<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| {
        Error::protocol(format!("a row holds «{}» where a number or position is expected", short(text)))
    })
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

fn utf8(raw: Bytes) -> Result<String> {
    String::from_utf8(raw.into()).map_err(|_| Error::protocol("a text is no UTF-8"))
}

/// Reads a body from its front.
pub(crate) struct Fields(pub Bytes);

impl Fields {
    fn short() -> Error {
        Error::protocol("a message is shorter than its own fields")
    }
    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.0.try_get_u8().map_err(|_| Self::short())
    }
    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.0.try_get_u16().map_err(|_| Self::short())
    }
    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.0.try_get_u32().map_err(|_| Self::short())
    }
    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.0.try_get_u64().map_err(|_| Self::short())
    }
    pub(crate) fn i64(&mut self) -> Result<i64> {
        self.0.try_get_i64().map_err(|_| Self::short())
    }
    pub(crate) fn bytes(&mut self, length: usize) -> Result<Bytes> {
        if length > self.0.len() {
            return Err(Self::short());
        }
        Ok(self.0.split_to(length))
    }
    /// A text that ends with a zero byte.
    pub(crate) fn text(&mut self) -> Result<String> {
        let end = self.0.iter().position(|b| *b == 0).ok_or_else(Self::short)?;
        let raw = self.0.split_to(end);
        self.0.advance(1);
        utf8(raw)
    }
    /// The same, for texts of which only their look matters (messages in the server's own encoding).
    fn loose_text(&mut self) -> Result<String> {
        let end = self.0.iter().position(|b| *b == 0).ok_or_else(Self::short)?;
        let raw = self.0.split_to(end);
        self.0.advance(1);
        Ok(String::from_utf8_lossy(&raw).into_owned())
    }
}

impl Message {
    pub(crate) fn parse(frame: Frame) -> Result<Self> {
        let mut fields = Fields(frame.body);
        Ok(match frame.tag {
            b'R' => Self::Authentication(authentication(fields)?),
            b'S' => Self::ParameterStatus { name: fields.text()?, value: fields.text()? },
            b'N' => Self::Notice(server_error(fields, Severity::Notice)?),
            b'E' => Self::Error(server_error(fields, Severity::Error)?),
            b'Z' => Self::ReadyForQuery,
            b'T' => Self::RowDescription,
            b'D' => Self::DataRow(row(fields)?),
            b'C' => Self::CommandComplete(fields.text()?),
            b'H' => Self::CopyOut,
            b'W' => Self::CopyBoth,
            b'd' => Self::CopyData(fields.0),
            b'c' => Self::CopyDone,
            b'A' | b'I' | b'K' | b'v' => Self::Other,
            tag => {
                return Err(Error::protocol(format!("a message of unknown kind {:?}", char::from(tag))));
            }
        })
    }
    /// For errors that say what came instead.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Authentication(_) => "Authentication",
            Self::ParameterStatus { .. } => "ParameterStatus",
            Self::Notice(_) => "NoticeResponse",
            Self::Error(_) => "ErrorResponse",
            Self::ReadyForQuery => "ReadyForQuery",
            Self::RowDescription => "RowDescription",
            Self::DataRow(_) => "DataRow",
            Self::CommandComplete(_) => "CommandComplete",
            Self::CopyOut => "CopyOutResponse",
            Self::CopyBoth => "CopyBothResponse",
            Self::CopyData(_) => "CopyData",
            Self::CopyDone => "CopyDone",
            Self::Other => "a message of another kind",
        }
    }
    /// The error of a message that has no place here.
    pub(crate) fn unexpected(self, place: &str) -> Error {
        match self {
            Self::Error(error) => Error::Server(error),
            other => Error::protocol(format!("{} came {place}", other.name())),
        }
    }
}

fn authentication(mut fields: Fields) -> Result<Authentication> {
    Ok(match fields.u32()? {
        0 => Authentication::Ok,
        3 => Authentication::Cleartext,
        5 => {
            let salt = fields.bytes(4)?;
            Authentication::Md5(salt.as_ref().try_into().map_err(|_| Fields::short())?)
        }
        10 => {
            let mut mechanisms = Vec::new();
            loop {
                let name = fields.text()?;
                if name.is_empty() {
                    break;
                }
                mechanisms.push(name);
            }
            Authentication::Sasl(mechanisms)
        }
        11 => Authentication::SaslContinue(fields.0),
        12 => Authentication::SaslFinal(fields.0),
        kind => Authentication::Unknown(kind),
    })
}

fn server_error(mut fields: Fields, otherwise: Severity) -> Result<ServerError> {
    let mut error = ServerError {
        severity: otherwise,
        code: SqlState::INTERNAL_ERROR,
        message: String::new(),
        detail: None,
        hint: None,
    };
    loop {
        let kind = fields.u8()?;
        if kind == 0 {
            return Ok(error);
        }
        let text = fields.loose_text()?;
        match kind {
            b'V' => {
                error.severity = match text.as_str() {
                    "ERROR" => Severity::Error,
                    "FATAL" => Severity::Fatal,
                    "PANIC" => Severity::Panic,
                    "WARNING" => Severity::Warning,
                    _ => otherwise,
                }
            }
            b'C' => error.code = SqlState::parse(&text).unwrap_or(SqlState::INTERNAL_ERROR),
            b'M' => error.message = text,
            b'D' => error.detail = Some(text),
            b'H' => error.hint = Some(text),
            _ => {}
        }
    }
}

fn row(mut fields: Fields) -> Result<Row> {
    let count = usize::from(fields.u16()?);
    // Each column has a length of four bytes, so a false count makes no room.
    let mut columns = Vec::with_capacity(count.min(fields.0.len() / 4));
    for _ in 0..count {
        columns.push(match fields.u32()? {
            u32::MAX => None,
            length => Some(fields.bytes(usize::try_from(length).unwrap_or(usize::MAX))?),
        });
    }
    Ok(Row(columns))
}
