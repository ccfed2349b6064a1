//! The epoch object: one writer's claim, and the epoch's data key sealed to the recipients. Never removed.
//!
//! Invariant: authenticated under the source key, so the store's owner cannot make one, and what it says of
//! writer, instance and ring is what its writer said.

use holdfast_core::{Epoch, Error, LineageId, Random, RepoId, Result, Timestamp, WriterId};

use crate::{
    keys::{Envelope, Identity, Purpose, Recipient},
    names::Stream,
    seal::{Key, purpose},
    wire::{Reader, put_epoch},
};

const MAGIC: [u8; 8] = *b"HFepoch\0";
const VERSION: u16 = 1;
const MAC: usize = 32;
/// Most recipients of a ring.
pub const RECIPIENTS_MAX: usize = 64;
/// Largest epoch object.
pub const EPOCH_MAX: usize = 128 + RECIPIENTS_MAX * Envelope::LEN;

/// A state folder's own random id: the same instance may claim again at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub [u8; 16]);

/// What a claim says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochObject {
    pub lineage: LineageId,
    pub epoch: Epoch,
    pub writer: WriterId,
    pub instance: InstanceId,
    /// Generation of the source's ring whose recipients it seals to.
    pub ring: u64,
    /// The writer's clock.
    pub claimed: Timestamp,
    envelopes: Vec<Envelope>,
}

/// What a writer claims with.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub repo: RepoId,
    pub lineage: LineageId,
    pub epoch: Epoch,
    pub writer: WriterId,
    pub instance: InstanceId,
    pub ring: u64,
    pub claimed: Timestamp,
    /// From a ring whose signature was checked.
    pub recipients: &'a [Recipient],
}

impl Claim<'_> {
    /// The object's bytes and the fresh data key of the epoch.
    pub fn seal(&self, source_key: &Key, random: &Random) -> Result<(Vec<u8>, Key)> {
        if self.recipients.is_empty() || self.recipients.len() > RECIPIENTS_MAX {
            return Err(Error::configure(format!(
                "a ring has {} recipients where 1 to {RECIPIENTS_MAX} are possible",
                self.recipients.len()
            )));
        }
        let data_key = Key::new(random.array());
        let purpose = Purpose::Data { lineage: self.lineage, epoch: self.epoch };
        let envelopes = self
            .recipients
            .iter()
            .map(|to| Envelope::seal(self.repo, purpose, &data_key, to, random))
            .collect::<Result<_>>()?;
        let object = EpochObject {
            lineage: self.lineage,
            epoch: self.epoch,
            writer: self.writer,
            instance: self.instance,
            ring: self.ring,
            claimed: self.claimed,
            envelopes,
        };
        Ok((object.bytes(source_key), data_key))
    }
}

impl EpochObject {
    /// Reads and proves an epoch object that was found as `epoch` of `stream`.
    pub fn open(source_key: &Key, stream: Stream, epoch: Epoch, bytes: &[u8]) -> Result<Self> {
        let name = || stream.epoch(epoch);
        let damaged = || Error::corrupt(format!("{} is damaged", name()));
        let (signed, mac) = bytes.split_last_chunk::<MAC>().ok_or_else(damaged)?;
        let object = Self::parse(signed).map_err(|e| e.during(format!("{} cannot be read", name())))?;
        if !source_key.derive(purpose::EPOCH, &[]).check(signed, mac) {
            return Err(Error::corrupt(format!(
                "{} was not written with this source's key, or is damaged",
                name()
            )));
        }
        if (object.lineage, object.epoch) != (stream.lineage, epoch) {
            return Err(Error::corrupt(format!("{} holds another epoch: objects were swapped", name())));
        }
        Ok(object)
    }

    /// The epoch's data key, for one of its recipients.
    pub fn data_key(&self, repo: RepoId, identity: &Identity) -> Result<Key> {
        let purpose = Purpose::Data { lineage: self.lineage, epoch: self.epoch };
        Envelope::find(&self.envelopes, repo, purpose, identity)
            .map_err(|e| e.during(format!("the data key of epoch {} cannot be opened", self.epoch)))
    }

    fn bytes(&self, source_key: &Key) -> Vec<u8> {
        let mut out = Vec::with_capacity(EPOCH_MAX);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(self.envelopes.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.lineage.0);
        put_epoch(&mut out, self.epoch);
        out.extend_from_slice(&self.writer.0);
        out.extend_from_slice(&self.instance.0);
        out.extend_from_slice(&self.ring.to_le_bytes());
        out.extend_from_slice(&self.claimed.0.to_le_bytes());
        for envelope in &self.envelopes {
            out.extend_from_slice(&envelope.bytes());
        }
        let mac = source_key.derive(purpose::EPOCH, &[]).mac(&out);
        out.extend_from_slice(&mac);
        out.shrink_to_fit();
        out
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        reader.begin(MAGIC, VERSION, "an epoch object")?;
        let count = usize::from(reader.u16()?);
        if !(1..=RECIPIENTS_MAX).contains(&count) {
            return Err(Error::corrupt(format!("an epoch object claims {count} recipients")));
        }
        let mut object = Self {
            lineage: reader.lineage()?,
            epoch: reader.epoch()?,
            writer: WriterId(reader.array()?),
            instance: InstanceId(reader.array()?),
            ring: reader.u64()?,
            claimed: Timestamp(reader.u64()?.cast_signed()),
            envelopes: Vec::with_capacity(count),
        };
        for _ in 0..count {
            object.envelopes.push(Envelope::from_bytes(&reader.array()?)?);
        }
        reader.end()?;
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::SourceId;

    use super::*;

    #[test]
    fn an_epoch_gives_its_key_to_its_recipients_and_refuses_every_flip() {
        let random = Random::seeded(5);
        let (one, two, stranger) =
            (Identity::generate(&random), Identity::generate(&random), Identity::generate(&random));
        let recipients = [one.recipient().unwrap(), two.recipient().unwrap()];
        let source_key = Key::new([4; 32]);
        let stream = Stream { source: SourceId([1; 8]), lineage: LineageId([2; 8]) };
        let epoch = Epoch { number: 3, writer: WriterId([6; 8]) };
        let claim = Claim {
            repo: RepoId([9; 32]),
            lineage: stream.lineage,
            epoch,
            writer: WriterId([6; 8]),
            instance: InstanceId([7; 16]),
            ring: 8,
            claimed: Timestamp(-5),
            recipients: &recipients,
        };
        let (bytes, key) = claim.seal(&source_key, &random).unwrap();
        assert_eq!(bytes.len(), 76 + 2 * Envelope::LEN + MAC);

        let object = EpochObject::open(&source_key, stream, epoch, &bytes).unwrap();
        assert_eq!((object.instance, object.ring, object.claimed), (claim.instance, 8, claim.claimed));
        for identity in [&one, &two] {
            assert_eq!(object.data_key(claim.repo, identity).unwrap().bytes(), key.bytes());
        }
        assert!(object.data_key(claim.repo, &stranger).is_err());

        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(EpochObject::open(&source_key, stream, epoch, &flipped).is_err(), "byte {at}");
            assert!(EpochObject::open(&source_key, stream, epoch, &bytes[..at]).is_err(), "cut at {at}");
        }
        let elsewhere = EpochObject::open(&source_key, stream, Epoch::numbered(3), &bytes).unwrap_err();
        assert!(elsewhere.to_string().contains("swapped"), "{elsewhere}");
        assert!(EpochObject::open(&Key::new([5; 32]), stream, epoch, &bytes).is_err());
        assert!(Claim { recipients: &[], ..claim }.seal(&source_key, &random).is_err());
    }
}
