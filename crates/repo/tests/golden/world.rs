//! One small repository with every kind of object in it, made from a seed: the same bytes each time.

use std::collections::BTreeMap;

use holdfast_core::{
    Branch, Bytes, Catalog, Checkpoint, Cursor, Epoch, Extent, Gap, Held, Layer, Mark, MarkKind, Note,
    PackId, PieceId, Place, Random, Row, RunId, RunProgress, Sample, Span, StateObject, Timestamp, WriterId,
    digest, sink::Body,
};
use holdfast_repo::{
    entry::{Entry, Marks, Predecessor, Took},
    epoch::{Claim, InstanceId},
    keys::{Cost, Identity, ProtectedIdentity, Recipient, RootKey, SourceKey},
    layer::StateBuilder,
    merged::Merger,
    names::{Name, Stream, lineage_id},
    object::{self, End, Header, ObjectId, SealedObject},
    pack::{PackBuilder, seal_piece},
    record::{Hold, LineageRecord, Origin},
    ring::{Member, RepoRecord, RingContent, SourceContent, SourceEntry, SourceRingDraft},
    seal::Key,
};

pub const IDENTITY_TEXT: &str = "system identifier 7301234567890123456";
pub const PASSPHRASE: &str = "correct horse battery staple";
pub const HOLD: [u8; 8] = [0x77; 8];
pub const FIRST: Epoch = Epoch::numbered(1);
pub const SECOND: Epoch = Epoch::numbered(2);
/// 2026-11-30T12:00:00Z.
pub const NOON: i64 = 1_796_040_000_000_000;
/// Of the golden piece.
pub const CONTENT: &[u8] = b"the content of a piece";

pub fn at(seconds: i64) -> Timestamp {
    Timestamp(NOON + seconds * 1_000_000)
}

pub fn span(from: u64, to: u64) -> Span {
    Span { branch: Branch(1), from, to }
}

/// Log bytes of the object `number` of the first epoch.
pub fn log_of(number: u64) -> Vec<Bytes> {
    match number {
        1 => vec![Bytes::from_static(b"one record, "), Bytes::from_static(b"another record")],
        // Long and dull, so that it is compressed.
        2 => vec![Bytes::from("the same record again; ".repeat(100))],
        _ => vec![],
    }
}

pub fn recipients(members: &[Member]) -> Vec<Recipient> {
    members.iter().map(|member| member.recipient).collect()
}

pub struct World {
    pub identity: Identity,
    pub paper: ProtectedIdentity,
    pub root: RootKey,
    pub source_key: SourceKey,
    pub stream: Stream,
    pub ring: RingContent,
    pub source: SourceContent,
    pub extent: Extent,
    pub state: StateObject,
    /// Digests of the objects of the first epoch, then of its END, then of number 0 of the second.
    pub digests: Vec<[u8; 32]>,
    pub objects: BTreeMap<String, Vec<u8>>,
}

pub fn row(extent: Extent) -> Row {
    let held = vec![Held { extent, hash: digest(CONTENT) }];
    Row { key: Bytes::from_static(b"base/1/1259"), value: Bytes::from_static(b"8192"), held }
}

pub fn header(number: u64) -> Header {
    Header {
        spans: match number {
            1 => vec![span(100, 126)],
            2 => vec![span(126, 2426), Span { branch: Branch(2), from: 7, to: 7 }],
            _ => vec![],
        },
        written: at(number as i64),
        uptime: 1_000_000 * number,
        vouched: (number > 0).then(|| at(number as i64 - 1)),
        marks: (number == 1).then(|| (at(0), at(1))),
        mark_count: if number == 1 { 3 } else { 0 },
        heartbeat: 20_000,
        catalog: (number == 3).then_some((FIRST, 3)),
        release: number == 3,
    }
}

pub fn marks() -> Vec<Mark> {
    let mark = |begin, end, time, kind| Mark { begin, place: span(0, end).end(), time, kind };
    vec![
        mark(100, 112, at(0), MarkKind::Commit { id: 741 }),
        mark(112, 120, at(1), MarkKind::Name("before the release".into())),
        mark(120, 126, Timestamp(NOON + 500_000), MarkKind::Tick),
    ]
}

fn layer(state: &StateObject) -> Layer {
    Layer { objects: vec![state.clone()] }
}

