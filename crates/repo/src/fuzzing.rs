//! Entry points of the fuzz targets (`integration/fuzz`): each decoder, fed with bytes from outside. Where a
//! cipher or a signature guards it, the bytes also come as if their author had the key. What is read must be
//! read again from what it is written as; all else must be an error, and nothing may panic.

use bytes::Bytes;
use holdfast_core::{Epoch, Extent, LineageId, PackId, PieceId, SourceId, StateObject};

use crate::{
    entry,
    epoch::EpochObject,
    keys::{Identity, ProtectedIdentity, Recipient, RootKey, SourceKey},
    layer::{self, PageRows, StateIndex},
    marks,
    merged::{self, Head},
    names::{Name, Stream},
    object::{self, End, Header, ObjectId},
    pack,
    record::{Hold, LineageRecord},
    ring::{self, RepoRecord, RepositoryRing},
    seal::{self, Key},
    wire::Reader,
};

/// A decoder under test.
pub type Target = (&'static str, fn(&[u8]));

/// All of them, by the name of their target and of their folder in the corpus.
pub const TARGETS: &[Target] = &[
    ("sealed", sealed),
    ("entries", entries),
    ("marks", log_marks),
    ("log_object", log_object),
    ("headers", headers),
    ("merged", merged_object),
    ("epoch", epoch),
    ("ring", rings),
    ("repo_json", repo_json),
    ("record", record),
    ("keys", keys),
    ("names", names),
    ("pack", pack_end),
    ("state", state),
    ("page", page),
];

const EPOCH: Epoch = Epoch::numbered(1);
const STREAM: Stream = Stream { source: SourceId([1; 8]), lineage: LineageId([2; 8]) };
/// Most that is opened; what claims more must be refused before it is allocated.
const CAP: usize = 1 << 20;

/// Runs one target by its name.
pub fn run(target: &str, bytes: &[u8]) {
    if let Some((_, decode)) = TARGETS.iter().find(|(name, _)| *name == target) {
        decode(bytes);
    }
}

fn key() -> Key {
    Key::new([3; 32])
}

fn sealed(bytes: &[u8]) {
    assert!(seal::open(&key(), b"", bytes, CAP).is_err(), "bytes were forged without a key");
    let mut reader = Reader::new(bytes);
    if let (Ok(codec), Ok(opened)) = (reader.u8(), reader.u32())
        && let Ok(forged) = seal::forge(&key(), b"", codec, opened, bytes.get(5..).unwrap_or_default())
        && let Ok(plain) = seal::open(&key(), b"", &forged, CAP)
    {
        assert_eq!(plain.len(), opened as usize);
    }
}

fn entries(bytes: &[u8]) {
    if let Ok(entries) = entry::decode(bytes) {
        let again = entry::encode(&entries).and_then(|bytes| entry::decode(&bytes));
        assert_eq!(again.ok(), Some(entries));
    }
}

fn log_marks(bytes: &[u8]) {
    if let Ok(read) = marks::decode(bytes) {
        assert_eq!(marks::decode(&marks::encode(&read)).ok(), Some(read));
    }
}

fn log_object(bytes: &[u8]) {
    let whole = Bytes::copy_from_slice(bytes);
    if let Ok(prelude) = object::parse_prelude(bytes) {
        assert!(prelude.object_len() <= holdfast_core::sink::OBJECT_MAX);
        let part = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
        let _ = object::check_front(&prelude, bytes);
        let _ = object::open_entries(&key(), &prelude, part(prelude.key_range()));
        let _ = object::open_closed(&key(), &prelude, part(prelude.closed_range()));
    }
    let _ = object::check_object(&whole);
    assert!(object::open_front(&key(), bytes).is_err(), "an object was forged without a key");
}

fn headers(bytes: &[u8]) {
    let id = ObjectId { lineage: STREAM.lineage, epoch: EPOCH, number: 1 };
    let _ = object::decode::<Header>(id, bytes);
    let _ = object::decode::<End>(id, bytes);
}

fn merged_object(bytes: &[u8]) {
    let _ = Head::needed(bytes);
    if let Ok(head) = Head::read(None, bytes) {
        let last = head.originals().last();
        assert_eq!(last.map(|original| original.body.end), Some(head.object_len()));
    }
    let _ = merged::check_merged(&Bytes::copy_from_slice(bytes));
    assert!(Head::read(Some(&key()), bytes).is_err(), "a merged object was forged without a key");
}

fn epoch(bytes: &[u8]) {
    let _ = EpochObject::parse(bytes);
    assert!(EpochObject::open(&key(), STREAM, EPOCH, bytes).is_err(), "an epoch was forged without a key");
}

fn rings(bytes: &[u8]) {
    let root = RootKey::from_bytes([5; 32]);
    if let Ok(public) = root.public() {
        assert!(RepositoryRing::open(&public, 1, bytes).is_err(), "a ring was forged without a key");
    }
    if let Ok(json) = std::str::from_utf8(bytes) {
        let _ = ring::read_as_signed(&root, json);
    }
}

fn repo_json(bytes: &[u8]) {
    if let Ok(record) = RepoRecord::read_any(bytes) {
        let again = record.write().and_then(|bytes| RepoRecord::read(&bytes, record.repo()));
        assert_eq!(again.ok(), Some(record));
    }
}

fn record(bytes: &[u8]) {
    assert!(LineageRecord::open(&key(), STREAM, bytes).is_err(), "a record was forged without a key");
    assert!(Hold::open(&key(), STREAM.source, [0; 8], 0, bytes).is_err(), "a hold was forged without a key");
    let _ = postcard::from_bytes::<LineageRecord>(bytes);
    let _ = postcard::from_bytes::<Hold>(bytes);
}

fn keys(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(identity) = text.parse::<Identity>() {
        assert!(identity.text().parse::<Identity>().is_ok());
    }
    if let Ok(recipient) = text.parse::<Recipient>() {
        assert_eq!(recipient.to_string().parse::<Recipient>().ok(), Some(recipient));
    }
    if let Ok(protected) = text.parse::<ProtectedIdentity>() {
        assert_eq!(protected.to_string().parse::<ProtectedIdentity>().ok(), Some(protected));
    }
    if let Ok(key) = text.parse::<SourceKey>() {
        assert!(key.file(text).parse::<SourceKey>().is_ok());
    }
}

fn names(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(name) = text.parse::<Name>()
    {
        assert_eq!(name.to_string(), text);
    }
}

fn pack_end(bytes: &[u8]) {
    let id = PackId { epoch: EPOCH, number: 0 };
    let size = bytes.len() as u64;
    let pieces = pack::read_end(&key(), STREAM, id, size, bytes);
    assert!(!matches!(pieces, Ok(pack::End::Pieces(_))), "a pack was forged without a key");
    let _ = pack::check_digest("pack", bytes);
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let piece = PieceId([4; 16]);
    let extent = Extent { pack: id, offset: 8, length, opened: 100, key_epoch: EPOCH, piece };
    assert!(pack::open_piece(&key(), &extent, bytes).is_err(), "a piece was forged without a key");
}

fn state(bytes: &[u8]) {
    let (first, last, size) = (Bytes::new(), Bytes::new(), bytes.len() as u64);
    let object = StateObject { epoch: EPOCH, number: 0, first, last, rows: 1, bytes: size };
    let index = StateIndex::read(&key(), STREAM, &object, bytes);
    assert!(!matches!(index, Ok(layer::End::Index(_))), "a table layer was forged without a key");
    let _ = layer::summary(&key(), STREAM, &object, bytes);
    let _ = layer::check_digest("state", bytes);
}

fn page(bytes: &[u8]) {
    let mut rows = PageRows::new(Bytes::copy_from_slice(bytes));
    let mut before: Option<Bytes> = None;
    while let Ok(Some(row)) = rows.next() {
        assert!(before.is_none_or(|before| before < row.key), "rows of a page are out of order");
        before = Some(row.key);
    }
}
