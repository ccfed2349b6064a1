use holdfast_core::{Act, Epoch, Sink};
use holdfast_repo::chain::{At, Chain, Depth, Found};

use crate::author::{Author, Batch};

/// Places and errors of a whole walk.
async fn walk(chain: &Chain, depth: Depth) -> (Vec<At>, Vec<String>) {
    let mut walk = chain.walk(chain.begin().await.unwrap(), depth);
    let (mut places, mut errors) = (Vec::new(), Vec::new());
    while let Some(found) = walk.next().await.unwrap() {
        match found {
            Found::Object(object) => places.push((object.id().epoch, object.id().number)),
            Found::Lost { error, .. } => errors.push(error.chain()),
        }
    }
    (places, errors)
}

fn all(tenures: &[(u64, u64)]) -> Vec<At> {
    tenures.iter().flat_map(|(epoch, last)| (0..=*last).map(|n| (Epoch::numbered(*epoch), n))).collect()
}

#[tokio::test]
async fn what_was_taken_over_is_read_and_nothing_else() {
    let mut author = Author::new().await;
    assert_eq!(author.chain().await.head().at, (Epoch::numbered(1), 0));
    author.write_many(5, 100).await;
    author.claim(2).await;
    // A late object of a fenced writer, behind the END.
    let stray = author.sink.get(&author.stream.log(Epoch::numbered(1), 5)).unwrap();
    author.sink.tamper_put(&author.stream.log(Epoch::numbered(1), 7), stray);
    author.write_many(3, 100).await;
    // An epoch that died without a number 0, and one whose number 0 is an END.
    author.claim_dead(3).await;
    author.claim_dead(4).await;
    author.end(Epoch::numbered(4), 0, 5).await;
    author.claim(5).await;
    author.write_many(2, 100).await;
    author.claim_dead(6).await;
    let chain = author.chain().await;
    assert_eq!(chain.head().at, (Epoch::numbered(5), 2));
    for depth in [Depth::Front, Depth::Entries, Depth::Whole] {
        let (places, errors) = walk(&chain, depth).await;
        assert_eq!(errors, Vec::<String>::new());
        assert_eq!(places, all(&[(1, 5), (2, 3), (5, 2)]), "{depth:?}");
    }
    assert_eq!(chain.tenure(Epoch::numbered(3)).await.unwrap(), None);
    assert_eq!(chain.before((Epoch::numbered(5), 0)).await.unwrap(), Some((Epoch::numbered(2), 3)));
    let unknown = chain.walk((Epoch::numbered(3), 0), Depth::Front).next().await.unwrap_err();
    assert_eq!(unknown.act(), Act::Unreachable);
}

#[tokio::test]
async fn an_end_hides_what_lies_behind_it_and_a_hole_ends_the_stream() {
    let mut author = Author::new().await;
    author.write_many(6, 50).await;
    author.end(author.epoch, 7, 9).await;
    let late = author.sink.get(&author.stream.log(author.epoch, 6)).unwrap();
    author.sink.tamper_put(&author.stream.log(author.epoch, 8), late);
    assert_eq!(author.chain().await.head().at.1, 6);
    author.sink.tamper_lose(&author.stream.log(author.epoch, 7));
    let chain = author.chain().await;
    assert_eq!(chain.head().at.1, 6, "what lies behind a hole is in flight");
    let said = chain.damage().join("; ");
    assert!(said.contains("0007 is missing, and objects up to number 8 stand behind it"), "{said}");
}

#[tokio::test]
async fn a_rotted_end_does_not_hide_that_it_may_have_been_one() {
    let mut author = Author::new().await;
    author.write_many(6, 50).await;
    author.end(author.epoch, 7, 9).await;
    let late = author.sink.get(&author.stream.log(author.epoch, 6)).unwrap();
    author.sink.tamper(&author.stream.log(author.epoch, 7), |raw| raw[180] ^= 1);
    let before = author.chain().await;
    assert_eq!(before.head().at.1, 6);
    author.sink.tamper_put(&author.stream.log(author.epoch, 8), late);
    let said = author.chain().await.damage().join("; ");
    assert!(said.contains("if it was an END, objects 8 to 8 behind it do not count"), "{said}");
}

