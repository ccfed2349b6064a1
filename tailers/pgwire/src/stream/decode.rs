//! The stream's messages, pure: what the server sends while copying, and how a stream ends.

use bytes::Bytes;
use holdfast_core::Timestamp;

use super::{Event, Status};
use crate::{
    Error, Lsn, Result, Severity,
    message::{Fields, Message, Row},
};

/// Microseconds from 1970 to 2000, where Postgres's clock begins.
const EPOCH_2000: i64 = 946_684_800_000_000;

/// Follows one START_REPLICATION from its first answer to its last.
#[derive(Debug, Default)]
pub(crate) struct StreamDecoder {
    place: Place,
    /// Log arrived: from here on an error is one of the connection, not of the start.
    streamed: bool,
    next: Option<(u32, Lsn)>,
    tag: String,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    BeforeCopy,
    Copying,
    AfterCopy,
    /// The last event was yielded; `ready` for another command or not.
    Over {
        ready: bool,
    },
}

#[derive(Debug)]
pub(crate) enum StreamStep {
    Nothing,
    /// Copying began.
    Begun,
    Event(Event),
    /// The server ended its side of the copy and waits for ours.
    ServerDone,
}

impl StreamDecoder {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.place, Place::Over { .. })
    }
    pub(crate) fn is_ready(&self) -> bool {
        self.place == Place::Over { ready: true }
    }

    pub(crate) fn feed(&mut self, message: Message) -> Result<StreamStep> {
        let step = self.step(message);
        if step.is_err() {
            self.place = Place::Over { ready: false };
        }
        step
    }

    fn step(&mut self, message: Message) -> Result<StreamStep> {
        match (self.place, message) {
            (Place::BeforeCopy, Message::CopyBoth) => {
                self.place = Place::Copying;
                Ok(StreamStep::Begun)
            }
            // Asked for the very end of an old timeline: the row comes without a copy.
            (Place::BeforeCopy, Message::RowDescription) => {
                self.place = Place::AfterCopy;
                Ok(StreamStep::Nothing)
            }
            (Place::Copying, Message::CopyData(payload)) => {
                let event = event(payload)?;
                self.streamed |= matches!(event, Event::Wal { .. });
                Ok(StreamStep::Event(event))
            }
            (Place::Copying, Message::CopyDone) => {
                self.place = Place::AfterCopy;
                Ok(StreamStep::ServerDone)
            }
            // A server that shuts down ends the command without ending the copy, then closes.
            (Place::Copying, Message::CommandComplete(tag)) => {
                self.place = Place::Over { ready: false };
                Ok(StreamStep::Event(Event::Ended { tag }))
            }
            (Place::Copying, Message::Error(error))
                if !self.streamed && error.severity == Severity::Error =>
            {
                Err(Error::FailedStart(error))
            }
            (Place::AfterCopy, Message::RowDescription) => Ok(StreamStep::Nothing),
            // The answer to a status that crossed the server's end of the copy.
            (Place::AfterCopy, Message::CopyData(_)) => Ok(StreamStep::Nothing),
            (Place::AfterCopy, Message::DataRow(row)) => {
                self.next = Some(switch(&row)?);
                Ok(StreamStep::Nothing)
            }
            (Place::AfterCopy, Message::CommandComplete(tag)) => {
                self.tag = tag;
                Ok(StreamStep::Nothing)
            }
            (Place::AfterCopy, Message::ReadyForQuery) => {
                self.place = Place::Over { ready: true };
                Ok(StreamStep::Event(match self.next.take() {
                    Some((next_timeline, switch_at)) => Event::EndOfTimeline { next_timeline, switch_at },
                    None => Event::Ended { tag: std::mem::take(&mut self.tag) },
                }))
            }
            (_, message) => Err(message.unexpected("in a stream")),
        }
    }
}

fn switch(row: &Row) -> Result<(u32, Lsn)> {
    Ok((row.parsed(0)?, row.parsed(1)?))
}

