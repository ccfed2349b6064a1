use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use holdfast_core::{
    Act, Branch, Checkpoint, Epoch, Held, Layer, Place, Progress, Row, RunId, Span, Timestamp, View,
};
use holdfast_repo::{
    entry::Entry,
    layer::StateBuilder,
    verify::{Closes, Level, Verification, verify},
    view::{LineageView, Repository},
};

use crate::author::{Author, Batch};

#[derive(Default)]
struct Counted(AtomicU64);

impl Progress for Counted {
    fn total(&self, _: u64) {}
    fn done(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
    fn say(&self, _: &str) {}
}

async fn view(author: &Author, identity: bool) -> LineageView {
    let repository = Repository::open(author.sink.clone(), None).await.unwrap();
    let source = repository.source_by_key(&author.source_key).await.unwrap();
    let identity = identity.then(|| author.identity.clone());
    repository.view(&source, author.stream, identity).await.unwrap().unwrap()
}

async fn verified(author: &Author, level: Level) -> Verification {
    let view = view(author, true).await;
    let progress = Counted::default();
    let found = verify(&view, level, &progress).await.unwrap();
    assert_eq!(progress.0.load(Ordering::Relaxed), found.bytes);
    found
}

/// One lineage of two epochs, merged and plain objects, and two checkpoints with a pack and a layer each.
async fn world() -> (Author, Vec<Held>) {
    let mut author = Author::new().await;
    let mut all = Vec::new();
    for number in 0..2u8 {
        author.write_many(70, 100).await;
        author.merge(1..=64, true).await;
        let contents: Vec<Vec<u8>> = (0..20).map(|n| vec![n * 2 + number; 5_000]).collect();
        let held = author.pack(&contents).await;
        let mut builder =
            StateBuilder::new(&author.source_key.key, author.stream, author.epoch, 0, &author.random);
        for (key, held) in (0u8..).zip(&held) {
            let row = Row { key: Bytes::from(vec![key]), value: Bytes::new(), held: vec![*held] };
            builder.push(&row).unwrap();
        }
        let (body, object) = builder.finish().unwrap();
        author.put(&author.stream.state(object.epoch, object.number), body).await;
        let place = Place { branch: Branch(1), position: author.position };
        let checkpoint = Checkpoint {
            id: RunId([number; 8]),
            begin: place,
            serves: place,
            began: Timestamp(1),
            ended: Timestamp(2),
            layers: vec![Layer { objects: vec![object] }],
            rows: 20,
            bytes: 0,
            sent: 0,
            suspect: None,
            body: Bytes::new(),
        };
        let entries = vec![Entry::Checkpoint(Box::new(checkpoint))];
        author.write(Batch { bytes: 100, entries, ..Batch::default() }).await;
        author.write(Batch { bytes: 100, catalog: true, ..Batch::default() }).await;
        all.extend(held);
        if number == 0 {
            author.claim(2).await;
        }
    }
    (author, all)
}

#[tokio::test]
async fn a_sound_lineage_has_no_problems() {
    let (author, held) = world().await;
    for level in [Level::Named, Level::Digests, Level::Contents] {
        let found = verified(&author, level).await;
        assert!(found.is_sound(), "{:?}", found.problems);
        assert_eq!((found.log_objects, found.layer_objects, found.packs), (146, 2, 2));
        assert_eq!((found.rows, found.pieces), (40, held.len() as u64));
    }
    let view = view(&author, false).await;
    assert!(verify(&view, Level::Digests, &Counted::default()).await.unwrap().is_sound());
    let error = verify(&view, Level::Contents, &Counted::default()).await.unwrap_err();
    assert_eq!(error.act(), Act::Configure);
}

#[tokio::test]
async fn each_kind_of_damage_is_named_with_what_it_closes() {
    let (author, held) = world().await;
    let epoch = Epoch::numbered;
    let stream = author.stream;
    let pack = stream.pack(epoch(1), 0);
    let second = stream.pack(epoch(2), 0);
    let layer = stream.state(epoch(2), 0);
    let plain = stream.log(epoch(1), 66);
    let merged = stream.merged(epoch(2), 1, 64);
    let place = held[3].extent.offset as usize;
    let flip = |at: usize| move |raw: &mut Vec<u8>| raw[at] ^= 4;
    let last = |raw: &mut Vec<u8>| *raw.last_mut().unwrap() ^= 4;
    let cut = |raw: &mut Vec<u8>| raw.truncate(raw.len() - 1);
    let first = vec![RunId([0; 8])];
    let newer = vec![RunId([1; 8])];
    type Damage = Box<dyn FnOnce(&mut Vec<u8>)>;
    let cases: Vec<(&str, Level, Damage, Closes)> = vec![
        (&pack, Level::Digests, Box::new(flip(place)), Closes::Checkpoints(first.clone())),
        (&pack, Level::Contents, Box::new(flip(place)), Closes::Checkpoints(first.clone())),
        (&pack, Level::Named, Box::new(cut), Closes::Checkpoints(first)),
        (
            &second,
            Level::Named,
            Box::new(|raw: &mut Vec<u8>| raw.clear()),
            Closes::Checkpoints(newer.clone()),
        ),
        (&layer, Level::Named, Box::new(flip(40)), Closes::Checkpoints(newer.clone())),
        (&layer, Level::Named, Box::new(cut), Closes::Checkpoints(newer)),
        (&plain, Level::Named, Box::new(last), Closes::Nothing),
        (&merged, Level::Named, Box::new(last), Closes::Nothing),
        (&plain, Level::Named, Box::new(flip(20)), Closes::Nothing),
    ];
    for (name, level, damage, closes) in cases {
        let before = author.sink.get(name).unwrap();
        assert!(author.sink.tamper(name, damage));
        let found = verified(&author, level).await;
        assert_eq!(found.problems.len(), 1, "{name} {level:?}: {:?}", found.problems);
        let problem = &found.problems[0];
        if closes == Closes::Nothing {
            let Closes::Spans { spans, after, before } = &problem.closes else { panic!("{problem:?}") };
            assert_eq!(spans.len(), 1, "{problem:?}");
            assert_eq!(spans[0].len(), 100, "{problem:?}");
            assert!(after < before || before.is_none(), "{problem:?}");
        } else {
            assert_eq!(problem.closes, closes, "{problem:?}");
            assert!(problem.what.contains(name), "{problem:?}");
        }
        author.sink.tamper_put(name, before);
    }
    assert!(verified(&author, Level::Contents).await.is_sound());
}

#[tokio::test]
async fn what_is_missing_or_swapped_is_named_and_the_rest_is_restorable() {
    let (author, held) = world().await;
    let epoch = Epoch::numbered;
    let stream = author.stream;
    let pack = stream.pack(epoch(1), 0);
    let layer = stream.state(epoch(1), 0);
    let plain = stream.log(epoch(1), 66);
    for name in [&pack, &layer, &plain] {
        let before = author.sink.get(name).unwrap();
        author.sink.tamper_lose(name);
        let found = verified(&author, Level::Named).await;
        assert_eq!(found.problems.len(), 1, "{name}: {:?}", found.problems);
        assert!(found.problems[0].what.contains(&format!("{name} is missing")), "{:?}", found.problems);
        let view = view(&author, true).await;
        let newer = &view.catalog().checkpoints[1];
        assert_eq!(view.rows(&newer.layers, b"", 100).await.unwrap().len(), 20);
        view.contents(&held[20..]).await.unwrap();
        let end = author.position;
        assert!(!view.log(Span { branch: Branch(1), from: end - 500, to: end }).await.unwrap().is_empty());
        author.sink.tamper_put(name, before);
    }
    for (one, two) in [
        (pack, stream.pack(epoch(2), 0)),
        (layer, stream.state(epoch(2), 0)),
        (plain, stream.log(epoch(2), 66)),
    ] {
        let (a, b) = (author.sink.get(&one).unwrap(), author.sink.get(&two).unwrap());
        author.sink.tamper_put(&one, b.clone());
        author.sink.tamper_put(&two, a.clone());
        let found = verified(&author, Level::Named).await;
        assert_eq!(found.problems.len(), 2, "{one}: {:?}", found.problems);
        author.sink.tamper_put(&one, a);
        author.sink.tamper_put(&two, b);
    }
    let epochs = stream.epoch(epoch(1));
    author.sink.tamper(&epochs, |raw| raw[50] ^= 1);
    let found = verified(&author, Level::Contents).await;
    assert!(found.problems.iter().any(|problem| problem.what.contains(&epochs)), "{:?}", found.problems);
}

#[tokio::test]
async fn a_damaged_number_zero_hides_only_what_came_before_it() {
    let (author, _) = world().await;
    author.sink.tamper(&author.stream.log(Epoch::numbered(1), 0), |raw| raw[60] ^= 1);
    let found = verified(&author, Level::Named).await;
    assert!(found.problems[0].what.contains("cannot be reached"), "{:?}", found.problems);
    assert!(found.log_objects >= 73);
}

#[tokio::test]
async fn a_remembered_head_shows_a_rollback() {
    let (author, _) = world().await;
    let head = author.chain().await.head().clone();
    author.chain().await.expect(head.at, head.digest).await.unwrap();
    author.sink.tamper_lose(&author.stream.log(head.at.0, head.at.1));
    let error = author.chain().await.expect(head.at, head.digest).await.unwrap_err();
    assert!(error.to_string().contains("rolled back"), "{error}");
    // A forger who has the source key writes another tail.
    let mut author = author;
    author.number = head.at.1;
    author.digest = [7; 32];
    author.write_many(1, 10).await;
    let error = author.chain().await.expect(head.at, head.digest).await.unwrap_err();
    assert!(error.to_string().contains("forged"), "{error}");
}