#[tokio::test]
async fn the_catalog_of_an_object_in_the_middle_knows_nothing_later() {
    let mut author = Author::new().await;
    author.write_many(3, 40).await;
    author.write(Batch { bytes: 10, catalog: true, ..Batch::default() }).await;
    let then = author.catalog.clone();
    author.write_many(3, 40).await;
    author.write(Batch { bytes: 10, catalog: true, ..Batch::default() }).await;
    let chain = author.chain().await;
    let known = chain.known((author.epoch, 4)).await.unwrap();
    assert_eq!(known.catalog, then);
    assert!(known.based && known.last.is_none());
    author.sink.tamper(&author.stream.log(author.epoch, 4), |raw| raw[20] ^= 1);
    let known = chain.known((author.epoch, 4)).await.unwrap();
    assert!(known.based && known.last.is_some(), "the beginning of the lineage is a base");
    author.sink.tamper(&author.stream.log(author.epoch, 0), |raw| *raw.last_mut().unwrap() ^= 1);
    let known = chain.known((author.epoch, 4)).await.unwrap();
    assert!(!known.based, "{:?}", known.damage);
}

#[tokio::test]
async fn merged_objects_of_two_levels_are_read_once_each() {
    let mut author = Author::new().await;
    author.write_many(300, 40).await;
    author.merge(1..=64, true).await;
    author.merge(65..=128, false).await;
    author.merge(129..=192, true).await;
    author.merge_merged(&[1..=64, 65..=128], true).await;
    let chain = author.chain().await;
    for depth in [Depth::Front, Depth::Entries, Depth::Whole] {
        assert_eq!(walk(&chain, depth).await, (all(&[(1, 300)]), Vec::new()), "{depth:?}");
    }
    // From the middle of a merged object to the middle of another.
    let mut part = chain.walk_until((author.epoch, 100), (author.epoch, 150), Depth::Whole);
    let mut numbers = Vec::new();
    while let Some(object) = part.next_object().await.unwrap() {
        numbers.push(object.id().number);
    }
    assert_eq!(numbers, (100..=150).collect::<Vec<_>>());
    author.sink.reset_traffic();
    walk(&chain, Depth::Whole).await;
    let reads = author.sink.traffic().reads;
    assert!(reads < 130, "{reads} reads for 300 objects");
}

#[tokio::test]
async fn a_merge_under_way_is_planned_again() {
    let mut author = Author::new().await;
    author.write_many(200, 40).await;
    let chain = author.chain().await;
    let mut walk = chain.walk((author.epoch, 1), Depth::Entries);
    let mut numbers = Vec::new();
    while let Some(object) = walk.next_object().await.unwrap() {
        numbers.push(object.id().number);
        match object.id().number {
            10 => author.merge(1..=64, true).await,
            70 => {
                author.merge(65..=128, true).await;
                author.merge_merged(&[1..=64, 65..=128], true).await;
            }
            _ => {}
        }
    }
    assert_eq!(numbers, (1..=200).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_catalog_is_brought_up_to_the_head() {
    let mut author = Author::new().await;
    author.write_many(100, 40).await;
    let chain = author.chain().await;
    assert_eq!(chain.catalog().await.unwrap().catalog, author.catalog);
    author.write(Batch { bytes: 10, catalog: true, ..Batch::default() }).await;
    author.write_many(30, 40).await;
    author.merge(1..=64, true).await;
    author.claim(2).await;
    author.branch = 2;
    author.write_many(2, 40).await;
    let chain = author.chain().await;
    let known = chain.catalog().await.unwrap();
    assert_eq!(known.catalog, author.catalog);
    assert_eq!(known.damage, Vec::<String>::new());
    assert!(known.vouched.is_some());
    let (reads, bytes) = (author.sink.traffic().reads, author.sink.traffic().bytes_read);
    author.sink.reset_traffic();
    author.chain().await.catalog().await.unwrap();
    assert!(author.sink.traffic().reads < 60, "{reads} reads, {bytes} bytes");
}

#[tokio::test]
async fn damage_is_named_and_the_rest_is_read() {
    let mut author = Author::new().await;
    author.write_many(20, 100).await;
    author.write(Batch { bytes: 10, catalog: true, ..Batch::default() }).await;
    author.write_many(80, 100).await;
    let name = |number| author.stream.log(author.epoch, number);
    author.sink.tamper(&name(3), |raw| raw[200] ^= 1);
    author.sink.tamper(&name(5), |raw| raw.truncate(100));
    let other = author.sink.get(&name(8)).unwrap();
    author.sink.tamper_put(&name(7), other);
    author.sink.tamper_lose(&name(10));
    author.sink.tamper_lose(&name(11));
    let chain = author.chain().await;
    assert!(chain.damage()[0].contains("000000000000000a is missing"), "{:?}", chain.damage());
    let (places, errors) = walk(&chain, Depth::Front).await;
    assert_eq!(errors.len(), 4, "{errors:?}");
    for (error, number) in errors.iter().zip([3, 5, 7, 10]) {
        assert!(error.contains(&format!("{number:016x}")), "{error}");
    }
    assert_eq!(places.len(), 102 - 5);
    assert_eq!(
        chain.catalog().await.unwrap().catalog,
        author.catalog,
        "nothing behind the catalog is damaged"
    );
}

#[tokio::test]
async fn a_damaged_head_or_catalog_costs_only_what_it_held() {
    let mut author = Author::new().await;
    author.write_many(10, 100).await;
    author.write(Batch { bytes: 10, catalog: true, ..Batch::default() }).await;
    author.write_many(10, 100).await;
    author.write(Batch { bytes: 10, catalog: true, ..Batch::default() }).await;
    let before = author.catalog.clone();
    author.write_many(1, 100).await;
    let name = |number| author.stream.log(author.epoch, number);
    author.sink.tamper(&name(23), |raw| raw[20] ^= 1);
    let chain = author.chain().await;
    assert_eq!(chain.head().at.1, 22);
    let known = chain.catalog().await.unwrap();
    assert_eq!(known.catalog.spans, before.spans);
    assert!(known.damage[0].contains(&format!("{:016x}", 23)), "{:?}", known.damage);
    // And now the catalog that the new head itself holds.
    author.sink.tamper(&name(22), |raw| {
        let at = raw.len() - 50;
        raw[at] ^= 1;
    });
    let known = author.chain().await.catalog().await.unwrap();
    assert!(known.damage.iter().any(|text| text.contains(&format!("{:016x}", 22))), "{:?}", known.damage);
    assert_eq!(known.catalog.spans.last().unwrap().from, 1000);
}

#[tokio::test]
async fn a_damaged_merged_object_is_read_around_while_originals_last() {
    let mut author = Author::new().await;
    author.write_many(80, 40).await;
    author.merge(1..=64, false).await;
    let merged = author.stream.merged(author.epoch, 1, 64);
    author.sink.tamper(&merged, |raw| raw[30] ^= 1);
    let chain = author.chain().await;
    assert_eq!(walk(&chain, Depth::Whole).await, (all(&[(1, 80)]), Vec::new()));
    for number in 1..=64 {
        author.sink.tamper_lose(&author.stream.log(author.epoch, number));
    }
    let (places, errors) = walk(&author.chain().await, Depth::Whole).await;
    assert_eq!(places.len(), 17);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("merged/"), "{errors:?}");
}

#[tokio::test]
async fn a_swap_within_the_chain_shows() {
    let mut author = Author::new().await;
    author.write_many(3, 40).await;
    // The same number written twice, by a forger with the source key: each alone is valid.
    let (number, digest) = (author.number, author.digest);
    author.write_many(1, 40).await;
    let name = author.stream.log(author.epoch, number);
    let first = author.sink.get(&name).unwrap();
    author.write_many(2, 40).await;
    author.sink.tamper_lose(&name);
    (author.number, author.digest) = (number, digest);
    author.write_many(1, 77).await;
    assert_ne!(author.sink.get(&name).unwrap(), first);
    let (_, errors) = walk(&author.chain().await, Depth::Front).await;
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("rolled back"), "{errors:?}");
}

