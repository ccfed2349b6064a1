//! The repository's ring: who can restore, the root key for them, and the list of sources.

use holdfast_core::{Error, Random, RepoId, Result, SourceId, Timestamp};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::{
    RING_MAX, check_recipients, decode_base64, encode_base64, read_envelopes, sign, verify, write_envelopes,
};
use crate::{
    keys::{Envelope, Identity, ProtectedIdentity, Purpose, Recipient, RootKey, RootPublic},
    names::Name,
    seal::{self, Key},
};

pub(super) const TITLE: &str = "holdfast repository ring 1";

/// A recipient, with the name that people know it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub recipient: Recipient,
}

/// A source, as the repository lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceEntry {
    pub id: SourceId,
    pub name: String,
    pub kind: String,
}

/// What a generation says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingContent {
    pub members: Vec<Member>,
    /// Identities behind passphrases, stored so that a person and the sink suffice.
    pub identities: Vec<ProtectedIdentity>,
    pub sources: Vec<SourceEntry>,
}

/// A ring whose signature was checked; what is sealed in it is not opened yet.
#[derive(Clone, Debug)]
pub struct RepositoryRing {
    pub repo: RepoId,
    pub generation: u64,
    pub created: Timestamp,
    pub recipients: Vec<Recipient>,
    pub identities: Vec<ProtectedIdentity>,
    envelopes: Vec<Envelope>,
    sealed: Vec<u8>,
}

/// What only a recipient reads.
#[derive(Clone, Debug)]
pub struct RingSecrets {
    pub root: RootKey,
    pub content: RingContent,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    repository: String,
    generation: u64,
    created: String,
    recipients: Vec<String>,
    identities: Vec<String>,
    envelopes: Vec<String>,
    sealed: String,
}

#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
struct Sealed {
    root: [u8; 32],
    /// In the order of the recipients.
    names: Vec<String>,
    #[zeroize(skip)]
    sources: Vec<SourceEntry>,
}

impl RingContent {
    /// The signed bytes of `ring/<generation>`.
    pub fn seal(
        &self,
        root: &RootKey,
        generation: u64,
        created: Timestamp,
        random: &Random,
    ) -> Result<Vec<u8>> {
        let repo = root.public()?.repo();
        let recipients: Vec<_> = self.members.iter().map(|member| member.recipient).collect();
        check_recipients(&recipients)?;
        let key = Key::new(random.array());
        let secret = Sealed {
            root: *root.bytes(),
            names: self.members.iter().map(|member| member.name.clone()).collect(),
            sources: self.sources.clone(),
        };
        let plain = postcard::to_stdvec(&secret)
            .map(Zeroizing::new)
            .map_err(|cause| Error::bug("a ring could not be encoded").because(cause))?;
        let purpose = Purpose::Ring { generation };
        let envelopes = recipients
            .iter()
            .map(|to| Envelope::seal(repo, purpose, &key, to, random))
            .collect::<Result<Vec<_>>>()?;
        let json = Json {
            repository: repo.to_string(),
            generation,
            created: created.to_string(),
            recipients: recipients.iter().map(ToString::to_string).collect(),
            identities: self.identities.iter().map(ToString::to_string).collect(),
            envelopes: write_envelopes(&envelopes),
            sealed: encode_base64(&seal::seal(&key, &aad(repo, generation), &plain)?),
        };
        sign(TITLE, root, &json)
    }
}

impl RepositoryRing {
    /// Reads what was found as `ring/<generation>`, when the root key signed it.
    pub fn open(root: &RootPublic, generation: u64, bytes: &[u8]) -> Result<Self> {
        let name = Name::Ring(generation);
        let read = || -> Result<Self> {
            let json: Json = verify(TITLE, root, bytes)?;
            let recipients = json.recipients.iter().map(|text| text.parse()).collect::<Result<Vec<_>>>()?;
            check_recipients(&recipients)?;
            Ok(Self {
                repo: json.repository.parse()?,
                generation: json.generation,
                created: json.created.parse()?,
                recipients,
                identities: json.identities.iter().map(|text| text.parse()).collect::<Result<_>>()?,
                envelopes: read_envelopes(&json.envelopes)?,
                sealed: decode_base64(&json.sealed)?,
            })
        };
        let ring = read().map_err(|e| e.during(format!("{name} is refused")))?;
        if ring.repo == root.repo() && ring.generation == generation {
            Ok(ring)
        } else {
            Err(Error::corrupt(format!(
                "{name} is refused: it was signed as generation {} of repository {}",
                ring.generation, ring.repo
            )))
        }
    }

    /// Opens what is sealed, for one of the recipients.
    pub fn secrets(&self, identity: &Identity) -> Result<RingSecrets> {
        let purpose = Purpose::Ring { generation: self.generation };
        let key = Envelope::find(&self.envelopes, self.repo, purpose, identity)?;
        let plain =
            seal::open(&key, &aad(self.repo, self.generation), &self.sealed, RING_MAX).map(Zeroizing::new)?;
        let secret: Sealed = postcard::from_bytes(&plain)
            .map_err(|cause| Error::corrupt("the sealed part of a ring cannot be read").because(cause))?;
        if secret.names.len() != self.recipients.len() {
            return Err(Error::corrupt("a ring does not name each of its recipients"));
        }
        let members = secret.names.iter().zip(&self.recipients);
        let content = RingContent {
            members: members
                .map(|(name, recipient)| Member { name: name.clone(), recipient: *recipient })
                .collect(),
            identities: self.identities.clone(),
            sources: secret.sources.clone(),
        };
        let root = RootKey::from_bytes(secret.root);
        if root.public()?.repo() == self.repo {
            Ok(RingSecrets { root, content })
        } else {
            Err(Error::corrupt("a ring holds the root key of another repository"))
        }
    }
}

fn aad(repo: RepoId, generation: u64) -> Vec<u8> {
    [&repo.0[..], &generation.to_le_bytes()].concat()
}
