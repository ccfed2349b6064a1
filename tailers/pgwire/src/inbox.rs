//! The pure receiving end: bytes in, messages out. Keeps the server's parameters, surfaces its notices.
//!
//! Invariant: parameter changes and notices may come anywhere, so nobody above this sees them in between.

use std::collections::BTreeMap;

use bytes::BytesMut;

use crate::{Result, Severity, frame, message::Message};

/// Room made for reading at once: several messages of 128 KiB share one allocation, so that few bytes of an
/// incomplete message are copied over when the next one is made.
const CHUNK: usize = 1 << 20;
/// Parameters kept at most; servers report about fifteen.
const PARAMETERS_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct Inbox {
    pub buffer: BytesMut,
    pub parameters: BTreeMap<String, String>,
    cap: usize,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { buffer: BytesMut::new(), parameters: BTreeMap::new(), cap: frame::CAP_BEFORE_SIGN_IN }
    }
    /// The server let us in: long messages are now allowed.
    pub(crate) fn signed_in(&mut self) {
        self.cap = frame::CAP;
    }
    /// The next message that is complete.
    pub(crate) fn take(&mut self) -> Result<Option<Message>> {
        while let Some(frame) = frame::take(&mut self.buffer, self.cap)? {
            match Message::parse(frame)? {
                Message::ParameterStatus { name, value } => {
                    if self.parameters.len() < PARAMETERS_MAX || self.parameters.contains_key(&name) {
                        self.parameters.insert(name, value);
                    }
                }
                Message::Notice(notice) => match notice.severity {
                    Severity::Warning => tracing::warn!("the server warns: {notice}"),
                    _ => tracing::debug!("the server notes: {notice}"),
                },
                Message::Other => {}
                message => return Ok(Some(message)),
            }
        }
        Ok(None)
    }
    /// Makes room for the rest of the current message, and more where little is left.
    pub(crate) fn make_room(&mut self) -> Result<()> {
        let missing = frame::missing(&self.buffer, self.cap)?;
        let spare = self.buffer.capacity() - self.buffer.len();
        if spare < missing.max(4096) {
            let chunk = if self.cap == frame::CAP { CHUNK } else { 8192 };
            self.buffer.reserve(missing.max(chunk));
        }
        Ok(())
    }
}
