//! The writer without any misfortune.

use std::time::Duration;

use holdfast_pipeline::{Outcome, Phase};
use holdfast_testkit::scripted::Script;

use crate::{
    simulate,
    world::{SCRIPT, World},
};

#[test]
fn everything_is_stored_settled_and_restored() {
    for create_only in [true, false] {
        simulate(async {
            let script = Script { run_every: Duration::from_secs(40), run_pieces: 30, ..SCRIPT };
            let world = World::new(1, create_only, script).await;
            let writer = world.writer(1, world.settings.clone());
            let gauges = writer.gauges.clone();
            let stop = async {
                world.sleep(150.0).await;
                let figures = gauges.figures(world.clock.now());
                assert_eq!(figures.phase, Phase::Streaming);
                assert!(figures.at_risk < Duration::from_secs(3), "{:?}", figures.at_risk);
                assert_eq!(figures.at_risk_bytes, 0);
                writer.stop.send(true).unwrap();
            };
            let (outcome, ()) = tokio::join!(writer.run, stop);
            assert!(matches!(outcome, Outcome::Stopped), "{outcome:?}");
            let restored = world.restore().await;
            assert_eq!((restored.from, restored.to), (SCRIPT.start, world.source.head()));
            assert_eq!(world.source.settled(), world.source.head());
            assert!(restored.checkpoints >= 3, "{restored:?}");
            assert_eq!(restored.gaps, 0);
            let figures = gauges.figures(world.clock.now());
            assert_eq!(figures.counts.settled, figures.counts.received);
            // Small objects were merged, and their originals are gone.
            let names = world.sink.names();
            let merged = names.iter().filter(|name| name.contains("/merged/")).count();
            let plain = names.iter().filter(|name| name.contains("/log/")).count();
            assert!(merged >= 5 && plain < 140, "{merged} merged, {plain} plain");
            // An idle writer, stopped: the next one goes on at once, since this one released the stream.
            world.catch_up().await;
            assert_eq!(world.restore().await, restored);
        });
    }
}