fn event(payload: Bytes) -> Result<Event> {
    let mut fields = Fields(payload);
    match fields.u8()? {
        b'w' => {
            let (start, server_end) = (Lsn(fields.u64()?), Lsn(fields.u64()?));
            let sent_at = time(fields.i64()?);
            if start.0.checked_add(fields.0.len() as u64).is_none() {
                return Err(Error::protocol(format!("log beyond the last possible position, at {start}")));
            }
            Ok(Event::Wal { start, server_end, sent_at, bytes: fields.0 })
        }
        b'k' => Ok(Event::Keepalive {
            server_end: Lsn(fields.u64()?),
            sent_at: time(fields.i64()?),
            reply_requested: fields.u8()? != 0,
        }),
        kind => Err(Error::protocol(format!("a stream message of unknown kind {:?}", char::from(kind)))),
    }
}

fn time(since_2000: i64) -> Timestamp {
    Timestamp(since_2000.saturating_add(EPOCH_2000))
}

/// Length of a status message on the wire.
pub(super) const STATUS_BYTES: usize = 39;

pub(super) fn status_message(status: Status, now: Timestamp, reply_requested: bool) -> [u8; STATUS_BYTES] {
    let mut out = [0; STATUS_BYTES];
    let now = now.0.saturating_sub(EPOCH_2000);
    let parts: [&[u8]; 8] = [
        b"d",
        &38u32.to_be_bytes(),
        b"r",
        &status.written.0.to_be_bytes(),
        &status.flushed.0.to_be_bytes(),
        &status.applied.0.to_be_bytes(),
        &now.to_be_bytes(),
        &[u8::from(reply_requested)],
    ];
    for (slot, byte) in out.iter_mut().zip(parts.into_iter().flatten()) {
        *slot = *byte;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServerError;

    fn refusal(severity: Severity) -> Message {
        Message::Error(ServerError {
            severity,
            code: crate::SqlState::UNDEFINED_FILE,
            message: "requested WAL segment has already been removed".into(),
            detail: None,
            hint: None,
        })
    }
    fn wal() -> Message {
        let mut raw = vec![b'w'];
        raw.extend_from_slice(&0x3000_0028u64.to_be_bytes());
        raw.extend_from_slice(&0x3000_0128u64.to_be_bytes());
        raw.extend_from_slice(&1_000_000i64.to_be_bytes());
        raw.extend_from_slice(b"bytes");
        Message::CopyData(raw.into())
    }

    #[test]
    fn an_error_before_the_first_byte_of_log_is_a_failed_start() {
        let mut decoder = StreamDecoder::default();
        assert!(matches!(decoder.feed(Message::CopyBoth), Ok(StreamStep::Begun)));
        assert!(matches!(decoder.feed(refusal(Severity::Error)), Err(Error::FailedStart(_))));
        assert!(decoder.is_over() && !decoder.is_ready());

        let mut decoder = StreamDecoder::default();
        decoder.feed(Message::CopyBoth).unwrap();
        decoder.feed(wal()).unwrap();
        assert!(matches!(decoder.feed(refusal(Severity::Error)), Err(Error::Server(_))));

        let mut decoder = StreamDecoder::default();
        decoder.feed(Message::CopyBoth).unwrap();
        assert!(matches!(decoder.feed(refusal(Severity::Fatal)), Err(Error::Server(_))));
    }

    #[test]
    fn log_carries_its_place_and_the_servers_clock() {
        let mut decoder = StreamDecoder::default();
        decoder.feed(Message::CopyBoth).unwrap();
        let Ok(StreamStep::Event(Event::Wal { start, server_end, sent_at, bytes })) = decoder.feed(wal())
        else {
            panic!("no log");
        };
        assert_eq!((start, server_end), (Lsn(0x3000_0028), Lsn(0x3000_0128)));
        assert_eq!(sent_at.to_string(), "2000-01-01T00:00:01Z");
        assert_eq!(bytes, &b"bytes"[..]);
    }

    #[test]
    fn a_status_has_the_layout_of_the_protocol() {
        let status = Status { written: Lsn(3), flushed: Lsn(2), applied: Lsn(1) };
        let raw = status_message(status, Timestamp(EPOCH_2000 + 7), true);
        let expected = "64000000267200000000000000030000000000000002000000000000000100000000000000\
                        0701";
        assert_eq!(raw.iter().map(|b| format!("{b:02x}")).collect::<String>(), expected);
    }
}
