use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::{
    Act, Branch, Checkpoint, Epoch, Layer, Place, Row, RunId, Span, State, StateObject, Timestamp, View,
};
use holdfast_repo::{
    entry::Entry,
    keys::Identity,
    layer::StateBuilder,
    names::Name,
    ring::FORMAT,
    view::{LineageView, Pass, Repository, Source, TableReader, Tables},
};

use crate::author::{Author, Batch};

async fn repository(author: &Author) -> Repository {
    Repository::open(author.sink.clone(), Some(author.source_key.repo)).await.unwrap()
}

/// The worst day: an identity and the sink.
async fn view(author: &Author) -> LineageView {
    let repository = Repository::open(author.sink.clone(), None).await.unwrap();
    let source = repository.source("main", &author.identity).await.unwrap();
    let lineages = repository.lineages(&source).await.unwrap();
    let stream = lineages.last().unwrap().stream;
    repository.view(&source, stream, Some(author.identity.clone())).await.unwrap().unwrap()
}

fn span(branch: u64, from: u64, to: u64) -> Span {
    Span { branch: Branch(branch), from, to }
}

/// Reads a span as a restorer does, a part at a time.
async fn log(view: &dyn View, whole: Span, part: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = whole.from;
    while at < whole.to {
        let chunks = view.log(Span { from: at, to: (at + part).min(whole.to), ..whole }).await.unwrap();
        assert!(!chunks.is_empty(), "nothing at {at}");
        for chunk in chunks {
            assert_eq!((chunk.span.from, chunk.span.len()), (at, chunk.bytes.len() as u64));
            bytes.extend_from_slice(&chunk.bytes);
            at = chunk.span.to;
        }
    }
    bytes
}

async fn marks(view: &dyn View, whole: Span) -> Vec<i64> {
    let mut times = Vec::new();
    let mut span = whole;
    loop {
        let read = view.marks(span).await.unwrap();
        times.extend(read.marks.iter().map(|mark| mark.time.0));
        if read.covered.is_empty() {
            return times;
        }
        span.from = read.covered.to;
    }
}

#[tokio::test]
async fn log_and_marks_come_back_over_merges_epochs_and_branches() {
    let mut author = Author::new().await;
    author.write_many(150, 300).await;
    author.merge(1..=64, true).await;
    author.merge(65..=128, true).await;
    author.claim(2).await;
    author.write_many(100, 70).await;
    let switch = author.position;
    (author.branch, author.position) = (2, switch - 40);
    author.write_many(80, 500).await;
    author.merge(1..=64, true).await;
    let end = author.position;

    let view = view(&author).await;
    assert_eq!(view.catalog(), &author.catalog);
    let heads = view.heads();
    assert_eq!(heads.iter().map(|head| head.position).collect::<Vec<_>>(), [switch, end]);
    for (whole, part) in [
        (span(1, 1000, switch), 1 << 20),
        (span(1, 1000, switch), 1111),
        (span(1, 5555, 7777), 10),
        (span(2, switch - 40, end), 4096),
        (span(2, end - 1, end), 4096),
    ] {
        let expected = Author::log_bytes(whole.branch.0, whole.from, whole.to);
        assert_eq!(log(&view, whole, part).await, expected, "{whole:?}");
    }
    assert!(view.log(span(2, end, end + 100)).await.unwrap().is_empty());
    assert!(view.log(span(9, 0, 100)).await.unwrap().is_empty());

    let times = marks(&view, span(1, 1000, switch)).await;
    assert_eq!(times.len(), 500);
    assert!(times.is_sorted());
    // Of (1000, 1300] the two marks of the first object, which end at 1150 and 1300.
    assert_eq!(marks(&view, span(1, 1000, 1300)).await, [1000, 1001]);
    assert_eq!(marks(&view, span(1, 1150, 1301)).await, [1001]);
    assert_eq!(marks(&view, span(2, end - 500, end)).await.len(), 2);
}

#[tokio::test]
async fn a_year_of_marks_is_not_read_to_find_one() {
    let mut author = Author::new().await;
    author.write_many(2000, 20).await;
    for from in (1..1900).step_by(64) {
        author.merge(from..=from + 63, true).await;
    }
    author.write(Batch { bytes: 10, catalog: true, ..Batch::default() }).await;
    author.sink.reset_traffic();
    let view = view(&author).await;
    let opened = author.sink.traffic();
    assert!(opened.reads < 60, "{opened:?}");
    author.sink.reset_traffic();
    let found = marks(&view, span(1, 1000 + 777 * 20, 1000 + 778 * 20)).await;
    assert_eq!(found.len(), 2);
    let read = author.sink.traffic();
    assert!(read.reads < 10 && read.bytes_read < 200_000, "{read:?}");
    author.sink.reset_traffic();
    log(&view, span(1, 1000 + 777 * 20, 1000 + 877 * 20), 500).await;
    let read = author.sink.traffic();
    assert!(read.reads < 20, "reading on finds its way at once: {read:?}");
    let (bytes, objects) = view.cost(&[span(1, 1000, 1000 + 2000 * 20)]).await.unwrap();
    assert!((50..200).contains(&objects), "{objects}");
    assert!(bytes > 500_000, "{bytes}");
}

