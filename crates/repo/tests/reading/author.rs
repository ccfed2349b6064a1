//! Writes lineages into a memory sink, object by object, as a writer would and as tests need.

use std::{ops::RangeInclusive, sync::Arc};

use bytes::Bytes;
use holdfast_core::{
    Branch, Catalog, Epoch, Extent, Held, Mark, MarkKind, PackId, PieceId, Place, Random, Sink, Span,
    Timestamp, WriterId, digest, sink::Body,
};
use holdfast_repo::{
    catalog,
    chain::{Access, At, Chain},
    entry::{Entry, Marks, Predecessor, Took},
    epoch::{Claim, InstanceId},
    keys::{Identity, RootKey, SourceKey},
    merged::Merger,
    names::{self, Stream},
    object::{self, End, Header, ObjectId},
    pack::{PackBuilder, seal_piece},
    record::{LineageRecord, Origin},
    ring::{Member, RepoRecord, RingContent, SourceContent, SourceEntry, SourceRingDraft},
    seal::Key,
};
use holdfast_testkit::MemorySink;

pub struct Author {
    pub sink: Arc<MemorySink>,
    pub root: RootKey,
    pub identity: Identity,
    pub source_key: SourceKey,
    pub stream: Stream,
    pub random: Random,
    pub epoch: Epoch,
    pub number: u64,
    pub digest: [u8; 32],
    pub catalog: Catalog,
    pub catalog_at: Option<At>,
    pub position: u64,
    pub branch: u64,
    /// Does the store refuse existing names? Else epochs carry writer ids and nothing is ended.
    pub create_only: bool,
    data_key: Key,
    packs: u64,
}

/// What one object is to hold.
#[derive(Default)]
pub struct Batch {
    pub bytes: usize,
    pub marks: Vec<u64>,
    pub entries: Vec<Entry>,
    pub catalog: bool,
}

impl Author {
    /// A repository with one source and one lineage, whose first epoch is claimed.
    pub async fn new() -> Self {
        Self::on(true).await
    }

    pub async fn on(create_only: bool) -> Self {
        let random = Random::seeded(77);
        let root = RootKey::generate(&random);
        let identity = Identity::generate(&random);
        let record = RepoRecord { root: root.public().unwrap(), created: Timestamp(1) };
        let source_key = SourceKey::generate(record.repo(), &random);
        let lineage = names::lineage_id(&source_key.key, record.repo(), source_key.source, "7301");
        let mut author = Self {
            sink: Arc::new(if create_only { MemorySink::create_only() } else { MemorySink::overwriting() }),
            create_only,
            root,
            identity,
            stream: Stream { source: source_key.source, lineage },
            source_key,
            random,
            epoch: Epoch::numbered(0),
            number: 0,
            digest: [0; 32],
            catalog: Catalog::default(),
            catalog_at: None,
            position: 1000,
            branch: 1,
            data_key: Key::new([0; 32]),
            packs: 0,
        };
        author.put("repo.json", record.write().unwrap()).await;
        author.rings(1).await;
        let record =
            LineageRecord { identity: "7301".into(), created: Timestamp(2), origin: Origin::FirstStart };
        let record = record.seal(&author.source_key.key, author.stream, &author.random).unwrap();
        author.put(&author.stream.lineage_record(), record).await;
        author.claim(1).await;
        author
    }

    pub async fn rings(&self, generation: u64) {
        let recipient = self.identity.recipient().unwrap();
        let content = RingContent {
            members: vec![Member { name: "Anna".into(), recipient }],
            identities: Vec::new(),
            sources: vec![SourceEntry {
                id: self.source_key.source,
                name: "main".into(),
                kind: "postgres".into(),
            }],
        };
        let ring = content.seal(&self.root, generation, Timestamp(3), &self.random).unwrap();
        self.put(&names::Name::Ring(generation).to_string(), ring).await;
        let content = SourceContent { name: "main".into(), kind: "postgres".into(), lineages: Vec::new() };
        let recipients = [recipient];
        let draft = SourceRingDraft {
            generation,
            created: Timestamp(3),
            recipients: &recipients,
            key: &self.source_key,
            content: &content,
        };
        let ring = draft.seal(&self.root, &self.random).unwrap();
        let name = names::Name::SourceRing { source: self.source_key.source, generation };
        self.put(&name.to_string(), ring).await;
    }

