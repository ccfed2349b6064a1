//! A source's ring: whom its writers seal to, and what the source is. With an identity it gives the source key.

use holdfast_core::{Error, LineageId, Random, RepoId, Result, SourceId, Timestamp};
use serde::{Deserialize, Serialize};

use super::{
    RING_MAX, check_recipients, decode_base64, encode_base64, read_envelopes, sign, verify, write_envelopes,
};
use crate::{
    keys::{Envelope, Identity, Purpose, Recipient, RootKey, RootPublic, SourceKey},
    names::Name,
    seal::{self, Key, purpose},
};

pub(super) const TITLE: &str = "holdfast source ring 1";
const SALT: usize = 16;

/// What a source is; sealed under its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceContent {
    pub name: String,
    pub kind: String,
    /// Identities that may write. Empty: the first one that comes, and no other. `source adopt` adds one.
    pub lineages: Vec<String>,
}

impl SourceContent {
    /// May a source that calls itself `identity` write, as the lineage `own`? `known` are the lineages that exist.
    pub fn accepts(&self, identity: &str, own: LineageId, known: &[LineageId]) -> bool {
        if self.lineages.is_empty() {
            return known.is_empty() || known.contains(&own);
        }
        self.lineages.iter().any(|adopted| adopted == identity)
    }
}

/// A generation to be signed.
#[derive(Clone, Debug)]
pub struct SourceRingDraft<'a> {
    pub generation: u64,
    pub created: Timestamp,
    pub recipients: &'a [Recipient],
    pub key: &'a SourceKey,
    pub content: &'a SourceContent,
}

/// A ring whose signature was checked.
#[derive(Clone, Debug)]
pub struct SourceRing {
    pub repo: RepoId,
    pub source: SourceId,
    pub generation: u64,
    pub created: Timestamp,
    /// Whom a writer seals its data keys to.
    pub recipients: Vec<Recipient>,
    envelopes: Vec<Envelope>,
    sealed: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    repository: String,
    source: String,
    generation: u64,
    created: String,
    recipients: Vec<String>,
    envelopes: Vec<String>,
    sealed: String,
}

impl SourceRingDraft<'_> {
    /// The signed bytes of `<source>/ring/<generation>`.
    pub fn seal(&self, root: &RootKey, random: &Random) -> Result<Vec<u8>> {
        let (repo, source) = (self.key.repo, self.key.source);
        if root.public()?.repo() != repo {
            return Err(Error::configure("the source key belongs to another repository than the root key"));
        }
        check_recipients(self.recipients)?;
        let purpose = Purpose::Source { source };
        let envelopes = self
            .recipients
            .iter()
            .map(|to| Envelope::seal(repo, purpose, &self.key.key, to, random))
            .collect::<Result<Vec<_>>>()?;
        let plain = postcard::to_stdvec(self.content)
            .map_err(|cause| Error::bug("a source could not be encoded").because(cause))?;
        let salt: [u8; SALT] = random.array();
        let mut sealed = salt.to_vec();
        let key = self.key.key.derive(purpose::SOURCE_RECORD, &salt);
        seal::seal_into(&mut sealed, &key, &aad(source, self.generation), &plain)?;
        let json = Json {
            repository: repo.to_string(),
            source: source.to_string(),
            generation: self.generation,
            created: self.created.to_string(),
            recipients: self.recipients.iter().map(ToString::to_string).collect(),
            envelopes: write_envelopes(&envelopes),
            sealed: encode_base64(&sealed),
        };
        sign(TITLE, root, &json)
    }
}

impl SourceRing {
    /// Reads what was found as `<source>/ring/<generation>`, when the root key signed it.
    pub fn open(root: &RootPublic, source: SourceId, generation: u64, bytes: &[u8]) -> Result<Self> {
        let name = Name::SourceRing { source, generation };
        let read = || -> Result<Self> {
            let json: Json = verify(TITLE, root, bytes)?;
            let recipients = json.recipients.iter().map(|text| text.parse()).collect::<Result<Vec<_>>>()?;
            check_recipients(&recipients)?;
            Ok(Self {
                repo: json.repository.parse()?,
                source: json.source.parse()?,
                generation: json.generation,
                created: json.created.parse()?,
                recipients,
                envelopes: read_envelopes(&json.envelopes)?,
                sealed: decode_base64(&json.sealed)?,
            })
        };
        let ring = read().map_err(|e| e.during(format!("{name} is refused")))?;
        if (ring.repo, ring.source, ring.generation) == (root.repo(), source, generation) {
            Ok(ring)
        } else {
            Err(Error::corrupt(format!(
                "{name} is refused: it was signed as generation {} of source {} in repository {}",
                ring.generation, ring.source, ring.repo
            )))
        }
    }

    /// The source key, for one of the recipients.
    pub fn source_key(&self, identity: &Identity) -> Result<SourceKey> {
        let purpose = Purpose::Source { source: self.source };
        let key = Envelope::find(&self.envelopes, self.repo, purpose, identity)?;
        Ok(SourceKey { repo: self.repo, source: self.source, key })
    }

    /// What the source is, for who has its key.
    pub fn content(&self, source_key: &Key) -> Result<SourceContent> {
        let (salt, sealed) = self
            .sealed
            .split_first_chunk::<SALT>()
            .ok_or_else(|| Error::corrupt("the sealed part of a ring is cut short"))?;
        let key = source_key.derive(purpose::SOURCE_RECORD, salt);
        let plain = seal::open(&key, &aad(self.source, self.generation), sealed, RING_MAX).map_err(|e| {
            e.during(format!("the record of source {} does not open with this source key", self.source))
        })?;
        postcard::from_bytes(&plain)
            .map_err(|cause| Error::corrupt("the record of a source cannot be read").because(cause))
    }
}

fn aad(source: SourceId, generation: u64) -> Vec<u8> {
    [&source.0[..], &generation.to_le_bytes()].concat()
}