#[tokio::test]
async fn a_backlog_is_read_about_once() {
    let mut author = Author::new().await;
    author.write_many(40, 400_000).await;
    let view = view(&author).await;
    let end = author.position;
    author.sink.reset_traffic();
    assert_eq!(log(&view, span(1, 1000, end), 620_000).await, Author::log_bytes(1, 1000, end));
    let read = author.sink.traffic();
    assert!(read.bytes_read < (end - 1000) * 3 / 2, "{read:?}");
}

#[tokio::test]
async fn contents_come_in_few_reads_and_are_checked() {
    let mut author = Author::new().await;
    let contents: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; 30_000 + usize::from(n)]).collect();
    let held = author.pack(&contents).await;
    let more = author.pack(&contents[..3]).await;
    author.claim(2).await;
    let view = view(&author).await;
    author.sink.reset_traffic();
    let mut wanted = held.clone();
    wanted.reverse();
    wanted.extend(&more);
    let read = view.contents(&wanted).await.unwrap();
    for (at, bytes) in read.iter().enumerate().take(40) {
        assert_eq!(bytes[..], contents[39 - at][..]);
    }
    assert_eq!(read[41][..], contents[1][..]);
    // One read a pack, one for the epoch object.
    assert!(author.sink.traffic().reads <= 4, "{:?}", author.sink.traffic());
    assert_eq!(view.content(&held[7]).await.unwrap()[..], contents[7][..]);

    let mut wrong = held[3];
    wrong.hash = held[4].hash;
    let error = view.content(&wrong).await.unwrap_err();
    assert!(error.to_string().contains("not the content"), "{error}");
    let name = author.stream.pack(held[5].extent.pack.epoch, held[5].extent.pack.number);
    author.sink.tamper(&name, |raw| raw[held[5].extent.offset as usize + 10] ^= 1);
    let error = view.contents(&held[..8]).await.unwrap_err();
    assert_eq!(error.act(), Act::Corrupt);
    assert!(error.to_string().contains(&name), "{error}");
    view.contents(&held[..5]).await.unwrap();
    author.sink.tamper_lose(&name);
    assert!(view.content(&held[0]).await.unwrap_err().to_string().contains("missing"));
    view.contents(&more).await.unwrap();
}

#[tokio::test]
async fn the_source_key_alone_shows_all_but_contents() {
    let mut author = Author::new().await;
    author.write_many(5, 100).await;
    let held = author.pack(&[vec![1; 100]]).await;
    let repository = repository(&author).await;
    let source = repository.source_by_key(&author.source_key).await.unwrap();
    assert_eq!(source.content.name, "main");
    let view = repository.view(&source, author.stream, None).await.unwrap().unwrap();
    assert_eq!(marks(&view, span(1, 1000, 1500)).await.len(), 10);
    assert!(view.vouched().is_some());
    for error in [view.content(&held[0]).await.unwrap_err(), view.log(span(1, 1000, 1100)).await.unwrap_err()]
    {
        assert_eq!(error.act(), Act::Configure);
        assert!(error.to_string().contains("identit"), "{error}");
    }
    // An identity that is no recipient.
    let stranger = Identity::generate(&author.random);
    assert_eq!(repository.source("main", &stranger).await.unwrap_err().act(), Act::Configure);
    let view = repository.view(&source, author.stream, Some(stranger)).await.unwrap().unwrap();
    assert_eq!(view.content(&held[0]).await.unwrap_err().act(), Act::Configure);
}

