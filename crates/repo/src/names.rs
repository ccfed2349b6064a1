//! The name of every object (design.md section 7), and back. Numbers are 16 hexadecimal digits, so bytewise
//! order is numeric order.

use std::{fmt, str::FromStr};

use holdfast_core::{Epoch, Error, LineageId, RepoId, Result, SourceId};

use crate::seal::{Key, purpose};

/// The one name that is the same in every repository.
pub const REPO: &str = "repo.json";

/// A name taken apart. `Display` writes it, `FromStr` reads it back and refuses everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    Repo,
    Format(u64),
    Ring(u64),
    SourceRing {
        source: SourceId,
        generation: u64,
    },
    Hold {
        source: SourceId,
        hold: [u8; 8],
        renewal: u64,
    },
    /// The sealed record of what a lineage is; written once, with the lineage.
    Lineage(Stream),
    Epoch {
        stream: Stream,
        epoch: Epoch,
    },
    Log {
        stream: Stream,
        epoch: Epoch,
        number: u64,
    },
    /// `to` is the last number it holds.
    Merged {
        stream: Stream,
        epoch: Epoch,
        from: u64,
        to: u64,
    },
    Pack {
        stream: Stream,
        epoch: Epoch,
        number: u64,
    },
    State {
        stream: Stream,
        epoch: Epoch,
        number: u64,
    },
}

/// The ordered log of one lineage, as a place in the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    pub source: SourceId,
    pub lineage: LineageId,
}

impl Stream {
    /// `<source>/<lineage>/`
    pub fn prefix(self) -> String {
        format!("{}/{}/", self.source, self.lineage)
    }
    pub fn lineage_record(self) -> String {
        Name::Lineage(self).to_string()
    }
    pub fn epoch(self, epoch: Epoch) -> String {
        Name::Epoch { stream: self, epoch }.to_string()
    }
    pub fn log(self, epoch: Epoch, number: u64) -> String {
        Name::Log { stream: self, epoch, number }.to_string()
    }
    pub fn merged(self, epoch: Epoch, from: u64, to: u64) -> String {
        Name::Merged { stream: self, epoch, from, to }.to_string()
    }
    pub fn pack(self, epoch: Epoch, number: u64) -> String {
        Name::Pack { stream: self, epoch, number }.to_string()
    }
    pub fn state(self, epoch: Epoch, number: u64) -> String {
        Name::State { stream: self, epoch, number }.to_string()
    }
    pub fn epochs_prefix(self) -> String {
        format!("{}epochs/", self.prefix())
    }
    /// Log objects and END of one epoch.
    pub fn log_prefix(self, epoch: Epoch) -> String {
        format!("{}log/{epoch}/", self.prefix())
    }
    pub fn merged_prefix(self, epoch: Epoch) -> String {
        format!("{}merged/{epoch}/", self.prefix())
    }
    pub fn packs_prefix(self, epoch: Epoch) -> String {
        format!("{}packs/{epoch}/", self.prefix())
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.source, self.lineage)
    }
}

/// Prefix of the repository's ring generations.
pub const RINGS_PREFIX: &str = "ring/";
/// Prefix of the versions the repository was raised to.
pub const FORMATS_PREFIX: &str = "format/";

/// Prefix of one source's ring generations.
pub fn source_rings_prefix(source: SourceId) -> String {
    format!("{source}/ring/")
}

/// Prefix of all holds on one source.
pub fn holds_prefix(source: SourceId) -> String {
    format!("{source}/holds/")
}

/// May somebody be waiting for this object, or for a list of names that begin so? Log objects and epochs: a
/// commit waits for those, and a successor. Packs and layers are many bytes for which nobody waits.
pub fn is_urgent(name: &str) -> bool {
    matches!(name.split('/').nth(2), Some("log" | "epochs"))
}

/// The lineage of a source that calls itself `identity`: the same again after the disk was lost, and nothing
/// to learn from for who lacks the source key.
pub fn lineage_id(source_key: &Key, repo: RepoId, source: SourceId, identity: &str) -> LineageId {
    let key = source_key.derive(purpose::LINEAGE_ID, &[]);
    let mac = key.mac(&[&repo.0, &source.0[..], identity.as_bytes()].concat());
    let [a, b, c, d, e, f, g, h, ..] = mac;
    LineageId([a, b, c, d, e, f, g, h])
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repo => f.write_str(REPO),
            Self::Format(version) => write!(f, "format/{version:016x}"),
            Self::Ring(generation) => write!(f, "ring/{generation:016x}"),
            Self::SourceRing { source, generation } => write!(f, "{source}/ring/{generation:016x}"),
            Self::Hold { source, hold, renewal } => {
                write!(f, "{source}/holds/{}/{renewal:016x}", hex::encode(hold))
            }
            Self::Lineage(stream) => write!(f, "{stream}/lineage"),
            Self::Epoch { stream, epoch } => write!(f, "{stream}/epochs/{epoch}"),
            Self::Log { stream, epoch, number } => write!(f, "{stream}/log/{epoch}/{number:016x}"),
            Self::Merged { stream, epoch, from, to } => {
                write!(f, "{stream}/merged/{epoch}/{from:016x}-{to:016x}")
            }
            Self::Pack { stream, epoch, number } => write!(f, "{stream}/packs/{epoch}/{number:016x}"),
            Self::State { stream, epoch, number } => write!(f, "{stream}/state/{epoch}/{number:016x}"),
        }
    }
}