fn checkpoint(state: &StateObject) -> Checkpoint {
    Checkpoint {
        id: RunId([0xc4; 8]),
        begin: Place { branch: Branch(1), position: 100 },
        serves: Place { branch: Branch(1), position: 126 },
        began: at(0),
        ended: at(2),
        layers: vec![layer(state)],
        rows: 1,
        bytes: 22,
        sent: 43,
        suspect: Some("page checksum of base/1/1259".into()),
        body: Bytes::from_static(b"manifest"),
    }
}

fn progress(state: &StateObject) -> RunProgress {
    RunProgress {
        id: RunId([0xc5; 8]),
        began: at(3),
        layers: vec![layer(state)],
        body: Bytes::from_static(b"run"),
    }
}

fn gap() -> Gap {
    Gap { span: span(3000, 4000), cause: "the slot was lost".into(), noticed: at(4) }
}

fn note() -> Note {
    Note {
        place: span(0, 126).end(),
        time: at(1),
        body: Bytes::from_static(b"2\t0/7E\tno recovery target\n"),
    }
}

pub fn catalog(state: &StateObject) -> Catalog {
    Catalog {
        checkpoints: vec![checkpoint(state)],
        runs: vec![progress(state)],
        gaps: vec![gap()],
        notes: vec![note()],
        samples: vec![Sample { epoch: FIRST, number: 2, place: span(0, 2426).end(), time: at(1) }],
        spans: vec![span(100, 2426)],
    }
}

/// Every kind of entry once, in the order of the enum.
pub fn all_entries(state: &StateObject) -> Vec<Entry> {
    vec![
        Entry::Log { span: span(100, 126), offset: 0, length: 26, whole: true },
        Entry::Marks(Marks(marks())),
        Entry::Note(note()),
        Entry::Gap(gap()),
        Entry::Progress(progress(state)),
        Entry::Checkpoint(Box::new(checkpoint(state))),
        Entry::Abandoned(RunId([0xc6; 8])),
        Entry::Cursor(Cursor(Bytes::from_static(b"1 0/7E"))),
        Entry::Catalog(Box::new(catalog(state))),
        Entry::Took(Took {
            predecessor: Some(Predecessor { epoch: FIRST, last: 3, digest: [0xd1; 32] }),
            dead: vec![Epoch { number: 2, writer: WriterId([9; 8]) }],
            closed: vec![FIRST],
        }),
        Entry::Clocks { source: Some(at(1)), host: at(2), store: None },
        Entry::Cut { name: "friday".into(), began: at(3) },
        Entry::Doom { names: vec!["packs/0000000000000001/0000000000000007".into()] },
        Entry::Release,
    ]
}

pub fn entries_of(number: u64, state: &StateObject) -> Vec<Entry> {
    match number {
        0 => vec![Entry::Took(Took::default()), Entry::Cursor(Cursor(Bytes::from_static(b"1 0/64")))],
        1 => vec![
            Entry::Log { span: span(100, 126), offset: 0, length: 26, whole: true },
            Entry::Marks(Marks(marks())),
            Entry::Cursor(Cursor(Bytes::from_static(b"1 0/7E"))),
        ],
        2 => vec![Entry::Log { span: span(126, 2426), offset: 0, length: 2300, whole: false }],
        _ => all_entries(state),
    }
}