#[tokio::test]
async fn a_pass_opens_the_log_of_its_path_and_no_more() {
    let mut author = Author::new().await;
    author.write_many(5, 100).await;
    let old = author.pack(&[vec![1; 100]]).await;
    author.claim(2).await;
    author.write_many(5, 100).await;
    let path = span(1, 1600, 2000);
    let pass = view(&author).await.pass(&[path]).await.unwrap();
    let text = pass.text().unwrap();
    assert!(!text.contains(&**author.identity.text()));
    author.write_many(5, 100).await;
    let view = Pass::parse(&text).unwrap().view(author.sink.clone()).await.unwrap().unwrap();
    assert_eq!(log(&view, span(1, 1600, 2500), 300).await.len(), 900);
    assert_eq!(view.log(span(1, 1000, 1100)).await.unwrap_err().act(), Act::Configure);
    assert_eq!(view.content(&old[0]).await.unwrap_err().act(), Act::Configure);
    assert_eq!(Pass::parse(&text[1..]).unwrap_err().act(), Act::Configure);
    assert!(format!("{pass:?}").contains("Key(…)"));
}

#[tokio::test]
async fn the_way_in_refuses_what_the_root_did_not_sign() {
    let author = Author::new().await;
    let repository = repository(&author).await;
    let unknown = repository.source("other", &author.identity).await.unwrap_err();
    assert!(unknown.to_string().contains("main"), "{unknown}");
    author.rings(2).await;
    assert_eq!(repository.source("main", &author.identity).await.unwrap().ring, 2);
    for name in author.sink.names().into_iter().filter(|name| name.contains("ring/0000000000000002")) {
        author.sink.tamper(&name, |raw| {
            let middle = raw.len() / 2;
            raw[middle] ^= 1;
        });
    }
    let error = repository.source("main", &author.identity).await.unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    let other = holdfast_core::RepoId([9; 32]);
    let error = Repository::open(author.sink.clone(), Some(other)).await.err().unwrap();
    assert_eq!(error.act(), Act::Configure);
    author.sink.tamper_lose("repo.json");
    let error = Repository::open(author.sink.clone(), None).await.err().unwrap();
    assert!(error.to_string().contains("no repository"), "{error}");
}

#[tokio::test]
async fn a_repository_that_was_raised_to_a_newer_format_is_refused() {
    let author = Author::new().await;
    let format = |version| Name::Format(version).to_string();
    author.put(&format(FORMAT), Vec::new()).await;
    let opened = repository(&author).await;
    author.put(&format(FORMAT + 1), Vec::new()).await;
    author.put(&format(FORMAT + 16), Vec::new()).await;
    for error in [
        opened.refuse_newer().await.unwrap_err(),
        Repository::open(author.sink.clone(), None).await.err().unwrap(),
    ] {
        assert_eq!(error.act(), Act::Configure);
        assert!(error.to_string().contains(&format!("raised to format {}", FORMAT + 16)), "{error}");
    }
}

#[tokio::test]
async fn a_damaged_object_closes_only_its_own_part_of_the_log() {
    let mut author = Author::new().await;
    author.write_many(30, 100).await;
    let name = author.stream.log(author.epoch, 11);
    author.sink.tamper(&name, |raw| {
        let last = raw.len() - 1;
        raw[last] ^= 1;
    });
    let view = view(&author).await;
    assert_eq!(log(&view, span(1, 1000, 2000), 300).await.len(), 1000);
    let error = view.log(span(1, 2050, 2100)).await.unwrap_err();
    assert_eq!(error.act(), Act::Corrupt);
    assert!(error.to_string().contains(&format!("{:016x}", 11)), "{error}");
    assert_eq!(log(&view, span(1, 2100, 4000), 300).await.len(), 1900);
    author.sink.tamper_lose(&name);
    let error = view.log(span(1, 2000, 2100)).await.unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert_eq!(log(&view, span(1, 2100, 4000), 300).await.len(), 1900);
}

fn row(key: u64, value: u8) -> Row {
    Row {
        key: Bytes::from(key.to_be_bytes().to_vec()),
        value: Bytes::from(vec![value; 40]),
        held: Vec::new(),
    }
}

/// Writes a layer of rows with these keys.
async fn layer(author: &Author, number: &mut u64, keys: impl IntoIterator<Item = u64>, value: u8) -> Layer {
    let mut objects: Vec<StateObject> = Vec::new();
    let new = |number: u64| {
        StateBuilder::new(&author.source_key.key, author.stream, author.epoch, number, &author.random)
    };
    let mut builder = new(*number);
    let mut in_object = 0;
    let mut keys = keys.into_iter().peekable();
    while let Some(key) = keys.next() {
        builder.push(&row(key, value)).unwrap();
        in_object += 1;
        // Small objects, so that a layer has several.
        if in_object == 20_000 || keys.peek().is_none() {
            in_object = 0;
            let (body, object) = std::mem::replace(&mut builder, new(*number + 1)).finish().unwrap();
            author.put(&author.stream.state(object.epoch, object.number), body).await;
            objects.push(object);
            *number += 1;
        }
    }
    Layer { objects }
}