    pub async fn put(&self, name: &str, body: impl Into<Body>) {
        let created = self.sink.create(name, body.into()).await.unwrap();
        assert_eq!(created, holdfast_core::sink::Created::New, "{name}");
    }

    pub fn access(&self) -> Access {
        Access { sink: self.sink.clone(), stream: self.stream, source_key: self.source_key.key.clone() }
    }

    pub async fn chain(&self) -> Chain {
        Chain::open(self.access()).await.unwrap().unwrap()
    }

    /// Claims only: an epoch without a number 0.
    pub async fn claim_dead(&mut self, number: u64) -> Key {
        self.claim_epoch(self.epoch_of(number)).await
    }

    pub fn epoch_of(&self, number: u64) -> Epoch {
        if self.create_only {
            return Epoch::numbered(number);
        }
        // Any, and so that writers do not come in order.
        let [a, ..] = *digest(&number.to_le_bytes()).first_chunk::<8>().unwrap();
        Epoch { number, writer: WriterId([a; 8]) }
    }

    async fn claim_epoch(&mut self, epoch: Epoch) -> Key {
        let recipients = [self.identity.recipient().unwrap()];
        let claim = Claim {
            repo: self.source_key.repo,
            lineage: self.stream.lineage,
            epoch,
            writer: WriterId([1; 8]),
            instance: InstanceId([2; 16]),
            ring: 1,
            claimed: Timestamp(4),
            recipients: &recipients,
        };
        let (bytes, key) = claim.seal(&self.source_key.key, &self.random).unwrap();
        self.put(&self.stream.epoch(epoch), bytes).await;
        key
    }

    /// Claims, takes over all that was written, and writes number 0.
    pub async fn claim(&mut self, number: u64) {
        self.data_key = self.claim_dead(number).await;
        let predecessor = (self.digest != [0; 32]).then_some(Predecessor {
            epoch: self.epoch,
            last: self.number.saturating_sub(1),
            digest: self.digest,
        });
        if predecessor.is_some() && self.create_only {
            self.end(self.epoch, self.number, number).await;
        }
        self.epoch = self.epoch_of(number);
        self.number = 0;
        self.packs = 0;
        let took = Took { predecessor, dead: Vec::new(), closed: Vec::new() };
        self.write(Batch { entries: vec![Entry::Took(took)], ..Batch::default() }).await;
    }

    pub async fn end(&self, epoch: Epoch, number: u64, by: u64) {
        let id = ObjectId { lineage: self.stream.lineage, epoch, number };
        let end = End { by: Epoch::numbered(by), written: Timestamp(5) };
        let end = object::seal_end(&self.source_key.key, id, self.random.array(), end, self.digest).unwrap();
        self.put(&self.stream.log(epoch, number), end.body).await;
    }