pub fn world() -> World {
    let random = Random::seeded(2026);
    let identity = Identity::generate(&random);
    let paper_identity = Identity::generate(&random);
    let cost = Cost { memory: 19 << 10, passes: 2, lanes: 1 };
    let paper = ProtectedIdentity::protect(&paper_identity, PASSPHRASE, cost, &random).unwrap();
    let root = RootKey::generate(&random);
    let record = RepoRecord { root: root.public().unwrap(), created: at(0) };
    let repo = record.repo();
    let source_key = SourceKey::generate(repo, &random);
    let key = &source_key.key;
    let stream = Stream {
        source: source_key.source,
        lineage: lineage_id(key, repo, source_key.source, IDENTITY_TEXT),
    };

    let ring = RingContent {
        members: vec![
            Member { name: "Anna".into(), recipient: identity.recipient().unwrap() },
            Member { name: "paper in the safe".into(), recipient: paper.recipient().unwrap() },
        ],
        identities: vec![paper.clone()],
        sources: vec![SourceEntry { id: source_key.source, name: "main".into(), kind: "postgres".into() }],
    };
    let source =
        SourceContent { name: "main".into(), kind: "postgres".into(), lineages: vec![IDENTITY_TEXT.into()] };
    let recipients = recipients(&ring.members);

    let mut objects = BTreeMap::new();
    let mut add = |name: Name, bytes: Vec<u8>| assert!(objects.insert(name.to_string(), bytes).is_none());
    add(Name::Repo, record.write().unwrap());
    add(Name::Format(1), Vec::new());
    add(Name::Ring(1), ring.seal(&root, 1, at(0), &random).unwrap());
    let draft = SourceRingDraft {
        generation: 1,
        created: at(0),
        recipients: &recipients,
        key: &source_key,
        content: &source,
    };
    let generation = Name::SourceRing { source: stream.source, generation: 1 };
    add(generation, draft.seal(&root, &random).unwrap());
    let lineage = LineageRecord {
        identity: IDENTITY_TEXT.into(),
        created: at(0),
        origin: Origin::Adopted { by: "Anna".into() },
    };
    add(Name::Lineage(stream), lineage.seal(key, stream, &random).unwrap());
    let hold = Hold { host: "restore-1".into(), purpose: "restore to noon".into(), written: at(9) };
    let name = Name::Hold { source: stream.source, hold: HOLD, renewal: 0 };
    add(name, hold.seal(key, stream.source, HOLD, 0, &random).unwrap());

    let mut claim = |epoch: Epoch| -> Key {
        let claim = Claim {
            repo,
            lineage: stream.lineage,
            epoch,
            writer: WriterId([epoch.number as u8; 8]),
            instance: InstanceId([0x11; 16]),
            ring: 1,
            claimed: at(0),
            recipients: &recipients,
        };
        let (bytes, data_key) = claim.seal(key, &random).unwrap();
        add(Name::Epoch { stream, epoch }, bytes);
        data_key
    };
    let data_key = claim(FIRST);
    claim(SECOND);

    let mut pack = PackBuilder::new(key, stream, PackId { epoch: FIRST, number: 0 }, &random);
    let extent = pack.push(seal_piece(&data_key, FIRST, PieceId(random.array()), CONTENT).unwrap());
    add(Name::Pack { stream, epoch: FIRST, number: 0 }, pack.finish().unwrap().concat().to_vec());
    let mut table = StateBuilder::new(key, stream, FIRST, 0, &random);
    table.push(&row(extent)).unwrap();
    let (body, state) = table.finish().unwrap();
    add(Name::State { stream, epoch: FIRST, number: 0 }, body.concat().to_vec());

    let mut digests = vec![[0; 32]];
    let mut bodies: Vec<Body> = Vec::new();
    let mut put = |object: SealedObject| {
        let ObjectId { epoch, number, .. } = object.id;
        add(Name::Log { stream, epoch, number }, object.body.concat().to_vec());
        bodies.push(object.body);
        object.digest
    };
    let id = |epoch, number| ObjectId { lineage: stream.lineage, epoch, number };
    for number in 0..4 {
        let entries = entries_of(number, &state);
        let body =
            object::seal_body(key, &data_key, id(FIRST, number), random.array(), &entries, &log_of(number))
                .unwrap();
        let previous = digests[digests.len() - 1];
        digests.push(put(object::seal_header(key, &header(number), &body, previous).unwrap()));
    }
    let last = digests[4];
    let end = End { by: SECOND, written: at(60) };
    digests.push(put(object::seal_end(key, id(FIRST, 4), random.array(), end, last).unwrap()));
    let took = Took {
        predecessor: Some(Predecessor { epoch: FIRST, last: 3, digest: last }),
        dead: vec![],
        closed: vec![FIRST],
    };
    let entries = [Entry::Took(took), Entry::Cursor(Cursor(Bytes::from_static(b"1 0/7E")))];
    let body = object::seal_body(key, &data_key, id(SECOND, 0), random.array(), &entries, &[]).unwrap();
    digests.push(put(object::seal_header(key, &header(0), &body, last).unwrap()));
    digests.remove(0);

    let mut merger = Merger::default();
    merger.push(&bodies[1]).unwrap();
    merger.push(&bodies[2]).unwrap();
    let merged = merger.finish(key).unwrap();
    add(Name::Merged { stream, epoch: FIRST, from: 1, to: 2 }, merged.body.concat().to_vec());

    World { identity, paper, root, source_key, stream, ring, source, extent, state, digests, objects }
}
