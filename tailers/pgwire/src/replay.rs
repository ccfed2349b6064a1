//! The decoders without a network: recorded conversations and hostile bytes.

use crate::{
    BackupEvent, Event, Result,
    backup::decode::BackupDecoder,
    inbox::Inbox,
    message::Message,
    stream::decode::{StreamDecoder, StreamStep},
};

fn messages(bytes: &[u8], mut each: impl FnMut(Message) -> Result<bool>) -> Result<()> {
    let mut inbox = Inbox::new();
    inbox.signed_in();
    // In unequal parts, as a network delivers.
    for part in bytes.chunks(8191) {
        inbox.make_room()?;
        inbox.buffer.extend_from_slice(part);
        while let Some(message) = inbox.take()? {
            if !each(message)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The events of a recorded answer to START_REPLICATION, up to its end or to the first error.
pub fn replay_stream(bytes: &[u8]) -> (Vec<Event>, Result<()>) {
    let mut decoder = StreamDecoder::default();
    let mut events = Vec::new();
    let end = messages(bytes, |message| {
        if let StreamStep::Event(event) = decoder.feed(message)? {
            events.push(event);
        }
        Ok(!decoder.is_over())
    });
    (events, end)
}

/// The events of a recorded answer to BASE_BACKUP of a server of this major version.
pub fn replay_backup(bytes: &[u8], major: u32) -> (Vec<BackupEvent>, Result<()>) {
    let mut decoder = BackupDecoder::new(major);
    let mut events = Vec::new();
    let end = messages(bytes, |message| {
        events.extend(decoder.feed(message)?);
        Ok(!decoder.is_over())
    });
    (events, end)
}

/// Feeds any bytes to every decoder. Must never panic, and never make room for more than was given.
pub fn fuzz_decode(bytes: &[u8]) {
    let (stream, _) = replay_stream(bytes);
    let held: usize =
        stream.iter().map(|e| if let Event::Wal { bytes, .. } = e { bytes.len() } else { 0 }).sum();
    assert!(held <= bytes.len(), "a stream of {} bytes became {held}", bytes.len());
    for major in [14, 15] {
        let _ = replay_backup(bytes, major);
    }
    let _ = messages(bytes, |_| Ok(true));
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = crate::Config::parse_in(text, &crate::Surroundings::default());
    }
}