    /// Log bytes are a function of their position, so that readers can be checked; they do not compress.
    pub fn log_bytes(branch: u64, from: u64, to: u64) -> Bytes {
        let word = |at: u64| {
            let word = (at / 8 + branch).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> (at % 8 * 8)) as u8
        };
        (from..to).map(word).collect::<Vec<_>>().into()
    }

    pub fn span(&self, bytes: u64) -> Span {
        Span { branch: Branch(self.branch), from: self.position, to: self.position + bytes }
    }

    /// Writes the next object: log bytes in up to three entries, a mark a time given, evenly spread.
    pub async fn write(&mut self, batch: Batch) -> At {
        let at = (self.epoch, self.number);
        let id = ObjectId { lineage: self.stream.lineage, epoch: self.epoch, number: self.number };
        let span = self.span(batch.bytes as u64);
        let mut entries = batch.entries;
        let mut offset = 0;
        for part in 0..3u32 {
            let length = if part == 2 { batch.bytes as u32 - offset } else { batch.bytes as u32 / 3 };
            if length > 0 {
                let from = span.from + u64::from(offset);
                let span = Span { from, to: from + u64::from(length), ..span };
                entries.push(Entry::Log { span, offset, length, whole: true });
                offset += length;
            }
        }
        let step = span.len() / (batch.marks.len() as u64).max(1);
        let marks: Vec<Mark> = batch
            .marks
            .iter()
            .zip(1u64..)
            .map(|(time, n)| Mark {
                begin: span.from + step * (n - 1),
                place: Place { branch: span.branch, position: span.from + step * n },
                time: Timestamp(*time as i64),
                kind: MarkKind::Commit { id: *time },
            })
            .collect();
        let times = || marks.iter().map(|mark| mark.time);
        let marks_range = times().min().zip(times().max());
        let mark_count = marks.len() as u32;
        if !marks.is_empty() {
            entries.push(Entry::Marks(Marks(marks)));
        }
        if batch.catalog {
            entries.push(Entry::Catalog(Box::new(self.catalog.clone())));
            self.catalog_at = Some(at);
        }
        let header = Header {
            spans: if batch.bytes > 0 { vec![span] } else { Vec::new() },
            written: Timestamp(6),
            uptime: 0,
            vouched: Some(Timestamp(self.position as i64)),
            marks: marks_range,
            mark_count,
            heartbeat: 20_000,
            catalog: self.catalog_at,
            release: false,
        };
        let closed = Self::log_bytes(self.branch, span.from, span.to);
        let closed = if closed.is_empty() { Vec::new() } else { vec![closed] };
        let body = object::seal_body(
            &self.source_key.key,
            &self.data_key,
            id,
            self.random.array(),
            &entries,
            &closed,
        )
        .unwrap();
        let sealed = object::seal_header(&self.source_key.key, &header, &body, self.digest).unwrap();
        self.put(&self.stream.log(self.epoch, self.number), sealed.body).await;
        catalog::apply(&mut self.catalog, id, &header, &entries);
        self.digest = sealed.digest;
        self.position = span.to;
        self.number += 1;
        at
    }

    /// A run of ordinary objects with two marks each.
    pub async fn write_many(&mut self, count: u64, bytes: usize) {
        for _ in 0..count {
            let time = self.position;
            self.write(Batch { bytes, marks: vec![time, time + 1], ..Batch::default() }).await;
        }
    }

    /// Merges plain objects (or lower merged ones named by their ranges) and perhaps removes them.
    pub async fn merge(&self, range: RangeInclusive<u64>, remove: bool) {
        let mut merger = Merger::default();
        let mut originals = Vec::new();
        for number in range.clone() {
            let name = self.stream.log(self.epoch, number);
            merger.push(&Body::from(self.sink.get(&name).unwrap())).unwrap();
            originals.push(name);
        }
        let merged = merger.finish(&self.source_key.key).unwrap();
        let name = self.stream.merged(self.epoch, *range.start(), *range.end());
        self.put(&name, merged.body).await;
        if remove {
            self.sink.remove(&originals).await.unwrap();
        }
    }

    pub async fn merge_merged(&self, ranges: &[RangeInclusive<u64>], remove: bool) {
        let mut merger = Merger::default();
        let mut originals = Vec::new();
        for range in ranges {
            let name = self.stream.merged(self.epoch, *range.start(), *range.end());
            merger.push_merged(&self.sink.get(&name).unwrap()).unwrap();
            originals.push(name);
        }
        let merged = merger.finish(&self.source_key.key).unwrap();
        let (first, last) = (ranges.first().unwrap(), ranges.last().unwrap());
        self.put(&self.stream.merged(self.epoch, *first.start(), *last.end()), merged.body).await;
        if remove {
            self.sink.remove(&originals).await.unwrap();
        }
    }

    /// Writes one pack of pieces.
    pub async fn pack(&mut self, contents: &[Vec<u8>]) -> Vec<Held> {
        let pack = PackId { epoch: self.epoch, number: self.packs };
        self.packs += 1;
        let mut builder = PackBuilder::new(&self.source_key.key, self.stream, pack, &self.random);
        let mut extents: Vec<Extent> = Vec::new();
        for plain in contents {
            let piece = PieceId(self.random.array());
            extents.push(builder.push(seal_piece(&self.data_key, self.epoch, piece, plain).unwrap()));
        }
        let body = builder.finish().unwrap();
        self.put(&self.stream.pack(pack.epoch, pack.number), body).await;
        let held = extents.into_iter().zip(contents);
        held.map(|(extent, plain)| Held { extent, hash: digest(plain) }).collect()
    }
}
