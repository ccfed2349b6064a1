//! START_REPLICATION PHYSICAL: a reading half and a writing half that never wait for each other.
//!
//! Invariants: the reading half is the only one that reads; the writing half is locked only for the time of
//! a write. The client's own end of the copy is sent once, by whoever is first.

use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::{Clock, Timestamp};
use postgres_protocol::message::frontend;
use tokio::sync::Mutex;

use crate::{
    Connection, Error, Host, Lsn, Result,
    socket::{Incoming, Outgoing},
};

pub(crate) mod decode;

use decode::{STATUS_BYTES, StreamDecoder, StreamStep, status_message};

/// What a stream yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes of the log from `start` on; at most 16 pages, cut at a page or record end. They share the read
    /// buffer.
    Wal {
        start: Lsn,
        /// How far the server could send.
        server_end: Lsn,
        /// The server's clock.
        sent_at: Timestamp,
        bytes: Bytes,
    },
    Keepalive {
        server_end: Lsn,
        sent_at: Timestamp,
        /// The server wants a status now.
        reply_requested: bool,
    },
    /// The timeline ended: all of it was sent, perhaps with bytes beyond `switch_at` that do not belong to
    /// it. The connection can be had back.
    EndOfTimeline { next_timeline: u32, switch_at: Lsn },
    /// The stream ended: we stopped it, or (`COPY 0`) the server shuts down and has seen our flush position
    /// reach the end of its log.
    Ended { tag: String },
}

/// The positions that we report; each is the end of something (the position of the next byte).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub written: Lsn,
    /// The server moves the slot here without any check, and releases commits that wait for us. Zero: this
    /// receiver never counts as a synchronous standby.
    pub flushed: Lsn,
    pub applied: Lsn,
}

/// What START_REPLICATION led to.
pub enum Started {
    Streaming(Stream),
    /// The position asked for is the very end of that timeline: nothing to stream.
    EndOfTimeline {
        next_timeline: u32,
        switch_at: Lsn,
        connection: Connection,
    },
}

/// Both halves of a running stream.
pub struct Stream {
    pub reader: StreamReader,
    pub writer: StreamWriter,
}

/// The half that receives.
pub struct StreamReader {
    incoming: Incoming,
    decoder: StreamDecoder,
    outgoing: Arc<Mutex<Shared>>,
    host: Host,
    clock: Clock,
    /// The server ended its side and our end is still to be sent.
    owes_end: bool,
}

/// The half that reports.
pub struct StreamWriter {
    outgoing: Arc<Mutex<Shared>>,
    clock: Clock,
}

struct Shared {
    outgoing: Outgoing,
    /// Our end of the copy is in the buffer or sent: no status may follow.
    ended: bool,
}

impl Shared {
    fn end(&mut self) {
        if !self.ended {
            self.ended = true;
            frontend::copy_done(&mut self.outgoing.buffer);
        }
    }
}

impl Connection {
    /// Streams the log of `timeline` (the server's own one when `None`) from `start` on, which may be any
    /// byte. The server does not compare `start` with the slot. A refusal costs the connection.
    ///
    /// Two refusals come later, as the first event of the stream ([`Error::FailedStart`]): `start` lies
    /// beyond what the server flushed, or the segment is gone.
    pub async fn start_replication(
        mut self,
        slot: Option<&str>,
        start: Lsn,
        timeline: Option<u32>,
    ) -> Result<Started> {
        let mut text = "START_REPLICATION".to_owned();
        if let Some(slot) = slot {
            text += &format!(" SLOT {}", crate::connection::identifier(slot)?);
        }
        text += &format!(" PHYSICAL {start}");
        if let Some(timeline) = timeline {
            text += &format!(" TIMELINE {timeline}");
        }
        if !self.identified {
            self.identify_system().await?;
        }
        self.send(&text).await?;
        let mut decoder = StreamDecoder::default();
        loop {
            match decoder.feed(self.incoming.message().await?)? {
                StreamStep::Nothing => {}
                StreamStep::Begun => break,
                StreamStep::Event(Event::EndOfTimeline { next_timeline, switch_at }) => {
                    self.busy = false;
                    return Ok(Started::EndOfTimeline { next_timeline, switch_at, connection: self });
                }
                StreamStep::Event(_) | StreamStep::ServerDone => {
                    return Err(Error::protocol("START_REPLICATION ended before it began"));
                }
            }
        }
        let Self { incoming, outgoing, host, clock, .. } = self;
        let outgoing = Arc::new(Mutex::new(Shared { outgoing, ended: false }));
        let writer = StreamWriter { outgoing: outgoing.clone(), clock: clock.clone() };
        let reader = StreamReader { incoming, decoder, outgoing, host, clock, owes_end: false };
        Ok(Started::Streaming(Stream { reader, writer }))
    }
}

