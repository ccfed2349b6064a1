//! A store that breaks its promise: objects rot or vanish, and the writer starts again. What is left must stay
//! readable, and the source must not be held up where going on is safe.

use std::{sync::Arc, time::Duration};

use holdfast_core::{Act, Catalog, Epoch, WriterId};
use holdfast_pipeline::{Outcome, Phase, Settings};
use holdfast_repo::{
    chain::{Chain, Depth, Found, WINDOW},
    epoch::{Claim, InstanceId},
    names::Name,
    view::{DataKeys, LineageView},
};
use holdfast_testkit::{Cruelty, scripted::Script};

use crate::{
    named::{check, log, streams},
    simulate,
    world::{SCRIPT, World},
};

/// A world whose log objects stay single.
async fn world(create_only: bool) -> World {
    let script = Script {
        busy_for: Duration::from_secs(600),
        run_every: Duration::from_secs(20),
        run_pieces: 4,
        run_takes: Duration::from_secs(2),
        ..SCRIPT
    };
    let mut world = World::new(11, create_only, script).await;
    world.sink.set_cruelty(Cruelty { latency: Duration::from_millis(40), ..Cruelty::NONE });
    world.settings = Settings { merge: false, ..world.settings };
    world
}

/// What a reader knows, whatever is damaged.
async fn catalog(world: &World) -> Catalog {
    let access = world.access();
    let keys = DataKeys::new(access.clone(), world.key.repo, None);
    let view = LineageView::open(access, Arc::new(keys)).await.unwrap().unwrap();
    holdfast_core::View::catalog(&view).clone()
}

fn flip(world: &World, name: &str, at: usize) {
    let mut raw = world.sink.get(name).unwrap().to_vec();
    raw[at] ^= 1;
    world.sink.tamper(name, raw.into());
}

/// The names of the newest epoch's log objects, by number.
async fn crashed_after(world: &World, seconds: f64) -> Vec<String> {
    let owner = world.start(1, world.settings.clone());
    streams(world, &owner).await;
    world.sleep(seconds).await;
    owner.crash();
    world.sleep(1.0).await;
    world.sink.calm();
    world.names(&log(1))
}

/// A writer that is to stream again within a minute.
async fn goes_on(world: &World) {
    let running = world.start(1, world.settings.clone());
    streams(world, &running).await;
    assert!(matches!(running.stop().await, Outcome::Stopped));
}

/// Finding of the safety review: one create that hangs let the others run ahead without bound.
#[test]
fn a_create_that_hangs_holds_the_others_back() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let owner = world.start(1, world.settings.clone());
            streams(&world, &owner).await;
            let stuck = world.names(&log(1)).len() as u64 + 3;
            world.sink.hold(format!("/{stuck:016x}"));
            world.until("it hangs", || world.sink.held() > 0).await;
            for _ in 0..60 {
                world.sleep(1.0).await;
                let highest = world.names(&log(1)).len() as u64;
                assert!(highest <= stuck + WINDOW, "{highest} objects although number {stuck} hangs");
            }
            let chain = Chain::open(world.access()).await.unwrap().unwrap();
            assert_eq!(chain.head().at.1, stuck - 1, "a create in flight was taken for lost");
            world.sink.let_go();
            streams(&world, &owner).await;
            drop(owner);
            check(&world).await;
        });
    }
}

#[test]
fn a_rotted_catalog_object_costs_no_base_backup_but_its_own() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let names = crashed_after(&world, 100.0).await;
            let before = catalog(&world).await;
            assert!(before.checkpoints.len() >= 3, "{}", before.checkpoints.len());
            let chain = Chain::open(world.access()).await.unwrap().unwrap();
            let (_, number) = chain.head().header.catalog.unwrap();
            assert!(number > 0);
            flip(&world, &names[number as usize], 30);
            goes_on(&world).await;
            let after = catalog(&world).await;
            let kept = before.checkpoints.len() - 1;
            assert_eq!(after.checkpoints[..kept], before.checkpoints[..kept]);
            assert!(after.checkpoints.len() >= kept);
        });
    }
}

