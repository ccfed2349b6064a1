//! The answer to BASE_BACKUP, pure.
//!
//! Order of the answer: a row with the start, rows of tablespaces, the copy or copies, a row with the end,
//! the command's tag. Each row set ends with a tag of its own.

use super::{BackupEvent, Tablespace};
use crate::{
    Error, Lsn, Result, ServerError, Severity, SqlState,
    message::{Fields, Message, Row},
};

/// Tablespaces that a cluster may have before we take the answer for nonsense.
const TABLESPACES_MAX: usize = 100_000;

#[derive(Debug)]
pub(crate) struct BackupDecoder {
    /// From 15 on the messages of the one copy are tagged.
    tagged: bool,
    place: Place,
    start: Option<(Lsn, u32)>,
    tablespaces: Vec<Tablespace>,
    /// Archives begun so far (13 and 14).
    begun: usize,
    end: Option<(Lsn, u32)>,
    damage: Option<ServerError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the row set of this number: the start, the tablespaces.
    Rows(u8),
    Archive,
    Manifest,
    /// In a copy of tagged messages, no archive begun.
    NoArchive,
    /// After a copy: another one, or the row with the end.
    Between,
    Ending,
    Over {
        ready: bool,
    },
}

impl BackupDecoder {
    pub(crate) fn new(major: u32) -> Self {
        Self {
            tagged: major >= 15,
            place: Place::Rows(0),
            start: None,
            tablespaces: Vec::new(),
            begun: 0,
            end: None,
            damage: None,
        }
    }
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.place, Place::Over { .. })
    }
    pub(crate) fn is_ready(&self) -> bool {
        self.place == Place::Over { ready: true }
    }

    pub(crate) fn feed(&mut self, message: Message) -> Result<Option<BackupEvent>> {
        let event = self.step(message);
        if event.is_err() {
            self.place = Place::Over { ready: false };
        }
        event
    }

    fn step(&mut self, message: Message) -> Result<Option<BackupEvent>> {
        match (self.place, message) {
            (Place::Rows(_), Message::RowDescription) => Ok(None),
            (Place::Rows(0), Message::DataRow(row)) => {
                self.start = Some(position(&row)?);
                Ok(None)
            }
            (Place::Rows(0), Message::CommandComplete(_)) => {
                self.place = Place::Rows(1);
                Ok(None)
            }
            (Place::Rows(_), Message::DataRow(row)) => self.tablespace(&row).map(|()| None),
            (Place::Rows(_), Message::CommandComplete(_)) => {
                self.place = Place::Between;
                let (start, timeline) =
                    self.start.ok_or_else(|| Error::protocol("a base backup has no start position"))?;
                Ok(Some(BackupEvent::Start { start, timeline, tablespaces: self.tablespaces.clone() }))
            }
            (Place::Between, Message::CopyOut) => Ok(self.begin_copy()),
            (Place::Archive, Message::CopyData(bytes)) if !self.tagged => Ok(Some(BackupEvent::Data(bytes))),
            (Place::Manifest, Message::CopyData(bytes)) if !self.tagged => {
                Ok(Some(BackupEvent::Manifest(bytes)))
            }
            (Place::Archive | Place::Manifest | Place::NoArchive, Message::CopyData(bytes)) => {
                self.tagged_data(Fields(bytes)).map(Some)
            }
            (Place::Archive | Place::Manifest | Place::NoArchive, Message::CopyDone) => {
                self.place = Place::Between;
                Ok(None)
            }
            (Place::Between, Message::RowDescription) => {
                self.place = Place::Ending;
                Ok(None)
            }
            (Place::Ending, Message::DataRow(row)) => {
                self.end = Some(position(&row)?);
                Ok(None)
            }
            (Place::Ending, Message::CommandComplete(_)) => Ok(None),
            (Place::Ending, Message::Error(error)) if self.is_verdict(&error) => {
                self.damage = Some(error);
                Ok(None)
            }
            (Place::Ending, Message::ReadyForQuery) => {
                let (end, timeline) =
                    self.end.ok_or_else(|| Error::protocol("a base backup has no end position"))?;
                self.place = Place::Over { ready: true };
                Ok(Some(BackupEvent::End { end, timeline, damage: self.damage.take() }))
            }
            (_, message) => Err(message.unexpected("in a base backup")),
        }
    }

    /// Failed page checksums, told after all was sent.
    fn is_verdict(&self, error: &ServerError) -> bool {
        self.end.is_some() && error.code == SqlState::DATA_CORRUPTED && error.severity == Severity::Error
    }

    fn tablespace(&mut self, row: &Row) -> Result<()> {
        if self.tablespaces.len() >= TABLESPACES_MAX {
            return Err(Error::protocol("a base backup names tablespaces without end"));
        }
        self.tablespaces.push(Tablespace { oid: row.maybe(0)?, location: row.text(1)?, kib: row.maybe(2)? });
        Ok(())
    }

    fn begin_copy(&mut self) -> Option<BackupEvent> {
        if self.tagged {
            self.place = Place::NoArchive;
            return None;
        }
        let next = self.tablespaces.get(self.begun);
        self.begun += 1;
        Some(match next {
            Some(tablespace) => {
                self.place = Place::Archive;
                BackupEvent::Archive { oid: tablespace.oid, path: tablespace.location.clone() }
            }
            None => {
                self.place = Place::Manifest;
                BackupEvent::ManifestBegin
            }
        })
    }

    fn tagged_data(&mut self, mut fields: Fields) -> Result<BackupEvent> {
        match (fields.u8()?, self.place) {
            (b'n', _) => {
                let (name, path) = (fields.text()?, fields.text()?);
                self.place = Place::Archive;
                let stem = name.strip_suffix(".tar").unwrap_or(&name);
                let oid = match stem {
                    "base" => None,
                    oid => Some(oid.parse().map_err(|_| {
                        Error::protocol("an archive of a base backup has a name that is no number")
                    })?),
                };
                Ok(BackupEvent::Archive { oid, path: (!path.is_empty()).then_some(path) })
            }
            (b'm', _) => {
                self.place = Place::Manifest;
                Ok(BackupEvent::ManifestBegin)
            }
            (b'd', Place::Archive) => Ok(BackupEvent::Data(fields.0)),
            (b'd', Place::Manifest) => Ok(BackupEvent::Manifest(fields.0)),
            (b'p', _) => Ok(BackupEvent::Progress(fields.u64()?)),
            (kind, _) => Err(Error::protocol(format!(
                "a message of kind {:?} has no place here in a base backup",
                char::from(kind)
            ))),
        }
    }
}

fn position(row: &Row) -> Result<(Lsn, u32)> {
    Ok((row.parsed(0)?, row.parsed(1)?))
}