#[tokio::test]
async fn tables_are_read_by_page_within_the_cache_and_opening_reads_no_rows() {
    let mut author = Author::new().await;
    let mut number = 0;
    let base = layer(&author, &mut number, 0..60_000, 1).await;
    let newer = layer(&author, &mut number, (0..60_000).step_by(7), 2).await;
    assert!(base.objects.len() > 2, "{}", base.objects.len());
    let place = Place { branch: Branch(1), position: 1000 };
    let checkpoint = Checkpoint {
        id: RunId([1; 8]),
        begin: place,
        serves: place,
        began: Timestamp(1),
        ended: Timestamp(2),
        layers: vec![base, newer],
        // What a lineage of any size says: only this grows with it.
        rows: 10_000_000,
        bytes: 0,
        sent: 0,
        suspect: None,
        body: Bytes::new(),
    };
    author.write(Batch { entries: vec![Entry::Checkpoint(Box::new(checkpoint))], ..Batch::default() }).await;
    author.sink.reset_traffic();
    let view = view(&author).await;
    let opened = author.sink.traffic();
    assert!(opened.bytes_read < 100_000, "{opened:?}");
    let layers = view.catalog().checkpoints[0].layers.clone();

    author.sink.reset_traffic();
    let rows = view.rows(&layers, &5_000u64.to_be_bytes(), 3).await.unwrap();
    let values: Vec<u8> = rows.iter().map(|row| row.value[0]).collect();
    assert_eq!((rows[0].key[..].to_vec(), values), (5_000u64.to_be_bytes().to_vec(), vec![1, 1, 1]));
    assert_eq!(view.rows(&layers, &7_000u64.to_be_bytes(), 1).await.unwrap()[0].value[0], 2);
    let read = author.sink.traffic();
    assert!(read.reads <= 8, "{read:?}");

    // All of it, with a cache that holds a small part.
    let tables = Tables::new(author.access(), 400_000);
    let mut scan = tables.scan(&layers, b"");
    let mut count = 0u64;
    while let Some(row) = scan.next().await.unwrap() {
        assert_eq!(row.key[..], count.to_be_bytes());
        assert_eq!(row.value[0], if count.is_multiple_of(7) { 2 } else { 1 });
        count += 1;
    }
    assert_eq!(count, 60_000);

    // In steps, as a restorer does; read ahead makes them few.
    author.sink.reset_traffic();
    let reader = TableReader::new(Arc::new(Tables::new(author.access(), 16 << 20)), Arc::default());
    let (mut from, mut count) = (Vec::new(), 0);
    loop {
        let rows = reader.rows(&layers, &from, 1_000).await.unwrap();
        let Some(last) = rows.last() else { break };
        from = [&last.key[..], &[0]].concat();
        count += rows.len();
    }
    assert_eq!(count, 60_000);
    let read = author.sink.traffic();
    assert!(read.reads < 60, "{read:?}");

    let lost = &layers[0].objects[1];
    author.sink.tamper_lose(&author.stream.state(lost.epoch, lost.number));
    let fresh = Tables::new(author.access(), 16 << 20);
    let error = fresh.rows(&layers, &lost.first, 1).await.unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert_eq!(fresh.rows(&layers, b"", 5).await.unwrap().len(), 5);
}

#[tokio::test]
async fn each_life_of_a_source_is_found() {
    let mut author = Author::new().await;
    author.write_many(3, 10).await;
    let repository = repository(&author).await;
    let source: Source = repository.source("main", &author.identity).await.unwrap();
    let other =
        holdfast_repo::names::Stream { lineage: holdfast_core::LineageId([0xff; 8]), ..author.stream };
    let record = holdfast_repo::record::LineageRecord {
        identity: "7302".into(),
        created: Timestamp(50),
        origin: holdfast_repo::record::Origin::Adopted { by: "anna".into() },
    };
    author.put(&other.lineage_record(), record.seal(&source.key, other, &author.random).unwrap()).await;
    author.put(&format!("{}/holds/{}/{:016x}", source.id, "00".repeat(8), 0), vec![1]).await;
    let lineages = repository.lineages(&source).await.unwrap();
    let identities: Vec<&str> = lineages.iter().map(|lineage| lineage.record.identity.as_str()).collect();
    assert_eq!(identities, ["7301", "7302"]);
    assert!(repository.view(&source, other, None).await.unwrap().is_none(), "never begun");
    assert_eq!(lineages[0].stream.lineage, author.stream.lineage);
    assert_eq!(Epoch::numbered(1), author.epoch);
}