#[tokio::test]
async fn a_list_without_its_front_is_refused() {
    let mut author = Author::new().await;
    author.write_many(66, 40).await;
    author.merge(1..=64, true).await;
    author.sink.tamper_lose(&author.stream.log(author.epoch, 65));
    let chain = author.chain().await;
    assert_eq!(chain.head().at.1, 66, "what follows a merged object was stored");
    assert!(chain.damage()[0].contains(&format!("{:016x} is missing", 65)), "{:?}", chain.damage());
    author.sink.tamper_lose(&author.stream.log(author.epoch, 66));
    let error = Chain::open(author.access()).await.err().unwrap();
    assert_eq!(error.act(), Act::Corrupt);
    assert!(error.to_string().contains("begins too late"), "{error}");
}

#[tokio::test]
async fn nobody_began() {
    let author = Author::new().await;
    let names = author.sink.names();
    author.sink.remove(&names).await.unwrap();
    assert!(Chain::open(author.access()).await.unwrap().is_none());
}

#[tokio::test]
async fn another_key_sees_nothing_but_damage() {
    let mut author = Author::new().await;
    author.write_many(3, 40).await;
    let mut access = author.access();
    access.source_key = holdfast_repo::seal::Key::new([1; 32]);
    let error = Chain::open(access).await.err().unwrap();
    assert!(error.chain().contains("key"), "{}", error.chain());
}

#[tokio::test]
async fn many_epochs_are_read_back_side_by_side() {
    let mut author = Author::new().await;
    for epoch in 2..60 {
        author.write_many(1, 30).await;
        author.claim(epoch).await;
    }
    let chain = author.chain().await;
    let (places, errors) = walk(&chain, Depth::Front).await;
    assert_eq!((places.len(), errors.len()), (59 + 58, 0));
}