#[test]
fn a_lost_object_costs_itself_alone_after_a_restart_too() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let names = crashed_after(&world, 60.0).await;
            let before = catalog(&world).await;
            world.sink.lose(&names[names.len() / 2]);
            goes_on(&world).await;
            let after = catalog(&world).await;
            let end = |catalog: &Catalog| catalog.spans.last().unwrap().to;
            assert!(end(&after) > end(&before));
            assert!(after.gaps.is_empty());
            let chain = Chain::open(world.access()).await.unwrap().unwrap();
            let mut walk = chain.walk(chain.begin().await.unwrap(), Depth::Front);
            let (mut lost, mut there) = (0, 0);
            while let Some(found) = walk.next().await.unwrap() {
                match found {
                    Found::Object(_) => there += 1,
                    Found::Lost { from, to, .. } => lost += to - from + 1,
                }
            }
            assert_eq!(lost, 1, "{lost} objects cannot be read, {there} can");
            assert!(there > names.len());
        });
    }
}

#[test]
fn damage_behind_the_last_object_stops_no_writer() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let names = crashed_after(&world, 30.0).await;
            let last = names.len() - 2;
            // The end of each is in its closed half, or in its key half; the front is at the beginning.
            for (name, from_end) in names[last - 12..last - 2].iter().zip([true, false].into_iter().cycle()) {
                let length = world.sink.get(name).unwrap().len();
                flip(&world, name, if from_end { length - 1 } else { 100 });
            }
            let before = catalog(&world).await;
            goes_on(&world).await;
            let after = catalog(&world).await;
            assert!(after.spans.last().unwrap().to > before.spans.last().unwrap().to);
        });
    }
}

#[test]
fn a_rotted_number_0_is_a_sentence_that_says_what_to_do() {
    simulate(async {
        let world = world(true).await;
        let names = crashed_after(&world, 10.0).await;
        flip(&world, &names[0], 100);
        let outcome = world.start(1, world.settings.clone()).end().await;
        let Outcome::Failed(error) = outcome else { panic!("{outcome:?}") };
        assert_eq!(error.act(), Act::Corrupt);
        let said = error.chain();
        assert!(said.contains(&names[0]) && said.contains("intact copy"), "{said}");
        flip(&world, &names[0], 100);
        goes_on(&world).await;
        check(&world).await;
    });
}

/// Two epochs may be claimed in any order; the ring of neither may be older than the newest that either knew.
#[test]
fn a_ring_that_was_rolled_back_is_refused_whichever_epoch_knew_it() {
    simulate(async {
        let world = world(true).await;
        world.put_ring(2).await;
        crashed_after(&world, 5.0).await;
        let access = world.access();
        let recipients = [world.identity.recipient().unwrap()];
        let claim = Claim {
            repo: world.key.repo,
            lineage: access.stream.lineage,
            epoch: Epoch::numbered(2),
            writer: WriterId([1; 8]),
            instance: InstanceId([9; 16]),
            ring: 1,
            claimed: world.clock.wall(),
            recipients: &recipients,
        };
        let (bytes, _) = claim.seal(&world.key.key, &world.random).unwrap();
        world.put(&access.stream.epoch(Epoch::numbered(2)), bytes).await;
        let ring = Name::SourceRing { source: world.key.source, generation: 2 }.to_string();
        let kept = world.sink.get(&ring).unwrap();
        world.sink.lose(&ring);
        let refused = world.start(1, world.taking_over()).end();
        let outcome = world.clock.timeout(Duration::from_secs(60), refused).await;
        let Some(Outcome::Failed(error)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(error.act(), Act::Configure);
        assert!(error.to_string().contains("rolled back"), "{error}");
        world.sink.tamper(&ring, kept);
        let running = world.start(1, world.taking_over());
        streams(&world, &running).await;
    });
}

/// A name that is none of ours, among epochs, ends no running writer.
#[test]
fn a_foreign_name_among_epochs_ends_no_tenure() {
    simulate(async {
        let world = world(true).await;
        let owner = world.start(1, world.settings.clone());
        streams(&world, &owner).await;
        let folder = world.names("/epochs/").pop().unwrap();
        world.put(&format!("{folder}.odd"), vec![1]).await;
        world.sleep(700.0).await;
        assert_eq!(world.phase(&owner), Phase::Streaming);
        assert_eq!(world.names("/epochs/").len(), 2);
    });
}