impl StreamReader {
    /// The next event. Cancel-safe. After [`Event::EndOfTimeline`] or [`Event::Ended`] nothing more comes
    /// ([`Error::Closed`]).
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            if self.owes_end {
                let mut shared = self.outgoing.lock().await;
                shared.end();
                shared.outgoing.flush().await?;
                self.owes_end = false;
            }
            if self.decoder.is_over() {
                return Err(Error::Closed);
            }
            match self.decoder.feed(self.incoming.message().await?)? {
                StreamStep::Event(event) => return Ok(event),
                StreamStep::ServerDone => self.owes_end = true,
                StreamStep::Nothing | StreamStep::Begun => {}
            }
        }
    }
    /// What the server reported about itself, newest value.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.incoming.inbox.parameters.get(name).map(String::as_str)
    }
    /// Bytes already read from the socket and not yet yielded.
    pub fn buffered(&self) -> usize {
        self.incoming.inbox.buffer.len()
    }
}

impl StreamWriter {
    /// Reports our positions; with `reply_requested` the server answers with a keepalive at once. May be
    /// sent at any time and is a no-op once the copy ended. Cancel-safe: an unsent status is replaced by the
    /// next one.
    pub async fn status(&mut self, status: Status, reply_requested: bool) -> Result<()> {
        let mut shared = self.outgoing.lock().await;
        if shared.ended {
            return Ok(());
        }
        // Of older messages only one that is partly on its way must be finished.
        let begun = shared.outgoing.buffer.len() % STATUS_BYTES;
        shared.outgoing.buffer.truncate(begun);
        shared.outgoing.buffer.extend_from_slice(&status_message(status, self.clock.wall(), reply_requested));
        shared.outgoing.flush().await
    }
    /// Ends the stream from our side: the reading half then yields what was still under way, and at last
    /// [`Event::Ended`] (or the end of the timeline).
    pub async fn stop(&mut self) -> Result<()> {
        let mut shared = self.outgoing.lock().await;
        shared.end();
        shared.outgoing.flush().await
    }
}

impl Stream {
    pub fn split(self) -> (StreamReader, StreamWriter) {
        (self.reader, self.writer)
    }
    /// The connection, once the reading half has yielded its last event; [`Error::Abandoned`] before, and
    /// [`Error::Closed`] when the server ended the connection with the stream.
    pub fn into_connection(self) -> Result<Connection> {
        let Self { reader, writer } = self;
        let StreamReader { incoming, decoder, outgoing, host, clock, .. } = reader;
        drop(writer);
        if !decoder.is_over() {
            return Err(Error::Abandoned);
        }
        if !decoder.is_ready() {
            return Err(Error::Closed);
        }
        let shared = Arc::try_unwrap(outgoing).map_err(|_| Error::Abandoned)?;
        Ok(Connection {
            incoming,
            outgoing: shared.into_inner().outgoing,
            host,
            clock,
            busy: false,
            identified: true,
        })
    }
}