impl FromStr for Name {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let name = parse(text).ok_or_else(|| Error::corrupt(format!("«{text}» is no name of an object")))?;
        // One spelling each: upper case and the like name nothing.
        if name.to_string() == text {
            Ok(name)
        } else {
            Err(Error::corrupt(format!("«{text}» is no name of an object")))
        }
    }
}

fn parse(text: &str) -> Option<Name> {
    let mut parts = [""; 5];
    let mut count = 0;
    for part in text.split('/') {
        *parts.get_mut(count)? = part;
        count += 1;
    }
    let stream = |source: &str, lineage: &str| {
        Some(Stream { source: source.parse().ok()?, lineage: lineage.parse().ok()? })
    };
    Some(match *parts.get(..count)? {
        [REPO] => Name::Repo,
        ["format", version] => Name::Format(number(version)?),
        ["ring", generation] => Name::Ring(number(generation)?),
        [source, "ring", generation] => {
            Name::SourceRing { source: source.parse().ok()?, generation: number(generation)? }
        }
        [source, "holds", hold, renewal] => Name::Hold {
            source: source.parse().ok()?,
            hold: number(hold)?.to_be_bytes(),
            renewal: number(renewal)?,
        },
        [source, lineage, "lineage"] => Name::Lineage(stream(source, lineage)?),
        [source, lineage, "epochs", epoch] => {
            Name::Epoch { stream: stream(source, lineage)?, epoch: epoch.parse().ok()? }
        }
        [source, lineage, kind, epoch, last] => {
            let stream = stream(source, lineage)?;
            let epoch = epoch.parse().ok()?;
            match kind {
                "log" => Name::Log { stream, epoch, number: number(last)? },
                "packs" => Name::Pack { stream, epoch, number: number(last)? },
                "state" => Name::State { stream, epoch, number: number(last)? },
                "merged" => {
                    let (from, to) = last.split_once('-')?;
                    Name::Merged { stream, epoch, from: number(from)?, to: number(to)? }
                }
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn number(text: &str) -> Option<u64> {
    (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back_and_nothing_else_is() {
        let stream = Stream { source: SourceId([1; 8]), lineage: LineageId([0xab; 8]) };
        let epoch = Epoch { number: 7, writer: holdfast_core::WriterId([3; 8]) };
        let names = [
            Name::Repo,
            Name::Format(1),
            Name::Ring(2),
            Name::SourceRing { source: stream.source, generation: 3 },
            Name::Hold { source: stream.source, hold: [9; 8], renewal: 4 },
            Name::Lineage(stream),
            Name::Epoch { stream, epoch },
            Name::Log { stream, epoch: Epoch::numbered(1), number: 255 },
            Name::Merged { stream, epoch, from: 1, to: 64 },
            Name::Pack { stream, epoch, number: 5 },
            Name::State { stream, epoch, number: u64::MAX },
        ];
        for name in names {
            let text = name.to_string();
            assert_eq!(text.parse::<Name>().unwrap(), name, "{text}");
            for wrong in [format!("{text}/"), format!("/{text}"), text.to_uppercase(), format!("{text}0")] {
                assert!(wrong.parse::<Name>().is_err(), "{wrong}");
            }
            assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/".contains(&b)), "{text}");
        }
        assert_eq!(
            stream.log(Epoch::numbered(1), 255),
            "0101010101010101/abababababababab/log/0000000000000001/00000000000000ff"
        );
    }

    #[test]
    fn log_objects_and_epochs_are_urgent_and_nothing_else() {
        let stream = Stream { source: SourceId([1; 8]), lineage: LineageId([0xab; 8]) };
        let epoch = Epoch::numbered(7);
        let urgent =
            [stream.log(epoch, 3), stream.log_prefix(epoch), stream.epoch(epoch), stream.epochs_prefix()];
        assert!(urgent.iter().all(|name| is_urgent(name)), "{urgent:?}");
        let others = [
            stream.pack(epoch, 3),
            stream.packs_prefix(epoch),
            stream.state(epoch, 3),
            stream.merged(epoch, 1, 64),
            stream.lineage_record(),
            source_rings_prefix(stream.source),
            Name::Hold { source: stream.source, hold: [9; 8], renewal: 4 }.to_string(),
            Name::Ring(1).to_string(),
            REPO.to_owned(),
            String::new(),
        ];
        assert!(!others.iter().any(|name| is_urgent(name)), "{others:?}");
    }

    #[test]
    fn a_lineage_is_found_again_and_tells_nothing() {
        let key = Key::new([1; 32]);
        let (repo, source) = (RepoId([2; 32]), SourceId([3; 8]));
        let one = lineage_id(&key, repo, source, "7301");
        assert_eq!(one, lineage_id(&key, repo, source, "7301"));
        assert_ne!(one, lineage_id(&key, repo, source, "7302"));
        assert_ne!(one, lineage_id(&Key::new([9; 32]), repo, source, "7301"));
    }
}
