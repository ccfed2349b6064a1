//! The clocks of source, host and store, side by side in the stream (design.md section 9).

use std::time::Duration;

use holdfast_core::Timestamp;
use holdfast_repo::{
    chain::{Chain, Depth},
    entry::Entry,
};
use holdfast_testkit::{AHEAD, scripted::Script};

use crate::{
    simulate,
    world::{SCRIPT, World},
};

type Clocks = (Option<Timestamp>, Timestamp, Option<Timestamp>);

async fn written(world: &World) -> Vec<Clocks> {
    let chain = Chain::open(world.access()).await.unwrap().unwrap();
    let first = chain.first_tenure().await.unwrap().epoch;
    let mut walk = chain.walk((first, 0), Depth::Entries);
    let mut all = Vec::new();
    while let Some(object) = walk.next_object().await.unwrap() {
        for entry in object.entries(&world.key.key).unwrap() {
            if let Entry::Clocks { source, host, store } = entry {
                all.push((source, host, store));
            }
        }
    }
    all
}

#[test]
fn three_clocks_are_written_each_minute_busy_or_idle() {
    simulate(async {
        let script = Script { busy_for: Duration::from_secs(150), ..SCRIPT };
        let world = World::new(9, true, script).await;
        let writer = world.start(1, world.settings.clone());
        world.sleep(330.0).await;
        let all = written(&world).await;
        assert_eq!(all.len(), 5, "{all:?}");
        let apart = |one: Timestamp, two: Timestamp| one.since(two).max(two.since(one));
        for (source, host, store) in all {
            // The script's clock is ours.
            assert!(apart(source.unwrap(), host) < Duration::from_millis(1), "{source:?} {host}");
            assert!(apart(store.unwrap(), host.plus(AHEAD)) < Duration::from_millis(1), "{store:?} {host}");
        }
        // Without its source and its store for half an hour, one record is written, not thirty.
        world.source.set_unreachable(true);
        world.sink.go_down(Duration::from_secs(1800));
        world.sleep(1900.0).await;
        let since = written(&world).await.split_off(5);
        assert!((1..=4).contains(&since.len()), "{since:?}");
        let (source, host, store) = since[since.len() - 1];
        assert_eq!(source, None, "nobody asked it");
        assert!(apart(store.unwrap(), host.plus(AHEAD)) < Duration::from_millis(1), "{store:?} {host}");
        drop(writer);
    });
}
